//! Security groups: creation, update, deletion, and the group that each VPC is created with.

use super::group_sets;
use super::removals::{self, Hold};
use super::security_rules;
use crate::backend::Query;
use crate::check::{self, Difference};
use crate::rows::{check_revision, find_one, get};
use crate::security::{DEFAULT_GROUP, MAX_GROUPS};
use crate::value::args;
use crate::write::Write;
use crate::{
    Change, Conflict, Created, NewSecurityGroup, Remote, Result, RuleMatch, SecurityGroup,
    SecurityGroupUpdate, SecurityRule, Vpc,
};
use sluice_types::{AddressFamily, Direction, SecurityGroupId, SecurityRuleId, VpcId};

const FAMILIES: [AddressFamily; 2] = [AddressFamily::Ipv4, AddressFamily::Ipv6];
/// Names in the error for a group that is used.
const NAMED_USERS: usize = 3;

/// The rules that a new group has: egress to any address. `ids` has two ids.
fn egress_rules(ids: &[u64], group: &SecurityGroup) -> Vec<SecurityRule> {
    rules(ids, group, Direction::Egress, Remote::Any)
}

/// One rule for each family, which permits everything in a direction.
fn rules(ids: &[u64], group: &SecurityGroup, direction: Direction, remote: Remote) -> Vec<SecurityRule> {
    let rule = |(id, family): (&u64, AddressFamily)| SecurityRule {
        id: SecurityRuleId::new(*id),
        group: group.id,
        vpc: group.vpc,
        matches: RuleMatch::everything(direction, family, remote),
        description: String::new(),
        revision: group.revision,
    };
    ids.iter().zip(FAMILIES).map(rule).collect()
}

/// The group `default` of a VPC, and its rules: egress to any address, ingress from the group itself.
fn default_group(vpc: VpcId, ids: [u64; 5], revision: u64) -> (SecurityGroup, Vec<SecurityRule>) {
    let [id, rule_ids @ ..] = ids;
    let (name, description) = (DEFAULT_GROUP.to_owned(), String::new());
    let group = SecurityGroup { id: SecurityGroupId::new(id), name, vpc, description, revision };
    let mut all = egress_rules(&rule_ids[..2], &group);
    all.extend(rules(&rule_ids[2..], &group, Direction::Ingress, Remote::Group(group.id)));
    (group, all)
}

async fn insert(q: &mut dyn Query, group: &SecurityGroup, rules: &[SecurityRule]) -> Result<()> {
    let sql =
        "INSERT INTO security_groups (id, name, vpc, description, revision) VALUES ($1, $2, $3, $4, $5)";
    let (name, description) = (group.name.as_str(), group.description.as_str());
    q.run(sql, args![group.id.get(), name, group.vpc.get(), description, group.revision]).await?;
    for rule in rules {
        security_rules::insert(q, rule).await?;
    }
    Ok(())
}

/// Creates the group `default` of a new VPC, in the transaction that creates the VPC.
pub(super) async fn create_default(w: &mut Write, vpc: &Vpc) -> Result<()> {
    let ids = std::array::from_fn(|_| w.id());
    let (group, rules) = default_group(vpc.id, ids, w.revision);
    insert(w.q(), &group, &rules).await?;
    let set = vec![group.id];
    w.push(&Change::SecurityGroupCreated { vpc: vpc.clone(), group, rules })?;
    // Most instances will have it.
    group_sets::create(w, vpc, vec![set], u16::MAX).await.map(drop)
}

async fn find_named(q: &mut dyn Query, vpc: VpcId, name: &str) -> Result<Option<SecurityGroup>> {
    find_one(q, vec![("vpc", vpc.get().into()), ("name", name.into())]).await
}

/// A description as errors show it.
fn shown(description: &str) -> &str {
    if description.is_empty() { "empty" } else { description }
}

