//! EIPs: creation with allocation of the address, attachment, deletion.
//!
//! An EIP keeps its addresses until it is deleted. Its deletion is a removal of all gateways of the cluster, whether it is
//! attached or not: a gateway may still have an attachment that has ended, and a gateway that acknowledges the deletion has
//! acknowledged everything before it, too.

use super::alloc::Family;
use super::further::{bytes, range};
use super::removals::{self, HeldKind, Hold};
use super::vpcs::check_not_moving;
use super::{meters, nat_gateways, port_forwards};
use crate::backend::Query;
use crate::check::{self, Difference, invalid};
use crate::rows::{Record, check_revision, find, find_one, get, ipv6};
use crate::value::{Row, Value, args};
use crate::write::Write;
use crate::{
    Attach, Change, Cluster, Conflict, Created, EIP_LENGTH_MAX, EIP_LENGTH_MIN, Eip, EipAttachment,
    EipFilter, EipTarget, EipUpdate, Instance, NewEip, PublicPool, Result, StoreError, Subnet, Tenant, Vpc,
};
use sluice_types::{AddressFamily, EipId, InstanceId, IpNet, MeterId, TenantId, VpcId, overlap};
use std::net::{IpAddr, Ipv4Addr};

/// An address, or a prefix of more than one.
pub(super) fn text(net: IpNet) -> String {
    if is_single(net) { net.addr().to_string() } else { net.to_string() }
}

fn is_single(net: IpNet) -> bool {
    net.prefix_len() == net.max_prefix_len()
}

/// The columns by which lists are filtered.
pub(crate) fn filters(filter: &EipFilter) -> Vec<(&'static str, Option<Value>)> {
    vec![
        ("tenant", filter.tenant.map(|id| id.get().into())),
        ("pool", filter.pool.map(|id| id.get().into())),
        ("vpc", filter.vpc.map(|id| id.get().into())),
        ("instance", filter.instance.map(|id| id.get().into())),
        ("meter", filter.meter.map(|id| id.get().into())),
        ("name", filter.name.as_deref().map(Into::into)),
    ]
}

/// Why nothing may have an address of a pool's prefix as its only public address; `None` if it may, and for a prefix of
/// more than one address.
pub(super) fn reserved(pool: IpNet, eip: IpNet) -> Option<&'static str> {
    let address = eip.addr();
    // The last two lengths have no such addresses (RFC 3021, RFC 6164).
    if !is_single(eip) || pool.prefix_len() + 1 >= pool.max_prefix_len() {
        return None;
    }
    match pool {
        _ if address == pool.network() && address.is_ipv4() => Some("network"),
        // Routers that have the prefix on a link receive what is sent to it (RFC 4291 section 2.6.1).
        _ if address == pool.network() => Some("subnet-router anycast"),
        IpNet::V4(v4) if address == IpAddr::V4(v4.broadcast()) => Some("broadcast"),
        _ => None,
    }
}

/// The last of the EIPs that `condition` selects whose addresses `column` begins not behind `net`, if it has an address in
/// common with it: these EIPs have none in common with each other, so no other overlaps if this one does not.
async fn overlapping(
    q: &mut dyn Query,
    condition: &str,
    mut values: Vec<Value>,
    (column, net): (&str, IpNet),
) -> Result<Option<Eip>> {
    let (family, last) = (Family::of(net).number(), bytes(range(net).1));
    values.extend(args![family, last]);
    let at = values.len();
    let sql = format!(
        "SELECT {} FROM eips WHERE {condition} AND family = ${} AND {column} <= ${at} ORDER BY {column} DESC LIMIT 1",
        Eip::COLUMNS,
        at - 1
    );
    q.row(&sql, values).await?.map(|row| Eip::decode(&row)).transpose()
}

/// The addresses of NAT gateways in a prefix, each with its NAT gateway.
async fn of_nat_gateways(q: &mut dyn Query, net: IpNet) -> Result<Vec<(Ipv4Addr, String)>> {
    match net {
        IpNet::V4(v4) => nat_gateways::addresses_between(q, v4.network().into(), v4.broadcast().into()).await,
        IpNet::V6(_) => Ok(Vec::new()),
    }
}

