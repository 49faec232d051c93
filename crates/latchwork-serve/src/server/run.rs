//! The life of a service: from its settings to its stop.

use std::sync::Arc;
use std::time::Duration;

use latchwork::observers::Metrics;
use latchwork::{Driver, Error, ErrorKind, LockManager};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Semaphore, mpsc, watch};

use super::connection;
use super::listener::Listener;
use super::tls::Tls;
use super::webhook::Webhook;
use super::{addresses, descriptors, notify};
use crate::domain::access::policy::AccessPolicy;
use crate::domain::access::tokens::Tokens;
use crate::domain::events::event::LockEvent;
use crate::domain::events::hub::Hub;
use crate::domain::events::observer::LockObserver;
use crate::domain::holds::registry::{Limits, Registry};
use crate::domain::holds::seal::Seals;
use crate::domain::names::Names;
use crate::domain::service::{Parts, Service};
use crate::settings::Settings;
use crate::time::{at_most, pause, spawn};

/// How long connections may take to end after the last hold.
const GOODBYE: Duration = Duration::from_secs(2);

/// Runs the service of `locks` until a signal stops it.
///
/// Needs a tokio runtime with several threads. `SIGTERM` and `SIGINT` stop it: from then on no lock is taken
/// or renewed, and it ends when all holds have ended, or after [`Settings::drain`] at the latest. It does not wait for
/// holds that other instances can renew ([`Settings::seal_key_file`]). What is held then is not released, because its
/// client may still rely on it: it ends by its ttl at the store. A second signal ends it at once. `SIGHUP` reads tokens,
/// seal keys, certificates and the store's login again.
///
/// # Errors
///
/// `Invalid` for settings that cannot be used or are not safe, `Unreachable` for an address that cannot be
/// listened on.
///
/// # Cancel safety
///
/// Dropping the future ends the service without a stop: its holds are released at once, also those that clients
/// rely on. End the process instead.
pub async fn serve(settings: Settings, locks: LockManager) -> Result<(), Error> {
    let log = crate::logs::begin(settings.detail, settings.json);
    let done = run(settings, locks).await;
    log.flush();
    done
}

async fn run(settings: Settings, locks: LockManager) -> Result<(), Error> {
    crate::metrics::install()?;
    if settings.store.read_now()?.starts_with("mem:") {
        let message = "store: mem: is the memory of one process; its locks end with the service, while clients rely on them";
        return Err(Error::new(ErrorKind::Invalid, message)
            .with_next_step("leave --store out for a directory of this user, or name a server"));
    }
    let tokens = settings.tokens.as_deref().map(Tokens::read).transpose()?;
    if settings.require_token && tokens.is_none() {
        let message = "require-token: there are no tokens";
        return Err(Error::new(ErrorKind::Invalid, message).with_next_step("give --tokens FILE"));
    }
    let tls = settings.tls.as_ref().map(Tls::read).transpose()?.map(Arc::new);
    let listeners = addresses::open(&settings).await?;
    let mut signals = Signals::new()?;
    let is_open = settings.insecure_no_tokens && tokens.is_none();
    let access = AccessPolicy::new(tokens, settings.require_token, is_open);
    let (service, _driver) = service(&settings, locks, access)?;
    let router = crate::http::router(service.clone(), settings.allow_hosts.clone());
    let shown: Vec<_> = listeners.iter().map(Listener::shown).collect();
    let most = descriptors::room(settings.max_connections, listeners.len())?;
    let (mut all_places, mut acceptors) = (Vec::new(), Vec::new());
    for listener in listeners {
        // Each socket has its own, so that clients of one socket cannot block the others.
        let places = Arc::new(Semaphore::new(most));
        all_places.push(places.clone());
        let acceptor = Acceptor {
            listener,
            tls: tls.clone(),
            router: router.clone(),
            places,
            stopped: service.stopped.subscribe(),
        };
        acceptors.push(spawn(acceptor.run()));
    }
    let mut watching = spawn(service.clone().watch());
    spawn(crate::metrics::keep_up());
    let (shown, store) = (shown.join(" "), service.locks.capabilities().store.clone());
    tell_who_keeps(&service);
    tracing::info!(listen = shown, store = &*store, version = env!("CARGO_PKG_VERSION"), "ready");
    notify::ready(&shown);
    notify::keep_alive(&service);
    loop {
        let action = tokio::select! {
            action = signals.next() => action,
            _ = &mut watching => return Err(broken()),
        };
        match action {
            SignalAction::Reload => reload(&service, tls.as_deref()),
            SignalAction::Stop => break,
        }
    }
    stop(&service, &settings, &all_places, most, &mut signals).await;
    // Each removes the file of its socket.
    for acceptor in acceptors {
        let _ = at_most(GOODBYE, acceptor).await;
    }
    Ok(())
}

/// Tells how long the holds of clients last.
fn tell_who_keeps(service: &Service) {
    match (service.has_tickets, service.seals.are_shared()) {
        (true, true) => {}
        (true, false) => tracing::info!(
            "holds end with this process: no other one can open their ids without --seal-key-file"
        ),
        (false, _) => tracing::info!(
            "holds end with this process: the store ties a lock to the process that acquired it"
        ),
    }
}

fn broken() -> Error {
    Error::new(ErrorKind::Closed, "the loop that ends holds has ended")
        .with_next_step("start the service again, and report this: it is a mistake of the service")
}

