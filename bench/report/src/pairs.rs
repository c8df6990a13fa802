//! Comparison of two programs by pairs of interleaved rounds: the median of the pairs' ratios and a
//! distribution-free confidence interval of that median. It changes with the confidence that is wanted.
//!
//! The two rounds of a pair run right after each other, so that a machine that gets faster or slower
//! changes both. The interval makes no assumption about the distribution of the ratios: whether a ratio is
//! above the true median is a toss of a coin, so the k-th smallest and the k-th largest of n ratios enclose
//! the median with the confidence 1 - 2 P(Binomial(n, 1/2) < k).

/// Pairs below which a comparison is not reported.
pub const PAIRS_MIN: usize = 10;
/// Confidence that an interval has at least.
pub const CONFIDENCE: f64 = 0.95;

/// Ratio of the new program to the old one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Median of the pairs' ratios.
    pub median: f64,
    /// Lower end of the confidence interval of the median.
    pub low: f64,
    /// Upper end of the confidence interval of the median.
    pub high: f64,
    /// Confidence of the interval, at least [`CONFIDENCE`].
    pub confidence: f64,
    /// Number of pairs.
    pub pairs: usize,
}

impl Comparison {
    /// True if the interval excludes 1: the two programs differ.
    pub fn is_significant(&self) -> bool {
        self.low > 1.0 || self.high < 1.0
    }
}

/// Compares pairs of figures (old, new); the ratio is new / old.
///
/// # Errors
/// Fewer pairs than [`PAIRS_MIN`], or a figure that is not a positive number.
pub fn compare(pairs: &[(f64, f64)]) -> Result<Comparison, String> {
    if pairs.len() < PAIRS_MIN {
        return Err(format!("{} pairs were measured, at least {PAIRS_MIN} are needed", pairs.len()));
    }
    let is_positive = |figure: f64| figure.is_finite() && figure > 0.0;
    if let Some(pair) = pairs.iter().find(|(old, new)| !is_positive(*old) || !is_positive(*new)) {
        return Err(format!("the figures {} and {} have no ratio: both must be positive", pair.0, pair.1));
    }
    let mut ratios: Vec<f64> = pairs.iter().map(|(old, new)| new / old).collect();
    ratios.sort_by(f64::total_cmp);
    let count = ratios.len();
    let (rank, confidence) = interval_rank(count);
    Ok(Comparison {
        median: (ratios[(count - 1) / 2] + ratios[count / 2]) / 2.0,
        low: ratios[rank - 1],
        high: ratios[count - rank],
        confidence,
        pairs: count,
    })
}

/// The largest rank (1: the smallest and the largest value) whose interval has the wanted confidence, and
/// that confidence. At least [`PAIRS_MIN`] values are needed; rank 1 is then sufficient.
fn interval_rank(count: usize) -> (usize, f64) {
    // Probability of each number of heads in `count` tosses, added up from 0.
    let mut probability = 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let mut below = probability;
    let mut best = (1, 1.0 - 2.0 * below);
    for rank in 2..=count / 2 {
        probability *= (count + 2 - rank) as f64 / (rank - 1) as f64;
        below += probability;
        let confidence = 1.0 - 2.0 * below;
        if confidence < CONFIDENCE {
            break;
        }
        best = (rank, confidence);
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches ranks that are off by one: the published table of the sign test's intervals at 95%.
    #[test]
    fn ranks_are_those_of_the_sign_test() {
        let rank = |count| interval_rank(count).0;
        assert_eq!([10, 11, 12, 15, 20, 25, 30].map(rank), [2, 2, 3, 4, 6, 8, 10]);
        let (_, confidence) = interval_rank(10);
        assert!((confidence - (1.0 - 22.0 / 1024.0)).abs() < 1e-12, "{confidence}");
    }

    #[test]
    fn median_and_interval_are_taken_from_the_sorted_ratios() {
        let pairs: Vec<(f64, f64)> =
            [7, 3, 10, 1, 6, 2, 9, 5, 8, 4].map(|new| (2.0, 2.0 * new as f64)).into();
        let found = compare(&pairs).unwrap();
        assert_eq!((found.median, found.low, found.high, found.pairs), (5.5, 2.0, 9.0, 10));
        assert!(found.is_significant());
    }

    #[test]
    fn a_drift_of_the_machine_does_not_show_in_the_ratios() {
        let pairs: Vec<(f64, f64)> = (1..=12).map(|round| (round as f64, 1.1 * round as f64)).collect();
        let found = compare(&pairs).unwrap();
        assert!((found.low - 1.1).abs() < 1e-12 && (found.high - 1.1).abs() < 1e-12);
    }

    #[test]
    fn equal_programs_do_not_differ_significantly() {
        let pairs: Vec<(f64, f64)> =
            (0..12).map(|round| (1.0, if round % 2 == 0 { 1.02 } else { 0.98 })).collect();
        assert!(!compare(&pairs).unwrap().is_significant());
    }

    #[test]
    fn too_few_pairs_and_figures_without_a_ratio_are_refused() {
        assert_eq!(compare(&[(1.0, 1.0); 9]).unwrap_err(), "9 pairs were measured, at least 10 are needed");
        let mut pairs = [(1.0, 1.0); 10];
        pairs[3] = (0.0, 1.0);
        assert!(compare(&pairs).unwrap_err().starts_with("the figures 0 and 1 have no ratio"));
    }
}
