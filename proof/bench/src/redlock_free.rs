//! Free locks over five servers, against the bare commands to all five at once.

use std::pin::Pin;
use std::task::Poll;

use redis::{Cmd, RedisResult, Value};
use tokio::runtime::{Builder, Runtime};

use crate::Outcome;
use crate::free_cycles::{self, Entry, Work};
use crate::peers;
use crate::redis_free::{Bare, give_back, take};
use crate::redlock_servers::{Five, SERVERS};

const MAJORITY: usize = SERVERS / 2 + 1;
/// How much of the bare rate Latchwork's should be, with one task.
const PART: f64 = 0.9;

pub(crate) fn run() -> Outcome {
    let five = Five::start()?;
    let here = Builder::new_current_thread().enable_all().build()?;
    let there = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let bare = BareFive::connect(&five, &there)?;
    let locks = here.block_on(latchwork::connect(&five.url))?;
    // To see what the guard costs. In a namespace of its own: one is guarded by all, or by none.
    let unguarded = format!("{}?guard=false", five.url);
    let unguarded = here.block_on(latchwork::connect(&unguarded))?.namespace("unguarded");
    let (kinds, missing) =
        peers::install(vec![peers::RSLOCK, peers::REDLOCK_MUTEX, peers::NODE_REDLOCK]);
    let of_bare = |tasks: usize| (tasks == 1).then_some(PART);
    let ours = |name, locks| Entry::latchwork(name, &here, locks).counted(&five, &peers::LATCHWORK);
    let mut entries = vec![
        Entry::here("bare", &here, |n| bare.clone().cycles(n))
            .goal(of_bare)
            .counted(&five, &peers::SPIN),
        ours("latchwork, guard on, with fencing token", locks),
        ours("latchwork, guard off, with fencing token", unguarded),
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
struct BareFive(Vec<Bare>);

impl BareFive {
    fn connect(five: &Five, on: &Runtime) -> Result<Self, Box<dyn std::error::Error>> {
        let connect = |server| Bare::connect(server, on);
        Ok(Self(five.servers.iter().map(connect).collect::<Result<_, _>>()?))
    }

    async fn cycles(self, mut work: Work) {
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
