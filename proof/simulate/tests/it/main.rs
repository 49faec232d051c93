//! Trials of the simulation: seeds pass, runs repeat, and planted bugs are found.

mod planted;
mod seeds;
