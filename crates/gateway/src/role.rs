//! The gateway's role: what a gateway does with the vIPs, the cluster plan and the VRFs of an update, and
//! what it keeps besides the tables. This file changes when gateways get another kind of entry.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sluice_agent::rsp::KeyKind;
use sluice_agent::{NatAddresses, NodeLoad, Role, StateReports, UpdateContext, elephant_bytes, error_chain};
use sluice_southbound::{ClusterPlan, HostState, Meter, NatGateway, PolicyKey, PublicPrefix, Vip, Vrf};
use sluice_tables::NodeTables;
use sluice_types::IpNet;
use tokio::sync::watch;

use crate::host_probes::HostProbes;
use crate::nat::RoleNat;
use crate::nat::sync::NatUnits;
use crate::permits::NamedTargets;
use crate::public_announcer::PublicAddresses;

/// Period over which the bytes of a flow are counted.
pub const FLOW_PERIOD: Duration = Duration::from_secs(1);

/// The load of this gateway, shared between its monitor and the heartbeats.
#[derive(Clone, Debug, Default)]
pub struct SharedLoad(Arc<Mutex<NodeLoad>>);

impl SharedLoad {
    /// The load as it was measured last.
    #[must_use]
    pub fn get(&self) -> NodeLoad {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the measured load.
    pub fn set(&self, load: NodeLoad) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = load;
    }
}

/// A gateway's state besides the tables.
pub struct GatewayRole {
    /// vIPs that this gateway answers for, including those that are not in the tables yet.
    owned: HashSet<IpAddr>,
    plan: watch::Sender<Option<ClusterPlan>>,
    load: SharedLoad,
    public: PublicAddresses,
    /// The addresses of this gateway's interfaces.
    own_addresses: Vec<IpAddr>,
    nat: RoleNat,
    /// The hosts that others have named as targets of migrations.
    pub targets: NamedTargets,
    /// Probes the hosts of members of services.
    host_probes: Option<HostProbes>,
}

impl GatewayRole {
    /// Until [`GatewayRole::set_owned`] is called, this gateway answers for the vIPs that the tables mark as
    /// owned. What an earlier agent has not ended in the NAT tables ends now, and NAT gateways get the numbers that their
    /// addresses have now: the earlier agent may have had other NAT tables, or none.
    pub fn new(tables: &mut NodeTables, load: SharedLoad, public: PublicAddresses, mut nat: RoleNat) -> Self {
        nat.renumber(tables);
        nat.settle(tables);
        let owned = tables.vips().filter(|vip| vip.owned).map(|vip| vip.address).collect();
        Self {
            owned,
            plan: watch::Sender::default(),
            load,
            public,
            own_addresses: Vec::new(),
            nat,
            targets: NamedTargets::default(),
            host_probes: None,
        }
    }

    /// Makes this gateway answer for exactly these vIPs. Those that are not in the tables yet follow when
    /// they are added.
    pub fn set_owned(&mut self, tables: &mut NodeTables, owned: HashSet<IpAddr>) {
        self.owned = owned;
        let changed: Vec<_> =
            tables.vips().filter(|vip| vip.owned != self.owned.contains(&vip.address)).collect();
        let mut gained = HashSet::new();
        for vip in changed {
            let vip = sluice_tables::Vip { owned: !vip.owned, ..vip };
            match tables.upsert_vip(&vip) {
                Ok(_) if vip.owned => {
                    gained.insert(vip.address);
                }
                Ok(_) => {}
                Err(error) => tracing::error!(
                    vip = %vip.address, owned = vip.owned, error = error_chain(&error),
                    "cannot set whether this gateway answers for a vIP"
                ),
            }
        }
        self.announce_addresses(tables, &gained);
    }

