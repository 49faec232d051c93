//! One request at a time on a connection: behind a pooler, none is sent before the one before is answered.
//!
//! A pooler may give the server's process to another client while answers are still to come. PgBouncer before 1.21
//! does so if a client's connection ends between the answers to two requests that it has sent together: the other
//! client then reads the answer that was meant for the first one, a grant among them. Poolers that end a client's turn at
//! its first answer lose the others. With one request under way there is nothing to mix up.
//!
//! So a request blocks the next one until its answer is there, also if its caller gives up. It has a task of its own: a
//! caller that is not polled for a while holds up nobody.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::BytesMut;
use latchwork_store::BackendError;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio_postgres::Row;
use tokio_postgres::types::{IsNull, ToSql, Type};

use crate::server::connection::{Checkout, Connection, LOOK_LIMIT, Params, SILENCE, doubt};
use crate::server::errors::{lost, unsent};
use crate::server::reply::Encoded;
use crate::server::statement::Number;

type Answer = Result<Vec<Row>, BackendError>;

/// A request that has the connection to itself when its turn has come. If it is dropped before, nothing is sent; later,
/// its answer is awaited without the caller.
pub(crate) struct Request {
    answer: oneshot::Receiver<Answer>,
}

impl Request {
    /// Takes a place behind the requests before.
    ///
    /// # Errors
    ///
    /// Without effect: a parameter cannot be sent. The answer is such an error if the connection ends before it is sent.
    pub(crate) fn on(
        connection: &Arc<Connection>,
        ask: Number,
        params: Params<'_>,
    ) -> Result<Self, BackendError> {
        let params = encoded(params, connection.statement(ask).types)?;
        let mut turn = Box::pin(connection.exclusive());
        // The first poll takes the place.
        let first = turn.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let (mut tell, answer) = oneshot::channel();
        let connection = connection.clone();
        let io = connection.drive().io().clone();
        io.clone().spawn(async move {
            let permit = match first {
                Poll::Ready(permit) => permit,
                Poll::Pending => tokio::select! {
                    biased;
                    () = tell.closed() => return,
                    permit = turn => permit,
                },
            };
            if tell.is_closed() {
                return;
            }
            if !connection.is_open() {
                let _ = tell.send(Err(unsent("the connection has ended")));
                return;
            }
            let sent_at = io.now();
            let mut asked = pin!(answered(connection.clone(), ask, params, permit));
            let answer = tokio::select! {
                biased;
                answer = asked.as_mut() => Some(answer),
                () = tell.closed() => None,
            };
            if let Some(answer) = answer {
                let _ = tell.send(answer);
                return;
            }
            if io.now().since(sent_at) >= SILENCE {
                doubt(&connection, &io);
            }
            // The next one must not be sent before. A statement that waits for a row ends before that.
            if io.within(LOOK_LIMIT, asked).await.is_none() {
                connection.end();
            }
        });
        Ok(Self { answer })
    }
}

impl Future for Request {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        Pin::new(&mut self.answer)
            .poll(cx)
            .map(|answer| answer.unwrap_or_else(|_| Err(lost("closed"))))
    }
}

async fn answered(
    connection: Arc<Connection>,
    ask: Number,
    params: Vec<(Encoded, Type)>,
    permit: OwnedSemaphorePermit,
) -> Answer {
    let _until_the_answer = (permit, Checkout::on(connection.clone()));
    let typed: Vec<(&(dyn ToSql + Sync), Type)> =
        params.iter().map(|(value, kind)| (value as &(dyn ToSql + Sync), kind.clone())).collect();
    connection.send(connection.client().query_typed(&connection.statement(ask).text, &typed)).await
}

/// Parameters that live as long as their request.
fn encoded(params: Params<'_>, types: &[Type]) -> Result<Vec<(Encoded, Type)>, BackendError> {
    let encode = |(param, kind): (&&(dyn ToSql + Sync), &Type)| {
        let mut bytes = BytesMut::new();
        let value = match param.to_sql_checked(kind, &mut bytes) {
            Ok(IsNull::No) => Encoded(Some(bytes)),
            Ok(IsNull::Yes) => Encoded(None),
            Err(error) => return Err(unsent(&error.to_string())),
        };
        Ok((value, kind.clone()))
    };
    params.iter().zip(types).map(encode).collect()
}
