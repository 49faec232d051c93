//! The lock of a request: busy, silent, superseded.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode, header::RETRY_AFTER};
use latchwork::LockManager;
use latchwork_recipes::axum_handler::{Shop, router};
use latchwork_services::{Direction, PostgresServer, Proxy, RedisOptions, RedisServer};
use tower::ServiceExt;
use tracing_subscriber::fmt::MakeWriter;

use crate::common::{client, database, number};

/// What the recipe writes to the log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

struct Answer {
    status: StatusCode,
    retry: bool,
    text: String,
}

/// Sells one of article 42.
async fn sell(locks: &LockManager, server: &PostgresServer) -> Answer {
    let shop = Shop { locks: locks.clone(), db: Arc::new(client(server).await) };
    let request = Request::post("/stock/42/sell").body(Body::empty()).unwrap();
    let response = router(shop).oneshot(request).await.unwrap();
    let (status, retry) = (response.status(), response.headers().contains_key(RETRY_AFTER));
    let text = to_bytes(response.into_body(), 1_000).await.unwrap();
    Answer { status, retry, text: String::from_utf8(text.to_vec()).unwrap() }
}

/// A free lock, and then a busy one: the log names the holder, the answer does not.
#[tokio::test]
async fn busy_is_a_conflict_and_only_the_log_names_the_holder() {
    let log = Log::default();
    let logger = tracing_subscriber::fmt().with_writer(log.clone()).finish();
    let _logs = tracing::subscriber::set_default(logger);
    let (server, locks) = (database().await, latchwork::connect("mem:").await.unwrap());
    let sold = sell(&locks, &server).await;
    assert_eq!((sold.status, &*sold.text), (StatusCode::OK, "19 in stock\n"));

    let holder = locks.mutex("stock/42").holder("till 7").acquire().await.unwrap();
    let busy = sell(&locks, &server).await;
    assert_eq!(busy.status, StatusCode::CONFLICT);
    assert!(busy.retry && !busy.text.contains("till 7"), "{}", busy.text);
    assert!(log.text().contains("till 7"), "{}", log.text());
    holder.release().await.unwrap();
    let sold = sell(&locks, &server).await;
    assert_eq!((sold.status, &*sold.text), (StatusCode::OK, "18 in stock\n"));
}

/// The store stops answering, and answers again.
#[tokio::test]
async fn a_silent_store_is_unavailable_and_nothing_is_sold() {
    let start = || RedisServer::start(&RedisOptions::new()).unwrap();
    let store = tokio::task::spawn_blocking(start).await.unwrap();
    let proxy = Proxy::redis(store.port()).unwrap();
    let locks = latchwork::connect(&proxy.url()).await.unwrap().ttl(Duration::from_secs(3));
    let server = database().await;
    assert_eq!(sell(&locks, &server).await.status, StatusCode::OK);
    proxy.freeze(Direction::ToClient);
    let silent = sell(&locks, &server).await;
    assert_eq!((silent.status, silent.retry), (StatusCode::SERVICE_UNAVAILABLE, true));
    assert!(!silent.text.contains("redis"), "{}", silent.text);
    assert_eq!(number(&client(&server).await, "SELECT amount FROM stock").await, 19);
}

/// A later holder has written: the row has its token.
#[tokio::test]
async fn a_request_that_is_superseded_sells_nothing() {
    let (server, locks) = (database().await, latchwork::connect("mem:").await.unwrap());
    let db = client(&server).await;
    db.batch_execute(&format!("UPDATE stock SET token = {}", i64::MAX)).await.unwrap();
    let late = sell(&locks, &server).await;
    assert_eq!((late.status, late.retry), (StatusCode::SERVICE_UNAVAILABLE, true));
    assert_eq!(number(&db, "SELECT amount FROM stock").await, 20);
}
