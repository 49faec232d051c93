//! Free cycles in a process of their own, as other locks have one: the bare requests of each store, and
//! Latchwork.
//!
//! In the process that measures, one task made up to 0.6 of the same cycles: where a process is woken for
//! each answer, what counts is which processor it was on last, and a process with more to do moves more.

use std::io::BufRead;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::free_cycles::{
    Sample, Taken, Work, cpu_time, latchwork_cycles, sample, sample_of_threads,
};
use crate::plain_socket::Plain;
use crate::roles::Outcome;
use crate::{etcd_bare, postgres_bare, redis_free, redlock_free, zookeeper};

/// What such a process can do: the word for it, and whether its connection is moved by the caller's
/// thread.
pub(crate) const BARE_REDIS: (&str, bool) = ("bare-redis", false);
pub(crate) const BARE_REDIS_NEAR: (&str, bool) = ("bare-redis-near", true);
pub(crate) const TOKEN_REDIS_NEAR: (&str, bool) = ("token-redis-near", true);
pub(crate) const PLAIN_SOCKET: (&str, bool) = ("plain-socket", true);
pub(crate) const BARE_FIVE: (&str, bool) = ("bare-five", false);
pub(crate) const BARE_ETCD: (&str, bool) = ("bare-etcd", false);
pub(crate) const BARE_ZOOKEEPER: (&str, bool) = ("bare-zookeeper", true);
pub(crate) const BARE_POSTGRES: (&str, bool) = ("bare-postgres", true);
pub(crate) const BARE_POSTGRES_ASYNC: (&str, bool) = ("bare-postgres-async", true);
pub(crate) const ADVISORY: (&str, bool) = ("advisory", true);
pub(crate) const LATCHWORK: (&str, bool) = ("latchwork", true);
pub(crate) const LATCHWORK_THREADS: (&str, bool) = ("latchwork-threads", true);

/// The entry of a started process: `WHAT URL [NAMESPACE]`.
pub(crate) fn run(args: &[String]) -> Outcome {
    let [what, url, namespace @ ..] = args else { return Err("WHAT URL [NAMESPACE]".into()) };
    let here = Builder::new_current_thread().enable_all().build()?;
    let far = || Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let is = |(word, _): (&str, bool)| what == word;
    if is(BARE_REDIS) {
        let there = far()?;
        let bare = redis_free::Bare::connect(url, &there)?;
        serve_on(&here, |work| bare.clone().cycles(work))
    } else if is(BARE_REDIS_NEAR) {
        let bare = redis_free::Bare::connect(url, &here)?;
        serve_on(&here, |work| bare.clone().cycles(work))
    } else if is(TOKEN_REDIS_NEAR) {
        let bare = redis_free::Bare::connect(url, &here)?.with_tokens(&here)?;
        serve_on(&here, |work| bare.clone().cycles(work))
    } else if is(PLAIN_SOCKET) {
        let plain = Plain::connect(url, &redis_free::take_script(), redis_free::DELETE_IF_MINE)?;
        serve(|_, length| {
            let before = cpu_time();
            let (count, took, times) = plain.cycles(length)?;
            let (cpu, count) = ((cpu_time() - before).as_secs_f64() * 1e6, f64::from(count));
            Ok(Sample::of(count / took.as_secs_f64(), cpu / count, times))
        })
    } else if is(BARE_FIVE) {
        let there = far()?;
        let bare = redlock_free::BareFive::connect(url, &there)?;
        serve_on(&here, |work| bare.clone().cycles(work))
    } else if is(BARE_ETCD) {
        let there = far()?;
        let bare = etcd_bare::Bare::connect(url, &there).map_err(|error| error.to_string())?;
        serve_on(&here, |work| bare.clone().cycles(work))
    } else if is(BARE_ZOOKEEPER) {
        let driver = latchwork::Driver::start()?;
        let bare = here.block_on(latchwork_zookeeper::bare::Bare::connect(url, driver.io()))?;
        serve_on(&here, |work| zookeeper::bare_work(bare.clone(), work))
    } else if is(BARE_POSTGRES) || is(BARE_POSTGRES_ASYNC) {
        let bare = postgres_bare::Rows::connect(url, is(BARE_POSTGRES))?;
        serve_on(&here, |work| bare.clone().cycles(work))
    } else if is(ADVISORY) {
        let locks = postgres_bare::Sessions::connect(url, false)?;
        serve_on(&here, |work| locks.clone().cycles(work))
    } else {
        let mut locks = here.block_on(latchwork::connect(url))?;
        if let [namespace] = namespace {
            locks = locks.namespace(namespace);
        }
        match is(LATCHWORK_THREADS) {
            true => serve(|tasks, length| Ok(sample_of_threads(&locks, tasks, length))),
            false => serve_on(&here, |work| latchwork_cycles(locks.clone(), work)),
        }
    }
}

fn serve_on<F>(runtime: &Runtime, cycles: impl Fn(Work) -> F) -> Outcome
where
    F: Future<Output = ()> + Send + 'static,
{
    serve(|tasks, length| Ok(sample(runtime, tasks, length, &cycles)))
}

/// For each line `TASKS MILLISECONDS` says what `roles::run` says in its role `free`.
fn serve(mut take: impl FnMut(usize, Duration) -> Taken) -> Outcome {
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (tasks, length) = line.split_once(' ').ok_or("TASKS MILLISECONDS")?;
        let Sample { rate, cpu, times, .. } =
            take(tasks.parse()?, Duration::from_millis(length.parse()?))?;
        println!("{rate} {cpu} times {times}");
    }
    Ok(())
}
