//! Peerings: creation, lookup, other meters, deletion.

use super::{check_unused, further, meters, nat_gateways, removals, vpcs};
use crate::backend::Query;
use crate::check::{self, Difference};
use crate::rows::{Record, check_revision, find, find_one, get};
use crate::value::args;
use crate::write::Write;
use crate::{Change, Conflict, Created, NewPeering, Page, Peering, PeeringMeters, Result, Subnet, Vpc};
use sluice_types::{IpNet, MeterId, PeeringId, VpcId, overlap};
use std::collections::{BTreeMap, BTreeSet};

/// The VPCs that are peered with this one, in order of id.
pub(crate) async fn peers(q: &mut dyn Query, vpc: VpcId) -> Result<Vec<Vpc>> {
    let sql = format!(
        "SELECT {} FROM vpcs WHERE id IN (SELECT b FROM peerings WHERE a = $1 \
         UNION SELECT a FROM peerings WHERE b = $1) ORDER BY id",
        Vpc::COLUMNS
    );
    q.rows(&sql, args![vpc.get()]).await?.iter().map(Vpc::decode).collect()
}

/// The peers of a VPC and their peers. Their subnets can be in one routing table with those of the VPC.
pub(crate) async fn peers_and_their_peers(q: &mut dyn Query, vpc: VpcId) -> Result<Vec<Vpc>> {
    let mut seen = BTreeSet::from([vpc]);
    let mut found = Vec::new();
    let own_peers = peers(q, vpc).await?;
    seen.extend(own_peers.iter().map(|peer| peer.id));
    for peer in &own_peers {
        for other in peers(q, peer.id).await? {
            if seen.insert(other.id) {
                found.push(other);
            }
        }
    }
    found.extend(own_peers);
    found.sort_by_key(|vpc| vpc.id);
    Ok(found)
}

pub(crate) async fn create(w: &mut Write, new: &NewPeering) -> Result<Created<Peering>> {
    check::name("peering", &new.name)?;
    if new.a == new.b {
        return Err(Conflict::PeeredWithItself.into());
    }
    let (first, second) = (new.a.min(new.b), new.a.max(new.b));
    let (a, b): (Vpc, Vpc) = (get(w.q(), first).await?, get(w.q(), second).await?);
    if a.tenant != b.tenant {
        return Err(Conflict::PeeringAcrossTenants { a: a.name, b: b.name }.into());
    }
    let given = new.meters.iter().map(|(vpc, meter)| (*vpc, Some(*meter))).collect();
    let meters = with_meters(w, &new.name, [&a, &b], [None; 2], &given).await?;
    let named = vec![("tenant", a.tenant.get().into()), ("name", new.name.as_str().into())];
    if let Some(existing) = find_one::<Peering>(w.q(), named).await? {
        let ends = |a: VpcId, b: VpcId| format!("{a} with {b}");
        let [a_meter, b_meter] = existing.meters;
        let of_vpc = |vpc: &Vpc| format!("the meter of VPC `{}`", vpc.name);
        Difference::default()
            .field("the pair", ends(existing.a, existing.b), ends(a.id, b.id))
            .given(&of_vpc(&a), name(w, a_meter).await?, name(w, meters[0]).await?)
            .given(&of_vpc(&b), name(w, b_meter).await?, name(w, meters[1]).await?)
            .conflict("peering", &new.name)?;
        return Ok(Created::Existing(existing));
    }
    let both = vec![("a", a.id.get().into()), ("b", b.id.get().into())];
    if let Some(existing) = find_one::<Peering>(w.q(), both).await? {
        return Err(Conflict::AlreadyPeered { a: a.name, b: b.name, peering: existing.name }.into());
    }
    vpcs::check_not_moving(&a)?;
    vpcs::check_not_moving(&b)?;
    if a.cluster != b.cluster {
        return Err(Conflict::PeeringAcrossClusters { a: a.name, b: b.name }.into());
    }
    let a_subnets = check_overlaps(w, &a, &b).await?;
    let b_subnets = check_overlaps(w, &b, &a).await?;
    for (vpc, other, subnets) in [(&a, &b, &b_subnets), (&b, &a, &a_subnets)] {
        for subnet in subnets {
            let nets: Vec<IpNet> = check::prefixes(subnet).collect();
            let owner = || format!("subnet `{}` of VPC `{}`", subnet.name, other.name);
            further::check_not_delegated(w.q(), vpc.id, &nets, owner).await?;
            for net in nets {
                nat_gateways::check_not_nat64(w.q(), vpc.id, net, overlap).await?;
            }
        }
    }
    let peering = Peering {
        id: PeeringId::new(w.id()),
        name: new.name.clone(),
        a: a.id,
        b: b.id,
        meters,
        revision: w.revision,
    };
    let sql = "INSERT INTO peerings (id, name, tenant, a, b, revision) VALUES ($1, $2, $3, $4, $5, $6)";
    let values =
        args![peering.id.get(), new.name.as_str(), a.tenant.get(), a.id.get(), b.id.get(), peering.revision];
    w.q().run(sql, values).await?;
    save_meters(w, &peering).await?;
    w.push(&Change::PeeringUpserted { a, a_subnets, b, b_subnets, meters })?;
    Ok(Created::New(peering))
}

/// The name of a meter for a difference in an error.
async fn name(w: &mut Write, meter: Option<MeterId>) -> Result<Option<String>> {
    meters::name(w.q(), meter).await
}

