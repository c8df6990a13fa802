//! The lab through which packets are sent. It changes with its topology.

use crate::{Failure, Settings};
use sluice_client::{Instance, NewInstance};
use sluice_lab::{Lab, Options, Topology};
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

const NAME: &str = "benchcluster";
/// Instances of one call.
const BATCH: usize = 10_000;

/// Starts a lab under a model (`None` is Zeta) for `work`, and removes it whatever the result is.
pub fn with_lab<T>(
    settings: &Settings,
    model: Option<&str>,
    work: impl AsyncFnOnce(Lab) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut options = Options::standard(NAME, &settings.binary)?;
        options.model = model.map(str::to_owned);
        options.topology = Topology::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("lab.yaml"))?;
        let outcome = match Lab::up(options).await {
            Ok(lab) => work(lab).await,
            Err(error) => Err(error.into()),
        };
        sluice_lab::down(NAME).await?;
        outcome
    })
}

/// Creates instances on host-b without ports. Returns their addresses.
pub async fn sinks(lab: &Lab, prefix: &str, count: usize) -> Result<Vec<Ipv4Addr>, Failure> {
    let vpc = lab.vpc("web")?;
    let subnet = vpc.subnets["back"];
    let host = lab.node("host-b")?.id.parse()?;
    let one = |number: usize| NewInstance {
        name: format!("{prefix}-{number}"),
        subnet,
        host,
        mac: None,
        ipv4: None,
        ipv6: None,
        security_groups: Some(Vec::new()),
        settings: Default::default(),
    };
    let new: Vec<NewInstance> = (0..count).map(one).collect();
    for batch in new.chunks(BATCH) {
        lab.api().create_instances(vpc.id, batch).await?;
    }
    for gateway in ["gw-a", "gw-b", "gw-c"] {
        lab.synchronized(gateway, Duration::from_secs(30)).await?;
    }
    let vpc = vpc.id.to_string();
    let made = lab.api().list::<Instance>(&[("vpc", &vpc)], None).await?;
    let made = made.into_iter().filter(|instance| instance.name.starts_with(&format!("{prefix}-")));
    Ok(made.filter_map(|instance| instance.ipv4).collect())
}

/// The smallest value such that `part` (0 to 1) of all values are not larger.
pub fn percentile(values: &mut [f64], part: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let at = (values.len() as f64 * part).ceil() as usize;
    values.get(at.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}
