//! Notifies systemd of the state of the service; does nothing if systemd did not start it.

use std::sync::Arc;

use sd_notify::NotifyState;

use crate::domain::service::Service;
use crate::time::{pause, spawn};

/// The service answers requests.
pub(super) fn ready(addresses: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(addresses)]);
}

/// The service stops.
pub(super) fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Notifies systemd, at half of the interval that it asks for, that the service works: that the loop that ends holds
/// turns, and that the threads that renew leases run. If one of them hangs, systemd is not notified.
pub(super) fn keep_alive(service: &Arc<Service>) {
    let Some(limit) = sd_notify::watchdog_enabled() else { return };
    let service = service.clone();
    spawn(async move {
        loop {
            service.turn().await;
            notify(&[NotifyState::Watchdog]);
            pause(limit / 2).await;
        }
    });
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "systemd was not told");
    }
}
