//! Reading objects from rows: the columns of each kind and how they are decoded.

use crate::backend::Query;
use crate::value::{Row, Value, args};
use crate::{
    ClassOfInstance, Cluster, ClusterKey, ClusterVip, Eip, EipAttachment, EipTarget, Gateway, GatewayMove,
    Host, Instance, InstanceOptions, Meter, Migration, Mount, Move, NatGateway, NetworkClass, Page, Peering,
    PortForward, PublicPool, Remote, Result, Route, RouteTable, RouteTarget, RuleMatch, SecurityGroup,
    SecurityRule, Service, StoreError, StoredMember, Subnet, Tenant, Vpc,
};
use sluice_types::{
    ClusterId, CreditPolicy, EipId, GatewayId, HostId, InstanceId, MacAddr, MemberId, MeterId, MeterRate,
    MigrationKey, MountId, NatGatewayId, NetworkClassId, PeeringId, PortForwardId, Protocol, PublicPoolId,
    RouteId, RouteTableId, Secret, SecurityGroupId, SecurityRuleId, ServiceId, SubnetId, TenantId, Vni,
    VpcId,
};
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Flag of an instance: the MAC is derived from the id.
pub(crate) const DERIVED_MAC: u8 = 1;
/// Flag of an instance: the IPv6 address is derived from the MAC.
pub(crate) const DERIVED_IPV6: u8 = 2;

/// Largest page; a larger limit is reduced to this.
const MAX_PAGE: u32 = 65536;

/// A kind of object and its table.
pub(crate) trait Record: Sized + Send {
    type Id: std::fmt::Display + Copy + Send;
    /// Name of the kind in error messages.
    const KIND: &'static str;
    const TABLE: &'static str;
    /// Columns that [`Record::decode`] reads; the first is the id.
    const COLUMNS: &'static str;
    fn decode(row: &Row) -> Result<Self>;
    fn number(id: Self::Id) -> u64;
    fn revision(&self) -> u64;
}

macro_rules! record {
    ($name:ident, $id:ident, $kind:literal, $table:literal, $columns:literal, $row:ident => $decode:expr) => {
        impl Record for $name {
            type Id = $id;
            const KIND: &'static str = $kind;
            const TABLE: &'static str = $table;
            const COLUMNS: &'static str = $columns;
            fn decode($row: &Row) -> Result<Self> {
                Ok($decode)
            }
            fn number(id: $id) -> u64 {
                id.get()
            }
            fn revision(&self) -> u64 {
                self.revision
            }
        }
    };
}

record!(Tenant, TenantId, "tenant", "tenants", "id, name, revision", row => Tenant {
    id: TenantId::new(row.number(0)?),
    name: row.text(1)?.to_owned(),
    revision: row.number(2)?,
});

record!(Cluster, ClusterId, "cluster", "clusters", "id, name, vips, hello_ms, plan_revision, revision", row => Cluster {
    id: ClusterId::new(row.number(0)?),
    name: row.text(1)?.to_owned(),
    vips: row.parse_list(2)?,
    hello_interval_ms: u16::try_from(row.int(3)?).map_err(|_| StoreError::Corrupt("hello interval above 65535".into()))?,
    vip_plan_revision: row.number(4)?,
    revision: row.number(5)?,
});

record!(Gateway, GatewayId, "gateway", "gateways", "id, name, cluster, vtep4, vtep6, draining, other_cluster, joined, move_id, revision", row => Gateway {
    id: GatewayId::new(row.number(0)?),
    name: row.text(1)?.to_owned(),
    cluster: ClusterId::new(row.number(2)?),
    vtep4: row.parse_opt(3)?,
    vtep6: row.parse_opt(4)?,
    draining: row.int(5)? != 0,
    moving: match row.opt_int(6)? {
        Some(other) => Some(GatewayMove {
            id: row.number(8)?,
            other: ClusterId::new(other.unsigned_abs()),
            joined: row.int(7)? != 0,
        }),
        None => None,
    },
    revision: row.number(9)?,
});

