//! Port forwards of NAT gateways: creation and deletion.
//!
//! The instance's address is found when one is created, and is stored: the own address of an instance never changes. Its deletion
//! deletes its port forwards in the same step.

use super::eips;
use super::removals;
use crate::backend::Query;
use crate::check::{self, Difference, invalid};
use crate::rows::{Record, check_revision, find, find_one, get};
use crate::value::{Value, args};
use crate::write::Write;
use crate::{
    Change, Conflict, Created, Instance, NatGateway, NewPortForward, PortForward, PortForwardFilter, Result,
};
use sluice_types::{InstanceId, IpNet, PORT_FORWARDS_MAX, PortForwardId, VpcId};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

/// The kind of object in errors.
const KIND: &str = "port forward";

/// The columns by which lists are filtered.
pub(crate) fn filters(filter: &PortForwardFilter) -> Vec<(&'static str, Option<Value>)> {
    vec![
        ("nat_gateway", filter.nat_gateway.map(|id| id.get().into())),
        ("vpc", filter.vpc.map(|id| id.get().into())),
        ("instance", filter.instance.map(|id| id.get().into())),
        ("name", filter.name.as_deref().map(Into::into)),
    ]
}

/// The name of a port forward that a query selects.
async fn named(q: &mut dyn Query, condition: &str, values: Vec<Value>) -> Result<Option<String>> {
    let sql = format!("SELECT name FROM port_forwards WHERE {condition} ORDER BY id LIMIT 1");
    q.row(&sql, values).await?.map(|row| Ok(row.text(0)?.to_owned())).transpose()
}

/// Checks that nothing else has the endpoints of a new port forward.
async fn check_free(q: &mut dyn Query, new: &PortForward) -> Result<()> {
    let PortForward { protocol, address, port, inside, inside_port, .. } = *new;
    let text = protocol.to_string();
    let values = args![u32::from(address), text.as_str(), port];
    if let Some(forward) = named(q, "address = $1 AND protocol = $2 AND port = $3", values).await? {
        let endpoint = SocketAddrV4::new(address, port);
        return Err(Conflict::PortForwarded { protocol, endpoint, forward }.into());
    }
    let condition = "vpc = $1 AND inside = $2 AND protocol = $3 AND inside_port = $4";
    let values = args![new.vpc.get(), u32::from(inside), text.as_str(), inside_port];
    if let Some(forward) = named(q, condition, values).await? {
        let endpoint = SocketAddrV4::new(inside, inside_port);
        return Err(Conflict::EndpointForwarded { protocol, endpoint, forward }.into());
    }
    eips::check_inside_free(q, new.vpc, None, IpAddr::V4(inside).into()).await
}

/// The address of the NAT gateway that a request means.
fn outside(nat_gateway: &NatGateway, wanted: Option<IpAddr>) -> Result<Ipv4Addr> {
    let has =
        |wanted: IpAddr| nat_gateway.addresses.iter().copied().find(|address| IpAddr::V4(*address) == wanted);
    let found = wanted.map_or(nat_gateway.addresses.first().copied(), has);
    found.ok_or_else(|| {
        let wanted = wanted.map_or_else(String::new, |address| address.to_string());
        invalid("address", format!("NAT gateway `{}` does not have the address {wanted}", nat_gateway.name))
    })
}

/// The address in the VPC to which a request leads.
fn inside(nat_gateway: &NatGateway, instance: &Instance) -> Result<Ipv4Addr> {
    if instance.vpc != nat_gateway.vpc {
        let text =
            format!("instance `{}` is not in the VPC of NAT gateway `{}`", instance.name, nat_gateway.name);
        return Err(invalid("instance", text));
    }
    let none = || invalid("instance", format!("instance `{}` has no IPv4 address", instance.name));
    instance.ipv4.ok_or_else(none)
}

fn check_port(field: &'static str, port: u16) -> Result<u16> {
    if port == 0 { Err(invalid(field, "a port is 1 to 65535, not 0")) } else { Ok(port) }
}

