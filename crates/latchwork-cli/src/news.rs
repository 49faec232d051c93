//! What the library reports while a command waits for its lock and while it runs.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use latchwork::{Event, Observer};
use latchwork_store::clock::{boot_time, wall_time};
use latchwork_store::{Cause, Holder, Moment};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use crate::output::{Done, opens_by_reset};

/// How long tries fail, to connect or to acquire, before that is worth a line, where not each is reported.
pub(crate) const REPORT: Duration = Duration::from_secs(1);
/// How long the same failure of tries is not worth another line, where each is reported.
const REPEAT: Duration = Duration::from_secs(30);

/// What a claim waits for: a holder, if its name is known, and how many others are ahead, if the store
/// tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InTheWay {
    name: Arc<str>,
    /// `None` for a holder whose name is not known.
    obstacle: Option<Obstacle>,
    ahead: Option<u32>,
}

/// What keeps a claim waiting.
#[derive(Debug, Clone)]
enum Obstacle {
    Holder(Arc<str>),
    /// `once` has done it, and it opens at this moment, if the store tells that.
    Done(Option<Holder>, Option<Moment>),
    /// The store may have lost locks, and grants none.
    Quarantine,
}

/// Ignores when a task opens: each answer computes that moment again.
impl PartialEq for Obstacle {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Holder(one), Self::Holder(other)) => one == other,
            (Self::Done(one, _), Self::Done(other, _)) => one == other,
            (Self::Quarantine, Self::Quarantine) => true,
            _ => false,
        }
    }
}

impl Eq for Obstacle {}

impl InTheWay {
    /// A sentence about it; `waited` says for how long. What may be long comes last.
    pub(crate) fn sentence(&self, waited: &str) -> String {
        let mut text = self.start(waited);
        match &self.obstacle {
            Some(Obstacle::Quarantine) => {
                text += ": the store may have lost locks, and grants none until its quarantine is over \
                         (`latchwork doctor` says when; `latchwork init` ends that of a new store)";
            }
            Some(Obstacle::Holder(holder)) => text += &format!(", held by {holder}"),
            Some(Obstacle::Done(by, opens_at)) => {
                let step = opens_by_reset(&self.name);
                let done = done(by.as_ref(), *opens_at).sentence(wall_time(), None);
                text += &format!(": {done}; {step}");
            }
            None => {}
        }
        text
    }

    /// The same for one line of a terminal, which has no room for all of what [`sentence`](Self::sentence) says of a
    /// task.
    pub(crate) fn line(&self, waited: &str) -> String {
        let Some(Obstacle::Done(_, opens_at)) = &self.obstacle else {
            return self.sentence(waited);
        };
        format!("{}: {}", self.start(waited), done(None, *opens_at).sentence(wall_time(), None))
    }

    fn start(&self, waited: &str) -> String {
        let mut text = format!("waiting for {:?}{waited}", self.name);
        let is_held = !matches!(self.obstacle, Some(Obstacle::Done(..) | Obstacle::Quarantine));
        if let Some(ahead) = self.ahead.filter(|&ahead| ahead > 0 && is_held) {
            // Writing to a String does not fail.
            let _ = write!(text, ", {} in the queue", ordinal(ahead.saturating_add(1)));
        }
        text
    }

    /// The holder, if its name is known.
    pub(crate) fn holder(&self) -> Option<&str> {
        match &self.obstacle {
            Some(Obstacle::Holder(holder)) => Some(holder),
            _ => None,
        }
    }

    /// Whether no holder's end is waited for, but that of a period.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.obstacle, Some(Obstacle::Done(..)))
    }

    /// How much is known of what is in the way: some stores tell the name with a later answer.
    fn detail(&self) -> u8 {
        match &self.obstacle {
            None => 0,
            Some(Obstacle::Done(None, _)) => 1,
            Some(_) => 2,
        }
    }
}

/// What is known of a task that was done.
fn done(by: Option<&Holder>, opens_at: Option<Moment>) -> Done {
    Done {
        by: by.map(Holder::shown),
        at: by.and_then(|by| by.closed_at),
        left: opens_at.map(|at| at.since(boot_time())),
    }
}

