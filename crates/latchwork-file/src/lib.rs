#![doc = include_str!("../README.md")]

#[cfg(target_os = "linux")]
mod backend;
#[cfg(target_os = "linux")]
mod disk;
#[cfg(target_os = "linux")]
mod doctor;
#[cfg(target_os = "linux")]
mod protocol;
#[cfg(target_os = "linux")]
mod records;
#[cfg(any(test, not(target_os = "linux")))]
mod unsupported;

#[cfg(target_os = "linux")]
pub use backend::FileBackend;
#[cfg(target_os = "linux")]
pub use doctor::doctor;
#[cfg(not(target_os = "linux"))]
pub use unsupported::{FileBackend, doctor};

#[cfg(test)]
#[global_allocator]
static METERED: latchwork_services::hostile::Metered = latchwork_services::hostile::Metered;
