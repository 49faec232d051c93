//! Free locks over five servers, against the bare commands to all five at once.

use std::pin::Pin;
use std::task::Poll;

use redis::{Cmd, RedisResult, Value};
use tokio::runtime::Runtime;

use crate::free_cycles::{self, Entry, Work};
use crate::redis_free::{Bare, give_back, take};
use crate::redlock_servers::{Five, SERVERS};
use crate::{Outcome, free_child, peers};

const MAJORITY: usize = SERVERS / 2 + 1;
/// How much of the bare rate Latchwork's should be, with one task.
const PART: f64 = 0.9;

pub(crate) fn run() -> Outcome {
    let five = Five::start()?;
    let (kinds, missing) =
        peers::install(vec![peers::RSLOCK, peers::REDLOCK_MUTEX, peers::NODE_REDLOCK]);
    let of_bare = |tasks: usize| (tasks == 1).then_some(PART);
    // To see what the guard costs. In a namespace of its own: one is guarded by all, or by none.
    let unguarded = format!("{}?guard=false", five.url);
    let unguarded = Entry::apart(
        "latchwork, guard off, with fencing token",
        free_child::LATCHWORK,
        &unguarded,
        &["unguarded"],
    )?;
    let mut entries = vec![
        Entry::apart("bare", free_child::BARE_FIVE, &five.url, &[])?
            .goal(of_bare)
            .counted(&five, &peers::SPIN),
        Entry::latchwork("latchwork, guard on, with fencing token", &five)?,
        unguarded.counted(&five, &peers::LATCHWORK),
    ];
    for kind in &kinds {
        entries.push(Entry::of(kind, &five)?);
    }
    free_cycles::run(
        entries,
        &missing,
        &five,
        &format!(", {SERVERS} servers, commands those of each"),
    )
}

type Answer = Pin<Box<dyn Future<Output = RedisResult<Value>> + Send>>;

#[derive(Clone)]
pub(crate) struct BareFive(Vec<Bare>);

impl BareFive {
    /// `redlock://HOST:PORT,HOST:PORT...`
    pub(crate) fn connect(url: &str, on: &Runtime) -> Result<Self, Box<dyn std::error::Error>> {
        let (_, hosts) = url.split_once("://").ok_or("an address")?;
        let connect = |host| Bare::connect(&format!("redis://{host}"), on);
        Ok(Self(hosts.split(',').map(connect).collect::<Result<_, _>>()?))
    }

    pub(crate) async fn cycles(self, mut work: Work) {
        let key = format!("bare/{}", work.name);
        // What a majority did not wait for is heard beside the next question.
        let mut late = Vec::new();
        for n in 0u64.. {
            if !work.goes_on() {
                break;
            }
            let value = format!("{:016x}{n:016x}", work.name);
            let taken = self.ask(&mut late, |_| take(&key, &value), &Value::Okay);
            taken.await;
            let freed =
                self.ask(&mut late, |bare| give_back(&bare.hash, &key, &value), &Value::Int(1));
            freed.await;
        }
        for answer in late {
            answer.await.expect("the server answers");
        }
    }

    /// Sends a command to all at once, and waits for the answer `yes` from a majority.
    async fn ask(&self, late: &mut Vec<Answer>, command: impl Fn(&Bare) -> Cmd, yes: &Value) {
        let send = |bare: &Bare| -> Answer {
            let (mut connection, command) = (bare.connection.clone(), command(bare));
            Box::pin(async move { connection.send_packed_command(&command).await })
        };
        let mut asked: Vec<Answer> = self.0.iter().map(send).collect();
        let mut said = 0;
        std::future::poll_fn(|cx| {
            late.retain_mut(|answer| answer.as_mut().poll(cx).is_pending());
            asked.retain_mut(|answer| match answer.as_mut().poll(cx) {
                Poll::Ready(answer) => {
                    said += usize::from(answer.expect("the server answers") == *yes);
                    false
                }
                Poll::Pending => true,
            });
            match said >= MAJORITY {
                true => Poll::Ready(()),
                false => {
                    assert!(said + asked.len() >= MAJORITY, "the key is its own");
                    Poll::Pending
                }
            }
        })
        .await;
        late.append(&mut asked);
    }
}
