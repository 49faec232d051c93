//! Short scripts that acquire and release a key that no other claim wants; many callers share them.
//!
//! Measured: by the whole scripts alone, 1 task makes 0.51 of the cycles in the same time and 64 tasks
//! 0.22, and the server's scripts take 3.8 and 9.1 times as long (`--example cycle_cost`, with and
//! without in turns).

use std::sync::atomic::{AtomicU8, Ordering};

use futures_util::future::join_all;
use latchwork_store::{BackendError, BackendErrorKind, Claim, Effect, Verb};
use latchwork_wire::combine::Combined;
use redis::{Cmd, Value};

use crate::protocol::granting::Scripts;
use crate::protocol::names::{Names, hash};
use crate::protocol::scripts::{FREE, RELEASE};
use crate::protocol::value::up_to_id;
use crate::server::errors::{Failure, strange};
use crate::server::reply::text;
use crate::server::topology::Route;

/// Which keys had a queue recently. A wrong guess costs a round trip or a microsecond, no more.
///
/// Measured: without it a contended cycle has one command more, and the server's scripts take 1.27
/// times as long (`--example cycle_cost`, 8 clients and one key).
pub(crate) struct RecentQueues([AtomicU8; 1024]);

impl Default for RecentQueues {
    fn default() -> Self {
        Self([const { AtomicU8::new(0) }; 1024])
    }
}

impl RecentQueues {
    /// How many tries and releases a key that had a queue is assumed to have one.
    const MEMORY: u8 = 16;

    /// The count of all keys that share a place.
    fn place(&self, names: &Names) -> &AtomicU8 {
        &self.0[(hash(names.lock()) >> 32) as usize % self.0.len()]
    }

    pub(crate) fn note(&self, names: &Names) {
        self.place(names).store(Self::MEMORY, Ordering::Relaxed);
    }

    pub(crate) fn had_queue(&self, names: &Names) -> bool {
        let less = |count: u8| count.checked_sub(1);
        self.place(names).fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

/// A claim that wants a free key for itself.
pub(crate) struct TakeRequest {
    pub(crate) names: Names,
    pub(crate) route: Route,
    pub(crate) head: String,
    pub(crate) ttl: u64,
    pub(crate) tail: String,
    pub(crate) floor: u64,
}

impl TakeRequest {
    /// Appends its arguments.
    fn fill(&self, command: &mut Cmd) {
        let Self { head, ttl, tail, floor, .. } = self;
        command.arg(head).arg(ttl).arg(tail).arg(floor);
    }
}

/// Takes free keys. The answer is the token, or the value that blocks the claim, or nil if there may be
/// a queue.
pub(crate) struct Take {
    pub(crate) scripts: Scripts,
}

impl Combined for Take {
    type Request = TakeRequest;
    type Answer = Value;

    async fn send(&self, request: &TakeRequest) -> Result<Value, BackendError> {
        Ok(self.one(request, &mut request.route.clone()).await?)
    }

    fn send_all<'a>(
        &'a self,
        requests: &'a [TakeRequest],
    ) -> Verb<'a, Vec<Result<Value, BackendError>>> {
        Box::pin(async move {
            if let [only] = requests {
                return vec![self.send(only).await];
            }
            // Each namespace has its counter, so it needs a separate command.
            let mut groups: Vec<Vec<usize>> = Vec::new();
            for (index, request) in requests.iter().enumerate() {
                let namespace = request.names.namespace();
                match groups.iter_mut().find(|g| requests[g[0]].names.namespace() == namespace) {
                    Some(group) => group.push(index),
                    None => groups.push(vec![index]),
                }
            }
            let commands = groups.iter().map(|g| self.several(requests, g));
            let mut answers = vec![Ok(Value::Nil); requests.len()];
            for (group, taken) in groups.iter().zip(join_all(commands).await) {
                // An error of one namespace says nothing about the others.
                for (index, answer) in group.iter().zip(each(taken, group.len())) {
                    answers[*index] = answer;
                }
            }
            answers
        })
    }
}

impl Take {
    /// Takes one key.
    pub(crate) async fn one(
        &self,
        request: &TakeRequest,
        route: &mut Route,
    ) -> Result<Value, Failure> {
        let names = &request.names;
        let keys = [names.lock(), &names.token(), &names.helper("line")];
        let run = route.run(&self.scripts.granting.try_, |command, link| {
            self.scripts.keys(command, names, &keys);
            request.fill(command);
            self.scripts.fill(command, link);
        });
        run.await
    }