/// Checks that a requested address or prefix is in the pool and free.
pub(super) async fn check_requested(q: &mut dyn Query, pool: &PublicPool, wanted: IpNet) -> Result<()> {
    check::prefix(wanted)?;
    let address = text(wanted);
    let Some(of) = pool.prefixes.iter().find(|prefix| prefix.contains(&wanted)) else {
        return Err(Conflict::OutsidePool { address, pool: pool.name.clone() }.into());
    };
    if let Some(role) = reserved(*of, wanted) {
        return Err(Conflict::ReservedAddress { address, prefix: of.to_string(), role }.into());
    }
    if let Some(reserved) = pool.reserved.iter().find(|prefix| overlap(prefix, &wanted)) {
        let (reserved, pool) = (reserved.to_string(), pool.name.clone());
        return Err(Conflict::ReservedInPool { address, reserved, pool }.into());
    }
    if let Some(other) = overlapping(q, "1 = 1", vec![], ("first", wanted)).await?
        && overlap(&other.prefix, &wanted)
    {
        let (existing, owner) = (text(other.prefix), format!("EIP `{}` ({})", other.name, other.id));
        return Err(Conflict::PublicAddressTaken { address, existing, owner }.into());
    }
    if let Some((existing, owner)) = of_nat_gateways(q, wanted).await?.into_iter().next() {
        let existing = existing.to_string();
        return Err(Conflict::PublicAddressTaken { address, existing, owner }.into());
    }
    removals::check_none_held(q, HeldKind::Public, &[wanted]).await
}

/// The lowest free prefix of a length in a prefix of a pool. `used` are the ranges that are not free, in ascending order.
fn lowest_free(pool: IpNet, length: u8, used: &[(u128, u128)]) -> Option<IpNet> {
    let bits = pool.max_prefix_len() - length;
    let (mut first, last) = range(pool);
    let net = |first: u128| {
        let address = match pool {
            IpNet::V4(_) => IpAddr::V4(u32::try_from(first).ok()?.into()),
            IpNet::V6(_) => IpAddr::V6(first.into()),
        };
        IpNet::new(address, length).ok()
    };
    let mut used = used.iter().peekable();
    loop {
        let end = first | (1u128.checked_shl(bits.into())?).wrapping_sub(1);
        if end > last {
            return None;
        }
        while used.next_if(|(_, until)| *until < first).is_some() {}
        let taken = used.peek().filter(|(from, _)| *from <= end).map(|(_, until)| *until);
        let found = net(first)?;
        let occupied = match taken {
            Some(until) => until,
            None if reserved(pool, found).is_some() => end,
            None => return Some(found),
        };
        first = ((occupied >> bits).checked_add(1)?).checked_mul(1 << bits)?;
    }
}

fn has_ipv4(pool: &PublicPool) -> bool {
    pool.prefixes.iter().any(|prefix| prefix.addr().is_ipv4())
}

/// The lowest free addresses of a pool for a NAT gateway, at least one, in ascending order within each prefix of the pool.
pub(super) async fn allocate_ipv4(
    q: &mut dyn Query,
    pool: &PublicPool,
    number: usize,
) -> Result<Vec<Ipv4Addr>> {
    if !has_ipv4(pool) {
        let text =
            format!("public pool `{}` has no IPv4 address, and NAT gateways have no other ones", pool.name);
        return Err(invalid("pool", text));
    }
    let free = allocate(q, pool, AddressFamily::Ipv4, 32, number).await?;
    let v4 = |net: IpNet| match net.addr() {
        IpAddr::V4(v4) => Some(v4),
        IpAddr::V6(_) => None,
    };
    Ok(free.into_iter().filter_map(v4).collect())
}

