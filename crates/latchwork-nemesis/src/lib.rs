//! Breaks things while worker processes lock, and judges what they were told.
#![cfg(target_os = "linux")]

pub mod checks;
mod crew;
pub mod event;
pub mod faults;
mod fields;
pub mod flags;
pub mod history;
mod log;
pub mod luck;
mod pause;
pub mod resource;
pub mod run;
pub mod schedule;
pub mod slow;
#[cfg(test)]
mod story;
mod sweep;
mod witness;
pub mod worker;

pub use log::Log;
