//! Networks that the controller has taken from this host, and that stay for a
//! while: other hosts may still send here what has moved, and it is by the
//! network's group that it goes on to the gateway (Zeta section V-B). And VTEPs of gateways that
//! the controller has taken away: such a gateway forwards what still comes to its vIPs until others have them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use sluice_types::Vni;

/// What lingers, and until when.
#[derive(Debug)]
pub(crate) struct Linger {
    time: Duration,
    networks: BTreeMap<Vni, Instant>,
    /// Groups that would be gone if no network that lingers needed them.
    groups: BTreeSet<u32>,
    /// Of gateways.
    vteps: BTreeMap<IpAddr, Instant>,
}

impl Linger {
    /// Nothing lingers; what does, does so for `time`.
    pub(crate) fn new(time: Duration) -> Self {
        Self { time, networks: BTreeMap::new(), groups: BTreeSet::new(), vteps: BTreeMap::new() }
    }

    /// Nothing of this lingers any more.
    pub(crate) fn emptied(&self) -> Self {
        Self::new(self.time)
    }

    /// A network begins to linger; one that did before goes on.
    pub(crate) fn begin(&mut self, vni: Vni, now: Instant) {
        self.networks.entry(vni).or_insert(now + self.time);
    }

    /// A network is needed again.
    pub(crate) fn keep(&mut self, vni: Vni) {
        self.networks.remove(&vni);
    }

    /// Whether a network lingers.
    pub(crate) fn has(&self, vni: Vni) -> bool {
        self.networks.contains_key(&vni)
    }

    /// A group stays for the networks that linger.
    pub(crate) fn begin_group(&mut self, id: u32) {
        self.groups.insert(id);
    }

    /// A group is needed again.
    pub(crate) fn keep_group(&mut self, id: u32) {
        self.groups.remove(&id);
    }

    /// A gateway's VTEP begins to linger; one that did before goes on.
    pub(crate) fn begin_vtep(&mut self, vtep: IpAddr, now: Instant) {
        self.vteps.entry(vtep).or_insert(now + self.time);
    }

    /// A VTEP is known again.
    pub(crate) fn keep_vtep(&mut self, vtep: IpAddr) {
        self.vteps.remove(&vtep);
    }

    /// The VTEPs whose time is over. They are forgotten here; one that cannot be removed begins anew.
    pub(crate) fn take_vteps_over(&mut self, now: Instant) -> Vec<IpAddr> {
        self.vteps.extract_if(.., |_, until| *until <= now).map(|(vtep, _)| vtep).collect()
    }

    /// The networks whose time is over. They are forgotten here; one that cannot be removed begins anew.
    pub(crate) fn take_over(&mut self, now: Instant) -> Vec<Vni> {
        self.networks.extract_if(.., |_, until| *until <= now).map(|(vni, _)| vni).collect()
    }

    /// The groups that lingered for the sake of networks and of which `used` is false now. They are
    /// forgotten here.
    pub(crate) fn take_unused(&mut self, used: impl Fn(u32) -> bool) -> Vec<u32> {
        self.groups.extract_if(.., |id| !used(*id)).collect()
    }
}
