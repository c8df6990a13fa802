//! The command of `make bench-cluster`; the library measures.
#![forbid(unsafe_code)]

use clap::Parser;
use sluice_bench_cluster::{Settings, parts, run};
use sluice_bench_report::{Run, shell::Failure};
use std::path::PathBuf;

/// Measure gateway clusters
#[derive(Parser)]
struct Args {
    /// Number of rounds; the median is the result
    #[arg(long, default_value_t = ROUNDS)]
    rounds: usize,
    /// Divide all sizes by this number, for a quick run
    #[arg(long, default_value_t = 1)]
    scale: usize,
    /// The sluice binary that the lab runs
    #[arg(long, default_value = "target/release/sluice")]
    binary: PathBuf,
    /// Measure only these parts
    #[arg(long, value_delimiter = ',', default_values_t = parts().into_iter().map(str::to_owned))]
    parts: Vec<String>,
    /// Print the results without recording them
    #[arg(long)]
    dry_run: bool,
}

/// Explanation of the measurements for readers of the results.
const METHOD: &str = "\
`rgcm`: VPCs and tenants in numbers as in the paper's public cloud (1885 of 568, on 10 clusters), and 33,000 of 10,000 on
50. As in the paper's example (section VI-A.4), all VPCs together need 0.6 of what all clusters forward, and the largest
VPC needs 1/40 of a cluster: the VPC of rank r needs min(1/40, a / r^s), Zipf's law cut off there, with s of 0.8, 1 and
1.2. Each tenant has one VPC; the others are drawn by Zipf's law, s = 1. A VPC has 2 to 364 entries, by Zipf's law in
another order. The limit of clusters for a tenant, the paper's k, is 20 on 50 clusters as in the paper, and 4 on 10. `_s`:
one thread, with the LP, the slowest of all cases. `rgcm_max_load_ratio`: maximum load divided by the lower bound of LP-GCM, the worst of all cases;
`rgcm_tenants_over_limit`: the sum of all cases. `rounding_only`: the first rounding of Sluice's own fractions, not repaired.
`rgcm_471_*`: a quarter of the first cloud with clusters that differ and tables nine tenths full, compared with
`paper_rgcm`, algorithm 1 of section VI-A.3 as printed: LP-GCM with all variables of equation 1, which has no row for
entries, and one rounding (theorems 4 and 5 prove 4.2 for the load and 4.4 k for tenants in the paper's example); each pair
has another seed. `rgcm_lp_471_s`: Sluice's LP of that cloud, in classes of tenants and (`whole_lp`) with all variables.

`push` (figure 24): a controller and 45 gateways in one process; the gateways enroll, open their streams over mutual TLS,
read every entry of every update, acknowledge, and have no tables. Ten bulk calls of a tenth of the rules each, all at
once, one for each VPC; `_s`: from the calls to the last acknowledgment of a gateway that the rules concern, so parsing
and committing them to SQLite are included; `_after_store_s`: from the last call's answer; `_cpu_s` (figure 24b): processor
time of the threads of the controller and its database. `gwzone`: the same with all gateways in one cluster, because a
zone's gateway needs the rules of all destinations. The paper's controller takes 3.3 s for 100k, and 7.8 s for GWZone.

`launch` (figure 25): the controller and gateways of `push`, and 100 hosts that enroll, follow and acknowledge in the same
way. 100,000 instances of VPCs with the sizes of `rgcm`, each on a random host; calls of up to 50 instances of a VPC, 16
calls at a time. `_private_10k` (figure 25b): 10,000 instances of 90 VPCs of 52 tenants, the largest with 2765. `_s`: from
the first call to the last acknowledgment of a host or gateway that a call concerns. `_entries`: entries by which hosts
find instances of other hosts: a default entry for each VPC that a host has an instance of, and direct paths.
`preprogrammed`: the controller with `--model preprogrammed` (docs/decisions/models.md). No container is started, and the
simulated hosts write no tables, so the seconds are the controller's, and similar while the database takes most of them. The
paper: 12k entries and 3178 s, and 3.4M and 4097 s, with containers, on 20 hosts.

`slow_nodes`: the controller, a gateway and 1,000 hosts that follow and acknowledge as in `launch`, with 20 instances each
in 20 VPCs. 100 requests a second, each sent when it is due: an instance is created, a host read, 100 instances listed, an
instance deleted, in turn, so there are 50 changes a second. Rounds of 6 s in turns: with a controller that has no nodes
(`no_nodes`), with all hosts following (`none_stalled`), and with 100 of them stalled: they read nothing, and half of them
open a new stream every 2 s, which asks for all tables. Latency: from the moment at which a request is due until its answer
is read. `api_p99_ratio_1000_nodes`: the 99th percentile with stalled nodes divided by that with all following, which is the
same change and as many nodes; `api_p99_ratio_no_nodes`: divided by that without nodes. Hosts and controller share the
machine's processors.

`burst` (figures 12, 16 to 19): computed, 5 draws a round. 100 VPCs of 10 to 90 VMs, 45 gateways in 10 clusters; VPCs are
placed by RGCM, and flows spread over a cluster's vIPs by hash. `gwzone`: VMs in 45 zones, each with a gateway, in the
order in which they were started, VPC by VPC; `_scattered`: VMs on random hosts. An elephant loads its gateway until it
has crossed 20 kbit/s, and 5 ms more, on both sides. `_max_over_mean`: load of the most loaded gateway divided by the mean,
in the window of 0.5 s in which it is largest; `_overloaded_pct` (figures 17 and 18): gateways in that window that are above
80% if the mean is 50%; `_rules` (figure 19): direct paths after the burst, and all paths of `preprogrammed`. `mapreduce`:
all VMs of a VPC send to each other, all VPCs at once; `staggered`: each VPC at another time in 10 s, which is one tenant's
burst: it stays on the cluster of its VPC, as intended. `video`, `audio`: 10,000 flows begin within 10 s. The paper's
maximum is 18 to 34% below GWZone's.

`steady` (figure 26): computed. 100,000 instances in the public and 10,000 in the private cloud of `launch`; 16% of the pairs
of instances of a VPC communicate, at 10 kbit/s to 1 Gbit/s, evenly on a logarithmic scale (section VIII-D); flows from 20
kbit/s on have direct paths and load no gateway. VPCs are placed by RGCM by their traffic; `gwzone` as in `burst`.

`detection` (figures 8 and 9): the gateway's program on one core, on the spine's rig, with and without detection, in turns;
the table of flows has twice the necessary size, and an agent reads the events. One packet in eight belongs to one of 1,000
elephants, each of which is reported once a second, the others to random flows: in the paper's largest burst (section
VIII-C.1) 10,000 video flows begin within 10 s, which is 1,000 new elephants a second if one gateway gets them all.
`_pct`: of the packets a second that come back, pairs of a quarter of a second each; `_ns`: added to the program's time for a
packet. `2k`, `100k`: as many destinations, with a flow to each; `_to_2k`: that many flows to 2,000 destinations.
`detection_cost_pct` is the worse of `2k` and `100k`. The paper: 1.2%, and constant up to 100k.

