//! Subnets: creation and deletion.

use super::{check_unused, further, nat_gateways, peerings, removals};
use crate::check::{self, Difference};
use crate::rows::{Record, check_revision, find, get};
use crate::value::{args, list};
use crate::write::Write;
use crate::{Change, Conflict, Created, NewSubnet, Result, Route, Subnet, Vpc};
use sluice_types::{IpNet, SubnetId, overlap};

pub(crate) async fn create(w: &mut Write, new: &NewSubnet) -> Result<Created<Subnet>> {
    check::name("subnet", &new.name)?;
    check::subnet(new)?;
    let vpc: Vpc = get(w.q(), new.vpc).await?;
    let mut subnets: Vec<Subnet> = find(w.q(), vec![("vpc", vpc.id.get().into())]).await?;
    if let Some(existing) = subnets.iter().find(|subnet| subnet.name == new.name) {
        Difference::default()
            .optional("ipv4", existing.ipv4, new.ipv4)
            .optional("ipv6", existing.ipv6, new.ipv6)
            .given("ipv6_mode", existing.ipv6_mode, new.ipv6_mode)
            .field("dns", list(&existing.dns), list(&new.dns))
            .conflict("subnet", &new.name)?;
        return Ok(Created::Existing(existing.clone()));
    }
    let given: Vec<IpNet> = new.ipv4.map(IpNet::V4).into_iter().chain(new.ipv6.map(IpNet::V6)).collect();
    check_overlaps(w, &vpc, &subnets, &given, new).await?;
    let subnet = Subnet {
        id: SubnetId::new(w.id()),
        name: new.name.clone(),
        vpc: vpc.id,
        ipv4: new.ipv4,
        ipv6: new.ipv6,
        ipv6_mode: new.ipv6.map(|_| new.ipv6_mode.unwrap_or_default()),
        dns: new.dns.clone(),
        revision: w.revision,
    };
    insert(w, &subnet).await?;
    subnets.push(subnet.clone());
    let peers = peerings::peers(w.q(), vpc.id).await?;
    w.push(&Change::SubnetUpserted { vpc, subnets, subnet: subnet.clone(), peers })?;
    Ok(Created::New(subnet))
}

/// Checks that the prefixes overlap neither subnets and routes of the VPC, nor subnets of its peers and of
/// their peers, that none contains a prefix that is delegated to an instance, and that none is delegated in a peer.
async fn check_overlaps(
    w: &mut Write,
    vpc: &Vpc,
    subnets: &[Subnet],
    given: &[IpNet],
    new: &NewSubnet,
) -> Result<()> {
    if let Some((given, existing, subnet)) = check::first_overlap(given, subnets) {
        return Err(Conflict::PrefixOverlap {
            given: given.to_string(),
            existing: existing.to_string(),
            subnet: subnet.name.clone(),
        }
        .into());
    }
    for other in peerings::peers_and_their_peers(w.q(), vpc.id).await? {
        let theirs: Vec<Subnet> = find(w.q(), vec![("vpc", other.id.get().into())]).await?;
        if let Some((given, existing, _)) = check::first_overlap(given, &theirs) {
            return Err(Conflict::PeeringOverlap {
                a: vpc.name.clone(),
                b: other.name,
                a_prefix: given.to_string(),
                b_prefix: existing.to_string(),
            }
            .into());
        }
    }
    for net in given {
        nat_gateways::check_not_nat64(w.q(), vpc.id, *net, overlap).await?;
    }
    let owner = || format!("subnet `{}` of VPC `{}`", new.name, vpc.name);
    for peer in peerings::peers(w.q(), vpc.id).await? {
        for net in given {
            nat_gateways::check_not_nat64(w.q(), peer.id, *net, overlap).await?;
        }
        further::check_not_delegated(w.q(), peer.id, given, owner).await?;
    }
    for net in given {
        if let Some((prefix, instance)) = further::delegated_in(w.q(), vpc.id, *net).await? {
            let (given, existing) = (net.to_string(), prefix.to_string());
            return Err(Conflict::SubnetIsDelegated { given, existing, instance }.into());
        }
    }
    let sql = format!(
        "SELECT {} FROM routes WHERE route_table IN (SELECT id FROM route_tables WHERE vpc = $1)",
        Route::COLUMNS
    );
    for row in w.q().rows(&sql, args![vpc.id.get()]).await? {
        let route = Route::decode(&row)?;
        if let Some(existing) = given.iter().find(|net| net.contains(&route.prefix)) {
            return Err(Conflict::RouteInsideSubnet {
                prefix: route.prefix.to_string(),
                subnet: new.name.clone(),
                existing: existing.to_string(),
            }
            .into());
        }
    }
    Ok(())
}