    async fn several(
        &self,
        requests: &[TakeRequest],
        group: &[usize],
    ) -> Result<Vec<Value>, BackendError> {
        let members = || group.iter().map(|index| &requests[*index]);
        let first = &requests[group[0]];
        let mut keys = Vec::with_capacity(group.len() * 2 + 1);
        for (index, request) in members().enumerate() {
            keys.push(request.names.lock().to_owned());
            keys.extend((index == 0).then(|| first.names.token()));
            keys.push(request.names.helper("line"));
        }
        let run = first.route.run_once(&self.scripts.granting.take, |command, link| {
            self.scripts.keys(command, &first.names, &keys);
            members().for_each(|request| request.fill(command));
            self.scripts.fill(command, link);
        });
        match run.await? {
            Some(Value::Array(answers)) if answers.len() == group.len() => Ok(answers),
            // This script cannot decide, or was not run: each claim tries separately.
            None | Some(Value::Nil) => Ok(vec![Value::Nil; group.len()]),
            Some(answer) => Err(strange(&answer)),
        }
    }
}

/// A claim that releases a key which it holds alone.
pub(crate) struct FreeRequest {
    names: Names,
    route: Route,
    /// The value of the key up to the id.
    value: String,
}

impl FreeRequest {
    pub(crate) fn of(route: &Route, names: &Names, claim: &Claim) -> Self {
        Self { names: names.clone(), route: route.clone(), value: up_to_id(claim) }
    }
}

/// Frees keys that one claim holds alone. The answer is false if there is more to do.
pub(crate) struct Free;

impl Combined for Free {
    type Request = FreeRequest;
    type Answer = bool;

    async fn send(&self, request: &FreeRequest) -> Result<bool, BackendError> {
        self.one(request, &mut request.route.clone()).await
    }

    fn send_all<'a>(
        &'a self,
        requests: &'a [FreeRequest],
    ) -> Verb<'a, Vec<Result<bool, BackendError>>> {
        Box::pin(async move {
            if let [only] = requests {
                return vec![self.send(only).await];
            }
            each(self.several(requests).await, requests.len())
        })
    }
}

impl Free {
    /// Frees one key.
    pub(crate) async fn one(
        &self,
        request: &FreeRequest,
        route: &mut Route,
    ) -> Result<bool, BackendError> {
        let run = route.run(&RELEASE, |command, _| {
            command.arg(1).arg(request.names.lock()).arg(&request.value);
        });
        match run.await.map_err(BackendError::from) {
            Ok(Value::Int(answer @ 1..=2)) => Ok(answer == 1),
            // The key has another type; the whole script reports it.
            Err(error) if error.kind == BackendErrorKind::Mismatch => Ok(false),
            Err(error) => Err(error),
            Ok(other) => Err(strange(&other)),
        }
    }

    async fn several(&self, requests: &[FreeRequest]) -> Result<Vec<bool>, BackendError> {
        let mut route = requests[0].route.clone();
        let run = route.run(&FREE, |command, _| {
            command.arg(requests.len());
            for request in requests {
                command.arg(request.names.lock());
            }
            for request in requests {
                command.arg(&request.value);
            }
        });
        let answer = match run.await.map_err(BackendError::from) {
            // The user may not use one of the names: each key is released separately.
            Err(error) if is_refused(&error) => return Ok(vec![false; requests.len()]),
            answer => answer?,
        };
        match text(&answer) {
            Some(letters) if letters.len() == requests.len() => {
                Ok(letters.bytes().map(|letter| letter == b'1').collect())
            }
            _ => Err(strange(&answer)),
        }
    }
}

/// Whether the user lacks the right to one of the names; nothing was done.
fn is_refused(error: &BackendError) -> bool {
    error.kind == BackendErrorKind::Denied && error.effect == Effect::NotApplied
}

/// An answer for each of so many, or the same error.
fn each<T>(answers: Result<Vec<T>, BackendError>, count: usize) -> Vec<Result<T, BackendError>> {
    match answers {
        Ok(answers) => answers.into_iter().map(Ok).collect(),
        Err(error) => (0..count).map(|_| Err(error.clone())).collect(),
    }
}
