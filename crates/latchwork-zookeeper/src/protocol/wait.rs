//! The wait: a watch on the node ahead, and the queue as soon as that node has left.
//!
//! The queue is read without a write before it. That is safe for a claim whose node is known, since
//! nodes that are new come behind it: where a server, however late, has the node as the first one,
//! the claim was admitted then. What the write of the pulse proves at other times, that the session
//! lives on, is proven by the last write that was answered, and the grant counts from that one.
//!
//! A claim for permits watches the data of the lock's node too, which is the limit. It is read after
//! the queue: then the claim is judged as at some time before the limit was changed, or by the new one.

use futures_util::future::select_all;
use latchwork_store::kit::lineup::Admission;
use latchwork_store::{BackendError, Blocked, Claim, Grant, Wake};

use crate::protocol::acquire::LIMIT;
use crate::protocol::answers::{queue_of, reads, token_of};
use crate::protocol::shared::Shared;
use crate::server::errors::refused;
use crate::server::session::messages::{self, Refusal, Request, data_news};
use crate::server::session::{Landed, Reading, Session};

impl Shared {
    pub(crate) async fn wait_for(
        &self,
        claim: &Claim,
        blocked: &Blocked,
    ) -> Result<Wake, BackendError> {
        let lock = self.names.lock(&claim.key);
        let resume = blocked.resume.as_deref().unwrap_or_default();
        let limit_seen = resume.split('\n').find_map(|word| word.strip_prefix(LIMIT)?.parse().ok());
        let names = resume.split('\n').filter(|name| !name.is_empty() && !name.starts_with(LIMIT));
        let paths: Vec<String> = names.map(|name| format!("{lock}/{name}")).collect();
        if paths.is_empty() && limit_seen.is_none() {
            // Nothing to watch for: the engine checks again by itself.
            return std::future::pending().await;
        }
        let session = match self.claims.get(claim.id) {
            Some(own) => own.session,
            None => self.sessions.of(claim.ttl),
        };
        let list = reads(&lock, claim.mode);
        let mut lists = Vec::with_capacity(paths.len());
        let mut missing = Vec::new();
        for path in &paths {
            let (coming, is_watched) = session.at_news(path, list.clone());
            lists.push(coming);
            missing.extend((!is_watched).then_some(path));
        }
        let look_at_limit = limit_seen.map(|_: i32| {
            let (coming, is_watched) = session.at_news(&data_news(&lock), list.clone());
            lists.push(coming);
            if is_watched { Request::get(&lock) } else { Request::watch_data(&lock) }
        });
        if !missing.is_empty() || look_at_limit.is_some() {
            let watches = missing.iter().map(|path| Request::watch(path));
            let requests = look_at_limit.into_iter().chain(watches).chain(list);
            let mut landed = session.fly(requests.collect()).await;
            let mut has_left = false;
            if limit_seen.is_some() {
                let found = match landed.next()? {
                    Ok(body) => messages::data(&body).map(|(_, stat)| stat.version),
                    Err(Refusal::NO_NODE) => None,
                    Err(refusal) => return Err(refused(refusal, &lock)),
                };
                has_left = found != limit_seen;
            }
            for path in missing {
                match landed.next()? {
                    Ok(_) => {}
                    // It went before it could be watched.
                    Err(Refusal::NO_NODE) => has_left = true,
                    Err(refusal) => return Err(refused(refusal, path)),
                }
            }
            if has_left {
                return Ok(self.admitted(claim, &lock, &session, landed));
            }
        }
        Ok(match session.listen(select_all(lists)).await.0 {
            Ok(landed) => self.admitted(claim, &lock, &session, landed),
            // The connection broke, and the watch with it.
            Err(_) => Wake::Look,
        })
    }

    /// Whether the claim is admitted by the queue that comes next.
    fn admitted(&self, claim: &Claim, lock: &str, session: &Session, landed: Landed) -> Wake {
        self.grant(claim, lock, session, landed).unwrap_or(Wake::Look)
    }

    /// `None` where only a try can tell.
    fn grant(
        &self,
        claim: &Claim,
        lock: &str,
        session: &Session,
        mut landed: Landed,
    ) -> Option<Wake> {
        let own = self.claims.get(claim.id).filter(|own| own.session.is(session))?;
        let node = own.node?;
        let queue = queue_of(&mut landed, lock, claim.mode, Some(&node.name)).ok()?;
        let me = queue.find(&node.name)?;
        // What is closed opens by the leader's clock, which only a write tells.
        let is_closed = !queue.closed.is_empty() || queue.clash(claim, me, own.matches).is_some();
        // Whether the hold that it replaces is still there, only a try tells.
        if claim.beside.is_some()
            || is_closed
            || queue.admission_of_waiter(me) != Admission::Granted
        {
            return None;
        }
        let clocks = Reading::now(&self.io);
        let (sent, lives_for) = session.proven()?;
        let (now, sent_at) = (clocks.at, sent.at);
        // The engine counts by the boot clock, so a pause of the machine since then is over already.
        let ttl = lives_for.min(claim.ttl).saturating_sub(clocks.stood_still_since(sent));
        let stamp = claim.stamp;
        let is_enough = sent_at.plus(ttl) >= now.plus(claim.ttl / 2);
        if sent_at < stamp.sent_at() || !is_enough {
            return None;
        }
        let grant = Grant::new(token_of(&node).ok()?, ttl);
        // The engine asks for it: it is polling this.
        self.claims.asked(claim.id, now);
        let is_granted = self.claims.grant(claim.id);
        let since_try = sent_at.since(stamp.sent_at());
        is_granted.then_some(Wake::Admitted { grant, stamp, since_try })
    }
}
