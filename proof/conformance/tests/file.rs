//! The rules against the file backend, in real folders and real time.

mod harnesses;

fn main() {
    latchwork_conformance::main("file", harnesses::File);
}
