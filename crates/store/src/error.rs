//! Errors of the store.

use sluice_types::{ForwardProtocol, SessionMode};
use std::net::{Ipv4Addr, SocketAddrV4};

/// Reason why a change contradicts the stored objects. The text names the objects that conflict.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    #[error("{kind} `{name}` already exists with different content: {difference}")]
    NameTaken { kind: &'static str, name: String, difference: String },
    #[error("{given} overlaps {existing} of subnet `{subnet}`")]
    PrefixOverlap { given: String, existing: String, subnet: String },
    #[error("{address} is outside the prefix {prefix} of its subnet")]
    OutsideSubnet { address: String, prefix: String },
    #[error("{address} is the {role} address of {prefix}")]
    ReservedAddress { address: String, prefix: String, role: &'static str },
    #[error("{address} is already used by instance `{instance}`")]
    AddressTaken { address: String, instance: String },
    #[error("{address} is in the address pairs of instance `{instance}`")]
    AddressIsPair { address: String, instance: String },
    #[error("{address} is an address of mount `{mount}`")]
    AddressIsMounted { address: String, mount: String },
    #[error("{address} is inside {prefix}, which is delegated to instance `{instance}`")]
    AddressDelegated { address: String, prefix: String, instance: String },
    #[error(
        "{given} differs from {theirs} of instance `{instance}`: an address has the same MAC address in all its pairs"
    )]
    PairDiffers { given: String, theirs: String, instance: String },
    #[error("{prefix} overlaps {existing}, which is delegated to instance `{instance}`")]
    PrefixTaken { prefix: String, existing: String, instance: String },
    #[error("{prefix} contains {address} of {owner}")]
    PrefixContains { prefix: String, address: String, owner: String },
    #[error("{prefix} cannot be delegated: {owner} has the same prefix")]
    PrefixIsRoute { prefix: String, owner: String },
    #[error("{prefix} of {owner} is delegated to instance `{instance}`")]
    RouteIsDelegated { prefix: String, owner: String, instance: String },
    #[error("{given} contains {existing}, which is delegated to instance `{instance}`")]
    SubnetIsDelegated { given: String, existing: String, instance: String },
    #[error("{address} was announced, but instance `{instance}` {reason}")]
    ClaimRefused { address: String, instance: String, reason: String },
    #[error("{address} is already used by {owner}")]
    UnderlayAddressTaken { address: String, owner: String },
    #[error("MAC {mac} is already used by instance `{instance}` in this VPC")]
    MacTaken { mac: String, instance: String },
    #[error("MAC {mac} is in the address pairs of instance `{instance}` in this VPC")]
    MacIsPair { mac: String, instance: String },
    #[error("subnet `{subnet}` has no {family} prefix, but address {address} was requested")]
    NoSuchFamily { subnet: String, family: &'static str, address: String },
    #[error("subnet `{subnet}` ({prefix}) has no free address")]
    SubnetFull { subnet: String, prefix: String },
    #[error("VNI {vni} is already used by VPC `{vpc}`")]
    VniTaken { vni: u32, vpc: String },
    /// Nodes may still have entries of a deleted object that had this address or VNI.
    #[error("{what} is held until all nodes have removed {owner}, which was deleted at revision {revision}")]
    Held { what: String, owner: String, revision: u64 },
    #[error("no free VNI: all {used} are in use")]
    VniExhausted { used: u64 },
    #[error("VPCs `{a}` and `{b}` overlap: {a_prefix} and {b_prefix}")]
    PeeringOverlap { a: String, b: String, a_prefix: String, b_prefix: String },
    #[error("VPCs `{a}` and `{b}` belong to different tenants")]
    PeeringAcrossTenants { a: String, b: String },
    #[error("VPCs `{a}` and `{b}` are already peered by peering `{peering}`")]
    AlreadyPeered { a: String, b: String, peering: String },
    #[error("a VPC cannot be peered with itself")]
    PeeredWithItself,
    #[error("peering `{peering}` does not include the VPC of the route")]
    ForeignPeering { peering: String },
    #[error("VPC `{vpc}` is not one of the two VPCs of peering `{peering}`")]
    VpcNotPeered { vpc: String, peering: String },
    #[error("{prefix} is inside {existing} of subnet `{subnet}`, which is always routed locally")]
    RouteInsideSubnet { prefix: String, subnet: String, existing: String },
    #[error("subnet `{subnet}` does not belong to VPC `{vpc}`")]
    ForeignSubnet { subnet: String, vpc: String },
    #[error("{kind} `{name}` is still used by {user}")]
    InUse { kind: &'static str, name: String, user: String },
    #[error("security group `{group}` does not belong to VPC `{vpc}`")]
    ForeignSecurityGroup { group: String, vpc: String },
    #[error("security group `default` cannot be deleted or renamed: VPC `{vpc}` always has it")]
    DefaultSecurityGroup { vpc: String },
    #[error("VPC `{vpc}` has {max} security groups already, which is the limit; delete one that is not used")]
    TooManySecurityGroups { vpc: String, max: u64 },
    #[error(
        "security group `{group}` has {max} rules already, which is the limit; use wider prefixes or ranges of ports"
    )]
    TooManySecurityRules { group: String, max: u64 },
    #[error("security group `{group}` has this rule already: {rule} ({matches})")]
    SameSecurityRule { group: String, rule: String, matches: String },
    #[error(
        "VPC `{vpc}` cannot have another set of security groups: all {max} are assigned; delete security groups that \
         are not used, or give instances the same groups as others"
    )]
    IdentitiesExhausted { vpc: String, max: u16 },
    #[error("VPCs `{a}` and `{b}` are on different clusters; peered VPCs must be on one cluster")]
    PeeringAcrossClusters { a: String, b: String },
    #[error("VPC `{vpc}` is moving to {to}; wait until it has arrived, or move it back")]
    VpcMoves { vpc: String, to: String },
    #[error(
        "cluster `{cluster}` has no {family} vIP, but host `{host}` ({vtep}), which has instances of VPC `{vpc}`, \
         has only {family} in the underlay"
    )]
    NoVipForHost { cluster: String, family: &'static str, host: String, vtep: String, vpc: String },
    #[error(transparent)]
    Migration(#[from] MigrationConflict),
    #[error(transparent)]
    Service(#[from] ServiceConflict),
    #[error("cluster `{cluster}` has no gateway to forward for the VPC")]
    NoGateways { cluster: String },
    #[error("gateway `{gateway}` is the last of its cluster that neither drains nor leaves")]
    LastGateway { gateway: String },
    #[error("the key of cluster `{cluster}` was renewed within the last {minutes} minutes")]
    KeyIsNew { cluster: String, minutes: u64 },
    #[error("gateway `{gateway}` is moving to cluster `{to}`; wait until it has arrived, or move it back")]
    GatewayMoves { gateway: String, to: String },
    #[error("gateway `{gateway}` has no {family} VTEP, and cluster `{cluster}` has {family} vIPs")]
    FamilyMissing { gateway: String, cluster: String, family: &'static str },
    #[error("{given} overlaps {existing} of public pool `{pool}`")]
    PoolOverlap { given: String, existing: String, pool: String },
    #[error("{address} is not in a prefix of public pool `{pool}`")]
    OutsidePool { address: String, pool: String },
    #[error("{address} has an address in common with {reserved}, which public pool `{pool}` reserves")]
    ReservedInPool { address: String, reserved: String, pool: String },
    #[error("public pool `{pool}` has {what}")]
    PoolFull { pool: String, what: String },
    #[error("{address} has an address in common with {existing} of {owner}")]
    PublicAddressTaken { address: String, existing: String, owner: String },
    #[error(
        "{inside} has an address in common with {existing}, which has EIP `{eip}`: detach that EIP first"
    )]
    InsideTaken { inside: String, existing: String, eip: String },
    #[error("EIP `{eip}` and VPC `{vpc}` belong to different tenants")]
    EipAcrossTenants { eip: String, vpc: String },
    #[error(
        "EIP `{eip}` is from a pool of cluster `{cluster}`, but VPC `{vpc}` is on cluster `{vpc_cluster}`"
    )]
    EipAcrossClusters { eip: String, cluster: String, vpc: String, vpc_cluster: String },
    #[error(
        "VPC `{vpc}` cannot move: EIP `{eip}` is attached to it, and its pool is on cluster `{cluster}`; detach the EIPs of \
         the VPC first"
    )]
    VpcHasEip { vpc: String, eip: String, cluster: String },
    #[error("meter `{meter}` and {user} belong to different tenants")]
    MeterAcrossTenants { meter: String, user: String },
    #[error(
        "tenant `{tenant}` has {max} meters already, which is the limit; EIPs, VPCs and peerings can share a meter"
    )]
    TooManyMeters { tenant: String, max: u64 },
    #[error("VPC `{vpc}` has NAT gateway `{nat_gateway}`, and a VPC has at most one")]
    VpcHasNatGateway { vpc: String, nat_gateway: String },
    #[error("public pool `{pool}` is on cluster `{cluster}`, but VPC `{vpc}` is on cluster `{vpc_cluster}`")]
    NatGatewayAcrossClusters { pool: String, cluster: String, vpc: String, vpc_cluster: String },
    #[error("NAT64 prefix {prefix} of NAT gateway `{nat_gateway}` overlaps {existing}")]
    Nat64PrefixTaken { prefix: String, nat_gateway: String, existing: String },
    #[error(
        "VPC `{vpc}` cannot move: it has NAT gateway `{nat_gateway}`, whose pool is on cluster `{cluster}`; delete the NAT \
         gateway first"
    )]
    NatGatewayStays { vpc: String, nat_gateway: String, cluster: String },
    #[error("{protocol} port {endpoint} is already forwarded by port forward `{forward}`")]
    PortForwarded { protocol: ForwardProtocol, endpoint: SocketAddrV4, forward: String },
    #[error(
        "port forward `{forward}` leads to {protocol} port {endpoint} already, and answers of an instance have one way out"
    )]
    EndpointForwarded { protocol: ForwardProtocol, endpoint: SocketAddrV4, forward: String },
    #[error("port forward `{forward}` leads to {inside}, which would answer by the EIP: delete it first")]
    InsideForwarded { inside: Ipv4Addr, forward: String },
    #[error("NAT gateway `{nat_gateway}` has {max} port forwards, the most that are possible")]
    TooManyPortForwards { nat_gateway: String, max: usize },
    #[error("plan {plan} is being applied; only one plan can be applied at a time")]
    PlanApplying { plan: u64 },
    #[error("plan {plan} is already done")]
    PlanDone { plan: u64 },
    #[error("plan {plan} is not being applied, so it cannot be stopped")]
    PlanNotApplying { plan: u64 },
    #[error("{message}")]
    Invalid { offender: String, message: String },
}

