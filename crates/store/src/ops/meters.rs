//! Meters: creation, changes, deletion. EIPs, VPCs and peerings that have one name it themselves.

use super::check_unused;
use crate::backend::Query;
use crate::check::{self, Difference, invalid};
use crate::rows::{check_revision, find_one, get};
use crate::value::args;
use crate::write::Write;
use crate::{Change, Conflict, Created, MAX_METERS, Meter, MeterUpdate, NewMeter, Result, Tenant};
use sluice_types::{MeterId, MeterLimitError, MeterRate, TenantId};

/// The kind of object in errors.
const KIND: &str = "meter";

/// Checks the limits of a request. The errors name the field of the API.
fn check_limits(inward: Option<MeterRate>, outward: Option<MeterRate>) -> Result<()> {
    if inward.is_none() && outward.is_none() {
        return Err(invalid("in_kbps", "a meter needs a limit: in_kbps, out_kbps or both"));
    }
    for (rate, direction) in [(inward, "in"), (outward, "out")] {
        let checked = rate.map(|rate| rate.limit().check()).transpose();
        checked.map_err(|error| {
            let field = match error {
                MeterLimitError::Rate(_) => "kbps",
                MeterLimitError::Burst { .. } => "burst",
            };
            invalid(format!("{direction}_{field}"), error.to_string())
        })?;
    }
    Ok(())
}

/// Checks that an object of this tenant may have a meter. `user` is the object in errors.
pub(super) async fn check_owner(
    q: &mut dyn Query,
    meter: Option<MeterId>,
    tenant: TenantId,
    user: impl FnOnce() -> String,
) -> Result<()> {
    let Some(id) = meter else { return Ok(()) };
    let meter: Meter = get(q, id).await?;
    if meter.tenant == tenant {
        return Ok(());
    }
    Err(Conflict::MeterAcrossTenants { meter: meter.name, user: user() }.into())
}

/// The name of a meter for a difference in an error.
pub(super) async fn name(q: &mut dyn Query, meter: Option<MeterId>) -> Result<Option<String>> {
    match meter {
        Some(id) => Ok(Some(get::<Meter>(q, id).await?.name)),
        None => Ok(None),
    }
}

async fn named(q: &mut dyn Query, tenant: TenantId, name: &str) -> Result<Option<Meter>> {
    find_one(q, vec![("tenant", tenant.get().into()), ("name", name.into())]).await
}

pub(crate) async fn create(w: &mut Write, new: &NewMeter) -> Result<Created<Meter>> {
    let NewMeter { name, tenant, inward, outward } = new;
    check::name(KIND, name)?;
    check_limits(*inward, *outward)?;
    let owner: Tenant = get(w.q(), *tenant).await?;
    if let Some(existing) = named(w.q(), *tenant, name).await? {
        let kbps = |rate: Option<MeterRate>| rate.map(|rate| rate.kbps);
        let burst = |rate: Option<MeterRate>| rate.and_then(|rate| rate.burst);
        Difference::default()
            .optional("in_kbps", kbps(existing.inward), kbps(*inward))
            .optional("in_burst", burst(existing.inward), burst(*inward))
            .optional("out_kbps", kbps(existing.outward), kbps(*outward))
            .optional("out_burst", burst(existing.outward), burst(*outward))
            .conflict(KIND, name)?;
        return Ok(Created::Existing(existing));
    }
    let row = w.q().row("SELECT COUNT(*) FROM meters WHERE tenant = $1", args![tenant.get()]).await?;
    if row.map_or(Ok(0), |row| row.number(0))? >= MAX_METERS {
        return Err(Conflict::TooManyMeters { tenant: owner.name, max: MAX_METERS }.into());
    }
    let meter = Meter {
        id: MeterId::new(w.id()),
        name: name.clone(),
        tenant: *tenant,
        inward: *inward,
        outward: *outward,
        revision: w.revision,
    };
    let sql = "INSERT INTO meters (id, name, tenant, revision) VALUES ($1, $2, $3, $4)";
    let values = args![meter.id.get(), name.as_str(), tenant.get(), meter.revision];
    w.q().run(sql, values).await?;
    save(w, &meter).await?;
    Ok(Created::New(meter))
}

/// Stores what can change of a meter, and publishes it.
async fn save(w: &mut Write, meter: &Meter) -> Result<()> {
    let kbps = |rate: Option<MeterRate>| rate.map(|rate| rate.kbps as i64);
    let burst = |rate: Option<MeterRate>| rate.and_then(|rate| rate.burst).map(|burst| burst as i64);
    let sql = "UPDATE meters SET name = $2, in_kbps = $3, in_burst = $4, out_kbps = $5, out_burst = $6, revision = $7 \
               WHERE id = $1";
    let values = args![
        meter.id.get(),
        meter.name.as_str(),
        kbps(meter.inward),
        burst(meter.inward),
        kbps(meter.outward),
        burst(meter.outward),
        meter.revision,
    ];
    w.q().run(sql, values).await?;
    w.push(&Change::MeterUpserted(meter.clone()))
}

pub(crate) async fn update(
    w: &mut Write,
    id: MeterId,
    new: &MeterUpdate,
    expected: Option<u64>,
) -> Result<Meter> {
    let MeterUpdate { name, inward, outward } = new;
    check::name(KIND, name)?;
    check_limits(*inward, *outward)?;
    let before: Meter = get(w.q(), id).await?;
    check_revision(id, &before, expected)?;
    let mut after = Meter { name: name.clone(), inward: *inward, outward: *outward, ..before.clone() };
    if after == before {
        return Ok(before);
    }
    if let Some(other) = named(w.q(), before.tenant, name).await? {
        Difference::default().field("the id", other.id, id).conflict(KIND, name)?;
    }
    after.revision = w.revision;
    save(w, &after).await?;
    Ok(after)
}

pub(crate) async fn delete(w: &mut Write, id: MeterId, expected: Option<u64>) -> Result<u64> {
    let meter: Meter = get(w.q(), id).await?;
    check_revision(id, &meter, expected)?;
    let object = (KIND, meter.name.as_str(), id.get());
    let eip = "SELECT name FROM eips WHERE meter = $1 ORDER BY id LIMIT 1";
    check_unused(w.q(), object, "EIP", eip).await?;
    let vpc = "SELECT name FROM vpcs WHERE internet_meter = $1 ORDER BY id LIMIT 1";
    check_unused(w.q(), object, "VPC", vpc).await?;
    let peering = "SELECT name FROM peerings WHERE a_meter = $1 OR b_meter = $1 ORDER BY id LIMIT 1";
    check_unused(w.q(), object, "peering", peering).await?;
    w.q().run("DELETE FROM meters WHERE id = $1", args![id.get()]).await?;
    w.push(&Change::MeterRemoved(meter))?;
    Ok(w.revision)
}
