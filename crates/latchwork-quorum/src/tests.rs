//! Several quorums over shared nodes, on links that lose, delay and repeat messages.

mod adopted;
mod cases;
mod gathering;
mod histories;
mod lingers;
mod node_order;
mod quarantines;
mod releases;
mod splits;
mod tells;
mod tokens;
mod world;
