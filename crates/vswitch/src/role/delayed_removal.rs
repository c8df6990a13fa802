//! Removals that a host delays: of networks, of their groups, and of gateways' VTEPs. This file changes when
//! another kind of entry must outlive its removal by the controller.
//!
//! Other hosts may still send packets here for an instance that has moved; they reach the gateway by the
//! network's group (Zeta section V-B). A gateway that was removed forwards what still comes to its vIPs until
//! other gateways have them, so its packets are accepted for a while.
//!
//! ```text
//!              removed by the controller            delay is over
//!     IN USE ------------------------------> DELAYED ------------> removed
//!        ^                                      |
//!        +------ added again -------------------+
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use sluice_types::{EntryKey, Vni};

/// Entries whose removal is delayed, with the end of the delay.
#[derive(Debug)]
pub(super) struct DelayedRemovals {
    delay: Duration,
    networks: BTreeMap<Vni, Instant>,
    /// Groups that stay only because delayed networks use them.
    groups: BTreeSet<u32>,
    /// VTEPs of gateways.
    vteps: BTreeMap<IpAddr, Instant>,
}

impl DelayedRemovals {
    pub(super) fn new(delay: Duration) -> Self {
        Self { delay, networks: BTreeMap::new(), groups: BTreeSet::new(), vteps: BTreeMap::new() }
    }

    /// Forgets all delayed removals.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.delay);
    }

    /// Delays the removal of a network. A delay that has begun is not extended.
    pub(super) fn delay_network(&mut self, vni: Vni, now: Instant) {
        self.networks.entry(vni).or_insert(now + self.delay);
    }

    /// Cancels the removal of a network.
    pub(super) fn cancel_network(&mut self, vni: Vni) {
        self.networks.remove(&vni);
    }

    /// Whether the removal of a network is delayed.
    pub(super) fn has_network(&self, vni: Vni) -> bool {
        self.networks.contains_key(&vni)
    }

    /// Whether an entry stays only because its removal is delayed.
    pub(super) fn has(&self, key: EntryKey) -> bool {
        match key {
            EntryKey::Vrf(vni) => self.networks.contains_key(&vni),
            EntryKey::Group(id) => self.groups.contains(&id),
            EntryKey::Vtep(address) => self.vteps.contains_key(&address),
            _ => false,
        }
    }

    /// Delays the removal of a group until no network uses it.
    pub(super) fn delay_group(&mut self, id: u32) {
        self.groups.insert(id);
    }

    /// Cancels the removal of a group.
    pub(super) fn cancel_group(&mut self, id: u32) {
        self.groups.remove(&id);
    }

    /// Delays the removal of a gateway's VTEP. A delay that has begun is not extended.
    pub(super) fn delay_vtep(&mut self, vtep: IpAddr, now: Instant) {
        self.vteps.entry(vtep).or_insert(now + self.delay);
    }

    /// Cancels the removal of a VTEP.
    pub(super) fn cancel_vtep(&mut self, vtep: IpAddr) {
        self.vteps.remove(&vtep);
    }

    /// Takes the VTEPs whose delay is over. The delay of one that cannot be removed must be begun again.
    pub(super) fn take_expired_vteps(&mut self, now: Instant) -> Vec<IpAddr> {
        self.vteps.extract_if(.., |_, until| *until <= now).map(|(vtep, _)| vtep).collect()
    }

    /// Takes the networks whose delay is over. The delay of one that cannot be removed must be begun again.
    pub(super) fn take_expired_networks(&mut self, now: Instant) -> Vec<Vni> {
        self.networks.extract_if(.., |_, until| *until <= now).map(|(vni, _)| vni).collect()
    }

    /// Takes the delayed groups that are not used according to `is_used`.
    pub(super) fn take_unused_groups(&mut self, is_used: impl Fn(u32) -> bool) -> Vec<u32> {
        self.groups.extract_if(.., |id| !is_used(*id)).collect()
    }
}
