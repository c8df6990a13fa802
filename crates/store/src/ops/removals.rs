//! Removals: deleted objects whose entries nodes may still have. What they had (addresses, VNIs, VTEPs) is held: it
//! counts as used until these nodes have acknowledged the deletion.
//!
//! Only nodes that enrolled are awaited, because no other node ever had entries. A node that joins later starts from
//! a snapshot that does not have the object.

use super::alloc;
use crate::backend::Query;
use crate::check;
use crate::rows::{find, ipv4, ipv6};
use crate::value::{Row, Value, args, list};
use crate::write::Write;
use crate::{Conflict, Instance, NodeId, NodeSet, Page, ReleaseOf, Removal, Result, StoreError, Subnet, Vpc};
use sluice_types::{ClusterId, GatewayId, HostId, InstanceId, IpNet, VpcId};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;

/// Most removals that one transaction releases.
const RELEASED_AT_ONCE: u64 = 1000;
const COLUMNS: &str = "revision, deleted_ms, kind, object, name, nodes";

/// Something that a deleted object had.
pub(super) enum Hold {
    Address(VpcId, IpAddr),
    /// Delegated to an instance.
    Prefix(VpcId, IpNet),
    Vni(u32),
    Underlay(IpAddr),
    /// Of a set of security groups.
    Identity(VpcId, u16),
    /// Of an EIP or a NAT gateway.
    Public(IpNet),
}

impl Hold {
    /// An address, as a prefix of full length, or a delegated prefix.
    pub fn of(vpc: VpcId, net: IpNet) -> Self {
        if net.prefix_len() == net.max_prefix_len() {
            Self::Address(vpc, net.addr())
        } else {
            Self::Prefix(vpc, net)
        }
    }

    fn key(&self) -> (&'static str, u64, Vec<u8>) {
        match self {
            Self::Address(vpc, IpAddr::V4(address)) => ("ipv4", vpc.get(), address.octets().to_vec()),
            Self::Address(vpc, IpAddr::V6(address)) => ("ipv6", vpc.get(), address.octets().to_vec()),
            Self::Prefix(vpc, net) => ("prefix", vpc.get(), net.to_string().into_bytes()),
            Self::Vni(vni) => ("vni", 0, vni.to_be_bytes().to_vec()),
            Self::Underlay(address) => ("underlay", 0, address.to_string().into_bytes()),
            Self::Identity(vpc, identity) => ("identity", vpc.get(), identity.to_be_bytes().to_vec()),
            Self::Public(net) => ("public", 0, net.to_string().into_bytes()),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Address(_, address) | Self::Underlay(address) => address.to_string(),
            Self::Prefix(_, net) => net.to_string(),
            Self::Vni(vni) => format!("VNI {vni}"),
            Self::Identity(_, identity) => format!("identity {identity}"),
            Self::Public(net) => super::eips::text(*net),
        }
    }
}

/// Records the deletion of the object `(kind, id, name)` in the transaction that deletes it, and returns its revision.
/// Records nothing if no node is awaited. What an earlier deletion holds is held until the nodes of both have acknowledged
/// this one.
pub(super) async fn record(
    w: &mut Write,
    object: (&str, u64, &str),
    mut nodes: Vec<NodeId>,
    holds: &[Hold],
) -> Result<u64> {
    let (revision, now_ms, (kind, id, name)) = (w.revision, w.now_ms, object);
    if nodes.is_empty() {
        return Ok(revision);
    }
    for hold in holds {
        let (kind, scope, value) = hold.key();
        let sql = "INSERT INTO held (kind, scope, value, revision) VALUES ($1, $2, $3, $4) \
                   ON CONFLICT (kind, scope, value) DO NOTHING";
        if w.q().run(sql, args![kind, scope, value.clone(), revision]).await? == 0 {
            // Others had the address of a pair as well, and an adopted instance may have had one that was held.
            let sql = "SELECT r.nodes FROM removals r JOIN held h ON h.revision = r.revision \
                       WHERE h.kind = $1 AND h.scope = $2 AND h.value = $3";
            if let Some(row) = w.q().row(sql, args![kind, scope, value.clone()]).await? {
                nodes.extend(row.parse_list::<NodeId>(0)?);
            }
            let sql = "UPDATE held SET revision = $4 WHERE kind = $1 AND scope = $2 AND value = $3";
            w.q().run(sql, args![kind, scope, value, revision]).await?;
        }
    }
    nodes.sort();
    nodes.dedup();
    let sql = "INSERT INTO removals (revision, deleted_ms, kind, object, name, nodes) \
               VALUES ($1, $2, $3, $4, $5, $6)";
    w.q().run(sql, args![revision, now_ms, kind, id, name, list(&nodes)]).await?;
    Ok(revision)
}

