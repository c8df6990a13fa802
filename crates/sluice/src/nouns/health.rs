//! `sluice health`: the anomalies that health checks have found, and what is done about them. This file changes with
//! `/v1/health` of the API.

use crate::api::ApiArgs;
use crate::failure::Failure;
use crate::output::{self, Format};
use clap::Subcommand;
use serde_json::{Value, json};
use sluice_client::{AnomalyClass, Client, HealthAction, HealthFinding, HealthPolicyPatch, SessionMode};

/// `sluice health`.
#[derive(clap::Args)]
pub struct Health {
    #[command(flatten)]
    api: ApiArgs,
    /// Only the node with this id or name
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Subcommand)]
enum Verb {
    /// What the controller does about anomalies of hosts that last; by default nothing
    Policy {
        #[command(subcommand)]
        verb: PolicyVerb,
    },
}

#[derive(Subcommand)]
enum PolicyVerb {
    /// List the action and the limits of each class of anomalies
    List,
    /// Change the action or the limits of a class of anomalies
    Set(SetPolicy),
}

#[derive(clap::Args)]
struct SetPolicy {
    /// Class of anomalies: server_resources, nic_fault, vswitch_overload or switch_overload
    class: AnomalyClass,
    /// `migrate`: instances of the host migrate to the healthy host with the fewest instances; `none`: nothing is done
    #[arg(long, value_name = "ACTION", required_unless_present_any = ["max_at_once", "hold", "cooldown", "sessions"])]
    action: Option<HealthAction>,
    /// Most migrations for this class that are in progress, on all hosts together [1 at first]
    #[arg(long, value_name = "N")]
    max_at_once: Option<u64>,
    /// Seconds for which an anomaly must last, and between the beginnings of migrations from the same host [60 at first]
    #[arg(long, value_name = "SECONDS")]
    hold: Option<u64>,
    /// Seconds for which an instance that was moved stays where it is, and for which the host that it left gets none [3600 at first]
    #[arg(long, value_name = "SECONDS")]
    cooldown: Option<u64>,
    /// What happens to the sessions of instances: `copy`, `reset` or `none` [copy at first]
    #[arg(long, value_name = "MODE")]
    sessions: Option<SessionMode>,
}

impl From<&SetPolicy> for HealthPolicyPatch {
    fn from(args: &SetPolicy) -> Self {
        Self {
            action: args.action,
            max_at_once: args.max_at_once,
            hold_s: args.hold,
            cooldown_s: args.cooldown,
            sessions: args.sessions,
        }
    }
}

/// A finding as a table shows it: what a node that does not report any more had found is marked.
fn row(finding: &HealthFinding) -> Value {
    let state =
        if finding.stale { format!("stale, reported at {}", finding.reported_ms) } else { "now".to_owned() };
    let mut row = serde_json::to_value(finding).unwrap_or_default();
    row["state"] = json!(state);
    row
}

impl Health {
    pub async fn run(self) -> Result<(), Failure> {
        let client = self.api.client()?;
        if let Some(Verb::Policy { verb }) = self.verb {
            return verb.run(&self.api, &client).await;
        }
        let health = client.health(self.node.as_deref()).await?;
        if self.api.output != Format::Table {
            return output::one(self.api.output, &health);
        }
        let columns = ["name", "class", "subject", "since_ms", "state", "evidence", "cause"];
        let rows: Vec<Value> = health.items.iter().map(row).collect();
        output::list(self.api.output, &columns, &rows)?;
        let more = if health.others { ", and others that are not listed" } else { "" };
        let (found, reporting) = (health.items.len(), health.reporting);
        output::print(&format!("\n{found} anomalies{more}; {reporting} nodes report\n"))
    }
}

impl PolicyVerb {
    async fn run(self, api: &ApiArgs, client: &Client) -> Result<(), Failure> {
        match self {
            Self::List => {
                let columns = ["class", "action", "max_at_once", "hold_s", "cooldown_s", "sessions"];
                output::list(api.output, &columns, &client.health_policies().await?)
            }
            Self::Set(args) => {
                output::one(api.output, &client.set_health_policy(args.class, &(&args).into()).await?)
            }
        }
    }
}