record!(Host, HostId, "host", "hosts", "id, name, vtep, agent, revision", row => Host {
    id: HostId::new(row.number(0)?),
    name: row.text(1)?.to_owned(),
    vtep: row.parse(2)?,
    agent: row.int(3)? != 0,
    revision: row.number(4)?,
});

record!(
    Vpc,
    VpcId,
    "VPC",
    "vpcs",
    "id, name, tenant, vni, cluster, mtu, offload_kbps, moving_to, switched, move_id, revision, internet_meter",
    row => Vpc {
        id: VpcId::new(row.number(0)?),
        name: row.text(1)?.to_owned(),
        tenant: TenantId::new(row.number(2)?),
        vni: vni(row.number(3)?)?,
        cluster: ClusterId::new(row.number(4)?),
        mtu: u16::try_from(row.int(5)?).map_err(|_| StoreError::Corrupt("MTU above 65535".into()))?,
        offload_kbps: row.opt_int(6)?.map(kbps).transpose()?,
        moving: match row.opt_int(7)? {
            Some(to) => Some(Move {
                id: row.number(9)?,
                to: ClusterId::new(to.unsigned_abs()),
                switched: row.int(8)? != 0,
            }),
            None => None,
        },
        internet_meter: meter(row, 11)?,
        revision: row.number(10)?,
    }
);

record!(Subnet, SubnetId, "subnet", "subnets", "id, name, vpc, ipv4, ipv6, ipv6_mode, dns, revision", row => Subnet {
    id: SubnetId::new(row.number(0)?),
    name: row.text(1)?.to_owned(),
    vpc: VpcId::new(row.number(2)?),
    ipv4: row.parse_opt(3)?,
    ipv6: row.parse_opt(4)?,
    ipv6_mode: row.parse_opt(5)?,
    dns: row.parse_list(6)?,
    revision: row.number(7)?,
});

record!(
    Instance,
    InstanceId,
    "instance",
    "instances",
    "id, name, vpc, subnet, host, mac, ipv4, ipv6, identity, options, revision, migration, migrating_to, migration_key, \
     migration_sessions, network_class, \
     (SELECT c.policy FROM network_classes c WHERE c.id = instances.network_class)",
    row => Instance {
        id: InstanceId::new(row.number(0)?),
        name: row.text(1)?.to_owned(),
        vpc: VpcId::new(row.number(2)?),
        subnet: SubnetId::new(row.number(3)?),
        host: HostId::new(row.number(4)?),
        mac: MacAddr::from_u64(row.number(5)?),
        ipv4: row.opt_int(6)?.map(ipv4).transpose()?,
        ipv6: row.opt_blob(7)?.map(ipv6).transpose()?,
        identity: identity(row.int(8)?)?,
        options: InstanceOptions {
            network_class: network_class(row, 15)?,
            ..row.opt_text(9)?.map_or_else(|| Ok(Default::default()), options)?
        },
        migration: migration(row)?,
        revision: row.number(10)?,
    }
);

record!(RouteTable, RouteTableId, "route table", "route_tables", "id, name, vpc, revision", row => RouteTable {
    id: RouteTableId::new(row.number(0)?),
    name: row.text(1)?.to_owned(),
    vpc: VpcId::new(row.number(2)?),
    revision: row.number(3)?,
});

record!(Route, RouteId, "route", "routes", "id, route_table, prefix, peering, internet, revision", row => Route {
    id: RouteId::new(row.number(0)?),
    table: RouteTableId::new(row.number(1)?),
    prefix: row.parse(2)?,
    target: match row.opt_int(3)? {
        Some(peering) => RouteTarget::Peering(PeeringId::new(peering.unsigned_abs())),
        None if row.int(4)? != 0 => RouteTarget::Internet,
        None => RouteTarget::Drop,
    },
    revision: row.number(5)?,
});

record!(Peering, PeeringId, "peering", "peerings", "id, name, a, b, revision, a_meter, b_meter", row => Peering {
    id: PeeringId::new(row.number(0)?),
    name: row.text(1)?.to_owned(),
    a: VpcId::new(row.number(2)?),
    b: VpcId::new(row.number(3)?),
    meters: [meter(row, 5)?, meter(row, 6)?],
    revision: row.number(4)?,
});