async fn gateways(q: &mut dyn Query, condition: &str, values: Vec<Value>) -> Result<Vec<NodeId>> {
    let sql = format!(
        "SELECT g.id FROM gateways g WHERE {condition} AND EXISTS \
         (SELECT 1 FROM node_states s WHERE s.kind = 'gateway' AND s.node = g.id)"
    );
    let rows = q.rows(&sql, values).await?;
    rows.iter().map(|row| Ok(NodeId::Gateway(GatewayId::new(row.number(0)?)))).collect()
}

async fn hosts(q: &mut dyn Query, condition: &str, values: Vec<Value>) -> Result<Vec<NodeId>> {
    let sql = format!(
        "SELECT h.id FROM hosts h WHERE {condition} AND h.agent <> 0 AND EXISTS \
         (SELECT 1 FROM node_states s WHERE s.kind = 'host' AND s.node = h.id)"
    );
    let rows = q.rows(&sql, values).await?;
    rows.iter().map(|row| Ok(NodeId::Host(HostId::new(row.number(0)?)))).collect()
}

/// The gateways of a VPC's clusters, also of the one that it moves to, and gateways that join these clusters or leave
/// them.
pub(super) async fn gateways_of(q: &mut dyn Query, vpc: &Vpc) -> Result<Vec<NodeId>> {
    gateways_of_clusters(q, vpc.clusters()).await
}

/// The gateways of clusters, and those that join them or leave them.
pub(super) async fn gateways_of_clusters(
    q: &mut dyn Query,
    clusters: impl IntoIterator<Item = ClusterId>,
) -> Result<Vec<NodeId>> {
    let clusters: Vec<i64> = clusters.into_iter().map(|cluster| cluster.get() as i64).collect();
    gateways(q, "(g.cluster = ANY($1) OR g.other_cluster = ANY($2))", args![clusters.clone(), clusters]).await
}

/// All gateways.
pub(super) async fn all_gateways(q: &mut dyn Query) -> Result<Vec<NodeId>> {
    gateways(q, "1 = 1", vec![]).await
}

/// The gateways of clusters, those that join them or leave them, and all hosts.
pub(super) async fn clusters_and_hosts(
    q: &mut dyn Query,
    clusters: impl IntoIterator<Item = ClusterId>,
) -> Result<Vec<NodeId>> {
    let mut nodes = gateways_of_clusters(q, clusters).await?;
    nodes.extend(hosts(q, "1 = 1", vec![]).await?);
    Ok(nodes)
}

/// The gateways of a VPC, and the hosts that have instances or vNICs of it, or to which instances migrate.
pub(super) async fn gateways_and_hosts_of(q: &mut dyn Query, vpc: &Vpc) -> Result<Vec<NodeId>> {
    let mut nodes = gateways_of(q, vpc).await?;
    let has_instance = "(EXISTS (SELECT 1 FROM instances i WHERE i.host = h.id AND i.vpc = $1) OR EXISTS \
                        (SELECT 1 FROM migrations m WHERE m.target = h.id AND m.vpc = $1 AND m.ended = 0) OR EXISTS \
                        (SELECT 1 FROM vnics n WHERE n.host = h.id AND n.vpc = $1))";
    nodes.extend(hosts(q, has_instance, args![vpc.id.get()]).await?);
    Ok(nodes)
}

/// A host.
pub(super) async fn host(q: &mut dyn Query, id: HostId) -> Result<Vec<NodeId>> {
    hosts(q, "h.id = $1", args![id.get()]).await
}

