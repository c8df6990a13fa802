//! NAT gateways: creation with allocation of their addresses, changes, deletion. Their addresses are those that EIPs could
//! have, too: `eips.rs` allocates and checks them.
//!
//! Addresses that a NAT gateway loses, by a change or by its deletion, are held like those of a deleted EIP.

use super::eips;
use super::removals::{self, Hold};
use super::vpcs::check_not_moving;
use super::{check_unused, further, peerings, port_forwards};
use crate::backend::Query;
use crate::check::{self, Difference, invalid};
use crate::rows::{Record, check_revision, find, find_one, get};
use crate::value::{Row, Value, args, list};
use crate::write::Write;
use crate::{
    Change, Cluster, Conflict, Created, NatAddresses, NatGateway, NatGatewayFilter, NatGatewayUpdate,
    NewNatGateway, PublicPool, Result, Route, RouteTarget, StoreError, Subnet, Vpc,
};
use sluice_types::{
    IpNet, Ipv6Net, NAT_BLOCKS_DEFAULT, NAT_BLOCKS_MAX, NAT_SESSIONS_DEFAULT, NAT_SESSIONS_MAX, NatFiltering,
    NatGatewayId, NatMapping, VpcId, check_nat_addresses, is_nat64_prefix, overlap,
};
use std::net::{IpAddr, Ipv4Addr};

/// The kind of object in errors.
const KIND: &str = "NAT gateway";

/// The columns by which lists are filtered.
pub(crate) fn filters(filter: &NatGatewayFilter) -> Vec<(&'static str, Option<Value>)> {
    vec![
        ("vpc", filter.vpc.map(|id| id.get().into())),
        ("pool", filter.pool.map(|id| id.get().into())),
        ("name", filter.name.as_deref().map(Into::into)),
    ]
}

/// The addresses of NAT gateways from one number to another, in ascending order, each with its NAT gateway, whose name
/// others may have too.
pub(super) async fn addresses_between(
    q: &mut dyn Query,
    first: u32,
    last: u32,
) -> Result<Vec<(Ipv4Addr, String)>> {
    let sql = "SELECT a.address, n.name, n.id FROM nat_addresses a JOIN nat_gateways n ON n.id = a.nat_gateway \
               WHERE a.address BETWEEN $1 AND $2 ORDER BY a.address";
    let rows = q.rows(sql, args![first, last]).await?;
    let read = |row: &Row| {
        let owner = format!("NAT gateway `{}` ({})", row.text(1)?, NatGatewayId::new(row.number(2)?));
        Ok((crate::rows::ipv4(row.int(0)?)?, owner))
    };
    rows.iter().map(read).collect()
}

/// Checks the limits of a request.
fn check_limits(sessions: Option<u32>, blocks: Option<u8>) -> Result<()> {
    if let Some(sessions) = sessions.filter(|sessions| !(1..=NAT_SESSIONS_MAX).contains(sessions)) {
        return Err(invalid(
            "sessions",
            format!("expected 1 to {NAT_SESSIONS_MAX} sessions, not {sessions}"),
        ));
    }
    if let Some(blocks) = blocks.filter(|blocks| !(1..=NAT_BLOCKS_MAX).contains(blocks)) {
        return Err(invalid("blocks", format!("expected 1 to {NAT_BLOCKS_MAX} blocks, not {blocks}")));
    }
    Ok(())
}

/// Checks that the mapping and the filtering of a NAT gateway do not contradict each other: a port that several ports of an instance
/// share has one of them only for each remote endpoint.
fn check_mapping(mapping: NatMapping, filtering: NatFiltering) -> Result<()> {
    if mapping == NatMapping::EndpointDependent && filtering == NatFiltering::EndpointIndependent {
        let detail = "`endpoint-dependent` mapping contradicts `endpoint-independent` filtering: a packet of another remote endpoint \
                      belongs to none of the connections that share the port";
        return Err(invalid("mapping", detail));
    }
    Ok(())
}

/// The requested prefix of NAT64.
fn nat64_prefix(wanted: Option<IpNet>) -> Result<Option<Ipv6Net>> {
    let Some(wanted) = wanted else { return Ok(None) };
    match wanted {
        IpNet::V6(prefix) if prefix.prefix_len() == 96 && is_nat64_prefix(prefix.addr()) => Ok(Some(prefix)),
        _ => Err(invalid(
            "nat64_prefix",
            format!(
                "expected a unicast IPv6 prefix of length 96 whose bits 64 to 71 are 0, as 64:ff9b::/96, not {wanted}"
            ),
        )),
    }
}

