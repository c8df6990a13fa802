//! Members of services: addition, drain, removal, and the states that hosts and gateways have found. Each is one
//! transaction, so that all nodes learn a state of the service in one step.

use super::{events, families, further, mounts, removals};
use crate::backend::Query;
use crate::rows::{Record, find, find_one, get};
use crate::value::args;
use crate::write::Write;
use crate::{
    Change, Cluster, Created, Host, Instance, InstanceChange, InstanceOptions, MAX_SERVICES_OF_INSTANCE,
    MAX_VNICS_OF_SERVICE, MemberReport, Mount, Result, Service, ServiceConflict, StoreError, StoredMember,
    Vpc,
};
use serde_json::json;
use sluice_types::{
    ClusterId, HostId, InstanceId, MacAddr, MemberId, MemberStatus, SERVICE_MEMBERS_MAX, ServiceId,
};

/// Event kinds.
const ADDED: &str = "member_added";
const REMOVED: &str = "member_removed";
const DRAINING: &str = "member_draining";
const UNDRAINED: &str = "member_undrained";
const UP: &str = "member_up";
const DOWN: &str = "member_down";

/// Most members in one `= ANY(...)` query.
const MEMBERS_PER_QUERY: usize = 4096;

/// The members of a service, in order of id.
pub(crate) async fn of_service(q: &mut dyn Query, service: ServiceId) -> Result<Vec<StoredMember>> {
    find(q, vec![("service", service.get().into())]).await
}

/// The members of a column that have one of these values, in order of id.
async fn with(q: &mut dyn Query, column: &str, values: Vec<i64>) -> Result<Vec<StoredMember>> {
    let mut found = Vec::new();
    let columns = StoredMember::COLUMNS;
    let sql = format!("SELECT {columns} FROM service_members WHERE {column} = ANY($1) ORDER BY id");
    for values in values.chunks(MEMBERS_PER_QUERY) {
        for row in q.rows(&sql, args![values.to_vec()]).await? {
            found.push(StoredMember::decode(&row)?);
        }
    }
    Ok(found)
}

/// The memberships of these instances.
pub(crate) async fn of_instances(q: &mut dyn Query, instances: &[InstanceId]) -> Result<Vec<StoredMember>> {
    with(q, "instance", instances.iter().map(|id| id.get() as i64).collect()).await
}

/// The members on these hosts.
pub(crate) async fn on_hosts(q: &mut dyn Query, hosts: &[HostId]) -> Result<Vec<StoredMember>> {
    with(q, "host", hosts.iter().map(|id| id.get() as i64).collect()).await
}

/// The member that an instance is.
///
/// # Errors
/// [`StoreError::NotFound`] if the instance is not a member of the service.
pub(crate) async fn of_instance(
    q: &mut dyn Query,
    service: ServiceId,
    instance: InstanceId,
) -> Result<StoredMember> {
    let filters = vec![("service", service.get().into()), ("instance", instance.get().into())];
    let found = find_one(q, filters).await?;
    found.ok_or_else(|| StoreError::NotFound { kind: "member", id: format!("{instance} of {service}") })
}

/// Refuses an operation on an instance that is not possible while it is a member of a service.
pub(super) async fn check_no_member(q: &mut dyn Query, instance: &Instance) -> Result<()> {
    if instance.options.member.is_none() {
        return Ok(());
    }
    let sql = "SELECT s.name FROM service_members m JOIN services s ON s.id = m.service WHERE m.instance = $1 \
               ORDER BY m.id LIMIT 1";
    match q.row(sql, args![instance.id.get()]).await? {
        None => Ok(()),
        Some(row) => {
            let (instance, service) = (instance.name.clone(), row.text(0)?.to_owned());
            Err(ServiceConflict::InstanceIsMember { instance, service }.into())
        }
    }
}

/// The lowest number that no member of the service has.
fn free_number(members: &[StoredMember]) -> Option<u8> {
    (1..=SERVICE_MEMBERS_MAX).find(|number| members.iter().all(|member| member.number != *number))
}

/// Checks that the host of a new member can send the packets of all VPCs that have mounts of the service.
async fn check_families(q: &mut dyn Query, service: ServiceId, host: &Host) -> Result<()> {
    let sql = "SELECT v.cluster, MIN(v.name) FROM mounts m JOIN vpcs v ON v.id = m.vpc WHERE m.service = $1 \
               GROUP BY v.cluster \
               UNION SELECT v.moving_to, MIN(v.name) FROM mounts m JOIN vpcs v ON v.id = m.vpc \
               WHERE m.service = $1 AND v.moving_to IS NOT NULL GROUP BY v.moving_to";
    for row in q.rows(sql, args![service.get()]).await? {
        let cluster: Cluster = get(q, ClusterId::new(row.number(0)?)).await?;
        families::check_host(&cluster, row.text(1)?, host)?;
    }
    Ok(())
}

