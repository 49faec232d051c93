//! Several quorums over shared nodes, on links that lose, delay and repeat messages.

mod cases;
mod gathering;
mod histories;
mod lingers;
mod tells;
mod tokens;
mod turns;
mod world;
