//! Connects to the API server as all stores do: the addresses of its name race.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Uri;
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::Client;
use kube::client::{Body, ConfigExt as _};
use latchwork_store::Io;
use latchwork_wire::address::Endpoint;
use latchwork_wire::dial;
use tokio::net::TcpStream;
use tower::{Service, ServiceBuilder};

/// Makes connections for hyper.
#[derive(Clone)]
struct Connector(Io);

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let io = self.0.clone();
        Box::pin(async move {
            let host = to.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
            let standard = if to.scheme_str() == Some("http") { 80 } else { 443 };
            let server = Endpoint { host, port: to.port_u16().unwrap_or(standard) };
            let stream = dial(&server, &io).await?;
            Ok(TokioIo::new(TcpStream::from_std(stream)?))
        })
    }
}

/// The client of a configuration. It repeats no request: only a verb knows whether it may.
pub(super) fn client(settings: kube::Config, io: &Io) -> Result<Client, kube::Error> {
    let connector = settings.rustls_https_connector_with_connector(Connector(io.clone()))?;
    let connections = legacy::Client::builder(TokioExecutor::new()).build::<_, Body>(connector);
    let service = ServiceBuilder::new()
        .layer(settings.base_uri_layer())
        .option_layer(settings.auth_layer()?)
        .layer(settings.extra_headers_layer()?)
        .map_err(tower::BoxError::from)
        .service(connections);
    Ok(Client::new(service, settings.default_namespace))
}
