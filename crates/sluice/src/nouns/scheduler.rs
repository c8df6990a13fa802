//! `sluice scheduler`: which gateway has which vIP, as loads change.

use crate::api::ApiArgs;
use crate::failure::Failure;
use crate::output::{self, Format};
use clap::{ArgGroup, Subcommand};
use serde_json::{Value, json};
use sluice_client::{Client, SchedulerGateway, SchedulerPatch};

/// `sluice scheduler`.
#[derive(Subcommand)]
pub enum Scheduler {
    /// Show loads, the last decisions with their reasons, and what waits for which limit
    Show,
    /// Let it move vIPs
    On,
    /// Let it only look
    Off,
    /// Change thresholds and limits; loads are parts of 1
    #[command(group = some_of(&["overload_above", "relieved_below", "receive_below", "moves", "hold_ms", "gateways_min"]))]
    Set {
        /// A gateway above this is overloaded
        #[arg(long, value_name = "PART", value_parser = part)]
        overload_above: Option<f64>,
        /// An overloaded gateway is no longer so at this or below
        #[arg(long, value_name = "PART", value_parser = part)]
        relieved_below: Option<f64>,
        /// A gateway takes a vIP only if it is at most here with it
        #[arg(long, value_name = "PART", value_parser = part)]
        receive_below: Option<f64>,
        /// vIPs that move at a time, at most
        #[arg(long, value_name = "N")]
        moves: Option<usize>,
        /// How long a vIP that moved stays
        #[arg(long, value_name = "MS")]
        hold_ms: Option<u64>,
        /// Gateways that a cluster keeps when it gives one to another
        #[arg(long, value_name = "N")]
        gateways_min: Option<usize>,
    },
}

/// One of these options at least: without any, there is nothing to set.
pub(super) fn some_of(options: &[&'static str]) -> ArgGroup {
    ArgGroup::new("settings").args(options).required(true).multiple(true)
}

/// A number that JSON has, too: what is not finite would be sent as nothing.
pub(super) fn part(text: &str) -> Result<f64, String> {
    let part: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if part.is_finite() { Ok(part) } else { Err("not a finite number".to_owned()) }
}

impl Scheduler {
    /// Runs the verb.
    pub async fn run(self, api: &ApiArgs) -> Result<(), Failure> {
        let client = api.client()?;
        let patch = match self {
            Self::Show => return show(api, &client).await,
            Self::On => SchedulerPatch { enabled: Some(true), ..SchedulerPatch::default() },
            Self::Off => SchedulerPatch { enabled: Some(false), ..SchedulerPatch::default() },
            Self::Set { overload_above, relieved_below, receive_below, moves, hold_ms, gateways_min } => {
                SchedulerPatch {
                    enabled: None,
                    overload_above,
                    relieved_below,
                    receive_below,
                    moves_per_interval: moves,
                    hold_ms,
                    gateways_min,
                }
            }
        };
        output::one(api.output, &client.set_scheduler(&patch).await?)
    }
}

async fn show(api: &ApiArgs, client: &Client) -> Result<(), Failure> {
    let scheduler = client.scheduler().await?;
    if api.output != Format::Table {
        return output::one(api.output, &scheduler);
    }
    let row = |gateway: &SchedulerGateway| -> Value {
        json!({
            "gateway": gateway.id,
            "cluster": gateway.cluster,
            "load": format!("{:.1}%", gateway.load * 100.0),
            "capacity pps": gateway.capacity_pps.round() as u64,
            "draining": gateway.draining,
            "vips": gateway.vips,
        })
    };
    let rows: Vec<Value> = scheduler.gateways.iter().map(row).collect();
    output::list(api.output, &["gateway", "cluster", "load", "capacity pps", "draining", "vips"], &rows)?;
    let mut text = String::from("\n");
    for decision in &scheduler.decisions {
        text.push_str(&format!("{}\n", decision.text));
    }
    for wait in &scheduler.waits {
        text.push_str(&format!("{}\n", wait.text));
    }
    for cluster in &scheduler.clusters_in_need {
        text.push_str(&format!("{cluster} needs a new gateway: no other cluster can give one\n"));
    }
    let state = match (&scheduler.error, scheduler.settings.enabled) {
        (Some(error), _) => format!("it cannot decide: {error}"),
        (None, true) => "it is on".to_owned(),
        (None, false) => "it is off".to_owned(),
    };
    text.push_str(&format!(
        "{} vIPs moved, {} gateways given to other clusters, {} asked for; {state}\n",
        scheduler.moves, scheduler.gateways_given, scheduler.gateways_wanted
    ));
    output::print(&text)
}
