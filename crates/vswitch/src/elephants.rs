//! Which direct paths this host asks for by itself (Achelous section 4.3): to destinations to which it has sent elephants for long
//! enough. Throughput is judged by the packet program, which reports an elephant once in each of its periods ([`PERIOD`]);
//! duration is judged here, by these reports. Pure: times are those of the reports. This changes with what is worth a path.

use std::collections::HashMap;
use std::time::Duration;

use sluice_agent::flow_bytes;
use sluice_rsp::Destination;
use sluice_tables::flows::FlowConfig;
use sluice_types::Vni;

/// Time for which the packet program adds up the bytes of a flow. Short, because a flow is reported once in it.
pub const PERIOD: Duration = Duration::from_millis(250);
/// The default threshold: 20 kbit/s, as on gateways.
const DEFAULT_KBPS: u32 = 20;
/// A destination without a report for longer than this begins again: a flow that crosses its threshold at the beginning of a period and at
/// the end of the next one, and some ticks of the periods. Therefore a flow that sends in bursts is learned from half of the threshold on.
const GAP_NS: u64 = 2 * PERIOD.as_nanos() as u64 + 50_000_000;
/// Destinations that are watched at the same time, and those of one network: the VMs of one tenant must not use up all.
const WATCHED_MAX: usize = 16_384;
const OF_NETWORK_MAX: u32 = 1_024;

/// An elephant as the packet program reports it by default.
pub const ELEPHANT: FlowConfig =
    FlowConfig { period: PERIOD, elephant_bytes: flow_bytes(DEFAULT_KBPS, PERIOD) };

/// The reports about a destination.
#[derive(Clone, Copy, Debug)]
struct Seen {
    first_ns: u64,
    last_ns: u64,
}

/// The destinations that elephants are sent to.
#[derive(Debug, Default)]
pub struct Elephants {
    /// How long elephants must last.
    lasting_ns: u64,
    seen: HashMap<Destination, Seen>,
    of_network: HashMap<Vni, u32>,
    /// When old reports were forgotten the last time.
    forgot_ns: u64,
    refused: u64,
}

impl Elephants {
    /// Sets for how long elephants must have been sent to a destination.
    pub fn set_lasting(&mut self, lasting: Duration) {
        self.lasting_ns = u64::try_from(lasting.as_nanos()).unwrap_or(u64::MAX);
        if lasting.is_zero() {
            self.seen.clear();
            self.of_network.clear();
        }
    }

    /// Takes a report, of `at_ns`. Returns whether the path to the destination is worth a request: a further request comes only when as
    /// much time has passed once more.
    pub fn note(&mut self, at_ns: u64, destination: Destination) -> bool {
        if self.lasting_ns == 0 {
            return true;
        }
        if at_ns.saturating_sub(self.forgot_ns) > GAP_NS {
            self.forget(at_ns);
        }
        if let Some(seen) = self.seen.get_mut(&destination) {
            if at_ns.saturating_sub(seen.last_ns) > GAP_NS {
                seen.first_ns = at_ns;
            }
            seen.last_ns = seen.last_ns.max(at_ns);
            let lasts = at_ns.saturating_sub(seen.first_ns) >= self.lasting_ns;
            if lasts {
                seen.first_ns = at_ns;
            }
            return lasts;
        }
        let of_network = self.of_network.entry(destination.vni).or_default();
        if self.seen.len() >= WATCHED_MAX || *of_network >= OF_NETWORK_MAX {
            self.refused += 1;
            return false;
        }
        *of_network += 1;
        self.seen.insert(destination, Seen { first_ns: at_ns, last_ns: at_ns });
        false
    }

    /// Reports that were ignored because too many destinations are watched, of all networks or of theirs.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Forgets destinations whose elephants have ended.
    fn forget(&mut self, now_ns: u64) {
        self.forgot_ns = now_ns;
        let of_network = &mut self.of_network;
        self.seen.retain(|destination, seen| {
            let lives = now_ns.saturating_sub(seen.last_ns) <= GAP_NS;
            if !lives && let Some(count) = of_network.get_mut(&destination.vni) {
                *count = count.saturating_sub(1);
            }
            lives
        });
        of_network.retain(|_, count| *count > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn elephants() -> Elephants {
        let mut elephants = Elephants::default();
        elephants.set_lasting(Duration::from_millis(200));
        elephants
    }

    fn destination(network: u32, host: u32) -> Destination {
        let address = std::net::Ipv4Addr::from(0x0a00_0000 | host).into();
        Destination { vni: Vni::new(network).unwrap(), address }
    }

    /// Times in ms at which a path is requested, of reports at these times.
    fn requested(elephants: &mut Elephants, at: &[u64]) -> Vec<u64> {
        at.iter().copied().filter(|ms| elephants.note((5_000 + ms) * MS, destination(1, 1))).collect()
    }

    #[test]
    fn a_path_is_requested_when_elephants_have_lasted() {
        assert_eq!(requested(&mut elephants(), &[0]), [0_u64; 0]);
        assert_eq!(requested(&mut elephants(), &[0, 251]), [251]);
        // It crosses its threshold late in the first period, and early in the second one.
        assert_eq!(requested(&mut elephants(), &[0, 20, 271, 471]), [271, 471]);
        // Without a path, it is requested again, but not by each report.
        assert_eq!(requested(&mut elephants(), &[0, 250, 300, 350, 500, 750]), [250, 500, 750]);
        // The first one ended.
        assert_eq!(requested(&mut elephants(), &[0, 751, 900, 1_001]), [1_001]);
        // Reports of processors come in any order.
        assert_eq!(requested(&mut elephants(), &[100, 0, 310]), [310]);
    }

    #[test]
    fn elephants_that_have_ended_do_not_count() {
        let mut elephants = elephants();
        let mut note = |ms: u64, host| elephants.note((5_000 + ms) * MS, destination(1, host));
        // The reports about the second destination make it forget what is older, which the first one is not yet.
        assert!(![note(0, 2), note(400, 1), note(551, 2), note(1_000, 1)].contains(&true));
        assert!(note(1_210, 1));
    }

    #[test]
    fn without_a_duration_each_elephant_is_worth_a_path() {
        let mut elephants = elephants();
        assert_eq!(requested(&mut elephants, &[0]), [0_u64; 0]);
        elephants.set_lasting(Duration::ZERO);
        assert_eq!(requested(&mut elephants, &[10, 20]), [10, 20]);
    }

    #[test]
    fn one_network_does_not_use_up_what_can_be_watched() {
        let mut elephants = elephants();
        for host in 0..OF_NETWORK_MAX + 5 {
            assert!(!elephants.note(5_000 * MS, destination(1, host)));
        }
        assert_eq!((elephants.refused(), elephants.seen.len()), (5, OF_NETWORK_MAX as usize));
        assert!(!elephants.note(5_000 * MS, destination(2, 1)));
        assert!(elephants.note(5_250 * MS, destination(2, 1)));
        // Those that have ended give their places back.
        assert!(!elephants.note(6_100 * MS, destination(1, 9_999)));
        assert_eq!((elephants.refused(), elephants.seen.len()), (5, 1));
        assert_eq!(elephants.of_network, HashMap::from([(Vni::new(1).unwrap(), 1)]));
    }
}
