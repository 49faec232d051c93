//! The rules against the file backend, in real folders and real time.

#[allow(dead_code, reason = "each test uses its own")]
mod harnesses;

fn main() {
    latchwork_conformance::main("file", harnesses::File);
}