/// `2nd`, `13th`
fn ordinal(number: u32) -> String {
    let ending = match (number % 10, number % 100) {
        (1, teen) if teen != 11 => "st",
        (2, teen) if teen != 12 => "nd",
        (3, teen) if teen != 13 => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

/// Something that the library reported.
#[derive(Debug)]
pub(crate) enum Heard {
    /// The claim waits; and whether that is worth a line of its own.
    Waiting(InTheWay, bool),
    /// A try failed, and is made again.
    TryFailed(String),
    /// A renewal failed, and is made again.
    RenewFailed(String),
    /// A renewal succeeded after some that failed.
    RenewedAgain,
}

/// Keeps what people may want to know. The main thread prints it: a paused terminal must not
/// stop the renewals.
#[derive(Debug)]
pub(crate) struct News {
    tells_waiting: bool,
    verbose: bool,
    told: UnboundedSender<Heard>,
    /// Whether the store has answered the release.
    released: watch::Sender<bool>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    told: Option<InTheWay>,
    failure: Option<String>,
    /// When the first try failed since the store has answered.
    failing_since: Option<Moment>,
    /// The failure that had the last line since then, and when.
    told_failure: Option<(String, Moment)>,
}

impl News {
    /// Reports about waiting: none; all, of which one is worth a line, and another if the holder's name
    /// comes later; or with `verbose` one for each holder, each failed renewal, and each failure of tries.
    pub(crate) fn new(tells_waiting: bool, verbose: bool) -> (Arc<Self>, UnboundedReceiver<Heard>) {
        let (told, heard) = unbounded_channel();
        let (released, state) = (watch::Sender::new(false), Mutex::default());
        (Arc::new(Self { tells_waiting, verbose, told, released, state }), heard)
    }

    /// Forgets what was reported of an earlier term.
    pub(crate) fn start_anew(&self, heard: &mut UnboundedReceiver<Heard>) {
        *self.lock() = State::default();
        self.released.send_replace(false);
        while heard.try_recv().is_ok() {}
    }

    /// Completes when the store has answered the release of what was held.
    pub(crate) async fn released(&self) {
        // The sender is here, so there is no error.
        let _ = self.released.subscribe().wait_for(|released| *released).await;
    }

    /// What went wrong with the last renewal, unless one has succeeded since.
    pub(crate) fn renewal_failure(&self) -> Option<String> {
        self.lock().failure.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waits(&self, what: InTheWay) {
        let mut state = self.lock();
        (state.failing_since, state.told_failure) = (None, None);
        if !self.tells_waiting {
            return;
        }
        let known = match &state.told {
            Some(told) if self.verbose => *told == what,
            Some(told) => told.detail() >= what.detail(),
            None => false,
        };
        if !known {
            state.told = Some(what.clone());
        }
        self.tell(Heard::Waiting(what, !known));
    }

    /// Whether tries have failed for so long that somebody should know: once, until the store answers again. With
    /// `verbose`, each failure at once, and the same one again from time to time.
    fn is_worth_a_line(&self, failure: &str) -> bool {
        let (now, mut state) = (boot_time(), self.lock());
        let since = *state.failing_since.get_or_insert(now);
        let is_due = match &state.told_failure {
            None => self.verbose || now.since(since) >= REPORT,
            Some((told, at)) => self.verbose && (told != failure || now.since(*at) >= REPEAT),
        };
        if is_due {
            state.told_failure = Some((failure.to_owned(), now));
        }
        is_due
    }

    fn tell(&self, heard: Heard) {
        // Nobody listens any more when the command ends.
        let _ = self.told.send(heard);
    }
}

impl Observer for News {
    fn event(&self, event: &Event<'_>) {
        match event {
            Event::Waiting { key, blocked } => {
                // Nobody holds it then, and without a word nobody would know what is waited for.
                let obstacle = match blocked.cause {
                    Cause::Quarantine => Some(Obstacle::Quarantine),
                    // It is done, and holds nothing.
                    Cause::Linger => {
                        let opens_at = blocked.retry_after.map(|left| boot_time().plus(left));
                        Some(Obstacle::Done(blocked.holder.clone(), opens_at))
                    }
                    _ => blocked.holder.as_ref().map(|holder| Obstacle::Holder(holder.shown())),
                };
                self.waits(InTheWay { name: key.as_str().into(), obstacle, ahead: blocked.ahead });
            }
            Event::TryFailed { key, error } => {
                let mut message = format!("waiting for {:?}: {error}; trying again", key.as_str());
                if let Some(step) = &error.next_step {
                    message += &format!("; {step}");
                }
                if self.is_worth_a_line(&message) {
                    self.tell(Heard::TryFailed(message));
                }
            }
            Event::RenewFailed { key, error, .. } => {
                self.lock().failure = Some(error.to_string());
                let message = format!("cannot renew {:?}: {error}; trying again", key.as_str());
                self.tell(Heard::RenewFailed(message));
            }
            Event::Released { .. } => drop(self.released.send_replace(true)),
            Event::Renewed { .. } if self.lock().failure.take().is_some() => {
                self.tell(Heard::RenewedAgain);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use latchwork::FencingToken;
    use latchwork_store::{BackendError, BackendErrorKind, Blocked, Effect, Key};

    use super::*;

    fn lines(tells_waiting: bool, verbose: bool) -> Vec<String> {
        lines_of(tells_waiting, verbose, [Some("a"), Some("a"), Some("b")])
    }

    fn lines_of(
        tells_waiting: bool,
        verbose: bool,
        holders: impl IntoIterator<Item = Option<&'static str>>,
    ) -> Vec<String> {
        let (news, mut heard) = News::new(tells_waiting, verbose);
        let key = Key::new("x").unwrap();
        for holder in holders {
            let blocked = Blocked::by(Cause::Held).with(|it| it.holder = holder.map(Into::into));
            news.event(&Event::Waiting { key: &key, blocked: &blocked });
        }
        worth_a_line(&mut heard)
    }

    fn worth_a_line(heard: &mut UnboundedReceiver<Heard>) -> Vec<String> {
        let all = std::iter::from_fn(|| heard.try_recv().ok());
        let sentence = |heard| match heard {
            Heard::Waiting(what, true) => Some(what.sentence("")),
            _ => None,
        };
        all.filter_map(sentence).collect()
    }

    #[test]
    fn a_wait_reports_a_quarantine() {
        let (news, mut heard) = News::new(true, false);
        let key = Key::new("x").unwrap();
        let blocked = Blocked::by(Cause::Quarantine);
        news.event(&Event::Waiting { key: &key, blocked: &blocked });
        assert!(worth_a_line(&mut heard)[0].contains("quarantine"));
    }

    #[test]
    fn a_done_task_names_who_did_it_and_how_to_open_it() {
        let (news, mut heard) = News::new(true, false);
        let key = Key::new("x").unwrap();
        let by = Holder::new("web-2").with(|it| it.closed_at = Some(Duration::ZERO));
        for holder in [None, Some(by.clone()), Some(by), None] {
            let blocked = Blocked::by(Cause::Linger).with(|it| {
                (it.holder, it.ahead) = (holder, Some(1));
                it.retry_after = Some(Duration::from_secs(3600));
            });
            news.event(&Event::Waiting { key: &key, blocked: &blocked });
        }
        let told = worth_a_line(&mut heard);
        let step = "open it with `latchwork once --reset x`";
        let [first, second] = &told[..] else { panic!("the name comes later: {told:?}") };
        assert!(first.starts_with("waiting for \"x\": done, next run possible in "), "{first}");
        let done =
            "waiting for \"x\": done 1970-01-01 00:00:00 UTC by web-2, next run possible in ";
        assert!(second.starts_with(done) && second.ends_with(step), "{second}");
    }

    #[test]
    fn tries_that_fail_for_long_are_reported_once() {
        let (news, mut heard) = News::new(false, false);
        let key = Key::new("x").unwrap();
        let error =
            BackendError::new(BackendErrorKind::Unreachable, Effect::NotApplied, "it is away");
        let fails = || news.event(&Event::TryFailed { key: &key, error: &error });
        fails();
        assert!(heard.try_recv().is_err(), "it may be a moment");
        news.lock().failing_since = Some(boot_time().minus(REPORT));
        fails();
        assert!(matches!(heard.try_recv(), Ok(Heard::TryFailed(text)) if text.contains("away")));
        fails();
        assert!(heard.try_recv().is_err(), "once");
        news.event(&Event::Waiting { key: &key, blocked: &Blocked::by(Cause::Held) });
        fails();
        assert!(heard.try_recv().is_err(), "the store has answered");
    }

    #[test]
    fn each_failure_is_reported_at_once_if_verbose_and_seldom_again() {
        let (news, mut heard) = News::new(false, true);
        let key = Key::new("x").unwrap();
        let fails = |text: &'static str| {
            let error = BackendError::new(BackendErrorKind::Unreachable, Effect::NotApplied, text);
            news.event(&Event::TryFailed { key: &key, error: &error });
        };
        let mut lines = || std::iter::from_fn(|| heard.try_recv().ok()).count();
        for _ in 0..100 {
            fails("it is away");
        }
        assert_eq!(lines(), 1, "a line for each try would fill the log of an outage");
        fails("it is full");
        fails("it is full");
        assert_eq!(lines(), 1, "another failure");
        news.lock().told_failure.as_mut().unwrap().1 = boot_time().minus(REPEAT);
        fails("it is full");
        assert_eq!(lines(), 1, "it goes on");
        news.event(&Event::Waiting { key: &key, blocked: &Blocked::by(Cause::Held) });
        fails("it is full");
        assert_eq!(lines(), 1, "the store has answered");
    }

    #[test]
    fn waiting_is_reported_per_verbosity() {
        assert_eq!(lines(false, false), [] as [&str; 0]);
        assert_eq!(lines(true, false), ["waiting for \"x\", held by a"]);
        assert_eq!(lines(true, true).len(), 2);
    }

    #[test]
    fn a_wait_reports_its_place_in_the_queue() {
        let (news, mut heard) = News::new(true, true);
        for ahead in [Some(11), Some(2), Some(2), Some(1), Some(0), None] {
            let obstacle = Some(Obstacle::Holder("a".into()));
            news.waits(InTheWay { name: "x".into(), obstacle, ahead });
        }
        assert_eq!(
            worth_a_line(&mut heard),
            [
                "waiting for \"x\", 12th in the queue, held by a",
                "waiting for \"x\", 3rd in the queue, held by a",
                "waiting for \"x\", 2nd in the queue, held by a",
                "waiting for \"x\", held by a",
                "waiting for \"x\", held by a",
            ]
        );
        assert_eq!([1, 11, 21, 112, 123].map(ordinal), ["1st", "11th", "21st", "112th", "123rd"]);
    }

    #[test]
    fn failed_renewals_are_reported_until_one_succeeds() {
        let (news, mut heard) = News::new(true, true);
        let kind = BackendErrorKind::Unreachable;
        let error = BackendError::new(kind, Effect::NotApplied, "the server is away");
        let (key, token) = (Key::new("x").unwrap(), FencingToken::from_grant(1));
        let remaining = Duration::from_secs(20);
        for _ in 0..2 {
            let event = Event::RenewFailed { key: &key, token, error: &error, remaining };
            news.event(&event);
            let told = heard.try_recv();
            assert!(matches!(told, Ok(Heard::RenewFailed(text)) if text.contains("away")));
        }
        assert!(news.renewal_failure().is_some());
    }

    #[test]
    fn a_later_known_holder_is_reported_again() {
        let told = lines_of(true, false, [None, None, Some("a"), None, Some("b")]);
        assert_eq!(told, ["waiting for \"x\"", "waiting for \"x\", held by a"]);
    }
}
