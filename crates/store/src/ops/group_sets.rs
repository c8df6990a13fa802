//! Sets of security groups: each set that an instance of a VPC has, or had, is a number in this VPC, its identity.
//!
//! A set keeps its identity while all its groups exist, also when no instance has it any more: the same set gets the
//! same identity again, so no node can confuse it with another. The deletion of a group removes the sets that contain
//! it; their identities are held until all nodes have acknowledged the deletion (`removals.rs`).

use crate::backend::Query;
use crate::check::invalid;
use crate::rows::{get, identity};
use crate::security::MAX_GROUPS_OF_INSTANCE;
use crate::value::{Row, args};
use crate::write::Write;
use crate::{Change, Conflict, GroupSet, Result, SecurityGroup, StoreError, Vpc};
use sluice_types::{SecurityGroupId, VpcId};
use std::collections::{HashMap, HashSet};

/// Sets in one query.
const SETS_PER_QUERY: usize = 4096;

/// A set as the database has it.
pub(super) struct StoredSet {
    pub identity: u16,
    /// Number of instances that have it.
    pub instances: u64,
}

/// The column `members` of a set in ascending order.
fn members(groups: &[SecurityGroupId]) -> String {
    groups.iter().map(|group| group.get().to_string()).collect::<Vec<_>>().join(",")
}

fn decode(row: &Row) -> Result<GroupSet> {
    let groups: Vec<u64> = row.parse_list(2)?;
    Ok(GroupSet {
        vpc: VpcId::new(row.number(0)?),
        identity: identity(row.int(1)?)?,
        groups: groups.into_iter().map(SecurityGroupId::new).collect(),
    })
}

/// All sets of all VPCs, in order of VPC and identity.
pub(crate) async fn all(q: &mut dyn Query) -> Result<Vec<GroupSet>> {
    let rows = q.rows("SELECT vpc, identity, members FROM group_sets ORDER BY vpc, identity", vec![]).await?;
    rows.iter().map(decode).collect()
}

/// Those of the sets of a VPC that have these identities.
pub(crate) async fn with_identities(
    q: &mut dyn Query,
    vpc: VpcId,
    identities: &[u16],
) -> Result<Vec<GroupSet>> {
    let identities: Vec<i64> = identities.iter().map(|identity| (*identity).into()).collect();
    let sql = "SELECT vpc, identity, members FROM group_sets WHERE vpc = $1 AND identity = ANY($2)";
    q.rows(sql, args![vpc.get(), identities]).await?.iter().map(decode).collect()
}

/// The sets that contain a group.
pub(super) async fn with(q: &mut dyn Query, group: &SecurityGroup) -> Result<Vec<StoredSet>> {
    let sql = "SELECT identity, instances FROM group_sets \
               WHERE vpc = $1 AND ',' || members || ',' LIKE $2 ORDER BY identity";
    let rows = q.rows(sql, args![group.vpc.get(), format!("%,{},%", group.id.get())]).await?;
    let set = |row: &Row| Ok(StoredSet { identity: identity(row.int(0)?)?, instances: row.number(1)? });
    rows.iter().map(set).collect()
}

/// Removes the sets that contain a group, which no instance has; returns their identities.
pub(super) async fn remove_with(q: &mut dyn Query, group: &SecurityGroup) -> Result<Vec<u16>> {
    let sets = with(q, group).await?;
    let identities: Vec<i64> = sets.iter().map(|set| set.identity.into()).collect();
    let sql = "DELETE FROM group_sets WHERE vpc = $1 AND identity = ANY($2)";
    q.run(sql, args![group.vpc.get(), identities]).await?;
    Ok(sets.iter().map(|set| set.identity).collect())
}

/// The groups of one instance in ascending order.
///
/// # Errors
/// A group is listed twice, or there are too many.
pub(super) fn sorted(groups: &[SecurityGroupId]) -> Result<Vec<SecurityGroupId>> {
    const FIELD: &str = "security_groups";
    if groups.len() > MAX_GROUPS_OF_INSTANCE {
        let count = groups.len();
        let text = format!("{count} security groups; an instance can have at most {MAX_GROUPS_OF_INSTANCE}");
        return Err(invalid(FIELD, text));
    }
    let mut sorted = groups.to_vec();
    sorted.sort();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(invalid(FIELD, format!("security group {} is listed twice", pair[0]))),
        None => Ok(sorted),
    }
}