record!(
    SecurityGroup,
    SecurityGroupId,
    "security group",
    "security_groups",
    "id, name, vpc, description, revision",
    row => SecurityGroup {
        id: SecurityGroupId::new(row.number(0)?),
        name: row.text(1)?.to_owned(),
        vpc: VpcId::new(row.number(2)?),
        description: row.text(3)?.to_owned(),
        revision: row.number(4)?,
    }
);

record!(
    SecurityRule,
    SecurityRuleId,
    "security rule",
    "security_rules",
    "id, security_group, vpc, direction, family, protocol, ports, icmp_type, icmp_code, remote, remote_group, description, \
     revision",
    row => SecurityRule {
        id: SecurityRuleId::new(row.number(0)?),
        group: SecurityGroupId::new(row.number(1)?),
        vpc: VpcId::new(row.number(2)?),
        matches: RuleMatch {
            direction: row.parse(3)?,
            family: row.parse(4)?,
            protocol: match opt_byte(row, 5)? {
                Some(number) => Protocol::new(number).map_err(|e| StoreError::Corrupt(e.to_string()))?,
                None => Protocol::ANY,
            },
            ports: row.parse_opt(6)?,
            icmp_type: opt_byte(row, 7)?,
            icmp_code: opt_byte(row, 8)?,
            remote: match (row.parse_opt(9)?, row.opt_int(10)?) {
                (Some(prefix), _) => Remote::Prefix(prefix),
                (None, Some(group)) => Remote::Group(SecurityGroupId::new(group.unsigned_abs())),
                (None, None) => Remote::Any,
            },
        },
        description: row.text(11)?.to_owned(),
        revision: row.number(12)?,
    }
);

record!(PublicPool, PublicPoolId, "public pool", "public_pools", "id, name, cluster, prefixes, reserved, revision", row => PublicPool {
    id: PublicPoolId::new(row.number(0)?),
    name: row.text(1)?.to_owned(),
    cluster: ClusterId::new(row.number(2)?),
    prefixes: row.parse_list(3)?,
    reserved: row.parse_list(4)?,
    revision: row.number(5)?,
});

record!(
    Eip,
    EipId,
    "EIP",
    "eips",
    "id, name, tenant, pool, cluster, prefix, vpc, instance, subnet, inside, revision, meter, nptv6",
    row => Eip {
        id: EipId::new(row.number(0)?),
        name: row.text(1)?.to_owned(),
        tenant: TenantId::new(row.number(2)?),
        pool: PublicPoolId::new(row.number(3)?),
        cluster: ClusterId::new(row.number(4)?),
        prefix: row.parse(5)?,
        attachment: match row.opt_int(6)? {
            Some(vpc) => Some(EipAttachment {
                vpc: VpcId::new(vpc.unsigned_abs()),
                target: match row.opt_int(7)? {
                    Some(instance) => EipTarget::Instance(InstanceId::new(instance.unsigned_abs())),
                    None => EipTarget::Subnet(SubnetId::new(row.number(8)?)),
                },
                inside: row.parse(9)?,
            }),
            None => None,
        },
        meter: meter(row, 11)?,
        nptv6: row.int(12)? != 0,
        revision: row.number(10)?,
    }
);

record!(
    NatGateway,
    NatGatewayId,
    "NAT gateway",
    "nat_gateways",
    "id, name, vpc, pool, cluster, addresses, sessions, blocks, filtering, revision, mapping, nat64_prefix",
    row => NatGateway {
        id: NatGatewayId::new(row.number(0)?),
        name: row.text(1)?.to_owned(),
        vpc: VpcId::new(row.number(2)?),
        pool: PublicPoolId::new(row.number(3)?),
        cluster: ClusterId::new(row.number(4)?),
        addresses: row.parse_list(5)?,
        sessions: row.unsigned(6)?,
        blocks: row.unsigned(7)?,
        filtering: row.parse(8)?,
        mapping: row.parse(10)?,
        nat64_prefix: row.parse_opt(11)?,
        revision: row.number(9)?,
    }
);

