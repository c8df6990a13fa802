//! `sluice placement VERB`: the load of each cluster, and plans of VPC moves that balance the loads.

use super::resource::Run;
use super::scheduler::{number, percent};
use crate::api::ApiArgs;
use crate::failure::Failure;
use crate::output::{self, Format};
use clap::{ArgGroup, Subcommand, ValueEnum};
use serde_json::{Value, json};
use sluice_client::{Client, Gateway, NewPlan, PlacementPlan, PlacementSettingsPatch, PlanSummary};
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Clone, Copy, ValueEnum)]
pub enum PlanKind {
    /// Few moves that bring the most loaded cluster near the mean
    Rebalance,
    /// A new placement of all VPCs
    Solve,
}

/// Requires at least one of these options.
fn some_of(options: &[&'static str]) -> ArgGroup {
    ArgGroup::new("settings").args(options).required(true).multiple(true)
}

/// `sluice placement VERB`.
#[derive(Subcommand)]
pub enum Placement {
    /// Show the load of every cluster
    Show,
    /// Compute a plan of VPC moves; nothing moves until the plan is applied
    Plan {
        /// How the moves are computed
        #[arg(long, default_value = "rebalance")]
        kind: PlanKind,
        /// Seed of the random numbers that `solve` uses
        #[arg(long)]
        seed: Option<u64>,
        /// Stop improving when the most loaded cluster is at most this far above the lower bound; 0.1 is 10%
        #[arg(long, value_name = "FRACTION", value_parser = number::<f64>)]
        tolerance: Option<f64>,
    },
    /// List the stored plans
    Plans,
    /// Show a stored plan
    ShowPlan {
        /// Number of the plan
        plan: u64,
    },
    /// Carry out a plan step by step, or resume a plan that was stopped
    Apply {
        /// Number of the plan
        plan: u64,
        /// Number of steps that may be in progress at the same time
        #[arg(long, value_name = "N")]
        parallel: Option<u64>,
        /// Wait until the plan is done or stopped, for at most SECONDS [300 if left out]
        #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "300")]
        wait: Option<u64>,
    },
    /// Start no more steps of a plan; steps in progress are finished
    Stop {
        /// Number of the plan
        plan: u64,
    },
    /// Change the settings of placement
    #[command(group = some_of(&["clusters_per_tenant", "water_level", "gateway_capacity_pps", "gateways"]))]
    Set {
        #[command(flatten)]
        values: SetArgs,
        /// Capacity of one gateway in packets per second: NAME=PPS, or NAME=auto for the estimate; repeatable
        #[arg(long = "gateway", value_name = "NAME=PPS")]
        gateways: Vec<String>,
    },
}

macro_rules! declare_options {
    ($($(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:literal, $unit:literal $option:literal, $min:literal to $max:literal;)+) => {
        /// Options of `sluice placement set` for settings with one value.
        #[derive(clap::Args)]
        #[group(skip)]
        pub struct SetArgs {
            $(
                $(#[doc = $doc])+
                #[arg(long = $option, value_name = $unit, value_parser = number::<$type>)]
                $name: Option<$type>,
            )+
        }

        impl From<SetArgs> for PlacementSettingsPatch {
            fn from(args: SetArgs) -> Self {
                Self { $($name: args.$name,)+ gateways: BTreeMap::new() }
            }
        }
    };
}

sluice_types::placement_settings!(declare_options);

impl Run for Placement {
    async fn run(self, api: &ApiArgs, client: &Client) -> Result<(), Failure> {
        match self {
            Self::Show => show(api, client).await,
            Self::Plan { kind, seed, tolerance } => {
                let kind = match kind {
                    PlanKind::Rebalance => "rebalance",
                    PlanKind::Solve => "solve",
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
                let progress = client.apply_plan(plan, parallel).await?;
                let Some(seconds) = wait else { return output::one(api.output, &progress) };
                let progress = client.wait_plan(plan, Duration::from_secs(seconds)).await?;
                output::one(api.output, &progress)?;
                outcome(&progress, seconds)
            }
            Self::Stop { plan } => output::one(api.output, &client.stop_plan(plan).await?),
            Self::Set { values, gateways } => {
                let mut patch = PlacementSettingsPatch::from(values);
                for text in gateways {
                    let (name, pps) = parse_capacity(&text)?;
                    patch.gateways.insert(client.id_of::<Gateway>(name, &[]).await?, pps);
                }
                output::one(api.output, &client.set_placement(&patch).await?)
            }
        }
    }
}

/// The outcome of a wait for the end of a plan.
fn outcome(progress: &PlanSummary, seconds: u64) -> Result<(), Failure> {
    let PlanSummary { id: plan, done, steps, .. } = *progress;
    match progress.state.as_str() {
        "done" => Ok(()),
        "applying" => Err(Failure::PlanNotDone { plan, seconds, done, steps }),
        _ => Err(Failure::PlanStopped { plan, done, steps, note: progress.note.clone() }),
    }
}

/// Parses `NAME=PPS` or `NAME=auto`.
fn parse_capacity(text: &str) -> Result<(&str, Option<u64>), Failure> {
    let wrong = || Failure::Usage(format!("`{text}` is not NAME=PPS or NAME=auto"));
    let (name, pps) = text.split_once('=').ok_or_else(wrong)?;
    match pps {
        "auto" => Ok((name, None)),
        pps => Ok((name, Some(pps.parse().map_err(|_| wrong())?))),
    }
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
            "max entries": cluster.capacity_entries,
            "vpcs": cluster.vpcs,
            "gateways": cluster.gateways.len(),
        })
    };
    let rows: Vec<Value> = placement.clusters.iter().map(row).collect();
    let columns =
        ["id", "name", "load", "demand pps", "capacity pps", "entries", "max entries", "vpcs", "gateways"];
    output::list(api.output, &columns, &rows)?;
    output::print(&format!(
        "\n{} VPCs; most loaded cluster: {} (lower bound {}); {} tenants use more than {} clusters\n",
        placement.vpcs,
        percent(placement.max_load),
        percent(placement.max_load_lower_bound),
        placement.tenants_over_cluster_limit,
        placement.settings.clusters_per_tenant
    ))
}

fn show_plan(api: &ApiArgs, plan: &PlacementPlan) -> Result<(), Failure> {
    if api.output != Format::Table {
        return output::one(api.output, plan);
    }
    let row = |(number, step): (u64, &sluice_client::PlanStep)| -> Value {
        let done = if number <= plan.progress.done { "done" } else { "" };
        let exceeded = step.exceeded.iter().map(|limit| format!("; {limit}"));
        let reason: String = std::iter::once(step.text.clone()).chain(exceeded).collect();
        json!({
            "step": number, "vpcs": step.vpcs, "from": step.from, "to": step.to,
            "entries": step.entries, "state": done, "reason": reason,
        })
    };
    let rows: Vec<Value> = (1..).zip(&plan.moves).map(row).collect();
    output::list(api.output, &["step", "vpcs", "from", "to", "entries", "state", "reason"], &rows)?;
    output::print(&format!(
        "\nplan {} ({}): {} of {} steps done, {} entries to write; load of the most loaded cluster: {} before, \
         {} after (lower bound {})\n",
        plan.progress.id,
        plan.progress.state,
        plan.progress.done,
        plan.progress.steps,
        plan.entries,
        percent(plan.max_load_before),
        percent(plan.max_load),
        percent(plan.max_load_lower_bound)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_for_a_plan_that_is_not_done_fails() {
        let at = |state: &str, note: &str| {
            let note = note.to_owned();
            let state = state.to_owned();
            outcome(&PlanSummary { id: 3, created_ms: 0, state, steps: 9, done: 4, parallel: 1, note }, 60)
        };
        assert!(at("done", "").is_ok());
        let over = at("applying", "").unwrap_err();
        assert_eq!(
            (over.code(), over.to_string().as_str()),
            (5, "plan 3 is not done after 60 s: 4 of 9 steps are")
        );
        let stopped = at("stopped", "no gateway").unwrap_err();
        let text = "plan 3 was stopped after 4 of 9 steps: no gateway";
        assert_eq!((stopped.code(), stopped.to_string().as_str()), (1, text));
        assert_eq!(at("stopped", "").unwrap_err().to_string(), "plan 3 was stopped after 4 of 9 steps");
    }

    #[test]
    fn capacities_are_parsed() {
        assert_eq!(parse_capacity("gw-1=5").unwrap(), ("gw-1", Some(5)));
        assert_eq!(parse_capacity("edge=auto").unwrap(), ("edge", None));
        for text in ["edge", "edge=", "edge=-1", "edge=many"] {
            assert!(parse_capacity(text).is_err(), "{text}");
        }
    }
}
