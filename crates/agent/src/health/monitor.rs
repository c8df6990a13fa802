//! The monitor of a node: measurements and answers to probes in, probes and findings out. Pure. This file changes when
//! something else is measured.
//!
//! ```text
//!     counters each second -------> rules of the device ------+
//!     what the controller placed -> rules of configuration ---+--> findings --> report
//!     answers of other nodes -----> rules of links -----------+
//!     answers of VMs -------------> rules of VMs -------------+
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use sluice_southbound::{HealthReport, HealthSubject, MAX_HEALTH_LINKS};
use sluice_types::Random;

use super::findings::Findings;
use super::heavy::HeavyFlow;
use super::links::Links;
use super::rules::{Configuration, DeviceSample, InterfaceSample, Limits, Placement, PortSample, Rule};
use super::sample::{Counters, Usage};
use super::vms::{VmProbe, VmReply, Vms, WatchedPort, probes};

/// What a node is to watch, as its tables say.
#[derive(Clone, Debug, Default)]
pub struct NodeView {
    /// VTEPs of the other nodes, of which the flag says whether it is a gateway.
    pub peers: Vec<(IpAddr, bool)>,
    /// Ports of VMs.
    pub ports: Vec<WatchedPort>,
    /// What does not belong together.
    pub placement: Placement,
    /// Part of the cells of the tables in use, in thousandths.
    pub tables_permille: u64,
}

/// An interface as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceState {
    /// Bytes of the longest IP packet.
    pub mtu: u32,
    /// Whether its other side is there.
    pub has_carrier: bool,
}

/// What stays the same while a monitor runs.
#[derive(Clone, Debug)]
pub struct MonitorConfig {
    /// VTEPs of this node.
    pub own: Vec<IpAddr>,
    /// Interfaces to the underlay, and to the Internet.
    pub underlay: Vec<String>,
    /// Whether this node is a gateway.
    pub is_gateway: bool,
    /// Average interval of probes of another node.
    pub link_period_ms: u64,
    /// Average interval of probes of VMs.
    pub vm_period_ms: u64,
    /// Thresholds that an operator may change.
    pub limits: Limits,
    /// Seed of what spreads probes over time.
    pub seed: u64,
}

/// The monitor of a node.
#[derive(Debug)]
pub struct Monitor {
    config: MonitorConfig,
    view: NodeView,
    interfaces: BTreeMap<String, InterfaceState>,
    /// When the counters were read, and these.
    counters: Option<(u64, Counters)>,
    configuration: Configuration,
    findings: Findings,
    /// Probes of other nodes.
    pub links: Links,
    vms: Vms,
    next_vms_ms: u64,
    random: Random,
    /// Whether the last sample had too many packets for processors or for a VM.
    is_overloaded: bool,
    flows: Vec<HeavyFlow>,
}

impl Monitor {
    /// Has measured nothing yet.
    #[must_use]
    pub fn new(config: MonitorConfig, now_ms: u64) -> Self {
        let links = Links::new(config.own.clone(), config.link_period_ms * 1000, config.seed);
        let mut random = Random::new(!config.seed);
        let next_vms_ms = now_ms + random.jittered(config.vm_period_ms);
        Self {
            config,
            view: NodeView::default(),
            interfaces: BTreeMap::new(),
            counters: None,
            configuration: Configuration::default(),
            findings: Findings::default(),
            links,
            vms: Vms::default(),
            next_vms_ms,
            random,
            is_overloaded: false,
            flows: Vec::new(),
        }
    }

    /// Takes what there is to watch.
    pub fn set_view(&mut self, now_ms: u64, view: NodeView, interfaces: BTreeMap<String, InterfaceState>) {
        self.links.set_known(now_ms * 1000, &view.peers);
        (self.view, self.interfaces) = (view, interfaces);
    }

    /// The smallest MTU of the interfaces to the underlay; `None` if the node has no such interface.
    #[must_use]
    pub fn underlay_mtu(&self) -> Option<u32> {
        self.config.underlay.iter().filter_map(|name| Some(self.interfaces.get(name)?.mtu)).min()
    }

    /// Takes the counters, about once in a second.
    pub fn sample(&mut self, now_ms: u64, wall_ms: u64, counters: Counters) {
        if let Some((before_ms, before)) = self.counters.replace((now_ms, counters)) {
            let sample = self.device_sample(&before, now_ms.saturating_sub(before_ms) / 1000);
            if sample.explains_losses() {
                self.links.discard();
            }
            let symptoms = sample.symptoms();
            self.is_overloaded =
                symptoms.iter().any(|symptom| matches!(symptom.rule, Rule::Softnet | Rule::PortDrops));
            if !self.is_overloaded {
                self.flows = Vec::new();
            }
            self.findings.round(wall_ms, &Rule::OF_DEVICE, symptoms);
        }
        let placement = &self.view.placement;
        let found = self.configuration.symptoms(now_ms, self.config.vm_period_ms, placement);
        self.findings.round(wall_ms, &Rule::OF_CONFIGURATION, found);
        self.findings.round(wall_ms, &Rule::OF_LINKS, self.links.symptoms());
    }