/// The lowest free prefixes of a family and length.
async fn allocate(
    q: &mut dyn Query,
    pool: &PublicPool,
    family: AddressFamily,
    length: u8,
    number: usize,
) -> Result<Vec<IpNet>> {
    let held = removals::held_of(q, HeldKind::Public).await?;
    let fits = |prefix: &&IpNet| AddressFamily::of(prefix) == family && prefix.prefix_len() <= length;
    let fitting: Vec<&IpNet> = pool.prefixes.iter().filter(fits).collect();
    let mut found = Vec::with_capacity(number);
    for prefix in &fitting {
        let (first, last) = range(**prefix);
        let sql = "SELECT first, last FROM eips WHERE family = $1 AND first BETWEEN $2 AND $3";
        let values = args![Family::of(**prefix).number(), bytes(first), bytes(last)];
        let read = |row: &Row| Ok((ipv6(row.blob(0)?)?.into(), ipv6(row.blob(1)?)?.into()));
        let mut used = q.rows(sql, values).await?.iter().map(read).collect::<Result<Vec<_>>>()?;
        let others = held.iter().map(|(net, _)| net).chain(&pool.reserved);
        used.extend(others.filter(|net| overlap(net, prefix)).map(|net| range(*net)));
        let of_nat = of_nat_gateways(q, **prefix).await?;
        used.extend(of_nat.into_iter().map(|(address, _)| range(IpAddr::V4(address).into())));
        used.sort_unstable();
        while found.len() < number
            && let Some(free) = lowest_free(**prefix, length, &used)
        {
            let at = used.partition_point(|taken| *taken < range(free));
            used.insert(at, range(free));
            found.push(free);
        }
    }
    if found.len() == number {
        return Ok(found);
    }
    let (field, what) = match family {
        AddressFamily::Ipv4 => ("family", "IPv4 address".to_owned()),
        AddressFamily::Ipv6 if length == 128 => ("family", "IPv6 address".to_owned()),
        AddressFamily::Ipv6 => ("prefix_length", format!("IPv6 prefix of length {length}")),
    };
    if fitting.is_empty() {
        return Err(invalid(field, format!("no prefix of public pool `{}` contains an {what}", pool.name)));
    }
    let mut what = match found.len() {
        0 => format!("no free {what}"),
        free => format!("only {free} free of the {number} addresses"),
    };
    if held.iter().any(|(net, _)| fitting.iter().any(|prefix| overlap(net, prefix))) {
        what.push_str("; gateways may still have addresses of deleted objects, which `removals list` shows");
    }
    Err(Conflict::PoolFull { pool: pool.name.clone(), what }.into())
}

/// Family and length of a requested EIP.
///
/// # Errors
/// Fields of the request contradict each other.
fn shape(new: &NewEip, pool: &PublicPool) -> Result<(AddressFamily, u8)> {
    let of = |address: IpAddr| AddressFamily::of(&IpNet::from(address));
    let family = match (new.family, new.address) {
        (Some(family), Some(address)) if family != of(address) => {
            return Err(invalid("family", format!("{address} is no {family} address")));
        }
        (_, Some(address)) => of(address),
        (Some(family), None) => family,
        (None, None) if new.prefix_length.is_none() && has_ipv4(pool) => AddressFamily::Ipv4,
        (None, None) => AddressFamily::Ipv6,
    };
    match (family, new.prefix_length) {
        (AddressFamily::Ipv4, None | Some(32)) => Ok((family, 32)),
        (AddressFamily::Ipv4, Some(_)) => {
            Err(invalid("prefix_length", "an IPv4 EIP is a single address, so its length is 32"))
        }
        (AddressFamily::Ipv6, None) => Ok((family, 128)),
        (AddressFamily::Ipv6, Some(length @ (EIP_LENGTH_MIN..=EIP_LENGTH_MAX | 128))) => Ok((family, length)),
        (AddressFamily::Ipv6, Some(length)) => {
            let text = format!(
                "an IPv6 EIP is a single address (128), or a prefix of length {EIP_LENGTH_MIN} to {EIP_LENGTH_MAX} as sites \
                 have them (RFC 6177), not {length}"
            );
            Err(invalid("prefix_length", text))
        }
    }
}

