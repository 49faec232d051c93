//! Moves the bytes of a connection.

use std::io::{Error, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use redis::{PushInfo, PushKind, RedisResult, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::frames::{self, Scan};
use super::{OnPush, Pending, Shared};
use crate::lock;

/// The size of a buffer: most answers that come at once fit.
const ROOM: usize = 4 * 1024;
/// A buffer larger than this is replaced when it is empty.
const KEPT: usize = 64 * 1024;

/// Moves the bytes of a connection while it is polled. It ends with the connection.
pub(crate) struct Mover<S> {
    shared: Arc<Shared>,
    stream: S,
    on_push: OnPush,
    /// The bytes to send: `out[sent..]` is still to be written.
    out: Vec<u8>,
    sent: usize,
    /// Written bytes may be in a buffer of the stream.
    flushes: bool,
    /// The bytes received: `input[read..filled]` is still to be read.
    input: Vec<u8>,
    read: usize,
    filled: usize,
    /// How far the first answer in `input` was searched for its end.
    scan: Scan,
    /// Why nothing is written any more: received answers are still read.
    trouble: Option<Error>,
    /// The login is done, so the end of the connection is reported.
    introduced: bool,
    over: bool,
}

impl<S> Mover<S> {
    pub(super) fn new(shared: Arc<Shared>, stream: S, on_push: OnPush) -> Self {
        Self {
            shared,
            stream,
            on_push,
            out: Vec::new(),
            sent: 0,
            flushes: false,
            input: vec![0; ROOM],
            read: 0,
            filled: 0,
            scan: Scan::default(),
            trouble: None,
            introduced: false,
            over: false,
        }
    }

    /// From now on the end is reported by [`PushKind::Disconnection`], unless this side wants it.
    pub(crate) fn introduced(mut self) -> Self {
        self.introduced = true;
        self
    }

    /// Takes the bytes to send. Returns whether a caller may still send or wait for an answer.
    fn take_out(&mut self, cx: &Context<'_>) -> bool {
        let mut state = lock(&self.shared.0);
        // When no caller sends any more, the waker would only keep itself alive.
        if !state.closing && !state.waker.as_ref().is_some_and(|it| it.will_wake(cx.waker())) {
            state.waker = Some(cx.waker().clone());
        }
        if self.sent == self.out.len() {
            self.sent = 0;
            self.out.clear();
            if self.out.capacity() > KEPT {
                self.out = Vec::new();
            }
            std::mem::swap(&mut self.out, &mut state.out);
        }
        !state.closing || !state.pending.is_empty()
    }

    /// Reads all complete answers.
    fn deliver(&mut self) -> RedisResult<()> {
        loop {
            let bytes = &self.input[self.read..self.filled];
            let Some(length) = self.scan.end_of_first(bytes)? else { break };
            self.scan = Scan::default();
            let answer = frames::read(&bytes[..length])?;
            self.read += length;
            self.pass_on(answer)?;
        }
        if self.read == self.filled {
            (self.read, self.filled) = (0, 0);
            if self.input.len() > KEPT {
                self.input = vec![0; ROOM];
            }
        } else if self.filled == self.input.len() {
            self.input.copy_within(self.read..self.filled, 0);
            (self.read, self.filled) = (0, self.filled - self.read);
            if self.filled * 2 > self.input.len() {
                self.input.resize(self.input.len() * 2, 0);
            }
        }
        Ok(())
    }

    /// Gives an answer to its caller.
    fn pass_on(&self, answer: Value) -> RedisResult<()> {
        let mut state = lock(&self.shared.0);
        let answer = match answer {
            Value::Push { kind, data } if !state.expects(&kind, &data) => {
                drop(state);
                (self.on_push)(PushInfo { kind, data });
                return Ok(());
            }
            answer => answer,
        };
        match state.pending.front_mut() {
            Some(Pending::Several { skip, left, answers, .. }) => {
                *left -= 1;
                if *skip > 0 {
                    *skip -= 1;
                } else {
                    answers.push(answer);
                }
                if *left == 0
                    && let Some(Pending::Several { to, answers, .. }) = state.pending.pop_front()
                {
                    drop(state);
                    let _ = to.send(Ok(answers)); // given up meanwhile
                }
            }
            Some(Pending::One { .. }) => {
                if let Some(Pending::One { to, .. }) = state.pending.pop_front() {
                    drop(state);
                    let _ = to.send(Ok(answer)); // given up meanwhile
                }
            }
            None => {
                let strange =
                    "not a server of Redis or Valkey: it sent an answer without a request";
                return Err(Error::new(ErrorKind::InvalidData, strange).into());
            }
        }
        Ok(())
    }

    /// The connection has ended, as this side wants or for this reason. Requests without an answer fail.
    fn end(&mut self, wanted: bool, why: Option<&redis::RedisError>) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        let pending = {
            let mut state = lock(&self.shared.0);
            state.ended = true;
            state.waker = None;
            std::mem::take(&mut state.pending)
        };
        // First: a caller that gets its error does not use this connection any more.
        if self.introduced && !wanted {
            (self.on_push)(PushInfo { kind: PushKind::Disconnection, data: Vec::new() });
        }
        let Some(why) = why else { return };
        for pending in pending {
            let why = Error::new(ErrorKind::ConnectionAborted, why.clone()).into();
            match pending {
                Pending::One { to, .. } => drop(to.send(Err(why))),
                Pending::Several { to, .. } => drop(to.send(Err(why))),
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Mover<S> {
    /// Moves all bytes that can be moved. `Ok` is the end that was asked for.
    fn step(&mut self, cx: &mut Context<'_>) -> Poll<RedisResult<()>> {
        loop {
            if self.send(cx) {
                return Poll::Ready(Ok(()));
            }
            // If this system refuses to send, no server can say more.
            let is_refused = |error: &mut Error| {
                matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::Unsupported)
            };
            if let Some(refused) = self.trouble.take_if(is_refused) {
                return Poll::Ready(Err(refused.into()));
            }
            match ready!(self.fill(cx)) {
                Ok(()) => self.deliver()?,
                Err(error) => return Poll::Ready(Err(self.trouble.take().unwrap_or(error).into())),
            }
        }
    }

    /// Writes the bytes to send. Returns whether nothing remains to be done.
    fn send(&mut self, cx: &mut Context<'_>) -> bool {
        loop {
            let was_left = self.sent < self.out.len();
            let goes_on = self.take_out(cx);
            if self.trouble.is_some() {
                return false;
            }
            match self.write(cx) {
                // Requests that came in the meantime did not fit.
                Poll::Ready(Ok(())) if was_left => {}
                Poll::Ready(Ok(())) => return !goes_on,
                Poll::Ready(Err(error)) => self.trouble = Some(error),
                Poll::Pending => return false,
            }
        }
    }

    fn write(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        while self.sent < self.out.len() {
            let left = &self.out[self.sent..];
            match ready!(Pin::new(&mut self.stream).poll_write(cx, left))? {
                0 => return Poll::Ready(Err(ErrorKind::WriteZero.into())),
                written => self.sent += written,
            }
            self.flushes = true;
        }
        if self.flushes {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.flushes = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Reads once. There is room: [`Self::deliver`] makes it.
    fn fill(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let mut buffer = ReadBuf::new(&mut self.input[self.filled..]);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer))?;
        match buffer.filled().len() {
            0 => {
                let gone = "the server has closed the connection";
                Poll::Ready(Err(Error::new(ErrorKind::UnexpectedEof, gone)))
            }
            count => {
                self.filled += count;
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Future for Mover<S> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let ended = ready!(self.step(cx));
        self.end(ended.is_ok(), ended.err().as_ref());
        Poll::Ready(())
    }
}

impl<S> Drop for Mover<S> {
    fn drop(&mut self) {
        // If the last caller has gone as well, the end needs no report.
        let wanted = lock(&self.shared.0).closing;
        self.end(wanted, None);
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "tasks of tests")]

    use std::sync::Mutex;

    use redis::cmd;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::task::JoinHandle;

    use super::*;
    use crate::server::connection::{Connection, command};

    struct Side {
        connection: Option<Arc<Connection>>,
        server: DuplexStream,
        pushed: Arc<Mutex<Vec<PushInfo>>>,
        moving: JoinHandle<()>,
    }

    fn side() -> Side {
        let (stream, server) = tokio::io::duplex(64);
        let pushed = Arc::new(Mutex::new(Vec::new()));
        let noted = pushed.clone();
        let on_push = Arc::new(move |push| lock(&noted).push(push));
        let (connection, mover) = Connection::new(stream, on_push);
        let moving = tokio::spawn(mover.introduced());
        Side { connection: Some(Arc::new(connection)), server, pushed, moving }
    }

    impl Side {
        fn ask(&self, command: redis::Cmd) -> JoinHandle<RedisResult<Value>> {
            let connection = self.connection.clone().unwrap();
            tokio::spawn(async move { connection.send(&command).await })
        }

        /// What the client has sent, as long as this.
        async fn sent(&mut self, length: usize) -> String {
            let mut bytes = vec![0; length];
            self.server.read_exact(&mut bytes).await.unwrap();
            String::from_utf8(bytes).unwrap()
        }

        /// The server goes, and the connection ends.
        async fn leave(self) {
            drop(self.server);
            ends(self.moving).await;
        }
    }

    async fn ends(moving: JoinHandle<()>) {
        let ended = tokio::time::timeout(std::time::Duration::from_secs(10), moving).await;
        ended.expect("the connection ends").unwrap();
    }

    const GET: &str = "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";

    #[tokio::test]
    async fn answers_match_requests_however_they_are_split() {
        let mut side = side();
        let one = side.ask(command(&["GET", "k"]));
        tokio::task::yield_now().await;
        let connection = side.connection.clone().unwrap();
        let several = tokio::spawn(async move {
            let (ask, get) = (cmd("ASKING"), command(&["GET", "k"]));
            connection.send_together(&[&ask, &get, &get], 1).await
        });
        let asking = "*1\r\n$6\r\nASKING\r\n";
        let whole = [GET, asking, GET, GET].concat();
        assert_eq!(side.sent(whole.len()).await, whole);
        let long = "x".repeat(3 * ROOM);
        let texts = format!("+OK\r\n-ERR no\r\n${}\r\n{long}\r\n", long.len());
        for byte in format!("*2\r\n:7\r\n_\r\n{texts}").bytes() {
            side.server.write_all(&[byte]).await.unwrap();
        }
        assert_eq!(one.await.unwrap().unwrap(), Value::Array(vec![Value::Int(7), Value::Nil]));
        let answers = several.await.unwrap().unwrap();
        assert!(matches!(answers[0], Value::ServerError(_)));
        assert_eq!(answers[1], Value::BulkString(long.into_bytes()));
    }

    #[tokio::test]
    async fn only_a_matching_confirmation_answers_a_request() {
        let mut side = side();
        let confirmed = side.ask(command(&["SSUBSCRIBE", "mine"]));
        side.sent("*2\r\n$10\r\nSSUBSCRIBE\r\n$4\r\nmine\r\n".len()).await;
        let other = ">3\r\n$12\r\nsunsubscribe\r\n$5\r\nother\r\n:0\r\n";
        let mine = ">3\r\n$10\r\nssubscribe\r\n$4\r\nmine\r\n:1\r\n";
        let message = ">3\r\n$8\r\nsmessage\r\n$4\r\nmine\r\n$1\r\nx\r\n";
        for said in [other, mine, message] {
            side.server.write_all(said.as_bytes()).await.unwrap();
        }
        let Value::Push { data, .. } = confirmed.await.unwrap().unwrap() else { panic!() };
        assert_eq!(data[0], Value::BulkString(b"mine".to_vec()));
        let no_more = side.ask(command(&["SUNSUBSCRIBE", "mine"]));
        side.sent("*2\r\n$12\r\nSUNSUBSCRIBE\r\n$4\r\nmine\r\n".len()).await;
        let gone = ">3\r\n$12\r\nsunsubscribe\r\n$4\r\nmine\r\n:0\r\n";
        side.server.write_all([other, gone].concat().as_bytes()).await.unwrap();
        let Value::Push { data, .. } = no_more.await.unwrap().unwrap() else { panic!() };
        assert_eq!(data[0], Value::BulkString(b"mine".to_vec()));
        let pending = side.ask(command(&["GET", "k"]));
        side.sent(GET.len()).await;
        side.server.write_all([message, ":7\r\n"].concat().as_bytes()).await.unwrap();
        assert_eq!(pending.await.unwrap().unwrap(), Value::Int(7));
        let pushed = side.pushed.clone();
        side.leave().await;
        let pushed = lock(&pushed).iter().map(|push| push.kind.clone()).collect::<Vec<_>>();
        use PushKind::{Disconnection, SMessage, SUnsubscribe};
        assert_eq!(pushed, [SUnsubscribe, SMessage, SUnsubscribe, SMessage, Disconnection]);
    }

    #[tokio::test]
    async fn a_closed_connection_fails_all_requests_once() {
        let mut side = side();
        let under_way = side.ask(command(&["GET", "k"]));
        side.sent(GET.len()).await;
        side.server.write_all(b"$5\r\nhal").await.unwrap();
        drop(side.server);
        ends(side.moving).await;
        let error = under_way.await.unwrap().unwrap_err();
        assert!(error.to_string().contains("closed"), "{error}");
        let later = side.connection.unwrap();
        assert!(later.send(&command(&["GET", "k"])).await.is_err());
        assert_eq!(lock(&side.pushed).len(), 1);
    }

    #[tokio::test]
    async fn a_server_of_another_protocol_is_disconnected() {
        for said in ["HTTP/1.1 400 Bad Request\r\n", ":1\r\n", "$-2\r\n", "$1\r\nxx\r\n", "\n"] {
            let mut side = side();
            side.server.write_all(said.as_bytes()).await.unwrap();
            ends(side.moving).await;
            assert_eq!(lock(&side.pushed).len(), 1, "{said}");
        }
    }

    #[tokio::test]
    async fn an_unused_connection_ends_after_its_last_answer() {
        let mut side = side();
        let last = side.ask(command(&["GET", "k"]));
        side.sent(GET.len()).await;
        side.connection = None;
        tokio::task::yield_now().await;
        assert!(!side.moving.is_finished());
        last.abort();
        assert!(last.await.is_err());
        assert!(!side.moving.is_finished(), "its request is under way");
        side.server.write_all(b"_\r\n").await.unwrap();
        ends(side.moving).await;
        assert_eq!(lock(&side.pushed).len(), 0);
    }

    #[tokio::test]
    async fn dropping_a_connection_reports_no_end() {
        for (closes, told) in [(true, 0), (false, 1)] {
            let (stream, _server) = tokio::io::duplex(64);
            let pushed = Arc::new(Mutex::new(Vec::new()));
            let noted = pushed.clone();
            let on_push = Arc::new(move |push| lock(&noted).push(push));
            let (connection, mover) = Connection::new(stream, on_push);
            let kept = (!closes).then_some(connection);
            drop(mover.introduced());
            assert_eq!(lock(&pushed).len(), told, "{closes}");
            drop(kept);
        }
    }

    #[tokio::test]
    async fn queued_requests_are_sent_when_the_socket_drains() {
        let mut side = side();
        let long = "x".repeat(1_000);
        let first = side.ask(command(&["GET", &long]));
        tokio::task::yield_now().await;
        let second = side.ask(command(&["GET", "k"]));
        tokio::task::yield_now().await;
        let before = format!("*2\r\n$3\r\nGET\r\n$1000\r\n{long}\r\n");
        let both = [&before, GET].concat();
        let sent = tokio::time::timeout(std::time::Duration::from_secs(10), side.sent(both.len()));
        assert_eq!(sent.await.expect("the second goes without an answer to the first"), both);
        drop((first, second));
    }

    /// Takes no byte, and has an answer to an earlier request.
    struct NoWay(&'static [u8]);

    impl AsyncRead for NoWay {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            into: &mut ReadBuf<'_>,
        ) -> Poll<std::io::Result<()>> {
            into.put_slice(std::mem::take(&mut self.0));
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for NoWay {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &[u8],
        ) -> Poll<std::io::Result<usize>> {
            Poll::Ready(Err(ErrorKind::BrokenPipe.into()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn received_answers_survive_a_broken_write_side() {
        let (connection, mover) = Connection::new(NoWay(b":7\r\n"), Arc::new(|_| {}));
        let get = command(&["GET", "k"]);
        let (answer, ()) = tokio::join!(connection.send(&get), mover);
        assert_eq!(answer.unwrap(), Value::Int(7));
        let error = connection.send(&get).await.unwrap_err();
        assert!(error.is_io_error(), "{error}");
    }
}