/// Checks that a group exists and belongs to the VPC.
pub(super) async fn check_group(q: &mut dyn Query, vpc: &Vpc, group: SecurityGroupId) -> Result<()> {
    let group: SecurityGroup = get(q, group).await?;
    if group.vpc == vpc.id {
        return Ok(());
    }
    Err(Conflict::ForeignSecurityGroup { group: group.name, vpc: vpc.name.clone() }.into())
}

/// The identities of those sets of the VPC that have one. The groups of each set are in ascending order.
pub(super) async fn find(
    q: &mut dyn Query,
    vpc: VpcId,
    sets: &[Vec<SecurityGroupId>],
) -> Result<HashMap<Vec<SecurityGroupId>, u16>> {
    let mut found = HashMap::new();
    for sets in sets.chunks(SETS_PER_QUERY) {
        let texts: Vec<String> = sets.iter().map(|set| members(set)).collect();
        let sql = "SELECT vpc, identity, members FROM group_sets WHERE vpc = $1 AND members = ANY($2)";
        for row in q.rows(sql, args![vpc.get(), texts]).await? {
            let set = decode(&row)?;
            found.insert(set.groups, set.identity);
        }
    }
    Ok(found)
}

/// Assigns identities, none above `max`, to sets that have none, and returns them in the same order.
pub(super) async fn create(
    w: &mut Write,
    vpc: &Vpc,
    sets: Vec<Vec<SecurityGroupId>>,
    max: u16,
) -> Result<Vec<u16>> {
    if sets.is_empty() {
        return Ok(Vec::new());
    }
    let identities = free_identities(w, vpc, sets.len(), max).await?;
    let mut created = Vec::with_capacity(sets.len());
    for (groups, identity) in sets.into_iter().zip(&identities) {
        insert(w.q(), vpc.id, *identity, &groups).await?;
        created.push(GroupSet { vpc: vpc.id, identity: *identity, groups });
    }
    w.push(&Change::GroupSetsCreated { vpc: vpc.clone(), sets: created })?;
    Ok(identities)
}

/// Inserts a set that no instance has yet. Its groups are in ascending order.
async fn insert(q: &mut dyn Query, vpc: VpcId, identity: u16, groups: &[SecurityGroupId]) -> Result<()> {
    let sql = "INSERT INTO group_sets (vpc, identity, members, instances) VALUES ($1, $2, $3, 0)";
    q.run(sql, args![vpc.get(), identity, members(groups)]).await.map(drop)
}

/// The lowest identities that were never assigned; when all were, the lowest that no set has and no deletion holds.
async fn free_identities(w: &mut Write, vpc: &Vpc, count: usize, max: u16) -> Result<Vec<u16>> {
    let row = w.q().row("SELECT next_identity FROM vpcs WHERE id = $1", args![vpc.id.get()]).await?;
    let next = row.ok_or_else(|| StoreError::Corrupt(format!("no row of {}", vpc.id)))?.number(0)?;
    let fresh = u16::try_from(next).into_iter().flat_map(|next| next..=max);
    let mut free: Vec<u16> = fresh.take(count).collect();
    if let Some(last) = free.last() {
        let next = u64::from(*last) + 1;
        w.q().run("UPDATE vpcs SET next_identity = $2 WHERE id = $1", args![vpc.id.get(), next]).await?;
    }
    if free.len() < count {
        let mut used: HashSet<u16> = free.iter().copied().collect();
        let rows = w.q().rows("SELECT identity FROM group_sets WHERE vpc = $1", args![vpc.id.get()]).await?;
        for row in rows {
            used.insert(identity(row.int(0)?)?);
        }
        used.extend(super::removals::held_identities(w.q(), vpc.id).await?);
        let missing = count - free.len();
        free.extend((1..=max).filter(|identity| !used.contains(identity)).take(missing));
    }
    if free.len() < count {
        return Err(Conflict::IdentitiesExhausted { vpc: vpc.name.clone(), max }.into());
    }
    Ok(free)
}

/// Adds to the number of instances that have a set. Identity 0 is no set.
pub(super) async fn count(q: &mut dyn Query, vpc: VpcId, identity: u16, change: i64) -> Result<()> {
    if identity == 0 {
        return Ok(());
    }
    let sql = "UPDATE group_sets SET instances = instances + $3 WHERE vpc = $1 AND identity = $2";
    match q.run(sql, args![vpc.get(), identity, change]).await? {
        1 => Ok(()),
        _ => Err(StoreError::Corrupt(format!("no set of security groups has identity {identity} in {vpc}"))),
    }
}
