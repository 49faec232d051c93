//! Tells systemd how the service is doing; does nothing if systemd did not start it.

use sd_notify::NotifyState;

use crate::time::{pause, spawn};

/// The service answers requests.
pub(super) fn ready(addresses: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(addresses)]);
}

/// The service stops.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Tells at half of the interval that systemd asks for that the service lives.
pub(super) fn keep_alive() {
    let Some(limit) = sd_notify::watchdog_enabled() else { return };
    spawn(async move {
        loop {
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
