//! End-to-end scenarios on the lab: real processes, namespaces and packets.
//!
//! One file for each scenario. Most share one lab. Those that break the controller's database or the lab
//! itself, and those that need other gateways, create their own. They run one after the other:
//! `cargo test --workspace --test scenarios -- WORD...` runs those whose name contains a word, and `--list`
//! lists them. `SLUICE_BIN` is the path of a binary to use instead of building one. Needs root.
#![forbid(unsafe_code)]

mod across_hosts;
mod address_pairs;
mod addresses;
mod attack;
mod births;
mod connections;
mod crash;
mod credit;
mod database_killed;
mod default_class;
mod deletion;
mod demonstration;
mod dhcpv6;
mod direct_paths;
mod direct_sender;
mod disk_full;
mod foreign_host;
mod foreign_sender;
mod full_tables;
mod gateway_moves;
mod guarded_ports;
mod guest_delays;
mod guest_migration;
mod guests;
mod gwzone;
mod health;
mod history;
mod history_failover;
mod hostile_clients;
mod icmp_errors;
mod idle_paths;
mod internet;
mod isolation;
mod kernel_drops;
mod kernel_vxlan;
mod learning;
mod leftovers;
mod load_awareness;
mod lossless_takeover;
mod meter_shares;
mod migration;
mod migration_reset;
mod moved_instance;
mod nat;
mod nat64;
mod nat_failover;
mod nat_growth;
mod nat_kills;
mod nat_log;
mod nat_partition;
mod not_a_router;
mod overload;
mod path_mtu;
mod peered;
mod port_forwards;
mod preprogrammed;
mod public_prefixes;
mod qos;
mod readiness;
mod reconciliation;
mod removals;
mod rsp_forged;
mod rsp_tenant;
mod same_host;
mod security_groups;
mod self_configuration;
mod services;
mod session_timeouts;
mod spoofing;
mod stalls;
mod streams;
mod support;
mod table_digests;
mod takeover;
mod takeover_default;
mod tcp;
mod two_labs;
mod udp;
mod underlays;
mod vpc_meter;
mod vpc_moves;

use futures::future::{FutureExt, LocalBoxFuture};
use sluice_lab::{Lab, Options, down};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Failure, Outcome, describe};

/// `make soak` runs these scenarios, and a word that their name contains. The last three take minutes, `guests` and `guest_migration` because there is no KVM. For
/// each of the others, the common path has one that is like it, except `health`, whose rules have unit tests: it waits for a quiet minute.
const LONG: [&str; 14] = [
    "credit",
    "default_class",
    "health",
    "gwzone",
    "history_failover",
    "load_awareness",
    "nat_partition",
    "session_timeouts",
    "takeover_default",
    "vpc_meter",
    "guests",
    "guest_migration",
    "migration_reset",
    "nat_kills",
];
/// A scenario that takes longer than this and [`support::soak`] is considered to hang. Emulated guests
/// need 4 minutes on a busy machine.
const DURATION_MAX: Duration = Duration::from_secs(480);
/// Runs of one scenario, if all but the last are inconclusive.
const ATTEMPTS: usize = 3;
/// Repeated runs of all scenarios together. A machine that needs more cannot judge Sluice, and must not pass.
const INCONCLUSIVE_MAX: usize = 8;

/// The input of a scenario.
#[derive(Clone)]
struct Ground {
    /// The lab shared with other scenarios; absent for those that make their own.
    lab: Option<Arc<Lab>>,
    /// The binary, for scenarios that create their own lab.
    binary: PathBuf,
    /// A lab name for scenarios that create their own lab.
    name: String,
    /// Number of the run of this scenario, from 1: objects that it creates in a shared lab need other names
    /// in each run.
    attempt: usize,
}

impl Ground {
    fn lab(&self) -> Result<&Lab, Failure> {
        self.lab.as_deref().ok_or_else(|| Failure::new("this scenario was given no lab"))
    }
}

struct Scenario {
    name: &'static str,
    place: Place,
    run: fn(Ground) -> LocalBoxFuture<'static, Outcome>,
}

/// The lab of a scenario.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// The lab shared with other scenarios.
    SharedLab,
    /// A lab that the scenario creates.
    OwnLab,
}

macro_rules! scenarios {
    ($($module:ident: $place:ident),* $(,)?) => {
        [$(Scenario {
            name: stringify!($module),
            place: Place::$place,
            run: |ground| async move { $module::scenario(&ground).await }.boxed_local(),
        }),*]
    };
}