pub(crate) async fn create(w: &mut Write, new: &NewSecurityGroup) -> Result<Created<SecurityGroup>> {
    check::name("security group", &new.name)?;
    new.description.as_deref().map_or(Ok(()), check::description)?;
    let vpc: Vpc = get(w.q(), new.vpc).await?;
    if let Some(existing) = find_named(w.q(), vpc.id, &new.name).await? {
        Difference::default()
            .given("description", Some(shown(&existing.description)), new.description.as_deref().map(shown))
            .conflict("security group", &new.name)?;
        return Ok(Created::Existing(existing));
    }
    let sql = "SELECT COUNT(*) FROM security_groups WHERE vpc = $1";
    let row = w.q().row(sql, args![vpc.id.get()]).await?;
    if row.map_or(Ok(0), |row| row.number(0))? >= MAX_GROUPS {
        return Err(Conflict::TooManySecurityGroups { vpc: vpc.name, max: MAX_GROUPS }.into());
    }
    let group = SecurityGroup {
        id: SecurityGroupId::new(w.id()),
        name: new.name.clone(),
        vpc: vpc.id,
        description: new.description.clone().unwrap_or_default(),
        revision: w.revision,
    };
    let rules = egress_rules(&[w.id(), w.id()], &group);
    insert(w.q(), &group, &rules).await?;
    w.push(&Change::SecurityGroupCreated { vpc, group: group.clone(), rules })?;
    Ok(Created::New(group))
}

pub(crate) async fn update(
    w: &mut Write,
    id: SecurityGroupId,
    new: &SecurityGroupUpdate,
    expected: Option<u64>,
) -> Result<SecurityGroup> {
    new.name.as_deref().map_or(Ok(()), |name| check::name("security group", name))?;
    new.description.as_deref().map_or(Ok(()), check::description)?;
    let mut group: SecurityGroup = get(w.q(), id).await?;
    check_revision(id, &group, expected)?;
    let vpc: Vpc = get(w.q(), group.vpc).await?;
    let name = new.name.as_ref().unwrap_or(&group.name);
    let description = new.description.as_ref().unwrap_or(&group.description);
    if (&group.name, &group.description) == (name, description) {
        return Ok(group);
    }
    if *name != group.name {
        if group.name == DEFAULT_GROUP {
            return Err(Conflict::DefaultSecurityGroup { vpc: vpc.name }.into());
        }
        if let Some(other) = find_named(w.q(), vpc.id, name).await? {
            Difference::default().field("the id", other.id, id).conflict("security group", name)?;
        }
    }
    (group.name, group.description, group.revision) = (name.clone(), description.clone(), w.revision);
    let sql = "UPDATE security_groups SET name = $2, description = $3, revision = $4 WHERE id = $1";
    let (name, description) = (group.name.as_str(), group.description.as_str());
    w.q().run(sql, args![id.get(), name, description, group.revision]).await?;
    w.push(&Change::SecurityGroupUpdated { vpc, group: group.clone() })?;
    Ok(group)
}

pub(crate) async fn delete(w: &mut Write, id: SecurityGroupId, expected: Option<u64>) -> Result<u64> {
    let group: SecurityGroup = get(w.q(), id).await?;
    check_revision(id, &group, expected)?;
    let vpc: Vpc = get(w.q(), group.vpc).await?;
    if group.name == DEFAULT_GROUP {
        return Err(Conflict::DefaultSecurityGroup { vpc: vpc.name }.into());
    }
    let user = match (instances_of(w.q(), &group).await?, mounts_of(w.q(), &group).await?) {
        (Some(user), _) | (None, Some(user)) => Some(user),
        (None, None) => rules_of(w.q(), &group).await?,
    };
    if let Some(user) = user {
        return Err(Conflict::InUse { kind: "security group", name: group.name, user }.into());
    }
    let identities = group_sets::remove_with(w.q(), &group).await?;
    w.q().run("DELETE FROM security_rules WHERE security_group = $1", args![id.get()]).await?;
    w.q().run("DELETE FROM security_groups WHERE id = $1", args![id.get()]).await?;
    let nodes = removals::gateways_and_hosts_of(w.q(), &vpc).await?;
    let holds: Vec<_> = identities.iter().map(|identity| Hold::Identity(vpc.id, *identity)).collect();
    let name = group.name.clone();
    w.push(&Change::SecurityGroupRemoved { vpc, group, identities })?;
    removals::record(w, ("security group", id.get(), &name), nodes, &holds).await
}