fn service(
    settings: &Settings,
    locks: LockManager,
    access: AccessPolicy,
) -> Result<(Arc<Service>, Driver), Error> {
    let names = Names::new(&settings.namespace);
    let (sender, losses) = mpsc::unbounded_channel();
    let webhook = settings.webhook_lost.as_deref().map(Webhook::read).transpose()?;
    let hub = Hub::new(crate::http::events::json);
    let hub = Arc::new(hub.with_losses(webhook.map(Webhook::start)));
    let observer =
        Arc::new(LockObserver { hub: hub.clone(), names: names.clone(), losses: sender });
    let locks =
        locks.namespace(&*settings.namespace).observer(Arc::new((Metrics::new(), observer)));
    // Only for its clock, which counts the time in which the machine sleeps.
    let driver = Driver::start()?;
    let clock = driver.io().clock().clone();
    let limits = Limits { holds: settings.max_holds, waiters: settings.max_waiters };
    let seals = Seals::new(settings.seal_key_file.as_deref(), &settings.namespace)?;
    let registry = Registry::new(clock.clone(), limits, names.clone(), seals.are_shared());
    let service = Service::new(Parts {
        locks,
        names,
        store: settings.store.clone(),
        registry,
        seals,
        hub,
        clock,
        access,
        losses,
    });
    Ok((service, driver))
}

/// Accepts the connections of one socket.
struct Acceptor {
    listener: Listener,
    tls: Option<Arc<Tls>>,
    router: axum::Router,
    places: Arc<Semaphore>,
    stopped: watch::Receiver<bool>,
}

impl Acceptor {
    async fn run(mut self) {
        loop {
            let place = tokio::select! {
                place = self.places.clone().acquire_owned() => place,
                () = connection::has_stopped(&mut self.stopped) => return,
            };
            // The places are never closed.
            let Ok(place) = place else { return };
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = connection::has_stopped(&mut self.stopped) => return,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    // Usually because no descriptors are free; others may be closed meanwhile.
                    pause(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let (tls, router) = (self.tls.clone(), self.router.clone());
            let stopped = self.stopped.clone();
            spawn(async move {
                crate::metrics::connections(1.0);
                connection::serve(stream, peer, tls, router, stopped).await;
                crate::metrics::connections(-1.0);
                drop(place);
            });
        }
    }
}

fn reload(service: &Service, tls: Option<&Tls>) {
    match service.access.reload_tokens() {
        Ok(Some(count)) => tracing::info!(count, "the tokens were read again"),
        Ok(None) => {}
        Err(error) => tracing::error!(%error, "the tokens stay as they were"),
    }
    match service.seals.reload() {
        Ok(Some(count)) => tracing::info!(count, "the seal keys were read again"),
        Ok(None) => {}
        Err(error) => tracing::error!(%error, "the seal keys stay as they were"),
    }
    match tls.map(Tls::reload) {
        Some(Ok(())) => tracing::info!("the certificate was read again"),
        Some(Err(error)) => tracing::error!(%error, "the certificate stays as it was"),
        None => {}
    }
    let store = service.store.clone();
    // It may be a command, which may take long.
    let reading = std::thread::Builder::new().name("latchwork-store".into());
    let reading = reading.spawn(move || match store.read_again() {
        Ok(true) => tracing::info!("the store's login was read again"),
        Ok(false) => {}
        Err(error) => tracing::error!(%error, "the store's login stays as it was"),
    });
    if let Err(error) = reading {
        tracing::error!(%error, "the store's login is not read again");
    }
}

async fn stop(
    service: &Service,
    settings: &Settings,
    places: &[Arc<Semaphore>],
    most: usize,
    signals: &mut Signals,
) {
    notify::stopping();
    service.registry.close();
    service.stopping.send_replace(true);
    service.hub.publish(LockEvent::new("closing", ""));
    let holds = service.registry.count();
    tracing::info!(holds, drain = ?settings.drain, "stopping: no lock is taken or renewed");
    tokio::select! {
        _ = at_most(settings.drain, drained(service)) => {}
        () = signals.stop() => {}
    }
    service.stopped.send_replace(true);
    let most = u32::try_from(most).unwrap_or(u32::MAX);
    let all = futures_util::future::join_all(places.iter().map(|it| it.acquire_many(most)));
    tokio::select! {
        _ = at_most(GOODBYE, all) => {}
        () = signals.stop() => {}
    }
    let (guards, tickets) = service.registry.leave();
    if service.outlived() {
        tracing::info!(holds = tickets, "holds are left to other instances");
    }
    let left = if service.outlived() { guards } else { guards + tickets };
    if left > 0 {
        tracing::warn!(left, "holds are left to their ttl: their clients may rely on them yet");
    }
    if guards > 0 {
        // A close of the manager would release them.
        return;
    }
    // Releases that are under way.
    let _ = at_most(GOODBYE, service.locks.close()).await;
}

/// Completes when there are no holds, and the store has answered all releases.
async fn drained(service: &Service) {
    loop {
        let fewer = service.registry.fewer.notified();
        tokio::pin!(fewer);
        // Listen before the check, or an end in between would be missed.
        fewer.as_mut().enable();
        if service.registry.is_idle() {
            return;
        }
        fewer.await;
    }
}

/// The action that a signal asks for.
enum SignalAction {
    Stop,
    Reload,
}

/// The signals that the service handles.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn new() -> Result<Self, Error> {
        let listen = |kind| {
            signal(kind).map_err(|error| {
                Error::new(ErrorKind::Unsupported, format!("signals: {error}"))
                    .with_next_step("run the service in a tokio runtime with I/O enabled")
            })
        };
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> SignalAction {
        tokio::select! {
            _ = self.terminate.recv() => SignalAction::Stop,
            _ = self.interrupt.recv() => SignalAction::Stop,
            _ = self.hang_up.recv() => SignalAction::Reload,
        }
    }

    async fn stop(&mut self) {
        while let SignalAction::Reload = self.next().await {}
    }
}
