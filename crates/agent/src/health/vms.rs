//! Probes of VMs by ARP and neighbor discovery: what is asked, and what the answers say. Pure: the caller sends the frames
//! and collects the replies. This file changes with what a VM is asked.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sluice_southbound::HealthSubject;
use sluice_types::{InstanceId, MacAddr, ROUTER_LINK_LOCAL, ROUTER_MAC};

use super::rules::{Rule, Symptom};
use crate::frames::{neighbor_probe, parse_probe_reply};

/// Rounds after which a VM is judged that has never answered: it may still start.
const START_ROUNDS: u32 = 12;
/// Ports whose VMs are asked alone in a round, after they did not answer: a VM that sends many replies may have displaced
/// theirs.
const RETRIES_MAX: usize = 16;

/// The port of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedPort {
    /// Index of its interface.
    pub ifindex: u32,
    /// Name of its interface.
    pub ifname: String,
    /// Its instance.
    pub instance: InstanceId,
    /// MAC address of the instance.
    pub mac: MacAddr,
    /// IPv4 address of the instance, and that of its router.
    pub ipv4: Option<(Ipv4Addr, Ipv4Addr)>,
    /// IPv6 address of the instance.
    pub ipv6: Option<Ipv6Addr>,
}

impl WatchedPort {
    /// The addresses that are probed, with those that the probes come from: the router's, as the VM sees it.
    fn probed(&self) -> impl Iterator<Item = (IpAddr, IpAddr)> {
        let v4: Option<(IpAddr, IpAddr)> = self.ipv4.map(|(own, router)| (own.into(), router.into()));
        v4.into_iter().chain(self.ipv6.map(|own| (own.into(), ROUTER_LINK_LOCAL.into())))
    }
}

/// A reply of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VmReply {
    /// Index of the interface that it came from.
    pub ifindex: u32,
    /// The address that it is about.
    pub address: IpAddr,
    /// The MAC address that sent it.
    pub mac: MacAddr,
}

/// A frame that asks a VM for one of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmProbe {
    /// Index of the interface.
    pub ifindex: u32,
    /// The address.
    pub address: IpAddr,
    /// The frame.
    pub frame: Vec<u8>,
}

/// The frames that probe VMs.
#[must_use]
pub fn probes(ports: &[WatchedPort]) -> Vec<VmProbe> {
    let of_port = |port: &WatchedPort| {
        let ifindex = port.ifindex;
        let probe = move |(address, router)| {
            Some(VmProbe { ifindex, address, frame: neighbor_probe(address, router, ROUTER_MAC)? })
        };
        port.probed().filter_map(probe).collect::<Vec<_>>()
    };
    ports.iter().flat_map(of_port).collect()
}

/// Of the interfaces whose VMs did not answer: those that are asked alone in the round of this number, and the others,
/// which that round does not decide about. Each is asked alone after some rounds.
#[must_use]
pub fn retries(silent: BTreeSet<u32>, number: usize) -> (Vec<u32>, BTreeSet<u32>) {
    let mut again: Vec<u32> = silent.into_iter().collect();
    if again.len() > RETRIES_MAX {
        let begin = number.wrapping_mul(RETRIES_MAX) % again.len();
        again.rotate_left(begin);
    }
    let others = again.split_off(again.len().min(RETRIES_MAX));
    (again, others.into_iter().collect())
}

/// Reads a frame that an interface received; `None` if it is no reply to a probe.
#[must_use]
pub fn reply(ifindex: u32, frame: &[u8]) -> Option<VmReply> {
    let (address, _) = parse_probe_reply(frame)?;
    let mac = <[u8; 6]>::try_from(frame.get(6..12)?).ok()?;
    Some(VmReply { ifindex, address, mac: MacAddr::new(mac) })
}

/// What is known of a VM.
#[derive(Debug, Default)]
struct Vm {
    rounds: u32,
    /// Addresses that it has answered for.
    answered: BTreeSet<IpAddr>,
    /// Packets that its interface had received at the last round.
    received: Option<u64>,
    /// Whether it answered for any address in the last round.
    answers: bool,
}

/// The VMs of a host.
#[derive(Debug, Default)]
pub struct Vms(BTreeMap<(u32, InstanceId), Vm>);

impl Vms {
    /// Forgets the VMs that have none of these ports.
    pub fn retain(&mut self, ports: &[WatchedPort]) {
        let known: BTreeSet<_> = ports.iter().map(|port| (port.ifindex, port.instance)).collect();
        self.0.retain(|key, _| known.contains(key));
    }