/// The hosts that have the port of an instance.
pub(super) async fn hosts_of(q: &mut dyn Query, instance: &Instance) -> Result<Vec<NodeId>> {
    let ids: Vec<i64> = instance.hosts().map(|host| host.get() as i64).collect();
    hosts(q, "h.id = ANY($1)", args![ids]).await
}

/// Kind of the removal of a moved instance's port from the host that it left, or of that of a canceled migration from its
/// target.
pub(super) const PORT: &str = "port of instance";

/// The hosts that a moved instance left and that may still have its port.
pub(super) async fn previous_hosts(q: &mut dyn Query, id: InstanceId) -> Result<Vec<NodeId>> {
    let rows =
        q.rows("SELECT nodes FROM removals WHERE object = $1 AND kind = $2", args![id.get(), PORT]).await?;
    let lists = rows.iter().map(|row| row.parse_list(0)).collect::<Result<Vec<_>>>()?;
    Ok(lists.concat())
}

/// Checks that nothing that was deleted still has this.
///
/// # Errors
/// [`Conflict::Held`] with the deleted object.
pub(super) async fn check_free(q: &mut dyn Query, hold: &Hold) -> Result<()> {
    let (kind, scope, value) = hold.key();
    let sql = "SELECT revision FROM held WHERE kind = $1 AND scope = $2 AND value = $3";
    match q.row(sql, args![kind, scope, value]).await? {
        Some(row) => Err(conflict(q, hold.text(), row.number(0)?).await?),
        None => Ok(()),
    }
}

/// The error for a value that a deletion holds.
pub(super) async fn conflict(q: &mut dyn Query, what: String, revision: u64) -> Result<StoreError> {
    let removal = get(q, revision).await?;
    let removal = removal.ok_or_else(|| StoreError::Corrupt(format!("{what} is held by no removal")))?;
    Ok(Conflict::Held { what, owner: format!("{} `{}`", removal.kind, removal.name), revision }.into())
}

/// The addresses and prefixes of a VPC that are held, each with the revision of the deletion.
#[derive(Default)]
pub(crate) struct HeldAddresses {
    pub ipv4: HashMap<u128, u64>,
    pub ipv6: HashMap<u128, u64>,
    /// Prefixes that were delegated.
    pub prefixes: Vec<(IpNet, u64)>,
}

impl HeldAddresses {
    pub async fn read(q: &mut dyn Query, vpc: VpcId) -> Result<Self> {
        let sql =
            "SELECT kind, value, revision FROM held WHERE scope = $1 AND kind IN ('ipv4', 'ipv6', 'prefix')";
        let mut held = Self::default();
        for row in q.rows(sql, args![vpc.get()]).await? {
            let (net, revision) = (held_net(&row, 0)?, row.number(2)?);
            match net.addr() {
                _ if net.prefix_len() < net.max_prefix_len() => held.prefixes.push((net, revision)),
                IpAddr::V4(v4) => drop(held.ipv4.insert(u32::from(v4).into(), revision)),
                IpAddr::V6(v6) => drop(held.ipv6.insert(v6.into(), revision)),
            };
        }
        Ok(held)
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.ipv4.is_empty() && self.ipv6.is_empty() && self.prefixes.is_empty()
    }

    /// What is held and conflicts with an address or prefix, and the revision of the deletion: inside the prefix of a
    /// subnet what has an address in common with it, and outside of subnets, where prefixes contain others, the same
    /// prefix.
    pub fn conflicting(&self, net: IpNet, subnet: Option<IpNet>) -> Option<(String, u64)> {
        let is_inside = |of: IpNet| subnet.is_some_and(|subnet| subnet.contains(&of));
        let conflicts =
            |(held, _): &&(IpNet, u64)| *held == net || is_inside(*held) && sluice_types::overlap(held, &net);
        if let Some((held, revision)) = self.prefixes.iter().find(conflicts) {
            return Some((held.to_string(), *revision));
        }
        let addresses = if net.addr().is_ipv4() { &self.ipv4 } else { &self.ipv6 };
        let (first, last) = super::further::range(net);
        let found = match addresses.get(&first) {
            Some(revision) => Some((first, *revision)),
            None if first == last => None,
            None => {
                let found = addresses.iter().find(|(number, _)| (first..=last).contains(*number));
                found.map(|(number, revision)| (*number, *revision))
            }
        };
        let text = |number: u128| match net {
            IpNet::V4(_) => IpAddr::V4((number as u32).into()).to_string(),
            IpNet::V6(_) => IpAddr::V6(number.into()).to_string(),
        };
        found.filter(|_| subnet.is_some()).map(|(number, revision)| (text(number), revision))
    }
}

