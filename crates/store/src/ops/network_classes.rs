//! Network classes: creation, changes, deletion. Instances that have one name it themselves (`further.rs`).

use super::bulk::INSTANCES_PER_ROW;
use super::bulk_plan::in_bulk;
use crate::backend::Query;
use crate::check::{self, Difference, invalid};
use crate::rows::{Record, check_revision, find_one, get};
use crate::value::args;
use crate::write::Write;
use crate::{
    Change, ClassOfInstance, Conflict, Created, Instance, NetworkClass, NetworkClassUpdate, NewInstance,
    NewNetworkClass, Result, StoreError, Vpc,
};
use sluice_types::{CreditPolicy, InstanceId, NetworkClassId, PortSettings, VpcId};
use std::collections::HashMap;

/// The kind of object in errors.
const KIND: &str = "network class";

/// The classes that requests name.
pub(super) type Classes = HashMap<NetworkClassId, NetworkClass>;

/// The policy as its column has it.
fn json(policy: &CreditPolicy) -> Result<String> {
    serde_json::to_string(policy).map_err(|e| StoreError::Corrupt(e.to_string()))
}

/// Checks a policy. The error names the field of the API.
fn check_policy(policy: &CreditPolicy) -> Result<()> {
    policy.validate().map_err(|error| invalid(error.field(), error.to_string()))
}

/// The class that a request names, if it names one.
///
/// # Errors
/// It does not exist.
pub(super) async fn named_by(q: &mut dyn Query, settings: &PortSettings) -> Result<Classes> {
    let mut classes = Classes::new();
    if let Some(id) = settings.network_class.flatten() {
        classes.insert(id, get(q, id).await?);
    }
    Ok(classes)
}

/// The classes that the requests for instances name.
///
/// # Errors
/// One of them does not exist.
pub(super) async fn requested(q: &mut dyn Query, new: &[NewInstance]) -> Result<Classes> {
    let mut classes = Classes::new();
    for (index, one) in new.iter().enumerate() {
        if let Some(id) = one.settings.network_class.flatten().filter(|id| !classes.contains_key(id)) {
            let class: NetworkClass = get(q, id).await.map_err(|e| in_bulk(new, index, e))?;
            classes.insert(id, class);
        }
    }
    Ok(classes)
}

/// What an instance has of one of the classes.
///
/// # Errors
/// It is not one of them.
pub(super) fn class_of(classes: &Classes, id: NetworkClassId) -> Result<Box<ClassOfInstance>> {
    match classes.get(&id) {
        Some(class) => Ok(Box::new(ClassOfInstance { id, policy: class.policy })),
        None => Err(StoreError::NotFound { kind: KIND, id: id.to_string() }),
    }
}

async fn named(q: &mut dyn Query, name: &str) -> Result<Option<NetworkClass>> {
    find_one(q, vec![("name", name.into())]).await
}

/// The class of instances that have none of their own.
pub(super) async fn default_class(q: &mut dyn Query) -> Result<Option<NetworkClass>> {
    find_one(q, vec![("is_default", true.into())]).await
}

/// Another class becomes the default: the one that is it is an ordinary class from now on.
async fn replace_default(w: &mut Write) -> Result<()> {
    let Some(old) = default_class(w.q()).await? else { return Ok(()) };
    let after = NetworkClass { is_default: false, revision: w.revision, ..old };
    let sql = "UPDATE network_classes SET is_default = 0, revision = $2 WHERE id = $1";
    w.q().run(sql, args![after.id.get(), after.revision]).await?;
    w.push(&Change::NetworkClassUpserted(after))
}

pub(crate) async fn create(w: &mut Write, new: &NewNetworkClass) -> Result<Created<NetworkClass>> {
    let NewNetworkClass { name, policy, is_default } = new;
    check::name(KIND, name)?;
    check_policy(policy)?;
    if let Some(existing) = named(w.q(), name).await? {
        let has = existing.policy;
        Difference::default()
            .optional("mbps", has.mbps, policy.mbps)
            .optional("kpps", has.kpps, policy.kpps)
            .optional("cpu_permille", has.cpu_permille, policy.cpu_permille)
            .field("is_default", existing.is_default, is_default)
            .conflict(KIND, name)?;
        return Ok(Created::Existing(existing));
    }
    if *is_default {
        replace_default(w).await?;
    }
    let id = NetworkClassId::new(w.id());
    let (name, policy, is_default, revision) = (name.clone(), *policy, *is_default, w.revision);
    let class = NetworkClass { id, name, policy, is_default, revision };
    let sql =
        "INSERT INTO network_classes (id, name, policy, revision, is_default) VALUES ($1, $2, $3, $4, $5)";
    w.q().run(sql, args![id.get(), class.name.as_str(), json(&policy)?, revision, is_default]).await?;
    w.push(&Change::NetworkClassUpserted(class.clone()))?;
    Ok(Created::New(class))
}