/// Checks that the service may have another member.
async fn check_limits(
    q: &mut dyn Query,
    service: &Service,
    members: usize,
    instance: &Instance,
) -> Result<()> {
    let sql = "SELECT COUNT(*) FROM service_members WHERE instance = $1";
    let memberships = q.row(sql, args![instance.id.get()]).await?.map_or(Ok(0), |row| row.number(0))?;
    if memberships >= MAX_SERVICES_OF_INSTANCE {
        let (instance, max) = (instance.name.clone(), MAX_SERVICES_OF_INSTANCE);
        return Err(ServiceConflict::TooManyServices { instance, max }.into());
    }
    let mounts = mounts::count(q, service.id).await?;
    if mounts * (members as u64 + 1) > MAX_VNICS_OF_SERVICE {
        let (service, max) = (service.name.clone(), MAX_VNICS_OF_SERVICE);
        return Err(ServiceConflict::TooManyVnics { service, max }.into());
    }
    Ok(())
}

/// Records which membership of an instance is the newest, with which its host probes it, and sends its port again.
async fn set_probe(w: &mut Write, instance: &Instance, host: &Host) -> Result<()> {
    let sql = "SELECT MAX(id) FROM service_members WHERE instance = $1";
    let newest = w.q().row(sql, args![instance.id.get()]).await?;
    let newest = newest.map_or(Ok(None), |row| row.opt_int(0))?.map(i64::unsigned_abs);
    let before = instance.options.clone();
    let options = InstanceOptions { member: newest, ..before.clone() };
    // The instance is the same for those who change it: it keeps its revision.
    let after = Instance { options, ..instance.clone() };
    further::save(w.q(), &after).await?;
    let vpc: Vpc = get(w.q(), after.vpc).await?;
    let changes = vec![InstanceChange { before, after }];
    w.push(&Change::InstancesChanged { vpc, hosts: vec![host.clone()], changes })
}

/// Makes an instance of the service's VPC a member.
pub(crate) async fn add(
    w: &mut Write,
    service: ServiceId,
    instance: InstanceId,
) -> Result<Created<StoredMember>> {
    let service: Service = get(w.q(), service).await?;
    let instance: Instance = get(w.q(), instance).await?;
    let members = of_service(w.q(), service.id).await?;
    if let Some(member) = members.iter().find(|member| member.instance == instance.id) {
        return Ok(Created::Existing(member.clone()));
    }
    if instance.vpc != service.vpc {
        let (instance, service) = (instance.name, service.name);
        return Err(ServiceConflict::ForeignMember { instance, service }.into());
    }
    if instance.migration.is_some() {
        return Err(ServiceConflict::MemberMigrates { instance: instance.name }.into());
    }
    let host: Host = get(w.q(), instance.host).await?;
    if !host.agent {
        return Err(ServiceConflict::MemberWithoutVswitch { instance: instance.name, host: host.name }.into());
    }
    let Some(number) = free_number(&members) else {
        let (service, max) = (service.name, SERVICE_MEMBERS_MAX);
        return Err(ServiceConflict::TooManyMembers { service, max }.into());
    };
    check_limits(w.q(), &service, members.len(), &instance).await?;
    check_families(w.q(), service.id, &host).await?;
    let id = MemberId::new(w.id());
    let member = StoredMember {
        id,
        service: service.id,
        instance: instance.id,
        name: instance.name.clone(),
        host: host.id,
        number,
        // No other instance and no other member has the id.
        mac: MacAddr::local(id.get()),
        status: MemberStatus::default(),
        draining: false,
        evidence: String::new(),
        since_ms: w.now_ms,
        revision: w.revision,
    };
    insert(w.q(), &member).await?;
    let mut vnics = Vec::new();
    for mount in find::<Mount>(w.q(), vec![("service", service.id.get().into())]).await? {
        vnics.push(mounts::vnic(w, &mount, &member));
    }
    mounts::insert_vnics(w.q(), &vnics).await?;
    set_probe(w, &instance, &host).await?;
    let text = format!(
        "instance `{}` on host `{}` is a member of service `{}`",
        member.name, host.name, service.name
    );
    let details = json!({ "instance": instance.id.to_string(), "number": number, "vnics": vnics.len() });
    events::record(w, ADDED, &service.id, text, details).await?;
    w.push(&Change::MemberAdded { member: member.clone(), vnics })?;
    Ok(Created::New(member))
}

async fn insert(q: &mut dyn Query, member: &StoredMember) -> Result<()> {
    let sql = "INSERT INTO service_members (id, service, instance, name, host, number, mac, status, draining, evidence, \
               since_ms, revision) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
    let values = args![
        member.id.get(),
        member.service.get(),
        member.instance.get(),
        member.name.as_str(),
        member.host.get(),
        u16::from(member.number),
        member.mac.to_u64(),
        member.status.to_string(),
        member.draining,
        member.evidence.as_str(),
        member.since_ms,
        member.revision,
    ];
    q.run(sql, values).await.map(drop)
}

