//! Estimates chances from counted failures, with upper bounds of 95 %.
//!
//! Failures are counted per episode. The upper bound of a rate is that of a Poisson count (Garwood, Biometrika 28, 1936); without any
//! failure it is 3 / episodes, the rule of three (Hanley and Lippman-Hand, JAMA 249, 1983). Rates too small to count follow an
//! exponential tail: the logarithm of the rate falls linearly with the arena's bytes, the limit of extremes without a heavier tail
//! (Coles, An Introduction to Statistical Modeling of Extreme Values, 2001, chapter 4). It is fitted as a Poisson regression, with the
//! dispersion of the counts.

use super::history::Point;

/// The probability that a bound holds.
pub const CONFIDENCE: f64 = 0.95;
/// The quantile of the normal distribution for [`CONFIDENCE`].
const NORMAL: f64 = 1.645;

/// Returns the upper bound of the mean of a Poisson variable with the observed value `count`.
pub fn upper(count: u64) -> f64 {
    let at_most = |mean: f64| {
        let (mut term, mut sum) = ((-mean).exp(), 0.0);
        for number in 0..=count {
            sum += term;
            term *= mean / (number + 1) as f64;
        }
        sum
    };
    let (mut below, mut above) = (0.0, 10.0 + 2.0 * count as f64);
    for _ in 0..60 {
        let middle = 0.5 * (below + above);
        if at_most(middle) > 1.0 - CONFIDENCE {
            below = middle;
        } else {
            above = middle;
        }
    }
    above
}

/// Returns the chance of at least one failure in `episodes` episodes.
pub fn chance(rate: f64, episodes: f64) -> f64 {
    -(-rate * episodes).exp_m1()
}

/// Returns the rate at which a failure in `episodes` episodes has the given chance.
pub fn rate(chance: f64, episodes: f64) -> f64 {
    -(-chance).ln_1p() / episodes
}

/// Returns the level that the largest of `count` values reaches on average, by the exponential tail of the largest quarter of `values`
/// (Coles, section 4.3). The largest recorded value alone says nothing about larger values.
pub fn level(mut values: Vec<f64>, count: f64) -> f64 {
    values.sort_by(|a, b| b.total_cmp(a));
    let used = (values.len() / 4).max(4).min(values.len().saturating_sub(1));
    let Some(&threshold) = values.get(used).filter(|_| used > 0) else { return 0.0 };
    let scale = values[..used].iter().map(|value| value - threshold).sum::<f64>() / used as f64;
    threshold + scale * (count * used as f64 / values.len() as f64).max(1.0).ln()
}

/// The logarithm of the rate as a line over the arena's bytes.
#[derive(Clone, Copy, Debug)]
pub struct Tail {
    /// Bytes at which the two parameters are uncorrelated.
    centre: f64,
    at_centre: f64,
    slope: f64,
    variance: [f64; 2],
}

/// Largest number of points with failures to which a tail is fitted.
const POINTS: usize = 6;
/// Highest rate of failures in the tail.
const OFTEN: f64 = 0.1;
/// Largest dispersion of counts that agree with a line; Poisson counts have 1.
const AGREES: f64 = 2.0;
/// Least number of points that show whether they lie on a line.
const FEWEST: usize = 3;

impl Tail {
    /// Fits the upper end of points in order of their arenas: the points with failures, and the first without, which counts as half a
    /// failure. Returns `None` if the failures do not decrease.
    pub fn fit(points: &[Point]) -> Option<Self> {
        let last = points.iter().rposition(|point| point.failures > 0)?;
        let counted = |point: &Point| (point.arena as f64, point.failures as f64, point.episodes as f64);
        let mut used: Vec<(f64, f64, f64)> =
            points[..=last].iter().filter(|point| point.failures > 0).map(counted).collect();
        let seldom = used.iter().rposition(|&(_, failures, episodes)| failures > OFTEN * episodes);
        used.drain(..seldom.unwrap_or(0).max(used.len().saturating_sub(POINTS)));
        used.extend(points.get(last + 1).map(counted).map(|(arena, _, episodes)| (arena, 0.5, episodes)));
        // The rate falls faster and faster before the tail begins, and points from there would make the line too flat.
        let mut used = &used[..];
        loop {
            let (tail, dispersion) = Self::line(used)?;
            if dispersion <= AGREES || used.len() <= FEWEST {
                return Some(tail);
            }
            used = &used[1..];
        }
    }

    /// Fits a line to arenas with their failures and episodes. Also returns the dispersion of the failures around it, at least 1.
    fn line(used: &[(f64, f64, f64)]) -> Option<(Self, f64)> {
        if used.len() < 2 {
            return None;
        }
        let unit = (used.last()?.0 - used[0].0).max(1.0);
        let origin = used[0].0;
        // Use Newton's method on the likelihood, in units of the range, starting at a line through the ends.
        let logarithm = |&(_, failures, episodes): &(f64, f64, f64)| ((failures + 0.5) / episodes).ln();
        let (mut a, mut b) = (logarithm(&used[0]), logarithm(used.last()?) - logarithm(&used[0]));
        let mut information = [0.0; 3];
        for _ in 0..100 {
            let (mut gradient, mut hessian) = ([0.0; 2], [0.0; 3]);
            for &(arena, failures, episodes) in used {
                let x = (arena - origin) / unit;
                let mean = episodes * (a + b * x).min(3.0).exp();
                gradient[0] += failures - mean;
                gradient[1] += (failures - mean) * x;
                hessian[0] += mean;
                hessian[1] += mean * x;
                hessian[2] += mean * x * x;
            }
            let determinant = hessian[0] * hessian[2] - hessian[1] * hessian[1];
            if determinant.is_nan() || determinant <= 1e-12 {
                return None;
            }
            let da = (hessian[2] * gradient[0] - hessian[1] * gradient[1]) / determinant;
            let db = (hessian[0] * gradient[1] - hessian[1] * gradient[0]) / determinant;
            a += da.clamp(-2.0, 2.0);
            b += db.clamp(-4.0, 4.0);
            information = hessian;
            if da.abs().max(db.abs()) < 1e-9 {
                break;
            }
        }
        if b.is_nan() || b >= -1e-6 {
            return None;
        }
        let fitted = |x: f64, episodes: f64| episodes * (a + b * x).exp();
        let dispersion: f64 = used
            .iter()
            .map(|&(arena, failures, episodes)| {
                let mean = fitted((arena - origin) / unit, episodes).max(0.05);
                (failures - mean).powi(2) / mean
            })
            .sum::<f64>()
            / (used.len() as f64 - 2.0).max(1.0);
        let centre = information[1] / information[0];
        let spread = information[2] - information[0] * centre * centre;
        let dispersion = dispersion.max(1.0);
        let tail = Self {
            centre: origin + unit * centre,
            at_centre: a + b * centre,
            slope: b / unit,
            variance: [dispersion / information[0], dispersion / spread.max(1e-12) / (unit * unit)],
        };
        Some((tail, dispersion))
    }