/// A prefix, or an address as a prefix of full length.
fn prefix_of(value: &[u8]) -> Result<IpNet> {
    let text = std::str::from_utf8(value).unwrap_or_default();
    let address = text.parse::<IpAddr>().map(IpNet::from);
    address.or_else(|_| text.parse()).map_err(|_| StoreError::Corrupt(format!("`{text}` as a held prefix")))
}

/// A kind of addresses that deletions hold in no VPC.
#[derive(Clone, Copy)]
pub(super) enum HeldKind {
    Public,
    Underlay,
}

/// The addresses of a kind that are held, each with the revision of the deletion.
pub(super) async fn held_of(q: &mut dyn Query, kind: HeldKind) -> Result<Vec<(IpNet, u64)>> {
    let kind = match kind {
        HeldKind::Public => "public",
        HeldKind::Underlay => "underlay",
    };
    let rows = q.rows("SELECT value, revision FROM held WHERE kind = $1", args![kind]).await?;
    rows.iter().map(|row| Ok((prefix_of(row.blob(0)?)?, row.number(1)?))).collect()
}

/// Checks that deletions hold no address of a kind in one of these prefixes.
///
/// # Errors
/// [`Conflict::Held`] with the deleted object.
pub(super) async fn check_none_held(q: &mut dyn Query, kind: HeldKind, wanted: &[IpNet]) -> Result<()> {
    let held = held_of(q, kind).await?;
    let overlaps = |net: &IpNet| wanted.iter().any(|wanted| sluice_types::overlap(net, wanted));
    match held.into_iter().find(|(net, _)| overlaps(net)) {
        Some((net, revision)) => Err(conflict(q, super::eips::text(net), revision).await?),
        None => Ok(()),
    }
}

/// The address or prefix in the columns `kind` and `value`, which start at `column`.
fn held_net(row: &Row, column: usize) -> Result<IpNet> {
    let value = row.blob(column + 1)?;
    match (row.text(column)?, <[u8; 4]>::try_from(value)) {
        ("prefix", _) => prefix_of(value),
        ("ipv4", Ok(bytes)) => ipv4(u32::from_be_bytes(bytes).into()).map(|v4| IpAddr::V4(v4).into()),
        _ => ipv6(value).map(|v6| IpAddr::V6(v6).into()),
    }
}

/// Stops holding addresses and prefixes: an instance that nodes still have gets them back.
pub(super) async fn give_back(q: &mut dyn Query, vpc: VpcId, nets: &[IpNet]) -> Result<()> {
    for net in nets {
        let (kind, scope, value) = Hold::of(vpc, *net).key();
        let sql = "DELETE FROM held WHERE kind = $1 AND scope = $2 AND value = $3";
        q.run(sql, args![kind, scope, value]).await?;
    }
    Ok(())
}

/// Whether a deletion holds this VNI.
pub(super) async fn holds_vni(q: &mut dyn Query, vni: u64) -> Result<bool> {
    let value = u32::try_from(vni).unwrap_or(u32::MAX).to_be_bytes().to_vec();
    q.any("SELECT revision FROM held WHERE kind = 'vni' AND scope = 0 AND value = $1", args![value]).await
}

/// The identities of sets of security groups of a VPC that deletions hold.
pub(super) async fn held_identities(q: &mut dyn Query, vpc: VpcId) -> Result<Vec<u16>> {
    let sql = "SELECT value FROM held WHERE kind = 'identity' AND scope = $1";
    let damaged = || StoreError::Corrupt("a held identity has no two bytes".into());
    let identity = |row: &Row| Ok(u16::from_be_bytes(row.blob(0)?.try_into().map_err(|_| damaged())?));
    q.rows(sql, args![vpc.get()]).await?.iter().map(identity).collect()
}

