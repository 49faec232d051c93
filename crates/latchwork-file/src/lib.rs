#![doc = include_str!("../README.md")]

#[cfg(target_os = "linux")]
mod approach;
#[cfg(target_os = "linux")]
mod backend;
#[cfg(target_os = "linux")]
mod beneath;
#[cfg(target_os = "linux")]
mod boot;
#[cfg(target_os = "linux")]
mod closing;
#[cfg(target_os = "linux")]
mod codec;
#[cfg(target_os = "linux")]
mod delivery;
#[cfg(target_os = "linux")]
mod dir;
#[cfg(target_os = "linux")]
mod disk;
#[cfg(target_os = "linux")]
mod doctor;
#[cfg(target_os = "linux")]
mod failure;
#[cfg(target_os = "linux")]
mod fs_check;
#[cfg(target_os = "linux")]
mod inspect;
#[cfg(target_os = "linux")]
mod kept;
#[cfg(target_os = "linux")]
mod layout;
#[cfg(target_os = "linux")]
mod observe;
#[cfg(target_os = "linux")]
mod owner;
#[cfg(target_os = "linux")]
mod pokes;
#[cfg(target_os = "linux")]
mod record_file;
#[cfg(target_os = "linux")]
mod renew;
#[cfg(target_os = "linux")]
mod reserve;
#[cfg(target_os = "linux")]
mod session;
#[cfg(target_os = "linux")]
mod shared;
#[cfg(target_os = "linux")]
mod stripe;
#[cfg(not(target_os = "linux"))]
mod unsupported;
#[cfg(target_os = "linux")]
mod unsynced;
#[cfg(target_os = "linux")]
mod wakeup;

#[cfg(target_os = "linux")]
pub use backend::FileBackend;
#[cfg(target_os = "linux")]
pub use doctor::doctor;
#[cfg(not(target_os = "linux"))]
pub use unsupported::{FileBackend, doctor};

#[cfg(test)]
#[global_allocator]
static METERED: latchwork_services::hostile::Metered = latchwork_services::hostile::Metered;
