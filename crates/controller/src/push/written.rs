//! Which objects have entries that a node could not write, by name.
//!
//! A node acknowledges a revision also if it could not write all entries, and names those that are missing. An object with
//! one of them is not programmed; other objects are. Of a node that names nothing, or not everything, no object that it needs
//! counts as programmed.

use super::hub::{Gap, Hub};
use super::members::{Members, Needs};
use sluice_store::NodeId;
use sluice_types::{EntryKey, IpNet, VpcId};
use std::net::IpAddr;

/// Most failures that an object shows.
const FAILURES_MAX: usize = 16;

/// The entries that nodes have of an object, besides the VRF of its VPC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries {
    /// The VPCs whose VRFs it needs.
    pub vpcs: Vec<VpcId>,
    /// Addresses of an instance in the first VPC.
    pub addresses: Vec<IpAddr>,
    /// Routes in the first VPC, and prefixes in it that are delegated to an instance.
    pub routes: Vec<IpNet>,
    /// All routes of the VPCs.
    pub all_routes: bool,
    /// Public prefixes.
    pub public_prefixes: Vec<IpNet>,
    /// The NAT gateway of the first VPC.
    pub nat_gateway: bool,
    /// Meters, by the ids that gateways have.
    pub meters: Vec<u32>,
    /// A service, by the id that nodes have, and all of its mounts in the first VPC.
    pub service: Option<u32>,
    /// Underlay addresses: of a host, a gateway, or a cluster.
    pub underlay: Vec<IpAddr>,
    /// Groups of vIPs.
    pub groups: bool,
    /// Identity of the only policy in the first VPC that it needs; `None`: all of them. Only hosts have policies.
    pub identity: Option<u16>,
}

/// An entry of an object that a node could not write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryFailure {
    /// The node.
    pub node: NodeId,
    /// The entry, like `endpoint 10.0.0.2 of VNI 7`.
    pub entry: String,
    /// Why the node could not write it.
    pub reason: String,
}

impl Entries {
    fn has(&self, members: &Members, key: &EntryKey) -> bool {
        let is_first = |vni| self.vpcs.first().is_some_and(|vpc| members.vni(*vpc) == Some(vni));
        let is_any = |vni| self.vpcs.iter().any(|vpc| members.vni(*vpc) == Some(vni));
        match key {
            EntryKey::Vrf(vni) => is_any(*vni),
            EntryKey::Endpoint(vni, address) | EntryKey::Port(vni, address) => {
                self.addresses.contains(address) && is_first(*vni)
            }
            EntryKey::Route(vni, prefix) => {
                self.all_routes && is_any(*vni) || self.routes.contains(prefix) && is_first(*vni)
            }
            EntryKey::Vtep(address) | EntryKey::Vip(address) => self.underlay.contains(address),
            EntryKey::Group(_) => self.groups,
            EntryKey::Policy(vni, identity) => {
                is_first(*vni) && self.identity.is_none_or(|own| own == *identity)
            }
            EntryKey::Delegated(vni, prefix) => self.routes.contains(prefix) && is_first(*vni),
            EntryKey::PublicPrefix(outside) => self.public_prefixes.contains(outside),
            EntryKey::Meter(id) => self.meters.contains(id),
            EntryKey::NatGateway(vni) => self.nat_gateway && is_first(*vni),
            EntryKey::Service(id) => self.service == Some(*id),
            EntryKey::ServiceAddress(vni, address) => self.addresses.contains(address) && is_first(*vni),
            EntryKey::Interface(_) => false,
        }
    }

    /// The entries of an object that are missing on nodes that need it; empty for an object with none.
    pub(super) fn failures(
        &self,
        needs: Needs,
        members: &Members,
        gaps: &[(NodeId, Gap<'_>)],
    ) -> Vec<EntryFailure> {
        let mut failures = Vec::new();
        for (node, gap) in gaps.iter().filter(|(node, _)| members.needs(needs, *node)) {
            let named = gap.missing.map(|missing| &missing.entries);
            let own = named.into_iter().flatten().filter(|(key, _)| self.has(members, key));
            failures.extend(own.map(|(key, reason)| EntryFailure {
                node: *node,
                entry: key.to_string(),
                reason: reason.clone(),
            }));
            if gap.missing.is_none_or(|missing| missing.others) {
                let (entry, reason) = ("entries that the node did not name".to_owned(), gap.text.to_owned());
                failures.push(EntryFailure { node: *node, entry, reason });
            }
        }
        failures.truncate(FAILURES_MAX);
        failures
    }
}

/// Whether an object is programmed, and its entries that nodes could not write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// All nodes that need it have acknowledged it, and have all its entries.
    pub programmed: bool,
    /// At most 16.
    pub failures: Vec<EntryFailure>,
}

/// For each object, given by the nodes that need it, its revision and its entries, whether it is programmed.
pub fn written(members: &Members, hub: &Hub, objects: &[(Needs, u64, Entries)]) -> Vec<Written> {
    let needs: Vec<_> = objects.iter().map(|(needs, revision, _)| (*needs, *revision)).collect();
    let acknowledged = members.programmed(hub, &needs);
    hub.with_gaps(|gaps| {
        let one = |((needs, _, entries), acknowledged): (&(Needs, u64, Entries), bool)| {
            let failures = entries.failures(*needs, members, gaps);
            Written { programmed: acknowledged && failures.is_empty(), failures }
        };
        objects.iter().zip(acknowledged).map(one).collect()
    })
}
