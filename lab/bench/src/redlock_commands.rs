//! What a free cycle costs each of five servers.

use std::time::Duration;

use crate::Outcome;
use crate::peers;
use crate::redlock_servers::Five;
use crate::stats::{head, row, shortened};

const LENGTH: Duration = Duration::from_secs(1);
/// What a majority did not wait for is still on its way.
const REST: Duration = Duration::from_millis(200);

pub(crate) fn run() -> Outcome {
    let five = Five::start()?;
    let (kinds, missing) = peers::install(vec![
        peers::LATCHWORK,
        peers::RSLOCK,
        peers::REDLOCK_MUTEX,
        peers::NODE_REDLOCK,
    ]);
    println!("One task, a free key: commands a cycle at each server, by its own count:\n");
    head(&["what", "1", "2", "3", "4", "5", "cycles"]);
    for kind in &kinds {
        let mut worker = kind.start("timed", &five.url, &[])?;
        std::thread::sleep(REST);
        let before = five.commands(kind)?;
        worker.tell(&shortened(LENGTH, LENGTH / 3).as_millis().to_string())?;
        let line = worker.line()?;
        let count = line.split(' ').next().ok_or("a number of cycles")?;
        let cycles: f64 = count.parse()?;
        std::thread::sleep(REST);
        let mut cells = vec![kind.name.to_string()];
        let after = five.commands(kind)?;
        cells.extend(after.iter().zip(&before).map(|(a, b)| format!("{:.3}", (a - b) / cycles)));
        cells.push(count.to_string());
        row(&cells);
    }
    peers::missing_rows(&missing, 7);
    Ok(())
}
