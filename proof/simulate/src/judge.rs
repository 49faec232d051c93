//! Watches a run: every hold, and the rules that none may break.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use latchwork::{Guard, HoldState, MultiGuard};
use latchwork_store::{Clock, Lost, LostReason, Mode};
use tokio::time::Instant;

use crate::machine::Machine;
use crate::plan::PERMITS;

/// A promise of Latchwork that a run can break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rule {
    /// At no moment do two clients have reason to believe that they hold what cannot be shared.
    Exclusion,
    /// A later hold has a larger token.
    TokensRise,
    /// A holder learns of its loss in time: by `lost()` as by a check.
    ToldInTime,
    /// A try, a bounded wait and a release end in time.
    Bounded,
    /// Once faults have ended, everybody who waits comes to hold.
    Served,
    /// What has ended leaves nothing in the store.
    NothingLeft,
    /// While nothing fails, no hold is lost.
    Kept,
    /// While nothing fails, the next waiter holds at once.
    Prompt,
    /// No call fails that should not.
    NoError,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusion => "exclusion",
            Self::TokensRise => "tokens rise",
            Self::ToldInTime => "told in time",
            Self::Bounded => "bounded",
            Self::Served => "served",
            Self::NothingLeft => "nothing left",
            Self::Kept => "kept",
            Self::Prompt => "prompt",
            Self::NoError => "no error",
        })
    }
}

/// A broken rule, and how it shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// What was seen.
    pub what: String,
}

/// A guard, or several that were acquired together.
pub(crate) enum Held {
    One(Guard),
    Both(MultiGuard),
}

impl Held {
    pub(crate) fn guards(&self) -> &[Guard] {
        match self {
            Self::One(guard) => std::slice::from_ref(guard),
            Self::Both(guards) => guards.guards(),
        }
    }
}

/// The hold of one key.
struct Hold {
    key: String,
    mode: Mode,
    token: u64,
    task: usize,
    machine: Arc<Machine>,
    held: Weak<Held>,
    index: usize,
    /// When the release was called.
    ending: Option<Instant>,
    /// When the store had answered it.
    ended: Option<Instant>,
    lost: bool,
}

impl Hold {
    /// Whether its holder would go on with its work if it asked now.
    fn is_believed(&self) -> bool {
        if self.ending.is_some() || self.machine.is_dead() || self.machine.clock.is_standing() {
            return false;
        }
        let held = self.held.upgrade();
        held.is_some_and(|held| held.guards()[self.index].ensure_held().is_ok())
    }
}

/// What a run does, and whether it keeps the rules.
pub(crate) struct Judge {
    start: Instant,
    calm: bool,
    /// Whether a task may hold one key while it waits for another.
    several: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    holds: Vec<Hold>,
    log: Vec<(Duration, String)>,
    violation: Option<Violation>,
}

/// How late a promise may be kept: timers tick in milliseconds.
const SLACK: Duration = Duration::from_millis(60);
/// How soon the next waiter holds while nothing fails.
const PROMPT: Duration = Duration::from_millis(200);

fn conflict(one: Mode, other: Mode) -> bool {
    one.is_alone() || other.is_alone()
}

