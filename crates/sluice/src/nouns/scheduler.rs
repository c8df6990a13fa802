//! `sluice scheduler`: shows and configures the vIP scheduler. This file changes with `/v1/scheduler` of the API.

use crate::api::ApiArgs;
use crate::failure::Failure;
use crate::output::{self, Format};
use clap::Subcommand;
use serde_json::{Value, json};
use sluice_client::{Client, SchedulerGateway, SchedulerPatch};
use std::fmt::Display;
use std::str::FromStr;

/// `sluice scheduler`.
#[derive(Subcommand)]
pub enum Scheduler {
    /// Show loads, the last decisions with their reasons, and what waits for which limit
    Show,
    /// Turn the scheduler on: it moves vIPs
    On,
    /// Turn the scheduler off: it only shows loads
    Off,
    /// Change thresholds and limits; loads are fractions of 1
    Set(SetArgs),
}

macro_rules! declare_options {
    ($($(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:literal, $unit:literal, $min:literal to $max:literal;)+) => {
        /// Options of `sluice scheduler set`: one for each setting.
        #[derive(clap::Args)]
        #[group(required = true, multiple = true)]
        pub struct SetArgs {
            $(
                $(#[doc = $doc])+
                #[arg(long, value_name = $unit, value_parser = number::<$type>)]
                $name: Option<$type>,
            )+
        }

        impl From<SetArgs> for SchedulerPatch {
            fn from(args: SetArgs) -> Self {
                Self { enabled: None, $($name: args.$name,)+ }
            }
        }
    };
}

sluice_types::scheduler_settings!(declare_options);

/// Parses a finite number. JSON has no other numbers: they would be sent as null.
pub(super) fn number<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    if text.parse::<f64>().is_ok_and(|number| !number.is_finite()) {
        return Err("not a finite number".to_owned());
    }
    text.parse().map_err(|error: T::Err| error.to_string())
}

/// A fraction in percent.
pub(super) fn percent(fraction: f64) -> String {
    format!("{:.1}%", fraction * 100.0)
}

impl Scheduler {
    /// Runs the verb.
    pub async fn run(self, api: &ApiArgs) -> Result<(), Failure> {
        let client = api.client()?;
        let patch = match self {
            Self::Show => return show(api, &client).await,
            Self::On => SchedulerPatch { enabled: Some(true), ..SchedulerPatch::default() },
            Self::Off => SchedulerPatch { enabled: Some(false), ..SchedulerPatch::default() },
            Self::Set(args) => args.into(),
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
            "load": percent(gateway.load),
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
    for cluster in &scheduler.overloaded_clusters {
        text.push_str(&format!("{cluster} needs a new gateway: no other cluster can give one\n"));
    }
    let state = match (&scheduler.error, scheduler.settings.enabled) {
        (Some(error), _) => format!("the scheduler cannot decide: {error}"),
        (None, true) => "the scheduler is on".to_owned(),
        (None, false) => "the scheduler is off".to_owned(),
    };
    text.push_str(&format!(
        "{} vIPs moved, {} gateways moved to other clusters, {} gateways requested; {state}\n",
        scheduler.moves, scheduler.gateways_reassigned, scheduler.gateways_requested
    ));
    output::print(&text)
}
