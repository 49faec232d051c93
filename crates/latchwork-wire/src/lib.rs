//! What moves bytes and wakes tasks in the stores of [Latchwork](https://docs.rs/latchwork).
//!
//! **Its API may change in any release.** Programs that take locks need only `latchwork`. A store needs only
//! `latchwork-store`, which has the contract, and may use this crate too: it has no rule of the contract.
//!
//! # From a caller to a server and back
//!
//! ```text
//!  tokio runtime         foreign loop            blocked thread         background work
//!  (a task)              (Python's asyncio)      (block_on)             (renewals)
//!       │                     │                       │                      │
//!       └───── EventLoop ─────┘                     Visit                    Io
//!                  │                                  │                      │
//!   ┌──────────────┴──────────────────────────────────┴──────────────────────┴────────┐
//!   │ combine      many requests of one loop go out as one command                    │
//!   ├─────────────────────────────────────────────────────────────────────────────────┤
//!   │ Drive        the future of the store's protocol, polled by its callers          │
//!   │                                                                                 │
//!   │   send       on the caller's thread                                             │
//!   │   caller     answers are read where the callers wait: loop, or bell of a thread │
//!   │   background the rest is read on the Io, and what callers leave unread for 20 ms │
//!   │                                                                                 │
//!   │ mailbox      what the server pushes, for one claim that waits                   │
//!   │ finish       a task that no caller waits for, polled by who reads its answer    │
//!   ├─────────────────────────────────────────────────────────────────────────────────┤
//!   │ Socket       bytes; belongs to no reactor      tls     certificates of a store  │
//!   └────────────────────────────────────────┬────────────────────────────────────────┘
//!                                          dial      the addresses of a server race
//!                                            │
//!                       address, Source      │       where the server is, who logs in
//!                                            ▼
//!                                         server
//! ```
//!
//! # One connection, many readers
//!
//! A protocol library gives a future that reads and writes. If one thread alone polled it, each answer would wake
//! that thread, and that thread would wake the caller: one hop too many. So the callers share the future
//! ([`Drive`]), and it reads from a [`Socket`] that belongs to no reactor. The thread that sends a request writes the
//! bytes itself. The answer is read on the **caller side**: on the loop on which the caller waits, or by the caller's own blocked
//! thread. Everything else is read on the **background side**: on the [`Io`](latchwork_store::Io) of the backend.
//!
//! What keeps a hold alive never depends on a caller's loop. If that loop is blocked or ends, the background side reads what
//! it leaves unread.
//!
//! # Its parts
//!
//! | part | job |
//! | --- | --- |
//! | [`Drive`], [`Socket`] | one connection, moved by the threads that wait for its answers |
//! | [`resolve`], [`dial`](fn@dial), [`dial_any`], [`race`], [`is_silent`] | look names up, connect to the first address that answers, and remember those that do not |
//! | [`first_to_answer`] | gets past an address that takes connections and says nothing on them |
//! | [`EventLoop`], [`ForeignLoop`] | the loop that polls a caller: of tokio, or one that lends its thread |
//! | [`Visit`] | the bell at which a blocked thread listens |
//! | [`finish`] | runs a task to its end that no caller waits for |
//! | [`combine`] | one request to a server for many callers |
//! | [`mailbox`] | the messages of a server for one claim that waits |
//! | [`address`], [`Source`] | hosts, ports, logins, and where they are read again |
//! | `tls` (feature `tls`) | TLS by the files that an address names |
//! | [`program`] | runs a program for what it prints, for a bounded time |
//! | [`CloseOnFork`], [`system`] | this process: its forks, its name, its limits |
//!
//! `Source` is shown by `latchwork` as its own, so its API changes only as that of `latchwork` does.

pub mod address;
mod answering;
#[cfg(target_os = "linux")]
mod close_on_fork;
pub mod combine;
mod connection;
mod dial;
mod event_loop;
mod late;
pub mod mailbox;
mod names;
mod process;
pub mod program;
mod silence;
mod source;
pub mod system;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(feature = "tls")]
pub mod tls;
#[cfg(target_os = "linux")]
mod visit;

pub use answering::{Reached, first_to_answer};
#[cfg(target_os = "linux")]
pub use close_on_fork::CloseOnFork;
pub use connection::{Drive, Expectation, Socket};
pub use dial::{dial, dial_any, is_silent, note_unanswered, race, resolve, resolve_any};
pub use event_loop::{Entered, EventLoop, ForeignLoop, LoopId, Watched, yield_now};
pub use late::finish;
pub use process::this_process;
pub use source::{Source, Sourced};
#[cfg(target_os = "linux")]
pub use visit::Visit;