pub(crate) async fn create(w: &mut Write, new: &NewEip) -> Result<Created<Eip>> {
    check::name("EIP", &new.name)?;
    get::<Tenant>(w.q(), new.tenant).await?;
    let pool: PublicPool = get(w.q(), new.pool).await?;
    let (family, length) = shape(new, &pool)?;
    let wanted = new.address.map(|address| IpNet::new(address, length)).transpose();
    let wanted = wanted.map_err(|error| invalid("prefix_length", error.to_string()))?;
    if new.nptv6 == Some(true) && (family == AddressFamily::Ipv4 || length == 128) {
        let text = "a single address is translated as it is: only an IPv6 prefix is mapped by NPTv6";
        return Err(invalid("nptv6", text));
    }
    check_meter(w, new.meter, new.tenant, &new.name).await?;
    if let Some(existing) = named(w.q(), new).await? {
        let meter = meters::name(w.q(), existing.meter).await?;
        let target = |attachment: Option<EipAttachment>| attachment.map(|attachment| attachment.target);
        Difference::default()
            .field("pool", existing.pool, pool.id)
            .given("address", Some(text(existing.prefix)), wanted.map(text))
            .given("family", Some(AddressFamily::of(&existing.prefix)), new.family)
            .given("prefix_length", Some(existing.prefix.prefix_len()), new.prefix_length)
            .given("the attachment", target(existing.attachment), new.attach.map(|attach| attach.target))
            .given(
                "inside",
                existing.attachment.map(|attachment| text(attachment.inside)),
                new.attach.and_then(|attach| attach.inside).map(|inside| inside.to_string()),
            )
            .given("nptv6", Some(existing.nptv6), new.nptv6)
            .given("meter", meter, meters::name(w.q(), new.meter).await?)
            .conflict("EIP", &new.name)?;
        return Ok(Created::Existing(existing));
    }
    let prefix = match wanted {
        Some(wanted) => check_requested(w.q(), &pool, wanted).await.map(|()| wanted)?,
        None => allocate(w.q(), &pool, family, length, 1).await?[0],
    };
    let mut eip = Eip {
        id: EipId::new(w.id()),
        name: new.name.clone(),
        tenant: new.tenant,
        pool: pool.id,
        cluster: pool.cluster,
        prefix,
        nptv6: new.nptv6.unwrap_or(false),
        attachment: None,
        meter: new.meter,
        revision: w.revision,
    };
    if let Some(attach) = &new.attach {
        eip.attachment = Some(attachment(w.q(), &eip, attach).await?);
    }
    let (first, last) = range(prefix);
    let sql = "INSERT INTO eips (id, name, tenant, pool, cluster, prefix, family, first, last, revision, nptv6) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
    let values = args![
        eip.id.get(),
        eip.name.as_str(),
        eip.tenant.get(),
        pool.id.get(),
        pool.cluster.get(),
        prefix.to_string(),
        Family::of(prefix).number(),
        bytes(first),
        bytes(last),
        eip.revision,
        i64::from(eip.nptv6),
    ];
    w.q().run(sql, values).await?;
    save(w, &eip).await?;
    Ok(Created::New(eip))
}

/// Checks that an EIP may have a meter.
async fn check_meter(w: &mut Write, meter: Option<MeterId>, tenant: TenantId, eip: &str) -> Result<()> {
    meters::check_owner(w.q(), meter, tenant, || format!("EIP `{eip}`")).await
}

async fn named(q: &mut dyn Query, new: &NewEip) -> Result<Option<Eip>> {
    find_one(q, vec![("tenant", new.tenant.get().into()), ("name", new.name.as_str().into())]).await
}

/// Stores name, attachment and meter of an EIP, and publishes it.
async fn save(w: &mut Write, eip: &Eip) -> Result<()> {
    let at = eip.attachment;
    let (instance, subnet) = match at.map(|at| at.target) {
        Some(EipTarget::Instance(id)) => (Some(id.get() as i64), None),
        Some(EipTarget::Subnet(id)) => (None, Some(id.get() as i64)),
        None => (None, None),
    };
    let inside = at.map(|at| range(at.inside));
    let sql = "UPDATE eips SET name = $2, vpc = $3, instance = $4, subnet = $5, inside = $6, inside_first = $7, \
               inside_last = $8, meter = $9, revision = $10 WHERE id = $1";
    let values = args![
        eip.id.get(),
        eip.name.as_str(),
        at.map(|at| at.vpc.get() as i64),
        instance,
        subnet,
        at.map(|at| at.inside.to_string()),
        inside.map(|(first, _)| bytes(first)),
        inside.map(|(_, last)| bytes(last)),
        eip.meter.map(|meter| meter.get() as i64),
        eip.revision,
    ];
    w.q().run(sql, values).await?;
    w.push(&Change::EipUpserted(eip.clone()))
}