/// Checks that packets to a prefix of NAT64 go to the Internet: it overlaps no subnet of the VPC or of its peers, and no route to
/// something else, except one that is shorter, no prefix that is delegated to an instance, and no public address of the cloud.
async fn check_nat64(q: &mut dyn Query, vpc: &Vpc, name: &str, prefix: Option<Ipv6Net>) -> Result<()> {
    let Some(prefix) = prefix.map(IpNet::V6) else { return Ok(()) };
    let taken = |existing: String| -> Result<()> {
        Err(Conflict::Nat64PrefixTaken { prefix: prefix.to_string(), nat_gateway: name.to_owned(), existing }
            .into())
    };
    let subnets: Vec<Subnet> = find(q, vec![("vpc", vpc.id.get().into())]).await?;
    if let Some((_, existing, subnet)) = check::first_overlap(&[prefix], &subnets) {
        return taken(format!("{existing} of subnet `{}`", subnet.name));
    }
    for peer in peerings::peers(q, vpc.id).await? {
        let subnets: Vec<Subnet> = find(q, vec![("vpc", peer.id.get().into())]).await?;
        if let Some((_, existing, subnet)) = check::first_overlap(&[prefix], &subnets) {
            return taken(format!(
                "{existing} of subnet `{}` of the peered VPC `{}`",
                subnet.name, peer.name
            ));
        }
    }
    for pool in find::<PublicPool>(q, vec![]).await? {
        if let Some(existing) = pool.prefixes.iter().find(|theirs| overlap(theirs, &prefix)) {
            return taken(format!("{existing} of public pool `{}`", pool.name));
        }
    }
    if let Some((existing, instance)) = further::delegated_in(q, vpc.id, prefix).await? {
        return taken(format!("{existing}, which is delegated to instance `{instance}`"));
    }
    let sql = format!(
        "SELECT {} FROM routes WHERE route_table IN (SELECT id FROM route_tables WHERE vpc = $1)",
        Route::COLUMNS
    );
    for row in q.rows(&sql, args![vpc.id.get()]).await? {
        let route = Route::decode(&row)?;
        if prefix.contains(&route.prefix) && route.target != RouteTarget::Internet {
            return taken(format!("route {}", route.prefix));
        }
    }
    Ok(())
}

/// Checks a new prefix of a subnet or a route against the prefix of NAT64 of a VPC that has a route to it. `conflicts` compares
/// the new prefix with that of NAT64.
pub(super) async fn check_not_nat64(
    q: &mut dyn Query,
    vpc: VpcId,
    new: IpNet,
    conflicts: impl Fn(&IpNet, &IpNet) -> bool,
) -> Result<()> {
    let Some(nat) = find_one::<NatGateway>(q, vec![("vpc", vpc.get().into())]).await? else { return Ok(()) };
    let Some(prefix) = nat.nat64_prefix.filter(|prefix| conflicts(&new, &IpNet::V6(*prefix))) else {
        return Ok(());
    };
    let (prefix, nat_gateway) = (prefix.to_string(), nat.name);
    Err(Conflict::Nat64PrefixTaken { prefix, nat_gateway, existing: new.to_string() }.into())
}

/// Checks that no VPC has a prefix of NAT64 with an address in common with new public prefixes.
pub(super) async fn check_none_has_nat64(q: &mut dyn Query, prefixes: &[IpNet]) -> Result<()> {
    for nat in find::<NatGateway>(q, vec![]).await? {
        let Some(prefix) = nat.nat64_prefix.map(IpNet::V6) else { continue };
        if let Some(existing) = prefixes.iter().find(|theirs| overlap(theirs, &prefix)) {
            let (prefix, existing) = (prefix.to_string(), existing.to_string());
            return Err(Conflict::Nat64PrefixTaken { prefix, nat_gateway: nat.name, existing }.into());
        }
    }
    Ok(())
}

/// The requested addresses in ascending order.
///
/// # Errors
/// If the list is empty or too long, has an address twice, or has an IPv6 address.
fn ascending(wanted: &[IpAddr]) -> Result<Vec<Ipv4Addr>> {
    check_nat_addresses(wanted.len()).map_err(|detail| invalid("addresses", detail))?;
    let mut addresses = Vec::with_capacity(wanted.len());
    for address in wanted {
        let IpAddr::V4(v4) = address else {
            return Err(invalid(
                address,
                format!("{address} is an ipv6 address, and NAT gateways have ipv4 only"),
            ));
        };
        addresses.push(*v4);
    }
    addresses.sort_unstable();
    match addresses.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(invalid(pair[0], format!("{} is given twice", pair[0]))),
        None => Ok(addresses),
    }
}

