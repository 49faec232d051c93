//! Releases, and the calls that serve a long queue after one.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use latchwork_store::{BackendError, BackendErrorKind, Claim, ClaimId, Linger, Released, Resized};
use latchwork_wire::mailbox::PROBATION;
use redis::Value;

use crate::protocol::answers::{goes_on, is_to_warn, released, resized};
use crate::protocol::names::Names;
use crate::protocol::push::UnclaimedGrants;
use crate::protocol::scripted::{Calls, Scripted, may_be_alone};
use crate::protocol::value::{millis, stored};
use crate::server::errors::strange;
use crate::server::link::Link;
use crate::server::topology::Route;

/// How long a release waits for the calls that serve the rest of the queue.
const REST_LIMIT: Duration = Duration::from_millis(200);

/// The claim that a release ends, and how.
#[derive(Debug, Clone, Copy)]
struct End<'a> {
    /// The claim's id; empty if only the queue is to be served.
    id: &'a str,
    /// The linger in milliseconds, or what is done instead.
    how: &'a str,
    /// The holder that closes the key, as it is kept, or the new limit.
    by: &'a str,
}

impl<'a> End<'a> {
    /// A claim that closes nothing.
    fn of(id: &'a str) -> Self {
        Self { id, how: "0", by: "" }
    }
}

/// The stored text of the holder that closes a key; empty if it closes none.
fn closing_text(claim: &Claim, linger: Linger) -> String {
    match linger {
        Linger::For(_) => stored(claim.holder.closed_at.unwrap_or_default(), &claim.holder),
        Linger::None | Linger::End => String::new(),
    }
}

impl Scripted {
    pub(crate) async fn release(
        &self,
        claim: &Claim,
        linger: Linger,
    ) -> Result<Released, BackendError> {
        self.release_as(claim, linger, true).await
    }

    /// The same; `may_be_free` unless the short script has said that there is more to do.
    pub(crate) async fn release_as(
        &self,
        claim: &Claim,
        linger: Linger,
        may_be_free: bool,
    ) -> Result<Released, BackendError> {
        let topology = &self.store.topology;
        let names = self.store.naming.of(&claim.key)?;
        let (mut joined, mut waited, mut gives_up) = (-1, false, false);
        // The end of a linger ends no claim, not even one of this id.
        if linger != Linger::End {
            if let Some(mailbox) = self.store.pushes.find(claim.id) {
                (joined, gives_up) = (mailbox.joined(), !mailbox.has_grant());
            }
            waited = self.store.pushes.close(claim.id);
        }
        let mut route = topology.route(names.slot()).await?;
        let simple = may_be_alone(claim) && linger == Linger::None;
        if simple
            && may_be_free
            && !waited
            && !self.recent_queues.had_queue(&names)
            && self.free(&mut route, &names, claim).await?
        {
            return Ok(Released::Yes);
        }
        if simple
            && !gives_up
            && let Some(released) = Box::pin(self.hand_on(&mut route, &names, claim.id)).await?
        {
            return Ok(released);
        }
        // Boxed, because most releases do not come here.
        let by = closing_text(claim, linger);
        let how = match linger {
            Linger::None => "0".to_owned(),
            Linger::For(length) => millis(length).to_string(),
            Linger::End => "end".to_owned(),
        };
        let end = End { id: &claim.id.to_string(), how: &how, by: &by };
        Box::pin(self.release_in_line(&mut route, &names, end, joined)).await
    }

    /// Ends a claim that holds alone and grants the key to the next claim in the queue; `None` if the
    /// whole script must decide.
    async fn hand_on(
        &self,
        route: &mut Route,
        names: &Names,
        id: ClaimId,
    ) -> Result<Option<Released>, BackendError> {
        let (start, end) = names.channel_parts();
        let [line, marks] = ["line", "marks"].map(|kind| names.helper(kind));
        let keys = [names.lock(), &names.token(), &line, &marks];
        let topology = &self.store.topology;
        let process = &self.store.pushes.process;
        // On a Cluster messages may come on another connection than answers.
        let is_heard =
            |link: &Link| !topology.is_cluster() && link.is_subscribed(&names.channel(process));
        let run = route.run(&self.scripts.granting.hand_on, |command, link| {
            self.scripts.keys(command, names, &keys);
            command.arg(id.to_string()).arg(&start).arg(&end);
            command.arg(self.count_listeners(link));
            command.arg(if is_heard(link) { process } else { "" });
            self.scripts.fill(command, link);
        });
        match run.await.map_err(BackendError::from) {
            Ok(Value::Nil) => Ok(None),
            Ok(Value::Int(done @ 1..=3)) => {
                self.warn_if(done == 2, names).await;
                if done == 3 {
                    self.serve_the_rest(names, 0).await;
                }
                Ok(Some(Released::Yes))
            }
            // A key of another type: the whole script says so.
            Err(error) if error.kind == BackendErrorKind::Mismatch => Ok(None),
            answer => Err(strange(&answer?)),
        }
    }

