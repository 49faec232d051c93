//! The measurement of one store, and the curves of how cost grows, as people run them.

#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "tests wait and print")]

mod growth;
mod one_store;
