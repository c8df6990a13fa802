//! Adoption: objects that the database lost, because it went back to an earlier state, are created again as nodes
//! still have them.

use super::{alloc, bulk, removals};
use crate::rows::{find, find_one, get};
use crate::write::Write;
use crate::{Conflict, Instance, LostInstance, NewInstance, Result, StoreError, Subnet, Vpc};
use sluice_types::{IpNet, eui64_address};
use std::net::IpAddr;

/// Creates an instance with the id, MAC and addresses that it had. If it is an object already, returns that.
pub(crate) async fn instance(w: &mut Write, lost: &LostInstance, max_identity: u16) -> Result<Instance> {
    let vpc: Option<Vpc> = find_one(w.q(), vec![("vni", lost.vni.get().into())]).await?;
    let no_vpc = || StoreError::NotFound { kind: "VPC with VNI", id: lost.vni.to_string() };
    let vpc = vpc.ok_or_else(no_vpc)?;
    match get::<Instance>(w.q(), lost.id).await {
        Ok(existing) => return check_same(existing, lost),
        Err(StoreError::NotFound { .. }) => {}
        Err(error) => return Err(error),
    }
    let subnets: Vec<Subnet> = find(w.q(), vec![("vpc", vpc.id.get().into())]).await?;
    let has = |subnet: &&Subnet| {
        lost.ipv4.is_none_or(|address| subnet.ipv4.is_some_and(|net| net.contains(&address)))
            && lost.ipv6.is_none_or(|address| subnet.ipv6.is_some_and(|net| net.contains(&address)))
    };
    let no_subnet = || {
        let addresses: Vec<_> = lost.ipv4.iter().map(ToString::to_string).collect();
        let addresses =
            [addresses, lost.ipv6.iter().map(ToString::to_string).collect()].concat().join(" and ");
        let message = format!("VPC `{}` has no subnet with {addresses}: create it first", vpc.name);
        Conflict::Invalid { offender: "addresses".into(), message }
    };
    let subnet = subnets.iter().find(has).ok_or_else(no_subnet)?;
    // What was derived from the id is derived again; requesting it would conflict with the id itself.
    let derives_mac = lost.mac == alloc::derived_mac(lost.id.get());
    let net = subnet.ipv6.filter(|net| net.prefix_len() == 64);
    let derives_ipv6 = lost.ipv6.is_some() && net.and_then(|net| eui64_address(&net, lost.mac)) == lost.ipv6;
    let new = NewInstance {
        name: lost.name.clone(),
        subnet: subnet.id,
        host: lost.host,
        mac: (!derives_mac).then_some(lost.mac),
        ipv4: lost.ipv4,
        ipv6: lost.ipv6.filter(|_| !derives_ipv6),
        security_groups: lost.security_groups.clone(),
        settings: lost.settings.clone(),
    };
    // Nodes have the addresses already, as those of this instance.
    let own = lost.ipv4.map(IpAddr::V4).into_iter().chain(lost.ipv6.map(IpAddr::V6));
    let secondary = lost.settings.secondary_addresses.iter().flatten().copied();
    let pairs = lost.settings.address_pairs.iter().flatten().map(|pair| pair.address);
    let addresses = own.chain(secondary).chain(pairs).map(IpNet::from);
    let nets: Vec<IpNet> =
        addresses.chain(lost.settings.delegated_prefixes.iter().flatten().copied()).collect();
    removals::give_back(w.q(), vpc.id, &nets).await?;
    let next = w.set_next_id(lost.id.get());
    let created = bulk::create(w, vpc.id, std::slice::from_ref(&new), max_identity).await;
    w.set_next_id(next);
    w.raise_id(lost.id.get() + 1);
    let outcome = created.map_err(|error| match error {
        StoreError::InBulk { source, .. } => *source,
        other => other,
    })?;
    let made = outcome.created.into_iter().chain(outcome.existing).next();
    check_same(made.ok_or_else(|| StoreError::Corrupt("the instance was not created".into()))?, lost)
}

/// The instance, if it is the one that nodes have.
fn check_same(found: Instance, lost: &LostInstance) -> Result<Instance> {
    let is_same = (found.id, found.mac, found.ipv4, found.ipv6) == (lost.id, lost.mac, lost.ipv4, lost.ipv6);
    if is_same {
        return Ok(found);
    }
    let message = format!(
        "{} cannot have MAC {} and its addresses again: instance `{}` ({}) has some of them",
        lost.id, lost.mac, found.name, found.id
    );
    Err(Conflict::Invalid { offender: lost.id.to_string(), message }.into())
}
