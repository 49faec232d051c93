//! One task of a worker that locks over HTTP: it counts on a hold for as long as the answers say, by its
//! own clock, from before each request was sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use latchwork_store::clock::boot_time;
use latchwork_store::{Mode, Moment, random_u128};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Shop;
use super::own_clock::OwnClock;
use super::wish::{EVERY, Kind, LIMITS};
use crate::event::{Answer, How, What};
use crate::luck::Luck;
use crate::resource::Desk;

type Trouble = Box<dyn std::error::Error + Send + Sync>;

struct Client {
    shop: Arc<Shop>,
    task: u32,
    luck: Luck,
    desk: Desk,
    /// Those of the instances of the service.
    addresses: Vec<String>,
    /// How many requests were sent: they take turns between the instances.
    sent: AtomicUsize,
    clock: OwnClock,
}

/// What a client asks for.
struct Wish {
    /// The name in the history: of a task, with its period.
    key: Arc<str>,
    what: Wanted,
}

enum Wanted {
    Lock(Mode),
    Leadership,
    Task,
}

impl Wanted {
    const fn mode(&self) -> Mode {
        match self {
            Self::Lock(mode) => *mode,
            Self::Leadership | Self::Task => Mode::Exclusive,
        }
    }
}

/// An answer of the service: its status and its body.
struct Said {
    status: u16,
    body: Value,
}

/// A hold, and until when it is counted on.
struct Hold {
    attempt: u64,
    key: Arc<str>,
    id: String,
    token: u64,
    valid_until: Moment,
    renew_at: Moment,
    /// Whether it ends with `succeed` and not with a release.
    is_task: bool,
    mode: Mode,
    /// A request for a change had no answer: it may yet be granted, and a repeat has what it was granted.
    is_unsettled: bool,
}

/// Works until the shop closes.
pub(super) async fn life(
    shop: Arc<Shop>,
    task: u32,
    addresses: String,
    clock: OwnClock,
) -> Result<(), Trouble> {
    let mut this = Client {
        clock,
        task,
        luck: Luck::of(shop.orders.seed, u64::from(task)),
        desk: Desk::new(&shop.orders.resource, shop.orders.name.as_str().into()),
        addresses: addresses.split(',').map(str::to_owned).collect(),
        sent: AtomicUsize::new(0),
        shop,
    };
    while !*this.shop.closing.borrow() {
        this.turn().await?;
    }
    Ok(())
}

impl Client {
    fn note(&self, what: What) {
        self.shop.log.note(Some(self.task), what);
    }

    async fn turn(&mut self) -> Result<(), Trouble> {
        let ttl = self.shop.orders.ttl;
        let rest = self.luck.times(Duration::from_millis(1), 0.0..20.0);
        self.shop.io.sleep(rest).await;
        let (kind, what) = match self.task % 7 {
            0 | 1 => (Kind::Hot, Wanted::Lock(Mode::Exclusive)),
            2 => (Kind::Long, Wanted::Lock(Mode::Exclusive)),
            3 if self.luck.percent(70) => (Kind::Shared, Wanted::Lock(Mode::Read)),
            3 => (Kind::Shared, Wanted::Lock(Mode::Write)),
            4 => {
                let take = 1 + u32::from(self.luck.percent(40));
                let can = self.shop.locks.capabilities();
                let of = LIMITS[usize::from(can.mixed_limits && self.luck.percent(40))];
                (Kind::Permits, Wanted::Lock(Mode::Permits { take, of }))
            }
            5 => (Kind::Lead, Wanted::Leadership),
            _ => (Kind::Once, Wanted::Task),
        };
        let length = match kind {
            Kind::Hot => self.luck.times(Duration::from_millis(1), 0.0..20.0),
            _ if self.luck.percent(50) => self.luck.times(ttl, 0.0..0.5),
            _ => self.luck.times(ttl, 0.0..self.shop.orders.longest),
        };
        let attempt = self.shop.attempts.fetch_add(1, Ordering::Relaxed);
        let number = u32::try_from(attempt).unwrap_or_default() % self.shop.orders.keys.max(1);
        let wish = Wish { key: kind.key(number), what };
        // The period of a task, and so its name, is not known before the answer.
        if !matches!(wish.what, Wanted::Task) {
            self.note_try(attempt, &wish);
        }
        match self.acquire(attempt, kind, &wish).await {
            Ok(hold) => self.hold(hold, length).await,
            Err(_) if matches!(wish.what, Wanted::Task) => Ok(()),
            Err(why) => {
                self.note(What::GaveUp { attempt, why: why.into() });
                Ok(())
            }
        }
    }

    fn note_try(&self, attempt: u64, wish: &Wish) {
        self.note_try_of(attempt, &wish.key, wish.what.mode(), None);
    }

