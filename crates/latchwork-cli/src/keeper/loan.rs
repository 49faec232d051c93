//! A hold that is borrowed from the command or shell around this one: `run --inherit`.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use latchwork::{HoldState, Lost, LostReason};
use latchwork_store::Moment;
use latchwork_store::clock::boot_time;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::select;

use super::hold_id::{Answer, HoldId, Terms, Wish};
use crate::process::deadlines;
use crate::process::timer::Naps;

/// One borrowed lock. It is returned when this value, and the guardian that has its
/// [`descriptors`](Self::descriptors), are gone.
pub(crate) struct Loan {
    pub(crate) key: String,
    pub(crate) token: String,
    stream: OwnedFd,
    lifeline: Option<OwnedFd>,
    known: Rc<Cell<Known>>,
    asking: RefCell<Pin<Box<dyn Future<Output = ()>>>>,
}

/// What is known of the holder's hold.
#[derive(Debug, Clone, Copy)]
struct Known {
    valid_until: Moment,
    ttl: Duration,
    is_suspect: bool,
    /// When it was found to be over.
    over: Option<Moment>,
}

impl Known {
    /// By the answer to a question that was asked at this moment.
    fn new(terms: &Terms, asked_at: Moment) -> Self {
        let valid_until = asked_at.plus(terms.left);
        Self { valid_until, ttl: terms.ttl, is_suspect: terms.is_suspect, over: None }
    }
}

impl Loan {
    /// Borrows the hold of `key` that was granted with this token; `None` if its holder has it no more. Has no
    /// limit of its own.
    ///
    /// # Errors
    ///
    /// As [`HoldId::terms`].
    pub(crate) async fn of(id: HoldId, key: &str, token: &str) -> io::Result<Option<Self>> {
        let mut stream = UnixStream::from_std(id.connect()?)?;
        let wish = Wish::Borrow(key.to_owned()).write();
        let lent = async {
            stream.write_all(wish.as_bytes()).await?;
            stream.async_io(Interest::READABLE, || receive(stream.as_fd())).await
        };
        let lifeline = match lent.await {
            Ok((Some(Answer::Lent(has_lifeline)), lifeline)) => {
                if has_lifeline != lifeline.is_some() {
                    // The kernel leaves out a descriptor for which there is no room.
                    return Err(rustix::io::Errno::MFILE.into());
                }
                lifeline
            }
            Ok((Some(Answer::Unknown), _)) => return Ok(None),
            // It has ended meanwhile.
            _ if !id.goes_on() => return Err(io::ErrorKind::ConnectionRefused.into()),
            other => {
                return Err(other.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into()));
            }
        };
        let asked_at = boot_time();
        let terms = id.terms(key).await?.filter(|terms| terms.token == token);
        let Some(terms) = terms else { return Ok(None) };
        let known = Rc::new(Cell::new(Known::new(&terms, asked_at)));
        Ok(Some(Self {
            key: key.to_owned(),
            token: token.to_owned(),
            stream: stream.as_fd().try_clone_to_owned()?,
            lifeline,
            asking: RefCell::new(Box::pin(ask(
                id,
                key.to_owned(),
                stream,
                known.clone(),
                Naps::new()?,
            ))),
            known,
        }))
    }

    /// What must stay open for as long as the command may run.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [self.stream.as_fd()].into_iter().chain(self.lifeline.as_ref().map(AsFd::as_fd))
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.known.get().ttl
    }

    pub(crate) fn valid_until(&self) -> Moment {
        self.known.get().valid_until
    }

    pub(crate) fn state(&self) -> HoldState {
        let Known { valid_until, is_suspect, over, .. } = self.known.get();
        match over {
            Some(at) => HoldState::Lost(Lost::new(LostReason::SessionEnded, at)),
            None if boot_time() >= valid_until => {
                HoldState::Lost(Lost::new(LostReason::Expired, valid_until))
            }
            None if is_suspect => HoldState::Suspect,
            None => HoldState::Held,
        }
    }
}

/// Completes with the state of these loans when it is one that `wanted` wants. Asks their holders meanwhile. May
/// be dropped.
pub(crate) async fn until<T>(loans: &[Loan], wanted: impl Fn(HoldState) -> Option<T>) -> T {
    poll_fn(|cx| {
        for loan in loans {
            if loan.known.get().over.is_none() {
                // Its end is noted in what is known.
                let _ = loan.asking.borrow_mut().as_mut().poll(cx);
            }
            if let Some(found) = wanted(loan.state()) {
                return Poll::Ready(found);
            }
        }
        Poll::Pending
    })
    .await
}

/// Asks the holder again and again, until the hold is over.
async fn ask(id: HoldId, key: String, mut stream: UnixStream, known: Rc<Cell<Known>>, naps: Naps) {
    let is_over = async {
        // Whatever comes, or the end of the stream.
        let _ = stream.read(&mut [0; 16]).await;
    };
    let asked = async {
        loop {
            let Known { ttl, is_suspect, .. } = known.get();
            // A doubt that is settled must not end the command.
            let pause =
                if is_suspect { deadlines::settle(ttl) / 2 } else { deadlines::refresh(ttl) };
            let _ = naps.nap(pause).await;
            let asked_at = boot_time();
            let answer = select! {
                answer = id.terms(&key) => answer,
                _ = naps.nap(deadlines::refresh(ttl)) => continue,
            };
            match answer {
                Ok(Some(terms)) => known.set(Known::new(&terms, asked_at)),
                Ok(None) => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return,
                // What is known ends by itself.
                Err(_) => {}
            }
        }
    };
    select! {
        () = is_over => {}
        () = asked => {}
    }
    known.set(Known { over: Some(boot_time()), ..known.get() });
}

/// Reads an answer, and the descriptor that may come with it.
fn receive(stream: BorrowedFd<'_>) -> io::Result<(Option<Answer>, Option<OwnedFd>)> {
    let mut text = [0; 64];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut along = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut text)];
    let read = recvmsg(stream, &mut parts, &mut along, RecvFlags::CMSG_CLOEXEC)?.bytes;
    let descriptors = along.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptor = descriptors.flatten().next();
    let answer = std::str::from_utf8(&text[..read]).ok().and_then(Answer::read);
    Ok((answer, descriptor))
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loan").field("key", &self.key).field("known", &self.known).finish()
    }
}