    /// Takes a round of probes: the ports that it decides about with the packets that each interface has received until
    /// now, `None` if its other side is gone, and the replies. Returns the rules that hold.
    pub fn round(
        &mut self,
        ports: &[(WatchedPort, Option<u64>)],
        replies: &BTreeSet<VmReply>,
    ) -> Vec<Symptom> {
        ports.iter().filter_map(|(port, received)| self.judge(port, *received, replies)).collect()
    }

    /// Whether a VM answered for any address in the last round.
    #[must_use]
    pub fn answers(&self, ifindex: u32, instance: InstanceId) -> bool {
        self.0.get(&(ifindex, instance)).is_some_and(|vm| vm.answers)
    }

    fn judge(
        &mut self,
        port: &WatchedPort,
        received: Option<u64>,
        replies: &BTreeSet<VmReply>,
    ) -> Option<Symptom> {
        let vm = self.0.entry((port.ifindex, port.instance)).or_default();
        vm.rounds = vm.rounds.saturating_add(1);
        let before = std::mem::replace(&mut vm.received, received);
        let sends = before.zip(received).is_some_and(|(before, now)| now > before);
        let of_port = |address: IpAddr| {
            replies.iter().filter(move |reply| (reply.ifindex, reply.address) == (port.ifindex, address))
        };
        let (mut missing, mut wrong) = (Vec::new(), None);
        vm.answers = false;
        for (address, _) in port.probed() {
            let mut from = of_port(address);
            match from.next() {
                // A VM that has the address twice, such as on a bridge, answers with both.
                Some(first) if first.mac == port.mac || from.any(|reply| reply.mac == port.mac) => {
                    vm.answers = true;
                    vm.answered.insert(address);
                }
                Some(first) => wrong = Some((address, first.mac)),
                None => missing.push(address),
            }
        }
        // Without its other side no VM can answer, which is another anomaly.
        received?;
        let symptom =
            |rule, evidence| Some(Symptom::new(rule, HealthSubject::Instance(port.instance), evidence));
        let (ifname, expected) = (&port.ifname, port.mac);
        if let Some((address, mac)) = wrong {
            let evidence = format!("{ifname}: {mac} answers for {address}, which belongs to {expected}");
            return symptom(Rule::VmMac, evidence);
        }
        let is_new = vm.answered.is_empty() && vm.rounds < START_ROUNDS;
        if missing.is_empty() || is_new {
            return None;
        }
        let named: Vec<String> = missing.iter().map(ToString::to_string).collect();
        let named = named.join(" and ");
        if !vm.answers && !sends {
            let evidence = format!("{ifname}: the VM does not answer for {named}, and sends nothing");
            return symptom(Rule::VmSilent, evidence);
        }
        // An address that was never there may be one that the VM does not use.
        let had_any = missing.iter().any(|address| vm.answered.contains(address));
        if had_any || vm.answered.is_empty() {
            let other = if vm.answers { "for another address" } else { "sends packets" };
            return symptom(
                Rule::VmAddress,
                format!("{ifname}: the VM does not answer for {named}, but {other}"),
            );
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddr = MacAddr::new([2, 0, 0, 0, 0, 7]);
    const OTHER: MacAddr = MacAddr::new([2, 0, 0, 0, 0, 8]);

    fn port() -> WatchedPort {
        WatchedPort {
            ifindex: 5,
            ifname: "sl-1".to_owned(),
            instance: InstanceId::new(3),
            mac: MAC,
            ipv4: Some(([10, 0, 0, 5].into(), [10, 0, 0, 1].into())),
            ipv6: Some("fd00::5".parse().unwrap()),
        }
    }

    fn v4() -> IpAddr {
        [10, 0, 0, 5].into()
    }

    fn v6() -> IpAddr {
        "fd00::5".parse().unwrap()
    }

    fn replies(of: &[(IpAddr, MacAddr)]) -> BTreeSet<VmReply> {
        of.iter().map(|(address, mac)| VmReply { ifindex: 5, address: *address, mac: *mac }).collect()
    }

    /// The rule that holds in a round in which the VM had sent this many packets.
    fn rule(vms: &mut Vms, received: Option<u64>, of: &[(IpAddr, MacAddr)]) -> Option<Rule> {
        let mut found = vms.round(&[(port(), received)], &replies(of));
        assert!(found.len() <= 1);
        found.pop().map(|symptom| symptom.rule)
    }

    /// VMs of which one has answered for both addresses.
    fn answering() -> Vms {
        let mut vms = Vms::default();
        assert_eq!(rule(&mut vms, Some(10), &[(v4(), MAC), (v6(), MAC)]), None);
        assert!(vms.answers(5, InstanceId::new(3)));
        vms
    }

    #[test]
    fn probes_come_from_the_router_and_replies_are_recognized() {
        let probes = probes(&[port(), WatchedPort { ipv4: None, ipv6: None, ..port() }]);
        let asked: Vec<_> = probes.iter().map(|probe| (probe.ifindex, probe.address)).collect();
        assert_eq!(asked, [(5, v4()), (5, v6())]);
        for probe in &probes {
            assert_eq!(probe.frame[6..12], ROUTER_MAC.octets());
        }
        // The answer to the ARP request: the VM is its sender, and the router its target.
        let mut answer = probes[0].frame.clone();
        answer[6..12].copy_from_slice(&MAC.octets());
        answer[21] = 2;
        answer[28..32].copy_from_slice(&[10, 0, 0, 5]);
        answer[38..42].copy_from_slice(&[10, 0, 0, 1]);
        assert_eq!(reply(5, &answer), Some(VmReply { ifindex: 5, address: v4(), mac: MAC }));
        assert_eq!(reply(5, &probes[0].frame), None);
    }

    #[test]
    fn a_vm_that_neither_answers_nor_sends_is_silent() {
        let mut vms = answering();
        assert_eq!(rule(&mut vms, Some(10), &[]), Some(Rule::VmSilent));
        assert!(!vms.answers(5, InstanceId::new(3)));
        // It sends: it lives, but without its addresses.
        assert_eq!(rule(&mut vms, Some(11), &[]), Some(Rule::VmAddress));
        // Its other side is gone: another rule says so.
        assert_eq!(rule(&mut vms, None, &[]), None);
    }

    #[test]
    fn an_address_that_was_answered_for_is_missed() {
        let mut vms = answering();
        assert_eq!(rule(&mut vms, Some(11), &[(v6(), MAC)]), Some(Rule::VmAddress));
        // One that never was may not be used by the VM.
        let mut vms = Vms::default();
        for round in 0..100 {
            assert_eq!(rule(&mut vms, Some(round), &[(v4(), MAC)]), None);
        }
    }

    #[test]
    fn another_mac_address_is_wrong_unless_the_right_one_answers_as_well() {
        let mut vms = answering();
        assert_eq!(rule(&mut vms, Some(11), &[(v4(), OTHER), (v6(), MAC)]), Some(Rule::VmMac));
        assert_eq!(rule(&mut vms, Some(12), &[(v4(), MAC), (v4(), OTHER), (v6(), MAC)]), None);
        // The reply of another interface is not that of this one.
        let foreign: BTreeSet<_> =
            [v4(), v6()].map(|address| VmReply { ifindex: 6, address, mac: MAC }).into_iter().collect();
        let found = vms.round(&[(port(), Some(12))], &foreign);
        assert_eq!(found[0].rule, Rule::VmSilent);
    }

    #[test]
    fn a_vm_that_starts_has_time() {
        let mut vms = Vms::default();
        for _ in 1..START_ROUNDS {
            assert_eq!(rule(&mut vms, Some(0), &[]), None);
        }
        assert_eq!(rule(&mut vms, Some(0), &[]), Some(Rule::VmSilent));
        assert_eq!(rule(&mut vms, Some(1), &[]), Some(Rule::VmAddress));
        assert_eq!(rule(&mut vms, Some(2), &[(v4(), MAC)]), None);
        // Another instance at the interface is another VM.
        let other = WatchedPort { instance: InstanceId::new(4), ..port() };
        vms.retain(std::slice::from_ref(&other));
        assert_eq!(vms.round(&[(other, Some(2))], &BTreeSet::new()), []);
        assert_eq!(vms.0.len(), 1);
    }

    /// Catches VMs that are never asked alone because others are silent as well.
    #[test]
    fn silent_vms_are_asked_alone_in_turn() {
        let silent: BTreeSet<u32> = (1..=40).collect();
        assert_eq!(retries(BTreeSet::from([3, 9]), 7), (vec![3, 9], BTreeSet::new()));
        let mut asked = BTreeSet::new();
        for number in 0..3 {
            let (again, others) = retries(silent.clone(), number);
            assert_eq!((again.len(), others.len()), (RETRIES_MAX, 40 - RETRIES_MAX));
            assert!(again.iter().all(|ifindex| !others.contains(ifindex)));
            asked.extend(again);
        }
        assert_eq!(asked, silent);
    }
}