fn decode(row: &Row) -> Result<Removal> {
    Ok(Removal {
        revision: row.number(0)?,
        deleted_ms: row.number(1)?,
        kind: row.text(2)?.to_owned(),
        object: row.number(3)?,
        name: row.text(4)?.to_owned(),
        nodes: row.parse_list(5)?,
    })
}

/// The pending removal of the deletion with this revision.
pub(crate) async fn get(q: &mut dyn Query, revision: u64) -> Result<Option<Removal>> {
    let revision = i64::try_from(revision).unwrap_or(i64::MAX);
    let sql = format!("SELECT {COLUMNS} FROM removals WHERE revision = $1");
    q.row(&sql, args![revision]).await?.map(|row| decode(&row)).transpose()
}

/// A page of the pending removals, in order of revision.
pub(crate) async fn page(q: &mut dyn Query, page: Page) -> Result<Vec<Removal>> {
    let sql = format!("SELECT {COLUMNS} FROM removals WHERE revision > $1 ORDER BY revision LIMIT $2");
    let after = i64::try_from(page.after).unwrap_or(i64::MAX);
    q.rows(&sql, args![after, page.limit]).await?.iter().map(decode).collect()
}

/// The sets of nodes that pending removals await, with the number of removals and the oldest one's time.
pub(crate) async fn awaited(q: &mut dyn Query) -> Result<Vec<NodeSet>> {
    let sql = "SELECT nodes, COUNT(*), MIN(deleted_ms) FROM removals GROUP BY nodes ORDER BY nodes";
    let rows = q.rows(sql, vec![]).await?;
    let set = |row: &Row| {
        Ok(NodeSet { nodes: row.parse_list(0)?, removals: row.number(1)?, oldest_ms: row.number(2)? })
    };
    rows.iter().map(set).collect()
}

/// Ends removals, at most [`RELEASED_AT_ONCE`]; returns how many.
pub(crate) async fn release(q: &mut dyn Query, of: &ReleaseOf) -> Result<u64> {
    // Writers that allocate addresses hold this row: they save what they read of a subnet before.
    q.run("UPDATE meta SET next_id = next_id WHERE id = 1", vec![]).await?;
    let limit = |number| i64::try_from(number).unwrap_or(i64::MAX);
    let sql = "SELECT revision FROM removals WHERE nodes = $1 AND revision <= $2 AND deleted_ms <= $3 \
               ORDER BY revision LIMIT $4";
    let values =
        args![list(&of.nodes), limit(of.up_to), limit(of.deleted_before_ms), limit(RELEASED_AT_ONCE)];
    let rows = q.rows(sql, values).await?;
    let revisions = rows.iter().map(|row| row.int(0)).collect::<Result<Vec<i64>>>()?;
    if revisions.is_empty() {
        return Ok(0);
    }
    let sql =
        "SELECT kind, value, scope FROM held WHERE kind IN ('ipv4', 'ipv6', 'prefix') AND revision = ANY($1)";
    let held = q.rows(sql, args![revisions.clone()]).await?;
    let mut subnets: HashMap<u64, Vec<Subnet>> = HashMap::new();
    for row in &held {
        let (net, vpc) = (held_net(row, 0)?, row.number(2)?);
        if let Entry::Vacant(entry) = subnets.entry(vpc) {
            entry.insert(find(q, vec![("vpc", vpc.into())]).await?);
        }
        let has = |subnet: &&Subnet| check::prefixes(subnet).any(|of| of.contains(&net));
        if let Some(subnet) = subnets[&vpc].iter().find(has) {
            // Allocation skipped it, so it may be below the lowest address that can be free.
            alloc::free(q, subnet.id.get(), net.network()).await?;
        }
    }
    q.run("DELETE FROM held WHERE revision = ANY($1)", args![revisions.clone()]).await?;
    q.run("DELETE FROM removals WHERE revision = ANY($1)", args![revisions]).await
}
