//! Identifiers and addresses that all crates of Sluice share.
//!
//! Everything here is plain data without I/O. Parsing errors name the offending text, and displayed values
//! can be parsed again. This crate depends on no other crate of Sluice.
#![forbid(unsafe_code)]

mod addr;
mod credit;
mod digest;
mod health;
mod health_policy;
mod id;
mod ipv6_mode;
mod mac;
mod meter;
mod migration;
mod nat;
mod placement;
mod port;
mod random;
mod scheduler;
mod secret;
mod security;
mod service;
mod vni;

pub use addr::{
    AddressError, check_unicast, eui64_address, first_host, ipv6_from_halves, ipv6_halves, is_nat64_prefix,
    is_nptv6_prefix, is_unicast, link_local_address, overlap, parse_prefix, solicited_node,
};
pub use credit::{
    Allowance, AllowanceError, CREDIT_SECONDS_MAX, CreditPolicy, CreditPolicyError, Dimension,
    MAX_CPU_PERMILLE, MAX_RATE_KPPS,
};
pub use digest::{
    DIGEST_SHARDS, DIGEST_VERSION, DigestTarget, Digests, EntryHash, EntryKey, address_hash, bytes_hash,
};
pub use health::AnomalyClass;
pub use health_policy::{HealthAction, HealthPolicies, HealthPolicy, HealthPolicyError, HealthPolicyPatch};
pub use id::{
    ClusterId, EipId, GatewayId, HostId, IdError, InstanceId, MemberId, MeterId, MountId, NatGatewayId,
    NetworkClassId, PeeringId, PortForwardId, PublicPoolId, RouteId, RouteTableId, SecurityGroupId,
    SecurityRuleId, ServiceId, SubnetId, TenantId, VpcId,
};
pub use ipnet::{IpNet, Ipv4Net, Ipv6Net};
pub use ipv6_mode::Ipv6Mode;
pub use mac::{MacAddr, MacError};
pub use meter::{
    METER_BURST_MIN, METER_KBPS_MAX, METER_KBPS_MIN, METER_REFILL_S_MAX, METER_WHOLE, MeterLimit,
    MeterLimitError, MeterRate,
};
pub use migration::{MigrationKey, MigrationStatus, SessionMode};
pub use nat::{
    ForwardProtocol, NAT_ADDRESSES_MAX, NAT_BLOCKS_DEFAULT, NAT_BLOCKS_MAX, NAT_SESSIONS_DEFAULT,
    NAT_SESSIONS_MAX, NatFiltering, NatMapping, PORT_FORWARDS_MAX, PortForward, check_nat_addresses,
};
pub use placement::{
    GATEWAY_CAPACITY_PPS_DEFAULT, GATEWAY_CAPACITY_PPS_MAX, PlacementSettings, PlacementSettingsError,
    PlacementSettingsPatch,
};
pub use port::{
    AddressPair, AddressPairError, MAX_ADDRESS_PAIRS, MAX_DELEGATED_PREFIXES, MAX_DSCP, MAX_RATE_MBPS,
    MAX_SECONDARY_ADDRESSES, PortSettings, Qos, given,
};
pub use random::Random;
pub use scheduler::{SchedulerPatch, SchedulerSettings, SchedulerSettingsError};
pub use secret::{NatSeed, Secret};
pub use security::{
    AddressFamily, Direction, MatchError, PortRange, Protocol, Remote, RuleError, RuleFields, RuleMatch,
};
pub use service::{MemberStatus, SERVICE_MEMBERS_MAX, ServiceMember};
pub use vni::{Vni, VniError};

/// MAC address of the overlay's router, to which every VM resolves its default gateway. It is the same in
/// every VPC, and locally administered.
pub const ROUTER_MAC: MacAddr = MacAddr::new([0x02, 0x53, 0x4c, 0x00, 0x00, 0x01]);

/// Link-local IPv6 address of the overlay's router: the source of router advertisements, and of ICMPv6 errors
/// for which the VPC has no router address.
pub const ROUTER_LINK_LOCAL: std::net::Ipv6Addr = std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// UDP port of VXLAN (RFC 7348).
pub const VXLAN_PORT: u16 = 4789;

/// Bytes that VXLAN over IPv4 adds to a tenant's IP packet: Ethernet 14, VXLAN 8, UDP 8, IPv4 20.
pub const VXLAN_OVERHEAD_IPV4: u16 = 50;

/// Bytes that VXLAN over IPv6 adds to a tenant's IP packet: 20 more than over IPv4.
pub const VXLAN_OVERHEAD_IPV6: u16 = 70;

/// Shortest hello interval of a gateway cluster, in milliseconds. With a shorter one, most of the time to
/// detect a failure would be jitter of the timers.
pub const HELLO_INTERVAL_MS_MIN: u16 = 2;

/// Default hello interval of a gateway cluster, in milliseconds.
pub const HELLO_INTERVAL_MS_DEFAULT: u16 = 4;

/// Longest hello interval of a gateway cluster, in milliseconds. With it a failure is detected after most of
/// a second, and the longest wait after false alarms is still shorter than the time for which these are
/// remembered.
pub const HELLO_INTERVAL_MS_MAX: u16 = 250;