/// The text for some users of a kind, of which the first are named.
fn users(kind: &str, named: &[String], count: u64) -> Option<String> {
    let first = &named[..named.len().min(NAMED_USERS)];
    match count - first.len() as u64 {
        _ if first.is_empty() => None,
        0 if first.len() == 1 => Some(format!("{kind} {}", first[0])),
        0 => Some(format!("{count} {kind}s: {}", first.join(", "))),
        others => Some(format!("{count} {kind}s: {} and {others} more", first.join(", "))),
    }
}

/// The instances that have the group, as a text.
async fn instances_of(q: &mut dyn Query, group: &SecurityGroup) -> Result<Option<String>> {
    let sets = group_sets::with(q, group).await?;
    let used: Vec<_> = sets.iter().filter(|set| set.instances > 0).collect();
    if used.is_empty() {
        return Ok(None);
    }
    let identities: Vec<i64> = used.iter().map(|set| set.identity.into()).collect();
    let sql = "SELECT name FROM instances WHERE vpc = $1 AND identity = ANY($2) ORDER BY id LIMIT $3";
    let rows = q.rows(sql, args![group.vpc.get(), identities, NAMED_USERS as u64]).await?;
    let names = rows.iter().map(|row| Ok(format!("`{}`", row.text(0)?))).collect::<Result<Vec<_>>>()?;
    Ok(users("instance", &names, used.iter().map(|set| set.instances).sum()))
}

/// The mounts that have the group, as a text.
async fn mounts_of(q: &mut dyn Query, group: &SecurityGroup) -> Result<Option<String>> {
    let sets = group_sets::with(q, group).await?;
    let identities: Vec<i64> = sets.iter().map(|set| set.identity.into()).collect();
    let sql = "SELECT name FROM mounts WHERE vpc = $1 AND identity = ANY($2) ORDER BY id";
    let rows = q.rows(sql, args![group.vpc.get(), identities]).await?;
    let names = rows.iter().take(NAMED_USERS).map(|row| Ok(format!("`{}`", row.text(0)?)));
    Ok(users("mount", &names.collect::<Result<Vec<_>>>()?, rows.len() as u64))
}

/// The rules of other groups that have the group as remote, as a text.
async fn rules_of(q: &mut dyn Query, group: &SecurityGroup) -> Result<Option<String>> {
    let sql = "SELECT r.id, g.name FROM security_rules r JOIN security_groups g ON g.id = r.security_group \
               WHERE r.remote_group = $1 AND r.security_group <> $1 ORDER BY r.id";
    let rows = q.rows(sql, args![group.id.get()]).await?;
    let named = rows.iter().take(NAMED_USERS).map(|row| {
        let (rule, group) = (SecurityRuleId::new(row.number(0)?), row.text(1)?);
        Ok(format!("{rule} of group `{group}`"))
    });
    Ok(users("rule", &named.collect::<Result<Vec<_>>>()?, rows.len() as u64))
}

/// Deletes the group `default` of a VPC that is deleted, and what the database has of its sets.
pub(super) async fn delete_default(q: &mut dyn Query, vpc: VpcId) -> Result<()> {
    q.run("DELETE FROM security_rules WHERE vpc = $1", args![vpc.get()]).await?;
    q.run("DELETE FROM group_sets WHERE vpc = $1", args![vpc.get()]).await?;
    q.run("DELETE FROM security_groups WHERE vpc = $1", args![vpc.get()]).await.map(drop)
}
