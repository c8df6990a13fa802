//! Mounts of services in VPCs: creation with allocation of the addresses, and deletion; the vNICs of both.

use super::alloc::{self, Avoided, Cursor, Family, Used};
use super::removals::{self, HeldAddresses, Hold};
use super::{families, further, group_sets, members, services};
use crate::backend::Query;
use crate::check::{self, Difference};
use crate::rows::{check_revision, find, find_one, get};
use crate::security::DEFAULT_GROUP;
use crate::value::{Row, Value, args, list};
use crate::write::Write;
use crate::{
    Change, Conflict, Created, Host, MAX_MOUNTS_OF_SERVICE, MAX_VNICS_OF_SERVICE, Mount, MountFilter,
    NewMount, PortsOfHost, Result, SecurityGroup, Service, ServiceConflict, StoreError, StoredMember, Subnet,
    Vnic, Vpc,
};
use sluice_types::{HostId, InstanceId, IpNet, MemberId, MountId, SecurityGroupId, ServiceId, VpcId};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The kind of object in errors.
const KIND: &str = "mount";

/// Rows of vNICs in one statement: less than any database permits.
const VNICS_PER_INSERT: usize = 1000;

const VNIC_COLUMNS: &str = "id, mount, member, service, vpc, host";

/// The columns by which lists are filtered.
pub(crate) fn filters(filter: &MountFilter) -> Vec<(&'static str, Option<Value>)> {
    vec![
        ("vpc", filter.vpc.map(|id| id.get().into())),
        ("service", filter.service.map(|id| id.get().into())),
        ("name", filter.name.as_deref().map(Into::into)),
    ]
}

/// Number of mounts of a service.
pub(super) async fn count(q: &mut dyn Query, service: ServiceId) -> Result<u64> {
    let row = q.row("SELECT COUNT(*) FROM mounts WHERE service = $1", args![service.get()]).await?;
    row.map_or(Ok(0), |row| row.number(0))
}

fn decode_vnic(row: &Row) -> Result<Vnic> {
    Ok(Vnic {
        id: InstanceId::new(row.number(0)?),
        mount: MountId::new(row.number(1)?),
        member: MemberId::new(row.number(2)?),
        service: ServiceId::new(row.number(3)?),
        vpc: VpcId::new(row.number(4)?),
        host: HostId::new(row.number(5)?),
    })
}

/// The vNICs whose column has this value, in order of id.
pub(crate) async fn vnics(q: &mut dyn Query, column: &str, value: u64) -> Result<Vec<Vnic>> {
    let sql = format!("SELECT {VNIC_COLUMNS} FROM vnics WHERE {column} = $1 ORDER BY id");
    q.rows(&sql, args![value]).await?.iter().map(decode_vnic).collect()
}

/// All vNICs, in order of id.
pub(crate) async fn all_vnics(q: &mut dyn Query) -> Result<Vec<Vnic>> {
    let sql = format!("SELECT {VNIC_COLUMNS} FROM vnics ORDER BY id");
    q.rows(&sql, vec![]).await?.iter().map(decode_vnic).collect()
}

/// A new vNIC, with the next id.
pub(super) fn vnic(w: &mut Write, mount: &Mount, member: &StoredMember) -> Vnic {
    Vnic {
        id: InstanceId::new(w.id()),
        mount: mount.id,
        member: member.id,
        service: mount.service,
        vpc: mount.vpc,
        host: member.host,
    }
}

pub(super) async fn insert_vnics(q: &mut dyn Query, vnics: &[Vnic]) -> Result<()> {
    for vnics in vnics.chunks(VNICS_PER_INSERT) {
        let (mut rows, mut values) = (Vec::new(), Vec::new());
        for Vnic { id, mount, member, service, vpc, host } in vnics {
            let at = values.len();
            let places: Vec<_> = (at + 1..=at + 6).map(|number| format!("${number}")).collect();
            rows.push(format!("({})", places.join(", ")));
            values.extend(args![id.get(), mount.get(), member.get(), service.get(), vpc.get(), host.get()]);
        }
        let sql = format!("INSERT INTO vnics ({VNIC_COLUMNS}) VALUES {}", rows.join(", "));
        q.run(&sql, values).await?;
    }
    Ok(())
}

