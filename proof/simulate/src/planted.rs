//! Bugs that can be planted into a run, each in what surrounds the engine: a store, a network, a
//! clock. The simulation has to find each.

macro_rules! planted {
    ($($(#[doc = $doc:literal])* $name:ident = $word:literal,)*) => {
        /// A bug that a run can have.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Planted {
            $($(#[doc = $doc])* $name,)*
        }

        impl Planted {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Returns its name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }
        }
    };
}

planted! {
    /// A release ends the claim of any holder of the key.
    ReleaseFreesAnybody = "release-frees-anybody",
    /// A renewal is answered and not written.
    RenewalsAreNotWritten = "renewals-are-not-written",
    /// All grants of a key have the same token.
    TokensStandStill = "tokens-stand-still",
    /// Tokens of a server that has restarted begin again.
    TokensBeginAgain = "tokens-begin-again",
    /// Readers are admitted beside a writer.
    ReadersBesideAWriter = "readers-beside-a-writer",
    /// A semaphore admits one permit more than it has.
    OnePermitTooMany = "one-permit-too-many",
    /// The server forgets a claim when half of its ttl is over.
    TheServerForgetsEarly = "the-server-forgets-early",
    /// A claim is granted although it is blocked for another moment.
    GrantedAMomentEarly = "granted-a-moment-early",
    /// A try that does not wait leaves a place in the queue.
    ATryLeavesAPlace = "a-try-leaves-a-place",
    /// A waiter that withdraws keeps its place until its ttl is over.
    WithdrawalsAreIgnored = "withdrawals-are-ignored",
    /// No waiter is woken.
    NobodyIsWoken = "nobody-is-woken",
    /// A release is answered and not carried out.
    ReleasesAreNotCarriedOut = "releases-are-not-carried-out",
    /// A server without its data grants at once.
    NoQuarantine = "no-quarantine",
    /// All mutexes are one.
    KeysCollide = "keys-collide",
    /// A try may be answered with the grant of an earlier one.
    OldAnswers = "old-answers",
    /// The boot clock of a machine does not run while its processes are stopped, and nothing shows it.
    TheClockSleeps = "the-clock-sleeps",
    /// The clocks of the machines are slow by a twentieth.
    ClocksAreSlow = "clocks-are-slow",
    /// Timers are three seconds late.
    TimersAreLate = "timers-are-late",
    /// Every third background task is forgotten.
    TasksAreForgotten = "tasks-are-forgotten",
    /// A server takes what it should send to another: two votes are one.
    OneServerVotesTwice = "one-server-votes-twice",
}
