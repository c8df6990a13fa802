//! Converts the direct paths that the controller computes.

use super::{Malformed, Result, address, either, halves, mac, unicast};
use crate::entries::{Path, PathKey};
use crate::proto;
use sluice_types::Vni;
use std::net::{IpAddr, Ipv6Addr};

/// The fields of an address: those of the other address family are 0.
fn fields(address: IpAddr) -> (u32, (u64, u64)) {
    match address {
        IpAddr::V4(v4) => (v4.into(), (0, 0)),
        IpAddr::V6(v6) => (0, halves(Some(v6))),
    }
}

fn one(what: &'static str, v4: u32, high: u64, low: u64) -> Result<IpAddr> {
    let (v4, v6) = either(what, v4, high, low)?;
    v4.map(IpAddr::V4).or(v6.map(Ipv6Addr::into)).ok_or(Malformed::NoAddress(what))
}

impl From<Path> for proto::Path {
    fn from(path: Path) -> Self {
        let (ipv4, (ipv6_high, ipv6_low)) = fields(path.key.address);
        let (host_ipv4, (host_ipv6_high, host_ipv6_low)) = fields(path.host);
        Self {
            vni: path.key.vni.get(),
            ipv4,
            ipv6_high,
            ipv6_low,
            mac: path.mac.to_u64(),
            host_ipv4,
            host_ipv6_high,
            host_ipv6_low,
            path_vni: path.path_vni.get(),
        }
    }
}

impl TryFrom<proto::Path> for Path {
    type Error = Malformed;
    fn try_from(message: proto::Path) -> Result<Self> {
        let address = one("path", message.ipv4, message.ipv6_high, message.ipv6_low)?;
        let host = one("path's host", message.host_ipv4, message.host_ipv6_high, message.host_ipv6_low)?;
        Ok(Self {
            key: PathKey { vni: Vni::new(message.vni)?, address },
            mac: mac("path", message.mac)?,
            host,
            path_vni: Vni::new(message.path_vni)?,
        })
    }
}

impl From<PathKey> for proto::PathKey {
    fn from(key: PathKey) -> Self {
        Self { vni: key.vni.get(), address: Some(key.address.into()) }
    }
}

impl TryFrom<proto::PathKey> for PathKey {
    type Error = Malformed;
    fn try_from(key: proto::PathKey) -> Result<Self> {
        Ok(Self { vni: Vni::new(key.vni)?, address: unicast("path", address(key.address, "path")?)? })
    }
}
