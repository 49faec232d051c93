//! The wish of a client: what to hold, and for how long. It is checked before the store is asked.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use latchwork::{Lock, LockManager, MultiLock, Period, Resize, RwLock, Unwatched};
use latchwork_store::{Capabilities, Mode};
use sha2::{Digest, Sha256};

use super::holds::claims::Fingerprint;
use super::holds::kept::Keeper;
use super::holds::origin::Origin;
use super::holds::ticket::Ticket;
use super::holds::validity::{DELAY, LONGEST_WAIT, SHORTEST_TTL, default_ttl, lease, leases};
use super::refusal::Refusal;

/// The longest limit of a hold: the largest number that the description of the API allows.
const LONGEST_HOLD: Duration = Duration::from_millis(i64::MAX as u64);

/// The longest text of a holder or a candidate, in bytes.
const LONGEST_TEXT: usize = 1024;

/// The most levels of lists and objects in a value.
const DEEPEST_VALUE: usize = 16;

/// The longest value of a holder, in bytes of its shortest JSON.
const LONGEST_VALUE: usize = 1024;

/// The longest wait of one request, whatever the ttl.
const LONGEST_REQUEST: Duration = Duration::from_secs(60 * 60);

/// The most bytes of the keys and texts of a hold whose client keeps its ticket: its id is a part of a path, and nginx
/// takes no line above 8 KiB, of which the id has less than 7,500 bytes.
const LONGEST_TICKET: usize = 5 * 1024;

/// About how many bytes a ticket has for each lock, beside its name.
const EACH: usize = 40;

/// One lock, and how to lock it.
#[derive(Debug, Clone)]
pub(crate) struct LockWish {
    pub(crate) name: String,
    pub(crate) mode: Mode,
    /// What another limit of permits means.
    pub(crate) resize: Resize,
    /// First come, first served, also among the clients of this service.
    pub(crate) is_fair: bool,
}

impl LockWish {
    /// The lock of the library.
    fn lock(&self, locks: &LockManager) -> Lock {
        let lock = match self.mode {
            Mode::Exclusive => locks.mutex(&self.name),
            Mode::Read => RwLock::read(&locks.rwlock(&self.name)),
            Mode::Write => RwLock::write(&locks.rwlock(&self.name)),
            Mode::Permits { take, of } => {
                locks.semaphore(&self.name, of).resize_policy(self.resize).permits(take)
            }
        };
        if self.is_fair { lock.fair() } else { lock }
    }
}

/// The options that all wishes share.
#[derive(Debug, Default)]
pub(crate) struct Options {
    /// The usual ttl of the service if there is none.
    pub(crate) ttl: Option<Duration>,
    /// Zero tries once.
    pub(crate) wait: Duration,
    /// The text that others see.
    pub(crate) holder: Option<String>,
    /// No limit if there is none.
    pub(crate) max_hold: Option<Duration>,
    /// The id of the session that is to keep it.
    pub(crate) session: Option<String>,
    /// What readers of the lock see, as JSON.
    pub(crate) value: Option<String>,
}

impl Options {
    /// The bytes of the texts in an id. A holder that is not given names the token and two hosts.
    fn texts(&self) -> usize {
        self.holder.as_ref().map_or(256, String::len) + self.value.as_ref().map_or(0, String::len)
    }
}

/// Who wishes.
#[derive(Debug, Clone)]
pub(crate) struct Whose {
    /// The name of the token.
    pub(crate) owner: Arc<str>,
    /// The session that is to keep the hold.
    pub(crate) session: Option<Arc<Ticket>>,
    /// How many bytes longer a key of the store is than its name.
    pub(crate) added: usize,
}

/// What to hold.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    Locks(Vec<LockWish>),
    Leadership {
        name: String,
        candidate: Option<String>,
    },
    Task {
        name: String,
        every: Period,
        /// The period as the client wrote it.
        period_text: String,
    },
}

impl Target {
    fn candidate_len(&self) -> usize {
        match self {
            Self::Leadership { candidate, .. } => candidate.as_ref().map_or(0, String::len),
            Self::Locks(_) | Self::Task { .. } => 0,
        }
    }