/// Reason why an instance cannot migrate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MigrationConflict {
    #[error("instance `{instance}` is on host `{host}` already")]
    OnHostAlready { instance: String, host: String },
    #[error(
        "instance `{instance}` is migrating to host `{to}` (sessions: {sessions}); wait until it has arrived, or cancel its \
         migration"
    )]
    InstanceMigrates { instance: String, to: String, sessions: SessionMode },
    #[error("host `{host}` runs no vSwitch, and only the vSwitches of both hosts can migrate an instance")]
    HostWithoutVswitch { host: String },
    #[error(
        "hosts `{from}` and `{to}` cannot reach each other: the VTEP of one is an IPv4 address, and that of the other an \
         IPv6 address"
    )]
    MigrationAcrossFamilies { from: String, to: String },
    #[error("host `{host}` takes part in {max} migrations already in this direction, which is the limit")]
    TooManyMigrations { host: String, max: u64 },
}

/// Reason why a service cannot have a member or a mount, or why an instance must stay as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceConflict {
    #[error(
        "mount `{mount}` of VPC `{vpc}` needs the permission of service `{service}`: delete the mount first"
    )]
    StillMounted { service: String, mount: String, vpc: String },
    #[error(
        "service `{service}` does not permit the tenant of VPC `{vpc}` to mount it: the owner of the service must permit it \
         first"
    )]
    TenantNotPermitted { service: String, vpc: String },
    #[error("VPC `{vpc}` has mount `{mount}` of service `{service}`, and a VPC has at most one of a service")]
    MountedAlready { service: String, vpc: String, mount: String },
    #[error("instance `{instance}` is a member of service `{service}`: remove it from the service first")]
    InstanceIsMember { instance: String, service: String },
    #[error("instance `{instance}` is not in the VPC of service `{service}`")]
    ForeignMember { instance: String, service: String },
    #[error("instance `{instance}` is migrating; wait until it has arrived, or cancel its migration")]
    MemberMigrates { instance: String },
    #[error(
        "instance `{instance}` cannot be a member: its host `{host}` runs no vSwitch, which members need for their vNICs"
    )]
    MemberWithoutVswitch { instance: String, host: String },
    #[error("service `{service}` has {max} members already, which is the limit")]
    TooManyMembers { service: String, max: u8 },
    #[error("instance `{instance}` is a member of {max} services already, which is the limit")]
    TooManyServices { instance: String, max: u64 },
    #[error("service `{service}` would have more than {max} vNICs: one for each member and mount")]
    TooManyVnics { service: String, max: u64 },
    #[error("service `{service}` has {max} mounts already, which is the limit")]
    TooManyMounts { service: String, max: u64 },
}

