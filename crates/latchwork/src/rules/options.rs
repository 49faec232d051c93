//! The options that a user can set, checked together.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::rules::adaptive::AdaptiveTtl;
use crate::rules::handover::Handover;
use crate::rules::observe::{Event, Observer};
use crate::rules::token_base::TokenBase;
use latchwork_store::validity;
use latchwork_store::{Capabilities, Error, ErrorKind, FencingToken, Holder, Key, Moment};
use latchwork_wire::system::this_host;
use latchwork_wire::this_process;

/// The options of a manager or a handle, with what was made of them. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings(Arc<Checked>);

#[derive(Debug, Default)]
struct Checked {
    options: Options,
    plan: OnceLock<Result<Plan, Error>>,
}

/// Options that were checked against a store, ready for every acquire.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) ttl: Duration,
    pub(crate) holder: Holder,
    pub(crate) rules: Arc<Rules>,
}

impl Plan {
    /// Whether a hold that was granted for one suits the other.
    pub(crate) fn suits(&self, other: &Plan) -> bool {
        // A ttl that follows the hold times is as good as the next one.
        let same_ttl = self.rules.adaptive_ttl.is_some() || self.ttl == other.ttl;
        same_ttl && is_same(&self.holder, &other.holder) && self.rules.same_as(&other.rules)
    }

    /// The same with what is known of the key's hold times.
    pub(crate) fn adapted(self, usual: Option<Duration>) -> Self {
        let Some(bounds) = self.rules.adaptive_ttl else { return self };
        let holder = self.holder.with(|it| it.usual_hold = usual);
        Self { ttl: bounds.ttl_for(usual), holder, ..self }
    }
}

/// Whether both say the same of themselves, but for what they have learned.
pub(crate) fn is_same(one: &Holder, other: &Holder) -> bool {
    (&one.text, &one.candidate, one.lock_delay) == (&other.text, &other.candidate, other.lock_delay)
        && (&one.origin, &one.value) == (&other.origin, &other.value)
}

impl Settings {
    /// The same options but for one.
    pub(crate) fn with(&self, change: impl FnOnce(&mut Options)) -> Self {
        let mut options = self.0.options.clone();
        change(&mut options);
        Self(Arc::new(Checked { options, plan: OnceLock::new() }))
    }

    pub(crate) fn options(&self) -> &Options {
        &self.0.options
    }

    /// The key of a name in the namespace.
    pub(crate) fn key(&self, name: &str) -> Result<Key, Error> {
        Key::new(name)?.in_namespace(&self.options().namespace)
    }

    /// Checks the options, the first time that they are used with the store.
    pub(crate) fn plan(&self, capabilities: &Capabilities) -> Result<Plan, Error> {
        let options = &self.0.options;
        let check = || {
            let holder = options.holder();
            let rules = options.check(capabilities, &holder)?;
            Ok(Plan { ttl: options.ttl(capabilities), holder, rules })
        };
        self.0.plan.get_or_init(check).clone()
    }
}

/// The options as given.
#[derive(Clone, Default)]
pub(crate) struct Options {
    pub(crate) namespace: String,
    pub(crate) ttl: Option<Duration>,
    pub(crate) adaptive_ttl: Option<AdaptiveTtl>,
    pub(crate) max_ttl: Option<Duration>,
    pub(crate) holder: Option<Arc<str>>,
    pub(crate) candidate: Option<Arc<str>>,
    pub(crate) origin: Option<Arc<str>>,
    pub(crate) value: Option<Arc<str>>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) lock_delay: Option<Duration>,
    pub(crate) token_floor: Option<FencingToken>,
    pub(crate) renew_every: Option<Duration>,
    pub(crate) op_timeout: Option<Duration>,
    pub(crate) handover: Option<Handover>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
}

/// The options that go with each claim, after they were checked.
#[derive(Default)]
pub(crate) struct Rules {
    pub(crate) handover: Handover,
    pub(crate) adaptive_ttl: Option<AdaptiveTtl>,
    max_hold: Option<Duration>,
    renew_every: Option<Duration>,
    op_timeout: Option<Duration>,
    observer: Option<Arc<dyn Observer>>,
    token_base: TokenBase,
}

