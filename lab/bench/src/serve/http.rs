//! A client of HTTP/1.1 that costs little: one connection, and one request at a time.

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use crate::roles::Outcome;

/// A connection. Dropping it closes the connection, also if an answer is still awaited.
pub(super) struct Client {
    requests: SendRequest<Full<Bytes>>,
    driver: AbortHandle,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Client {
    pub(super) async fn connect(port: u16) -> Outcome<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        let (requests, connection) = handshake(TokioIo::new(stream)).await?;
        // How it ends is told by the request that fails.
        let driver = tokio::spawn(async { drop(connection.await) }).abort_handle();
        Ok(Self { requests, driver })
    }

    /// Sends a request that has to succeed, and reads its answer.
    pub(super) async fn ask(
        &mut self,
        method: Method,
        path: &str,
        key: Option<&str>,
        body: String,
    ) -> Outcome<Bytes> {
        let mut request = Request::builder().method(method).uri(path).header(HOST, "localhost");
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        // The connection can take the next request a moment after the end of an answer.
        self.requests.ready().await?;
        let answer = self.requests.send_request(request.body(Full::from(body))?).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        match status {
            StatusCode::OK => Ok(body),
            _ => Err(format!("{path}: {status}: {}", String::from_utf8_lossy(&body)).into()),
        }
    }

    pub(super) async fn post(&mut self, path: &str, body: String) -> Outcome<Bytes> {
        self.ask(Method::POST, path, None, body).await
    }

    /// A text of the answer in JSON.
    pub(super) async fn text(&mut self, path: &str, body: String, field: &str) -> Outcome<String> {
        text_of(&self.post(path, body).await?, field)
    }
}

/// A text of an answer in JSON.
pub(super) fn text_of(body: &[u8], field: &str) -> Outcome<String> {
    let json: Value = serde_json::from_slice(body)?;
    let text = json.get(field).and_then(Value::as_str);
    text.map(str::to_owned).ok_or_else(|| format!("no {field} in {json}").into())
}
