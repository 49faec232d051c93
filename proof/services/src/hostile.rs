//! Bytes that no honest peer sends, for every parser that reads bytes from outside.
//!
//! [`survives`] feeds a parser with noise, and with changed copies of good input: cut, doubled,
//! spliced, with flipped bits and with lengths that lie. A parser passes if it returns each time,
//! without a panic, and if it never holds more memory than a small multiple of what it was given.
//! The parser may answer an error or a value; which of the two is for the caller to check.
//!
//! 10,000 inputs by default; `LATCHWORK_INPUTS=1000000` asks for a million. The inputs of a run are
//! drawn from a seed that a failure prints, and `LATCHWORK_SEED` repeats them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

const INPUTS: u64 = 10_000;
const LONGEST: usize = 512;
/// What a parser may hold whatever it is given: error texts, small tables.
const MEMORY_AT_LEAST: usize = 64 * 1024;
/// What a parser may hold for each byte that it is given.
const MEMORY_PER_BYTE: usize = 64;

/// Counts what each thread has allocated, for [`survives`] and [`held`].
///
/// A test binary declares it: `#[global_allocator] static METERED: Metered = Metered;`
#[derive(Debug)]
pub struct Metered;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

/// What all threads have allocated and not freed.
static ALL: AtomicUsize = AtomicUsize::new(0);

fn took(bytes: usize) {
    ALL.fetch_add(bytes, Ordering::Relaxed);
    // A thread that is ending has no counters any more.
    let _ = HELD.try_with(|held| {
        held.set(held.get().wrapping_add(bytes));
        let _ = PEAK.try_with(|peak| {
            let now = held.get();
            // Memory of another thread that was freed here makes the count wrap.
            if now < usize::MAX / 2 && now > peak.get() {
                peak.set(now);
            }
        });
    });
}

fn gave_back(bytes: usize) {
    ALL.fetch_sub(bytes, Ordering::Relaxed);
    let _ = HELD.try_with(|held| held.set(held.get().wrapping_sub(bytes)));
}

#[expect(unsafe_code, reason = "an allocator is unsafe by its trait")]
// SAFETY: every call is passed to the system's allocator unchanged; the counters allocate nothing.
unsafe impl GlobalAlloc for Metered {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        gave_back(layout.size());
        // SAFETY: as above; `at` came from `System`.
        unsafe { System.dealloc(at, layout) }
    }
}

/// The bytes that this thread has allocated and not freed: only differences count, modulo 2^64.
pub fn held() -> usize {
    HELD.with(Cell::get)
}

/// The bytes that all threads have allocated and not freed.
pub fn held_by_all() -> usize {
    ALL.load(Ordering::Relaxed)
}

/// Feeds `parse` with hostile inputs that are made from `samples` of good input, and from nothing.
///
/// # Panics
///
/// Panics if `parse` panics or holds too much memory; the message has the input, as hexadecimal
/// digits, and the seed. Panics without [`Metered`], for then nothing would be measured.
pub fn survives(parser: &str, samples: &[&[u8]], mut parse: impl FnMut(&[u8])) {
    let seed = seed();
    let inputs = number("LATCHWORK_INPUTS").unwrap_or(INPUTS);
    let (_, metered) = peak_of(|| drop(std::hint::black_box(vec![0u8; 100])));
    assert!(metered >= 100, "declare the global allocator `Metered` in this test binary");
    let mut random = Random(seed);
    for sample in samples {
        check(parser, seed, sample, &mut parse);
    }
    for _ in 0..inputs {
        let input = random.input(samples);
        check(parser, seed, &input, &mut parse);
    }
}

/// The seed that `LATCHWORK_SEED` names, or one of now.
pub fn seed() -> u64 {
    number("LATCHWORK_SEED").unwrap_or_else(|| {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
    })
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

fn check(parser: &str, seed: u64, input: &[u8], parse: &mut impl FnMut(&[u8])) {
    let (done, peak) = peak_of(|| catch_unwind(AssertUnwindSafe(|| parse(input))));
    let told = || {
        let digits: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{parser}: LATCHWORK_SEED={seed}, input {digits}")
    };
    assert!(done.is_ok(), "panicked. {}", told());
    let allowed = MEMORY_AT_LEAST + MEMORY_PER_BYTE * input.len();
    assert!(peak <= allowed, "held {peak} bytes of memory, {allowed} allowed. {}", told());
}

/// What `work` returns, and how much memory this thread held at most meanwhile, beyond before.
fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    HELD.with(|held| held.set(0));
    PEAK.with(|peak| peak.set(0));
    let done = work();
    (done, PEAK.with(Cell::get))
}

/// Numbers from a seed, by the generator known as splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    fn noise(&mut self, longest: usize) -> Vec<u8> {
        let length = self.below(longest + 1);
        (0..length).map(|_| self.next() as u8).collect()
    }

    fn input(&mut self, samples: &[&[u8]]) -> Vec<u8> {
        if samples.is_empty() || self.below(8) == 0 {
            return self.noise(LONGEST);
        }
        let mut input = samples[self.below(samples.len())].to_vec();
        for _ in 0..=self.below(4) {
            self.change(&mut input, samples);
        }
        input
    }

    fn change(&mut self, input: &mut Vec<u8>, samples: &[&[u8]]) {
        let at = self.below(input.len() + 1);
        match self.below(8) {
            0 => input.truncate(at),
            1 => drop(input.drain(..at)),
            2 => {
                let twice = input[at..].to_vec();
                input.extend(twice);
            }
            3 => {
                let noise = self.noise(16);
                input.splice(at..at, noise);
            }
            4 => {
                let other = samples[self.below(samples.len())];
                let from = self.below(other.len() + 1);
                input.truncate(at);
                input.extend(&other[from..]);
            }
            // A length, a count or a number that lies: all ones, the largest, the smallest, zero.
            5 => {
                const LIES: [&[u8]; 6] = [
                    &[0xff; 4],
                    &[0x7f, 0xff, 0xff, 0xff],
                    &[0x80, 0, 0, 0],
                    &[0; 4],
                    &[0xff; 8],
                    b"9223372036854775808",
                ];
                let lie = LIES[self.below(LIES.len())];
                let until = (at + lie.len()).min(input.len());
                input.splice(at..until, lie.iter().copied());
            }
            6 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte = self.next() as u8;
                }
            }
            _ => {
                let bit = 1 << self.below(8);
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= bit;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static METERED: Metered = Metered;

    fn refused(parse: impl FnMut(&[u8])) -> String {
        let refused = catch_unwind(AssertUnwindSafe(|| survives("broken", &[b"len:0004"], parse)));
        *refused.expect_err("the parser is broken").downcast::<String>().expect("a message")
    }

    #[test]
    fn a_careful_parser_survives() {
        survives("careful", &[b"len:0004"], |input| {
            let _ = std::str::from_utf8(input).map(|text| text.split(':').count());
        });
    }

    #[test]
    fn fuzzing_reports_a_panic_and_its_input() {
        let said = refused(|input| assert!(input.first() != Some(&0xff), "a byte too high"));
        assert!(said.contains("panicked") && said.contains("input ff"), "{said}");
    }

    #[test]
    fn fuzzing_finds_a_trusted_length() {
        let said = refused(|input| {
            if let Some(Ok(length)) = input.get(..4).map(<[u8; 4]>::try_from) {
                let length = u32::from_be_bytes(length) as usize;
                drop(std::hint::black_box(Vec::<u8>::with_capacity(length)));
            }
        });
        assert!(said.contains("bytes of memory"), "{said}");
    }
}
