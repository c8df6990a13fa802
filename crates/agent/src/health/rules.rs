//! The rules by which measurements become anomalies, each with its class, its likely cause, and for how long it must hold.
//! Pure. This file changes when anomalies are recognized by something else.
//!
//! | rule | holds when | why this threshold |
//! | --- | --- | --- |
//! | [`Rule::CpuBusy`] | processors are used to 95 % for 10 s, not counting processes with a nice value | an upgrade or a compiler uses all of them for shorter, and nice processes give way |
//! | [`Rule::MemoryLow`] | less than 5 % of the memory is available for 10 s | the kernel begins to reclaim at 1 to 3 % |
//! | [`Rule::TablesFull`] | 95 % of the cells are in use for 10 s | tables double, so that 90 % are usual before they grow |
//! | [`Rule::NicErrors`] | in 3 of 10 s, 10 errors, or 100 drops that are 1 % of the packets | frames of unknown protocols count as drops: some each second are usual; those of full queues of processors, and on gateways those of XDP, are not the interface's |
//! | [`Rule::NicCarrier`] | the underlay interface has no carrier, or does not exist, for 5 s | a renegotiation of the link takes up to 2 s, and interfaces are read every 2 s |
//! | [`Rule::Softnet`] | in 3 of 5 s, a processor is in software interrupts to 90 %, and drops a packet or is squeezed 10 times ([`Limits`]) | a burst squeezes a processor that is idle otherwise |
//! | [`Rule::PortCarrier`] | the interface of a VM has no carrier for 30 s | a reset of virtio-net takes below 1 s, and a reboot of a VM some seconds |
//! | [`Rule::PortDrops`] | in 5 of 10 s, the interface drops 10 packets that are 1 % of those to the VM, which answers, while processors are used below 90 % | TCP fills a queue now and then |
//! | [`Rule::VmSilent`] | the VM answers no probe of any address 3 times, and sends nothing | one answer may be lost |
//! | [`Rule::VmAddress`] | the VM lives, and does not answer for an address 3 of 4 times | as above |
//! | [`Rule::VmMac`] | the VM answers with another MAC address 2 of 3 times | its neighbors cannot reach it from the first on |
//! | [`Rule::OrphanInterface`] | an interface is attached for an instance that was removed, for 6 periods of probes | hypervisors detach after the API call |
//! | [`Rule::MissingInterface`] | an instance lost its interface 6 periods ago, or never had one for 60 | a VM restarts within a minute, and is created before it starts |
//! | [`Rule::PeersLost`] | three quarters of the peers, and at least two, lose or delay probes for 3 s, and this node is in order | one or two nodes may be down |
//! | [`Rule::PathMtu`] | the last two probes of the length of the MTU were lost, and those of short ones answered | one may be lost |

use std::collections::{BTreeMap, BTreeSet};

use sluice_southbound::HealthSubject;
use sluice_types::{AnomalyClass, InstanceId};

use super::heavy::{self, HeavyFlow};
use super::sample::{InterfaceCounters, Usage};

/// A rule, in the table above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rule {
    /// No processor time is left.
    CpuBusy,
    /// No memory is left.
    MemoryLow,
    /// The forwarding tables are nearly full.
    TablesFull,
    /// An underlay interface loses or damages packets.
    NicErrors,
    /// An underlay interface has no link.
    NicCarrier,
    /// A processor cannot take the packets that arrive.
    Softnet,
    /// The other side of a VM's interface is gone.
    PortCarrier,
    /// A VM does not take what is sent to it.
    PortDrops,
    /// A VM neither answers nor sends.
    VmSilent,
    /// A VM does not have one of its addresses.
    VmAddress,
    /// A VM has another MAC address than its instance.
    VmMac,
    /// An interface is attached for an instance that was removed.
    OrphanInterface,
    /// An instance has no interface on its host.
    MissingInterface,
    /// The underlay loses or delays packets.
    PeersLost,
    /// The path to a peer has a smaller MTU than the interface.
    PathMtu,
}

/// For how long a rule must hold, in rounds of its measurement, and what follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Class of the anomaly.
    pub class: AnomalyClass,
    /// The anomaly is raised when the rule held in `raise` of the last `window` rounds, at most 32.
    pub raise: u32,
    /// See `raise`.
    pub window: u32,
    /// It is cleared when the rule did not hold in this number of rounds in a row.
    pub clear: u32,
    /// What is likely.
    pub cause: &'static str,
}

