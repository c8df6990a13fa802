//! What security groups cost a packet between two VMs of a host, compared with nftables and conntrack on the kernel's bridge.
//! It changes with the rules that are compared.

use super::side::{self, Load, Path, Rules, Switch, Turn};
use crate::contender::Contender;
use crate::forward::Effort;
use sluice_bench_report::shell::Failure;
use sluice_bench_report::{Better, Measure};

const PEER: &str = "nft_ct";
/// Numbers of rules, and their names in measures.
const SIZES: [(u32, &str); 2] = [(1_000, "1k"), (10_000, "10k")];
/// Packets of a timed run of the program alone that begin a flow each.
const FRESH_PACKETS: u32 = 100_000;

/// Both sides with the same rules.
struct Pair {
    ours: Contender<Turn>,
    theirs: Contender<Turn>,
}

impl Pair {
    fn start(rules: u32) -> Result<Self, Failure> {
        let rules = Rules::Count(rules);
        Ok(Self { ours: side::start(Switch::Sluice, rules)?, theirs: side::start(Switch::Kernel, rules)? })
    }

    /// A turn of each. In every second round the order is reversed, so that no side is always the first.
    fn measure(&self, round: usize, turn: Turn) -> Result<(f64, f64), Failure> {
        if round.is_multiple_of(2) {
            let first = self.ours.measure(turn)?;
            return Ok((first, self.theirs.measure(turn)?));
        }
        let first = self.theirs.measure(turn)?;
        Ok((self.ours.measure(turn)?, first))
    }
}

/// Measures `fast_path_ns_*`, `slow_path_ns_*`, `new_flows_per_s` and `slow_path_attack_ratio`.
///
/// # Errors
/// Errors of the datapath, the tools or the kernel; packets that did not arrive.
pub fn measure(effort: Effort) -> Result<Vec<Measure>, Failure> {
    let turn = |load| Turn::Path(Path::Local, load, effort.seconds / 2.0);
    let mut measures = Vec::new();
    for (rules, size) in SIZES {
        let pair = Pair::start(rules)?;
        let (mut fast, mut slow) = (Vec::new(), Vec::new());
        for round in 0..effort.rounds {
            fast.push(pair.measure(round, turn(Load::Known))?);
            slow.push(pair.measure(round, turn(Load::Fresh))?);
        }
        measures.push(Measure::compared(format!("fast_path_ns_{size}"), "ns", Better::Less, PEER, &fast));
        measures.push(Measure::compared(format!("slow_path_ns_{size}"), "ns", Better::Less, PEER, &slow));
    }
    measures.push(new_flows(effort, turn(Load::Fresh))?);
    measures.push(attack(effort)?);
    Ok(measures)
}

/// New flows with one rule only: what remains is to look a flow up and to remember it.
fn new_flows(effort: Effort, turn: Turn) -> Result<Measure, Failure> {
    let pair = Pair::start(1)?;
    let per_second = |round| {
        let (ours, theirs) = pair.measure(round, turn)?;
        Ok::<_, Failure>((1e9 / ours, 1e9 / theirs))
    };
    let pairs = (0..effort.rounds).map(per_second).collect::<Result<Vec<_>, _>>()?;
    Ok(Measure::compared("new_flows_per_s", "1/s", Better::More, "conntrack", &pairs))
}

/// The first packet of a flow by rules that make each lookup as long as they can, compared with one by 1,000 usual rules,
/// in the program alone.
fn attack(effort: Effort) -> Result<Measure, Failure> {
    let usual = side::start(Switch::Sluice, Rules::Count(SIZES[0].0))?;
    let worst = side::start(Switch::Sluice, Rules::Nested)?;
    let turn = Turn::Program(Path::Local, Load::Fresh, FRESH_PACKETS);
    let ratio = |_| Ok::<_, Failure>(worst.measure(turn)? / usual.measure(turn)?);
    let ratios = (0..effort.rounds).map(ratio).collect::<Result<Vec<_>, _>>()?;
    Ok(Measure::alone("slow_path_attack_ratio", "", &ratios))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every packet arrives on both sides, by a session or because a rule permits it, or the measurement fails. Needs root.
    #[test]
    fn both_sides_permit_what_is_measured() {
        let effort = Effort { seconds: 0.01, rounds: 1, peers_to: 0 };
        let measures = measure(effort).unwrap();
        assert_eq!(measures.len(), 6);
        for measure in measures {
            assert!(measure.ours.median.is_finite(), "{measure:?}");
        }
    }
}