    fn note_try_of(&self, attempt: u64, key: &Arc<str>, mode: Mode, beside: Option<u64>) {
        let (key, fair, waits, several) = (key.clone(), false, true, false);
        self.note(What::Try { attempt, key, mode, fair, waits, several, beside });
    }

    async fn acquire(
        &mut self,
        attempt: u64,
        kind: Kind,
        wish: &Wish,
    ) -> Result<Hold, &'static str> {
        let ttl = self.shop.orders.ttl;
        let wait = self.luck.times(ttl, 0.2..3.0);
        let key = &wish.key;
        let mut body = json!({
            "ttl_ms": ttl.as_millis() as u64,
            "wait_ms": wait.as_millis() as u64,
            "holder": self.shop.orders.name,
        });
        let path = match wish.what {
            Wanted::Lock(mode) => {
                match mode {
                    Mode::Exclusive => {}
                    Mode::Read => body["mode"] = "read".into(),
                    Mode::Write => body["mode"] = "write".into(),
                    Mode::Permits { take, of } => {
                        body["mode"] = "permits".into();
                        body["permits"] = json!({"take": take, "of": of});
                        let follows = self.luck.percent(30);
                        body["resize"] = if follows { "follow" } else { "to-mine" }.into();
                    }
                }
                format!("POST /v1/locks/{key}")
            }
            Wanted::Leadership => {
                body["candidate"] = self.shop.orders.name.clone().into();
                format!("POST /v1/elections/{key}/campaign")
            }
            Wanted::Task => {
                body["every"] = EVERY.into();
                format!("POST /v1/once/{key}")
            }
        };
        // A claim with a name may be asked for again when its answer does not come.
        let name = self.luck.percent(60).then(|| format!("{:032x}", random_u128()));
        // What was granted in the moment of the cut is held until its ttl: on these keys alone.
        let cut = kind == Kind::Long && self.luck.percent(30);
        let tries = if name.is_some() { 4 } else { 1 };
        // The instance that had the first request knows its name. The last repeat may be a claim of its own.
        let mut turn = self.sent.fetch_add(1, Ordering::Relaxed);
        for repeat in 0..tries {
            let limit = if cut { wait / 4 } else { wait + ttl };
            let sent = self.clock.now();
            let text = body.to_string();
            let asked = self.ask_at(turn + repeat / 3, &path, &text, name.as_deref());
            let said = tokio::select! {
                said = self.shop.io.within(limit, asked) => said,
                _ = closed(&self.shop) => return Err("cancelled"),
            };
            match said {
                Some(Ok(said)) if said.status == 200 => {
                    return self.granted(attempt, wish, sent, said).await;
                }
                Some(Ok(said)) if said.status == 409 => return Err("timed_out"),
                Some(Ok(said)) if said.status == 410 => return Err("over"),
                None if cut => return Err("cancelled"),
                // The service is away, or what it said was lost.
                said => {
                    turn += usize::from(matches!(said, Some(Ok(_))));
                    self.shop.io.sleep(ttl / 10).await;
                }
            }
        }
        Err("failed")
    }

    async fn granted(
        &self,
        attempt: u64,
        wish: &Wish,
        sent: Moment,
        mut said: Said,
    ) -> Result<Hold, &'static str> {
        let is_task = matches!(wish.what, Wanted::Task);
        let mut key = wish.key.clone();
        if is_task {
            if said.body["outcome"] != "begun" {
                return Err("done");
            }
            said.body = said.body["hold"].take();
            // Each period has a name of its own in the history.
            key = format!("{key}@{}", said.body["period"]["start_ms"]).into();
        }
        let (valid_until, renew_at) = self.until(sent, &said);
        let text = |field: &str| said.body[field].as_str().unwrap_or_default().to_owned();
        let token = text("token").parse().map_err(|_| "failed")?;
        let id = text("hold");
        // The client or the service was stopped, and the answer is read when it is over. The store has it until its ttl ends.
        if valid_until <= self.clock.now() {
            self.request(&format!("DELETE /v1/holds/{id}")).await;
            return Err("late");
        }
        if is_task {
            self.note_try(attempt, &Wish { key: key.clone(), what: Wanted::Task });
        }
        self.note_grant(attempt, token, valid_until);
        let mode = wish.what.mode();
        let is_unsettled = false;
        Ok(Hold { attempt, key, id, token, valid_until, renew_at, is_task, mode, is_unsettled })
    }

    fn note_grant(&self, attempt: u64, token: u64, valid_until: Moment) {
        let ttl = self.shop.orders.ttl;
        let (ttl, valid_until) = (ttl + ttl / 10, self.clock.on_boot_clock(valid_until));
        self.note(What::Granted { attempt, token, ttl, valid_until });
    }

    /// Upgrades or downgrades a hold. Of several instances, the next one is asked again while there is no answer: a repeat
    /// with the old id has the new one. Whether it is held after that, as before or changed.
    async fn change(&mut self, hold: &mut Hold) -> bool {
        let (ttl, before, several) = (self.shop.orders.ttl, hold.attempt, self.addresses.len() > 1);
        let attempt = self.shop.attempts.fetch_add(1, Ordering::Relaxed);
        let upgrades = hold.mode == Mode::Read;
        let (verb, mode) =
            if upgrades { ("upgrade", Mode::Write) } else { ("downgrade", Mode::Read) };
        self.note_try_of(attempt, &hold.key, mode, Some(before));
        let releasing = What::Releasing { attempt: before, how: How::Drop };
        if !upgrades {
            // Others may read before the answer comes.
            self.note(releasing.clone());
        }
        // An instance that is silent leaves time to ask another one.
        let part = if several { ttl / 8 } else { ttl / 4 };
        let wait = self.luck.times(ttl / 4, 0.0..1.0);
        let body = match upgrades {
            true => json!({"wait_ms": wait.as_millis() as u64}).to_string(),
            false => String::new(),
        };
        let path = format!("POST /v1/holds/{}/{verb}", hold.id);
        let why = loop {
            let sent = self.clock.now();
            let limit = hold.valid_until.since(sent).min(wait + part);
            let said = self.shop.io.within(limit, self.ask(&path, &body)).await;
            let left = hold.valid_until.since(self.clock.now());
            let is_over = left.is_zero();
            match said {
                Some(Ok(said)) if said.status == 200 && !is_over => {
                    let token = said.body["token"].as_str().and_then(|token| token.parse().ok());
                    (hold.valid_until, hold.renew_at) = self.until(sent, &said);
                    (hold.attempt, hold.mode, hold.is_unsettled) = (attempt, mode, false);
                    hold.token = token.unwrap_or_default();
                    hold.id = said.body["hold"].as_str().unwrap_or_default().to_owned();
                    self.note_grant(attempt, hold.token, hold.valid_until);
                    if upgrades {
                        self.note(releasing);
                    }
                    return true;
                }
                Some(Ok(Said { status: 409, body })) => {
                    break if body["kind"] == "UpgradeConflict" { "conflict" } else { "timed_out" };
                }
                Some(Ok(Said { status: 404 | 410, .. })) => break "failed",
                _ if is_over || !several => break "failed",
                _ => {
                    hold.is_unsettled = upgrades;
                    if upgrades && left < ttl / 2 {
                        // It is renewed first.
                        break "failed";
                    }
                    self.shop.io.sleep(ttl / 20).await;
                }
            }
        };
        self.note(What::GaveUp { attempt, why: why.into() });
        if !upgrades {
            self.request(&format!("DELETE /v1/holds/{}", hold.id)).await;
        }
        upgrades
    }

    async fn hold(&mut self, mut hold: Hold, length: Duration) -> Result<(), Trouble> {
        let until = self.clock.now().plus(length);
        let changes =
            matches!(hold.mode, Mode::Read | Mode::Write) && self.shop.locks.capabilities().upgrade;
        let (ttl, several) = (self.shop.orders.ttl, self.addresses.len() > 1);
        let (step, least) = (ttl / 10, if several { ttl / 4 * 3 } else { ttl / 2 });
        // Some clients just stop to renew.
        let forgets = !several && self.luck.percent(15);
        let lost = loop {
            let (asked, stamp) = (self.clock.now(), boot_time());
            if asked >= hold.valid_until {
                break Some("expired");
            }
            let valid_until = self.clock.on_boot_clock(hold.valid_until);
            let what = What::Held { attempt: hold.attempt, valid_until };
            self.shop.log.note_at(stamp, Some(self.task), what);
            self.write(&hold).await?;
            if changes
                && (hold.is_unsettled || self.luck.percent(if several { 60 } else { 30 }))
                && hold.valid_until.since(self.clock.now()) > least
                && !self.change(&mut hold).await
            {
                return Ok(());
            }
            let now = self.clock.now();
            if now >= until && !forgets {
                break None;
            }
            let next = match forgets && now >= until {
                true => hold.valid_until,
                false => until.min(hold.renew_at).min(hold.valid_until),
            };
            let next = next.min(now.plus(step));
            self.shop.io.clock().sleep_until(self.clock.on_boot_clock(next)).await;
            if self.clock.now() >= hold.renew_at
                && (!forgets || self.clock.now() < until)
                && let Some(why) = self.renew(&mut hold).await
            {
                let before = hold.attempt;
                // The change was granted after all: only its repeat has the new id.
                if !hold.is_unsettled || !self.change(&mut hold).await || hold.attempt == before {
                    break Some(why);
                }
            }
        };
        let attempt = hold.attempt;
        if let Some(reason) = lost {
            let since = self.clock.on_boot_clock(hold.valid_until).min(boot_time());
            self.note(What::Lost { attempt, since, reason: reason.into() });
            // What a client does that was stopped between its check and its write.
            return self.write(&hold).await;
        }
        self.note(What::Releasing { attempt, how: How::Release });
        let line = match hold.is_task {
            true => format!("POST /v1/holds/{}/succeed", hold.id),
            false => format!("DELETE /v1/holds/{}", hold.id),
        };
        let answer = match self.request(&line).await {
            Some(Said { status: 200, .. }) => Answer::Yes,
            Some(Said { status: 410, body }) if body["kind"] == "Unconfirmed" => Answer::Failed,
            Some(Said { status: 404 | 410, .. }) => Answer::NotHeld,
            _ => Answer::Failed,
        };
        self.note(What::Released { attempt, answer });
        Ok(())
    }

    /// Renews within what is valid; says why the hold is lost, if it is.
    async fn renew(&self, hold: &mut Hold) -> Option<&'static str> {
        let (attempt, sent) = (hold.attempt, self.clock.now());
        let mut left = hold.valid_until.since(sent);
        if self.addresses.len() > 1 {
            // An instance that is silent leaves time to ask another one.
            left = left.min(self.shop.orders.ttl / 8);
        }
        let path = format!("POST /v1/holds/{}/renew", hold.id);
        let said = self.shop.io.within(left, self.ask(&path, "")).await;
        match said {
            Some(Ok(said)) if said.status == 200 && self.clock.now() < hold.valid_until => {
                (hold.valid_until, hold.renew_at) = self.until(sent, &said);
                let valid_until = self.clock.on_boot_clock(hold.valid_until);
                self.note(What::Renewed { attempt, valid_until });
                None
            }
            Some(Ok(Said { status: 404 | 410, body })) => Some(reason(&body)),
            _ => {
                hold.renew_at = self.clock.now().plus(self.shop.orders.ttl / 20);
                None
            }
        }
    }

    async fn request(&self, line: &str) -> Option<Said> {
        self.shop.io.within(self.shop.orders.ttl, self.ask(line, "")).await?.ok()
    }

    async fn ask(&self, line: &str, body: &str) -> std::io::Result<Said> {
        self.ask_at(self.sent.fetch_add(1, Ordering::Relaxed), line, body, None).await
    }

    /// Sends one request on a connection of its own, to the instance whose turn it is.
    async fn ask_at(
        &self,
        turn: usize,
        line: &str,
        body: &str,
        name: Option<&str>,
    ) -> std::io::Result<Said> {
        let address = &self.addresses[turn % self.addresses.len()];
        let mut stream = TcpStream::connect(address).await?;
        let mut text = format!("{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
        if let Some(name) = name {
            text += &format!("Idempotency-Key: {name}\r\n");
        }
        if !body.is_empty() {
            text +=
                &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        }
        text = text + "\r\n" + body;
        stream.write_all(text.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let torn = || std::io::Error::other("a torn answer");
        let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(torn)?;
        let status = head.split(' ').nth(1).and_then(|it| it.parse().ok()).ok_or_else(torn)?;
        let body = serde_json::from_str(body).map_err(std::io::Error::other)?;
        Ok(Said { status, body })
    }

    /// Until when an answer lets its client count on the hold, and when to renew.
    fn until(&self, sent: Moment, said: &Said) -> (Moment, Moment) {
        let number = |field: &str| said.body[field].as_u64().unwrap_or_default();
        let valid_until = sent.plus(Duration::from_millis(number("valid_for_ms")));
        // An answer that was late leaves less time than the service knew of.
        let now = self.clock.now();
        let half = now.plus(valid_until.since(now) / 2);
        (valid_until, half.min(now.plus(Duration::from_millis(number("renew_in_ms")))))
    }

    async fn write(&mut self, hold: &Hold) -> Result<(), Trouble> {
        let (attempt, token) = (hold.attempt, hold.token);
        let accepted = self.desk.write(&hold.key, attempt, token).await?;
        self.note(What::Wrote { attempt, token, accepted });
        Ok(())
    }
}

/// Why the service has ended a hold.
fn reason(body: &Value) -> &'static str {
    match body["reason"].as_str() {
        Some("forced" | "taken") => "taken",
        Some("not_renewed") => "not_renewed",
        Some("expired") => "expired_at_service",
        _ => "unknown",
    }
}

async fn closed(shop: &Shop) {
    let mut closing = shop.closing.clone();
    // An error means that the worker ends.
    let _ = closing.wait_for(|closing| *closing).await;
}
