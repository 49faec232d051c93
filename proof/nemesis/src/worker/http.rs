//! One task of a worker that locks over HTTP: it counts on a hold for as long as the answers say, by its
//! own clock, from before each request was sent.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use latchwork::store::clock::boot_time;
use latchwork::store::{Mode, Moment, random_u128};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Shop;
use super::wish::Kind;
use crate::event::{Answer, How, What};
use crate::luck::Luck;
use crate::resource::Desk;

type Trouble = Box<dyn std::error::Error + Send + Sync>;

/// How many permits there are on a key.
const PERMITS: u32 = 3;

struct Client {
    shop: Arc<Shop>,
    task: u32,
    luck: Luck,
    desk: Desk,
    address: String,
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
}

/// Works until the shop closes.
pub(super) async fn life(shop: Arc<Shop>, task: u32, address: String) -> Result<(), Trouble> {
    let mut this = Client {
        task,
        luck: Luck::of(shop.orders.seed, u64::from(task)),
        desk: Desk::new(&shop.orders.resource, shop.orders.name.as_str().into()),
        address,
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
        let (kind, mode) = match self.task % 5 {
            0 | 1 => (Kind::Hot, Mode::Exclusive),
            2 => (Kind::Long, Mode::Exclusive),
            3 if self.luck.percent(70) => (Kind::Shared, Mode::Read),
            3 => (Kind::Shared, Mode::Write),
            _ => (
                Kind::Permits,
                Mode::Permits { take: 1 + u32::from(self.luck.percent(40)), of: PERMITS },
            ),
        };
        let length = match kind {
            Kind::Hot => self.luck.times(Duration::from_millis(1), 0.0..20.0),
            _ if self.luck.percent(50) => self.luck.times(ttl, 0.0..0.5),
            _ => self.luck.times(ttl, 0.0..self.shop.orders.longest),
        };
        let attempt = self.shop.attempts.fetch_add(1, Ordering::Relaxed);
        let number = u32::try_from(attempt).unwrap_or_default() % self.shop.orders.keys.max(1);
        let key = kind.key(number);
        self.note(What::Try {
            attempt,
            key: key.clone(),
            mode,
            fair: false,
            waits: true,
            several: false,
        });
        match self.acquire(attempt, key, mode).await {
            Ok(hold) => self.hold(hold, length).await,
            Err(why) => {
                self.note(What::GaveUp { attempt, why: why.into() });
                Ok(())
            }
        }
    }

    async fn acquire(
        &mut self,
        attempt: u64,
        key: Arc<str>,
        mode: Mode,
    ) -> Result<Hold, &'static str> {
        let ttl = self.shop.orders.ttl;
        let wait = self.luck.times(ttl, 0.2..3.0);
        let mut body = json!({
            "ttl_ms": ttl.as_millis() as u64,
            "wait_ms": wait.as_millis() as u64,
            "holder": self.shop.orders.name,
        });
        match mode {
            Mode::Exclusive => {}
            Mode::Read => body["mode"] = "read".into(),
            Mode::Write => body["mode"] = "write".into(),
            Mode::Permits { take, of } => {
                body["mode"] = "permits".into();
                body["permits"] = json!({"take": take, "of": of});
            }
        }
        // A claim with a name may be asked for again when its answer does not come.
        let name = self.luck.percent(60).then(|| format!("{:032x}", random_u128()));
        let cut = self.luck.percent(10);
        let tries = if name.is_some() { 4 } else { 1 };
        for _ in 0..tries {
            let limit = if cut { wait / 4 } else { wait + ttl };
            let sent = boot_time();
            let path = format!("POST /v1/locks/{key}");
            let text = body.to_string();
            let asked = self.ask(&path, &text, name.as_deref());
            let said = tokio::select! {
                said = self.shop.io.within(limit, asked) => said,
                _ = closed(&self.shop) => return Err("cancelled"),
            };
            match said {
                Some(Ok(said)) if said.status == 200 => {
                    return self.granted(attempt, key, sent, &said);
                }
                Some(Ok(said)) if said.status == 409 => return Err("timed_out"),
                Some(Ok(said)) if said.status == 410 => return Err("over"),
                None if cut => return Err("cancelled"),
                // The service is away, or what it said was lost.
                _ => self.shop.io.sleep(ttl / 10).await,
            }
        }
        Err("failed")
    }

    fn granted(
        &self,
        attempt: u64,
        key: Arc<str>,
        sent: Moment,
        said: &Said,
    ) -> Result<Hold, &'static str> {
        let (valid_until, renew_at) = until(sent, said);
        let text = |field: &str| said.body[field].as_str().unwrap_or_default().to_owned();
        let token = text("token").parse().map_err(|_| "failed")?;
        // A client that was stopped may read the answer when it is over.
        if valid_until <= boot_time() {
            return Err("late");
        }
        let ttl = self.shop.orders.ttl;
        self.note(What::Granted { attempt, token, ttl: ttl + ttl / 10, valid_until });
        Ok(Hold { attempt, key, id: text("hold"), token, valid_until, renew_at })
    }

    async fn hold(&mut self, mut hold: Hold, length: Duration) -> Result<(), Trouble> {
        let attempt = hold.attempt;
        let until = boot_time().plus(length);
        let step = self.shop.orders.ttl / 10;
        let lost = loop {
            let asked = boot_time();
            if asked >= hold.valid_until {
                break Some("expired");
            }
            let valid_until = hold.valid_until;
            self.shop.log.note_at(asked, Some(self.task), What::Held { attempt, valid_until });
            self.write(&hold).await?;
            let now = boot_time();
            if now >= until {
                break None;
            }
            let next = until.min(hold.renew_at).min(hold.valid_until).min(now.plus(step));
            self.shop.io.clock().sleep_until(next).await;
            if boot_time() >= hold.renew_at
                && let Some(why) = self.renew(&mut hold).await
            {
                break Some(why);
            }
        };
        if let Some(reason) = lost {
            let since = hold.valid_until.min(boot_time());
            self.note(What::Lost { attempt, since, reason: reason.into() });
            // What a client does that was stopped between its check and its write.
            return self.write(&hold).await;
        }
        let how = How::Release;
        if self.luck.percent(15) {
            // It just stops renewing.
            self.note(What::Releasing { attempt, how: How::Drop });
            return Ok(());
        }
        self.note(What::Releasing { attempt, how });
        let answer = match self.request(&format!("DELETE /v1/holds/{}", hold.id)).await {
            Some(Said { status: 200, .. }) => Answer::Yes,
            Some(Said { status: 404 | 410, .. }) => Answer::NotHeld,
            _ => Answer::Failed,
        };
        self.note(What::Released { attempt, answer });
        Ok(())
    }

    /// Renews within what is valid; says why the hold is lost, if it is.
    async fn renew(&self, hold: &mut Hold) -> Option<&'static str> {
        let (attempt, sent) = (hold.attempt, boot_time());
        let left = hold.valid_until.since(sent);
        let path = format!("POST /v1/holds/{}/renew", hold.id);
        let said = self.shop.io.within(left, self.ask(&path, "", None)).await;
        match said {
            Some(Ok(said)) if said.status == 200 && boot_time() < hold.valid_until => {
                (hold.valid_until, hold.renew_at) = until(sent, &said);
                self.note(What::Renewed { attempt, valid_until: hold.valid_until });
                None
            }
            Some(Ok(Said { status: 404 | 410, .. })) => Some("taken"),
            _ => {
                hold.renew_at = boot_time().plus(self.shop.orders.ttl / 20);
                None
            }
        }
    }

    async fn request(&self, line: &str) -> Option<Said> {
        self.shop.io.within(self.shop.orders.ttl, self.ask(line, "", None)).await?.ok()
    }

    /// Sends one request on a connection of its own.
    async fn ask(&self, line: &str, body: &str, name: Option<&str>) -> std::io::Result<Said> {
        let mut stream = TcpStream::connect(&self.address).await?;
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

    async fn write(&mut self, hold: &Hold) -> Result<(), Trouble> {
        let (attempt, token) = (hold.attempt, hold.token);
        let accepted = self.desk.write(&hold.key, attempt, token).await?;
        self.note(What::Wrote { attempt, token, accepted });
        Ok(())
    }
}

/// Until when an answer lets its client count on the hold, and when to renew.
fn until(sent: Moment, said: &Said) -> (Moment, Moment) {
    let number = |field: &str| said.body[field].as_u64().unwrap_or_default();
    let valid_until = sent.plus(Duration::from_millis(number("valid_for_ms")));
    (valid_until, boot_time().plus(Duration::from_millis(number("renew_in_ms"))))
}

async fn closed(shop: &Shop) {
    let mut closing = shop.closing.clone();
    // An error means that the worker ends.
    let _ = closing.wait_for(|closing| *closing).await;
}