/// Numbers of the ports of instances, by host, in VPCs that have mounts, or in one VPC.
pub(crate) async fn ports(q: &mut dyn Query, vpc: Option<VpcId>) -> Result<Vec<PortsOfHost>> {
    let (condition, values) = match vpc {
        Some(vpc) => ("= $1", args![vpc.get()]),
        None => ("IN (SELECT vpc FROM mounts)", vec![]),
    };
    let sql = format!(
        "SELECT vpc, host, COUNT(*) FROM (SELECT vpc, host FROM instances WHERE vpc {condition} UNION ALL \
         SELECT vpc, target AS host FROM migrations WHERE ended = 0 AND vpc {condition}) p \
         GROUP BY vpc, host ORDER BY vpc, host"
    );
    let decode = |row: &Row| {
        let (vpc, host) = (VpcId::new(row.number(0)?), HostId::new(row.number(1)?));
        Ok(PortsOfHost { vpc, host, ports: row.number(2)? })
    };
    q.rows(&sql, values).await?.iter().map(decode).collect()
}

/// The identity of the groups of a new mount: by default the group `default` of the VPC.
async fn identity(
    w: &mut Write,
    vpc: &Vpc,
    groups: Option<&[SecurityGroupId]>,
    max_identity: u16,
) -> Result<u16> {
    let groups = match groups {
        Some(groups) => group_sets::sorted(groups)?,
        None => {
            let default = vec![("vpc", vpc.id.get().into()), ("name", DEFAULT_GROUP.into())];
            let found: Option<SecurityGroup> = find_one(w.q(), default).await?;
            let missing = || StoreError::Corrupt(format!("{} has no group `{DEFAULT_GROUP}`", vpc.id));
            vec![found.ok_or_else(missing)?.id]
        }
    };
    if groups.is_empty() {
        return Ok(0);
    }
    for group in &groups {
        group_sets::check_group(w.q(), vpc, *group).await?;
    }
    let known = group_sets::find(w.q(), vpc.id, std::slice::from_ref(&groups)).await?;
    if let Some(identity) = known.get(&groups) {
        return Ok(*identity);
    }
    let created = group_sets::create(w, vpc, vec![groups], max_identity).await?;
    created.first().copied().ok_or_else(|| StoreError::Corrupt("no identity was assigned".into()))
}

/// The lowest address of a family that is free in the subnet; `None` if the subnet has no prefix of the family.
async fn allocate(
    q: &mut dyn Query,
    subnet: &Subnet,
    family: Family,
    held: &HeldAddresses,
) -> Result<Option<u128>> {
    let (net, columns, of_family) = match family {
        Family::V4 => (subnet.ipv4.map(IpNet::V4), "next4, low4", &held.ipv4),
        Family::V6 => (subnet.ipv6.map(IpNet::V6), "next6, low6", &held.ipv6),
    };
    let Some(net) = net else { return Ok(None) };
    let row = q.row(&format!("SELECT {columns} FROM subnets WHERE id = $1"), args![subnet.id.get()]).await?;
    let row = row.ok_or_else(|| StoreError::Corrupt(format!("no row of {}", subnet.id)))?;
    let cursor = Cursor::read(Some(net), row.opt_blob(0)?, row.opt_blob(1)?)?;
    let mut cursor = cursor.ok_or_else(|| StoreError::Corrupt(format!("{} has no cursor", subnet.id)))?;
    let mut avoided = Avoided::default();
    avoided.addresses.extend(of_family.keys());
    for (prefix, _) in held.prefixes.iter().filter(|(prefix, _)| net.contains(prefix)) {
        avoided.add_range(further::range(*prefix));
    }
    let used = Used { vpc: subnet.vpc, family, subnet: cursor.subnet, is_empty: false };
    let taken = alloc::take(q, used, &mut cursor, 1, &avoided).await?;
    let address = taken.front().copied().ok_or_else(|| alloc::subnet_full(subnet, &net))?;
    let sql = match family {
        Family::V4 => "UPDATE subnets SET next4 = $2, low4 = $3 WHERE id = $1",
        Family::V6 => "UPDATE subnets SET next6 = $2, low6 = $3 WHERE id = $1",
    };
    let values = args![subnet.id.get(), further::bytes(cursor.next), further::bytes(cursor.low)];
    q.run(sql, values).await?;
    Ok(Some(address))
}

