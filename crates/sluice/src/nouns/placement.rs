//! `sluice placement`: which cluster carries which VPC, and how that could be evened out.

use super::scheduler::{part, some_of};
use crate::api::ApiArgs;
use crate::failure::Failure;
use crate::output::{self, Format};
use clap::{Subcommand, ValueEnum};
use serde_json::{Value, json};
use sluice_client::{Client, Gateway, NewPlan, PlacementPlan, PlacementSettingsPatch, PlanSummary};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A plan that is waited for is looked at this often.
const LOOK: Duration = Duration::from_millis(500);

/// How moves are found.
#[derive(Clone, Copy, ValueEnum)]
pub enum Kind {
    /// Few moves that bring the fullest cluster near the mean
    Rebalance,
    /// All VPCs placed anew
    Solve,
}

/// `sluice placement`.
#[derive(Subcommand)]
pub enum Placement {
    /// Show what every cluster carries
    Show,
    /// Draw a plan of moves; nothing is done yet
    Plan {
        /// How moves are found
        #[arg(long, default_value = "rebalance")]
        kind: Kind,
        /// Of the random numbers of `solve`
        #[arg(long)]
        seed: Option<u64>,
        /// How far above the best the fullest cluster may stay
        #[arg(long, value_name = "PART", value_parser = part)]
        tolerance: Option<f64>,
    },
    /// List the plans that are kept
    Plans,
    /// Show a plan that was drawn
    ShowPlan {
        /// Its number
        plan: u64,
    },
    /// Carry a plan out, one step after the other, or go on where it was stopped
    Apply {
        /// Its number
        plan: u64,
        /// So many steps at a time
        #[arg(long, value_name = "N")]
        parallel: Option<u64>,
        /// Wait until it is done or stopped, at most so many seconds
        #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "300")]
        wait: Option<u64>,
    },
    /// Begin no more steps of a plan; those under way are finished
    Stop {
        /// Its number
        plan: u64,
    },
    /// Say what the site wants of placement
    #[command(group = some_of(&["clusters_per_tenant", "water_level", "gateway_capacity", "gateways"]))]
    Set {
        /// Clusters that one tenant's VPCs may be on
        #[arg(long, value_name = "K")]
        clusters_per_tenant: Option<usize>,
        /// To what part of its packet rate a cluster is filled, at most
        #[arg(long, value_name = "PART", value_parser = part)]
        water_level: Option<f64>,
        /// Packets a second of a gateway of which nothing else is known
        #[arg(long, value_name = "PPS")]
        gateway_capacity: Option<u64>,
        /// Packets a second of a gateway: NAME=PPS, or NAME=auto for what is estimated; repeatable
        #[arg(long = "gateway", value_name = "NAME=PPS")]
        gateways: Vec<String>,
    },
}

impl Placement {
    /// Runs the verb.
    pub async fn run(self, api: &ApiArgs) -> Result<(), Failure> {
        let client = api.client()?;
        match self {
            Self::Show => show(api, &client).await,
            Self::Plan { kind, seed, tolerance } => {
                let kind = match kind {
                    Kind::Rebalance => "rebalance",
                    Kind::Solve => "solve",
                };
                let new = NewPlan { kind: kind.to_owned(), seed, tolerance };
                show_plan(api, &client.plan_placement(&new).await?)
            }
            Self::Plans => {
                let columns = ["id", "state", "done", "steps", "parallel", "note"];
                output::list(api.output, &columns, &client.plans().await?)
            }
            Self::ShowPlan { plan } => show_plan(api, &client.plan(plan).await?),
            Self::Apply { plan, parallel, wait } => {
                let mut progress = client.apply_plan(plan, parallel).await?;
                if let Some(seconds) = wait {
                    progress = ended(&client, plan, Duration::from_secs(seconds)).await?;
                }
                output::one(api.output, &progress)
            }
            Self::Stop { plan } => output::one(api.output, &client.stop_plan(plan).await?),
            Self::Set { clusters_per_tenant, water_level, gateway_capacity, gateways } => {
                let mut patch = PlacementSettingsPatch {
                    clusters_per_tenant,
                    water_level,
                    gateway_capacity_pps: gateway_capacity,
                    gateways: BTreeMap::new(),
                };
                for text in gateways {
                    let (name, pps) = capacity(&text)?;
                    patch.gateways.insert(client.id_of::<Gateway>(name, &[]).await?, pps);
                }
                output::one(api.output, &client.set_placement(&patch).await?)
            }
        }
    }
}

