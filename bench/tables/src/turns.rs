//! Measures all sides of a comparison on the same keys, one after the other, round by round.

use crate::rig::Timing;
use sluice_bench_report::{Measure, median, shell::Failure};

/// One side of a comparison.
pub struct Contender<'a> {
    /// Name in the results.
    pub name: &'static str,
    time: Box<dyn FnMut() -> Result<Timing, Failure> + 'a>,
}

impl<'a> Contender<'a> {
    /// A side that is measured by `time`.
    pub fn new(name: &'static str, time: impl FnMut() -> Result<Timing, Failure> + 'a) -> Self {
        Self { name, time: Box::new(time) }
    }
}

/// Runs `rounds` rounds after one that does not count. Returns the medians, in the order of the contenders.
///
/// # Errors
/// If contenders give different answers or do not find a key.
pub fn take_turns(rounds: usize, keys: usize, contenders: &mut [Contender<'_>]) -> Result<Vec<f64>, Failure> {
    let mut times = vec![Vec::with_capacity(rounds); contenders.len()];
    let mut first = None;
    for round in 0..=rounds {
        for (contender, times) in contenders.iter_mut().zip(&mut times) {
            let timing = (contender.time)()?;
            let (sum, name) = *first.get_or_insert((timing.sum, contender.name));
            if timing.found != keys as u64 {
                return Err(format!("{} found {} of {keys} keys", contender.name, timing.found).into());
            }
            if timing.sum != sum {
                return Err(format!("{} and {name} give different answers", contender.name).into());
            }
            if round > 0 {
                times.push(timing.ns);
            }
        }
    }
    Ok(times.into_iter().map(median).collect())
}

/// Compares the first contender's figure with that of each other contender. Alone, it is recorded without a
/// peer.
pub fn compare_with_first(measure: &str, contenders: &[Contender<'_>], medians: &[f64]) -> Vec<Measure> {
    if medians.len() == 1 {
        return vec![Measure::alone(measure, "ns", medians[0])];
    }
    let others = contenders.iter().zip(medians).skip(1);
    others
        .map(|(other, theirs)| Measure::beside_less(measure, "ns", medians[0], other.name, Some(*theirs)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(ns: f64, sum: u64) -> Contender<'static> {
        Contender::new("some", move || Ok(Timing { ns, sum, found: 10 }))
    }

    #[test]
    fn contenders_with_equal_answers_are_compared() {
        let mut sides = [answers(2.0, 7), answers(8.0, 7)];
        let medians = take_turns(3, 10, &mut sides).unwrap();
        assert_eq!(medians, [2.0, 8.0]);
        assert_eq!(compare_with_first("x_ns", &sides, &medians)[0].ratio, Some(4.0));
    }

    #[test]
    fn different_answers_and_missing_keys_are_errors() {
        assert!(take_turns(1, 10, &mut [answers(2.0, 7), answers(8.0, 6)]).is_err());
        assert!(take_turns(1, 11, &mut [answers(2.0, 7)]).is_err());
    }
}
