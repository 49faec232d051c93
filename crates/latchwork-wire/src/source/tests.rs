use std::sync::atomic::{AtomicUsize, Ordering};

use latchwork_store::ErrorKind;
use latchwork_store::testing::paused_io;

use super::*;

/// A source whose text a test sets, and how often it was read.
struct Written {
    source: Source,
    text: Arc<Mutex<Result<String, Error>>>,
    read: Arc<AtomicUsize>,
}

impl Written {
    fn new(text: &str) -> Self {
        let text = Arc::new(Mutex::new(Ok(text.to_owned())));
        let read = Arc::<AtomicUsize>::default();
        let (written, count) = (text.clone(), read.clone());
        let source = Source::read_by(move || {
            count.fetch_add(1, Ordering::SeqCst);
            written.lock().unwrap().clone()
        });
        Self { source, text, read }
    }

    fn set(&self, text: Result<&str, &str>) {
        let failed = |problem| Error::new(ErrorKind::Invalid, problem);
        *self.text.lock().unwrap() = text.map(str::to_owned).map_err(failed);
    }

    fn readings(&self) -> usize {
        self.read.load(Ordering::SeqCst)
    }
}

fn login_of(url: &str) -> Result<String, Error> {
    let login = url.split_once("://").and_then(|(_, rest)| rest.split_once('@'));
    let login = login.map(|(login, _)| login).filter(|login| !login.contains('%'));
    login.map(str::to_owned).ok_or_else(|| Error::new(ErrorKind::Invalid, "no login"))
}

async fn begun(written: &Written, io: &Io) -> Sourced<String> {
    let first = written.source.address(io).await.unwrap();
    let login = Sourced::fixed(login_of(&first).unwrap());
    let login = login.read_from(written.source.clone(), login_of);
    io.sleep(SPACING).await;
    login
}

#[tokio::test(start_paused = true)]
async fn refusals_at_once_lead_to_one_reading() {
    let (io, _) = paused_io();
    let written = Written::new("redis://old@h");
    let login = begun(&written, &io).await;
    let (_, seen) = login.current();
    written.set(Ok("redis://new@h"));
    let newer = || login.after_refusal(seen, &io);
    let all = tokio::join!(newer(), newer(), newer());
    for newer in [all.0, all.1, all.2] {
        assert_eq!(newer.unwrap().unwrap().0, "new");
    }
    assert_eq!(written.readings(), 2);
    assert_eq!(login.clone().current().0, "new");
}

#[tokio::test(start_paused = true)]
async fn a_login_refused_again_and_again_is_read_once_a_second() {
    let (io, _) = paused_io();
    let written = Written::new("redis://old@h");
    let login = begun(&written, &io).await;
    let (_, seen) = login.current();
    for _ in 0..100 {
        assert!(login.after_refusal(seen, &io).await.unwrap().is_none());
        io.sleep(SPACING / 10).await;
    }
    assert!((9..=12).contains(&written.readings()), "{}", written.readings());
}

#[tokio::test(start_paused = true)]
async fn a_source_that_fails_or_moves_leaves_the_login() {
    let (io, _) = paused_io();
    let written = Written::new("redis://old@h");
    let login = begun(&written, &io).await;
    let (_, seen) = login.current();
    for (text, said) in [
        (Err("store file gone"), "store file gone"),
        (Ok("redis://new@other"), "another host"),
        (Ok("redis://%@h"), "no login"),
        (Ok("redis://%@h"), "no login"),
    ] {
        written.set(text);
        let error = login.after_refusal(seen, &io).await.unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
        assert_eq!(login.current().0, "old");
        io.sleep(SPACING).await;
    }
    written.set(Ok("redis://new@h"));
    assert_eq!(login.after_refusal(seen, &io).await.unwrap().unwrap().0, "new");
}

#[tokio::test(start_paused = true)]
async fn an_address_that_is_read_again_counts_for_the_next_login() {
    let (io, _) = paused_io();
    let written = Written::new("redis://old@h");
    let login = begun(&written, &io).await;
    assert!(!written.source.read_again().unwrap(), "nothing has changed");
    written.set(Ok("redis://new@h"));
    assert!(written.source.read_again().unwrap());
    assert_eq!(login.current().0, "new");
}