/// The addresses of a new mount, of which nothing else has any.
async fn addresses(
    w: &mut Write,
    subnet: &Subnet,
    new: &NewMount,
) -> Result<(Option<Ipv4Addr>, Option<Ipv6Addr>)> {
    let held = HeldAddresses::read(w.q(), subnet.vpc).await?;
    for address in new.ipv4.map(IpAddr::V4).into_iter().chain(new.ipv6.map(IpAddr::V6)) {
        check::unicast(address)?;
        check::address(subnet, address)?;
        further::check_mountable(w.q(), subnet, address, &held).await?;
    }
    let ipv4 = match new.ipv4 {
        None => allocate(w.q(), subnet, Family::V4, &held).await?.map(|number| Ipv4Addr::from(number as u32)),
        given => given,
    };
    let ipv6 = match new.ipv6 {
        None => allocate(w.q(), subnet, Family::V6, &held).await?.map(Ipv6Addr::from),
        given => given,
    };
    Ok((ipv4, ipv6))
}

/// How an existing mount differs from a request with its name.
async fn check_same(w: &mut Write, existing: &Mount, new: &NewMount) -> Result<()> {
    let groups = match &new.security_groups {
        None => None,
        Some(groups) => Some(list(&group_sets::sorted(groups)?)),
    };
    let sets = group_sets::with_identities(w.q(), existing.vpc, &[existing.identity]).await?;
    let has = sets.first().map_or_else(String::new, |set| list(&set.groups));
    let text = |list: String| if list.is_empty() { "empty".to_owned() } else { list };
    Difference::default()
        .field("subnet", existing.subnet, new.subnet)
        .field("service", existing.service, new.service)
        .given("ipv4", existing.ipv4, new.ipv4)
        .given("ipv6", existing.ipv6, new.ipv6)
        .given("security_groups", Some(text(has)), groups.map(text))
        .conflict(KIND, &existing.name)
}

/// Checks that the VPC may have a mount of the service, with these members.
async fn check_possible(w: &mut Write, vpc: &Vpc, service: &Service, members: &[StoredMember]) -> Result<()> {
    let owner: Vpc = get(w.q(), service.vpc).await?;
    if !services::permits(service, owner.tenant, vpc.tenant) {
        let (service, vpc) = (service.name.clone(), vpc.name.clone());
        return Err(ServiceConflict::TenantNotPermitted { service, vpc }.into());
    }
    let same = vec![("vpc", vpc.id.get().into()), ("service", service.id.get().into())];
    if let Some(other) = find_one::<Mount>(w.q(), same).await? {
        let (service, vpc, mount) = (service.name.clone(), vpc.name.clone(), other.name);
        return Err(ServiceConflict::MountedAlready { service, vpc, mount }.into());
    }
    let mounts = count(w.q(), service.id).await? + 1;
    if mounts > MAX_MOUNTS_OF_SERVICE {
        let (service, max) = (service.name.clone(), MAX_MOUNTS_OF_SERVICE);
        return Err(ServiceConflict::TooManyMounts { service, max }.into());
    }
    if mounts * members.len() as u64 > MAX_VNICS_OF_SERVICE {
        let (service, max) = (service.name.clone(), MAX_VNICS_OF_SERVICE);
        return Err(ServiceConflict::TooManyVnics { service, max }.into());
    }
    let clusters = families::clusters(w.q(), vpc).await?;
    for member in members {
        let host: Host = get(w.q(), member.host).await?;
        clusters.iter().try_for_each(|cluster| families::check_host(cluster, &vpc.name, &host))?;
    }
    Ok(())
}