    fn names(&self) -> Vec<&str> {
        match self {
            Self::Locks(locks) => locks.iter().map(|lock| &*lock.name).collect(),
            Self::Leadership { name, .. } | Self::Task { name, .. } => vec![name],
        }
    }
}

/// What a client wants to hold, and for how long.
#[derive(Debug, Clone)]
pub(crate) struct Wish {
    pub(crate) target: Target,
    pub(crate) ttl: Duration,
    pub(crate) wait: Duration,
    pub(crate) holder: Option<String>,
    pub(crate) max_hold: Option<Duration>,
    /// The keeper of the hold.
    pub(crate) keeper: Keeper,
    /// The session that keeps it.
    pub(crate) session: Option<Arc<Ticket>>,
    /// The origin of its claims.
    pub(crate) origin: Origin,
    /// What readers of the lock see, as JSON.
    value: Option<Arc<str>>,
    /// The ttl at the store.
    lease: Duration,
}

impl Wish {
    /// Checks the options against each other and the store. `keeper` is that of all holds with short names.
    ///
    /// # Errors
    ///
    /// `Invalid`, which names the field.
    pub(crate) fn new(
        target: Target,
        options: Options,
        store: &Capabilities,
        keeper: Keeper,
        whose: Whose,
    ) -> Result<Self, Refusal> {
        let Whose { owner, session, added } = whose;
        let keys: usize = target.names().into_iter().map(|name| EACH + added + name.len()).sum();
        let is_long = keys + options.texts() + target.candidate_len() > LONGEST_TICKET;
        let keeper = if is_long { Keeper::Process } else { keeper };
        let leases = leases(&store.ttl);
        let usual = || default_ttl(store.default_ttl, &leases, keeper);
        if session.is_some() {
            check_for_session(&options, keeper)?;
        }
        let ttl = session.as_ref().map(|session| session.ttl).or(options.ttl);
        let ttl = ttl.unwrap_or_else(usual);
        let lease = lease(ttl, &leases, keeper).map_err(|error| Refusal::of(&error, None))?;
        let lease = match (keeper, options.max_hold) {
            // No renewal may come before it is over.
            (Keeper::Client, Some(max)) => lease.min(max).max(*store.ttl.start()),
            _ => lease,
        };
        let Options { wait, holder, max_hold, value, .. } = options;
        check_wait(wait, ttl)?;
        // A shorter hold would be over before its client has read the answer.
        let bounds = SHORTEST_TTL..=LONGEST_HOLD;
        if max_hold.is_some_and(|max| !bounds.contains(&max)) {
            let (least, most) = (bounds.start().as_millis(), bounds.end().as_millis());
            let message = format!("max_hold_ms: it must be from {least} to {most}");
            return Err(Refusal::invalid(message, "leave it out for no limit"));
        }
        target.names().into_iter().try_for_each(check_name)?;
        check_text("holder", holder.as_deref(), LONGEST_TEXT)?;
        check_text("value", value.as_deref(), LONGEST_VALUE)?;
        check_depth(value.as_deref().unwrap_or_default())?;
        if let Target::Leadership { candidate, .. } = &target {
            check_text("candidate", candidate.as_deref(), LONGEST_TEXT)?;
        }
        let origin = Origin::of(&owner, session.as_ref().and_then(|it| it.session()));
        let value = value.map(Into::into);
        Ok(Self { target, ttl, wait, holder, max_hold, keeper, session, origin, value, lease })
    }

