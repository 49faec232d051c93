//! The rules against the memory backend.

mod harnesses;

fn main() {
    latchwork_conformance::main("memory", harnesses::Memory);
}