impl Rule {
    /// The rules that each sample of the device decides.
    pub const OF_DEVICE: [Self; 8] = [
        Self::CpuBusy,
        Self::MemoryLow,
        Self::TablesFull,
        Self::NicErrors,
        Self::NicCarrier,
        Self::Softnet,
        Self::PortCarrier,
        Self::PortDrops,
    ];
    /// The rules that each round of probes of VMs decides.
    pub const OF_VMS: [Self; 3] = [Self::VmSilent, Self::VmAddress, Self::VmMac];
    /// The rules about instances and interfaces that do not belong together.
    pub const OF_CONFIGURATION: [Self; 2] = [Self::OrphanInterface, Self::MissingInterface];
    /// The rules that probes of other nodes decide.
    pub const OF_LINKS: [Self; 2] = [Self::PeersLost, Self::PathMtu];

    /// What the table above says of the rule.
    #[must_use]
    pub const fn policy(self) -> Policy {
        use AnomalyClass as C;
        let (class, (raise, window), clear, cause) = match self {
            Self::CpuBusy => (C::ServerResources, (10, 10), 10, "processes use all processors of the server"),
            Self::MemoryLow => {
                (C::ServerResources, (10, 10), 10, "processes or VMs use all memory of the server")
            }
            Self::TablesFull => {
                (C::VswitchOverload, (10, 10), 10, "the node has too many entries for --table-memory-mib")
            }
            Self::NicErrors => {
                (C::NicFault, (3, 10), 10, "the network interface, its driver or its cable is faulty")
            }
            Self::NicCarrier => {
                (C::NicFault, (5, 5), 2, "the cable, or the interface at one of its ends, is down")
            }
            Self::Softnet => (
                C::VswitchOverload,
                (3, 5),
                10,
                "a burst of packets exceeds what the host's processors can take",
            ),
            Self::PortCarrier => (
                C::HypervisorFault,
                (30, 30),
                3,
                "the VM is shut down, or the hypervisor or container runtime closed its end of the interface",
            ),
            Self::PortDrops => (
                C::MiddleboxOverload,
                (5, 10),
                10,
                "few flows send more than the processors of the VM can take: it needs more of them, or more VMs",
            ),
            Self::VmSilent => (C::VmUnresponsive, (3, 3), 2, "the VM hangs, or its network stack does"),
            Self::VmAddress => (
                C::VmMisconfiguration,
                (3, 4),
                2,
                "the VM does not have its address, or does not answer for it",
            ),
            Self::VmMac => {
                (C::VmMisconfiguration, (2, 3), 2, "the VM was given another MAC address than its instance")
            }
            Self::OrphanInterface => (
                C::StaleConfiguration,
                (1, 1),
                1,
                "the interface was not detached when the instance was removed",
            ),
            Self::MissingInterface => (
                C::StaleConfiguration,
                (1, 1),
                1,
                "the VM runs on another host or was removed, and its instance was not moved or deleted",
            ),
            Self::PeersLost => (
                C::SwitchOverload,
                (3, 3),
                5,
                "a physical switch on the way drops packets or queues them for long",
            ),
            Self::PathMtu => {
                (C::NicFault, (2, 2), 2, "an interface on the way has a smaller MTU than this node's")
            }
        };
        Policy { class, raise, window, clear, cause }
    }
}

/// A rule holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symptom {
    /// The rule.
    pub rule: Rule,
    /// What it holds for.
    pub subject: HealthSubject,
    /// What was measured.
    pub evidence: String,
}

impl Symptom {
    /// The rule holds for a subject.
    pub fn new(rule: Rule, subject: HealthSubject, evidence: String) -> Self {
        Self { rule, subject, evidence }
    }
}

/// An interface in one second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceSample {
    /// Its name.
    pub name: String,
    /// What was counted.
    pub counters: InterfaceCounters,
    /// Whether its other side is there.
    pub has_carrier: bool,
}

/// The port of a VM in one second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSample {
    /// Its interface.
    pub interface: InterfaceSample,
    /// Its instance.
    pub instance: InstanceId,
    /// Whether the VM answered the last probes.
    pub answers: bool,
}