    /// The names of its locks.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.target.names()
    }

    /// The mode of one of its locks as a word, for events.
    pub(crate) fn mode_of(&self, name: &str) -> &'static str {
        match &self.target {
            Target::Locks(locks) => locks
                .iter()
                .find(|lock| lock.name == name)
                .map_or("exclusive", |lock| lock.mode.word()),
            Target::Leadership { .. } | Target::Task { .. } => "exclusive",
        }
    }

    /// The manager of its locks, with the ttl of the lease at the store.
    pub(crate) fn manager(&self, locks: &LockManager, holder: &Arc<str>) -> LockManager {
        let manager = locks.clone().ttl(self.lease).holder(holder.clone()).lock_delay(DELAY);
        let manager = Unwatched::marked(manager, self.origin.write().into(), self.value.clone());
        match self.max_hold {
            Some(longest) => manager.max_hold(longest),
            None => manager,
        }
    }

    /// The one lock of it, or several.
    pub(crate) fn one_or_several(
        wishes: &[LockWish],
        manager: &LockManager,
    ) -> Result<Lock, MultiLock> {
        match wishes {
            [one] => Ok(one.lock(manager)),
            several => Err(MultiLock::of(several.iter().map(|wish| wish.lock(manager)))),
        }
    }

    /// The hash of all of it but the wait, to notice another wish under the same name.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        let mut text = String::new();
        let (ttl, max) = (self.ttl, self.max_hold);
        // Written for a comparison only, so the form does not matter.
        let _ = match &self.target {
            Target::Locks(locks) => write!(text, "locks {locks:?}"),
            Target::Leadership { name, candidate } => write!(text, "leader {name:?} {candidate:?}"),
            Target::Task { name, period_text, .. } => write!(text, "task {name:?} {period_text:?}"),
        };
        let (session, value) = (self.origin.session, &self.value);
        let _ = write!(text, " {ttl:?} {max:?} {:?} {session:?} {value:?}", self.holder);
        Sha256::digest(text.as_bytes()).into()
    }
}

/// Refuses a wait that is too long for one request.
///
/// # Errors
///
/// `Invalid`.
pub(crate) fn check_wait(wait: Duration, ttl: Duration) -> Result<(), Refusal> {
    let longest = (ttl * LONGEST_WAIT).min(LONGEST_REQUEST);
    if wait <= longest {
        return Ok(());
    }
    let message = format!(
        "wait_ms: {} is longer than one request may wait with this ttl, {}",
        wait.as_millis(),
        longest.as_millis()
    );
    Err(Refusal::invalid(message, "wait for less, and ask again"))
}

/// Refuses names that browsers and many clients resolve in a path, even if they are percent-encoded.
fn check_name(name: &str) -> Result<(), Refusal> {
    if matches!(name, "." | "..") {
        let message = format!("name: {name:?} cannot be written in a path");
        return Err(Refusal::invalid(message, "choose another name").key(name));
    }
    Ok(())
}

/// Refuses what only a hold with its own renewals has.
fn check_for_session(options: &Options, keeper: Keeper) -> Result<(), Refusal> {
    let (message, step) = if options.ttl.is_some() {
        let message = "ttl_ms: a hold of a session has the ttl of the session";
        (message, "leave ttl_ms out, or the session")
    } else if options.max_hold.is_some() {
        let message = "max_hold_ms: a session keeps its holds as long as it lasts";
        (message, "leave max_hold_ms out, or the session")
    } else if keeper == Keeper::Process {
        let message = "session: it keeps no hold with more than 5 KiB of names and texts";
        (message, "leave the session out and renew the hold, or take fewer locks at a time")
    } else {
        return Ok(());
    };
    Err(Refusal::invalid(message, step))
}

/// Refuses a value that some readers cannot read: parsers have limits of their own.
fn check_depth(value: &str) -> Result<(), Refusal> {
    let (mut depth, mut is_text, mut is_escaped) = (0_usize, false, false);
    for byte in value.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => is_text = !is_text,
            b'[' | b'{' if !is_text => depth += 1,
            b']' | b'}' if !is_text => depth -= 1,
            _ => {}
        }
        if depth > DEEPEST_VALUE {
            let message = format!("value: it has more than {DEEPEST_VALUE} levels");
            return Err(Refusal::invalid(message, "write a flatter one"));
        }
    }
    Ok(())
}

fn check_text(field: &str, text: Option<&str>, longest: usize) -> Result<(), Refusal> {
    match text {
        Some(text) if text.len() > longest => {
            let message =
                format!("{field}: it has {} bytes, the longest allowed has {longest}", text.len());
            Err(Refusal::invalid(message, "write a shorter one"))
        }
        _ => Ok(()),
    }
}
