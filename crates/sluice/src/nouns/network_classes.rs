//! Arguments and verbs of network classes.

use super::resource::{
    ByName, Creatable, Create, Help, Kind, NameOrId, NoPreview, Parent, Run, Target, Wait,
};
use crate::api::ApiArgs;
use crate::failure::Failure;
use clap::{ArgGroup, Args, Subcommand};
use serde_json::{Map, Value, json};
use sluice_client::{Client, NetworkClass, NewNetworkClass};
use sluice_types::{Allowance, NetworkClassId};

/// The value of an allowance in the help.
const ALLOWANCE: &str = "base=N,max=N,clamp=N,credit=N";

impl Kind for NetworkClass {
    const HELP: Help = Help { list: "List network classes", show: "Show one network class" };
    const COLUMNS: &'static [&'static str] =
        &["id", "name", "mbps", "kpps", "cpu_permille", "is_default", "programmed"];
    type Selector = NameOrId;
    type Filters = ByName;

    fn table_row(&self) -> Value {
        let mut row = serde_json::to_value(self).unwrap_or_default();
        for (field, allowance) in
            [("mbps", self.mbps), ("kpps", self.kpps), ("cpu_permille", self.cpu_permille)]
        {
            row[field] = json!(allowance.map(|allowance| allowance.to_string()));
        }
        row
    }
}

impl Creatable for NetworkClass {
    const CREATE_HELP: &'static str =
        "Create a network class: what each instance that has it may use of its host's network";
    const DELETE_HELP: &'static str = "Delete a network class that no instance has";
    type New = NewNetworkClassArgs;
    type Verbs = NetworkClassVerb;
    type Preview = NoPreview;
}

#[derive(Args)]
#[command(group(ArgGroup::new("limit").required(true).multiple(true)))]
pub struct NewNetworkClassArgs {
    /// Name, unique in the cloud
    name: String,
    /// Mbit/s of IP packets, of each direction by itself, up to 400000: what an instance may use always, at most as long as
    /// it has credit, at most while its host is contended, and the most credit in Mbit [default: not limited]
    #[arg(long, value_name = ALLOWANCE, group = "limit")]
    mbps: Option<Allowance>,
    /// 1000 packets/s, of each direction by itself, up to 600000, as --mbps [default: not limited]
    #[arg(long, value_name = ALLOWANCE, group = "limit")]
    kpps: Option<Allowance>,
    /// Thousandths of one processor that the host's network processing spends on an instance, on both directions together,
    /// up to 64000, as --mbps [default: not limited]
    #[arg(long = "cpu", value_name = ALLOWANCE, group = "limit")]
    cpu_permille: Option<Allowance>,
    /// Instances without a class of their own and without a rate have this class, instead of the one that is the default
    #[arg(long = "default")]
    is_default: bool,
}

impl Create for NewNetworkClassArgs {
    type Object = NetworkClass;
    type Body = NewNetworkClass;
    async fn request(self, _: &Client) -> Result<(Parent<Self>, NewNetworkClass), Failure> {
        let Self { name, mbps, kpps, cpu_permille, is_default } = self;
        Ok(((), NewNetworkClass { name, mbps, kpps, cpu_permille, is_default }))
    }
}

/// A new value of a limit; `None` removes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewLimit(Option<Allowance>);

fn parse_limit(text: &str) -> Result<NewLimit, String> {
    match text {
        "none" => Ok(NewLimit(None)),
        allowance => allowance
            .parse()
            .map(|allowance| NewLimit(Some(allowance)))
            .map_err(|error: sluice_types::AllowanceError| format!("{error}, or `none`")),
    }
}

#[derive(Subcommand)]
pub enum NetworkClassVerb {
    /// Rename a network class, change its limits, also for the instances that have it, or make it the default
    #[command(group(ArgGroup::new("change").required(true).multiple(true)))]
    Update {
        #[command(flatten)]
        target: Target<NetworkClass>,
        /// New name
        #[arg(long = "name", value_name = "NAME", group = "change")]
        new_name: Option<String>,
        /// Mbit/s of IP packets, of each direction by itself; `none`: not limited
        #[arg(long, value_name = ALLOWANCE, value_parser = parse_limit, group = "change")]
        mbps: Option<NewLimit>,
        /// 1000 packets/s, of each direction by itself; `none`: not limited
        #[arg(long, value_name = ALLOWANCE, value_parser = parse_limit, group = "change")]
        kpps: Option<NewLimit>,
        /// Thousandths of one processor that the host's network processing spends on an instance; `none`: not limited
        #[arg(long = "cpu", value_name = ALLOWANCE, value_parser = parse_limit, group = "change")]
        cpu_permille: Option<NewLimit>,
        /// Instances without a class of their own and without a rate have this class, instead of the one that is the default
        #[arg(long = "default", group = "change", conflicts_with = "no_default")]
        default: bool,
        /// The class is the default no more: instances without a class of their own have none
        #[arg(long = "no-default", group = "change")]
        no_default: bool,
        #[command(flatten)]
        wait: Wait,
    },
}

impl Run for NetworkClassVerb {
    async fn run(self, api: &ApiArgs, client: &Client) -> Result<(), Failure> {
        let Self::Update { target, new_name, mbps, kpps, cpu_permille, default, no_default, wait } = self;
        let mut patch = Map::new();
        patch.extend(new_name.map(|name| ("name".to_owned(), json!(name))));
        let limits = [("mbps", mbps), ("kpps", kpps), ("cpu_permille", cpu_permille)];
        let given = limits.into_iter().filter_map(|(field, limit)| Some((field.to_owned(), json!(limit?.0))));
        patch.extend(given);
        if default || no_default {
            patch.insert("is_default".to_owned(), json!(default));
        }
        let updated = target.update(client, &patch).await?;
        wait.print_when(api, client, updated, |_| true).await
    }
}

/// What `--network-class` makes of an instance: a network class, or `none`.
pub async fn new_class_of(
    client: &Client,
    text: Option<&str>,
) -> Result<Option<Option<NetworkClassId>>, Failure> {
    match text {
        None => Ok(None),
        Some("none") => Ok(Some(None)),
        Some(text) => Ok(Some(Some(client.id_of::<NetworkClass>(text, &[]).await?))),
    }
}
