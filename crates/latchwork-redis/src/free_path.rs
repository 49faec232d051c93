//! The shortest ways: a free key is taken, and freed again, by a script of a few lines; many at a
//! time when many ask.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use latchwork_store::{BackendError, BackendErrorKind, Claim, Effect, Io, Verb};
use redis::{Cmd, Value};

use crate::answers::{letter, text};
use crate::backend::millis;
use crate::combine::{Combined, LIMIT};
use crate::confirm::Answer;
use crate::errors::{Failure, strange};
use crate::guard::Rule;
use crate::holder;
use crate::names::Names;
use crate::scripts::{FREE, RELEASE, TAKE, TAKE_GUARDED, TRY, TRY_GUARDED};
use crate::topology::{Sending, Topology};

/// A claim that wants a free key for itself.
pub(crate) struct TakeRequest {
    pub(crate) names: Arc<Names>,
    pub(crate) head: String,
    pub(crate) ttl: u64,
    pub(crate) tail: String,
    pub(crate) floor: u64,
}

impl TakeRequest {
    pub(crate) fn new(names: Arc<Names>, claim: &Claim, now: Duration) -> Self {
        let mut tail = String::with_capacity(64 + claim.holder.len());
        tail.push(':');
        holder::store(&mut tail, now, &claim.holder);
        Self { names, head: head(claim), ttl: millis(claim.ttl), tail, floor: claim.floor }
    }

    /// Appends its arguments.
    fn fill(&self, command: &mut Cmd) {
        let Self { head, ttl, tail, floor, .. } = self;
        command.arg(head).arg(ttl).arg(tail).arg(floor);
    }
}

/// The value of a claim that holds alone, up to its token.
pub(crate) fn head(claim: &Claim) -> String {
    let mut value = up_to_id(claim);
    value.push(':');
    value
}

/// The value of a claim that holds alone, up to its id; with room for what follows.
pub(crate) fn up_to_id(claim: &Claim) -> String {
    let mut value = String::with_capacity(64);
    value.push_str("lw:");
    value.push_str(letter(claim.mode));
    value.push_str(":-:");
    value.push_str(str::from_utf8(&claim.id.digits()).expect("digits are ASCII"));
    value
}

/// Takes free keys. The answer is the token, or the value in the way, or nil if a line must be
/// asked.
pub(crate) struct Take {
    pub(crate) topology: Arc<Topology>,
    pub(crate) io: Io,
    pub(crate) guard: Option<Rule>,
}

impl Combined for Take {
    type Request = TakeRequest;
    type Answer = Value;

    fn alone<'a>(&'a self, request: &'a TakeRequest) -> Verb<'a, Result<Value, BackendError>> {
        Box::pin(async move {
            let answer = self.one(request, Sending::default()).await;
            answer.map(|answer| answer.value).map_err(|failure| failure.error)
        })
    }

    fn together<'a>(
        &'a self,
        requests: &'a [TakeRequest],
    ) -> Verb<'a, Vec<Result<Value, BackendError>>> {
        Box::pin(async move {
            // A namespace has a counter of its own, so it needs a command of its own.
            let mut groups: Vec<Vec<usize>> = Vec::new();
            for (index, request) in requests.iter().enumerate() {
                let namespace = request.names.namespace();
                match groups.iter_mut().find(|g| requests[g[0]].names.namespace() == namespace) {
                    Some(group) => group.push(index),
                    None => groups.push(vec![index]),
                }
            }
            let commands = groups.iter().map(|g| Box::pin(self.take_group(requests, g)));
            let mut answers = vec![Ok(Value::Nil); requests.len()];
            for (group, taken) in groups.iter().zip(join_all(commands).await) {
                // What one namespace is refused says nothing of what another has got.
                for (index, answer) in group.iter().zip(each(taken, group.len())) {
                    answers[*index] = answer;
                }
            }
            answers
        })
    }
}

