//! Tells lost holds to an address of the operator, by HTTP. Nothing waits for it: losses are kept in a bounded queue, and
//! dropped while that is full.

use std::io;
use std::time::Duration;

use latchwork::{Error, ErrorKind};
use latchwork_wire::tls;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::domain::events::hub::{LossToSend, Message};
use crate::time::{at_most, pause, spawn};

/// The most losses that wait to be sent.
const MOST: usize = 1_024;

/// How long one try may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The pauses before the second try and those after it.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_secs(2), Duration::from_secs(8)];

/// The address to which losses are sent. It may have a secret, so nothing shows it.
pub(super) struct Webhook {
    is_tls: bool,
    host: String,
    port: u16,
    /// The path with the query.
    path: String,
    /// The value of the header `Host`.
    authority: String,
}

fn bad(message: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("webhook-lost: {message}"))
        .with_next_step("write http://HOST[:PORT]/PATH or https://HOST[:PORT]/PATH")
}

impl Webhook {
    /// Reads an address.
    ///
    /// # Errors
    ///
    /// `Invalid`. No message shows the address, which may be a secret.
    pub(super) fn read(text: &str) -> Result<Self, Error> {
        let uri: axum::http::Uri = text.parse().map_err(|_| bad("it is no address"))?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(bad("it begins with neither http:// nor https://")),
        };
        let authority = uri.authority().ok_or_else(|| bad("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(bad("it has a login, which is not sent"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(bad("it has no host"));
        }
        let query = uri.query().map(|query| format!("?{query}"));
        Ok(Self {
            is_tls,
            host,
            port: authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 }),
            path: format!("{}{}", uri.path(), query.unwrap_or_default()),
            authority: authority.as_str().to_owned(),
        })
    }

    /// Sends what comes, one after the other.
    pub(super) fn start(self) -> mpsc::Sender<LossToSend> {
        let (sender, losses) = mpsc::channel(MOST);
        spawn(self.run(losses));
        sender
    }

    async fn run(self, mut losses: mpsc::Receiver<LossToSend>) {
        while let Some((loss, _place)) = losses.recv().await {
            let mut pauses = PAUSES.iter();
            let outcome = loop {
                let why = match at_most(PATIENCE, self.send(&loss)).await {
                    Some(Ok(200..=299)) => break "sent",
                    Some(Ok(status)) => format!("its answer is {status}"),
                    Some(Err(error)) => error.to_string(),
                    None => format!("no answer within {PATIENCE:?}"),
                };
                let Some(rest) = pauses.next() else {
                    tracing::warn!(why, name = ?loss.name, "the webhook was not told of a loss");
                    break "failed";
                };
                pause(*rest).await;
            };
            crate::metrics::webhook(outcome);
        }
    }

    /// One try: the status of the answer.
    async fn send(&self, loss: &Message) -> io::Result<u16> {
        let stream = TcpStream::connect((&*self.host, self.port)).await?;
        if !self.is_tls {
            return self.exchange(stream, loss).await;
        }
        // It reads the authorities that the system trusts; other tasks do not wait for that.
        let greeting = || tls::Tls::default().greeting(&self.host).map_err(io::Error::other);
        let greeting = tokio::task::block_in_place(greeting)?;
        self.exchange(greeting.greet(stream).await?, loss).await
    }

    async fn exchange<S>(&self, mut stream: S, loss: &Message) -> io::Result<u16>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let Self { path, authority, .. } = self;
        let (id, length) = (loss.id, loss.text.len());
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {authority}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
             Idempotency-Key: {id}\r\nUser-Agent: latchwork\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(loss.text.as_bytes()).await?;
        stream.flush().await?;
        // The status is all that counts.
        let mut line = [0; 12];
        stream.read_exact(&mut line).await?;
        let status = line.strip_prefix(b"HTTP/1.").and_then(|rest| rest.get(2..5));
        let status = status.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
        status.ok_or_else(|| io::Error::other("its answer is no HTTP"))
    }
}