pub(crate) async fn create(w: &mut Write, new: &NewMount, max_identity: u16) -> Result<Created<Mount>> {
    check::name(KIND, &new.name)?;
    let vpc: Vpc = get(w.q(), new.vpc).await?;
    let named = vec![("vpc", vpc.id.get().into()), ("name", new.name.as_str().into())];
    if let Some(existing) = find_one::<Mount>(w.q(), named).await? {
        check_same(w, &existing, new).await?;
        return Ok(Created::Existing(existing));
    }
    let subnets: Vec<Subnet> = find(w.q(), vec![("vpc", vpc.id.get().into())]).await?;
    let Some(subnet) = subnets.iter().find(|subnet| subnet.id == new.subnet) else {
        let foreign: Subnet = get(w.q(), new.subnet).await?;
        return Err(Conflict::ForeignSubnet { subnet: foreign.name, vpc: vpc.name }.into());
    };
    let service: Service = get(w.q(), new.service).await?;
    let of_service = members::of_service(w.q(), service.id).await?;
    check_possible(w, &vpc, &service, &of_service).await?;
    let (ipv4, ipv6) = addresses(w, subnet, new).await?;
    let identity = identity(w, &vpc, new.security_groups.as_deref(), max_identity).await?;
    let mount = Mount {
        id: MountId::new(w.id()),
        name: new.name.clone(),
        vpc: vpc.id,
        subnet: subnet.id,
        service: service.id,
        ipv4,
        ipv6,
        identity,
        revision: w.revision,
    };
    insert(w.q(), &mount).await?;
    let vnics: Vec<Vnic> = of_service.iter().map(|member| vnic(w, &mount, member)).collect();
    insert_vnics(w.q(), &vnics).await?;
    let ports = ports(w.q(), Some(vpc.id)).await?;
    w.push(&Change::MountCreated { vpc, subnets, mount: mount.clone(), vnics, ports })?;
    Ok(Created::New(mount))
}

async fn insert(q: &mut dyn Query, mount: &Mount) -> Result<()> {
    let sql = "INSERT INTO mounts (id, name, vpc, subnet, service, ipv4, ipv6, identity, revision) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    let values = args![
        mount.id.get(),
        mount.name.as_str(),
        mount.vpc.get(),
        mount.subnet.get(),
        mount.service.get(),
        mount.ipv4.map(|address| address.to_string()),
        mount.ipv6.map(|address| address.to_string()),
        mount.identity,
        mount.revision,
    ];
    q.run(sql, values).await?;
    further::save_mount(q, mount).await
}

/// Deletes a mount and its vNICs. Nothing gets its addresses until all nodes have removed them.
pub(crate) async fn delete(w: &mut Write, id: MountId, expected: Option<u64>) -> Result<u64> {
    let mount: Mount = get(w.q(), id).await?;
    check_revision(id, &mount, expected)?;
    let vpc: Vpc = get(w.q(), mount.vpc).await?;
    let vnics = vnics(w.q(), "mount", id.get()).await?;
    // Also hosts that have only vNICs in the VPC are awaited, so their nodes are found before these are deleted.
    let nodes = removals::gateways_and_hosts_of(w.q(), &vpc).await?;
    w.q().run("DELETE FROM vnics WHERE mount = $1", args![id.get()]).await?;
    w.q().run("DELETE FROM mounts WHERE id = $1", args![id.get()]).await?;
    further::forget(w.q(), InstanceId::new(id.get())).await?;
    for address in mount.addresses() {
        alloc::free(w.q(), mount.subnet.get(), address).await?;
    }
    let holds: Vec<_> = mount.addresses().map(|address| Hold::Address(vpc.id, address)).collect();
    let name = mount.name.clone();
    w.push(&Change::MountRemoved { vpc, mount, vnics })?;
    removals::record(w, (KIND, id.get(), &name), nodes, &holds).await
}
