//! Objects as rows: which columns, and how they read.

use crate::backend::Query;
use crate::value::{Row, Value, args};
use crate::{
    Cluster, Gateway, Host, Instance, Page, Peering, Result, Route, RouteTable, RouteTarget, StoreError,
    Subnet, Tenant, Vpc,
};
use sluice_types::{
    ClusterId, GatewayId, HostId, InstanceId, MacAddr, PeeringId, RouteId, RouteTableId, SubnetId, TenantId,
    Vni, VpcId,
};
use std::net::{Ipv4Addr, Ipv6Addr};

/// The MAC is made from the id.
pub(crate) const DERIVED_MAC: u8 = 1;
/// The IPv6 address is made from the MAC.
pub(crate) const DERIVED_IPV6: u8 = 2;

/// Largest page, whatever was asked for.
const MAX_PAGE: u32 = 65536;

/// A kind of object and its table.
pub(crate) trait Record: Sized + Send {
    type Id: std::fmt::Display + Copy + Send;
    /// As errors name it.
    const KIND: &'static str;
    const TABLE: &'static str;
    /// Columns that [`Record::decode`] wants, the id first.
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

record!(Cluster, ClusterId, "cluster", "clusters", "id, name, vips, revision", row => Cluster {
    id: ClusterId::new(row.number(0)?),
    name: row.text(1)?.to_owned(),
    vips: row.parse_list(2)?,
    revision: row.number(3)?,
});

record!(Gateway, GatewayId, "gateway", "gateways", "id, name, cluster, vtep4, vtep6, revision", row => Gateway {
    id: GatewayId::new(row.number(0)?),
    name: row.text(1)?.to_owned(),
    cluster: ClusterId::new(row.number(2)?),
    vtep4: row.parse_opt(3)?,
    vtep6: row.parse_opt(4)?,
    revision: row.number(5)?,
});

record!(Host, HostId, "host", "hosts", "id, name, vtep, agent, revision", row => Host {
    id: HostId::new(row.number(0)?),
    name: row.text(1)?.to_owned(),
    vtep: row.parse(2)?,
    agent: row.int(3)? != 0,
    revision: row.number(4)?,
});

record!(Vpc, VpcId, "VPC", "vpcs", "id, name, tenant, vni, cluster, mtu, revision", row => Vpc {
    id: VpcId::new(row.number(0)?),
    name: row.text(1)?.to_owned(),
    tenant: TenantId::new(row.number(2)?),
    vni: vni(row.number(3)?)?,
    cluster: ClusterId::new(row.number(4)?),
    mtu: u16::try_from(row.int(5)?).map_err(|_| StoreError::Corrupt("an MTU above 65535".into()))?,
    revision: row.number(6)?,
});

record!(Subnet, SubnetId, "subnet", "subnets", "id, name, vpc, ipv4, ipv6, dns, revision", row => Subnet {
    id: SubnetId::new(row.number(0)?),
    name: row.text(1)?.to_owned(),
    vpc: VpcId::new(row.number(2)?),
    ipv4: row.parse_opt(3)?,
    ipv6: row.parse_opt(4)?,
    dns: row.parse_list(5)?,
    revision: row.number(6)?,
});

record!(
    Instance,
    InstanceId,
    "instance",
    "instances",
    "id, name, vpc, subnet, host, mac, ipv4, ipv6, revision",
    row => Instance {
        id: InstanceId::new(row.number(0)?),
        name: row.text(1)?.to_owned(),
        vpc: VpcId::new(row.number(2)?),
        subnet: SubnetId::new(row.number(3)?),
        host: HostId::new(row.number(4)?),
        mac: MacAddr::from_u64(row.number(5)?),
        ipv4: row.opt_int(6)?.map(ipv4).transpose()?,
        ipv6: row.opt_blob(7)?.map(ipv6).transpose()?,
        revision: row.number(8)?,
    }
);

record!(RouteTable, RouteTableId, "route table", "route_tables", "id, name, vpc, revision", row => RouteTable {
    id: RouteTableId::new(row.number(0)?),
    name: row.text(1)?.to_owned(),
    vpc: VpcId::new(row.number(2)?),
    revision: row.number(3)?,
});

record!(Route, RouteId, "route", "routes", "id, route_table, prefix, peering, revision", row => Route {
    id: RouteId::new(row.number(0)?),
    table: RouteTableId::new(row.number(1)?),
    prefix: row.parse(2)?,
    target: match row.opt_int(3)? {
        Some(peering) => RouteTarget::Peering(PeeringId::new(peering.unsigned_abs())),
        None => RouteTarget::Drop,
    },
    revision: row.number(4)?,
});

record!(Peering, PeeringId, "peering", "peerings", "id, name, a, b, revision", row => Peering {
    id: PeeringId::new(row.number(0)?),
    name: row.text(1)?.to_owned(),
    a: VpcId::new(row.number(2)?),
    b: VpcId::new(row.number(3)?),
    revision: row.number(4)?,
});

fn vni(number: u64) -> Result<Vni> {
    let small = u32::try_from(number).map_err(|_| StoreError::Corrupt(format!("VNI {number}")))?;
    Vni::new(small).map_err(|e| StoreError::Corrupt(e.to_string()))
}

/// An IPv4 address as its column holds it.
pub(crate) fn ipv4(number: i64) -> Result<Ipv4Addr> {
    u32::try_from(number)
        .map(Ipv4Addr::from)
        .map_err(|_| StoreError::Corrupt(format!("IPv4 address {number}")))
}

/// An IPv6 address as its column holds it.
pub(crate) fn ipv6(bytes: &[u8]) -> Result<Ipv6Addr> {
    <[u8; 16]>::try_from(bytes)
        .map(Ipv6Addr::from)
        .map_err(|_| StoreError::Corrupt(format!("IPv6 address of {} bytes", bytes.len())))
}

/// The object with this id.
pub(crate) async fn get<T: Record>(q: &mut dyn Query, id: T::Id) -> Result<T> {
    let sql = format!("SELECT {} FROM {} WHERE id = $1", T::COLUMNS, T::TABLE);
    match q.row(&sql, args![T::number(id)]).await? {
        Some(row) => T::decode(&row),
        None => Err(StoreError::NotFound { kind: T::KIND, id: id.to_string() }),
    }
}

/// Objects where all these columns have these values, in order of id.
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

/// The one object where these columns have these values.
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

/// If-Match.
pub(crate) fn check_revision<T: Record>(id: T::Id, object: &T, expected: Option<u64>) -> Result<()> {
    match expected {
        Some(expected) if expected != object.revision() => {
            Err(StoreError::Stale { kind: T::KIND, id: id.to_string(), current: object.revision(), expected })
        }
        _ => Ok(()),
    }
}
