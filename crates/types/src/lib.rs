//! Identifiers and addresses that every room of Sluice shares.
//!
//! Everything here is plain data: parsing with errors that name the offender,
//! display that parses back, no I/O and no dependency on the rest.
#![forbid(unsafe_code)]

mod addr;
mod id;
mod mac;
mod secret;
mod vni;

pub use addr::{
    AddressError, eui64_address, first_host, ipv6_from_halves, ipv6_halves, is_unicast, overlap,
    parse_prefix, solicited_node,
};
pub use id::{
    ClusterId, GatewayId, HostId, IdError, InstanceId, PeeringId, RouteId, RouteTableId, SubnetId, TenantId,
    VpcId,
};
pub use ipnet::{IpNet, Ipv4Net, Ipv6Net};
pub use mac::{MacAddr, MacError};
pub use secret::Secret;
pub use vni::{Vni, VniError};

/// MAC address of the overlay's router, the same in every VPC: what a VM
/// resolves its default gateway to. Locally administered.
pub const ROUTER_MAC: MacAddr = MacAddr::new([0x02, 0x53, 0x4c, 0x00, 0x00, 0x01]);

/// Link-local IPv6 address of the overlay's router: the source of router
/// advertisements and of ICMPv6 errors that have no better one.
pub const ROUTER_LINK_LOCAL: std::net::Ipv6Addr = std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// UDP port of VXLAN (RFC 7348).
pub const VXLAN_PORT: u16 = 4789;

/// Bytes that VXLAN adds to a tenant's IP packet over IPv4: Ethernet 14,
/// VXLAN 8, UDP 8, IPv4 20.
pub const VXLAN_OVERHEAD_IPV4: u16 = 50;

/// The same over IPv6: 20 bytes more.
pub const VXLAN_OVERHEAD_IPV6: u16 = 70;

/// Shortest hello interval of a gateway cluster, in milliseconds: below it the timers' jitter is most of the
/// time within which a failure is found.
pub const HELLO_MS_MIN: u16 = 2;

/// Hello interval of a cluster of which nobody said anything else, in milliseconds.
pub const HELLO_MS_DEFAULT: u16 = 4;

/// Longest hello interval of a cluster, in milliseconds: a failure takes most of a second to be found then, and
/// what waits longer after false alarms still waits for less time than those are remembered.
pub const HELLO_MS_MAX: u16 = 250;
