//! Single instances: creation, move to another host, change of security groups, deletion.

use super::bulk_plan::VALUES_PER_QUERY;
use super::removals::{self, Hold};
use super::{alloc, bulk, eips, events, families, further, group_sets, members, migrations, port_forwards};
use crate::backend::Query;
use crate::rows::{check_revision, find, get};
use crate::value::{Value, args};
use crate::write::Write;
use crate::{
    AddressCounts, Change, Created, Host, Instance, InstanceOptions, NewInstance, Result, StoreError, Vpc,
};
use serde_json::json;
use sluice_types::{HostId, InstanceId, SecurityGroupId, VpcId};
use std::collections::BTreeMap;

pub(crate) async fn create(
    w: &mut Write,
    vpc: VpcId,
    new: &NewInstance,
    max_identity: u16,
) -> Result<Created<Instance>> {
    let outcome =
        bulk::create(w, vpc, std::slice::from_ref(new), max_identity).await.map_err(|error| match error {
            StoreError::InBulk { source, .. } => *source,
            other => other,
        })?;
    let created = outcome.created.into_iter().next().map(Created::New);
    created
        .or_else(|| outcome.existing.into_iter().next().map(Created::Existing))
        .ok_or_else(|| StoreError::Corrupt(format!("instance `{}` was neither created nor found", new.name)))
}

/// The columns by which lists of instances are filtered.
pub(crate) fn filters(
    vpc: Option<VpcId>,
    host: Option<HostId>,
    name: Option<&str>,
) -> Vec<(&'static str, Option<Value>)> {
    vec![
        ("vpc", vpc.map(|v| v.get().into())),
        ("host", host.map(|h| h.get().into())),
        ("name", name.map(Into::into)),
    ]
}

/// Records that the instance runs on another host.
pub(crate) async fn relocate(
    w: &mut Write,
    id: InstanceId,
    host: HostId,
    expected: Option<u64>,
) -> Result<Instance> {
    let instance: Instance = get(w.q(), id).await?;
    check_revision(id, &instance, expected)?;
    let to: Host = get(w.q(), host).await?;
    if instance.host == host {
        return Ok(instance);
    }
    members::check_no_member(w.q(), &instance).await?;
    let vpc: Vpc = get(w.q(), instance.vpc).await?;
    for cluster in families::clusters(w.q(), &vpc).await? {
        families::check_host(&cluster, &vpc.name, &to)?;
    }
    place(w, instance, vpc, to, "instance_moved", json!({})).await
}

/// Records an instance on another host, which ends its migration. `kind` and `details` are those of the event.
pub(super) async fn place(
    w: &mut Write,
    mut instance: Instance,
    vpc: Vpc,
    to: Host,
    kind: &str,
    mut details: serde_json::Value,
) -> Result<Instance> {
    let (id, from) = (instance.id, get::<Host>(w.q(), instance.host).await?);
    let subnets = find(w.q(), vec![("vpc", vpc.id.get().into())]).await?;
    (instance.host, instance.revision) = (to.id, w.revision);
    let sql = "UPDATE instances SET host = $2, revision = $3 WHERE id = $1";
    w.q().run(sql, args![id.get(), to.id.get(), instance.revision]).await?;
    let ended = migrations::end_by_move(w.q(), &mut instance, to.id).await?;
    let text = format!(
        "instance `{}` of VPC `{}` moved to host `{}` from `{}`",
        instance.name, vpc.name, to.name, from.name
    );
    details["from"] = json!(from.id.to_string());
    details["to"] = json!(to.id.to_string());
    details["revision"] = json!(instance.revision);
    events::record(w, kind, &id, text, details).await?;
    let (from, there, hosts) = (from.id, to.id, vec![to, from]);
    w.push(&Change::InstanceMoved { vpc, subnets, hosts, instance: instance.clone(), from, ended })?;
    let mut nodes = removals::host(w.q(), from).await?;
    if let Some(target) = ended.map(|ended| ended.to).filter(|target| *target != there) {
        nodes.extend(removals::host(w.q(), target).await?);
    }
    removals::record(w, (removals::PORT, id.get(), &instance.name), nodes, &[]).await?;
    Ok(instance)
}

