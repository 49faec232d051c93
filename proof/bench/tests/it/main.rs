//! The measurement of one store as people run it.

#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "tests wait and print")]

mod one_store;
