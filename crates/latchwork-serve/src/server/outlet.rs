//! The writes of a connection: the connection of a client that does not read is closed after a time limit, and the
//! errors of the HTTP parser have the form of all others.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::domain::refusal::{Kind, Refusal};
use crate::http::error::ApiError;
use crate::http::gate::HEADERS;
use crate::time::Timeout;

/// How long a client may take nothing of its answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a client with a long name does.
const LONG_NAMES: &str = "put a long name into the body: of POST /v1/holds to acquire the lock, of POST /v1/lock/show, \
                          /v1/lock/force-release or /v1/lock/resize for the rest";

/// A connection whose writes are watched.
pub(super) struct Outlet<S> {
    stream: S,
    /// Runs while the client takes nothing.
    stalled: Option<Timeout>,
    /// The text that replaces an error of the parser, and how much of it was written.
    instead: Option<(Vec<u8>, usize)>,
}

impl<S: AsyncWrite + Unpin> Outlet<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, stalled: None, instead: None }
    }

    /// Passes on the result of a write. If the client takes nothing for too long, the write fails.
    fn bounded<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stalled = self.stalled.get_or_insert_with(|| Timeout::after(PATIENCE));
        ready!(stalled.poll(context));
        let message = "the client does not read its answer";
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)))
    }

    /// Writes the text that replaces an error of the parser.
    fn poll_instead(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some((bytes, from)) = &self.instead {
            let written = Pin::new(&mut self.stream).poll_write(context, &bytes[*from..]);
            let length = ready!(self.bounded(context, written))?;
            match &mut self.instead {
                Some((bytes, from)) if length > 0 && *from + length < bytes.len() => {
                    *from += length;
                }
                instead => *instead = None,
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Outlet<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Outlet<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_instead(context))?;
        if let Some(refused) = refusal(bytes) {
            self.instead = Some((refused, 0));
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bounded(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let [one] = slices {
            return self.poll_write(context, one);
        }
        ready!(self.poll_instead(context))?;
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.bounded(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_instead(context))?;
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.bounded(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_instead(context))?;
        let ended = Pin::new(&mut self.stream).poll_shutdown(context);
        self.bounded(context, ended)
    }
}

/// The answer in place of one that the parser wrote by itself. Those have no body, and none of the headers
/// that every answer of the service has.
fn refusal(bytes: &[u8]) -> Option<Vec<u8>> {
    let head = std::str::from_utf8(bytes.strip_prefix(b"HTTP/1.")?).ok()?;
    let status = head.get(2..5)?.parse().ok()?;
    let end = head.find("\r\n\r\n")?;
    if end + 4 != head.len() || HEADERS.iter().any(|(name, _)| head.contains(name.as_str())) {
        return None;
    }
    let error: ApiError = match status {
        400 => Refusal::invalid(
            "request: it is not HTTP/1.1",
            "send a request line, headers and a body as RFC 9112 describes them",
        )
        .into(),
        414 => {
            let refusal = Refusal::new(Kind::Invalid, "path: it is longer than 65,534 bytes")
                .with_next_step(LONG_NAMES);
            ApiError::new(StatusCode::URI_TOO_LONG, refusal)
        }
        431 => {
            let message = "head: it is longer than 64 KiB, or has more than 100 headers";
            let refusal = Refusal::new(Kind::Invalid, message)
                .with_next_step(format!("send fewer and shorter headers; {LONG_NAMES}"));
            ApiError::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, refusal)
        }
        _ => return None,
    };
    let (status, body) = (error.status(), error.json()?);
    let reason = status.canonical_reason().unwrap_or_default();
    let mut text = format!(
        "HTTP/1.1 {} {reason}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n",
        status.as_u16(),
        body.len()
    );
    for (name, value) in HEADERS {
        text += &format!("{name}: {value}\r\n");
    }
    Some((text + "\r\n" + &body).into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    #[tokio::test]
    async fn an_error_of_the_parser_gets_the_usual_form() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut outlet = Outlet::new(near);
        let bare = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        let read = crate::time::spawn(async move {
            let mut text = String::new();
            tokio::io::AsyncReadExt::read_to_string(&mut far, &mut text).await.unwrap();
            text
        });
        outlet.write_all(bare).await.unwrap();
        outlet.shutdown().await.unwrap();
        let text = read.await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{text}");
        assert!(head.contains(&format!("content-length: {}", body.len())), "{text}");
        assert!(head.contains("content-security-policy: "), "{text}");
        assert!(
            body.contains("\"kind\":\"Invalid\"") && body.contains("\"next_step\":\""),
            "{text}"
        );
    }

    #[test]
    fn answers_of_the_service_are_written_as_they_are() {
        for text in [
            "HTTP/1.1 100 Continue\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\nx-content-type-options: nosniff\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}",
            "data: HTTP/1.1 400 Bad Request\r\n\r\n",
            "HTTP/1.1 4",
        ] {
            assert!(refusal(text.as_bytes()).is_none(), "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_cut() {
        let (near, _far) = tokio::io::duplex(8);
        let mut outlet = Outlet::new(near);
        outlet.write_all(b"12345678").await.unwrap();
        let start = tokio::time::Instant::now();
        let error = outlet.write_all(b"9").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(start.elapsed().as_secs(), PATIENCE.as_secs());
    }
}
