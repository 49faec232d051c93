//! How steeply a cost grows: the exponent of the power of the size that fits it best.

/// A size, and the cost at that size.
pub(crate) type Point = (f64, f64);

/// What a cost is the cost of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    /// All of so many together: more than n log n is too steep.
    All,
    /// One of so many: more than log n is too steep.
    Each,
}

/// How much steeper than n log n a cost may seem before it counts as steeper: that is noise.
pub(crate) const NOISE: f64 = 0.1;

/// The slope of the logarithm of the cost over that of the size, by least squares. `None` where there are
/// no two sizes with a cost above zero: no power fits that.
pub(crate) fn exponent(points: &[Point]) -> Option<f64> {
    let has_logarithm = |(size, cost): &&Point| *size > 0.0 && *cost > 0.0 && cost.is_finite();
    let log = |(size, cost): &Point| (size.ln(), cost.ln());
    slope(&points.iter().filter(has_logarithm).map(log).collect::<Vec<_>>())
}

/// The slope of the line that fits best, by least squares; `None` where all points are at one place.
pub(crate) fn slope(points: &[Point]) -> Option<f64> {
    let count = points.len().max(1) as f64;
    let mean = |of: fn(&Point) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let spread: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    let both: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    (spread > 0.0).then(|| both / spread)
}

/// The larger sizes: half of them, but two at least. What is fixed weighs less there.
pub(crate) fn upper_half(points: &[Point]) -> &[Point] {
    let from = (points.len() / 2).min(points.len().saturating_sub(2));
    &points[from..]
}

/// The exponent that n log n, or log n, has over the same sizes.
pub(crate) fn limit(points: &[Point], of: Of) -> Option<f64> {
    // One log n of a single one is not nothing.
    let log = |size: f64| 1.0 + size.ln();
    let cost = |size: f64| match of {
        Of::All => size * log(size),
        Of::Each => log(size),
    };
    exponent(&points.iter().map(|(size, _)| (*size, cost(*size))).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [f64; 5] = [1.0, 10.0, 100.0, 1_000.0, 10_000.0];

    fn points(cost: impl Fn(f64) -> f64) -> Vec<Point> {
        SIZES.iter().map(|size| (*size, cost(*size))).collect()
    }

    fn close(seen: Option<f64>, wanted: f64) {
        let seen = seen.expect("an exponent");
        assert!((seen - wanted).abs() < 1e-9, "{seen} instead of {wanted}");
    }

    #[test]
    fn the_exponent_of_a_power_is_its_power() {
        for power in [-0.5, 0.0, 0.5, 1.0, 1.5, 2.0] {
            close(exponent(&points(|n| 7.0 * n.powf(power))), power);
        }
    }

    #[test]
    fn the_exponent_is_that_of_least_squares() {
        // By hand: the logarithms to base ten are (0, 0), (1, 1), (2, 1).
        close(exponent(&[(1.0, 1.0), (10.0, 10.0), (100.0, 10.0)]), 0.5);
    }

    #[test]
    fn a_time_of_two_round_trips_has_the_slope_two() {
        let points = [0.0, 1_000.0, 2_000.0, 5_000.0].map(|trip| (trip, 300.0 + 2.0 * trip));
        close(slope(&points), 2.0);
        assert_eq!(slope(&points[..1]), None);
    }

    #[test]
    fn a_cost_that_turns_quadratic_shows_in_the_upper_half() {
        let turning = points(|n| 1_000.0 * n + n * n);
        let (all, upper) = (exponent(&turning).unwrap(), exponent(upper_half(&turning)).unwrap());
        let most = limit(upper_half(&turning), Of::All).unwrap();
        assert!(upper > all && upper > most + NOISE, "{upper} of all {all}, limit {most}");
        let linear = points(|n| 1_000.0 * n + 50_000.0);
        assert!(exponent(upper_half(&linear)).unwrap() < most);
    }

    #[test]
    fn n_log_n_is_its_own_limit() {
        let costs = points(|n| 3.0 * n * (1.0 + n.ln()));
        close(limit(&costs, Of::All), exponent(&costs).unwrap());
        let each = limit(&costs, Of::Each).unwrap();
        close(limit(&costs, Of::All), 1.0 + each);
        assert!(each > 0.0 && each < 0.5, "{each}");
    }

    #[test]
    fn the_upper_half_has_two_sizes_at_least() {
        let sizes = |count: usize| {
            let points = points(|n| n);
            upper_half(&points[..count]).iter().map(|point| point.0).collect::<Vec<_>>()
        };
        assert_eq!(sizes(5), [100.0, 1_000.0, 10_000.0]);
        assert_eq!(sizes(4), [100.0, 1_000.0]);
        assert_eq!(sizes(3), [10.0, 100.0]);
        assert_eq!(sizes(2), [1.0, 10.0]);
        assert_eq!(sizes(1), [1.0]);
        assert_eq!(sizes(0), [0.0; 0]);
    }

    #[test]
    fn a_cost_of_nothing_has_no_exponent() {
        assert_eq!(exponent(&[]), None);
        assert_eq!(exponent(&[(10.0, 3.0)]), None);
        assert_eq!(exponent(&[(10.0, 3.0), (10.0, 4.0)]), None);
        assert_eq!(exponent(&[(1.0, 0.0), (10.0, f64::NAN), (100.0, 5.0)]), None);
        // What has no logarithm is left out, not taken for a small cost.
        close(exponent(&[(1.0, -4.0), (10.0, 1.0), (100.0, 10.0)]), 1.0);
    }
}