/// The VPC and the addresses of what an EIP is to be attached to.
async fn resolve(q: &mut dyn Query, eip: &Eip, attach: &Attach) -> Result<EipAttachment> {
    let net = eip.prefix;
    let (family, length) = (if net.addr().is_ipv4() { "IPv4" } else { "IPv6" }, net.prefix_len());
    let target = attach.target;
    match target {
        EipTarget::Instance(id) => {
            let instance: Instance = get(q, id).await?;
            if !is_single(net) {
                let message = format!("EIP `{}` is the prefix {net}: attach it to a subnet", eip.name);
                return Err(invalid("instance", message));
            }
            let of_family = |address: &IpAddr| address.is_ipv4() == net.addr().is_ipv4();
            let inside = match attach.inside {
                Some(inside) if !instance.all_addresses().any(|address| address == inside) => {
                    let message = format!("instance `{}` does not have {inside}", instance.name);
                    return Err(invalid("inside", message));
                }
                Some(inside) if !of_family(&inside) => {
                    return Err(invalid(
                        "inside",
                        format!("{inside} is no {family} address, as {} is", text(net)),
                    ));
                }
                Some(inside) => inside,
                None => instance.addresses().find(of_family).ok_or_else(|| {
                    invalid("instance", format!("instance `{}` has no {family} address", instance.name))
                })?,
            };
            Ok(EipAttachment { vpc: instance.vpc, target, inside: inside.into() })
        }
        EipTarget::Subnet(id) => {
            let subnet: Subnet = get(q, id).await?;
            if is_single(net) {
                let message =
                    format!("EIP `{}` is the address {}: attach it to an instance", eip.name, net.addr());
                return Err(invalid("subnet", message));
            }
            if attach.inside.is_some() {
                return Err(invalid("inside", "the addresses of a subnet are those of its IPv6 prefix"));
            }
            let inside = subnet.ipv6.filter(|inside| inside.prefix_len() == length).ok_or_else(|| {
                let message =
                    format!("subnet `{}` has no IPv6 prefix of length {length}, as {net} is", subnet.name);
                invalid("subnet", message)
            })?;
            Ok(EipAttachment { vpc: subnet.vpc, target, inside: inside.into() })
        }
    }
}

/// What an EIP is attached to after a request.
async fn attachment(q: &mut dyn Query, eip: &Eip, attach: &Attach) -> Result<EipAttachment> {
    let found = resolve(q, eip, attach).await?;
    let vpc: Vpc = get(q, found.vpc).await?;
    if vpc.tenant != eip.tenant {
        return Err(Conflict::EipAcrossTenants { eip: eip.name.clone(), vpc: vpc.name }.into());
    }
    check_not_moving(&vpc)?;
    if vpc.cluster != eip.cluster {
        let (own, theirs): (Cluster, Cluster) = (get(q, eip.cluster).await?, get(q, vpc.cluster).await?);
        let (eip, cluster, vpc_cluster) = (eip.name.clone(), own.name, theirs.name);
        return Err(Conflict::EipAcrossClusters { eip, cluster, vpc: vpc.name, vpc_cluster }.into());
    }
    check_inside_free(q, vpc.id, Some(eip.id), found.inside).await?;
    port_forwards::check_none_to(q, vpc.id, found.inside).await?;
    Ok(found)
}

/// Checks that no EIP but `own` stands for addresses of a VPC.
pub(super) async fn check_inside_free(
    q: &mut dyn Query,
    vpc: VpcId,
    own: Option<EipId>,
    inside: IpNet,
) -> Result<()> {
    let values = args![vpc.get(), own.map_or(0, EipId::get)];
    let other = overlapping(q, "vpc = $1 AND id <> $2", values, ("inside_first", inside)).await?;
    let theirs = other.and_then(|other| Some((other.name, other.attachment?.inside)));
    if let Some((eip, existing)) = theirs.filter(|(_, existing)| overlap(existing, &inside)) {
        let (inside, existing) = (text(inside), text(existing));
        return Err(Conflict::InsideTaken { inside, existing, eip }.into());
    }
    Ok(())
}

pub(crate) async fn update(w: &mut Write, id: EipId, new: &EipUpdate, expected: Option<u64>) -> Result<Eip> {
    let mut eip: Eip = get(w.q(), id).await?;
    check_revision(id, &eip, expected)?;
    let name = new.name.clone().unwrap_or_else(|| eip.name.clone());
    check::name("EIP", &name)?;
    let at = match &new.attach {
        None => eip.attachment,
        Some(None) => None,
        Some(Some(attach)) => Some(attachment(w.q(), &eip, attach).await?),
    };
    let meter = new.meter.unwrap_or(eip.meter);
    check_meter(w, meter, eip.tenant, &name).await?;
    if (&name, at, meter) == (&eip.name, eip.attachment, eip.meter) {
        return Ok(eip);
    }
    if name != eip.name {
        let same = vec![("tenant", eip.tenant.get().into()), ("name", name.as_str().into())];
        if let Some(other) = find_one::<Eip>(w.q(), same).await? {
            Difference::default().field("the id", other.id, id).conflict("EIP", &name)?;
        }
    }
    (eip.name, eip.attachment, eip.meter, eip.revision) = (name, at, meter, w.revision);
    save(w, &eip).await?;
    Ok(eip)
}

