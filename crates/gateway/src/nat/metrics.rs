//! Metrics of source NAT. This file changes with what the thread counts. Packets that were refused are counted by
//! `sluice_drops_total`, by reason.

use std::sync::{Arc, Mutex};

use prometheus_client::registry::Registry;
use sluice_agent::metric_source::{MetricSource, counter, gauge};
use sluice_datapath::{Datapath, NatRingCounts};
use sluice_tables::nat::NatUsage;

use super::log::{LogCounts, NatLog};
use super::{Status, lock};

/// Registers the metrics.
pub struct NatMetrics {
    pub(super) status: Arc<Mutex<Status>>,
    pub(super) log: Arc<NatLog>,
    /// Its programs count packets of the ring.
    pub(super) datapath: Arc<Datapath>,
}

impl MetricSource for NatMetrics {
    fn register(&self, registry: &mut Registry) {
        let Status { usage, rounds, round_time, astray } = lock(&self.status).clone();
        let LogCounts { blocks: [claimed, returned], sessions: [begun, ended], export } = self.log.counts();
        let NatUsage { sessions, sessions64, blocks, blocks_total, ports, addresses, addresses_total } =
            usage;
        let millis = u64::try_from(round_time.as_millis()).unwrap_or(u64::MAX);
        for (name, help, value) in [
            ("nat_sessions", "Sessions of NAT gateways, as last swept", sessions.live),
            (
                "nat_session_slots",
                "Slots of the session table of NAT gateways, of which two thirds can be used without refusals",
                sessions.slots,
            ),
            ("nat64_sessions", "Sessions of NAT64, as last swept", sessions64.live),
            (
                "nat64_session_slots",
                "Slots of the session table of NAT64, of which two thirds can be used without refusals",
                sessions64.slots,
            ),
            ("nat_ports", "Ports of public addresses that are in use, of all protocols", ports),
            ("nat_blocks", "Blocks of ports that instances have", blocks),
            ("nat_blocks_total", "Blocks of ports of all public addresses of NAT gateways", blocks_total),
            (
                "nat_addresses",
                "Public addresses of NAT gateways, with those that were removed in the last seconds",
                addresses.into(),
            ),
            (
                "nat_addresses_total",
                "Public addresses of NAT gateways for which there is room",
                addresses_total.into(),
            ),
            ("nat_round_milliseconds", "Time of the last round, which frees ports and blocks", millis),
        ] {
            gauge(registry, name, help, value);
        }
        for (name, help, value) in [
            (
                "nat_sessions_full",
                "Sessions of NAT gateways that were refused because the table had no room",
                sessions.full_events + sessions64.full_events,
            ),
            ("nat_rounds", "Rounds, which free ports and blocks", rounds),
            ("nat_blocks_claimed", "Blocks of ports that instances have claimed, as logged", claimed),
            ("nat_blocks_returned", "Blocks of ports that instances have returned, as logged", returned),
            ("nat_sessions_begun", "Sessions that began, as logged; 0 if sessions are not logged", begun),
            ("nat_sessions_ended", "Sessions that ended, as logged; 0 if sessions are not logged", ended),
            ("nat_ipfix_records", "Records for the IPFIX collector", export.records),
            ("nat_ipfix_lost", "Records that the system refused to send to the IPFIX collector", export.lost),
            ("nat_sessions_astray", "Sessions that were ended because their port was not theirs", astray),
        ] {
            registry.register(name, help, counter(value));
        }
        match self.datapath.nat_ring() {
            Ok(counts) => register_ring(registry, counts),
            Err(error) => tracing::warn!(%error, "cannot read the counters of the ring of gateways"),
        }
    }
}

/// What the programs did with the first packets of sessions, which visit all gateways.
fn register_ring(registry: &mut Registry, counts: NatRingCounts) {
    let NatRingCounts { entered, passed, left, taken, full, busy, unknown, astray } = counts;
    for (name, help, value) in [
        ("nat_ring_entered", "First packets of sessions that were sent to the other gateways", entered),
        (
            "nat_ring_passed",
            "First packets of other gateways' sessions that were sent on to the next",
            passed,
        ),
        ("nat_ring_left", "First packets of other gateways' sessions that went to the Internet here", left),
        ("nat_ring_taken", "First packets whose session is not here because its port has another one", taken),
        ("nat_ring_full", "First packets whose session is not here because the table had no room", full),
        ("nat_ring_busy", "First packets whose session is not here because memory was contended", busy),
        ("nat_ring_unknown", "First packets whose public address this gateway does not have", unknown),
        ("nat_ring_astray", "First packets of gateways that believe this one has another position", astray),
    ] {
        registry.register(name, help, counter(value));
    }
}
