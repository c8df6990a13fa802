//! Comparison of two programs by pairs of interleaved rounds: a distribution-free confidence interval of the
//! median of the pairs' ratios. It changes with the confidence that is wanted.
//!
//! The two rounds of a pair run right after each other, so that a machine that gets faster or slower
//! changes both. The interval makes no assumption about the distribution of the ratios: whether a ratio is
//! above the true median is a toss of a coin, so the k-th smallest and the k-th largest of n ratios enclose
//! the median with the confidence 1 - 2 P(Binomial(n, 1/2) < k).

/// Pairs below which a comparison is not reported.
pub const PAIRS_MIN: usize = 10;
/// Confidence that an interval has at least.
pub const CONFIDENCE: f64 = 0.95;

/// Confidence interval of the true median of the ratios of pairs, which are in ascending order. `None` if there are
/// fewer than [`PAIRS_MIN`].
pub fn interval_of_median(sorted: &[f64]) -> Option<(f64, f64)> {
    if sorted.len() < PAIRS_MIN {
        return None;
    }
    let rank = interval_rank(sorted.len());
    Some((sorted[rank - 1], sorted[sorted.len() - rank]))
}

/// The largest rank (1: the smallest and the largest value) whose interval has the wanted confidence. At least
/// [`PAIRS_MIN`] values are needed; rank 1 is then sufficient.
fn interval_rank(count: usize) -> usize {
    // Probability of each number of heads in `count` tosses, added up from 0.
    let mut probability = 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let mut below = probability;
    let mut best = 1;
    for rank in 2..=count / 2 {
        probability *= (count + 2 - rank) as f64 / (rank - 1) as f64;
        below += probability;
        if 1.0 - 2.0 * below < CONFIDENCE {
            break;
        }
        best = rank;
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches ranks that are off by one: the published table of the sign test's intervals at 95%.
    #[test]
    fn ranks_are_those_of_the_sign_test() {
        assert_eq!([10, 11, 12, 15, 20, 25, 30].map(interval_rank), [2, 2, 3, 4, 6, 8, 10]);
    }

    #[test]
    fn interval_is_taken_from_the_sorted_ratios() {
        let ratios: Vec<f64> = (1..=10).map(f64::from).collect();
        assert_eq!(interval_of_median(&ratios), Some((2.0, 9.0)));
        assert_eq!(interval_of_median(&ratios[..9]), None);
    }
}
