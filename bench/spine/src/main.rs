//! The command of `make bench-spine`; the library measures.
#![forbid(unsafe_code)]

use clap::Parser;
use sluice_bench_report::{Run, shell::Failure};
use sluice_bench_spine::forward::Effort;
use sluice_bench_spine::lab::in_lab;
use sluice_bench_spine::tcp::Stream;
use sluice_bench_spine::{cores, digests, forward, ns, programming, stages, tcp, vswitch};
use sluice_lab::Lab;
use std::path::{Path, PathBuf};

/// Measure the gateway program, the vSwitch, traffic of VMs, programming and digests of tables, with their peers
#[derive(Parser)]
struct Args {
    /// The sluice binary that the lab runs
    #[arg(long, default_value = "target/release/sluice")]
    binary: PathBuf,
    /// Seconds of a measurement of packet rates; those of TCP take three times as long
    #[arg(long, default_value_t = SECONDS)]
    seconds: f64,
    /// Rounds, in each of which every side is measured once
    #[arg(long, default_value_t = ROUNDS)]
    rounds: usize,
    /// Rounds of the programming part, each in a new lab
    #[arg(long, default_value_t = PROGRAMMING_ROUNDS)]
    programming_rounds: usize,
    /// Largest table for which the kernel and Open vSwitch are measured
    #[arg(long, default_value_t = PEERS_TO)]
    peers_to: u32,
    /// Measure only these sizes of the VM-NC table in the parts ns, stages, forward and cores
    #[arg(long, value_delimiter = ',', default_value = "2k,100k,1m")]
    sizes: Vec<String>,
    /// Measure only these parts
    #[arg(long, value_delimiter = ',', default_values_t = PARTS.map(str::to_owned))]
    parts: Vec<String>,
    /// Print the results without recording them
    #[arg(long)]
    dry_run: bool,
}

const LAB: &str = "benchspine";
const SECONDS: f64 = 0.5;
const ROUNDS: usize = 10;
const PROGRAMMING_ROUNDS: usize = 3;
const PEERS_TO: u32 = 1_000_000;
const PARTS: [&str; 8] = ["ns", "stages", "forward", "cores", "vswitch", "tcp", "programming", "digests"];

