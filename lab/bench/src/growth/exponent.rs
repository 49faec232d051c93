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

/// The slope of the logarithm of the cost over that of the size, by least squares. `None` where there are no two sizes
/// with a cost above zero: no power fits that.
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
    &points[(points.len() / 2).min(points.len().saturating_sub(2))..]
}

/// The exponent that n log n, or log n, has over the same sizes.
pub(crate) fn limit(points: &[Point], of: Of) -> Option<f64> {
    // One log n of a single one is not nothing.
    let log = |size: f64| 1.0 + size.ln();
    let cost = |size: f64| if of == Of::All { size * log(size) } else { log(size) };
    exponent(&points.iter().map(|(size, _)| (*size, cost(*size))).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(cost: impl Fn(f64) -> f64) -> Vec<Point> {
        [1.0, 10.0, 100.0, 1_000.0, 10_000.0].map(|size| (size, cost(size))).into()
    }

    fn close(seen: Option<f64>, wanted: f64) {
        let seen = seen.expect("an exponent");
        assert!((seen - wanted).abs() < 1e-9, "{seen} instead of {wanted}");
    }

    #[test]
    fn the_exponent_is_that_of_least_squares() {
        for power in [-0.5, 0.0, 1.0, 1.5] {
            close(exponent(&points(|n| 7.0 * n.powf(power))), power);
        }
        // By hand: the logarithms to base ten are (0, 0), (1, 1), (2, 1).
        close(exponent(&[(1.0, 1.0), (10.0, 10.0), (100.0, 10.0)]), 0.5);
        // What has no logarithm is left out, not taken for a small cost.
        close(exponent(&[(1.0, -4.0), (10.0, 1.0), (100.0, 10.0)]), 1.0);
        assert_eq!((exponent(&[]), exponent(&[(10.0, 3.0), (10.0, 4.0)])), (None, None));
    }

    #[test]
    fn a_cost_that_turns_quadratic_shows_in_the_upper_half() {
        let turning = points(|n| 1_000.0 * n + n * n);
        let (all, upper) = (exponent(&turning).unwrap(), exponent(upper_half(&turning)).unwrap());
        let most = limit(upper_half(&turning), Of::All).unwrap();
        assert!(upper > all && upper > most + NOISE, "{upper} of all {all}, limit {most}");
        let costs = points(|n| 3.0 * n * (1.0 + n.ln()));
        close(limit(&costs, Of::All), exponent(&costs).unwrap());
        close(limit(&costs, Of::All), 1.0 + limit(&costs, Of::Each).unwrap());
        assert_eq!([5, 3, 1, 0].map(|count| upper_half(&costs[..count]).len()), [3, 2, 1, 0]);
    }
}
