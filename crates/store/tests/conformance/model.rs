//! A simple model of a tenant's VPCs: lists that are searched from end to end.

use sluice_store::{Change, Instance, Peering, Result, Route, RouteTarget, StoreError, Subnet, Vpc};
use sluice_types::{
    HostId, InstanceId, IpNet, MacAddr, PeeringId, RouteId, SubnetId, VpcId, eui64_address, overlap,
};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    pub vpcs: BTreeMap<VpcId, Vpc>,
    pub subnets: BTreeMap<SubnetId, Subnet>,
    pub instances: BTreeMap<InstanceId, Instance>,
    pub routes: BTreeMap<RouteId, (VpcId, Route)>,
    pub peerings: BTreeMap<PeeringId, Peering>,
    /// First address that was never allocated, by subnet and address family (true: IPv6).
    next: HashMap<(SubnetId, bool), u128>,
}

/// The name of a call's result: `New`, `Existing`, or the variant of the error.
pub fn verdict<T>(result: &Result<T>, existing: impl Fn(&T) -> bool) -> String {
    let variant = |text: String| text.split([' ', '(', '{']).next().unwrap_or_default().to_owned();
    match result {
        Ok(value) if existing(value) => "Existing".into(),
        Ok(_) => "New".into(),
        Err(StoreError::Conflict(conflict)) => variant(format!("{conflict:?}")),
        Err(StoreError::InBulk { source, .. }) => match source.as_ref() {
            StoreError::Conflict(conflict) => variant(format!("{conflict:?}")),
            other => variant(format!("{other:?}")),
        },
        Err(other) => variant(format!("{other:?}")),
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    }
}

/// A request for an instance.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub name: String,
    pub mac: Option<MacAddr>,
    pub ipv4: Option<Ipv4Addr>,
    pub ipv6: Option<Ipv6Addr>,
}

impl Model {
    pub fn prefixes(&self, vpc: VpcId) -> Vec<IpNet> {
        let subnets = self.subnets.values().filter(|s| s.vpc == vpc);
        subnets.flat_map(|s| s.ipv4.map(IpNet::V4).into_iter().chain(s.ipv6.map(IpNet::V6))).collect()
    }

    fn peers(&self, vpc: VpcId) -> Vec<VpcId> {
        let ends = self.peerings.values().map(|p| (p.a, p.b));
        ends.filter_map(|(a, b)| if a == vpc { Some(b) } else { (b == vpc).then_some(a) }).collect()
    }

    fn clash(&self, given: &[IpNet], vpc: VpcId) -> bool {
        self.prefixes(vpc).iter().any(|theirs| given.iter().any(|own| overlap(own, theirs)))
    }

