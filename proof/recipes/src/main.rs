//! The recipes whose process a test kills.

#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "tells a test how far it is")]

use std::time::Duration;

use latchwork_recipes::graceful_shutdown::{serve, stop_on_sigterm};
use latchwork_recipes::migration::migrate;
use tokio::sync::mpsc;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let locks = latchwork::connect(&std::env::var("LATCHWORK_STORE")?).await?;
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["migrate", conninfo, ref migrations @ ..] => {
            let (mut db, connection) =
                tokio_postgres::connect(conninfo, tokio_postgres::NoTls).await?;
            tokio::spawn(connection);
            println!("made {}", migrate(&locks, &mut db, migrations).await?);
            Ok(())
        }
        ["serve", work, finish] => {
            let stop = stop_on_sigterm()?;
            let (add, jobs) = mpsc::channel(8);
            for job in ["one", "two"] {
                add.send(job.to_owned()).await?;
            }
            let (work, finish) = (millis(work)?, millis(finish)?);
            let do_one = async |_: &latchwork::Guard, job: &str| {
                println!("begun {job}");
                tokio::time::sleep(work).await;
                println!("done {job}");
                Ok(())
            };
            serve(&locks, jobs, do_one, stop, finish).await
        }
        _ => Err("latchwork-recipes migrate CONNINFO SQL.. | serve WORK-MS FINISH-MS".into()),
    }
}

fn millis(text: &str) -> Result<Duration, Failure> {
    Ok(Duration::from_millis(text.parse()?))
}
