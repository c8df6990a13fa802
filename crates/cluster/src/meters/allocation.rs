//! How much of a meter each gateway gets, by the demand at all of them: a pure function, which each gateway computes for itself.

use sluice_types::METER_WHOLE;

/// All gateways of a cluster together are guaranteed this part of a rate, each an equal part of it, so that none waits for a report
/// with nothing.
pub const GUARANTEED_PARTS: u64 = 4;

/// The share of a gateway with demand `own` of a rate, in millionths, of which the other gateways have the demands `others`. All are
/// in bytes per second; the cluster has `members` gateways.
///
/// While all demand fits the rate, each gateway gets more than its demand, in proportion to it. Otherwise each gets its demand up to
/// the guaranteed part, and of the rest the same proportion of what remains of its demand. So gateways with much demand drop the same
/// part of it, by which TCP flows get equal rates wherever they pass, and all together let pass the rate.
///
/// No share is smaller than the guaranteed part. What exceeds the rate by this is not used unless demand grows, which shows in the
/// next report.
pub fn share(rate: u64, members: usize, own: u64, others: &[u64]) -> u32 {
    if others.iter().all(|other| *other == 0) {
        return METER_WHOLE;
    }
    let wide = |bytes: u64| u128::from(bytes);
    let least = guaranteed(rate, members);
    let demands = || others.iter().chain([&own]);
    let total: u128 = demands().map(|demand| wide(*demand)).sum();
    let part = if total <= wide(rate) {
        wide(own) * wide(rate) / total
    } else {
        let granted: u128 = demands().map(|demand| wide(*demand.min(&least))).sum();
        let kept = wide(own.min(least));
        kept + (wide(own) - kept) * (wide(rate) - granted) / (total - granted)
    };
    let millionths = part.max(wide(least)) * u128::from(METER_WHOLE) / wide(rate.max(1));
    u32::try_from(millionths).unwrap_or(METER_WHOLE).clamp(1, METER_WHOLE)
}

/// What a gateway of a cluster with so many members is guaranteed of a rate.
pub fn guaranteed(rate: u64, members: usize) -> u64 {
    rate / (GUARANTEED_PARTS * (members as u64).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The shares of all gateways.
    fn shares(rate: u64, demands: &[u64]) -> Vec<u32> {
        let of = |at: usize| {
            let others: Vec<u64> =
                demands.iter().enumerate().filter(|(it, _)| *it != at).map(|it| *it.1).collect();
            share(rate, demands.len(), demands[at], &others)
        };
        (0..demands.len()).map(of).collect()
    }

    #[test]
    fn one_gateway_with_demand_has_the_whole() {
        for demand in [0, 1, 999, 1_000, 1 << 42] {
            assert_eq!(shares(1_000, &[demand, 0, 0])[0], METER_WHOLE, "{demand}");
        }
        // One without demand is guaranteed a part, for its next packets.
        assert_eq!(shares(1_200, &[5_000, 0, 0]), [METER_WHOLE, 83_333, 83_333]);
    }

    #[test]
    fn shares_are_in_proportion_to_demand() {
        assert_eq!(shares(1_000, &[300, 100]), [750_000, 250_000]);
        assert_eq!(shares(1_000, &[4_000, 4_000]), [500_000, 500_000]);
        // 125 each are guaranteed; of the other 750, each gets 10% of 7,500 more.
        assert_eq!(shares(1_000, &[6_125, 1_625]), [725_000, 275_000]);
        // A gateway with little demand drops nothing, and those with much share what it leaves.
        assert_eq!(shares(1_200, &[50, 10_000, 10_000]), [83_333, 479_166, 479_166]);
    }

    /// Demands from nothing to a hundred times the rate, in all magnitudes.
    fn demands() -> impl Strategy<Value = (u64, Vec<u64>)> {
        let demand = prop_oneof![Just(0.0), (-6.0..2.0_f64).prop_map(|it| 10_f64.powf(it))];
        let rate = (8_000_f64.ln()..5e10_f64.ln()).prop_map(|it| it.exp() as u64);
        (rate, prop::collection::vec(demand, 2..65)).prop_map(|(rate, demands)| {
            (rate, demands.into_iter().map(|it| (it * rate as f64) as u64).collect())
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 20 * ProptestConfig::default().cases, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn all_gateways_together_let_pass_what_one_would((rate, demands) in demands()) {
            let shares = shares(rate, &demands);
            let total: u64 = demands.iter().sum();
            let passed: f64 = demands
                .iter()
                .zip(&shares)
                .map(|(demand, share)| (*demand as f64).min(rate as f64 * f64::from(*share) / 1e6))
                .sum();
            let expected = total.min(rate) as f64;
            // Each share is rounded down to a byte and to a millionth.
            let rounding = demands.len() as f64 * (1.0 + rate as f64 / 1e6);
            prop_assert!((expected - rounding..=expected + 1.0).contains(&passed), "{} of {}", passed, expected);
        }

        #[test]
        fn shares_sum_to_the_whole_and_a_quarter_at_most((rate, demands) in demands()) {
            let shares = shares(rate, &demands);
            let least = guaranteed(rate, demands.len()) as f64 * 1e6 / rate as f64;
            prop_assert!(shares.iter().all(|share| f64::from(*share) + 1.0 >= least));
            let used: Vec<u32> = shares.iter().zip(&demands).filter(|it| *it.1 > 0).map(|it| *it.0).collect();
            if used.len() > 1 {
                let sum: u32 = shares.iter().sum();
                prop_assert!(sum <= METER_WHOLE + METER_WHOLE / 4, "{}", sum);
                prop_assert!(sum + 2 * demands.len() as u32 + (demands.len() as u64 * 2_000_000 / rate) as u32 >= METER_WHOLE, "{}", sum);
            }
        }

        /// More demand never means a smaller share, and equal demand means equal shares.
        #[test]
        fn more_demand_is_no_smaller_share((rate, demands) in demands()) {
            let shares = shares(rate, &demands);
            if demands.iter().filter(|demand| **demand > 0).count() > 1 {
                let mut by_demand: Vec<_> = demands.iter().zip(&shares).collect();
                by_demand.sort();
                prop_assert!(by_demand.is_sorted_by_key(|it| it.1), "{:?}", by_demand);
                prop_assert!(by_demand.windows(2).all(|two| two[0].0 != two[1].0 || two[0].1 == two[1].1));
            }
        }
    }
}
