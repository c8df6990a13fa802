/// Why a change does not fit what is there. Each names the offender.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    #[error("{kind} `{name}` exists already with other content: {difference}")]
    NameTaken { kind: &'static str, name: String, difference: String },
    #[error("{given} overlaps {existing} of subnet `{subnet}`")]
    PrefixOverlap { given: String, existing: String, subnet: String },
    #[error("{address} is outside its subnet's {prefix}")]
    OutsideSubnet { address: String, prefix: String },
    #[error("{address} is the {role} address of {prefix}")]
    ReservedAddress { address: String, prefix: String, role: &'static str },
    #[error("{address} is already instance `{instance}`'s")]
    AddressTaken { address: String, instance: String },
    #[error("{address} is already {owner}'s")]
    UnderlayAddressTaken { address: String, owner: String },
    #[error("MAC {mac} is already instance `{instance}`'s in this VPC")]
    MacTaken { mac: String, instance: String },
    #[error("subnet `{subnet}` has no {family} prefix, but {address} was asked for")]
    NoSuchFamily { subnet: String, family: &'static str, address: String },
    #[error("subnet `{subnet}` ({prefix}) has no free address")]
    SubnetFull { subnet: String, prefix: String },
    #[error("VNI {vni} is already VPC `{vpc}`'s")]
    VniTaken { vni: u32, vpc: String },
    #[error("no free VNI: all {used} are in use")]
    VniExhausted { used: u64 },
    #[error("VPCs `{a}` and `{b}` overlap: {a_prefix} and {b_prefix}")]
    PeeringOverlap { a: String, b: String, a_prefix: String, b_prefix: String },
    #[error("VPCs `{a}` and `{b}` belong to different tenants")]
    PeeringAcrossTenants { a: String, b: String },
    #[error("VPCs `{a}` and `{b}` are peered already, as `{peering}`")]
    AlreadyPeered { a: String, b: String, peering: String },
    #[error("a VPC cannot be peered with itself")]
    PeeredWithItself,
    #[error("peering `{peering}` is not the route's VPC's")]
    ForeignPeering { peering: String },
    #[error("{prefix} is inside subnet `{subnet}`'s {existing}, which is always routed locally")]
    RouteInsideSubnet { prefix: String, subnet: String, existing: String },
    #[error("subnet `{subnet}` is not of VPC `{vpc}`")]
    ForeignSubnet { subnet: String, vpc: String },
    #[error("{kind} `{name}` is still used by {user}")]
    InUse { kind: &'static str, name: String, user: String },
    #[error("clusters of VPCs `{a}` and `{b}` differ; both ends of a peering are placed on one cluster")]
    PeeringAcrossClusters { a: String, b: String },
    #[error("VPC `{vpc}` is moving to {to}; it can turn back, or must arrive first")]
    VpcMoves { vpc: String, to: String },
    #[error(
        "cluster `{cluster}` has no {family} vIP, but host `{host}` ({vtep}), which has instances of VPC `{vpc}`, \
         has only {family} in the underlay"
    )]
    NoVipForHost { cluster: String, family: &'static str, host: String, vtep: String, vpc: String },
    #[error("cluster `{cluster}` has no gateway that would forward")]
    NoGateways { cluster: String },
    #[error("gateway `{gateway}` is the last of its cluster that neither drains nor leaves")]
    LastGateway { gateway: String },
    #[error("the key of cluster `{cluster}` was renewed within the last {minutes} minutes")]
    KeyIsNew { cluster: String, minutes: u64 },
    #[error(
        "gateway `{gateway}` is on its way between clusters, to `{to}`; it can turn back, or must arrive first"
    )]
    GatewayMoves { gateway: String, to: String },
    #[error("gateway `{gateway}` has no {family} VTEP, and cluster `{cluster}` has {family} vIPs")]
    FamilyMissing { gateway: String, cluster: String, family: &'static str },
    #[error("plan {plan} is being carried out; one is at a time")]
    PlanApplying { plan: u64 },
    #[error("plan {plan} is done")]
    PlanDone { plan: u64 },
    #[error("{message}")]
    Invalid { offender: String, message: String },
}

/// What can go wrong in the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("no {kind} {id}")]
    NotFound { kind: &'static str, id: String },
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// One of a bulk; the index is the offender's place in the request.
    #[error("instance {index} (`{name}`): {source}")]
    InBulk { index: usize, name: String, source: Box<StoreError> },
    #[error("{kind} {id} is at revision {current}, not {expected}")]
    Stale { kind: &'static str, id: String, current: u64, expected: u64 },
    #[error("outbox starts after revision {oldest}, {wanted} is gone")]
    Compacted { wanted: u64, oldest: u64 },
    #[error("`{0}` is no database URL: expected sqlite:PATH or postgres://USER@HOST/NAME")]
    BadUrl(String),
    /// The database does not answer or cannot write (gone, disk full, read only): API says 503.
    #[error("database unavailable: {cause}")]
    Unavailable {
        cause: String,
        #[source]
        source: Option<sqlx::Error>,
    },
    /// A stored value cannot be read back: damage or a newer schema.
    #[error("database holds what this version cannot read: {0}")]
    Corrupt(String),
}