impl Judge {
    pub(crate) fn new(calm: bool, several: bool) -> Arc<Self> {
        Arc::new(Self { start: Instant::now(), calm, several, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note(&self, what: impl Into<String>) {
        let at = self.start.elapsed();
        self.lock().log.push((at, what.into()));
    }

    pub(crate) fn broken(&self, rule: Rule, what: impl Into<String>) {
        let what = what.into();
        self.note(format!("VIOLATION of `{rule}`: {what}"));
        self.lock().violation.get_or_insert(Violation { rule, what });
    }

    pub(crate) fn is_calm(&self) -> bool {
        self.calm
    }

    pub(crate) fn violation(&self) -> Option<Violation> {
        self.lock().violation.clone()
    }

    pub(crate) fn log(&self) -> Vec<(Duration, String)> {
        self.lock().log.clone()
    }

    /// A task has got a hold; returns its numbers.
    pub(crate) fn granted(
        &self,
        task: usize,
        machine: &Arc<Machine>,
        held: &Arc<Held>,
        mode: Mode,
        begun: Instant,
    ) -> Vec<usize> {
        let mut numbers = Vec::new();
        self.check_prompt(held, mode, begun);
        for (index, guard) in held.guards().iter().enumerate() {
            let key = guard.key().to_string();
            let (token, held) = (guard.token().get(), Arc::downgrade(held));
            self.note(format!("task {task} holds {key} ({}), token {token}", mode.word()));
            self.check_token(&key, mode, token, begun);
            let mut state = self.lock();
            numbers.push(state.holds.len());
            let machine = machine.clone();
            let (ending, ended, lost) = (None, None, false);
            state.holds.push(Hold {
                key,
                mode,
                token,
                task,
                machine,
                held,
                index,
                ending,
                ended,
                lost,
            });
        }
        self.check_exclusion();
        numbers
    }

    fn check_token(&self, key: &str, mode: Mode, token: u64, begun: Instant) {
        let state = self.lock();
        let earlier = state.holds.iter().filter(|hold| hold.key == key).find(|hold| {
            let before = conflict(hold.mode, mode) || hold.ended.is_some_and(|at| at <= begun);
            before && hold.token >= token
        });
        let Some(earlier) = earlier else { return };
        let what = format!(
            "the hold of {key} by task {} had token {}, a later one has {token}",
            earlier.task, earlier.token
        );
        drop(state);
        self.broken(Rule::TokensRise, what);
    }

    fn check_prompt(&self, held: &Held, mode: Mode, begun: Instant) {
        if !self.calm || self.several || mode != Mode::Exclusive {
            return;
        }
        let keys: Vec<_> = held.guards().iter().map(|guard| guard.key().to_string()).collect();
        let state = self.lock();
        let others = state.holds.iter().filter(|hold| keys.contains(&hold.key));
        let free = others.filter_map(|hold| hold.ending).max();
        drop(state);
        let late = free.map_or(begun, |free| free.max(begun)).elapsed();
        if late > PROMPT {
            self.broken(
                Rule::Prompt,
                format!("{keys:?} were free for {late:?}, and a task waited"),
            );
        }
    }

    /// Looks whether two believe at once what only one can.
    pub(crate) fn check_exclusion(&self) {
        let found = self.two_at_once();
        if let Some(what) = found {
            self.broken(Rule::Exclusion, what);
        }
    }

    fn two_at_once(&self) -> Option<String> {
        let state = self.lock();
        let open: Vec<&Hold> =
            state.holds.iter().filter(|hold| hold.ending.is_none() && !hold.lost).collect();
        for (place, one) in open.iter().enumerate() {
            let same = || open[place + 1..].iter().filter(|other| other.key == one.key);
            for other in same().filter(|other| conflict(one.mode, other.mode)) {
                if one.is_believed() && other.is_believed() {
                    return Some(format!(
                        "tasks {} and {} both believe that they hold {} (tokens {} and {})",
                        one.task, other.task, one.key, one.token, other.token
                    ));
                }
            }
            if let Mode::Permits { .. } = one.mode {
                let of = PERMITS;
                let taken = |hold: &Hold| match hold.mode {
                    Mode::Permits { take, .. } => take,
                    _ => 0,
                };
                let all = taken(one) + same().map(|hold| taken(hold)).sum::<u32>();
                if all > of {
                    let holders: Vec<_> = same().copied().chain([*one]).collect();
                    let believed = holders.iter().filter(|hold| hold.is_believed());
                    let believed: u32 = believed.map(|hold| taken(hold)).sum();
                    if believed > of {
                        return Some(format!("{believed} permits of {of} are taken"));
                    }
                }
            }
        }
        None
    }

    /// A task has learned that its hold is lost.
    pub(crate) fn lost(&self, number: usize, lost: Lost) {
        let mut state = self.lock();
        let hold = &mut state.holds[number];
        let over = hold.ending.is_some() || hold.lost;
        hold.lost = true;
        let (task, key, machine) = (hold.task, hold.key.clone(), hold.machine.clone());
        drop(state);
        if over {
            return;
        }
        self.note(format!("task {task} learns that {key} is lost ({:?})", lost.reason));
        if self.calm {
            self.broken(Rule::Kept, format!("nothing fails, and task {task} has lost {key}"));
        }
        self.check_late(task, &key, &machine, lost);
    }

    fn check_late(&self, task: usize, key: &str, machine: &Machine, lost: Lost) {
        // What the store says is learned when it says it.
        if lost.reason != LostReason::Expired {
            return;
        }
        let mut late = machine.clock.now().since(lost.at);
        if let Some(went_on) = machine.went_on() {
            late = late.min(went_on.elapsed());
        }
        // A step of the wall clock asks the store first.
        if late > Duration::from_millis(500) + SLACK {
            self.broken(
                Rule::ToldInTime,
                format!("task {task} learned {late:?} late that its hold of {key} was over"),
            );
        }
    }

    /// A task is about to end its hold: from now on it believes no more.
    pub(crate) fn ending(&self, number: usize) {
        let mut state = self.lock();
        let hold = &mut state.holds[number];
        let held = hold.held.upgrade();
        let told = hold.lost;
        let (task, key, machine) = (hold.task, hold.key.clone(), hold.machine.clone());
        let index = hold.index;
        drop(state);
        let seen = held.map(|held| held.guards()[index].state());
        if let (Some(HoldState::Lost(lost)), false) = (seen, told) {
            self.check_late(task, &key, &machine, lost);
            if self.calm {
                self.broken(Rule::Kept, format!("nothing fails, and task {task} has lost {key}"));
            }
        }
        self.lock().holds[number].ending = Some(Instant::now());
        self.note(format!("task {task} ends its hold of {key}"));
    }

    /// The store has answered the release.
    pub(crate) fn ended(&self, number: usize) {
        self.lock().holds[number].ended = Some(Instant::now());
    }

    /// A call of a task took so long, of the time that its machine ran, and this was its limit.
    pub(crate) fn took(&self, task: usize, what: &str, took: Duration, limit: Duration) {
        // Clocks may be slow by a hundredth.
        if took > limit + limit / 50 + SLACK {
            self.broken(
                Rule::Bounded,
                format!("{what} of task {task} took {took:?}, and {limit:?} is its limit"),
            );
        }
    }
}
