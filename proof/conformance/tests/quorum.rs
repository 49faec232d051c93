//! The rules against the majority of five memories, and of five of which two are silent.

mod harnesses;

use harnesses::FiveMemories;
use libtest_mimic::{Arguments, run};

fn main() {
    let mut trials = latchwork_conformance::trials("quorum", FiveMemories { silent: 0 });
    trials.extend(latchwork_conformance::trials("quorum_of_three", FiveMemories { silent: 2 }));
    run(&Arguments::from_args(), trials).exit()
}
