//! Fuzz targets for everything that decodes bytes of another machine, except packets: the messages between
//! controller and nodes, the datagrams between gateways, those that copy sessions and those that report meters,
//! RSP, the datagrams between the hosts of a migration, the echo of health checks, and the requests of the REST
//! API. (The packet programs have targets in C, in `fuzz`.) Changes when there is another decoder.
//!
//! A target panics if its decoder panics, if an integer overflows, or if a message that was decoded is not the
//! same after it was encoded and decoded again. `scripts/fuzz.sh` runs the targets with libFuzzer, guided by
//! coverage; `fuzz/decoders/tests/replay.rs` runs them on their seeds and on a fixed number of changed seeds.
#![forbid(unsafe_code)]

mod api;
mod cluster;
mod health_echo;
mod meter_reports;
mod migration;
mod nat_sync;
mod rsp;
mod sealed;
mod southbound;

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name on the command line of `scripts/fuzz.sh` and of the directory of its corpus.
    pub name: &'static str,
    /// Runs the target on one input. Panics if the input shows a fault.
    pub run: fn(&[u8]),
    /// Makes the first inputs of the corpus.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets. `scripts/fuzz.sh` uses the same order.
pub const TARGETS: [Target; 8] = [
    Target { name: "southbound", run: southbound::run, seeds: southbound::seeds },
    Target { name: "cluster", run: cluster::run, seeds: cluster::seeds },
    Target { name: "rsp", run: rsp::run, seeds: rsp::seeds },
    Target { name: "nat_sync", run: nat_sync::run, seeds: nat_sync::seeds },
    Target { name: "meter_reports", run: meter_reports::run, seeds: meter_reports::seeds },
    Target { name: "migration", run: migration::run, seeds: migration::seeds },
    Target { name: "health_echo", run: health_echo::run, seeds: health_echo::seeds },
    Target { name: "api", run: api::run, seeds: api::seeds },
];