/// Drift takes 2 ms and a hundredth of a ttl, and the rest must suffice to renew.
const SHORTEST_TTL: Duration = Duration::from_millis(10);
const SHORTEST_OP: Duration = Duration::from_millis(1);

impl Options {
    /// One ttl for all. What was said last counts.
    pub(crate) fn fix_ttl(&mut self, ttl: Duration) {
        (self.ttl, self.adaptive_ttl) = (Some(ttl), None);
    }

    /// A ttl that follows the hold times. What was said last counts.
    pub(crate) fn follow_holds(&mut self, bounds: AdaptiveTtl) {
        (self.ttl, self.adaptive_ttl) = (None, Some(bounds));
    }

    /// The ttl to ask for.
    fn ttl(&self, capabilities: &Capabilities) -> Duration {
        let longest = self.adaptive_ttl.map(|bounds| bounds.longest);
        self.ttl.or(longest).unwrap_or(capabilities.default_ttl)
    }

    /// Checks the options against each other and the store.
    fn check(&self, capabilities: &Capabilities, holder: &Holder) -> Result<Arc<Rules>, Error> {
        Key::check_namespace(&self.namespace)?;
        let bounds = Bounds::of(self, capabilities, holder.room_for_delay());
        if let Some(check) = CHECKS.iter().find(|check| (check.is_wrong)(&bounds)) {
            return Err(Error::new(ErrorKind::Invalid, (check.message)(&bounds))
                .with_store(capabilities.store.clone())
                .with_next_step(check.step));
        }
        Ok(Arc::new(Rules {
            handover: bounds.handover,
            adaptive_ttl: self.adaptive_ttl,
            max_hold: self.max_hold,
            renew_every: self.renew_every,
            op_timeout: self.op_timeout,
            observer: self.observer.clone(),
            token_base: self.token_base(),
        }))
    }

    /// The text for people is this machine and process, unless the user says better.
    fn holder(&self) -> Holder {
        let text = self.holder.clone().unwrap_or_else(default_holder);
        Holder::new(text).with(|it| {
            it.candidate.clone_from(&self.candidate);
            it.origin.clone_from(&self.origin);
            it.value.clone_from(&self.value);
            it.lock_delay = self.lock_delay.filter(|delay| !delay.is_zero());
        })
    }

    pub(crate) fn token_base(&self) -> TokenBase {
        self.token_floor.map(TokenBase::above).unwrap_or_default()
    }
}

/// What the options come to on a store.
struct Bounds<'a> {
    options: &'a Options,
    /// The shortest and the longest ttl that the store grants.
    least: Duration,
    most: Duration,
    /// The ttl to ask for; the longest, if it follows the hold times.
    ttl: Duration,
    /// The shortest ttl to ask for.
    shortest: Duration,
    /// How long a claim may keep its key: the ttl and the lock delay.
    whole: Duration,
    handover: Handover,
}

impl<'a> Bounds<'a> {
    fn of(options: &'a Options, capabilities: &Capabilities, room: Duration) -> Self {
        let ttl = options.ttl(capabilities);
        let shortest = options.adaptive_ttl.map_or(ttl, |bounds| bounds.shortest);
        let usual = Handover::default();
        let usual = Handover { slice: usual.slice.min(shortest / 2), ..usual };
        Self {
            options,
            least: *capabilities.ttl.start(),
            most: *capabilities.ttl.end(),
            ttl,
            shortest,
            whole: ttl.saturating_add(room),
            handover: options.handover.unwrap_or(usual),
        }
    }

    fn is_granted(&self, ttl: Duration) -> bool {
        (self.least..=self.most).contains(&ttl)
    }
}

