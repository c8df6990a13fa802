//! Claims: an instance has announced an address that it may have in turn with others, and holds it from now on.

use super::alloc::Family;
use super::further::{bytes, range, save};
use crate::backend::Query;
use crate::rows::get;
use crate::value::args;
use crate::write::Write;
use crate::{Change, Claim, Conflict, Host, Instance, InstanceChange, Result, StoreError, StoredPair, Vpc};
use sluice_types::{HostId, InstanceId};
use std::net::IpAddr;
use std::time::Instant;

/// The claimant, or `None` if it holds the address.
///
/// # Errors
/// The instance does not exist, is on another host, or does not list the address.
pub(crate) async fn claimant(
    q: &mut dyn Query,
    host: HostId,
    id: InstanceId,
    address: IpAddr,
) -> Result<Option<Instance>> {
    let instance: Instance = get(q, id).await?;
    let refused = |reason: &str| {
        let (address, instance) = (address.to_string(), instance.name.clone());
        StoreError::from(Conflict::ClaimRefused { address, instance, reason: reason.to_owned() })
    };
    // While it migrates, its VM may have announced the address on either host.
    if instance.hosts().all(|of| of != host) {
        return Err(refused("is on another host"));
    }
    let pair = instance.options.pairs.iter().find(|pair| pair.address == address);
    let is_held = pair.ok_or_else(|| refused("does not list it"))?.is_held();
    Ok((!is_held).then_some(instance))
}

/// The instance of a VPC that holds an address.
async fn holder(q: &mut dyn Query, vpc: &Vpc, address: IpAddr) -> Result<Option<Instance>> {
    let (family, (first, _)) = (Family::of(address.into()), range(address.into()));
    let sql =
        "SELECT instance FROM further_addresses WHERE vpc = $1 AND family = $2 AND first = $3 AND held = 1";
    match q.row(sql, args![vpc.id.get(), family.number(), bytes(first)]).await? {
        Some(row) => get(q, InstanceId::new(row.number(0)?)).await.map(Some),
        None => Ok(None),
    }
}

/// Records that an instance has announced an address of its pairs, and holds it from now on, unless another
/// instance announced it later. `host` reported it.
///
/// # Errors
/// As [`claimant`].
pub(crate) async fn claim(
    w: &mut Write,
    host: HostId,
    id: InstanceId,
    address: IpAddr,
    announced: Instant,
) -> Result<Claim> {
    let Some(new) = claimant(w.q(), host, id, address).await? else { return Ok(Claim::Held) };
    let vpc: Vpc = get(w.q(), new.vpc).await?;
    // One clock for all replicas of the controller. The time in which the write waited for others counts.
    let now = w.tx.now_ms().await?;
    let age = u64::try_from(announced.elapsed().as_millis()).unwrap_or(u64::MAX);
    let announced = now.saturating_sub(age);
    // A holder from the future has it from before the clock was set back.
    let is_later = |since: u64| since > announced && since <= now;
    let pair = |instance: &Instance| -> Option<StoredPair> {
        instance.options.pairs.iter().find(|pair| pair.address == address).copied()
    };
    let old = holder(w.q(), &vpc, address).await?;
    if old.as_ref().and_then(pair).and_then(|pair| pair.held_since).is_some_and(is_later) {
        return Ok(Claim::Late);
    }
    let (mut changes, mut hosts) = (Vec::new(), Vec::<Host>::new());
    // The old holder first: the index permits one holder.
    for (instance, since) in old.into_iter().map(|old| (old, None)).chain([(new, Some(announced))]) {
        let mut after = Instance { revision: w.revision, ..instance.clone() };
        let of_address = |pair: &&mut StoredPair| pair.address == address;
        after.options.pairs.iter_mut().filter(of_address).for_each(|pair| pair.held_since = since);
        save(w.q(), &after).await?;
        if hosts.iter().all(|host| host.id != after.host) {
            hosts.push(get(w.q(), after.host).await?);
        }
        changes.push(InstanceChange { before: instance.options, after });
    }
    let taken = changes.last().map(|change| change.after.clone());
    w.push(&Change::InstancesChanged { vpc, hosts, changes })?;
    taken
        .map(|taken| Claim::Taken(Box::new(taken)))
        .ok_or_else(|| StoreError::Corrupt(format!("{id} was not changed")))
}
