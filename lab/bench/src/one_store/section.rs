//! What was measured of each hold, and what follows from all of them.

use std::time::Duration;

/// One hold, stamped on the boot clock of the machine, which all its processes share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) process: u32,
    pub(crate) token: u64,
    /// When it was had, in nanoseconds.
    pub(crate) from: u64,
    /// Right before it was released.
    pub(crate) to: u64,
}

/// What a process made of the lock.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Holds {
    pub(crate) sections: Vec<Section>,
    /// Holds that were lost, so that the process knew before it was done that it had none.
    pub(crate) lost: u64,
}

/// What came of a workload.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Measured {
    /// Acquires with their releases.
    pub(crate) pairs: u64,
    /// How often the lock changed its process; none where nobody else wants it.
    pub(crate) handovers: Option<u64>,
    /// For how long was measured.
    pub(crate) length: Duration,
    /// The times of the workload, in nanoseconds, sorted.
    pub(crate) times: Vec<u64>,
    /// Jain's index of the processes' shares: 1 if all had the same.
    pub(crate) fairness: Option<f64>,
    /// Processes that never had it.
    pub(crate) starved: Option<u32>,
    /// Holds that began before the one before them had ended: the lock was broken.
    pub(crate) overlaps: u64,
    /// Holds that were lost, which their holders knew in time: no pairs, and no overlaps.
    pub(crate) lost: u64,
}

impl Measured {
    /// Of cycles of a lock that nobody else wanted.
    pub(crate) fn of_cycles(mut times: Vec<u64>, length: Duration) -> Self {
        times.sort_unstable();
        Self {
            pairs: times.len() as u64,
            handovers: None,
            length,
            times,
            fairness: None,
            starved: None,
            overlaps: 0,
            lost: 0,
        }
    }

    /// Of a lock that several processes wanted.
    pub(crate) fn of_holds(holds: Holds, processes: u32, length: Duration) -> Self {
        let Holds { mut sections, lost } = holds;
        sections.sort_unstable_by_key(|section| section.token);
        let (mut handovers, mut overlaps, mut times) = (0, 0, Vec::new());
        for pair in sections.windows(2) {
            overlaps += u64::from(pair[1].from < pair[0].to);
            if pair[0].process != pair[1].process {
                handovers += 1;
                times.push(pair[1].from.saturating_sub(pair[0].to));
            }
        }
        times.sort_unstable();
        let shares: Vec<u64> = (0..processes)
            .map(|process| sections.iter().filter(|s| s.process == process).count() as u64)
            .collect();
        Self {
            pairs: sections.len() as u64,
            handovers: Some(handovers),
            length,
            times,
            fairness: Some(jain(&shares)),
            starved: Some(shares.iter().filter(|share| **share == 0).count() as u32),
            overlaps,
            lost,
        }
    }

    /// The time that this part of all did not pass.
    pub(crate) fn quantile(&self, part: f64) -> Option<Duration> {
        let last = self.times.len().checked_sub(1)?;
        Some(Duration::from_nanos(self.times[(last as f64 * part).round() as usize]))
    }

    /// So many in a second.
    pub(crate) fn rate(&self, number: u64) -> f64 {
        number as f64 / self.length.as_secs_f64()
    }
}

/// Jain, Chiu, Hawe 1984.
fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|share| *share as f64).sum();
    let squares: f64 = shares.iter().map(|share| (*share as f64).powi(2)).sum();
    if squares == 0.0 { 0.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(process: u32, token: u64, from: u64, to: u64) -> Section {
        Section { process, token, from, to }
    }

    #[test]
    fn changes_of_owner_are_counted_and_not_pairs() {
        let sections = vec![
            section(0, 1, 0, 10),
            section(0, 2, 12, 20),
            section(1, 4, 36, 40),
            section(0, 3, 25, 30),
        ];
        let holds = Holds { sections, lost: 2 };
        let measured = Measured::of_holds(holds, 3, Duration::from_secs(2));
        assert_eq!(measured.lost, 2);
        assert_eq!((measured.pairs, measured.handovers), (4, Some(1)));
        assert_eq!(measured.times, [6]);
        assert_eq!((measured.starved, measured.overlaps), (Some(1), 0));
        assert_eq!(measured.rate(measured.pairs), 2.0);
        assert_eq!(measured.quantile(0.5), Some(Duration::from_nanos(6)));
    }

    #[test]
    fn overlapping_sections_are_counted() {
        let sections = vec![section(0, 1, 0, 10), section(1, 2, 9, 20)];
        let holds = Holds { sections, lost: 0 };
        assert_eq!(Measured::of_holds(holds, 2, Duration::from_secs(1)).overlaps, 1);
    }

    #[test]
    fn equal_shares_are_fair() {
        assert_eq!(jain(&[5, 5, 5, 5]), 1.0);
        assert_eq!(jain(&[20, 0, 0, 0]), 0.25);
        assert_eq!(jain(&[0, 0]), 0.0);
    }

    #[test]
    fn nothing_measured_has_no_times() {
        let measured = Measured::of_cycles(Vec::new(), Duration::from_secs(1));
        assert_eq!(measured.quantile(0.5), None);
    }
}