/// Thresholds that an operator may change: how much work with packets a processor can do depends on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Part of its time that the busiest processor may spend in software interrupts, in thousandths.
    pub softirq_permille: u64,
    /// Times in a second from which on a processor that is so busy is overloaded if it leaves packets for later; 0: always.
    pub squeezed: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { softirq_permille: 900, squeezed: 10 }
    }
}

/// This machine in one second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceSample {
    /// Whether it is a gateway, on which programs of XDP drop packets.
    pub is_gateway: bool,
    /// Processors and memory.
    pub usage: Usage,
    /// Part of the cells of the tables in use, in thousandths.
    pub tables_permille: u64,
    /// Interfaces to the underlay, and those of a gateway to the Internet.
    pub underlay: Vec<InterfaceSample>,
    /// Ports of VMs.
    pub ports: Vec<PortSample>,
    /// The heaviest flows of the ports, as far as they are known.
    pub flows: Vec<HeavyFlow>,
    /// The thresholds of this node.
    pub limits: Limits,
}

/// Processors are used so much that measurements of others say little, in thousandths.
const BUSY: u64 = 900;
const CPU_MAX: u64 = 950;
const MEMORY_MIN: u64 = 50;
const TABLES_MAX: u64 = 950;
const NIC_ERRORS_MAX: u64 = 10;
const NIC_DROPS_MAX: u64 = 100;
const PORT_DROPS_MAX: u64 = 10;

/// Whether at least `max` of these packets were dropped, and 1 % of them.
fn is_lossy(dropped: u64, passed: u64, max: u64) -> bool {
    dropped >= max && dropped * 100 >= dropped + passed
}

impl DeviceSample {
    /// Whether this node itself explains probes that are lost or late.
    #[must_use]
    pub fn explains_losses(&self) -> bool {
        self.usage.cpu_permille >= BUSY || self.underlay.iter().any(|nic| self.fault_of(nic).is_some())
    }

    /// The rules of the device that hold.
    #[must_use]
    pub fn symptoms(&self) -> Vec<Symptom> {
        let mut found = Vec::new();
        let mut of_node = |rule, holds: bool, evidence: String| {
            if holds {
                found.push(Symptom::new(rule, HealthSubject::Node, evidence));
            }
        };
        let Usage { cpu_permille, softirq_permille, memory_available_permille, .. } = self.usage;
        let (dropped, squeezed) = (self.usage.softnet_dropped, self.usage.softnet_squeezed);
        of_node(
            Rule::CpuBusy,
            cpu_permille >= CPU_MAX,
            format!("processors used to {} %", cpu_permille / 10),
        );
        of_node(
            Rule::MemoryLow,
            memory_available_permille < MEMORY_MIN,
            format!(
                "{}.{} % of the memory available",
                memory_available_permille / 10,
                memory_available_permille % 10
            ),
        );
        of_node(
            Rule::TablesFull,
            self.tables_permille >= TABLES_MAX,
            format!("{} % of the cells of the tables in use", self.tables_permille / 10),
        );
        of_node(
            Rule::Softnet,
            softirq_permille >= self.limits.softirq_permille
                && (dropped > 0 || squeezed >= self.limits.squeezed),
            format!(
                "a processor in software interrupts to {} %, {dropped} packets dropped and {squeezed} times squeezed \
                 in a second{}",
                softirq_permille / 10,
                heavy::of_node(&self.flows, &self.ports)
            ),
        );
        for nic in &self.underlay {
            if let Some((rule, evidence)) = self.fault_of(nic) {
                found.push(Symptom::new(rule, HealthSubject::Interface(nic.name.clone()), evidence));
            }
        }
        found.extend(self.ports.iter().filter_map(|port| self.port_symptom(port)));
        found
    }

    fn port_symptom(&self, port: &PortSample) -> Option<Symptom> {
        let PortSample { interface, instance, answers } = port;
        let InterfaceSample { name, counters, .. } = interface;
        // A veth pair also counts what the queue of a processor had no room for.
        let tx_dropped = counters.tx_dropped.saturating_sub(self.usage.softnet_dropped);
        let (rule, evidence) = if !interface.has_carrier {
            (Rule::PortCarrier, format!("interface {name} has no carrier"))
        } else if *answers
            && self.usage.cpu_permille < BUSY
            && is_lossy(tx_dropped, counters.tx_packets, PORT_DROPS_MAX)
        {
            let tx_packets = counters.tx_packets;
            let heaviest = heavy::to_port(&self.flows, name);
            let evidence = format!(
                "interface {name} dropped {tx_dropped} and passed {tx_packets} packets in a second{heaviest}"
            );
            (Rule::PortDrops, evidence)
        } else {
            return None;
        };
        Some(Symptom::new(rule, HealthSubject::Instance(*instance), evidence))
    }