`offload` (figure 10): the lab, with three gateways, a new one for each side of each round. A VM begins a flow to another
destination each millisecond, 500 in all, each a packet of 1342 bytes every half millisecond for 30 ms; the clock is the
kernel's at the destination's host, from the packet by which 2,500 bytes have come (20 kbit/s in a second; `gwzone`: 625, in a quarter) to the first
that does not come from a gateway; a flow that gets no direct path counts as 30 ms. `_burst` (figure 20): four flows begin
each millisecond. `gwzone`: the same with `--model gwzone`, where the first host counts, and asks its gateway for the path.
The paper: tens of milliseconds.

`failover` (figure 22): a VM sends a packet every half millisecond through the gateway that is then killed: its link, and
its agent by SIGKILL. The switch does not flood packets to unknown MACs, because the other gateways would forward them and
nothing would be lost. `total`: from the moment before the link is taken down to the first packet after which none is lost;
`lost`: lost packets times their interval, as the paper counts; `pure`: from the first announcement of a new owner to the
end of `total`. Ten kills in each lab: `p50` is their median, `worst` the worst of ten; a pair is two labs. `gwzone`: the same
with `--model gwzone`, two primaries and a backup: the controller finds that the gateway has failed, and updates the hosts of
its zone. The paper: 38.5 and 5.5 ms, and 1.5 times the total for GWZone.

`reboot`: the lab, with 300,000 instances in a VPC of the cluster. A VM sends a packet every half millisecond. A gateway that
carries none of them reboots: its link goes down, its agent is killed, and its programs and tables are removed. As soon as its
new agent runs, while it loads its tables, the gateway that carries the packets fails as in `failover`. `_lost_packets`: all
that are lost until every vIP is with its preferred owner again, except what was sent from 2 ms before to 60 ms after the
failure, which is the takeover itself; `_no_controller`: the controller is killed before the reboot and started again 5 s
after the failure. `_tables_s`: from the start of the agent until its tables are whole.

`overload` (figure 23): 60 flows of a VM grow fourfold at once. The capacity of the gateway that carries most of them is set
to 1/1.1 of what it then gets, because in the lab all gateways share the processors, and a gateway alone cannot be
overloaded. From the burst's first packet until the flows that leave this gateway have left it; a burst of which nothing
leaves counts as its whole second. Two bursts a round, each when all vIPs are with their preferred owners and none moves.
The paper: 120 ms until it acts, and 19.5 ms more.";

/// Number of rounds of a run that is recorded.
const ROUNDS: usize = 10;

fn main() -> Result<(), Failure> {
    let args = Args::parse();
    let settings = Settings {
        rounds: args.rounds.max(1),
        scale: args.scale.max(1),
        binary: args.binary,
        parts: args.parts,
    };
    let begun = Run::begin("cluster")?;
    let outcome = run(&settings)?;
    let how = match settings.scale {
        1 => format!("{} rounds", settings.rounds),
        scale => format!("{} rounds, sizes divided by {scale}", settings.rounds),
    };
    let text = begun.section("Clusters", &how, METHOD, &outcome.measures, &outcome.notes)?;
    let is_whole = parts().iter().all(|part| settings.parts.iter().any(|wanted| wanted == part))
        && (settings.rounds, settings.scale) == (ROUNDS, 1);
    begun.finish(&outcome.measures, &text, is_whole && !args.dry_run)?;
    Ok(())
}
