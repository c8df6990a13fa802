//! Pools of public addresses: creation, update, deletion.

use super::removals::{self, HeldKind};
use super::{eips, nat_gateways, underlay};
use crate::backend::Query;
use crate::check::{self, Difference, invalid};
use crate::rows::{check_revision, find, find_one, get};
use crate::value::{Row, args, list};
use crate::write::Write;
use crate::{
    Change, Cluster, Conflict, Created, MAX_POOL_PREFIXES, MAX_RESERVED_PREFIXES, NatGateway, NewPublicPool,
    PublicPool, PublicPoolUpdate, Result,
};
use sluice_types::{EipId, IpNet, PublicPoolId, overlap};
use std::fmt::Display;
use std::net::IpAddr;

/// The prefixes in ascending order.
///
/// # Errors
/// A pool without prefixes or with too many of them, a prefix with addresses that are not public, or two
/// prefixes with an address in common.
fn sorted(prefixes: &[IpNet]) -> Result<Vec<IpNet>> {
    if prefixes.is_empty() || prefixes.len() > MAX_POOL_PREFIXES {
        let text = format!("a pool has 1 to {MAX_POOL_PREFIXES} prefixes, not {}", prefixes.len());
        return Err(invalid("prefixes", text));
    }
    prefixes.iter().try_for_each(|prefix| check::unicast_prefix(*prefix))?;
    ascending(prefixes)
}

/// Checks that no two prefixes have an address in common, and sorts them.
fn ascending(prefixes: &[IpNet]) -> Result<Vec<IpNet>> {
    let mut sorted = prefixes.to_vec();
    sorted.sort();
    // One that contains others comes before them, and nothing else is in between.
    match sorted.windows(2).find(|pair| overlap(&pair[0], &pair[1])) {
        Some(pair) => Err(invalid(pair[1], format!("{} overlaps {} of the same pool", pair[1], pair[0]))),
        None => Ok(sorted),
    }
}

/// The reserved prefixes of a pool in ascending order.
///
/// # Errors
/// There are too many, one is not inside a prefix of the pool, or two have an address in common.
fn sorted_reserved(reserved: &[IpNet], prefixes: &[IpNet]) -> Result<Vec<IpNet>> {
    if reserved.len() > MAX_RESERVED_PREFIXES {
        let text =
            format!("a pool has at most {MAX_RESERVED_PREFIXES} reserved prefixes, not {}", reserved.len());
        return Err(invalid("reserved", text));
    }
    reserved.iter().try_for_each(|prefix| check::prefix(*prefix))?;
    match reserved.iter().find(|inside| !prefixes.iter().any(|prefix| prefix.contains(*inside))) {
        Some(outside) => {
            Err(invalid("reserved", format!("reserved prefix {outside} is in no prefix of the pool")))
        }
        None => ascending(reserved),
    }
}

/// Checks that prefixes have no address in common with other pools and with prefixes of NAT64, and contain no underlay address, also of
/// a deleted node or cluster.
async fn check_free(q: &mut dyn Query, own: Option<PublicPoolId>, prefixes: &[IpNet]) -> Result<()> {
    for pool in find::<PublicPool>(q, vec![]).await?.iter().filter(|pool| Some(pool.id) != own) {
        let overlaps = |given: &&IpNet| pool.prefixes.iter().find(|theirs| overlap(theirs, given));
        if let Some((given, existing)) = prefixes.iter().find_map(|given| Some((given, overlaps(&given)?))) {
            let (given, existing) = (given.to_string(), existing.to_string());
            return Err(Conflict::PoolOverlap { given, existing, pool: pool.name.clone() }.into());
        }
    }
    nat_gateways::check_none_has_nat64(q, prefixes).await?;
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
    let reserved = sorted_reserved(&new.reserved, &prefixes)?;
    let cluster: Cluster = get(w.q(), new.cluster).await?;
    if let Some(existing) = find_one::<PublicPool>(w.q(), vec![("name", new.name.as_str().into())]).await? {
        Difference::default()
            .field("cluster", existing.cluster, cluster.id)
            .field("prefixes", list(&existing.prefixes), list(&prefixes))
            .field("reserved", list(&existing.reserved), list(&reserved))
            .conflict("public pool", &new.name)?;
        return Ok(Created::Existing(existing));
    }
    check_free(w.q(), None, &prefixes).await?;
    let id = PublicPoolId::new(w.id());
    let (name, revision) = (new.name.clone(), w.revision);
    let pool = PublicPool { id, name, cluster: cluster.id, prefixes, reserved, revision };
    let sql = "INSERT INTO public_pools (id, name, cluster, prefixes, reserved, revision) \
               VALUES ($1, $2, $3, $4, $5, $6)";
    let (prefixes, reserved) = (list(&pool.prefixes), list(&pool.reserved));
    let values = args![id.get(), pool.name.as_str(), cluster.id.get(), prefixes, reserved, revision];
    w.q().run(sql, values).await?;
    w.push(&Change::PublicPoolUpserted(pool.clone()))?;
    Ok(Created::New(pool))
}