/// The addresses of a NAT gateway after a request, in ascending order. `has` are those that it has.
async fn choose(
    q: &mut dyn Query,
    pool: &PublicPool,
    has: &[Ipv4Addr],
    wanted: &NatAddresses,
) -> Result<Vec<Ipv4Addr>> {
    let number = match wanted {
        NatAddresses::These(these) => {
            let addresses = ascending(these)?;
            for new in addresses.iter().filter(|address| !has.contains(address)) {
                eips::check_requested(q, pool, IpAddr::V4(*new).into()).await?;
            }
            return Ok(addresses);
        }
        NatAddresses::Number(number) => *number,
    };
    check_nat_addresses(number).map_err(|detail| invalid("addresses", detail))?;
    let mut addresses = has[..number.min(has.len())].to_vec();
    if number > has.len() {
        addresses.extend(eips::allocate_ipv4(q, pool, number - has.len()).await?);
        addresses.sort_unstable();
    }
    Ok(addresses)
}

pub(crate) async fn create(w: &mut Write, new: &NewNatGateway) -> Result<Created<NatGateway>> {
    check::name(KIND, &new.name)?;
    check_limits(new.sessions, new.blocks)?;
    let nat64 = nat64_prefix(new.nat64_prefix)?;
    let vpc: Vpc = get(w.q(), new.vpc).await?;
    let pool: PublicPool = get(w.q(), new.pool).await?;
    if let Some(existing) = find_one::<NatGateway>(w.q(), vec![("vpc", vpc.id.get().into())]).await? {
        if existing.name != new.name {
            let (vpc, nat_gateway) = (vpc.name, existing.name);
            return Err(Conflict::VpcHasNatGateway { vpc, nat_gateway }.into());
        }
        let difference = Difference::default().field("pool", existing.pool, pool.id);
        match &new.addresses {
            None => difference,
            Some(NatAddresses::Number(number)) => {
                difference.field("the number of addresses", existing.addresses.len(), number)
            }
            Some(NatAddresses::These(these)) => {
                difference.field("addresses", list(&existing.addresses), list(&ascending(these)?))
            }
        }
        .given("sessions", Some(existing.sessions), new.sessions)
        .given("blocks", Some(existing.blocks), new.blocks)
        .given("filtering", Some(existing.filtering), new.filtering)
        .given("mapping", Some(existing.mapping), new.mapping)
        .given("nat64_prefix", existing.nat64_prefix, nat64)
        .conflict(KIND, &new.name)?;
        return Ok(Created::Existing(existing));
    }
    let (filtering, mapping) = (new.filtering.unwrap_or_default(), new.mapping.unwrap_or_default());
    check_mapping(mapping, filtering)?;
    check_not_moving(&vpc)?;
    if vpc.cluster != pool.cluster {
        let (own, theirs): (Cluster, Cluster) =
            (get(w.q(), pool.cluster).await?, get(w.q(), vpc.cluster).await?);
        let (pool, cluster, vpc, vpc_cluster) = (pool.name, own.name, vpc.name, theirs.name);
        return Err(Conflict::NatGatewayAcrossClusters { pool, cluster, vpc, vpc_cluster }.into());
    }
    check_nat64(w.q(), &vpc, &new.name, nat64).await?;
    let wanted = new.addresses.clone().unwrap_or(NatAddresses::Number(1));
    let addresses = choose(w.q(), &pool, &[], &wanted).await?;
    let nat_gateway = NatGateway {
        id: NatGatewayId::new(w.id()),
        name: new.name.clone(),
        vpc: vpc.id,
        pool: pool.id,
        cluster: pool.cluster,
        addresses,
        sessions: new.sessions.unwrap_or(NAT_SESSIONS_DEFAULT),
        blocks: new.blocks.unwrap_or(NAT_BLOCKS_DEFAULT),
        filtering,
        mapping,
        nat64_prefix: nat64,
        revision: w.revision,
    };
    let sql = "INSERT INTO nat_gateways (id, name, vpc, pool, cluster, addresses, sessions, blocks, filtering, revision) \
               VALUES ($1, $2, $3, $4, $5, '', 0, 0, '', 0)";
    let NatGateway { id, vpc, pool, cluster, .. } = nat_gateway;
    let values = args![id.get(), nat_gateway.name.as_str(), vpc.get(), pool.get(), cluster.get()];
    w.q().run(sql, values).await?;
    save(w, &nat_gateway, &[]).await?;
    Ok(Created::New(nat_gateway))
}