pub(crate) async fn delete(w: &mut Write, id: EipId, expected: Option<u64>) -> Result<u64> {
    let eip: Eip = get(w.q(), id).await?;
    check_revision(id, &eip, expected)?;
    w.q().run("DELETE FROM eips WHERE id = $1", args![id.get()]).await?;
    let nodes = removals::gateways_of_clusters(w.q(), [eip.cluster]).await?;
    let (name, hold) = (eip.name.clone(), Hold::Public(eip.prefix));
    w.push(&Change::EipRemoved(eip))?;
    removals::record(w, ("EIP", id.get(), &name), nodes, &[hold]).await
}

/// Detaches all EIPs from an instance that is deleted.
pub(super) async fn detach_from(w: &mut Write, instance: InstanceId) -> Result<()> {
    for mut eip in find::<Eip>(w.q(), vec![("instance", instance.get().into())]).await? {
        (eip.attachment, eip.revision) = (None, w.revision);
        save(w, &eip).await?;
    }
    Ok(())
}

/// Checks that an instance keeps the addresses to which EIPs are attached.
pub(super) async fn check_addresses(q: &mut dyn Query, after: &Instance) -> Result<()> {
    for eip in find::<Eip>(q, vec![("instance", after.id.get().into())]).await? {
        let missing =
            |at: &EipAttachment| after.all_addresses().all(|address| IpNet::from(address) != at.inside);
        if let Some(at) = eip.attachment.filter(missing) {
            let user = format!("EIP `{}`", eip.name);
            return Err(Conflict::InUse { kind: "address", name: text(at.inside), user }.into());
        }
    }
    Ok(())
}

/// Checks that no EIP is attached to a VPC that is to move: only the gateways of its cluster get the packets to it.
pub(super) async fn check_movable(q: &mut dyn Query, vpc: &Vpc) -> Result<()> {
    let sql = "SELECT name FROM eips WHERE vpc = $1 ORDER BY id LIMIT 1";
    let Some(row) = q.row(sql, args![vpc.id.get()]).await? else { return Ok(()) };
    let (eip, cluster) = (row.text(0)?.to_owned(), get::<Cluster>(q, vpc.cluster).await?.name);
    Err(StoreError::from(Conflict::VpcHasEip { vpc: vpc.name.clone(), eip, cluster }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(pool: &str, length: u8, used: &[&str]) -> Option<String> {
        let used: Vec<_> = used.iter().map(|net| range(net.parse().unwrap())).collect();
        lowest_free(pool.parse().unwrap(), length, &used).map(|net| net.to_string())
    }

    /// Catches addresses that others have, and those that nothing can use.
    #[test]
    fn lowest_free_address_is_behind_what_is_used_and_reserved() {
        let v4 = "198.51.100.0/30";
        assert_eq!(free(v4, 32, &[]).unwrap(), "198.51.100.1/32");
        assert_eq!(free(v4, 32, &["198.51.100.1/32"]).unwrap(), "198.51.100.2/32");
        assert_eq!(free(v4, 32, &["198.51.100.1/32", "198.51.100.2/32"]), None, "the broadcast address");
        assert_eq!(free("198.51.100.0/31", 32, &[]).unwrap(), "198.51.100.0/32");
        assert_eq!(free("255.255.255.255/32", 32, &["255.255.255.255/32"]), None);
        let v6 = "2001:db8::/56";
        assert_eq!(free(v6, 128, &[]).unwrap(), "2001:db8::1/128");
        assert_eq!(free(v6, 64, &[]).unwrap(), "2001:db8::/64");
        assert_eq!(free(v6, 64, &["2001:db8::1/128", "2001:db8:0:1::/64"]).unwrap(), "2001:db8:0:2::/64");
        assert_eq!(free(v6, 60, &["2001:db8:0:1::/64"]).unwrap(), "2001:db8:0:10::/60");
        assert_eq!(free(v6, 128, &["2001:db8::/64"]).unwrap(), "2001:db8:0:1::/128");
        assert_eq!(free(v6, 56, &["2001:db8::/64"]), None);
        let top = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128";
        assert_eq!(free(top, 128, &[top]), None);
    }
}