    /// Sets the addresses of this gateway's interfaces, and removes public prefixes and NAT gateways that contain one: packets
    /// to the gateway itself must not go to a tenant. The controller finds the difference and sends them again; they are then
    /// refused.
    pub fn set_own_addresses(&mut self, tables: &mut NodeTables, own: Vec<IpAddr>) {
        if own == self.own_addresses {
            return;
        }
        self.own_addresses = own;
        let all = tables.public_prefixes();
        let all = all.filter_map(|public| Some((public.outside, self.own_address_in(public.outside)?)));
        for (outside, own) in all.collect::<Vec<_>>() {
            tracing::error!(%outside, %own, "this gateway has an address of a public prefix: removing the prefix");
            if let Err(error) = tables.remove_public_prefix(outside) {
                tracing::error!(%outside, error = error_chain(&error), "cannot remove the public prefix");
            }
        }
        let all = tables.nat_gateways();
        let own = all.filter_map(|nat| {
            Some((nat.vni, self.own_address_of(nat.addresses.into_iter().map(|it| it.address))?))
        });
        for (vni, own) in own.collect::<Vec<_>>() {
            tracing::error!(%vni, %own, "this gateway has an address of a NAT gateway: removing the NAT gateway");
            if let Err(error) = tables.remove_nat_gateway(vni) {
                tracing::error!(%vni, error = error_chain(&error), "cannot remove the NAT gateway");
            }
        }
        self.nat.settle(tables);
    }

    /// The address of this gateway itself that is also one of a NAT gateway.
    fn own_address_of(&self, addresses: impl IntoIterator<Item = Ipv4Addr>) -> Option<IpAddr> {
        addresses.into_iter().map(IpAddr::V4).find(|address| self.own_addresses.contains(address))
    }

    fn own_address_in(&self, outside: IpNet) -> Option<IpAddr> {
        self.own_addresses.iter().copied().find(|own| outside.contains(own))
    }

    /// Announces the public addresses of these vIPs. Longer prefixes are not announced: their addresses are asked for.
    fn announce_addresses(&self, tables: &NodeTables, vips: &HashSet<IpAddr>) {
        if !vips.is_empty() {
            let of_vips = tables.public_prefixes().filter(|public| vips.contains(&public.vip));
            self.public.announce(of_vips.filter_map(|public| single_address(public.outside)));
            let of_vips = tables.nat_gateways().filter(|nat| vips.contains(&nat.vip));
            self.public.announce(of_vips.flat_map(|nat| nat.addresses).map(|it| IpAddr::V4(it.address)));
        }
    }

    /// Sets what probes the hosts that the controller names.
    pub fn watch_hosts(&mut self, probes: HostProbes) {
        self.host_probes = Some(probes);
    }

    /// The NAT gateways of the tables.
    pub fn nat_units(&self) -> watch::Receiver<Option<NatUnits>> {
        self.nat.units()
    }

    /// The newest plan of this gateway's cluster that was received since the agent started; each stream
    /// begins with it. The ownership thread saves it for an agent that starts while no controller answers.
    pub fn plan(&self) -> watch::Receiver<Option<ClusterPlan>> {
        self.plan.subscribe()
    }
}

impl Role for GatewayRole {
    const KEY_KIND: KeyKind = KeyKind::Cluster;
    const REPORTS_VNI_TRAFFIC: bool = true;

    fn load(&self) -> NodeLoad {
        self.load.get()
    }

    fn nat_addresses(&self) -> Option<NatAddresses> {
        self.nat.addresses()
    }

    fn hosts(&self) -> StateReports<HostState> {
        self.host_probes.as_ref().map(HostProbes::reports).unwrap_or_default()
    }

    fn set_watched_hosts(&mut self, context: &mut UpdateContext<'_>, hosts: Vec<IpAddr>) {
        if let Some(probes) = &self.host_probes
            && let Err(error) = probes.watch(hosts)
        {
            context.fail(|| format!("watched hosts: {}", error_chain(&error)));
        }
    }

    fn upsert_vip(&mut self, context: &mut UpdateContext<'_>, vip: &Vip) {
        let Vip { address, mac } = *vip;
        let owned = self.owned.contains(&address);
        let known = context.tables.vips().find(|known| known.address == address);
        let result = context.tables.upsert_vip(&sluice_tables::Vip { address, mac, owned });
        let is_written = result.is_ok();
        context.check_topology(result, format_args!("vIP {address}"));
        if is_written && owned && known.is_none_or(|known| known.mac != mac) {
            self.announce_addresses(context.tables, &HashSet::from([address]));
        }
    }

