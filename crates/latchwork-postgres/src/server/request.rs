//! One request at a time on a connection: behind a pooler, none is sent before the one before is answered.
//!
//! A pooler may give the server's process to another client while answers are still to come. PgBouncer before 1.21
//! does so if a client's connection ends between the answers to two requests that it has sent together: the other
//! client then reads the answer that was meant for the first one, a grant among them. Poolers that end a client's turn at
//! its first answer lose the others. With one request under way there is nothing to mix up.
//!
//! So a request blocks the next one until its answer is there, also if its caller gives up.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use latchwork_store::BackendError;
use tokio::sync::OwnedSemaphorePermit;
use tokio_postgres::Row;
use tokio_postgres::types::{IsNull, ToSql, Type};

use crate::server::connection::{Checkout, Connection, LOOK_LIMIT, Params};
use crate::server::errors::unsent;
use crate::server::reply::Encoded;
use crate::server::statement::Number;

type Answer = Result<Vec<Row>, BackendError>;

/// A request that has the connection to itself. If it is dropped, its answer is awaited without the caller.
pub(crate) struct Request {
    asked: Option<BoxFuture<'static, Answer>>,
    connection: Arc<Connection>,
}

impl Request {
    /// Waits until no other request is under way. The request is sent when it is polled.
    ///
    /// # Errors
    ///
    /// Without effect: the connection has ended meanwhile, or a parameter cannot be sent.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before, nothing is sent.
    pub(crate) async fn on(
        connection: &Arc<Connection>,
        ask: Number,
        params: Params<'_>,
    ) -> Result<Self, BackendError> {
        let params = encoded(params, connection.statement(ask).types)?;
        let permit = connection.exclusive().await;
        if !connection.is_open() {
            return Err(unsent("the connection has ended"));
        }
        let asked = answer(connection.clone(), ask, params, permit).boxed();
        Ok(Self { asked: Some(asked), connection: connection.clone() })
    }
}

async fn answer(
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

impl Future for Request {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        let Some(asked) = &mut self.asked else { return Poll::Pending };
        let answer = asked.as_mut().poll(cx);
        if answer.is_ready() {
            self.asked = None;
        }
        answer
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let Some(asked) = self.asked.take() else { return };
        let (connection, io) = (self.connection.clone(), self.connection.drive().io().clone());
        self.connection.drive().io().spawn(async move {
            // It lives until the connection has ended: the next one must not be sent before.
            let mut asked = asked;
            // A statement that waits for a row ends before that.
            if io.within(LOOK_LIMIT, asked.as_mut()).await.is_none() {
                connection.end();
            }
        });
    }
}
