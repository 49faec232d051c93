//! Free locks over five servers, against the bare commands to all five at once.

use std::pin::Pin;
use std::task::Poll;

use redis::{Cmd, RedisResult, Value};
use tokio::runtime::{Builder, Runtime};

use crate::Outcome;
use crate::contest::stands;
use crate::peers;
use crate::redis_free::{
    Bare, ROUNDS, Sample, Work, cpu, give_back, latchwork_cycles, other_sample, rate, sample, take,
};
use crate::redlock_servers::{Five, SERVERS};
use crate::stats::{head, row, shortened};

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
    let mut others = Vec::new();
    for kind in &kinds {
        others.push((kind.name, kind.start("free", &five.url, &[])?));
    }
    for tasks in [1, 64] {
        let mut other_rows: Vec<Vec<Sample>> = kinds.iter().map(|_| Vec::new()).collect();
        let (mut bare_rows, mut ours, mut unguarded_rows) = (vec![], vec![], vec![]);
        for _ in 0..shortened(ROUNDS, 3) {
            bare_rows.push(sample(&here, tasks, |n| bare.clone().cycles(n)));
            ours.push(sample(&here, tasks, |n| latchwork_cycles(locks.clone(), n)));
            unguarded_rows.push(sample(&here, tasks, |n| latchwork_cycles(unguarded.clone(), n)));
            for ((_, worker), rows) in others.iter_mut().zip(&mut other_rows) {
                rows.push(other_sample(worker, tasks)?);
            }
        }
        println!("{tasks} task(s), each with a key of its own, {SERVERS} servers:\n");
        head(&[
            "what",
            "cycles a second",
            "to bare",
            "latchwork to it",
            "goal",
            "client CPU a cycle",
            "to bare",
        ]);
        let own = [
            ("bare, connections on their own thread", &bare_rows),
            ("latchwork, guard on, with fencing token", &ours),
            ("latchwork, guard off, with fencing token", &unguarded_rows),
        ];
        let others = others.iter().map(|(name, _)| *name).zip(&other_rows);
        for (name, rows) in own.into_iter().chain(others) {
            let part = rate(&ours) / rate(rows);
            let goal = match name {
                _ if name.starts_with("latchwork") => "-".into(),
                _ if !name.starts_with("bare") => stands(">= 1".into(), part >= 1.0),
                _ if tasks == 1 => stands(format!(">= {PART}"), part >= PART),
                _ => "-".into(),
            };
            row(&[
                name.into(),
                format!("{:.0}", rate(rows)),
                format!("{:.2}", rate(rows) / rate(&bare_rows)),
                format!("{part:.2}"),
                goal,
                format!("{:.2} us", cpu(rows)),
                format!("{:.2}", cpu(rows) / cpu(&bare_rows)),
            ]);
        }
        peers::missing_rows(&missing, 7);
        println!();
    }
    Ok(())
}

type Answer = Pin<Box<dyn Future<Output = RedisResult<Value>> + Send>>;

#[derive(Clone)]
struct BareFive(Vec<Bare>);

impl BareFive {
    fn connect(five: &Five, on: &Runtime) -> Result<Self, Box<dyn std::error::Error>> {
        let connect = |server| Bare::connect(server, on);
        Ok(Self(five.servers.iter().map(connect).collect::<Result<_, _>>()?))
    }

    async fn cycles(self, work: Work) {
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
