//! The majority of five memories keeps the contract, and so it does with two of them silent.

mod distant;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use latchwork_conformance::{Client, Expected, Fault, Harness, Store, Time, run, trials};
use latchwork_quorum::Quorum;
use latchwork_store::{Backend, Io, MemoryBackend, Verb};

use self::distant::Distant;

/// `Quorum` over five memories, on a paused clock.
struct FiveMemories {
    /// How many of them never answer.
    silent: usize,
}

impl Harness for FiveMemories {
    fn expected(&self) -> Expected {
        Expected::OF_A_MAJORITY
    }

    fn time(&self) -> Time {
        Time::Paused
    }

    fn fresh<'a>(&'a self, io: &'a Io) -> Verb<'a, Store> {
        let silent = self.silent;
        let nodes: [_; 5] = std::array::from_fn(|_| MemoryBackend::new(io.clone()));
        Box::pin(async move {
            Store::new(move |io| {
                // A majority can be disturbed; the others are too few, and go on.
                let fault = Arc::new(AtomicU8::new(Fault::None as u8));
                let gone = Arc::new(AtomicU8::new(Fault::LoseRequests as u8));
                let open = |(n, node): (usize, &Arc<MemoryBackend>)| {
                    let fault = match n {
                        _ if n >= 5 - silent => gone.clone(),
                        0..3 => fault.clone(),
                        _ => Arc::default(),
                    };
                    let turns = AtomicU8::new(n as u8);
                    Arc::new(Distant { node: node.beside(), fault, turns }) as Arc<dyn Backend>
                };
                let nodes = nodes.iter().enumerate().map(open).collect();
                let quorum = Quorum::new(nodes, io).expect("five nodes make a quorum");
                let set = move |to: Fault| fault.store(to as u8, Ordering::SeqCst);
                std::future::ready(Client::new(quorum).on_fault(set))
            })
        })
    }
}

fn main() {
    let mut all = trials("quorum", FiveMemories { silent: 0 });
    all.extend(trials("quorum_of_three", FiveMemories { silent: 2 }));
    run(all)
}
