//! The parts about copies of sessions on other gateways, and their options. It changes with the parts and options.

use crate::failover::{self, Settings};
use crate::measures::{FRESH, SIZES};
use crate::rig::Sessions;
use crate::{replicated, resync};
use sluice_bench_report::Measure;
use sluice_bench_report::shell::Failure;
use sluice_bench_spine::forward::Effort;
use std::path::PathBuf;

/// The parts.
pub const PARTS: [&str; 4] = ["replicated", "capacity", "resync", "failover"];

const KILLS: usize = 10;
const PEER_KILLS: usize = 5;
const DRAINS: usize = 5;
const LIVE: usize = 100_000;
const FRESH_PER_S: u32 = 10_000;
const RESYNCS: usize = 3;
/// The table for them takes 15.8 GB, with the marks of passes.
const FILLS_16_GB: Sessions = Sessions { remotes: 250, ..SIZES[2].0 };
/// The default of a cluster.
const HELLO_MS: u16 = 4;

/// Options of the parts.
#[derive(clap::Args)]
#[group(id = "replication")]
pub struct Args {
    /// The sluice binary that the lab runs
    #[arg(long, default_value = "target/release/sluice")]
    binary: PathBuf,
    /// The probe that opens TCP connections
    #[arg(long, default_value = "target/release/sluice-probe")]
    probe: PathBuf,
    /// Kills of the owner; 100 take more than an hour
    #[arg(long, default_value_t = KILLS)]
    kills: usize,
    /// Kills of the peer's owner
    #[arg(long, default_value_t = PEER_KILLS)]
    peer_kills: usize,
    /// Drains of the owner
    #[arg(long, default_value_t = DRAINS)]
    drains: usize,
    /// Sessions that stay while owners die
    #[arg(long, default_value_t = LIVE)]
    live: usize,
    /// New sessions in a second while owners die
    #[arg(long, default_value_t = FRESH_PER_S)]
    fresh_per_s: u32,
    /// Milliseconds between two hellos of a gateway
    #[arg(long, default_value_t = HELLO_MS)]
    hello_ms: u16,
    /// Measure also how long copies of 10 million sessions take: four minutes more
    #[arg(long)]
    resync_10m: bool,
    /// Fill a table of 16 GB instead of one for 10 million sessions: needs 20 GB of memory and some minutes
    #[arg(long)]
    fill_16gb: bool,
}

impl Args {
    /// Whether the results are of the sizes that are recorded, or of larger ones.
    pub fn are_whole(&self) -> bool {
        self.kills >= KILLS
            && self.peer_kills >= PEER_KILLS
            && self.drains >= DRAINS
            && self.live >= LIVE
            && self.fresh_per_s >= FRESH_PER_S
            && self.hello_ms == HELLO_MS
    }

    fn settings(&self) -> Settings {
        let Self { kills, peer_kills, drains, live, fresh_per_s, hello_ms, .. } = *self;
        let (binary, probe) = (self.binary.clone(), self.probe.clone());
        Settings { binary, probe, kills, peer_kills, live, fresh_per_s, drains, hello_ms }
    }
}

/// Explanation of the measurements for readers of the results.
pub const METHOD: &str = "\
`nat_cps_replicated`: as `nat_cps`, at an owner that sends the first packet of each session to another gateway, which a program of 60
lines on the same core replaces: it sends the packet to the Internet as the record says. Beside it `nat_cps` of a gateway alone; the
cost is one minus the ratio. The second packet of a session, which confirms it, visits the other gateway as well; it is part of neither
figure. `nat_cps_standby`: sessions in a second that the other gateway installs from such packets and whose packets it sends to the
Internet, on a core of its own. `nat_copied_session_bytes`: as `nat_session_bytes`, of a table with `nat_filled_sessions`, and the
agent's marks of passes; `nat_sessions_16gb`: how many of these 16 GB have room for, computed. `resync_s_*`: from the start of a gateway
without sessions until it says that it has copies of all, and each is compared with the owner's: the agents' own threads over UDP on
loopback, with the tables and the program of two gateways, which have room for twice as many sessions; a sender sends 100,000 sessions a
second (`Params::sessions_per_s`). `resync_core_pct_*`: the part of a core that both gateways take meanwhile, so what passes cost the two
together as long as an owner sends at this rate: always if it has two million sessions for one other gateway, as each pass
takes 20 s.

`failover_*`: a lab of three gateways with hellos every 4 ms, the default. Two VMs at two hosts keep 100,000 sessions by UDP
and 4,000 connections by TCP, and begin 10,000 sessions a second from 0.5 s before a kill until 1.5 s after it. They end 120 s after their
last packet, but each takeover grants 40 s more, so most of them stay, and a new lab begins after 20 kills. The gateway that
translates dies as its machine would: its interfaces, its processes, and its programs and tables. The remote end answers each datagram
with the public endpoint that it came from. `_sessions_lost`: sessions that had been answered before, and have another public endpoint
afterwards or no answer to five packets, and TCP connections that ended; `_gap_ms`: the longest time, of both VMs, in which none of the
numbered packets that each sends once a millisecond was answered, from right before the kill; `_half_open`: sessions that began
around the kill and whose first packet got no answer; `_half_open_ms`: from the kill to the beginning of the last of them, so the rate
times this bounds their number;
`_never_begun`: those of them that repeated packets did not begin. Medians, least and most of the kills. `conntrackd`: two Linux
routers in namespaces with the same clients, sessions and kills: nftables `snat`, keepalived with VRRP every 10 ms, which is its shortest
interval, and conntrackd in its mode FTFW over a link of its own. Each client has ports of its own, which the peer keeps, so a session that it
has lost goes on as well if its client is the first to send. The peer has fewer kills, and no turns are taken, so there is no ratio.
`planned_lost_packets`: of 10,000 packets a second of one session by UDP, while the gateway that translates is drained and gets its vIPs
back.";

/// Measures the parts that are wanted. Returns the measures and notes.
///
/// # Errors
/// Errors of the datapath, the tables, the labs or the kernel.
pub fn measure(
    args: &Args,
    effort: Effort,
    wants: impl Fn(&str) -> bool,
) -> Result<(Vec<Measure>, Vec<String>), Failure> {
    let (mut measures, mut notes) = (Vec::new(), Vec::new());
    if wants("replicated") {
        measures.extend(replicated::beginning(effort, FRESH)?);
    }
    if wants("capacity") {
        measures.extend(replicated::capacity(if args.fill_16gb { FILLS_16_GB } else { SIZES[2].0 })?);
    }
    if wants("resync") {
        measures.extend(resync::measure(RESYNCS.min(effort.rounds), SIZES[1].0, SIZES[1].1)?);
        if args.resync_10m {
            measures.extend(resync::measure(1, SIZES[2].0, SIZES[2].1)?);
        }
    }
    if wants("failover") {
        let (more, said) = failover::measure(&args.settings())?;
        measures.extend(more);
        notes.extend(said);
    }
    Ok((measures, notes))
}