/// The addresses of a pool that are used, each with its user, whose name others may have too.
async fn used_of(q: &mut dyn Query, id: PublicPoolId) -> Result<Vec<(IpNet, String)>> {
    let sql = "SELECT id, name, prefix FROM eips WHERE pool = $1 ORDER BY id";
    let rows = q.rows(sql, args![id.get()]).await?;
    let user = |kind: &str, name: &str, id: &dyn Display, address: IpNet| {
        (address, format!("{kind} `{name}` ({id}, {})", eips::text(address)))
    };
    let eip = |row: &Row| Ok(user("EIP", row.text(1)?, &EipId::new(row.number(0)?), row.parse(2)?));
    let mut used = rows.iter().map(eip).collect::<Result<Vec<(IpNet, String)>>>()?;
    for nat_gateway in find::<NatGateway>(q, vec![("pool", id.get().into())]).await? {
        let NatGateway { id, name, addresses, .. } = &nat_gateway;
        used.extend(addresses.iter().map(|v4| user("NAT gateway", name, id, IpAddr::V4(*v4).into())));
    }
    Ok(used)
}

/// Checks that a pool which gets these prefixes and reserved prefixes keeps the addresses that gateways may still have of
/// deleted objects, and does not reserve them: the operator could give them to a router.
///
/// # Errors
/// [`Conflict::Held`] with the deleted object.
async fn check_held(
    q: &mut dyn Query,
    pool: &PublicPool,
    prefixes: &[IpNet],
    reserved: &[IpNet],
) -> Result<()> {
    for (held, revision) in removals::held_of(q, HeldKind::Public).await? {
        let has = |prefixes: &[IpNet]| prefixes.iter().any(|prefix| prefix.contains(&held));
        let is_reserved = |reserved: &[IpNet]| reserved.iter().any(|prefix| overlap(prefix, &held));
        let is_reserved = is_reserved(reserved) && !is_reserved(&pool.reserved);
        if has(&pool.prefixes) && (is_reserved || !has(prefixes)) {
            return Err(removals::conflict(q, eips::text(held), revision).await?);
        }
    }
    Ok(())
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
    let reserved = sorted_reserved(new.reserved.as_deref().unwrap_or(&pool.reserved), &prefixes)?;
    if (&name, &prefixes, &reserved) == (&pool.name, &pool.prefixes, &pool.reserved) {
        return Ok(pool);
    }
    if name != pool.name
        && let Some(other) = find_one::<PublicPool>(w.q(), vec![("name", name.as_str().into())]).await?
    {
        Difference::default().field("the id", other.id, id).conflict("public pool", &name)?;
    }
    check_free(w.q(), Some(id), &prefixes).await?;
    // A prefix may be replaced by a longer or a shorter one that has the addresses, too.
    for (used, user) in used_of(w.q(), id).await? {
        let in_use = |kind, name: String| Err(Conflict::InUse { kind, name, user }.into());
        let Some(prefix) = prefixes.iter().find(|prefix| prefix.contains(&used)) else {
            let old = pool.prefixes.iter().find(|prefix| prefix.contains(&used)).unwrap_or(&used);
            return in_use("prefix", old.to_string());
        };
        if eips::reserved(*prefix, used).is_some() {
            return in_use("reserved address", eips::text(used));
        }
        if let Some(taken) = reserved.iter().find(|prefix| overlap(prefix, &used)) {
            return in_use("reserved prefix", taken.to_string());
        }
    }
    check_held(w.q(), &pool, &prefixes, &reserved).await?;
    (pool.name, pool.prefixes, pool.reserved, pool.revision) = (name, prefixes, reserved, w.revision);
    let sql = "UPDATE public_pools SET name = $2, prefixes = $3, reserved = $4, revision = $5 WHERE id = $1";
    let (prefixes, reserved) = (list(&pool.prefixes), list(&pool.reserved));
    let values = args![id.get(), pool.name.as_str(), prefixes, reserved, pool.revision];
    w.q().run(sql, values).await?;
    w.push(&Change::PublicPoolUpserted(pool.clone()))?;
    Ok(pool)
}

pub(crate) async fn delete(w: &mut Write, id: PublicPoolId, expected: Option<u64>) -> Result<u64> {
    let pool: PublicPool = get(w.q(), id).await?;
    check_revision(id, &pool, expected)?;
    if let Some((_, user)) = used_of(w.q(), id).await?.into_iter().next() {
        return Err(Conflict::InUse { kind: "public pool", name: pool.name, user }.into());
    }
    w.q().run("DELETE FROM public_pools WHERE id = $1", args![id.get()]).await?;
    w.push(&Change::PublicPoolRemoved(pool))?;
    Ok(w.revision)
}
