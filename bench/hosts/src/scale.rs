//! What 10,000 hosts with full caches ask of their gateways. One host is simulated, with as many paths as hosts of Achelous have at most
//! (section 7.1), and what it costs is multiplied. It changes with what hosts ask, and with how gateways answer.

use crate::gateway::{GATEWAYS, Gateways, HOST, Wire};
use crate::load::Random;
use crate::simulation::Reconciled;
use sluice_bench_report::shell::Failure;
use sluice_rsp::cache::{Cache, Config, Input, Output};
use sluice_rsp::{Message, PermitEntry};
use sluice_types::Vni;
use std::time::Duration;

/// Hosts, all with instances of one VPC.
pub const HOSTS: u32 = 10_000;
/// Paths of each.
pub const PATHS: u32 = 3_700;
const VMS_OF_HOST: u32 = 30;
const VNI: u32 = 100;
const STEP_MS: u64 = 50;
/// Until when an answer has come.
const ANSWERED_MS: u64 = 1;
/// Time in which the host learns its paths, and in which they are asked for at different times.
const LEARN_MS: u64 = 5_000;
const WARM_UP_MS: u64 = 15_000;
/// Permits to one host that are renewed within this time share a packet (`GATHER_RENEWED_US` of `crates/gateway`).
const PERMITS_GATHERED_MS: u32 = 250;

/// The load of all gateways together, in a second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fleet {
    /// Questions about networks.
    pub networks: f64,
    /// Questions about paths.
    pub paths: f64,
    /// Permits that are sent.
    pub permits: f64,
    /// Packets that the gateways receive, and that they send.
    pub packets: [f64; 2],
    /// Bytes of IP packets, both directions.
    pub bytes: f64,
    /// Processors that only open and seal packets.
    pub processors: f64,
}

struct Host {
    cache: Cache,
    gateways: Gateways,
    networks: u64,
    paths: u64,
}

/// Counters of a host at a moment.
type Counted = (u64, u64, u64, [u64; 2], u64, Duration);

impl Host {
    /// Handles an input, and the answers to what it makes the host ask.
    fn handle(&mut self, now_ms: u64, input: Input<'_>) -> Result<(), Failure> {
        let mut outputs = self.cache.handle(now_ms, input);
        while let Some(output) = outputs.pop() {
            let Output::Send { message, .. } = output else { continue };
            match &message {
                Message::Reconcile { queries } => self.networks += queries.len() as u64,
                _ => self.paths += message.len() as u64,
            }
            for answer in self.gateways.answer(now_ms, &message)? {
                outputs.extend(self.cache.handle(now_ms + ANSWERED_MS, Input::Message(&answer)));
            }
        }
        Ok(())
    }

    fn counted(&self) -> Counted {
        let wire = &self.gateways.wire;
        (self.networks, self.paths, self.gateways.permits, wire.packets, wire.bytes, wire.busy)
    }
}

/// Simulates a host for some seconds. `changes_per_s` instances of the VPC move or end.
///
/// # Errors
/// If a message cannot be sent, which would be an error of this program.
pub fn run(seconds: u64, changes_per_s: u32, how: Reconciled) -> Result<Fleet, Failure> {
    let (vni, mut random) = (Vni::new(VNI)?, Random::new(0x51_0c_e5));
    let mut cache = Cache::new(Config { idle_ms: u64::MAX, ..Config::default() }, 0);
    cache.handle(0, Input::Gateways { vni, addresses: &GATEWAYS });
    let mut gateways = Gateways::new(vni, VMS_OF_HOST, how == Reconciled::ByNetwork)?;
    gateways.carries_permits = false;
    let mut host = Host { cache, gateways, networks: 0, paths: 0 };
    let mut now_ms = 0;
    let (mut before, mut changes) = (host.counted(), 0.0);
    while now_ms < WARM_UP_MS + seconds * 1000 {
        if now_ms == WARM_UP_MS {
            before = host.counted();
        }
        now_ms += STEP_MS;
        changes += f64::from(changes_per_s) * STEP_MS as f64 / 1000.0;
        while changes >= 1.0 {
            changes -= 1.0;
            host.gateways.change(random.below(HOSTS * VMS_OF_HOST));
        }
        let wanted = u64::from(PATHS) * now_ms.min(LEARN_MS) / LEARN_MS;
        while host.cache.usage().paths < wanted as usize {
            let address = Gateways::address(random.below(HOSTS * VMS_OF_HOST));
            let message = host.gateways.notify(now_ms, address)?;
            host.handle(now_ms, Input::Message(&message))?;
        }
        host.handle(now_ms, Input::Tick)?;
    }
    fleet(before, host.counted(), seconds as f64, vni)
}

/// The load of as many hosts as there are.
fn fleet(before: Counted, after: Counted, seconds: f64, vni: Vni) -> Result<Fleet, Failure> {
    let hosts = f64::from(HOSTS);
    let rate = |before: u64, after: u64| (after - before) as f64 / seconds * hosts;
    let permits = rate(before.2, after.2);
    // Each gateway sends each host those of all others. There are as many receivers as senders.
    let messages = f64::from(1000 / PERMITS_GATHERED_MS) * GATEWAYS.len() as f64 * hosts;
    let renewed = permits_of(vni, (permits / messages).ceil() as usize)?;
    let packets =
        [0, 1].map(|at| rate(before.3[at], after.3[at]) + messages.min(permits) * renewed.packets[at] as f64);
    Ok(Fleet {
        networks: rate(before.0, after.0),
        paths: rate(before.1, after.1),
        permits,
        packets,
        bytes: rate(before.4, after.4) + messages.min(permits) * renewed.bytes as f64,
        processors: (after.5 - before.5).as_secs_f64() / seconds * hosts
            + messages.min(permits) * renewed.busy.as_secs_f64(),
    })
}

/// What a Permit with so many entries costs, and the Permitted, on average of some.
fn permits_of(vni: Vni, entries: usize) -> Result<Average, Failure> {
    const ROUNDS: u32 = 200;
    let mut wire = Wire::new()?;
    let entries = vec![PermitEntry { vni, host: HOST }; entries.max(1)];
    for _ in 0..ROUNDS {
        wire.carry_permits(&entries)?;
    }
    let packets = wire.packets.map(|packets| packets / u64::from(ROUNDS));
    Ok(Average { packets, bytes: wire.bytes / u64::from(ROUNDS), busy: wire.busy / ROUNDS })
}

struct Average {
    packets: [u64; 2],
    bytes: u64,
    busy: Duration,
}
