//! Rules pushed to 45 gateways, and the processor time of the controller for it (Zeta figure 24). It changes with
//! what the controller sends to gateways.

use crate::fleet::Fleet;
use crate::{Failure, Outcome, Settings};
use sluice_bench_report::{Better, Measure};
use std::time::Instant;
use tokio::task::JoinSet;

const RULES: [(usize, &str); 2] = [(10_000, "10k"), (100_000, "100k")];
/// VPCs of the rules, with one call for each, all at once.
const VPCS: usize = 10;
const HOSTS: usize = 20;

/// Times of one push.
#[derive(Default)]
struct Times {
    total: Vec<f64>,
    after_store: Vec<f64>,
    /// Processor time of the controller.
    processor: Vec<f64>,
    entries: u64,
}

pub fn measure(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    for (rules, name) in RULES {
        let rules = (rules / settings.scale).max(VPCS);
        let (mut ours, mut zones) = (Times::default(), Times::default());
        let clusters = settings.clusters();
        let gateways: usize = clusters.iter().sum();
        for _ in 0..settings.rounds {
            runtime.block_on(push(&clusters, rules, &mut ours))?;
            // GWZone has no clusters: each gateway may receive packets of any tenant, so each needs all rules.
            runtime.block_on(push(&[gateways], rules, &mut zones))?;
        }
        outcome.note(format!(
            "push_{name}: {} entries in all to {gateways} gateways in {} clusters, {} if each gateway has all",
            ours.entries,
            clusters.len(),
            zones.entries
        ));
        for (measure, ours, theirs) in [
            ("s", &ours.total, &zones.total),
            ("after_store_s", &ours.after_store, &zones.after_store),
            ("cpu_s", &ours.processor, &zones.processor),
        ] {
            let measure = format!("push_{name}_45gw_{measure}");
            outcome.measures.push(Measure::zipped(measure, "s", Better::Less, ours, ("gwzone", theirs)));
        }
    }
    Ok(())
}

async fn push(sizes: &[usize], rules: usize, times: &mut Times) -> Result<(), Failure> {
    let mut fleet = Fleet::start(sizes).await?;
    let hosts = fleet.hosts(HOSTS).await?;
    let vpcs = fleet.vpcs(VPCS).await?;
    for vpc in &vpcs {
        fleet.acknowledged(vpc.cluster, vpc.revision).await?;
    }
    let (before, processor) = (fleet.entries(), fleet.controller_seconds()?);
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for vpc in vpcs {
        let one = |number: usize| vpc.instance(number, hosts[number % hosts.len()].id);
        let instances: Vec<_> = (0..rules / VPCS).map(one).collect();
        let api = fleet.api.clone();
        calls.spawn(async move { (vpc.cluster, api.create_instances(vpc.id, &instances).await) });
    }
    let mut created = Vec::new();
    while let Some(call) = calls.join_next().await {
        let (cluster, answer) = call?;
        created.push((cluster, answer?.revision));
    }
    let stored = start.elapsed();
    for (cluster, revision) in created {
        fleet.acknowledged(cluster, revision).await?;
    }
    let total = start.elapsed();
    times.processor.push(fleet.controller_seconds()? - processor);
    times.total.push(total.as_secs_f64());
    times.after_store.push((total - stored).as_secs_f64());
    times.entries = fleet.entries() - before;
    fleet.stop().await
}
