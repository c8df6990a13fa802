//! What a packet takes through a host with Sluice's vSwitch, compared with the kernel's own bridge and VXLAN device, by the
//! same packets, in turns. It changes with the paths that are compared.

mod frames;
mod kernel;
pub mod namespace;
mod place;
mod rules;
mod side;
mod sluice;
mod traffic;
pub mod walls;

use crate::forward::Effort;
use side::{Load, Path, Rules, Switch, Turn};
use sluice_bench_report::shell::Failure;
use sluice_bench_report::{Better, Measure};

/// Name of the peer in the results.
const PEER: &str = "kernel";

/// Measures of both sides.
const PATHS: [(&str, Path, Load); 10] = [
    ("vswitch_out_ns", Path::Out, Load::Small),
    ("vswitch_in_ns", Path::In, Load::Small),
    ("vswitch_local_ns", Path::Local, Load::Small),
    ("vswitch_direct_ns", Path::Direct, Load::Small),
    ("vswitch_in_plain_ns", Path::InPlain, Load::Small),
    ("vswitch_local_plain_ns", Path::LocalPlain, Load::Small),
    ("vswitch_out_gso_ns", Path::Out, Load::Long),
    ("vswitch_in_gso_ns", Path::In, Load::Long),
    ("vswitch_local_gso_ns", Path::Local, Load::Long),
    ("vswitch_direct_gso_ns", Path::Direct, Load::Long),
];

/// Measure of Sluice's program alone. A program that changes the packet, as it does on the other paths, cannot be timed by
/// repeated runs.
const PROGRAM: (&str, Path) = ("vswitch_local_program_ns", Path::Local);

/// Measures `vswitch_*_ns`.
///
/// # Errors
/// Errors of the datapath, the tools or the kernel; packets that did not arrive.
pub fn measure(effort: Effort) -> Result<Vec<Measure>, Failure> {
    let ours = side::start(Switch::Sluice, Rules::None)?;
    let theirs = side::start(Switch::Kernel, Rules::None)?;
    let mut pairs = vec![Vec::new(); PATHS.len()];
    let mut alone = Vec::new();
    for round in 0..effort.rounds {
        for (pairs, (_, path, load)) in pairs.iter_mut().zip(PATHS) {
            let turn = Turn::Path(path, load, effort.seconds / 2.0);
            // In every second round the order is reversed, so that no side is always the first.
            let pair = if round % 2 == 0 {
                let first = ours.measure(turn)?;
                (first, theirs.measure(turn)?)
            } else {
                let first = theirs.measure(turn)?;
                (ours.measure(turn)?, first)
            };
            pairs.push(pair);
        }
        alone.push(ours.measure(Turn::Program(PROGRAM.1, Load::Small, packets(effort.seconds)))?);
    }
    let compared = PATHS.iter().zip(&pairs);
    let compared =
        compared.map(|((name, ..), pairs)| Measure::compared(*name, "ns", Better::Less, PEER, pairs));
    Ok(compared.chain([Measure::alone(PROGRAM.0, "ns", &alone)]).collect())
}

/// Packets of a timed run, which takes at most about as long as a turn.
fn packets(seconds: f64) -> u32 {
    (seconds * 1e6) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every packet of every path arrives on both sides, or the measurement fails. Catches frames that are flooded,
    /// segmented or dropped. In so short a run a difference of times may be negative. Needs root.
    #[test]
    fn all_paths_have_a_figure_on_both_sides() {
        let effort = Effort { seconds: 0.01, rounds: 1, peers_to: 0 };
        let measures = measure(effort).unwrap();
        assert_eq!(measures.len(), PATHS.len() + 1);
        for measure in measures {
            let theirs = measure.theirs.map_or(0.0, |figure| figure.median);
            assert!(measure.ours.median.is_finite() && theirs.is_finite(), "{measure:?}");
        }
    }
}
