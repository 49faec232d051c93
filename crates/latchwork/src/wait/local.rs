//! Waiting in the queue of this process, for the hold itself or for the lead of the queue.

use std::sync::Arc;

use crate::hold::engine::Engine;
use crate::hold::guard::Guard;
use crate::hold::lease::HoldState;
use crate::hold::local_queue::{Delivery, Entered, Lead, Wish};
use crate::wait::acquire::Request;
use crate::wait::patience::{Patience, timed_out};
use crate::wait::waiter::Waiter;
use latchwork_store::{Error, Moment};

/// What the queue gave.
pub(super) enum Local {
    /// And whether it had to wait for it.
    Lead(Lead, bool),
    Handed(Guard),
    Busy,
}

/// Waits for the queue of this process to give the hold or the lead.
pub(super) async fn wait_in_queue(
    engine: &Arc<Engine>,
    request: &Request,
    patience: Patience,
    deadline: Moment,
    mut first: bool,
    waiter: &mut Waiter<'_>,
) -> Result<Local, Error> {
    loop {
        let wish = match patience {
            Patience::Once => Wish::Now,
            _ if first => Wish::First,
            _ => Wish::InTurn,
        };
        let mut place = match engine.queues.enter(&request.key, &request.plan, wish) {
            Entered::Lead(lead) => return Ok(Local::Lead(lead, false)),
            Entered::Busy => return Ok(Local::Busy),
            Entered::Wait(place) => place,
        };
        waiter.begin();
        // What is given while the wait is cut is dropped with the place and passes on.
        let given = if deadline == Moment::NEVER {
            Some(place.delivery().await)
        } else {
            engine.io.within(deadline.since(engine.io.now()), place.delivery()).await
        };
        engine.check_open(Some(&request.key))?;
        match given {
            Some(Some(Delivery::Lead(lead))) => return Ok(Local::Lead(lead, true)),
            Some(Some(Delivery::Handed(handed))) => {
                let guard = Guard::of(engine, handed);
                if guard.state() == HoldState::Held {
                    return Ok(Local::Handed(guard));
                }
                // A hold that was lost on its way is dropped, and the wait restarts where it was.
                first = true;
            }
            Some(None) => first = true,
            None => {
                let queue = place.queue();
                return Err(match queue.trouble() {
                    Some((_, error)) => engine.seen(error, Some(&request.key)),
                    None => timed_out(engine, &request.key, patience, queue.in_the_way()),
                });
            }
        }
    }
}