impl From<ServiceConflict> for StoreError {
    fn from(conflict: ServiceConflict) -> Self {
        Self::Conflict(conflict.into())
    }
}

impl From<MigrationConflict> for StoreError {
    fn from(conflict: MigrationConflict) -> Self {
        Self::Conflict(conflict.into())
    }
}

/// Error of a store call.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("no {kind} {id}")]
    NotFound { kind: &'static str, id: String },
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// Error of one instance of a bulk creation; `index` is its position in the request.
    #[error("instance {index} (`{name}`): {source}")]
    InBulk { index: usize, name: String, source: Box<StoreError> },
    #[error("{kind} {id} is at revision {current}, not {expected}")]
    Stale { kind: &'static str, id: String, current: u64, expected: u64 },
    #[error("the outbox starts after revision {compacted}; the revisions after {wanted} were deleted")]
    Compacted { wanted: u64, compacted: u64 },
    /// A commit that this process knows is not in the database: it was restored from a backup, or it failed over
    /// and lost commits.
    #[error("the database went back to an earlier state, as after a restored backup")]
    Rewound,
    #[error("`{0}` is not a database URL: expected sqlite:PATH or postgres://USER@HOST/NAME")]
    BadUrl(String),
    /// The database does not respond or cannot write (unreachable, disk full, read only). The API returns
    /// status 503 with this text, so the cause does not contain messages of the database driver.
    #[error("database unavailable: {cause}")]
    Unavailable {
        cause: String,
        #[source]
        source: Option<sqlx::Error>,
    },
    /// A stored value cannot be decoded, because the database is damaged or has a newer schema.
    #[error("the database contains data that this version cannot read: {0}")]
    Corrupt(String),
}