    /// Warns the next claims in the queue if `is_to_warn`. The command is sent, and its answer is not
    /// awaited. If the process ends before, these claims check later, by their own timers.
    pub(crate) async fn warn_if(&self, is_to_warn: bool, names: &Names) {
        let (true, Some(this)) = (is_to_warn, self.me.upgrade()) else { return };
        let names = names.clone();
        let mut sending = Box::pin(async move {
            let Ok(mut route) = this.store.topology.route(names.slot()).await else { return };
            let keys = [names.lock(), &names.helper("line")];
            let (start, end) = names.channel_parts();
            let run = route.run(&this.scripts.granting.warn, |command, link| {
                command.arg(keys.len()).arg(&keys).arg(&start).arg(&end);
                command.arg(this.count_listeners(link));
            });
            let _ = this.store.io.within(PROBATION, run).await;
        });
        let sent = poll_fn(|cx| Poll::Ready(sending.as_mut().poll(cx)));
        if sent.await.is_pending() {
            self.store.io.spawn(sending);
        }
    }

    async fn release_in_line(
        &self,
        route: &mut Route,
        names: &Names,
        end: End<'_>,
        joined: i64,
    ) -> Result<Released, BackendError> {
        match self.end_and_serve(route, names, end, joined).await {
            Err(error) if error.kind == BackendErrorKind::Mismatch => Ok(Released::NotHeld),
            answer => released(&answer?),
        }
    }

    async fn end_and_serve(
        &self,
        route: &mut Route,
        names: &Names,
        end: End<'_>,
        joined: i64,
    ) -> Result<Value, BackendError> {
        let answer = self.run_release(route, names, end, (0, joined)).await?;
        self.warn_if(is_to_warn(&answer, 3), names).await;
        if let Some(from) = goes_on(&answer, 4) {
            self.serve_the_rest(names, from).await;
        }
        Ok(answer)
    }

    /// Sets the limit of permits, and serves the waiters that it admits.
    pub(crate) async fn resize(&self, claim: &Claim) -> Result<Resized, BackendError> {
        let names = self.store.naming.of(&claim.key)?;
        let mut route = self.store.topology.route(names.slot()).await?;
        let limit = claim.mode.limit().unwrap_or_default().to_string();
        let end = End { id: "", how: "limit", by: &limit };
        resized(&self.end_and_serve(&mut route, &names, end, -1).await?, claim)
    }

    /// Calls the script again for the claims in the queue that one call has left, because a call serves a
    /// limited number. The release itself is done, so it does not wait long for that.
    async fn serve_the_rest(&self, names: &Names, from: u64) {
        let (Some(this), names) = (self.me.upgrade(), names.clone()) else { return };
        let (done, is_done) = tokio::sync::oneshot::channel::<()>();
        self.store.io.spawn(async move {
            let (mut from, mut calls) = (from, Calls::default());
            let Ok(mut route) = this.store.topology.route(names.slot()).await else { return };
            while calls.may_go_on() {
                let run = this.run_release(&mut route, &names, End::of(""), (from, -1));
                // The remaining claims check by their own timers.
                let Ok(answer) = run.await else { break };
                this.warn_if(is_to_warn(&answer, 3), &names).await;
                let Some(more) = goes_on(&answer, 4) else { break };
                from = more;
            }
            drop(done);
        });
        let _ = self.store.io.within(REST_LIMIT, is_done).await;
    }

    async fn run_release(
        &self,
        route: &mut Route,
        names: &Names,
        End { id, how, by }: End<'_>,
        (from, joined): (u64, i64),
    ) -> Result<Value, BackendError> {
        let (keys, (start, end)) = (names.whole(), names.channel_parts());
        let run = route.run(&self.scripts.granting.release, |command, link| {
            self.scripts.keys(command, names, &keys);
            command.arg("").arg(id).arg(how).arg(by);
            for _ in 5..=12 {
                command.arg("");
            }
            command.arg(&start).arg(&end);
            command.arg("").arg(self.count_listeners(link)).arg(from).arg(joined);
            self.scripts.fill(command, link);
        });
        Ok(run.await?)
    }
}

impl UnclaimedGrants for Scripted {
    fn give_back(self: Arc<Self>, id: ClaimId, lock: String) {
        let this = self.clone();
        self.store.io.spawn(async move {
            let topology = &this.store.topology;
            let names = this.store.naming.of_stored(&lock);
            let release = async {
                let mut route = topology.route(names.slot()).await?;
                this.release_in_line(&mut route, &names, End::of(&id.to_string()), -1).await
            };
            // If this fails, the pushed grant ends soon, because its ttl is short.
            let _ = this.store.io.within(PROBATION, release).await;
        });
    }
}
