//! Pools of public addresses: creation, update, deletion.

use super::removals::{self, HeldKind};
use super::{check_unused, underlay};
use crate::backend::Query;
use crate::check::{self, Difference, invalid};
use crate::rows::{check_revision, find, find_one, get};
use crate::value::{args, list};
use crate::write::Write;
use crate::{
    Change, Cluster, Conflict, Created, MAX_POOL_PREFIXES, NewPublicPool, PublicPool, PublicPoolUpdate,
    Result,
};
use sluice_types::{IpNet, PublicPoolId, overlap};
use std::net::IpAddr;

/// The prefixes in ascending order.
///
/// # Errors
/// There are none or too many, one contains addresses that are not public, or two have an address in common.
fn sorted(prefixes: &[IpNet]) -> Result<Vec<IpNet>> {
    if prefixes.is_empty() || prefixes.len() > MAX_POOL_PREFIXES {
        let text = format!("a pool has 1 to {MAX_POOL_PREFIXES} prefixes, not {}", prefixes.len());
        return Err(invalid("prefixes", text));
    }
    prefixes.iter().try_for_each(|prefix| check::unicast_prefix(*prefix))?;
    let mut sorted = prefixes.to_vec();
    sorted.sort();
    // One that contains others comes before them, and nothing else is in between.
    match sorted.windows(2).find(|pair| overlap(&pair[0], &pair[1])) {
        Some(pair) => Err(invalid(pair[1], format!("{} overlaps {} of the same pool", pair[1], pair[0]))),
        None => Ok(sorted),
    }
}

/// Checks that prefixes have no address in common with other pools, and contain no underlay address, also of a deleted
/// node or cluster.
async fn check_free(q: &mut dyn Query, own: Option<PublicPoolId>, prefixes: &[IpNet]) -> Result<()> {
    for pool in find::<PublicPool>(q, vec![]).await?.iter().filter(|pool| Some(pool.id) != own) {
        let overlaps = |given: &&IpNet| pool.prefixes.iter().find(|theirs| overlap(theirs, given));
        if let Some((given, existing)) = prefixes.iter().find_map(|given| Some((given, overlaps(&given)?))) {
            let (given, existing) = (given.to_string(), existing.to_string());
            return Err(Conflict::PoolOverlap { given, existing, pool: pool.name.clone() }.into());
        }
    }
    match underlay::inside(q, prefixes).await? {
        Some((prefix, address, owner)) => {
            let (prefix, address) = (prefix.to_string(), address.to_string());
            Err(Conflict::PrefixContains { prefix, address, owner }.into())
        }
        None => removals::check_none_held(q, HeldKind::Underlay, prefixes).await,
    }
}

/// The pool in which an address is.
pub(super) async fn containing(q: &mut dyn Query, address: IpAddr) -> Result<Option<PublicPool>> {
    let pools = find::<PublicPool>(q, vec![]).await?;
    Ok(pools.into_iter().find(|pool| pool.prefixes.iter().any(|prefix| prefix.contains(&address))))
}

pub(crate) async fn create(w: &mut Write, new: &NewPublicPool) -> Result<Created<PublicPool>> {
    check::name("public pool", &new.name)?;
    let prefixes = sorted(&new.prefixes)?;
    let cluster: Cluster = get(w.q(), new.cluster).await?;
    if let Some(existing) = find_one::<PublicPool>(w.q(), vec![("name", new.name.as_str().into())]).await? {
        Difference::default()
            .field("cluster", existing.cluster, cluster.id)
            .field("prefixes", list(&existing.prefixes), list(&prefixes))
            .conflict("public pool", &new.name)?;
        return Ok(Created::Existing(existing));
    }
    check_free(w.q(), None, &prefixes).await?;
    let id = PublicPoolId::new(w.id());
    let pool = PublicPool { id, name: new.name.clone(), cluster: cluster.id, prefixes, revision: w.revision };
    let sql = "INSERT INTO public_pools (id, name, cluster, prefixes, revision) VALUES ($1, $2, $3, $4, $5)";
    let values = args![id.get(), pool.name.as_str(), cluster.id.get(), list(&pool.prefixes), pool.revision];
    w.q().run(sql, values).await?;
    w.push(&Change::PublicPoolUpserted(pool.clone()))?;
    Ok(Created::New(pool))
}

pub(crate) async fn update(
    w: &mut Write,
    id: PublicPoolId,
    new: &PublicPoolUpdate,
    expected: Option<u64>,
) -> Result<PublicPool> {
    let mut pool: PublicPool = get(w.q(), id).await?;
    check_revision(id, &pool, expected)?;
    let name = new.name.clone().unwrap_or_else(|| pool.name.clone());
    check::name("public pool", &name)?;
    let prefixes = new.prefixes.as_deref().map_or_else(|| Ok(pool.prefixes.clone()), sorted)?;
    if (&name, &prefixes) == (&pool.name, &pool.prefixes) {
        return Ok(pool);
    }
    if name != pool.name
        && let Some(other) = find_one::<PublicPool>(w.q(), vec![("name", name.as_str().into())]).await?
    {
        Difference::default().field("the id", other.id, id).conflict("public pool", &name)?;
    }
    check_free(w.q(), Some(id), &prefixes).await?;
    // A prefix may be replaced by a longer or a shorter one that has the EIPs, too.
    let sql = "SELECT name, prefix FROM eips WHERE pool = $1 ORDER BY id";
    for row in w.q().rows(sql, args![id.get()]).await? {
        let used: IpNet = row.parse(1)?;
        if !prefixes.iter().any(|prefix| prefix.contains(&used)) {
            let old = pool.prefixes.iter().find(|prefix| prefix.contains(&used)).unwrap_or(&used);
            let user = format!("EIP `{}`", row.text(0)?);
            return Err(Conflict::InUse { kind: "prefix", name: old.to_string(), user }.into());
        }
    }
    (pool.name, pool.prefixes, pool.revision) = (name, prefixes, w.revision);
    let sql = "UPDATE public_pools SET name = $2, prefixes = $3, revision = $4 WHERE id = $1";
    let values = args![id.get(), pool.name.as_str(), list(&pool.prefixes), pool.revision];
    w.q().run(sql, values).await?;
    w.push(&Change::PublicPoolUpserted(pool.clone()))?;
    Ok(pool)
}

pub(crate) async fn delete(w: &mut Write, id: PublicPoolId, expected: Option<u64>) -> Result<u64> {
    let pool: PublicPool = get(w.q(), id).await?;
    check_revision(id, &pool, expected)?;
    let object = ("public pool", pool.name.as_str(), id.get());
    check_unused(w.q(), object, "EIP", "SELECT name FROM eips WHERE pool = $1 LIMIT 1").await?;
    w.q().run("DELETE FROM public_pools WHERE id = $1", args![id.get()]).await?;
    w.push(&Change::PublicPoolRemoved(pool))?;
    Ok(w.revision)
}