/// Gives an instance other security groups; none if the list is empty.
pub(crate) async fn set_groups(
    w: &mut Write,
    id: InstanceId,
    groups: &[SecurityGroupId],
    expected: Option<u64>,
    max_identity: u16,
) -> Result<Instance> {
    let groups = group_sets::sorted(groups)?;
    let mut instance: Instance = get(w.q(), id).await?;
    check_revision(id, &instance, expected)?;
    let vpc: Vpc = get(w.q(), instance.vpc).await?;
    for group in &groups {
        group_sets::check_group(w.q(), &vpc, *group).await?;
    }
    let known = group_sets::find(w.q(), vpc.id, std::slice::from_ref(&groups)).await?;
    let identity = match known.get(&groups) {
        _ if groups.is_empty() => 0,
        Some(identity) => *identity,
        None => {
            let created = group_sets::create(w, &vpc, vec![groups], max_identity).await?;
            created.first().copied().ok_or_else(|| StoreError::Corrupt("no identity was assigned".into()))?
        }
    };
    let from = instance.identity;
    if from == identity {
        return Ok(instance);
    }
    group_sets::count(w.q(), vpc.id, from, -1).await?;
    group_sets::count(w.q(), vpc.id, identity, 1).await?;
    (instance.identity, instance.revision) = (identity, w.revision);
    let sql = "UPDATE instances SET identity = $2, revision = $3 WHERE id = $1";
    w.q().run(sql, args![id.get(), identity, instance.revision]).await?;
    let host: Host = get(w.q(), instance.host).await?;
    w.push(&Change::InstanceGroupsChanged { vpc, host, instance: instance.clone(), from })?;
    Ok(instance)
}

pub(crate) async fn delete(w: &mut Write, id: InstanceId, expected: Option<u64>) -> Result<u64> {
    let instance: Instance = get(w.q(), id).await?;
    check_revision(id, &instance, expected)?;
    members::check_no_member(w.q(), &instance).await?;
    let vpc: Vpc = get(w.q(), instance.vpc).await?;
    w.q().run("DELETE FROM instances WHERE id = $1", args![id.get()]).await?;
    further::forget(w.q(), id).await?;
    migrations::forget(w.q(), id).await?;
    group_sets::count(w.q(), vpc.id, instance.identity, -1).await?;
    for address in instance.addresses() {
        alloc::free(w.q(), instance.subnet.get(), address).await?;
    }
    let mut nodes = removals::gateways_of(w.q(), &vpc).await?;
    nodes.extend(removals::hosts_of(w.q(), &instance).await?);
    nodes.extend(removals::previous_hosts(w.q(), id).await?);
    let mut holds: Vec<_> = instance.addresses().map(|address| Hold::Address(vpc.id, address)).collect();
    let none = InstanceOptions::default();
    holds.extend(further::release(w.q(), vpc.id, &instance.options, &none).await?);
    let name = instance.name.clone();
    w.push(&Change::InstancesRemoved { vpc, instances: vec![instance] })?;
    eips::detach_from(w, id).await?;
    port_forwards::delete_of(w, id).await?;
    removals::record(w, ("instance", id.get(), &name), nodes, &holds).await
}

/// Numbers of addresses of each VPC that has instances.
pub(crate) async fn address_counts(q: &mut dyn Query) -> Result<Vec<(VpcId, AddressCounts)>> {
    let sql = "SELECT vpc, COUNT(ipv4), COUNT(ipv6) FROM instances GROUP BY vpc ORDER BY vpc";
    let mut counts = BTreeMap::new();
    for row in q.rows(sql, vec![]).await? {
        let (ipv4, ipv6) = (row.number(1)?, row.number(2)?);
        counts.insert(VpcId::new(row.number(0)?), AddressCounts { ipv4, ipv6, prefixes: 0 });
    }
    let sql = "SELECT vpc, family, kind, COUNT(*) FROM further_addresses GROUP BY vpc, family, kind";
    for row in q.rows(sql, vec![]).await? {
        let of_vpc = counts.entry(VpcId::new(row.number(0)?)).or_insert_with(AddressCounts::default);
        let sum = match (row.text(2)?, row.number(1)?) {
            ("prefix", _) => &mut of_vpc.prefixes,
            (_, 4) => &mut of_vpc.ipv4,
            _ => &mut of_vpc.ipv6,
        };
        *sum += row.number(3)?;
    }
    Ok(counts.into_iter().collect())
}

/// Those of the names that instances of the VPC have.
pub(crate) async fn taken_names(q: &mut dyn Query, vpc: VpcId, names: &[String]) -> Result<Vec<String>> {
    let mut taken = Vec::new();
    for names in names.chunks(VALUES_PER_QUERY) {
        let sql = "SELECT name FROM instances WHERE vpc = $1 AND name = ANY($2)";
        for row in q.rows(sql, args![vpc.get(), names.to_vec()]).await? {
            taken.push(row.text(0)?.to_owned());
        }
    }
    Ok(taken)
}
