//! The demo as people run it.

#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "tests wait and print")]

mod demo;
