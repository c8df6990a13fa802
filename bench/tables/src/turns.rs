//! Measures all sides of a comparison on the same keys, one after the other, round by round.

use crate::rig::Timing;
use sluice_bench_report::{Better, Measure, shell::Failure};

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

/// Runs `rounds` rounds after one that does not count. In every second one the contenders have the reverse order.
/// Returns the nanoseconds of all rounds, in the order of the contenders.
///
/// # Errors
/// If contenders give different answers or do not find a key.
pub fn take_turns(
    rounds: usize,
    keys: usize,
    contenders: &mut [Contender<'_>],
) -> Result<Vec<Vec<f64>>, Failure> {
    let mut times = vec![Vec::with_capacity(rounds); contenders.len()];
    let mut first = None;
    for round in 0..=rounds {
        let mut sides: Vec<_> = contenders.iter_mut().zip(&mut times).collect();
        if round % 2 == 1 {
            sides.reverse();
        }
        for (contender, times) in sides {
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
    Ok(times)
}

/// Compares the first contender's figure with that of each other contender. Alone, it is recorded without a
/// peer.
pub fn compare_with_first(measure: &str, contenders: &[Contender<'_>], times: &[Vec<f64>]) -> Vec<Measure> {
    if times.len() == 1 {
        return vec![Measure::alone(measure, "ns", &times[0])];
    }
    let others = contenders.iter().zip(times).skip(1);
    let compare = |(other, theirs): (&Contender<'_>, &Vec<f64>)| {
        Measure::zipped(measure, "ns", Better::Less, &times[0], (other.name, theirs))
    };
    others.map(compare).collect()
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
        let times = take_turns(3, 10, &mut sides).unwrap();
        assert_eq!(times, [vec![2.0; 3], vec![8.0; 3]]);
        assert_eq!(compare_with_first("x_ns", &sides, &times)[0].ratio.map(|ratio| ratio.median), Some(4.0));
    }

    #[test]
    fn different_answers_and_missing_keys_are_errors() {
        assert!(take_turns(1, 10, &mut [answers(2.0, 7), answers(8.0, 6)]).is_err());
        assert!(take_turns(1, 11, &mut [answers(2.0, 7)]).is_err());
    }
}