/// The meters of a peering of these VPCs after those that are given took the place of `current` ones.
///
/// # Errors
/// A meter is given for another VPC, or is one of another tenant.
async fn with_meters(
    w: &mut Write,
    peering: &str,
    ends: [&Vpc; 2],
    current: PeeringMeters,
    given: &BTreeMap<VpcId, Option<MeterId>>,
) -> Result<PeeringMeters> {
    let mut meters = current;
    for (&vpc, &meter) in given {
        let Some(side) = ends.iter().position(|end| end.id == vpc) else {
            let (vpc, peering) = (get::<Vpc>(w.q(), vpc).await?.name, peering.to_owned());
            return Err(Conflict::VpcNotPeered { vpc, peering }.into());
        };
        meters::check_owner(w.q(), meter, ends[side].tenant, || format!("peering `{peering}`")).await?;
        meters[side] = meter;
    }
    Ok(meters)
}

async fn save_meters(w: &mut Write, peering: &Peering) -> Result<()> {
    let [a_meter, b_meter] = peering.meters.map(|meter| meter.map(|id| id.get() as i64));
    let sql = "UPDATE peerings SET a_meter = $2, b_meter = $3, revision = $4 WHERE id = $1";
    w.q().run(sql, args![peering.id.get(), a_meter, b_meter, peering.revision]).await?;
    Ok(())
}

/// Sets the meters of the sides of these VPCs; `None` removes the meter.
pub(crate) async fn update(
    w: &mut Write,
    id: PeeringId,
    given: &BTreeMap<VpcId, Option<MeterId>>,
    expected: Option<u64>,
) -> Result<Peering> {
    let mut peering: Peering = get(w.q(), id).await?;
    check_revision(id, &peering, expected)?;
    let (a, b): (Vpc, Vpc) = (get(w.q(), peering.a).await?, get(w.q(), peering.b).await?);
    let meters = with_meters(w, &peering.name, [&a, &b], peering.meters, given).await?;
    if meters == peering.meters {
        return Ok(peering);
    }
    (peering.meters, peering.revision) = (meters, w.revision);
    save_meters(w, &peering).await?;
    let a_subnets = find(w.q(), vec![("vpc", a.id.get().into())]).await?;
    let b_subnets = find(w.q(), vec![("vpc", b.id.get().into())]).await?;
    w.push(&Change::PeeringUpserted { a, a_subnets, b, b_subnets, meters })?;
    Ok(peering)
}

/// Checks that the subnets of `own` overlap neither those of `other` nor those of the peers of `other`, since
/// `other` has routes to all of them. Returns the subnets of `own`.
async fn check_overlaps(w: &mut Write, own: &Vpc, other: &Vpc) -> Result<Vec<Subnet>> {
    let subnets: Vec<Subnet> = find(w.q(), vec![("vpc", own.id.get().into())]).await?;
    let mut others = peers(w.q(), other.id).await?;
    others.insert(0, other.clone());
    for vpc in others.into_iter().filter(|vpc| vpc.id != own.id) {
        let theirs: Vec<Subnet> = find(w.q(), vec![("vpc", vpc.id.get().into())]).await?;
        let prefixes: Vec<IpNet> = subnets.iter().flat_map(check::prefixes).collect();
        if let Some((a_prefix, b_prefix, _)) = check::first_overlap(&prefixes, &theirs) {
            return Err(Conflict::PeeringOverlap {
                a: own.name.clone(),
                b: vpc.name,
                a_prefix: a_prefix.to_string(),
                b_prefix: b_prefix.to_string(),
            }
            .into());
        }
    }
    Ok(subnets)
}

pub(crate) async fn list(
    q: &mut dyn Query,
    vpc: Option<VpcId>,
    name: Option<&str>,
    page: Page,
) -> Result<Vec<Peering>> {
    let after = i64::try_from(page.after).unwrap_or(i64::MAX);
    let mut sql = format!("SELECT {} FROM peerings WHERE id > $1", Peering::COLUMNS);
    let mut values = args![after, page.limit];
    if let Some(vpc) = vpc {
        sql.push_str(" AND (a = $3 OR b = $3)");
        values.push(vpc.get().into());
    }
    if let Some(name) = name {
        values.push(name.into());
        sql.push_str(&format!(" AND name = ${}", values.len()));
    }
    sql.push_str(" ORDER BY id LIMIT $2");
    q.rows(&sql, values).await?.iter().map(Peering::decode).collect()
}

pub(crate) async fn delete(w: &mut Write, id: PeeringId, expected: Option<u64>) -> Result<u64> {
    let peering: Peering = get(w.q(), id).await?;
    check_revision(id, &peering, expected)?;
    let object = ("peering", peering.name.as_str(), id.get());
    check_unused(w.q(), object, "route", "SELECT prefix FROM routes WHERE peering = $1 LIMIT 1").await?;
    w.q().run("DELETE FROM peerings WHERE id = $1", args![id.get()]).await?;
    let (a, b): (Vpc, Vpc) = (get(w.q(), peering.a).await?, get(w.q(), peering.b).await?);
    let a_subnets = find(w.q(), vec![("vpc", a.id.get().into())]).await?;
    let b_subnets = find(w.q(), vec![("vpc", b.id.get().into())]).await?;
    // Peered VPCs are on one cluster.
    let nodes = removals::gateways_of(w.q(), &a).await?;
    w.push(&Change::PeeringRemoved { a, a_subnets, b, b_subnets })?;
    removals::record(w, ("peering", id.get(), &peering.name), nodes, &[]).await
}
