//! A connection is moved by those that wait for its answers, and never depends on one of them.

mod echo;
mod ends;
mod foreign;
mod readers;