    pub fn create_vpc(&self, name: &str) -> &'static str {
        if self.vpcs.values().any(|v| v.name == name) { "Existing" } else { "New" }
    }

    pub fn delete_vpc(&self, id: VpcId) -> &'static str {
        let used = self.subnets.values().any(|s| s.vpc == id)
            || self.routes.values().any(|(v, _)| *v == id)
            || !self.peers(id).is_empty();
        if used { "InUse" } else { "New" }
    }

    pub fn create_subnet(&self, vpc: VpcId, name: &str, given: &[IpNet]) -> &'static str {
        if let Some(there) = self.subnets.values().find(|s| s.vpc == vpc && s.name == name) {
            let nets: Vec<IpNet> =
                there.ipv4.map(IpNet::V4).into_iter().chain(there.ipv6.map(IpNet::V6)).collect();
            return if nets == given { "Existing" } else { "NameTaken" };
        }
        if self.clash(given, vpc) {
            return "PrefixOverlap";
        }
        for peer in self.peers(vpc) {
            let beside = self.peers(peer).into_iter().filter(|other| *other != vpc);
            if self.clash(given, peer) || beside.into_iter().any(|other| self.clash(given, other)) {
                return "PeeringOverlap";
            }
        }
        let inside =
            self.routes.values().any(|(v, r)| *v == vpc && given.iter().any(|net| net.contains(&r.prefix)));
        if inside { "RouteInsideSubnet" } else { "New" }
    }

    pub fn delete_subnet(&self, id: SubnetId) -> &'static str {
        if self.instances.values().any(|i| i.subnet == id) { "InUse" } else { "New" }
    }

    pub fn create_peering(&self, name: &str, a: VpcId, b: VpcId) -> &'static str {
        if a == b {
            return "PeeredWithItself";
        }
        let ends = (a.min(b), a.max(b));
        if let Some(there) = self.peerings.values().find(|p| p.name == name) {
            return if (there.a, there.b) == ends { "Existing" } else { "NameTaken" };
        }
        if self.peerings.values().any(|p| (p.a, p.b) == ends) {
            return "AlreadyPeered";
        }
        for (own, other) in [(a, b), (b, a)] {
            let nets = self.prefixes(own);
            let beside = self.peers(other).into_iter().filter(|v| *v != own);
            if self.clash(&nets, other) || beside.into_iter().any(|v| self.clash(&nets, v)) {
                return "PeeringOverlap";
            }
        }
        "New"
    }

    pub fn delete_peering(&self, id: PeeringId) -> &'static str {
        let used = self.routes.values().any(|(_, r)| r.target == RouteTarget::Peering(id));
        if used { "InUse" } else { "New" }
    }

    pub fn create_route(&self, vpc: VpcId, prefix: IpNet, target: RouteTarget) -> &'static str {
        if let RouteTarget::Peering(id) = target {
            let peering = &self.peerings[&id];
            if peering.a != vpc && peering.b != vpc {
                return "ForeignPeering";
            }
        }
        if let Some((_, there)) = self.routes.values().find(|(v, r)| *v == vpc && r.prefix == prefix) {
            return if there.target == target { "Existing" } else { "NameTaken" };
        }
        if self.prefixes(vpc).iter().any(|net| net.contains(&prefix)) { "RouteInsideSubnet" } else { "New" }
    }

    fn usable(net: IpNet) -> (u128, u128) {
        let first = number(net.network()) + 2;
        match net {
            IpNet::V4(v4) => (first, u128::from(u32::from(v4.broadcast())) - 1),
            IpNet::V6(v6) => (first, u128::from(v6.broadcast())),
        }
    }

    fn has(&self, vpc: VpcId, address: u128, v6: bool) -> bool {
        self.instances.values().filter(|i| i.vpc == vpc).any(|i| match v6 {
            true => i.ipv6.is_some_and(|a| u128::from(a) == address),
            false => i.ipv4.is_some_and(|a| u128::from(u32::from(a)) == address),
        })
    }

    /// The address that the next instance of the subnet gets.
    fn allocate(&mut self, subnet: &Subnet, v6: bool) -> Option<u128> {
        let net = if v6 { subnet.ipv6.map(IpNet::V6) } else { subnet.ipv4.map(IpNet::V4) }?;
        let (first, last) = Self::usable(net);
        let next = *self.next.get(&(subnet.id, v6)).unwrap_or(&first);
        let fresh = (next..=last).find(|a| !self.has(subnet.vpc, *a, v6));
        self.next.insert((subnet.id, v6), fresh.unwrap_or(last) + 1);
        fresh.or_else(|| (first..=last).find(|a| !self.has(subnet.vpc, *a, v6)))
    }

    /// The result of creating one instance, and its IPv4 and (unless derived) IPv6 address.
    pub fn create_instance(
        &mut self,
        subnet: SubnetId,
        wanted: &Wanted,
    ) -> (&'static str, Option<Ipv4Addr>, Option<Ipv6Addr>) {
        let subnet = self.subnets[&subnet].clone();
        let refused = |why| (why, None, None);
        let in_vpc = || self.instances.values().filter(|i| i.vpc == subnet.vpc);
        if let Some(there) = in_vpc().find(|i| i.name == wanted.name) {
            let same = there.subnet == subnet.id
                && wanted.mac.is_none_or(|m| m == there.mac)
                && wanted.ipv4.is_none_or(|a| Some(a) == there.ipv4)
                && wanted.ipv6.is_none_or(|a| Some(a) == there.ipv6);
            return refused(if same { "Existing" } else { "NameTaken" });
        }
        let given = [wanted.ipv4.map(IpAddr::V4), wanted.ipv6.map(IpAddr::V6)];
        for address in given.into_iter().flatten() {
            let net = match address {
                IpAddr::V4(_) => subnet.ipv4.map(IpNet::V4),
                IpAddr::V6(_) => subnet.ipv6.map(IpNet::V6),
            };
            let Some(net) = net else { return refused("NoSuchFamily") };
            let (first, last) = Self::usable(net);
            if !net.contains(&address) {
                return refused("OutsideSubnet");
            } else if number(address) < first || number(address) > last {
                return refused("ReservedAddress");
            }
        }
        if wanted.mac.is_some_and(|mac| in_vpc().any(|i| i.mac == mac)) {
            return refused("MacTaken");
        }
        let derives = subnet.ipv6.filter(|net| net.prefix_len() == 64 && wanted.ipv6.is_none());
        let derived = derives.zip(wanted.mac).and_then(|(net, mac)| eui64_address(&net, mac));
        let taken = wanted.ipv4.is_some_and(|a| self.has(subnet.vpc, u32::from(a).into(), false))
            || wanted.ipv6.or(derived).is_some_and(|a| self.has(subnet.vpc, a.into(), true));
        if taken {
            return refused("AddressTaken");
        }
        let before = self.next.clone();
        let ipv4 = match wanted.ipv4 {
            None if subnet.ipv4.is_some() => self.allocate(&subnet, false).map(|n| Ipv4Addr::from(n as u32)),
            given => given,
        };
        let sequential = subnet.ipv6.is_some() && derives.is_none() && wanted.ipv6.is_none();
        let ipv6 = if sequential { self.allocate(&subnet, true).map(Ipv6Addr::from) } else { wanted.ipv6 };
        let full = (subnet.ipv4.is_some() && ipv4.is_none()) || (sequential && ipv6.is_none());
        if full {
            self.next = before;
            return refused("SubnetFull");
        }
        ("New", ipv4, ipv6)
    }

    /// Adds an instance that the store did not create.
    pub fn pretend(
        &mut self,
        subnet: SubnetId,
        one: &Wanted,
        ipv4: Option<Ipv4Addr>,
        ipv6: Option<Ipv6Addr>,
    ) {
        let id = u64::MAX - self.instances.len() as u64;
        let instance = Instance {
            id: InstanceId::new(id),
            name: one.name.clone(),
            vpc: self.subnets[&subnet].vpc,
            subnet,
            host: HostId::new(1),
            mac: MacAddr::from_u64(id & 0xffff_ffff_ffff),
            ipv4,
            ipv6,
            identity: 1,
            options: Default::default(),
            migration: None,
            revision: 0,
        };
        self.instances.insert(instance.id, instance);
    }

    /// Saves or restores the position of allocation, for a bulk creation that is refused.
    pub fn checkpoint(&self) -> Self {
        self.clone()
    }

    /// Applies a change of the outbox as a node does: the resulting state must be the stored state.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::VpcUpserted { vpc, .. } => drop(self.vpcs.insert(vpc.id, vpc.clone())),
            Change::VpcRemoved(vpc) => drop(self.vpcs.remove(&vpc.id)),
            Change::SubnetUpserted { subnet, vpc, subnets, .. } => {
                self.subnets.insert(subnet.id, subnet.clone());
                let own: Vec<_> = self.subnets.values().filter(|s| s.vpc == vpc.id).cloned().collect();
                assert_eq!(&own, subnets, "all the VPC's subnets");
            }
            Change::SubnetRemoved { subnet, .. } => drop(self.subnets.remove(&subnet.id)),
            Change::InstancesCreated { instances, .. } => {
                self.instances.extend(instances.iter().map(|i| (i.id, i.clone())));
            }
            Change::InstancesRemoved { instances, .. } => {
                for instance in instances {
                    assert_eq!(self.instances.remove(&instance.id).as_ref(), Some(instance));
                }
            }
            Change::RouteUpserted { vpc, route, .. } => {
                self.routes.insert(route.id, (vpc.id, route.clone()));
            }
            Change::RouteRemoved { route, .. } => drop(self.routes.remove(&route.id)),
            _ => {}
        }
    }
}