async fn insert(w: &mut Write, subnet: &Subnet) -> Result<()> {
    let first = |net: Option<IpNet>| net.map(|net| check::usable(&net).0.to_be_bytes().to_vec());
    let (first4, first6) = (first(subnet.ipv4.map(IpNet::V4)), first(subnet.ipv6.map(IpNet::V6)));
    let sql = "INSERT INTO subnets \
               (id, name, vpc, ipv4, ipv6, ipv6_mode, dns, revision, next4, low4, next6, low6) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
    let values = args![
        subnet.id.get(),
        subnet.name.as_str(),
        subnet.vpc.get(),
        subnet.ipv4.map(|net| net.to_string()),
        subnet.ipv6.map(|net| net.to_string()),
        subnet.ipv6_mode.map(|mode| mode.to_string()),
        list(&subnet.dns),
        subnet.revision,
        first4.clone(),
        first4,
        first6.clone(),
        first6,
    ];
    w.q().run(sql, values).await.map(drop)
}

pub(crate) async fn delete(w: &mut Write, id: SubnetId, expected: Option<u64>) -> Result<u64> {
    let subnet: Subnet = get(w.q(), id).await?;
    check_revision(id, &subnet, expected)?;
    if let Some(user) = any_instance(w, &subnet).await? {
        let user = format!("instance `{user}`");
        return Err(Conflict::InUse { kind: "subnet", name: subnet.name, user }.into());
    }
    for net in check::prefixes(&subnet) {
        if let Some((prefix, instance)) = further::delegated_in(w.q(), subnet.vpc, net).await? {
            let user = format!("instance `{instance}`, to which {prefix} is delegated");
            return Err(Conflict::InUse { kind: "subnet", name: subnet.name, user }.into());
        }
    }
    let mounts = "SELECT name FROM mounts WHERE subnet = $1 LIMIT 1";
    check_unused(w.q(), ("subnet", &subnet.name, id.get()), "mount", mounts).await?;
    let eips = "SELECT name FROM eips WHERE subnet = $1 LIMIT 1";
    check_unused(w.q(), ("subnet", &subnet.name, id.get()), "EIP", eips).await?;
    let vpc: Vpc = get(w.q(), subnet.vpc).await?;
    w.q().run("DELETE FROM subnets WHERE id = $1", args![id.get()]).await?;
    let subnets = find(w.q(), vec![("vpc", vpc.id.get().into())]).await?;
    let peers = peerings::peers(w.q(), vpc.id).await?;
    let (nodes, name) = (removals::gateways_of(w.q(), &vpc).await?, subnet.name.clone());
    w.push(&Change::SubnetRemoved { vpc, subnets, subnet, peers })?;
    removals::record(w, ("subnet", id.get(), &name), nodes, &[]).await
}

/// The name of an instance of the subnet. There is no index by subnet, but each instance has an address in
/// each family of its subnet, so the index by IPv4 address finds it. For a subnet with IPv6 only, the
/// instances of the VPC are searched, because derived addresses are not indexed.
async fn any_instance(w: &mut Write, subnet: &Subnet) -> Result<Option<String>> {
    let (sql, values) = match subnet.ipv4 {
        Some(net) => (
            "SELECT name FROM instances WHERE vpc = $1 AND ipv4 IS NOT NULL AND ipv4 BETWEEN $2 AND $3 LIMIT 1",
            args![subnet.vpc.get(), u32::from(net.network()), u32::from(net.broadcast())],
        ),
        None => (
            "SELECT name FROM instances WHERE vpc = $1 AND subnet = $2 LIMIT 1",
            args![subnet.vpc.get(), subnet.id.get()],
        ),
    };
    match w.q().row(sql, values).await? {
        Some(row) => Ok(Some(row.text(0)?.to_owned())),
        None => Ok(None),
    }
}
