//! Arguments and verbs of meters.

use super::resource::{Creatable, Create, Help, Kind, NameInTenant, NoPreview, Parent, Run, Target, Wait};
use super::tenancy::ByTenant;
use crate::api::ApiArgs;
use crate::failure::Failure;
use clap::{ArgGroup, Args, Subcommand};
use serde_json::{Map, json};
use sluice_client::{Client, Meter, NewMeter, Tenant};
use sluice_types::{MeterId, TenantId};

impl Kind for Meter {
    const HELP: Help = Help { list: "List meters", show: "Show one meter" };
    const COLUMNS: &'static [&'static str] =
        &["id", "name", "tenant", "in_kbps", "in_burst", "out_kbps", "out_burst", "programmed"];
    type Selector = NameInTenant;
    type Filters = ByTenant;
}

impl Creatable for Meter {
    const CREATE_HELP: &'static str =
        "Create a meter: a limit of traffic, which EIPs, VPCs and peerings can have and share";
    const DELETE_HELP: &'static str = "Delete a meter that no EIP, no VPC and no peering has";
    type New = NewMeterArgs;
    type Verbs = MeterVerb;
    type Preview = NoPreview;
}

#[derive(Args)]
#[command(group(ArgGroup::new("rate").required(true).multiple(true)))]
pub struct NewMeterArgs {
    /// Name, unique in the tenant
    name: String,
    /// Tenant that owns it: name or id
    #[arg(long)]
    tenant: String,
    /// Rate of IP packets to the instances, in kbit/s, 64 to 400000000 [default: not limited]
    #[arg(long, value_name = "KBPS", group = "rate")]
    in_kbps: Option<u64>,
    /// Bytes to the instances that pass at once after a pause, at least 16384 [default: what passes in 0.4 s at the rate, at
    /// least 196608]
    #[arg(long, value_name = "BYTES", requires = "in_kbps")]
    in_burst: Option<u64>,
    /// Rate of IP packets from the instances, in kbit/s, 64 to 400000000 [default: not limited]
    #[arg(long, value_name = "KBPS", group = "rate")]
    out_kbps: Option<u64>,
    /// Bytes from the instances that pass at once after a pause, as --in-burst
    #[arg(long, value_name = "BYTES", requires = "out_kbps")]
    out_burst: Option<u64>,
}

impl Create for NewMeterArgs {
    type Object = Meter;
    type Body = NewMeter;
    async fn request(self, client: &Client) -> Result<(Parent<Self>, NewMeter), Failure> {
        let tenant = client.id_of::<Tenant>(&self.tenant, &[]).await?;
        let Self { name, in_kbps, in_burst, out_kbps, out_burst, .. } = self;
        Ok(((), NewMeter { name, tenant, in_kbps, in_burst, out_kbps, out_burst }))
    }
}

/// A new value of a limit; `None` removes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NewLimit(Option<u64>);

fn parse_limit(text: &str) -> Result<NewLimit, String> {
    match text {
        "none" => Ok(NewLimit(None)),
        number => {
            number.parse().map(|it| NewLimit(Some(it))).map_err(|_| "expected a number or `none`".to_owned())
        }
    }
}

#[derive(Subcommand)]
pub enum MeterVerb {
    /// Rename a meter, or change its limits; what has passed counts against the new limits
    #[command(group(ArgGroup::new("change").required(true).multiple(true)))]
    Update {
        #[command(flatten)]
        target: Target<Meter>,
        /// New name
        #[arg(long = "name", value_name = "NAME", group = "change")]
        new_name: Option<String>,
        #[command(flatten)]
        limits: NewLimits,
        #[command(flatten)]
        wait: Wait,
    },
}

/// New limits of a meter.
#[derive(Args)]
pub struct NewLimits {
    /// Rate of IP packets to the instances, in kbit/s; `none`: not limited
    #[arg(long, value_name = "KBPS", value_parser = parse_limit, group = "change")]
    in_kbps: Option<NewLimit>,
    /// Bytes to the instances that pass at once after a pause; `none`: the default
    #[arg(long, value_name = "BYTES", value_parser = parse_limit, group = "change")]
    in_burst: Option<NewLimit>,
    /// Rate of IP packets from the instances, in kbit/s; `none`: not limited
    #[arg(long, value_name = "KBPS", value_parser = parse_limit, group = "change")]
    out_kbps: Option<NewLimit>,
    /// Bytes from the instances that pass at once after a pause; `none`: the default
    #[arg(long, value_name = "BYTES", value_parser = parse_limit, group = "change")]
    out_burst: Option<NewLimit>,
}

impl Run for MeterVerb {
    async fn run(self, api: &ApiArgs, client: &Client) -> Result<(), Failure> {
        let Self::Update { target, new_name, limits, wait } = self;
        let NewLimits { in_kbps, in_burst, out_kbps, out_burst } = limits;
        let mut patch = Map::new();
        patch.extend(new_name.map(|name| ("name".to_owned(), json!(name))));
        let limits =
            [("in_kbps", in_kbps), ("in_burst", in_burst), ("out_kbps", out_kbps), ("out_burst", out_burst)];
        let given = limits.into_iter().filter_map(|(field, limit)| Some((field.to_owned(), json!(limit?.0))));
        patch.extend(given);
        let updated = target.update(client, &patch).await?;
        wait.print_when(api, client, updated, |_| true).await
    }
}

/// The id of a meter of a tenant.
pub async fn meter_of(
    client: &Client,
    text: Option<&str>,
    tenant: TenantId,
) -> Result<Option<MeterId>, Failure> {
    let Some(text) = text else { return Ok(None) };
    Ok(Some(client.id_of::<Meter>(text, &[("tenant", &tenant.to_string())]).await?))
}

/// What `--meter` and the like make of an object: a meter of its tenant, or `none`.
pub async fn new_meter_of(
    client: &Client,
    text: Option<&str>,
    tenant: TenantId,
) -> Result<Option<Option<MeterId>>, Failure> {
    match text {
        None => Ok(None),
        Some("none") => Ok(Some(None)),
        Some(text) => meter_of(client, Some(text), tenant).await.map(Some),
    }
}