record!(
    Meter,
    MeterId,
    "meter",
    "meters",
    "id, name, tenant, in_kbps, in_burst, out_kbps, out_burst, revision",
    row => Meter {
        id: MeterId::new(row.number(0)?),
        name: row.text(1)?.to_owned(),
        tenant: TenantId::new(row.number(2)?),
        inward: meter_rate(row, 3)?,
        outward: meter_rate(row, 5)?,
        revision: row.number(7)?,
    }
);

record!(
    Service,
    ServiceId,
    "service",
    "services",
    "id, name, vpc, seed_high, seed_low, any_tenant, tenants, revision",
    row => Service {
        id: ServiceId::new(row.number(0)?),
        name: row.text(1)?.to_owned(),
        vpc: VpcId::new(row.number(2)?),
        seed: [row.number(3)?, row.number(4)?],
        any_tenant: row.int(5)? != 0,
        tenants: row.parse_list::<u64>(6)?.into_iter().map(TenantId::new).collect(),
        revision: row.number(7)?,
    }
);

record!(
    StoredMember,
    MemberId,
    "member",
    "service_members",
    "id, service, instance, name, host, number, mac, status, draining, evidence, since_ms, revision",
    row => StoredMember {
        id: MemberId::new(row.number(0)?),
        service: ServiceId::new(row.number(1)?),
        instance: InstanceId::new(row.number(2)?),
        name: row.text(3)?.to_owned(),
        host: HostId::new(row.number(4)?),
        number: row.unsigned(5)?,
        mac: MacAddr::from_u64(row.number(6)?),
        status: row.parse(7)?,
        draining: row.int(8)? != 0,
        evidence: row.text(9)?.to_owned(),
        since_ms: row.number(10)?,
        revision: row.number(11)?,
    }
);

record!(Mount, MountId, "mount", "mounts", "id, name, vpc, subnet, service, ipv4, ipv6, identity, revision", row => Mount {
    id: MountId::new(row.number(0)?),
    name: row.text(1)?.to_owned(),
    vpc: VpcId::new(row.number(2)?),
    subnet: SubnetId::new(row.number(3)?),
    service: ServiceId::new(row.number(4)?),
    ipv4: row.parse_opt(5)?,
    ipv6: row.parse_opt(6)?,
    identity: identity(row.int(7)?)?,
    revision: row.number(8)?,
});

/// Rate and burst of one direction of a meter; the rate is in this column, and the burst in the next one.
fn meter_rate(row: &Row, column: usize) -> Result<Option<MeterRate>> {
    let Some(kbps) = row.opt_int(column)? else { return Ok(None) };
    let burst = row.opt_int(column + 1)?.map(i64::unsigned_abs);
    Ok(Some(MeterRate { kbps: kbps.unsigned_abs(), burst }))
}

/// The meter that an object has.
fn meter(row: &Row, column: usize) -> Result<Option<MeterId>> {
    Ok(row.opt_int(column)?.map(|id| MeterId::new(id.unsigned_abs())))
}

record!(
    PortForward,
    PortForwardId,
    "port forward",
    "port_forwards",
    "id, name, nat_gateway, vpc, cluster, protocol, address, port, instance, inside, inside_port, revision",
    row => PortForward {
        id: PortForwardId::new(row.number(0)?),
        name: row.text(1)?.to_owned(),
        nat_gateway: NatGatewayId::new(row.number(2)?),
        vpc: VpcId::new(row.number(3)?),
        cluster: ClusterId::new(row.number(4)?),
        protocol: row.parse(5)?,
        address: ipv4(row.int(6)?)?,
        port: row.unsigned(7)?,
        instance: InstanceId::new(row.number(8)?),
        inside: ipv4(row.int(9)?)?,
        inside_port: row.unsigned(10)?,
        revision: row.number(11)?,
    }
);