/// A rule for an option.
struct Check {
    is_wrong: fn(&Bounds<'_>) -> bool,
    /// The field, and what is wrong with it.
    message: fn(&Bounds<'_>) -> String,
    step: &'static str,
}

/// All rules, in the order in which they are checked. Each may rely on those before it.
const CHECKS: [Check; 11] = [
    Check {
        is_wrong: |it| it.options.token_floor.is_some_and(|floor| floor > TokenBase::HIGHEST_FLOOR),
        message: |_| "token_floor: leaves no room for the tokens of this store".into(),
        step: "reset the tokens of the resource while no lock is held",
    },
    Check {
        is_wrong: |it| !it.is_granted(it.ttl),
        message: |it| {
            let is_adaptive = it.options.adaptive_ttl.is_some();
            let field = if is_adaptive { "adaptive_ttl.longest" } else { "ttl" };
            format!(
                "{field}: {} is outside what this store grants, {} to {}",
                short(it.ttl),
                short(it.least),
                short(it.most)
            )
        },
        step: "choose a ttl within the range",
    },
    Check {
        is_wrong: |it| it.options.lock_delay.is_some() && it.whole > it.most,
        message: |it| {
            format!(
                "lock_delay: {} is too long: with the ttl and a hundredth for clocks it is {}, and \
                 this store grants at most {}",
                short(it.options.lock_delay.unwrap_or_default()),
                short(it.whole),
                short(it.most)
            )
        },
        step: "choose a shorter lock_delay or ttl",
    },
    Check {
        is_wrong: |it| it.options.max_ttl.is_some_and(|max| it.whole > max),
        message: |it| {
            let with = if it.whole > it.ttl { " with its lock_delay" } else { "" };
            format!(
                "max_ttl: a ttl of {}{with} is longer than the {} that are allowed",
                short(it.whole),
                short(it.options.max_ttl.unwrap_or_default())
            )
        },
        step: "choose a shorter ttl; all clients that share the locks must use the same max_ttl",
    },
    Check {
        is_wrong: |it| it.shortest > it.ttl || !it.is_granted(it.shortest),
        message: |it| {
            format!(
                "adaptive_ttl: the shortest, {}, must be at least the {} that this store grants and at \
                 most the longest, {}",
                short(it.shortest),
                short(it.least),
                short(it.ttl)
            )
        },
        step: "choose other bounds",
    },
    // What follows must hold for the shortest ttl.
    Check {
        is_wrong: |it| it.shortest < SHORTEST_TTL,
        message: |it| {
            format!(
                "ttl: {:?} leaves nothing after the allowance for clocks and travel",
                it.shortest
            )
        },
        step: "choose at least 10 ms",
    },
    Check {
        is_wrong: |it| {
            it.options.renew_every.is_some_and(|every| every.is_zero() || every > it.shortest / 2)
        },
        message: |it| {
            format!(
                "renew_every: {} must be above zero and at most half of the ttl, {}",
                short(it.options.renew_every.unwrap_or_default()),
                short(it.shortest)
            )
        },
        step: "leave it out for a third of the ttl",
    },
    Check {
        is_wrong: |it| {
            let limit = it.options.op_timeout;
            limit.is_some_and(|limit| limit < SHORTEST_OP || limit > it.shortest / 2)
        },
        message: |it| {
            format!(
                "op_timeout: {} must be at least 1 ms and at most half of the ttl, {}",
                short(it.options.op_timeout.unwrap_or_default()),
                short(it.shortest)
            )
        },
        step: "leave it out for a quarter of the ttl, two seconds at most",
    },
    Check {
        is_wrong: |it| it.options.max_hold.is_some_and(|max| max.is_zero()),
        message: |_| "max_hold: zero allows no hold at all".into(),
        step: "leave it out for no limit",
    },
    Check {
        is_wrong: |it| it.handover.slice > it.shortest / 2,
        message: |it| {
            format!(
                "handover.slice: {} is more than half of the ttl, {}",
                short(it.handover.slice),
                short(it.shortest)
            )
        },
        step: "choose a shorter slice or a longer ttl",
    },
    Check {
        is_wrong: |it| it.handover.times > Handover::MOST,
        message: |it| {
            format!("handover.times: {} is more than {}", it.handover.times, Handover::MOST)
        },
        step: "choose a smaller number",
    },
];

impl Rules {
    /// Whether a hold under these rules is one under the others as well.
    pub(crate) fn same_as(&self, other: &Rules) -> bool {
        let observer = |rules: &Rules| rules.observer.as_ref().map(|o| Arc::as_ptr(o).addr());
        self.handover == other.handover
            && self.adaptive_ttl == other.adaptive_ttl
            && self.max_hold == other.max_hold
            && self.renew_every == other.renew_every
            && self.op_timeout == other.op_timeout
            && self.token_base == other.token_base
            && observer(self) == observer(other)
    }

    /// The pause between renewals of a claim that asked for `ttl` and may count on `counted`.
    pub(crate) fn renew_every(&self, ttl: Duration, counted: Duration) -> Duration {
        let third = validity::renew_every(counted);
        match self.renew_every {
            // A pushed grant is short at first, and a fast clock leaves less than was asked for:
            // the third of what there is governs then.
            Some(every) if counted < ttl => every.min(third),
            Some(every) => every,
            None => third,
        }
    }

    /// The time limit of a verb for a claim with this ttl, or with what was granted of it.
    pub(crate) fn op_timeout(&self, ttl: Duration) -> Duration {
        self.op_timeout.map_or_else(|| validity::op_timeout(ttl), |limit| limit.min(ttl / 2))
    }

    /// The token of a store's grant; `None` if it would be larger than any token.
    pub(crate) fn token(&self, grant: u64) -> Option<FencingToken> {
        self.token_base.token(grant)
    }

    /// The store's grant of a token; `None` if these rules give no such token.
    pub(crate) fn grant(&self, token: FencingToken) -> Option<u64> {
        self.token_base.grant(token)
    }

    pub(crate) fn hold_until(&self, start: Moment) -> Moment {
        self.max_hold.map_or(Moment::NEVER, |max| start.plus(max))
    }

    pub(crate) fn tell(&self, event: &Event<'_>) {
        if let Some(observer) = &self.observer {
            // What an observer does wrong must not end a renewal or leave a lock held: a panic is
            // reported by the panic hook and goes no further.
            let _ = catch_unwind(AssertUnwindSafe(|| observer.event(event)));
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("namespace", &self.namespace)
            .field("ttl", &self.ttl)
            .field("adaptive_ttl", &self.adaptive_ttl)
            .field("max_ttl", &self.max_ttl)
            .field("holder", &self.holder)
            .field("max_hold", &self.max_hold)
            .field("lock_delay", &self.lock_delay)
            .field("token_floor", &self.token_floor)
            .field("renew_every", &self.renew_every)
            .field("op_timeout", &self.op_timeout)
            .field("handover", &self.handover)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules").field("handover", &self.handover).finish_non_exhaustive()
    }
}

impl Handover {
    /// The most handovers within one hold of the store's grant.
    pub const MOST: u32 = 1_000;
}

const _: () = assert!(Handover::MOST <= FencingToken::MAX_HANDOVERS);

/// A length of time for people: `366d`, `36h`, and below that as it is: `1.5s`.
fn short(length: Duration) -> String {
    const HOUR: u64 = 60 * 60;
    const CENTURY: u64 = 100 * 366 * 24 * HOUR;
    match (length.subsec_nanos(), length.as_secs()) {
        (_, seconds) if seconds > CENTURY => "more than a century".into(),
        (0, seconds) if seconds >= 2 * 24 * HOUR && seconds.is_multiple_of(24 * HOUR) => {
            format!("{}d", seconds / 24 / HOUR)
        }
        (0, seconds) if seconds >= HOUR && seconds.is_multiple_of(HOUR) => {
            format!("{}h", seconds / HOUR)
        }
        _ => format!("{length:?}"),
    }
}

/// `host pid 4711 (program)`; in a container the pid is that of its namespace, and the text says so.
fn default_holder() -> Arc<str> {
    static HOST_AND_PROGRAM: OnceLock<(String, String)> = OnceLock::new();
    let (host, program) = HOST_AND_PROGRAM.get_or_init(|| {
        let program = std::env::current_exe()
            .ok()
            .and_then(|path| Some(path.file_stem()?.to_string_lossy().into_owned()))
            .unwrap_or_else(|| "unknown program".into());
        (this_host(), program)
    });
    format!("{host} {} ({program})", this_process()).into()
}