pub(crate) async fn create(w: &mut Write, new: &NewPortForward) -> Result<Created<PortForward>> {
    check::name(KIND, &new.name)?;
    let port = check_port("port", new.port)?;
    let inside_port = check_port("inside_port", new.inside_port.unwrap_or(port))?;
    let nat_gateway: NatGateway = get(w.q(), new.nat_gateway).await?;
    let instance: Instance = get(w.q(), new.instance).await?;
    let same = vec![("nat_gateway", nat_gateway.id.get().into()), ("name", new.name.as_str().into())];
    if let Some(existing) = find_one::<PortForward>(w.q(), same).await? {
        Difference::default()
            .field("protocol", existing.protocol, new.protocol)
            .given("address", Some(IpAddr::V4(existing.address)), new.address)
            .field("port", existing.port, port)
            .field("instance", existing.instance, instance.id)
            .field("inside_port", existing.inside_port, inside_port)
            .conflict(KIND, &new.name)?;
        return Ok(Created::Existing(existing));
    }
    let forward = PortForward {
        id: PortForwardId::new(w.id()),
        name: new.name.clone(),
        nat_gateway: nat_gateway.id,
        vpc: nat_gateway.vpc,
        cluster: nat_gateway.cluster,
        protocol: new.protocol,
        address: outside(&nat_gateway, new.address)?,
        port,
        instance: instance.id,
        inside: inside(&nat_gateway, &instance)?,
        inside_port,
        revision: w.revision,
    };
    check_free(w.q(), &forward).await?;
    let sql = "SELECT COUNT(*) FROM port_forwards WHERE nat_gateway = $1";
    let row = w.q().row(sql, args![nat_gateway.id.get()]).await?;
    if row.map_or(Ok(0), |row| row.number(0))? >= PORT_FORWARDS_MAX as u64 {
        return Err(
            Conflict::TooManyPortForwards { nat_gateway: nat_gateway.name, max: PORT_FORWARDS_MAX }.into()
        );
    }
    insert(w.q(), &forward).await?;
    w.push(&Change::PortForwardCreated(forward.clone()))?;
    Ok(Created::New(forward))
}

async fn insert(q: &mut dyn Query, new: &PortForward) -> Result<()> {
    let sql = format!(
        "INSERT INTO port_forwards ({}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
        PortForward::COLUMNS
    );
    let values = args![
        new.id.get(),
        new.name.as_str(),
        new.nat_gateway.get(),
        new.vpc.get(),
        new.cluster.get(),
        new.protocol.to_string(),
        u32::from(new.address),
        new.port,
        new.instance.get(),
        u32::from(new.inside),
        new.inside_port,
        new.revision,
    ];
    q.run(&sql, values).await.map(drop)
}

async fn remove(w: &mut Write, forward: PortForward) -> Result<()> {
    w.q().run("DELETE FROM port_forwards WHERE id = $1", args![forward.id.get()]).await?;
    w.push(&Change::PortForwardRemoved(forward))
}

pub(crate) async fn delete(w: &mut Write, id: PortForwardId, expected: Option<u64>) -> Result<u64> {
    let forward: PortForward = get(w.q(), id).await?;
    check_revision(id, &forward, expected)?;
    let nodes = removals::gateways_of_clusters(w.q(), [forward.cluster]).await?;
    let name = forward.name.clone();
    remove(w, forward).await?;
    removals::record(w, (KIND, id.get(), &name), nodes, &[]).await
}

/// Deletes the port forwards to an instance that is deleted.
pub(super) async fn delete_of(w: &mut Write, instance: InstanceId) -> Result<()> {
    for forward in find::<PortForward>(w.q(), vec![("instance", instance.get().into())]).await? {
        remove(w, forward).await?;
    }
    Ok(())
}

/// Checks that a NAT gateway keeps the addresses that have port forwards. `gone` are those that it loses.
pub(super) async fn check_addresses(q: &mut dyn Query, gone: &[Ipv4Addr]) -> Result<()> {
    for address in gone {
        if let Some(forward) = named(q, "address = $1", args![u32::from(*address)]).await? {
            let user = format!("port forward `{forward}`");
            return Err(Conflict::InUse { kind: "address", name: address.to_string(), user }.into());
        }
    }
    Ok(())
}

/// Checks that no port is forwarded to the addresses of a VPC that are to get an EIP: the instance would answer by that.
pub(super) async fn check_none_to(q: &mut dyn Query, vpc: VpcId, inside: IpNet) -> Result<()> {
    let IpAddr::V4(address) = inside.addr() else { return Ok(()) };
    match named(q, "vpc = $1 AND inside = $2", args![vpc.get(), u32::from(address)]).await? {
        Some(forward) => Err(Conflict::InsideForwarded { inside: address, forward }.into()),
        None => Ok(()),
    }
}