    /// Returns the rate in an arena, and its upper bound.
    pub fn rate(&self, arena: usize) -> [f64; 2] {
        let distance = arena as f64 - self.centre;
        let logarithm = self.at_centre + self.slope * distance;
        let deviation = (self.variance[0] + self.variance[1] * distance * distance).sqrt();
        [logarithm, logarithm + NORMAL * deviation].map(|logarithm| logarithm.min(0.0).exp())
    }

    /// Returns the smallest arena of at least `from` bytes, in steps, whose bound is at most `rate`; `None` if there is none up to
    /// `most`.
    pub fn arena(&self, rate: f64, from: usize, step: usize, most: usize) -> Option<usize> {
        (from..=most).step_by(step).find(|&arena| self.rate(arena)[1] <= rate)
    }
}

#[cfg(test)]
mod tests {
    use super::{Point, Tail, chance, rate, upper};

    /// The bounds are from the chi-square distribution: 5.99 / 2, 9.49 / 2, 36.42 / 2.
    #[test]
    fn bounds_are_those_of_the_tables() {
        for (count, bound) in [(0, 2.996), (1, 4.744), (11, 18.208), (100, 118.079)] {
            assert!((upper(count) - bound).abs() < 0.001, "{count}: {}", upper(count));
        }
    }

    /// Quantiles of an exponential distribution: the largest of a thousand is about ln 1000.
    #[test]
    fn the_largest_of_many_is_found_from_few() {
        let values: Vec<f64> = (0..100).map(|number| -((f64::from(number) + 0.5) / 100.0).ln()).collect();
        assert!((super::level(values, 1000.0) - 1000.0_f64.ln()).abs() < 0.4);
        assert_eq!(super::level(vec![7.0; 20], 1e6), 7.0);
    }

    #[test]
    fn chances_and_rates_are_inverse() {
        assert!((chance(rate(0.001, 3000.0), 3000.0) - 0.001).abs() < 1e-12);
        assert!(chance(1e-9, 1000.0) > 0.999e-6);
    }

    /// Counts from a known line reproduce it; the bound lies above it, and rises with the distance.
    #[test]
    fn a_line_is_found_and_extended() {
        let line = |arena: usize| (-2.0 - (arena as f64 - 1000.0) / 50.0_f64).exp();
        let points: Vec<Point> = (0..10)
            .map(|number| {
                let arena = 1000 + number * 40;
                let episodes = 100_000;
                Point {
                    arena,
                    failures: (line(arena) * episodes as f64).round() as u64,
                    episodes,
                    ..Point::default()
                }
            })
            .collect();
        let tail = Tail::fit(&points).unwrap();
        let [found, bound] = tail.rate(1500);
        assert!((found / line(1500)).ln().abs() < 0.2, "{found} {}", line(1500));
        assert!(bound > found && tail.rate(1800)[1] / tail.rate(1800)[0] > bound / found);
        let arena = tail.arena(1e-7, 1000, 16, 1 << 20).unwrap();
        assert!(line(arena) < 1e-7 && line(arena) > 0.5e-8, "{arena}");
        assert!(Tail::fit(&points[..1]).is_none());
    }

    /// The fit omits counts from before the tail, where the rate falls more slowly.
    #[test]
    fn a_bend_is_no_tail() {
        let bent = |arena: usize| {
            let distance = arena as f64 - 1200.0;
            (-6.0 - distance / if distance < 0.0 { 200.0 } else { 40.0 }).exp()
        };
        let points: Vec<Point> = (0..8)
            .map(|number| {
                let arena = 1000 + number * 40;
                let failures = (bent(arena) * 1e6).round() as u64;
                Point { arena, failures, episodes: 1_000_000, ..Point::default() }
            })
            .collect();
        let tail = Tail::fit(&points).unwrap();
        let [found, bound] = tail.rate(1400);
        assert!(
            (found / bent(1400)).ln().abs() < 0.3 && bound < 2.0 * found,
            "{found} {bound} {}",
            bent(1400)
        );
    }

    /// If every episode fails in one arena and none in the next, the tail is equally steep.
    #[test]
    fn a_cliff_has_a_tail() {
        let point = |arena, failures, episodes| Point { arena, failures, episodes, ..Point::default() };
        let tail = Tail::fit(&[point(1000, 40, 40), point(1032, 40, 40), point(1064, 0, 10_000)]).unwrap();
        let arena = tail.arena(1e-6, 1064, 16, 1 << 20).unwrap();
        assert!(arena < 1200, "{arena}");
    }
}
