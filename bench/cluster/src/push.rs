//! Rules pushed to 45 gateways (Zeta figure 24).

use crate::fleet::Fleet;
use crate::{Failure, Outcome, Settings};
use sluice_bench_report::{Measure, median};
use std::time::Instant;
use tokio::task::JoinSet;

const RULES: [(usize, &str); 2] = [(10_000, "10k"), (100_000, "100k")];
/// VPCs that the rules are of; as many calls are under way at once.
const VPCS: usize = 10;
const HOSTS: usize = 20;

/// Times of one push.
#[derive(Default)]
struct Times {
    total: Vec<f64>,
    after_store: Vec<f64>,
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
        let mut beside = |measure: String, ours, theirs| {
            let measure = Measure::beside_less(measure, "s", median(ours), "gwzone", Some(median(theirs)));
            outcome.measures.push(measure);
        };
        beside(format!("push_{name}_45gw_s"), ours.total, zones.total);
        beside(format!("push_{name}_45gw_after_store_s"), ours.after_store, zones.after_store);
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
    let before = fleet.entries();
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
    times.total.push(total.as_secs_f64());
    times.after_store.push((total - stored).as_secs_f64());
    times.entries = fleet.entries() - before;
    fleet.stop().await
}
