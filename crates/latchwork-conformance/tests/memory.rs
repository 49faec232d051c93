//! The rules against the memory backend.

#[allow(dead_code, reason = "each test uses its own")]
mod harnesses;

fn main() {
    latchwork_conformance::main("memory", harnesses::Memory);
}
