//! Tells systemd how the service is doing; does nothing if systemd did not start it.

use std::sync::Arc;

use sd_notify::NotifyState;

use crate::domain::service::Service;
use crate::time::{pause, spawn};

/// The service answers requests.
pub(super) fn ready(addresses: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(addresses)]);
}

/// The service stops.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Tells at half of the interval that systemd asks for that the service lives: that the loop turns which ends
/// holds, and that the threads run which renew leases. If one of them hangs, systemd hears nothing.
pub(super) fn keep_alive(service: &Arc<Service>) {
    let Some(limit) = sd_notify::watchdog_enabled() else { return };
    let service = service.clone();
    spawn(async move {
        loop {
            service.turn().await;
            tell(&[NotifyState::Watchdog]);
            pause(limit / 2).await;
        }
    });
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "systemd was not told");
    }
}