/// A column with a number below 256, or NULL.
fn opt_byte(row: &Row, column: usize) -> Result<Option<u8>> {
    let number = row.opt_int(column)?.map(u8::try_from).transpose();
    number.map_err(|_| StoreError::Corrupt(format!("column {column} of {row:?} is not below 256")))
}

/// Decodes the identity of a set of security groups.
pub(crate) fn identity(number: i64) -> Result<u16> {
    u16::try_from(number).map_err(|_| StoreError::Corrupt(format!("identity {number}")))
}

record!(NetworkClass, NetworkClassId, "network class", "network_classes", "id, name, policy, revision, is_default", row => NetworkClass {
    id: NetworkClassId::new(row.number(0)?),
    name: row.text(1)?.to_owned(),
    policy: policy(row.text(2)?)?,
    revision: row.number(3)?,
    is_default: row.int(4)? != 0,
});

/// The network class of an instance: its id is in this column, and its policy in the next one.
fn network_class(row: &Row, column: usize) -> Result<Option<Box<ClassOfInstance>>> {
    let Some(id) = row.opt_int(column)? else { return Ok(None) };
    let policy = policy(row.text(column + 1)?)?;
    Ok(Some(Box::new(ClassOfInstance { id: NetworkClassId::new(id.unsigned_abs()), policy })))
}

/// Decodes the column `network_classes.policy`.
fn policy(text: &str) -> Result<CreditPolicy> {
    serde_json::from_str(text).map_err(|e| StoreError::Corrupt(format!("policy of a network class: {e}")))
}

/// Decodes the column `instances.options`.
fn options(text: &str) -> Result<InstanceOptions> {
    serde_json::from_str(text).map_err(|e| StoreError::Corrupt(format!("options of an instance: {e}")))
}

/// The migration of an instance.
fn migration(row: &Row) -> Result<Option<Box<Migration>>> {
    let Some(id) = row.opt_int(11)? else { return Ok(None) };
    let key = <[u8; 32]>::try_from(row.blob(13)?);
    let key = key.map_err(|_| StoreError::Corrupt("the key of a migration has not 32 bytes".into()))?;
    Ok(Some(Box::new(Migration {
        id: id.unsigned_abs(),
        to: HostId::new(row.number(12)?),
        key: MigrationKey::new(key),
        sessions: row.parse(14)?,
    })))
}

fn kbps(number: i64) -> Result<u32> {
    u32::try_from(number).map_err(|_| StoreError::Corrupt(format!("a threshold of {number} kbit/s")))
}

fn vni(number: u64) -> Result<Vni> {
    let small = u32::try_from(number).map_err(|_| StoreError::Corrupt(format!("VNI {number}")))?;
    Vni::new(small).map_err(|e| StoreError::Corrupt(e.to_string()))
}

/// Decodes an IPv4 address, which its column stores as a number.
pub(crate) fn ipv4(number: i64) -> Result<Ipv4Addr> {
    u32::try_from(number)
        .map(Ipv4Addr::from)
        .map_err(|_| StoreError::Corrupt(format!("IPv4 address {number}")))
}

/// Decodes an IPv6 address, which its column stores as 16 bytes.
pub(crate) fn ipv6(bytes: &[u8]) -> Result<Ipv6Addr> {
    <[u8; 16]>::try_from(bytes)
        .map(Ipv6Addr::from)
        .map_err(|_| StoreError::Corrupt(format!("IPv6 address of {} bytes", bytes.len())))
}

/// The column `clusters.vips` is a list of `SLOT=ADDRESS`, followed by `@GATEWAY` if the vIP has a preferred
/// owner.
impl fmt::Display for ClusterVip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.slot, self.address)?;
        self.preferred_owner.map_or(Ok(()), |owner| write!(f, "@{}", owner.get()))
    }
}

