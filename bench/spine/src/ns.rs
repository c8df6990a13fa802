//! Nanoseconds that the gateway's program alone takes for a packet, compared with the minimal forwarder, in turns. It
//! changes with what is compared. There are no other peers and no interfaces, so it is short enough to run after
//! each change of the program.

use crate::contender::Turn;
use crate::forward::{Effort, SIZES, start_gateway, start_minimal};
use crate::gateway::Routes;
use sluice_bench_report::shell::Failure;
use sluice_bench_report::{Better, Measure};

/// Packets of a timed run. Many short rounds give a narrower interval than a few long ones.
const PACKETS: u32 = 500_000;

/// Measures `gateway_ns_*` of the sizes whose names are among `wanted`.
///
/// # Errors
/// Errors of the gateway or the kernel.
pub fn measure(effort: Effort, wanted: &[String]) -> Result<Vec<Measure>, Failure> {
    let mut measures = Vec::new();
    for (count, name) in SIZES.into_iter().filter(|(_, name)| wanted.iter().any(|size| size == name)) {
        let pairs = one_size(count, effort.rounds)?;
        measures.push(Measure::compared(format!("gateway_ns_{name}"), "ns", Better::Less, "minimal", &pairs));
    }
    Ok(measures)
}

/// Pairs of the gateway's time and the minimal forwarder's.
fn one_size(count: u32, rounds: usize) -> Result<Vec<(f64, f64)>, Failure> {
    let (gateway, minimal) = (start_gateway(count, Routes::One)?, start_minimal(count)?);
    let turn = Turn::Nanoseconds(PACKETS);
    let pair = |round: usize| -> Result<(f64, f64), Failure> {
        // Every second round has the reverse order, so that no side always follows the other.
        if round % 2 == 1 {
            let theirs = minimal.measure(turn)?;
            return Ok((gateway.measure(turn)?, theirs));
        }
        Ok((gateway.measure(turn)?, minimal.measure(turn)?))
    };
    (0..rounds).map(pair).collect()
}
