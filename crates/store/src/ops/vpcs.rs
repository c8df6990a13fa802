//! VPCs: creation with allocation of the VNI, update, deletion. Moves between clusters are in `vpc_moves.rs`.

use super::removals::{self, Hold};
use super::{check_unused, meters, security_groups};
use crate::check::{self, Difference};
use crate::rows::{check_revision, find, find_one, get};
use crate::value::args;
use crate::write::Write;
use crate::{Change, Cluster, Conflict, Created, NewVpc, Result, StoreError, Tenant, Vpc, VpcUpdate};
use sluice_types::{MeterId, TenantId, Vni, VpcId};
use std::ops::RangeInclusive;

pub(crate) async fn create(w: &mut Write, new: &NewVpc, vnis: RangeInclusive<u32>) -> Result<Created<Vpc>> {
    check::name("VPC", &new.name)?;
    check::mtu(new.mtu)?;
    get::<Tenant>(w.q(), new.tenant).await?;
    get::<Cluster>(w.q(), new.cluster).await?;
    check_meter(w, new.internet_meter, new.tenant, &new.name).await?;
    let named = vec![("tenant", new.tenant.get().into()), ("name", new.name.as_str().into())];
    if let Some(existing) = find_one::<Vpc>(w.q(), named).await? {
        Difference::default()
            .field("cluster", existing.cluster, new.cluster)
            .field("mtu", existing.mtu, new.mtu)
            .optional("offload_kbps", existing.offload_kbps, new.offload_kbps)
            .given("vni", Some(existing.vni), new.vni)
            .given(
                "internet_meter",
                meters::name(w.q(), existing.internet_meter).await?,
                meters::name(w.q(), new.internet_meter).await?,
            )
            .conflict("VPC", &new.name)?;
        return Ok(Created::Existing(existing));
    }
    let vni = match new.vni {
        Some(vni) => check_vni(w, vni).await?,
        None => allocate_vni(w, vnis).await?,
    };
    let vpc = Vpc {
        id: VpcId::new(w.id()),
        name: new.name.clone(),
        tenant: new.tenant,
        vni,
        cluster: new.cluster,
        mtu: new.mtu,
        offload_kbps: new.offload_kbps,
        internet_meter: new.internet_meter,
        moving: None,
        revision: w.revision,
    };
    let (id, revision, table) = (vpc.id.get(), vpc.revision, w.id());
    let sql = "INSERT INTO vpcs (id, name, tenant, vni, cluster, mtu, offload_kbps, internet_meter, revision) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    let (tenant, cluster, kbps) = (vpc.tenant.get(), vpc.cluster.get(), vpc.offload_kbps.map(i64::from));
    let meter = vpc.internet_meter.map(|id| id.get() as i64);
    let values = args![id, vpc.name.as_str(), tenant, vni.get(), cluster, vpc.mtu, kbps, meter, revision];
    w.q().run(sql, values).await?;
    let sql = "INSERT INTO route_tables (id, name, vpc, revision) VALUES ($1, 'main', $2, $3)";
    w.q().run(sql, args![table, id, revision]).await?;
    w.push(&Change::VpcUpserted { vpc: vpc.clone(), subnets: Vec::new() })?;
    security_groups::create_default(w, &vpc).await?;
    Ok(Created::New(vpc))
}

/// Checks that the Internet traffic of a VPC may have a meter.
async fn check_meter(w: &mut Write, meter: Option<MeterId>, tenant: TenantId, vpc: &str) -> Result<()> {
    meters::check_owner(w.q(), meter, tenant, || format!("VPC `{vpc}`")).await
}

/// Checks that a requested VNI is free.
async fn check_vni(w: &mut Write, vni: Vni) -> Result<Vni> {
    match find_one::<Vpc>(w.q(), vec![("vni", vni.get().into())]).await? {
        Some(vpc) => Err(Conflict::VniTaken { vni: vni.get(), vpc: vpc.name }.into()),
        None => removals::check_free(w.q(), &Hold::Vni(vni.get())).await.map(|()| vni),
    }
}

/// The lowest VNI that was never allocated, or the lowest free one if all were allocated.
async fn allocate_vni(w: &mut Write, vnis: RangeInclusive<u32>) -> Result<Vni> {
    let row = w.q().row("SELECT next_vni FROM meta", vec![]).await?;
    let next = row.ok_or_else(|| StoreError::Corrupt("no row in meta".into()))?.number(0)?;
    let (first, last) = (u64::from(*vnis.start()), u64::from(*vnis.end()));
    let found = match first_usable(w, next.max(first), last).await? {
        Some(vni) => {
            w.q().run("UPDATE meta SET next_vni = $1", args![vni + 1]).await?;
            Some(vni)
        }
        None => first_usable(w, first, last).await?,
    };
    let used = (last + 1).saturating_sub(first);
    let found = found.ok_or(Conflict::VniExhausted { used })?;
    u32::try_from(found)
        .map_err(|_| StoreError::Corrupt(format!("VNI {found}")))
        .and_then(|vni| Vni::new(vni).map_err(|e| check::invalid(vni, e.to_string())))
}