    /// The rule that an underlay interface meets.
    fn fault_of(&self, nic: &InterfaceSample) -> Option<(Rule, String)> {
        if !nic.has_carrier {
            return Some((Rule::NicCarrier, "no carrier, or no such interface".to_owned()));
        }
        let InterfaceCounters { rx_packets, rx_errors, tx_packets, tx_errors, .. } = nic.counters;
        // What the queue of a processor had no room for counts as dropped by the interface, too.
        let of_nic = |dropped: u64| dropped.saturating_sub(self.usage.softnet_dropped);
        // What a program of XDP drops, such as packets to no VM, may count as dropped by the interface.
        let rx_dropped = if self.is_gateway { nic.counters.rx_fifo } else { of_nic(nic.counters.rx_dropped) };
        let tx_dropped = of_nic(nic.counters.tx_dropped);
        let is_lossy = is_lossy(rx_dropped, rx_packets, NIC_DROPS_MAX)
            || is_lossy(tx_dropped, tx_packets, NIC_DROPS_MAX);
        (rx_errors + tx_errors >= NIC_ERRORS_MAX || is_lossy).then(|| {
            let evidence = format!(
                "received {rx_packets} packets with {rx_errors} errors and {rx_dropped} drops, sent {tx_packets} with \
                 {tx_errors} errors and {tx_dropped} drops in a second"
            );
            (Rule::NicErrors, evidence)
        })
    }
}

/// Instances and interfaces that do not belong together, and since when.
#[derive(Debug, Default)]
pub struct Configuration {
    since_ms: BTreeMap<HealthSubject, u64>,
    /// Instances that have had an interface.
    attached: BTreeSet<InstanceId>,
}

/// Periods of probes for which an interface may have no instance, or an instance that had an interface none.
const STALE_PERIODS: u64 = 6;
/// Periods for which an instance may have no interface yet.
const NEW_PERIODS: u64 = 60;

/// What a host has now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Instances with an interface.
    pub attached: Vec<InstanceId>,
    /// Interfaces whose instance was removed, with its id.
    pub orphans: Vec<(String, InstanceId)>,
    /// Instances without an interface, with their names.
    pub missing: Vec<(InstanceId, String)>,
}

impl Configuration {
    /// The rules that hold at a time, with this period of probes.
    pub fn symptoms(&mut self, now_ms: u64, period_ms: u64, placement: &Placement) -> Vec<Symptom> {
        let missing = placement.missing.iter();
        let mut had: BTreeSet<InstanceId> = placement.attached.iter().copied().collect();
        had.extend(missing.clone().map(|(id, _)| *id).filter(|id| self.attached.contains(id)));
        self.attached = had;
        let orphans = placement.orphans.iter().map(|(name, id)| {
            let evidence =
                format!("interface {name} is attached for {id}, which is not on this host any more");
            (Rule::OrphanInterface, HealthSubject::Interface(name.clone()), STALE_PERIODS, evidence)
        });
        let missing = missing.map(|(id, name)| {
            let (periods, what) = if self.attached.contains(id) {
                (STALE_PERIODS, "lost its interface")
            } else {
                (NEW_PERIODS, "never had an interface here")
            };
            let evidence = format!("{name} is placed on this host, and {what}");
            (Rule::MissingInterface, HealthSubject::Instance(*id), periods, evidence)
        });
        let mut since_ms = BTreeMap::new();
        let mut found = Vec::new();
        for (rule, subject, periods, evidence) in orphans.chain(missing) {
            let since = self.since_ms.get(&subject).copied().unwrap_or(now_ms);
            let age_ms = now_ms.saturating_sub(since);
            if age_ms >= periods * period_ms {
                let evidence = format!("{evidence}, for {} s", age_ms / 1000);
                found.push(Symptom::new(rule, subject.clone(), evidence));
            }
            since_ms.insert(subject, since);
        }
        self.since_ms = since_ms;
        found
    }
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