async fn save(q: &mut dyn Query, member: &StoredMember) -> Result<()> {
    let sql = "UPDATE service_members SET status = $2, draining = $3, evidence = $4, since_ms = $5, revision = $6 \
               WHERE id = $1";
    let values = args![
        member.id.get(),
        member.status.to_string(),
        member.draining,
        member.evidence.as_str(),
        member.since_ms,
        member.revision,
    ];
    q.run(sql, values).await.map(drop)
}

/// Sets whether new flows go to other members.
pub(crate) async fn drain(
    w: &mut Write,
    service: ServiceId,
    instance: InstanceId,
    draining: bool,
) -> Result<StoredMember> {
    let mut member = of_instance(w.q(), service, instance).await?;
    if member.draining == draining {
        return Ok(member);
    }
    (member.draining, member.revision) = (draining, w.revision);
    save(w.q(), &member).await?;
    let service: Service = get(w.q(), service).await?;
    let (kind, what) = if draining { (DRAINING, "drains") } else { (UNDRAINED, "gets new flows again") };
    let text = format!("member `{}` of service `{}` {what}", member.name, service.name);
    let details = json!({ "instance": instance.to_string() });
    events::record(w, kind, &service.id, text, details).await?;
    w.push(&Change::MembersChanged { members: vec![member.clone()] })?;
    Ok(member)
}

/// Removes a member and its vNICs. Sessions that it has end; `drain` comes before if they matter.
pub(crate) async fn remove(w: &mut Write, service: ServiceId, instance: InstanceId) -> Result<u64> {
    let member = of_instance(w.q(), service, instance).await?;
    let service: Service = get(w.q(), service).await?;
    let instance: Instance = get(w.q(), instance).await?;
    let host: Host = get(w.q(), member.host).await?;
    let vnics = mounts::vnics(w.q(), "member", member.id.get()).await?;
    w.q().run("DELETE FROM vnics WHERE member = $1", args![member.id.get()]).await?;
    w.q().run("DELETE FROM service_members WHERE id = $1", args![member.id.get()]).await?;
    set_probe(w, &instance, &host).await?;
    let text = format!("instance `{}` is no member of service `{}` any more", member.name, service.name);
    let details = json!({ "instance": instance.id.to_string(), "number": member.number });
    events::record(w, REMOVED, &service.id, text, details).await?;
    let (id, name, nodes) = (member.id, member.name.clone(), removals::host(w.q(), host.id).await?);
    w.push(&Change::MemberRemoved { member, vnics })?;
    removals::record(w, ("member", id.get(), &name), nodes, &[]).await
}

/// Records what was found of members, and returns those whose status is another one. Members that do not exist any more are
/// ignored.
pub(crate) async fn set_states(w: &mut Write, reports: &[MemberReport]) -> Result<Vec<StoredMember>> {
    let mut changed = Vec::new();
    for report in reports {
        let found: Option<StoredMember> = find_one(w.q(), vec![("id", report.member.get().into())]).await?;
        let Some(mut member) = found.filter(|member| member.status != report.status) else { continue };
        let before = member.status;
        (member.status, member.evidence) = (report.status, report.evidence.clone());
        (member.since_ms, member.revision) = (w.now_ms, w.revision);
        save(w.q(), &member).await?;
        record_state(w, &member, before).await?;
        changed.push(member);
    }
    if !changed.is_empty() {
        w.push(&Change::MembersChanged { members: changed.clone() })?;
    }
    Ok(changed)
}

/// Records the event of another status.
async fn record_state(w: &mut Write, member: &StoredMember, before: MemberStatus) -> Result<()> {
    let service: Service = get(w.q(), member.service).await?;
    let (kind, what) = match member.status {
        MemberStatus::Waiting => return Ok(()),
        MemberStatus::Up => (UP, "is up"),
        MemberStatus::VmSilent => (DOWN, "is down: its VM does not answer"),
        MemberStatus::HostUnreachable => (DOWN, "is down: its host is unreachable"),
    };
    let text = format!("member `{}` of service `{}` {what}", member.name, service.name);
    let details = json!({
        "instance": member.instance.to_string(), "host": member.host.to_string(), "status": member.status,
        "before": before, "evidence": member.evidence,
    });
    events::record(w, kind, &service.id, text, details).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_number_is_assigned() {
        let member = |number: u8| StoredMember {
            id: MemberId::new(number.into()),
            service: ServiceId::new(1),
            instance: InstanceId::new(number.into()),
            name: String::new(),
            host: HostId::new(1),
            number,
            mac: MacAddr::local(number.into()),
            status: MemberStatus::Up,
            draining: false,
            evidence: String::new(),
            since_ms: 0,
            revision: 1,
        };
        assert_eq!(free_number(&[]), Some(1));
        assert_eq!(free_number(&[member(1), member(3)]), Some(2));
        let all: Vec<_> = (1..=SERVICE_MEMBERS_MAX).map(member).collect();
        assert_eq!(free_number(&all), None);
        assert_eq!(free_number(&all[..126]), Some(SERVICE_MEMBERS_MAX));
    }
}