/// The lowest VNI in the range that no VPC has and no deletion holds.
async fn first_usable(w: &mut Write, mut first: u64, last: u64) -> Result<Option<u64>> {
    while let Some(vni) = first_free(w, first, last).await? {
        if !removals::holds_vni(w.q(), vni).await? {
            return Ok(Some(vni));
        }
        first = vni + 1;
    }
    Ok(None)
}

/// The lowest VNI in the range that no VPC has.
async fn first_free(w: &mut Write, first: u64, last: u64) -> Result<Option<u64>> {
    if first > last {
        return Ok(None);
    }
    if !w.q().any("SELECT vni FROM vpcs WHERE vni = $1", args![first]).await? {
        return Ok(Some(first));
    }
    let sql = "SELECT v.vni + 1 FROM vpcs v WHERE v.vni >= $1 AND v.vni < $2 \
               AND NOT EXISTS (SELECT 1 FROM vpcs w WHERE w.vni = v.vni + 1) ORDER BY v.vni LIMIT 1";
    w.q().row(sql, args![first, last]).await?.map(|row| row.number(0)).transpose()
}

pub(crate) async fn update(w: &mut Write, id: VpcId, new: &VpcUpdate, expected: Option<u64>) -> Result<Vpc> {
    let VpcUpdate { name, mtu, offload_kbps, internet_meter } = new;
    check::name("VPC", name)?;
    check::mtu(*mtu)?;
    let mut vpc: Vpc = get(w.q(), id).await?;
    check_revision(id, &vpc, expected)?;
    let before = (&vpc.name, &vpc.mtu, &vpc.offload_kbps, &vpc.internet_meter);
    if before == (name, mtu, offload_kbps, internet_meter) {
        return Ok(vpc);
    }
    check_meter(w, *internet_meter, vpc.tenant, name).await?;
    let named = vec![("tenant", vpc.tenant.get().into()), ("name", name.as_str().into())];
    if let Some(other) = find_one::<Vpc>(w.q(), named).await? {
        Difference::default().field("the id", other.id, id).conflict("VPC", name)?;
    }
    vpc.name.clone_from(name);
    (vpc.mtu, vpc.offload_kbps, vpc.internet_meter) = (*mtu, *offload_kbps, *internet_meter);
    vpc.revision = w.revision;
    let sql = "UPDATE vpcs SET name = $2, mtu = $3, offload_kbps = $4, internet_meter = $5, revision = $6 WHERE id = $1";
    let (kbps, meter) = (offload_kbps.map(i64::from), internet_meter.map(|id| id.get() as i64));
    w.q().run(sql, args![id.get(), name.as_str(), *mtu, kbps, meter, vpc.revision]).await?;
    let subnets = find(w.q(), vec![("vpc", id.get().into())]).await?;
    w.push(&Change::VpcUpserted { vpc: vpc.clone(), subnets })?;
    Ok(vpc)
}

pub(crate) async fn delete(w: &mut Write, id: VpcId, expected: Option<u64>) -> Result<u64> {
    let vpc: Vpc = get(w.q(), id).await?;
    check_revision(id, &vpc, expected)?;
    let object = ("VPC", vpc.name.as_str(), id.get());
    check_unused(w.q(), object, "subnet", "SELECT name FROM subnets WHERE vpc = $1 LIMIT 1").await?;
    let routes = "SELECT prefix FROM routes WHERE route_table IN \
                  (SELECT id FROM route_tables WHERE vpc = $1) LIMIT 1";
    check_unused(w.q(), object, "route", routes).await?;
    check_unused(w.q(), object, "peering", "SELECT name FROM peerings WHERE a = $1 OR b = $1 LIMIT 1")
        .await?;
    let groups = "SELECT name FROM security_groups WHERE vpc = $1 AND name <> 'default' LIMIT 1";
    check_unused(w.q(), object, "security group", groups).await?;
    let nat_gateway = "SELECT name FROM nat_gateways WHERE vpc = $1 LIMIT 1";
    check_unused(w.q(), object, "NAT gateway", nat_gateway).await?;
    check_unused(w.q(), object, "service", "SELECT name FROM services WHERE vpc = $1 LIMIT 1").await?;
    security_groups::delete_default(w.q(), id).await?;
    w.q().run("DELETE FROM route_tables WHERE vpc = $1", args![id.get()]).await?;
    w.q().run("DELETE FROM vpcs WHERE id = $1", args![id.get()]).await?;
    let (nodes, name, vni) = (removals::gateways_of(w.q(), &vpc).await?, vpc.name.clone(), vpc.vni.get());
    w.push(&Change::VpcRemoved(vpc))?;
    removals::record(w, ("VPC", id.get(), &name), nodes, &[Hold::Vni(vni)]).await
}

/// Refuses an operation that is not possible while the VPC moves.
pub(crate) fn check_not_moving(vpc: &Vpc) -> Result<()> {
    match vpc.moving {
        None => Ok(()),
        Some(moving) => {
            let (vpc, to) = (vpc.name.clone(), moving.to.to_string());
            Err(StoreError::from(Conflict::VpcMoves { vpc, to }))
        }
    }
}