impl FromStr for ClusterVip {
    type Err = StoreError;
    fn from_str(text: &str) -> Result<Self> {
        let corrupt = || StoreError::Corrupt(format!("`{text}` as a vIP"));
        let (slot, rest) = text.split_once('=').ok_or_else(corrupt)?;
        let (address, owner) = rest.split_once('@').map_or((rest, None), |(a, owner)| (a, Some(owner)));
        let preferred_owner =
            owner.map(|owner| owner.parse().map(GatewayId::new)).transpose().map_err(|_| corrupt())?;
        let (slot, address) = (slot.parse().map_err(|_| corrupt())?, address.parse());
        Ok(Self { slot, address: address.map_err(|_| corrupt())?, preferred_owner })
    }
}

/// The columns that [`key`] reads, in order.
pub(crate) const KEY_COLUMNS: &str = "id, cluster, secret, not_before_ms, not_after_ms";

/// Decodes a key of a cluster.
pub(crate) fn key(row: &Row) -> Result<ClusterKey> {
    // No error text may contain the bytes of the secret.
    let damaged = || StoreError::Corrupt("a cluster key is damaged".into());
    let secret = <[u8; 32]>::try_from(row.blob(2).map_err(|_| damaged())?).map_err(|_| damaged())?;
    Ok(ClusterKey {
        id: row.number(0).ok().and_then(|id| u32::try_from(id).ok()).ok_or_else(damaged)?,
        cluster: ClusterId::new(row.number(1).map_err(|_| damaged())?),
        secret: Secret::new(secret),
        not_before_ms: row.number(3).map_err(|_| damaged())?,
        not_after_ms: row.number(4).map_err(|_| damaged())?,
    })
}

/// Reads the object with this id.
pub(crate) async fn get<T: Record>(q: &mut dyn Query, id: T::Id) -> Result<T> {
    let sql = format!("SELECT {} FROM {} WHERE id = $1", T::COLUMNS, T::TABLE);
    match q.row(&sql, args![T::number(id)]).await? {
        Some(row) => T::decode(&row),
        None => Err(StoreError::NotFound { kind: T::KIND, id: id.to_string() }),
    }
}

/// Reads the objects whose columns have these values, in order of id.
pub(crate) async fn find<T: Record>(q: &mut dyn Query, filters: Vec<(&str, Value)>) -> Result<Vec<T>> {
    let mut conditions = Vec::new();
    let mut args = Vec::new();
    for (column, value) in filters {
        args.push(value);
        conditions.push(format!("{column} = ${}", args.len()));
    }
    let condition = if conditions.is_empty() { "1 = 1".to_owned() } else { conditions.join(" AND ") };
    let sql = format!("SELECT {} FROM {} WHERE {condition} ORDER BY id", T::COLUMNS, T::TABLE);
    q.rows(&sql, args).await?.iter().map(T::decode).collect()
}

/// Reads the object whose columns have these values; they must be unique.
pub(crate) async fn find_one<T: Record>(q: &mut dyn Query, filters: Vec<(&str, Value)>) -> Result<Option<T>> {
    Ok(find(q, filters).await?.into_iter().next())
}

/// A page of objects; filters without a value do not filter.
pub(crate) async fn page<T: Record>(
    q: &mut dyn Query,
    filters: Vec<(&str, Option<Value>)>,
    page: Page,
) -> Result<Vec<T>> {
    let mut sql = format!("SELECT {} FROM {} WHERE id > $1", T::COLUMNS, T::TABLE);
    let after = i64::try_from(page.after).unwrap_or(i64::MAX);
    let mut args = args![after, page.limit.min(MAX_PAGE)];
    for (column, value) in filters {
        if let Some(value) = value {
            args.push(value);
            sql.push_str(&format!(" AND {column} = ${}", args.len()));
        }
    }
    sql.push_str(" ORDER BY id LIMIT $2");
    q.rows(&sql, args).await?.iter().map(T::decode).collect()
}

/// Checks the revision that a caller expects (`If-Match`).
pub(crate) fn check_revision<T: Record>(id: T::Id, object: &T, expected: Option<u64>) -> Result<()> {
    match expected {
        Some(expected) if expected != object.revision() => {
            Err(StoreError::Stale { kind: T::KIND, id: id.to_string(), current: object.revision(), expected })
        }
        _ => Ok(()),
    }
}