/// Stores what can change of a NAT gateway, and publishes it. `had` are its addresses before.
async fn save(w: &mut Write, nat_gateway: &NatGateway, had: &[Ipv4Addr]) -> Result<()> {
    let NatGateway { id, addresses, .. } = nat_gateway;
    let sql = "UPDATE nat_gateways SET name = $2, addresses = $3, sessions = $4, blocks = $5, filtering = $6, revision = $7, \
               mapping = $8, nat64_prefix = $9 WHERE id = $1";
    let values = args![
        id.get(),
        nat_gateway.name.as_str(),
        list(addresses),
        nat_gateway.sessions,
        u32::from(nat_gateway.blocks),
        nat_gateway.filtering.to_string(),
        nat_gateway.revision,
        nat_gateway.mapping.to_string(),
        nat_gateway.nat64_prefix.map(|prefix| prefix.to_string()),
    ];
    w.q().run(sql, values).await?;
    for gone in had.iter().filter(|address| !addresses.contains(address)) {
        w.q().run("DELETE FROM nat_addresses WHERE address = $1", args![u32::from(*gone)]).await?;
    }
    for new in addresses.iter().filter(|address| !had.contains(address)) {
        let sql = "INSERT INTO nat_addresses (address, nat_gateway) VALUES ($1, $2)";
        w.q().run(sql, args![u32::from(*new), id.get()]).await?;
    }
    w.push(&Change::NatGatewayUpserted(nat_gateway.clone()))
}

pub(crate) async fn update(
    w: &mut Write,
    id: NatGatewayId,
    new: &NatGatewayUpdate,
    expected: Option<u64>,
) -> Result<NatGateway> {
    let before: NatGateway = get(w.q(), id).await?;
    check_revision(id, &before, expected)?;
    check_limits(new.sessions, new.blocks)?;
    let name = new.name.clone().unwrap_or_else(|| before.name.clone());
    check::name(KIND, &name)?;
    let addresses = match &new.addresses {
        Some(wanted) => {
            let pool: PublicPool = get(w.q(), before.pool).await?;
            choose(w.q(), &pool, &before.addresses, wanted).await?
        }
        None => before.addresses.clone(),
    };
    let sessions = new.sessions.unwrap_or(before.sessions);
    let blocks = new.blocks.unwrap_or(before.blocks);
    let filtering = new.filtering.unwrap_or(before.filtering);
    let mapping = new.mapping.unwrap_or(before.mapping);
    check_mapping(mapping, filtering)?;
    let nat64_prefix = new.nat64_prefix.map_or(Ok(before.nat64_prefix), nat64_prefix)?;
    if nat64_prefix != before.nat64_prefix {
        let vpc: Vpc = get(w.q(), before.vpc).await?;
        check_nat64(w.q(), &vpc, &name, nat64_prefix).await?;
    }
    let mut after =
        NatGateway { name, addresses, sessions, blocks, filtering, mapping, nat64_prefix, ..before.clone() };
    if after == before {
        return Ok(before);
    }
    let is_gone = |address: &&Ipv4Addr| !after.addresses.contains(address);
    let gone: Vec<Ipv4Addr> = before.addresses.iter().filter(is_gone).copied().collect();
    port_forwards::check_addresses(w.q(), &gone).await?;
    after.revision = w.revision;
    save(w, &after, &before.addresses).await?;
    if !gone.is_empty() {
        let nodes = removals::gateways_of_clusters(w.q(), [after.cluster]).await?;
        removals::record(w, ("address of NAT gateway", id.get(), &after.name), nodes, &holds(&gone)).await?;
    }
    Ok(after)
}

fn holds(addresses: &[Ipv4Addr]) -> Vec<Hold> {
    addresses.iter().map(|address| Hold::Public(IpNet::from(IpAddr::V4(*address)))).collect()
}

pub(crate) async fn delete(w: &mut Write, id: NatGatewayId, expected: Option<u64>) -> Result<u64> {
    let nat_gateway: NatGateway = get(w.q(), id).await?;
    check_revision(id, &nat_gateway, expected)?;
    let object = (KIND, nat_gateway.name.as_str(), id.get());
    let forwards = "SELECT name FROM port_forwards WHERE nat_gateway = $1 ORDER BY id LIMIT 1";
    check_unused(w.q(), object, "port forward", forwards).await?;
    w.q().run("DELETE FROM nat_addresses WHERE nat_gateway = $1", args![id.get()]).await?;
    w.q().run("DELETE FROM nat_gateways WHERE id = $1", args![id.get()]).await?;
    let nodes = removals::gateways_of_clusters(w.q(), [nat_gateway.cluster]).await?;
    let (name, holds) = (nat_gateway.name.clone(), holds(&nat_gateway.addresses));
    w.push(&Change::NatGatewayRemoved(nat_gateway))?;
    removals::record(w, (KIND, id.get(), &name), nodes, &holds).await
}

/// Checks that a VPC that is to move has no NAT gateway: only the gateways of its cluster get the packets to its addresses.
pub(super) async fn check_movable(q: &mut dyn Query, vpc: &Vpc) -> Result<()> {
    let found = find_one::<NatGateway>(q, vec![("vpc", vpc.id.get().into())]).await?;
    let Some(NatGateway { name: nat_gateway, cluster, .. }) = found else { return Ok(()) };
    let cluster = get::<Cluster>(q, cluster).await?.name;
    Err(StoreError::from(Conflict::NatGatewayStays { vpc: vpc.name.clone(), nat_gateway, cluster }))
}