    /// Whether the heaviest flows are to be measured: there are too many packets now.
    #[must_use]
    pub fn wants_flows(&self) -> bool {
        self.is_overloaded
    }

    /// Takes the heaviest flows.
    pub fn set_flows(&mut self, flows: Vec<HeavyFlow>) {
        self.flows = flows;
    }

    /// The present counters, compared with those of some seconds ago.
    fn device_sample(&self, before: &Counters, seconds: u64) -> DeviceSample {
        let Some((_, now)) = &self.counters else { return DeviceSample::default() };
        let interface = |name: &String, has_carrier: bool| {
            let counters = now.interfaces.get(name).copied().unwrap_or_default();
            let before = before.interfaces.get(name).copied().unwrap_or(counters);
            let counters = counters.since(&before).per_second(seconds);
            InterfaceSample { name: name.clone(), counters, has_carrier }
        };
        let has_carrier = |name: &String| self.interfaces.get(name).map(|state| state.has_carrier);
        // Without any interface, these have not been listed yet.
        let absent_has_carrier = self.interfaces.is_empty();
        let nic = |name: &String| interface(name, has_carrier(name).unwrap_or(absent_has_carrier));
        // The interface of a VM that was removed meanwhile is a matter of the configuration.
        let port = |port: &WatchedPort| PortSample {
            interface: interface(&port.ifname, has_carrier(&port.ifname).unwrap_or(true)),
            instance: port.instance,
            answers: self.vms.answers(port.ifindex, port.instance),
        };
        DeviceSample {
            is_gateway: self.config.is_gateway,
            usage: Usage::between(before, now, seconds),
            tables_permille: self.view.tables_permille,
            underlay: self.config.underlay.iter().map(nic).collect(),
            ports: self.view.ports.iter().map(port).collect(),
            flows: self.flows.clone(),
            limits: self.config.limits,
        }
    }

    /// When VMs are probed next.
    #[must_use]
    pub fn next_vms_ms(&self) -> u64 {
        self.next_vms_ms
    }

    /// Begins a round of probes of VMs.
    pub fn begin_vms(&mut self, now_ms: u64) -> Vec<VmProbe> {
        self.next_vms_ms = now_ms + self.random.jittered(self.config.vm_period_ms);
        probes(&self.view.ports)
    }

    /// Ends a round, which decides about the ports of which all addresses are among `asked`: others came since its begin,
    /// or could not be asked.
    pub fn end_vms(&mut self, wall_ms: u64, asked: &BTreeSet<(u32, IpAddr)>, replies: &BTreeSet<VmReply>) {
        let Some((_, counters)) = &self.counters else { return };
        let is_asked = |port: &&WatchedPort| {
            let addresses: [Option<IpAddr>; 2] =
                [port.ipv4.map(|(own, _)| own.into()), port.ipv6.map(Into::into)];
            addresses.into_iter().flatten().all(|address| asked.contains(&(port.ifindex, address)))
        };
        let with_counters = |port: &WatchedPort| {
            let has_carrier = self.interfaces.get(&port.ifname).is_none_or(|state| state.has_carrier);
            let received = counters.interfaces.get(&port.ifname).map(|it| it.rx_packets);
            (port.clone(), received.filter(|_| has_carrier))
        };
        let (asked, others): (Vec<&WatchedPort>, Vec<_>) = self.view.ports.iter().partition(is_asked);
        let ports: Vec<_> = asked.into_iter().map(with_counters).collect();
        self.vms.retain(&self.view.ports);
        let found = self.vms.round(&ports, replies);
        let undecided: BTreeSet<_> =
            others.into_iter().map(|port| HealthSubject::Instance(port.instance)).collect();
        self.findings.round_without(wall_ms, &Rule::OF_VMS, &undecided, found);
    }

    /// What has been found.
    #[must_use]
    pub fn report(&self) -> HealthReport {
        let (findings, others) = self.findings.list();
        let mut links = self.links.list();
        links.truncate(MAX_HEALTH_LINKS);
        HealthReport { findings, others, links }
    }

    /// Symptoms that were ignored because too many are followed.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.findings.refused()
    }
}

#[cfg(test)]
#[path = "monitor_tests.rs"]
mod tests;
