//! Messages of services: their members, the addresses of their mounts, and what hosts and gateways report of them.

use super::{Malformed, Result, address, instance_id, ipv4, ipv6, ipv6_parts, mac, unicast};
use crate::entries::{HostState, MemberProbe, MemberState, Service, ServiceAddress, ServiceAddressKey};
use crate::{MAX_EVIDENCE_BYTES, proto};
use prost::Message;
use sluice_types::{SERVICE_MEMBERS_MAX, ServiceMember, Vni};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Time between two probes if the message says nothing, in milliseconds.
const PROBE_INTERVAL_MS: u32 = 10;
/// Probes without an answer after which a VM is silent, if the message says nothing.
const PROBE_FAILURES: u32 = 3;

impl Service {
    /// Size of its message in bytes: below 8 KiB with all members that a service may have.
    pub fn message_bytes(&self) -> usize {
        proto::Service::from(self.clone()).encoded_len()
    }
}

pub(super) fn service_id(id: u32) -> Result<u32> {
    if id == 0 { Err(Malformed::Id(0, "service")) } else { Ok(id) }
}

impl From<Service> for proto::Service {
    fn from(service: Service) -> Self {
        let [seed_high, seed_low] = service.seed;
        let members = service.members.into_iter().map(|member| proto::ServiceMember {
            number: member.number.into(),
            mac: member.mac.to_u64(),
            host: Some(member.host.into()),
            selected: member.selected,
        });
        Self { id: service.id, seed_high, seed_low, members: members.collect() }
    }
}

impl TryFrom<proto::Service> for Service {
    type Error = Malformed;
    fn try_from(service: proto::Service) -> Result<Self> {
        let id = service_id(service.id)?;
        let read = |member: proto::ServiceMember| -> Result<ServiceMember> {
            let number = u8::try_from(member.number).ok();
            let number = number.filter(|number| (1..=SERVICE_MEMBERS_MAX).contains(number));
            Ok(ServiceMember {
                number: number.ok_or(Malformed::ServiceMember(id, member.number))?,
                mac: mac("service's member", member.mac)?,
                host: unicast("service's member", address(member.host, "service's member")?)?,
                selected: member.selected,
            })
        };
        let members = service.members.into_iter().map(read).collect::<Result<Vec<_>>>()?;
        if !members.is_sorted_by(|a, b| a.number < b.number) {
            return Err(Malformed::Disorder("service"));
        }
        Ok(Self { id, seed: [service.seed_high, service.seed_low], members })
    }
}

/// The addresses of a mount, of which there is at least one.
fn mount(v4: u32, v6: Option<proto::Ipv6>) -> Result<(Option<Ipv4Addr>, Option<Ipv6Addr>)> {
    let (high, low) = ipv6_parts(v6);
    let both = (ipv4("mount", v4)?, ipv6("mount", high, low)?);
    if both == (None, None) { Err(Malformed::NoAddress("mount")) } else { Ok(both) }
}

impl From<ServiceAddress> for proto::ServiceAddress {
    fn from(entry: ServiceAddress) -> Self {
        let ServiceAddress { vni, service, ipv4, ipv6 } = entry;
        Self { vni: vni.get(), service, ipv4: ipv4.map_or(0, Into::into), ipv6: ipv6.map(Into::into) }
    }
}

impl TryFrom<proto::ServiceAddress> for ServiceAddress {
    type Error = Malformed;
    fn try_from(message: proto::ServiceAddress) -> Result<Self> {
        let (ipv4, ipv6) = mount(message.ipv4, message.ipv6)?;
        Ok(Self { vni: Vni::new(message.vni)?, service: service_id(message.service)?, ipv4, ipv6 })
    }
}

impl From<ServiceAddressKey> for proto::ServiceAddressKey {
    fn from(key: ServiceAddressKey) -> Self {
        let ServiceAddressKey { vni, ipv4, ipv6 } = key;
        Self { vni: vni.get(), ipv4: ipv4.map_or(0, Into::into), ipv6: ipv6.map(Into::into) }
    }
}

impl TryFrom<proto::ServiceAddressKey> for ServiceAddressKey {
    type Error = Malformed;
    fn try_from(message: proto::ServiceAddressKey) -> Result<Self> {
        let (ipv4, ipv6) = mount(message.ipv4, message.ipv6)?;
        Ok(Self { vni: Vni::new(message.vni)?, ipv4, ipv6 })
    }
}

/// Reads the address of a host that a gateway probes.
pub(super) fn watched_host(message: proto::Address) -> Result<IpAddr> {
    unicast("watched host", message.read("watched host")?)
}

impl From<MemberProbe> for proto::MemberProbe {
    fn from(probe: MemberProbe) -> Self {
        let MemberProbe { interval_ms, failures, epoch } = probe;
        Self { interval_ms, failures, epoch }
    }
}

impl From<proto::MemberProbe> for MemberProbe {
    fn from(message: proto::MemberProbe) -> Self {
        let given = |value: u32, otherwise: u32| if value == 0 { otherwise } else { value };
        Self {
            interval_ms: given(message.interval_ms, PROBE_INTERVAL_MS),
            failures: given(message.failures, PROBE_FAILURES),
            epoch: message.epoch,
        }
    }
}