pub(crate) async fn update(
    w: &mut Write,
    id: NetworkClassId,
    new: &NetworkClassUpdate,
    expected: Option<u64>,
) -> Result<NetworkClass> {
    let before: NetworkClass = get(w.q(), id).await?;
    check_revision(id, &before, expected)?;
    let name = new.name.clone().unwrap_or_else(|| before.name.clone());
    let policy = CreditPolicy {
        mbps: new.mbps.unwrap_or(before.policy.mbps),
        kpps: new.kpps.unwrap_or(before.policy.kpps),
        cpu_permille: new.cpu_permille.unwrap_or(before.policy.cpu_permille),
    };
    let is_default = new.is_default.unwrap_or(before.is_default);
    check::name(KIND, &name)?;
    check_policy(&policy)?;
    if (&name, policy, is_default) == (&before.name, before.policy, before.is_default) {
        return Ok(before);
    }
    if name != before.name
        && let Some(other) = named(w.q(), &name).await?
    {
        Difference::default().field("the id", other.id, id).conflict(KIND, &name)?;
    }
    if is_default && !before.is_default {
        replace_default(w).await?;
    }
    let after = NetworkClass { id, name, policy, is_default, revision: w.revision };
    let sql =
        "UPDATE network_classes SET name = $2, policy = $3, revision = $4, is_default = $5 WHERE id = $1";
    w.q().run(sql, args![id.get(), after.name.as_str(), json(&policy)?, after.revision, is_default]).await?;
    w.push(&Change::NetworkClassUpserted(after.clone()))?;
    if policy != before.policy {
        push_instances(w, id).await?;
    }
    Ok(after)
}

/// Appends the instances of a class, which have its new policy, to the outbox: those of each VPC in rows of their own.
async fn push_instances(w: &mut Write, id: NetworkClassId) -> Result<()> {
    let sql = "SELECT DISTINCT vpc FROM instances WHERE network_class = $1 ORDER BY vpc";
    let vpcs = w.q().rows(sql, args![id.get()]).await?;
    for vpc in vpcs.iter().map(|row| row.number(0)).collect::<Result<Vec<u64>>>()? {
        let vpc: Vpc = get(w.q(), VpcId::new(vpc)).await?;
        let sql = format!(
            "SELECT {} FROM instances WHERE network_class = $1 AND vpc = $2 AND id > $3 ORDER BY id LIMIT $4",
            Instance::COLUMNS
        );
        let mut after = 0;
        loop {
            let values = args![id.get(), vpc.id.get(), after, INSTANCES_PER_ROW as u64];
            let rows = w.q().rows(&sql, values).await?;
            let instances = rows.iter().map(Instance::decode).collect::<Result<Vec<_>>>()?;
            let Some(last) = instances.last() else { break };
            after = last.id.get();
            let is_full = instances.len() == INSTANCES_PER_ROW;
            w.push(&Change::CreditChanged { vpc: vpc.clone(), instances })?;
            if !is_full {
                break;
            }
        }
    }
    Ok(())
}

pub(crate) async fn delete(w: &mut Write, id: NetworkClassId, expected: Option<u64>) -> Result<u64> {
    let class: NetworkClass = get(w.q(), id).await?;
    check_revision(id, &class, expected)?;
    let sql = "SELECT id, name, (SELECT COUNT(*) FROM instances WHERE network_class = $1) FROM instances \
               WHERE network_class = $1 ORDER BY vpc, id LIMIT 1";
    if let Some(row) = w.q().row(sql, args![id.get()]).await? {
        let first = format!("instance `{}` ({})", row.text(1)?, InstanceId::new(row.number(0)?));
        let user = match row.number(2)? {
            1 => first,
            count => format!("{count} instances, one of which is {first}"),
        };
        return Err(Conflict::InUse { kind: KIND, name: class.name, user }.into());
    }
    w.q().run("DELETE FROM network_classes WHERE id = $1", args![id.get()]).await?;
    w.push(&Change::NetworkClassRemoved(class))?;
    Ok(w.revision)
}