/// Explanation of the measurements for readers of the results.
const METHOD: &str = "\
`gateway_*`: the gateway's program as the product is installed, with flow detection on and an agent that reads the
events. It forwards VXLAN packets of 110 bytes to random ones of 2k, 100k or 1M VMs, all behind one route; `_routed`:
each VM behind a route of its own. All sides of a measure take turns, in every second round in reverse order, each in
its own network namespace with its own generator. `gateway_ns`, `gateway_routed_ns`: the program alone, by
`BPF_PROG_TEST_RUN`, without the time of the generator. `gateway_mpps`: through a pair of interfaces. **The generator
and the sink run on the same core as what they measure, the reflector included**: it swaps addresses and sends back,
so its figure is the ceiling of this rig, not of a gateway on a core of its own, and ratios to it are nearer to 1 than
they would be there. `gateway_over_reflector_ns` is what a packet takes longer than through the reflector, in which
generator and sink cancel out. `stage_*`: what a stage of the fast path adds to the program that ends before it, in
time and in instructions that the verifier processes; `machine_code_*`: bytes of all functions. `minimal`: an XDP
program that finds host and MAC addresses in one BPF hash and rewrites the same headers; it has no routes, no IPv6 and
no counters, and checks neither the sender nor what a tenant's frame contains. `kernel_vxlan`: one VXLAN device with a
fixed VNI and without learning, with the same number of routes, and a permanent neighbor entry (address to MAC) and
FDB entry (MAC to host) for each VM. `kernel_nexthops`: a device in external mode, a route for each VM that refers to
a nexthop object with the encapsulation to its host, and no neighbor and FDB entries; it writes the same inner MAC for
all VMs, so it does less. `ovs_netdev`: Open vSwitch's user-space datapath with one flow for each VM; it has the
second core. `gateway_two_cores` (Zeta figure 11): the program alone on two cores at once, without interfaces,
compared with the mean of one core alone before that and the other core alone after that. `vswitch_*_ns`: what a
packet takes longer through a host, from the interface that receives it to the driver of the underlay interface or to
the VM's own end of its interface, than a packet that ends where it is received. `out`: to the gateway group,
`direct`: by a direct path, both to 1,024 VMs; `in`: from a gateway; `local`: between VMs of the host; `_plain`: to a
VM that is reached only through its port, as with a tap, and not into its namespace. The packets have 64 bytes of UDP
payload and belong to 32,768 flows; `_gso`: TCP packets of 62,604 bytes that stay whole. `_program`: the program
alone. `kernel`: a bridge with a VXLAN device and the same interfaces, as fast as the kernel can: every MAC has a
static entry, nothing is learned, no source is checked, and no rule of netfilter is called. Our host has all checks
and the guard's rules. The hooks of br_netfilter, which is built into this kernel, are part of the peer's figures
although they are switched off: by samples about 40 ns. `vm_tcp_gbps`: iperf3 between VMs on two hosts, for three
times as long as a packet rate. `program_*_s`: from a bulk call to the last gateway's acknowledgment, each round in a
new lab; the stages are those of the round with the median. `digest_core_pct`: the part of a core that a gateway with
1.1M endpoints takes to compare its tables with the controller's, for each of two gateways in windows of 15 s.
`digest_found_s`, `digest_repaired_s`: from a flipped bit in an endpoint of such a gateway until the controller finds
it, and until lookups are right again.";

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let args = Args::parse();
    if let Some(unknown) = args.parts.iter().find(|part| !PARTS.contains(&part.as_str())) {
        return Err(format!("there is no part {unknown}; the parts are: {}", PARTS.join(", ")).into());
    }
    let run = Run::begin("spine")?;
    let effort = Effort { seconds: args.seconds, rounds: args.rounds.max(1), peers_to: args.peers_to };
    let topology = Path::new(env!("CARGO_MANIFEST_DIR")).join("lab.yaml");
    let wants = |part: &str| args.parts.iter().any(|wanted| wanted == part);
    let (mut measures, mut notes) = (Vec::new(), Vec::new());
    if wants("ns") {
        let sizes = args.sizes.clone();
        measures.extend(tokio::task::spawn_blocking(move || ns::measure(effort, &sizes)).await??);
    }
    if wants("stages") {
        let sizes = args.sizes.clone();
        measures.extend(tokio::task::spawn_blocking(move || stages::measure(effort, &sizes)).await??);
    }
    if wants("forward") {
        let sizes = args.sizes.clone();
        measures.extend(tokio::task::spawn_blocking(move || forward::measure(effort, &sizes)).await??);
    }
    if wants("cores") {
        let sizes = args.sizes.clone();
        measures.extend(tokio::task::spawn_blocking(move || cores::measure(effort, &sizes)).await??);
    }
    if wants("vswitch") {
        measures.extend(tokio::task::spawn_blocking(move || vswitch::measure(effort)).await??);
    }
    if wants("tcp") {
        let effort = Effort { seconds: effort.seconds * 3.0, ..effort };
        measures.extend(
            in_lab(LAB, &topology, &args.binary, async |lab| tcp::measure(&lab, effort, Stream::Tcp).await)
                .await?,
        );
    }
    if wants("programming") || wants("digests") {
        // Digests need the entries of a programming round. They are measured in the last one.
        let last = if wants("programming") { args.programming_rounds.max(1) } else { 1 };
        let (mut rounds, mut of_digests) = (Vec::new(), Vec::new());
        for round in 1..=last {
            let work = async |lab: Lab| {
                rounds.extend(programming::program(&lab).await?);
                if round == last && wants("digests") {
                    of_digests = digests::measure(&lab).await?;
                }
                Ok(())
            };
            in_lab(LAB, &topology, &args.binary, work).await?;
        }
        if wants("programming") {
            let (more, stages) = programming::report(rounds);
            measures.extend(more);
            notes.extend(stages);
        }
        measures.extend(of_digests);
    }
    let how =
        format!("{} rounds of {} s, {} of programming", args.rounds, args.seconds, args.programming_rounds);
    let text = run.section("Spine", &how, METHOD, &measures, &notes)?;
    let is_whole = PARTS.iter().all(|part| wants(part))
        && forward::SIZES.iter().all(|(_, size)| args.sizes.iter().any(|wanted| wanted == size))
        && (args.rounds, args.programming_rounds, args.peers_to) == (ROUNDS, PROGRAMMING_ROUNDS, PEERS_TO)
        && args.seconds >= SECONDS;
    run.finish(&measures, &text, is_whole && !args.dry_run)?;
    Ok(())
}