    fn remove_vip(&mut self, context: &mut UpdateContext<'_>, address: IpAddr) {
        let result = context.tables.remove_vip(address);
        context.check_topology(result, format_args!("removal of vIP {address}"));
    }

    /// A stream that continues from this gateway's tables begins with the newest plan, and sends older plans
    /// with the steps that follow: these are ignored.
    fn set_cluster_plan(&mut self, _: &mut UpdateContext<'_>, plan: ClusterPlan) {
        if let Some(seed) = plan.nat_seed {
            self.nat.set_seed(seed);
        }
        self.plan.send_if_modified(|known| {
            let is_old = known
                .as_ref()
                .is_some_and(|known| known.cluster == plan.cluster && known.revision >= plan.revision);
            if !is_old {
                *known = Some(plan);
            }
            !is_old
        });
    }

    fn upsert_vrf(&mut self, context: &mut UpdateContext<'_>, vrf: &Vrf) {
        // Gateways have no groups: they forward to hosts.
        let Vrf { vni, mtu, router4, router6, group: _, elephant_kbps, internet_meter } = *vrf;
        let elephant_bytes = elephant_bytes(elephant_kbps, FLOW_PERIOD);
        let vrf = sluice_tables::Vrf { vni, mtu, router4, router6, group: None, elephant_bytes };
        context.upsert_gateway_vrf(&vrf, internet_meter);
    }

    fn upsert_meter(&mut self, context: &mut UpdateContext<'_>, meter: &Meter) {
        context.upsert_meter(meter);
    }

    fn nat_numbers(&mut self, addresses: &[Ipv4Addr]) -> Result<Vec<u16>, sluice_tables::Error> {
        self.nat.numbers(addresses)
    }

    fn settle(&mut self, tables: &NodeTables) {
        self.nat.settle(tables);
    }

    fn database_changed(&mut self) {
        self.nat.database_changed();
    }

    fn remove_unused(&mut self, context: &mut UpdateContext<'_>) -> Vec<PolicyKey> {
        self.nat.settle(context.tables);
        Vec::new()
    }

    fn upsert_public_prefix(&mut self, context: &mut UpdateContext<'_>, public: &PublicPrefix) {
        let PublicPrefix { outside, vip, .. } = *public;
        if let Some(own) = self.own_address_in(outside) {
            context.fail(|| format!("public prefix {outside}: this gateway itself has {own}"));
            return;
        }
        // Whatever else changes, or fails: neighbors have to know the address and its vIP.
        let had = context.tables.public_vip(outside) == Some(vip);
        context.upsert_public_prefix(public);
        if !had && context.tables.public_vip(outside) == Some(vip) && self.owned.contains(&vip) {
            self.public.announce(single_address(outside));
        }
    }

    fn upsert_nat_gateway(&mut self, context: &mut UpdateContext<'_>, nat: &NatGateway) {
        let vni = nat.vni;
        if let Some(own) = self.own_address_of(nat.addresses.iter().copied()) {
            context.fail(|| format!("NAT gateway of VNI {vni}: this gateway itself has {own}"));
            return;
        }
        let had = |address: &Ipv4Addr| {
            context.tables.public_vip(IpNet::from(IpAddr::V4(*address))) == Some(nat.vip)
        };
        let new: Vec<IpAddr> = nat.addresses.iter().filter(|it| !had(it)).copied().map(IpAddr::V4).collect();
        let is_new = context.upsert_nat_gateway(nat, |addresses| self.nat_numbers(addresses));
        if is_new && self.owned.contains(&nat.vip) {
            self.public.announce(new);
        }
    }
}

/// The address, if the prefix has only one.
fn single_address(prefix: IpNet) -> Option<IpAddr> {
    (prefix.prefix_len() == prefix.max_prefix_len()).then(|| prefix.addr())
}

#[cfg(test)]
mod tests;