/// The plan, once it is done or stopped, or as it is when the time is over.
async fn ended(client: &Client, plan: u64, limit: Duration) -> Result<PlanSummary, Failure> {
    let until = Instant::now() + limit;
    loop {
        let progress = client.plan(plan).await?.progress;
        if progress.state != "applying" || Instant::now() >= until {
            return Ok(progress);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// `NAME=PPS` or `NAME=auto`.
fn capacity(text: &str) -> Result<(&str, Option<u64>), Failure> {
    let wrong = || Failure::Usage(format!("`{text}` is not NAME=PPS or NAME=auto"));
    let (name, pps) = text.split_once('=').ok_or_else(wrong)?;
    match pps {
        "auto" => Ok((name, None)),
        pps => Ok((name, Some(pps.parse().map_err(|_| wrong())?))),
    }
}

fn percent(part: f64) -> String {
    format!("{:.1}%", part * 100.0)
}

async fn show(api: &ApiArgs, client: &Client) -> Result<(), Failure> {
    let placement = client.placement().await?;
    if api.output != Format::Table {
        return output::one(api.output, &placement);
    }
    let row = |cluster: &sluice_client::PlacementCluster| -> Value {
        json!({
            "id": cluster.id,
            "name": cluster.name,
            "load": cluster.load.map(percent),
            "demand pps": cluster.demand_pps,
            "capacity pps": cluster.capacity_pps,
            "entries": cluster.entries,
            "of": cluster.capacity_entries,
            "vpcs": cluster.vpcs,
            "gateways": cluster.gateways.len(),
        })
    };
    let rows: Vec<Value> = placement.clusters.iter().map(row).collect();
    let columns = ["id", "name", "load", "demand pps", "capacity pps", "entries", "of", "vpcs", "gateways"];
    output::list(api.output, &columns, &rows)?;
    output::print(&format!(
        "\n{} VPCs; the fullest cluster is at {}, at best it were at {}; {} tenants on more than {} clusters\n",
        placement.vpcs,
        percent(placement.lambda),
        percent(placement.lambda_at_least),
        placement.tenants_over_k,
        placement.settings.clusters_per_tenant
    ))
}

fn show_plan(api: &ApiArgs, plan: &PlacementPlan) -> Result<(), Failure> {
    if api.output != Format::Table {
        return output::one(api.output, plan);
    }
    let row = |(number, step): (u64, &sluice_client::PlanStep)| -> Value {
        let done = if number <= plan.progress.done { "done" } else { "" };
        json!({
            "step": number, "vpcs": step.vpcs, "from": step.from, "to": step.to,
            "entries": step.entries, "state": done, "why": step.text,
        })
    };
    let rows: Vec<Value> = (1..).zip(&plan.moves).map(row).collect();
    output::list(api.output, &["step", "vpcs", "from", "to", "entries", "state", "why"], &rows)?;
    output::print(&format!(
        "\nplan {} ({}): {} of {} steps done, {} entries to write; the fullest cluster goes from {} to {}, at \
         best it were at {}\n",
        plan.progress.id,
        plan.progress.state,
        plan.progress.done,
        plan.progress.steps,
        plan.entries,
        percent(plan.lambda_before),
        percent(plan.lambda),
        percent(plan.lambda_at_least)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacities_are_read() {
        assert_eq!(capacity("gw-1=5").unwrap(), ("gw-1", Some(5)));
        assert_eq!(capacity("edge=auto").unwrap(), ("edge", None));
        for text in ["edge", "edge=", "edge=-1", "edge=many"] {
            assert!(capacity(text).is_err(), "{text}");
        }
    }
}