/// The scenarios, in the order in which they run.
fn all() -> Vec<Scenario> {
    scenarios![
        self_configuration: SharedLab,
        dhcpv6: SharedLab,
        same_host: SharedLab,
        across_hosts: SharedLab,
        peered: SharedLab,
        underlays: SharedLab,
        isolation: SharedLab,
        udp: SharedLab,
        icmp_errors: SharedLab,
        path_mtu: SharedLab,
        spoofing: SharedLab,
        not_a_router: SharedLab,
        reconciliation: SharedLab,
        direct_paths: SharedLab,
        rsp_tenant: SharedLab,
        rsp_forged: SharedLab,
        idle_paths: SharedLab,
        kernel_vxlan: SharedLab,
        deletion: SharedLab,
        foreign_host: SharedLab,
        foreign_sender: SharedLab,
        direct_sender: SharedLab,
        crash: SharedLab,
        tcp: OwnLab,
        security_groups: OwnLab,
        qos: OwnLab,
        credit: OwnLab,
        default_class: OwnLab,
        addresses: OwnLab,
        internet: OwnLab,
        public_prefixes: OwnLab,
        meter_shares: OwnLab,
        vpc_meter: OwnLab,
        demonstration: OwnLab,
        nat: OwnLab,
        nat64: OwnLab,
        nat_log: OwnLab,
        nat_failover: OwnLab,
        nat_growth: OwnLab,
        nat_kills: OwnLab,
        nat_partition: OwnLab,
        port_forwards: OwnLab,
        connections: OwnLab,
        services: OwnLab,
        session_timeouts: OwnLab,
        attack: OwnLab,
        guests: OwnLab,
        guest_migration: OwnLab,
        moved_instance: OwnLab,
        migration: OwnLab,
        migration_reset: OwnLab,
        vpc_moves: OwnLab,
        gateway_moves: OwnLab,
        guarded_ports: OwnLab,
        health: OwnLab,
        database_killed: OwnLab,
        disk_full: OwnLab,
        history: OwnLab,
        history_failover: OwnLab,
        takeover: OwnLab,
        takeover_default: OwnLab,
        lossless_takeover: OwnLab,
        readiness: OwnLab,
        table_digests: OwnLab,
        overload: OwnLab,
        load_awareness: OwnLab,
        full_tables: OwnLab,
        preprogrammed: OwnLab,
        births: OwnLab,
        gwzone: OwnLab,
        learning: OwnLab,
        two_labs: OwnLab,
        removals: OwnLab,
        leftovers: OwnLab,
    ]
    .into()
}