impl Take {
    /// Takes one key, with replicas asked as well if `sending` says so.
    pub(crate) async fn one(
        &self,
        request: &TakeRequest,
        sending: Sending,
    ) -> Result<Answer, Failure> {
        let names = &request.names;
        let script = if self.guard.is_some() { &TRY_GUARDED } else { &TRY };
        let run = self.topology.run_as(sending, names.slot(), script, |command, link| {
            command.arg(3 + usize::from(self.guard.is_some()));
            command.arg(names.lock()).arg(names.token()).arg(names.helper("line"));
            command.arg(self.guard.as_ref().map(|_| names.guard()));
            request.fill(command);
            if let Some(guard) = &self.guard {
                guard.fill(command, link);
            }
        });
        run.await
    }

    async fn take_group(
        &self,
        requests: &[TakeRequest],
        group: &[usize],
    ) -> Result<Vec<Value>, BackendError> {
        let members = || group.iter().map(|index| &requests[*index]);
        let names = &requests[group[0]].names;
        let script = if self.guard.is_some() { &TAKE_GUARDED } else { &TAKE };
        let run = self.topology.run_at(None, script, |command, link| {
            command.arg(1 + 2 * group.len() + usize::from(self.guard.is_some()));
            command.arg(names.token());
            for request in members() {
                command.arg(request.names.lock());
            }
            for request in members() {
                command.arg(request.names.helper("line"));
            }
            command.arg(self.guard.as_ref().map(|_| names.guard()));
            members().for_each(|request| request.fill(command));
            if let Some(guard) = &self.guard {
                guard.fill(command, link);
            }
        });
        let run = async {
            match run.await {
                // Not by this script: each tries by itself.
                Err(error) if is_refused(&error) => Ok(Value::Array(vec![Value::Nil; group.len()])),
                answer => answer,
            }
        };
        match self
            .io
            .within(LIMIT, run)
            .await
            .unwrap_or_else(|| Err(BackendError::no_answer(LIMIT)))?
        {
            Value::Array(answers) if answers.len() == group.len() => Ok(answers),
            other => Err(strange(&other)),
        }
    }
}

/// Frees keys that one claim holds alone. The answer tells whether that was all there was to do.
pub(crate) struct Free {
    pub(crate) topology: Arc<Topology>,
    pub(crate) io: Io,
}

/// A key, and its value up to the id of the claim that holds it.
pub(crate) type FreeRequest = (Arc<Names>, String);

impl Combined for Free {
    type Request = FreeRequest;
    type Answer = bool;

    fn alone<'a>(
        &'a self,
        (names, value): &'a FreeRequest,
    ) -> Verb<'a, Result<bool, BackendError>> {
        Box::pin(async move {
            let run = self.topology.run(names.slot(), &RELEASE, |command| {
                command.arg(1).arg(names.lock()).arg(value);
            });
            match run.await {
                Ok(Value::Int(answer @ 1..=2)) => Ok(answer == 1),
                // What is of another type is not ours; the whole script says so.
                Err(error) if error.kind == BackendErrorKind::Mismatch => Ok(false),
                Err(error) => Err(error),
                Ok(other) => Err(strange(&other)),
            }
        })
    }

    fn together<'a>(
        &'a self,
        requests: &'a [FreeRequest],
    ) -> Verb<'a, Vec<Result<bool, BackendError>>> {
        Box::pin(async move { each(self.free_all(requests).await, requests.len()) })
    }
}

impl Free {
    async fn free_all(&self, requests: &[FreeRequest]) -> Result<Vec<bool>, BackendError> {
        let run = self.topology.run(None, &FREE, |command| {
            command.arg(requests.len());
            for (names, _) in requests {
                command.arg(names.lock());
            }
            for (_, value) in requests {
                command.arg(value);
            }
        });
        let run = async {
            match run.await {
                // One of the names is not for this user: each is released by itself.
                Err(error) if is_refused(&error) => Ok(None),
                answer => answer.map(Some),
            }
        };
        let answer = self.io.within(LIMIT, run).await;
        let Some(answer) = answer.unwrap_or_else(|| Err(BackendError::no_answer(LIMIT)))? else {
            return Ok(vec![false; requests.len()]);
        };
        match text(&answer) {
            Some(letters) if letters.len() == requests.len() => {
                Ok(letters.bytes().map(|letter| letter == b'1').collect())
            }
            _ => Err(strange(&answer)),
        }
    }
}

/// Whether the user may not do this with one of the names; nothing was done.
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
