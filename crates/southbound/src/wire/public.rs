//! Converts what VPCs have on the Internet side: public prefixes, NAT gateways and meters.

use super::{Malformed, Result, address, meter_id, prefix, unicast};
use crate::entries::{Meter, NatGateway, PublicPrefix};
use crate::proto;
use prost::Message;
use sluice_types::{
    ForwardProtocol, MeterLimit, NAT_ADDRESSES_MAX, NAT_BLOCKS_MAX, PortForward, Vni, is_nat64_prefix,
    is_nptv6_prefix,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4};

impl From<PublicPrefix> for proto::PublicPrefix {
    fn from(public: PublicPrefix) -> Self {
        Self {
            outside: Some(public.outside.into()),
            vni: public.vni.get(),
            inside: Some(public.inside.into()),
            vip: Some(public.vip.into()),
            meter: public.meter.unwrap_or(0),
            nptv6: public.nptv6,
        }
    }
}

impl TryFrom<proto::PublicPrefix> for PublicPrefix {
    type Error = Malformed;
    fn try_from(public: proto::PublicPrefix) -> Result<Self> {
        let outside = prefix(public.outside.ok_or(Malformed::NoAddress("public prefix"))?)?;
        let inside = prefix(public.inside.ok_or(Malformed::NoAddress("public prefix's VPC addresses"))?)?;
        if inside.addr().is_ipv4() != outside.addr().is_ipv4() || inside.prefix_len() != outside.prefix_len()
        {
            return Err(Malformed::Translation { outside, inside });
        }
        let vip = unicast("public prefix's vIP", address(public.vip, "public prefix's vIP")?)?;
        let meter = (public.meter != 0).then_some(public.meter);
        let nptv6 = public.nptv6;
        if nptv6 && !is_nptv6_prefix(outside) {
            return Err(Malformed::Translation { outside, inside });
        }
        Ok(Self { outside, vni: Vni::new(public.vni)?, inside, vip, meter, nptv6 })
    }
}

impl NatGateway {
    /// Size of its message in bytes: below 8 KiB with everything that a NAT gateway may have.
    pub fn message_bytes(&self) -> usize {
        proto::NatGateway::from(self.clone()).encoded_len()
    }
}

impl From<NatGateway> for proto::NatGateway {
    fn from(nat: NatGateway) -> Self {
        Self {
            vni: nat.vni.get(),
            addresses: nat.addresses.into_iter().map(Into::into).collect(),
            vip: Some(nat.vip.into()),
            sessions: nat.sessions,
            blocks: nat.blocks.into(),
            any_remote: nat.any_remote,
            shares_ports: nat.shares_ports,
            forwards: nat.forwards.into_iter().map(Into::into).collect(),
            nat64_prefix: nat.nat64.map(Into::into),
        }
    }
}

impl From<PortForward> for proto::PortForward {
    fn from(forward: PortForward) -> Self {
        let PortForward { protocol, outside, inside } = forward;
        Self {
            protocol: protocol.number().into(),
            address: (*outside.ip()).into(),
            port: outside.port().into(),
            inside: (*inside.ip()).into(),
            inside_port: inside.port().into(),
        }
    }
}

/// `None`: the protocol or a port is out of range.
fn port_forward(forward: &proto::PortForward) -> Option<PortForward> {
    let end = |address: u32, port: u32| Some(SocketAddrV4::new(address.into(), port.try_into().ok()?));
    Some(PortForward {
        protocol: ForwardProtocol::of_number(forward.protocol)?,
        outside: end(forward.address, forward.port)?,
        inside: end(forward.inside, forward.inside_port)?,
    })
}

impl TryFrom<proto::NatGateway> for NatGateway {
    type Error = Malformed;
    fn try_from(nat: proto::NatGateway) -> Result<Self> {
        let vni = Vni::new(nat.vni)?;
        let addresses: Vec<Ipv4Addr> = nat.addresses.into_iter().map(Into::into).collect();
        for address in &addresses {
            unicast("NAT gateway", IpAddr::V4(*address))?;
        }
        if !(1..=NAT_ADDRESSES_MAX).contains(&addresses.len()) {
            return Err(Malformed::Nat(vni, "no addresses, or too many"));
        }
        if !addresses.is_sorted_by(|a, b| a < b) {
            return Err(Malformed::Disorder("NAT gateway"));
        }
        if nat.sessions == 0 || !(1..=NAT_BLOCKS_MAX.into()).contains(&nat.blocks) {
            return Err(Malformed::Nat(vni, "a number of sessions or blocks that is out of range"));
        }
        let vip = unicast("NAT gateway's vIP", address(nat.vip, "NAT gateway's vIP")?)?;
        let forwards: Option<Vec<_>> = nat.forwards.iter().map(port_forward).collect();
        let forwards = forwards.ok_or(Malformed::Nat(vni, "a protocol or port that it cannot forward"))?;
        PortForward::check_all(&forwards, &addresses)
            .map_err(|reason| Malformed::PortForwards(vni, reason))?;
        let nat64 = nat.nat64_prefix.map(Ipv6Addr::from);
        if nat64.is_some_and(|prefix| !is_nat64_prefix(prefix)) {
            return Err(Malformed::Nat(vni, "a NAT64 prefix that is not possible"));
        }
        Ok(Self {
            vni,
            addresses,
            vip,
            sessions: nat.sessions,
            blocks: nat.blocks as u8,
            any_remote: nat.any_remote,
            shares_ports: nat.shares_ports,
            forwards,
            nat64,
        })
    }
}

impl From<Meter> for proto::Meter {
    fn from(meter: Meter) -> Self {
        let limit = |MeterLimit { rate_kbps, burst_bytes }| proto::MeterLimit { rate_kbps, burst_bytes };
        Self { id: meter.id, r#in: meter.inward.map(limit), out: meter.outward.map(limit) }
    }
}

impl TryFrom<proto::Meter> for Meter {
    type Error = Malformed;
    fn try_from(meter: proto::Meter) -> Result<Self> {
        let id = meter_id(meter.id)?;
        let limit = |message: Option<proto::MeterLimit>| {
            let limited = message.filter(|limit| limit.rate_kbps != 0);
            let limit = limited
                .map(|proto::MeterLimit { rate_kbps, burst_bytes }| MeterLimit { rate_kbps, burst_bytes });
            limit.map(MeterLimit::check).transpose().map_err(|error| Malformed::Meter(id, error))
        };
        Ok(Self { id, inward: limit(meter.r#in)?, outward: limit(meter.out)? })
    }
}