/// A text for people, without control characters and at most [`MAX_EVIDENCE_BYTES`] long.
fn evidence(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_EVIDENCE_BYTES));
    text.retain(|letter| !letter.is_control());
    text
}

impl From<MemberState> for proto::MemberState {
    fn from(state: MemberState) -> Self {
        Self { instance: state.instance.get(), up: state.up, evidence: evidence(state.evidence) }
    }
}

impl TryFrom<proto::MemberState> for MemberState {
    type Error = Malformed;
    fn try_from(message: proto::MemberState) -> Result<Self> {
        let instance = instance_id(message.instance)?;
        Ok(Self { instance, up: message.up, evidence: evidence(message.evidence) })
    }
}

impl From<HostState> for proto::HostState {
    fn from(state: HostState) -> Self {
        let HostState { host, reachable, evidence: text } = state;
        Self { host: Some(host.into()), reachable, evidence: evidence(text) }
    }
}

impl TryFrom<proto::HostState> for HostState {
    type Error = Malformed;
    fn try_from(message: proto::HostState) -> Result<Self> {
        let host = unicast("watched host", address(message.host, "watched host")?)?;
        Ok(Self { host, reachable: message.reachable, evidence: evidence(message.evidence) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_types::{InstanceId, MacAddr};

    fn service() -> Service {
        let member = |number: u8, host: &str, selected| ServiceMember {
            number,
            mac: MacAddr::local(number.into()),
            host: host.parse().unwrap(),
            selected,
        };
        let members = vec![member(1, "192.0.2.7", true), member(127, "fd00::7", false)];
        Service { id: 9, seed: [1, u64::MAX], members }
    }

    /// Catches a member that no slot can name, and lists of which nodes would make different tables.
    #[test]
    fn services_survive_the_wire_and_malformed_ones_are_refused() {
        let good = proto::Service::from(service());
        assert_eq!(Service::try_from(good.clone()), Ok(service()));
        assert!(service().message_bytes() < 100);
        let damage: [fn(&mut proto::Service); 7] = [
            |m| m.id = 0,
            |m| m.members[0].number = 0,
            |m| m.members[1].number = 128,
            |m| m.members[1].number = 1,
            |m| m.members.swap(0, 1),
            |m| m.members[0].mac = 1 << 40,
            |m| m.members[0].host = None,
        ];
        for (index, damage) in damage.into_iter().enumerate() {
            let mut message = good.clone();
            damage(&mut message);
            assert!(Service::try_from(message).is_err(), "damage {index}");
        }
    }

    #[test]
    fn mounts_have_at_least_one_address() {
        let vni = Vni::new(5).unwrap();
        let both = ServiceAddress {
            vni,
            service: 9,
            ipv4: Some("10.0.0.9".parse().unwrap()),
            ipv6: Some("fd00::9".parse().unwrap()),
        };
        for entry in [both, ServiceAddress { ipv4: None, ..both }, ServiceAddress { ipv6: None, ..both }] {
            assert_eq!(ServiceAddress::try_from(proto::ServiceAddress::from(entry)), Ok(entry));
            let key = entry.key();
            assert_eq!(ServiceAddressKey::try_from(proto::ServiceAddressKey::from(key)), Ok(key));
        }
        let none = proto::ServiceAddress { vni: 5, service: 9, ipv4: 0, ipv6: None };
        assert_eq!(ServiceAddress::try_from(none), Err(Malformed::NoAddress("mount")));
    }

    /// Catches a probe without an interval, by which a host would probe all the time.
    #[test]
    fn probes_have_an_interval() {
        let probe = MemberProbe { interval_ms: 20, failures: 5, epoch: 7 };
        assert_eq!(MemberProbe::from(proto::MemberProbe::from(probe)), probe);
        let default = MemberProbe::from(proto::MemberProbe { epoch: 7, ..Default::default() });
        assert_eq!(default, MemberProbe { interval_ms: 10, failures: 3, epoch: 7 });
    }

    #[test]
    fn reported_states_survive_the_wire_and_their_texts_have_a_limit() {
        let member = MemberState { instance: InstanceId::new(4), up: true, evidence: "3 of 3".to_owned() };
        assert_eq!(MemberState::try_from(proto::MemberState::from(member.clone())), Ok(member));
        let host = "192.0.2.7".parse().unwrap();
        let state = HostState { host, reachable: false, evidence: "5 of 5".to_owned() };
        assert_eq!(HostState::try_from(proto::HostState::from(state.clone())), Ok(state));
        let long = proto::MemberState { instance: 4, up: false, evidence: "\nü".repeat(500) };
        let read = MemberState::try_from(long).unwrap().evidence;
        assert!(!read.is_empty() && read.chars().all(|letter| letter == 'ü'));
        assert!(MemberState::try_from(proto::MemberState::default()).is_err());
        assert!(HostState::try_from(proto::HostState::default()).is_err());
    }
}
