//! `make bench-cluster`: see the library.
#![forbid(unsafe_code)]

use clap::Parser;
use sluice_bench_cluster::{Settings, parts, run};
use sluice_bench_report::{self as report, shell::Failure};
use std::path::{Path, PathBuf};

/// Measures gateway clusters
#[derive(Parser)]
struct Args {
    /// Rounds; the median counts
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Divides all sizes, for a quick look
    #[arg(long, default_value_t = 1)]
    scale: usize,
    /// The sluice binary that the lab runs
    #[arg(long, default_value = "target/release/sluice")]
    binary: PathBuf,
    /// Only these parts
    #[arg(long, value_delimiter = ',', default_values_t = parts().into_iter().map(str::to_owned))]
    parts: Vec<String>,
    /// Print only, record nothing
    #[arg(long)]
    dry_run: bool,
}

/// How figures were made, for who reads them.
const METHOD: &str = "\
`rgcm`: VPCs and tenants in numbers as in the paper's public cloud (1885 of 568, on 10 clusters), and 33,000 of
10,000 on 50. As in the paper's example (section VI-A.4), all VPCs together need 0.6 of what all clusters forward,
and the largest VPC 1/40 of a cluster: the VPC of rank r needs min(1/40, a / r^s), Zipf's law cut off there, with s
of 0.8, 1 and 1.2. Each tenant has one VPC; the others are drawn by Zipf's law, s = 1. A VPC has 2 to 364
entries, by Zipf's law of another order. k is 20 on 50 clusters as in the paper, and 4 on 10. `_s`: one thread, LP
included, the slowest of all cases. `rgcm_lambda_ratio`: lambda by the lower bound of LP-GCM, the worst of all cases;
`rgcm_tenants_over_k`: the sum of all. Beside them, `rounding_only`: the first rounding of the same fractions,
not repaired. The paper proves 4.2 for lambda and 4.4 k for tenants. `rgcm_lp_471_s`: the LP alone of a quarter of the
first cloud, in classes, and as it stands.

`push` (figure 24): a controller and 45 gateways in one process; gateways enrol and open their streams over mutual TLS,
read every entry of every update, acknowledge, and have no tables. Ten bulk calls of a tenth of the rules each, all at
once, a VPC each; `_s`: from the calls to the last acknowledgement of a gateway that the rules concern, so parsing and
committing them to SQLite are part of it; `_after_store_s`: from the last call's answer. `gwzone`: the same with all
gateways in one cluster, since a zone's gateway needs the rules of all destinations. The paper's controller takes 3.3 s
for 100k, and 7.8 s for GWZone.

`launch` (figure 25): the controller and gateways of `push`, and 100 hosts that enrol, follow and acknowledge as these do.
100,000 instances of VPCs of the sizes of `rgcm`, each on a host that is drawn; calls of up to 50 instances of a VPC, 16 calls
at a time. `_s`: from the first call to the last acknowledgement of a host or gateway that a call concerns. `_entries`: by
which hosts find instances of other hosts: a default entry for each VPC that a host has an instance of, and direct paths.
`preprogrammed`: the controller as `--model preprogrammed` (docs/decisions/models.md). No container is started, and the
simulated hosts write no tables, so the seconds are the controller's, and much alike as long as it is the database that takes
them. The paper: 12k entries and 3178 s, and 3.4M and 4097 s, with containers, on 20 hosts.

`burst` (figures 12 to 18): computed. 100 VPCs of 10 to 90 VMs, 45 gateways in 10 clusters; VPCs are placed by RGCM, and
flows spread over a cluster's vIPs by hash. `gwzone`: VMs in 45 zones, each with a gateway, in the order in which they were
started, VPC by VPC; `_scattered`: VMs on any host. An elephant loads its gateway until it has crossed 20 kbit/s, and 5 ms more, in both.
The most loaded gateway by the mean, in the window of 0.5 s in which it is largest; medians of 5 draws a round.
`mapreduce`: all VMs of a VPC to each other, all VPCs at once; `staggered`: each VPC at its own time in 10 s, which is one
tenant's burst: it stays on the cluster of its VPC, as it is meant to. `video`, `audio`: 10,000 flows begin within 10 s.
`burst_max_over_mean`: the worst of the paper's three. The paper's maximum is 18 to 34% below GWZone's.

`detection` (figures 8 and 9): the gateway's program on one core, on the spine's rig, without and with detection, in turns;
the table of flows has twice the room that is needed, each flow of enough packets is told once a second, and an agent reads
what is told. `_pct`: of the packets a second that come back, the median of pairs of a quarter of a second each; `_ns`: of
the program's time for a packet. `2k`, `100k`: as many destinations, a flow to each; `_to_2k`: that many flows to 2,000 destinations. `detection_cost_pct` is the worse of
`2k` and `100k`. The paper: 1.2%, and flat to 100k.

`offload` (figure 10): the lab, with three gateways. A VM begins a flow to another destination each millisecond, 500 in
all, each a packet of 1342 bytes every half millisecond for 30 ms; the clock is the kernel's at the destination's host, from
the packet by which 2,500 bytes have come (20 kbit/s in a second) to the first that does not come from a gateway; a flow that
gets none counts as 30 ms. `gwzone`: the same under `--model gwzone`: the first host counts, and asks its gateway for the path.
The paper: tens of milliseconds.

`failover` (figure 22): a VM sends a packet every half millisecond through the gateway that is then killed: its link, and its
agent by SIGKILL. The switch does not flood what it does not know, else the other gateways forward it and nothing is lost. `total`: packets lost, in milliseconds; `pure`: from the first announcement of a new owner to the
next packet. `gwzone`: the same under `--model gwzone`, two primaries and a backup: the controller finds that the gateway
has failed, and tells the hosts of its zone. The paper: 38.5 and 5.5 ms, and 1.5 times the total for GWZone.

`overload` (figure 23): 60 flows of a VM grow fourfold at once. The gateway that carries most of them is said to be able to
forward 1/1.1 of what it gets then: in the lab all gateways share the processors, so that they cannot be what runs out. From
the burst's first packet to when flows that leave this gateway have left; one that nothing leaves within the second of the
burst counts as that. Five bursts a round, each when all vIPs are at home and have come to rest. The paper: 120 ms until it acts, and
19.5 ms more.";

fn main() -> Result<(), Failure> {
    let args = Args::parse();
    let settings = Settings {
        rounds: args.rounds.max(1),
        scale: args.scale.max(1),
        binary: args.binary,
        parts: args.parts,
    };
    let outcome = run(&settings)?;
    let table = report::table(&outcome.measures);
    let notes: String = outcome.notes.iter().map(|note| format!("- {note}\n")).collect();
    print!("{table}\n{notes}");
    if !args.dry_run {
        let text = format!(
            "## Clusters\n\n`make bench-cluster`, {}; medians of {} rounds{}.\n\n{METHOD}\n\n{table}\n{notes}",
            report::machine()?,
            settings.rounds,
            if settings.scale > 1 { format!(", sizes divided by {}", settings.scale) } else { String::new() },
        );
        let bench = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        report::record(&bench, "cluster", &outcome.measures, &text)?;
    }
    Ok(())
}
