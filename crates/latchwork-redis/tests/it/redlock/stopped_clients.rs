//! A client that stands still between its grant and its write.

use latchwork::HoldState;
use latchwork::fence::Fence;
use latchwork_store::*;

use crate::common::*;
use crate::redlock::world::*;

/// Takes the key, looks, and is about to write; then writes, and looks again.
pub(crate) async fn hold(store: &str) {
    let client = client(store, 2 * SEC).await;
    let guard = client.acquire("k").await;
    let token = guard.ensure_held().unwrap();
    say(format_args!("{}", token.get()));
    hear();
    say(format_args!("write {}", token.get()));
    say(match guard.ensure_held() {
        Err(NotHeld::Lost(_)) => "lost",
        Err(_) => "suspect",
        Ok(_) => "held",
    });
    say(format_args!("{:?}", guard.release().await.map_err(|error| error.kind())));
}

/// H1: the first look says that it is lost, the resource refuses the write, and the late release
/// frees nothing.
#[test]
fn h01_a_client_stopped_before_its_write_is_fenced() {
    run(async {
        let five = Five::new("max_ttl=5s").await;
        let mut holder = Process::start("redlock::hold", &five.url());
        let token = FencingToken::from_raw(holder.line().parse().unwrap());
        let other = five.client(2 * SEC).await;
        let fence = Fence::new();
        fence.check_write(token).unwrap();
        holder.stop();
        let next = other.acquire("k").await;
        fence.check_write(next.token()).unwrap();
        holder.tell("go on");
        holder.cont();
        assert_eq!(holder.line(), format!("write {}", token.get()));
        assert_eq!(fence.check_write(token).unwrap_err().newest, next.token());
        assert_eq!(holder.line(), "lost");
        assert_eq!(holder.line(), "Err(Lost)");
        assert_eq!(next.state(), HoldState::Held);
        next.release().await.unwrap();
        five.empties(SEC).await;
    });
}