#[tokio::main]
async fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let mut chosen = all();
    chosen.retain(|scenario| match &*words {
        [] => !LONG.contains(&scenario.name) || !support::soak().is_zero(),
        words => words.iter().any(|word| scenario.name.contains(word)),
    });
    if std::env::args().any(|word| word == "--list") {
        chosen.iter().for_each(|scenario| println!("{}: test", scenario.name));
        return ExitCode::SUCCESS;
    }
    remove_stale().await;
    stalls::watch();
    let begin = Instant::now();
    println!("\nrunning {} tests", chosen.len());
    let total = chosen.len();
    let failed = match binary() {
        Ok(binary) => run(chosen, &binary).await,
        Err(failure) => {
            println!("no binary: {failure}");
            total
        }
    };
    let (word, passed) = (if failed == 0 { "ok" } else { "FAILED" }, total - failed);
    println!(
        "\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out; \
         finished in {:.2}s\n",
        begin.elapsed().as_secs_f64()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the scenarios. Returns how many failed.
async fn run(chosen: Vec<Scenario>, binary: &Path) -> usize {
    let base = format!("s{}", std::process::id());
    let mut shared = None;
    if chosen.iter().any(|scenario| scenario.place == Place::SharedLab) {
        let begin = Instant::now();
        let options = Options::standard(&base, binary);
        let lab = match options {
            Ok(options) => Lab::up(options).await,
            Err(error) => Err(error),
        };
        match lab {
            Ok(lab) => {
                println!("lab {base} is up after {:.1} s", begin.elapsed().as_secs_f64());
                shared = Some(Arc::new(lab));
            }
            Err(error) => println!("lab {base} does not come up: {}", describe(&error)),
        }
    }
    let mut tally = Tally::default();
    for (number, scenario) in chosen.iter().enumerate() {
        let lab = shared.clone().filter(|_| scenario.place == Place::SharedLab);
        run_until_conclusive(scenario, lab, binary, &format!("{base}x{number}"), &mut tally).await;
    }
    if tally.inconclusive > 0 {
        println!(
            "{} runs were inconclusive, because the machine stood still, and were repeated",
            tally.inconclusive
        );
    }
    let mut failed = tally.failed;
    if shared.is_some() && std::env::var_os("SLUICE_KEEP_LAB").is_none() && !remove(&base).await {
        failed = failed.max(1);
    }
    failed
}

/// The results of all runs.
#[derive(Default)]
struct Tally {
    failed: usize,
    inconclusive: usize,
}

/// Runs a scenario, again if a bound was exceeded while the machine stood still (`stalls`): such a run says
/// nothing about Sluice. A scenario without a conclusive run has failed, and so has one that needs more
/// repetitions than all scenarios together may have.
async fn run_until_conclusive(
    scenario: &Scenario,
    lab: Option<Arc<Lab>>,
    binary: &Path,
    name: &str,
    tally: &mut Tally,
) {
    for attempt in 1..=ATTEMPTS {
        let ground = Ground {
            lab: lab.clone(),
            binary: binary.to_owned(),
            name: format!("{name}a{attempt}"),
            attempt,
        };
        let begin = Instant::now();
        let outcome = run_once(scenario, ground).await;
        let (seconds, stalls) = (begin.elapsed().as_secs_f64(), stalls::since(begin));
        let failure = match outcome {
            Ok(()) => return println!("test {} ... ok ({seconds:.1} s)", scenario.name),
            Err(failure) => failure,
        };
        let repeats = attempt < ATTEMPTS && tally.inconclusive < INCONCLUSIVE_MAX;
        if failure.is_late() && stalls.count > 0 && repeats {
            tally.inconclusive += 1;
            println!("    {} is inconclusive after {seconds:.1} s: {failure}\n    {stalls}", scenario.name);
            continue;
        }
        tally.failed += 1;
        println!("test {} ... FAILED ({seconds:.1} s)\n    {failure}\n    {stalls}", scenario.name);
        if let Some(lab) = &lab {
            println!("{}", streams::evidence(lab).await);
        }
        return;
    }
}

async fn run_once(scenario: &Scenario, ground: Ground) -> Outcome {
    let own_lab = ground.lab.is_none().then(|| ground.name.clone());
    let future = AssertUnwindSafe((scenario.run)(ground)).catch_unwind();
    let duration_max = DURATION_MAX + support::soak();
    let outcome = match tokio::time::timeout(duration_max, future).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(Failure::new("panicked")),
        Err(_) => Err(Failure::late(format!("not done after {} s", duration_max.as_secs()))),
    };
    if let Some(name) = own_lab {
        let keep = outcome.is_err() && std::env::var_os("SLUICE_KEEP_LAB").is_some();
        if !keep {
            remove(&name).await;
        }
    }
    outcome
}

async fn remove(name: &str) -> bool {
    match down(name).await {
        Ok(()) => true,
        Err(error) => {
            println!("lab {name} does not go down: {}", describe(&error));
            false
        }
    }
}

/// Removes labs of earlier runs whose process has ended.
async fn remove_stale() {
    let entries = std::fs::read_dir("/run/sluice-lab").into_iter().flatten().flatten();
    for name in entries.filter_map(|entry| entry.file_name().into_string().ok()) {
        let pid = name.strip_prefix('s').map(|rest| rest.split('x').next().unwrap_or(rest));
        let stale = pid.is_some_and(|pid| {
            !pid.is_empty()
                && pid.bytes().all(|b| b.is_ascii_digit())
                && !Path::new("/proc").join(pid).exists()
        });
        if stale {
            remove(&name).await;
        }
    }
}

/// The binary under test. Builds it if `SLUICE_BIN` is not set.
fn binary() -> Result<PathBuf, Failure> {
    if let Some(binary) = std::env::var_os("SLUICE_BIN") {
        return Ok(binary.into());
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = std::process::Command::new(cargo).args(["build", "--quiet", "-p", "sluice"]).status();
    if !status.as_ref().is_ok_and(std::process::ExitStatus::success) {
        return Err(Failure::new(format!("`cargo build -p sluice` failed: {status:?}")));
    }
    // TARGET/debug/deps/scenarios-HASH is next to TARGET/debug/sluice.
    let own = std::env::current_exe().map_err(|error| Failure::new(error.to_string()))?;
    let directory = own.parent().and_then(Path::parent).unwrap_or(Path::new("."));
    Ok(directory.join("sluice"))
}
