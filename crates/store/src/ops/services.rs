//! Services: creation, consent to mounts, deletion. Members are in `members.rs`, mounts in `mounts.rs`.

use super::check_unused;
use crate::backend::Query;
use crate::check::{self, Difference, invalid};
use crate::rows::{check_revision, find_one, get};
use crate::schema::random_id;
use crate::value::{args, list};
use crate::write::Write;
use crate::{
    Change, Created, MAX_TENANTS_OF_SERVICE, NewService, Result, Service, ServiceConflict, ServiceUpdate,
    Tenant, Vpc,
};
use sluice_types::{ServiceId, TenantId};

/// The kind of object in errors.
const KIND: &str = "service";

/// The tenants in ascending order, each of which exists.
async fn checked(q: &mut dyn Query, tenants: &[TenantId]) -> Result<Vec<TenantId>> {
    if tenants.len() > MAX_TENANTS_OF_SERVICE {
        let count = tenants.len();
        let text = format!(
            "{count} tenants; a service can name at most {MAX_TENANTS_OF_SERVICE}: permit all tenants instead"
        );
        return Err(invalid("allow_tenants", text));
    }
    for tenant in tenants {
        get::<Tenant>(q, *tenant).await?;
    }
    let mut sorted = tenants.to_vec();
    sorted.sort();
    sorted.dedup();
    Ok(sorted)
}

/// Tenants as their column has them.
fn column(tenants: &[TenantId]) -> String {
    list(&tenants.iter().map(|tenant| tenant.get()).collect::<Vec<_>>())
}

pub(crate) async fn create(w: &mut Write, new: &NewService) -> Result<Created<Service>> {
    check::name(KIND, &new.name)?;
    let vpc: Vpc = get(w.q(), new.vpc).await?;
    let tenants = match &new.tenants {
        Some(tenants) => Some(checked(w.q(), tenants).await?),
        None => None,
    };
    let named = vec![("vpc", vpc.id.get().into()), ("name", new.name.as_str().into())];
    if let Some(existing) = find_one::<Service>(w.q(), named).await? {
        Difference::default()
            .given("allow_all_tenants", Some(existing.any_tenant), new.any_tenant)
            .given("allow_tenants", Some(list(&existing.tenants)), tenants.as_deref().map(list))
            .conflict(KIND, &new.name)?;
        return Ok(Created::Existing(existing));
    }
    let service = Service {
        id: ServiceId::new(w.id()),
        name: new.name.clone(),
        vpc: vpc.id,
        seed: [random_id()?, random_id()?],
        any_tenant: new.any_tenant.unwrap_or_default(),
        tenants: tenants.unwrap_or_default(),
        revision: w.revision,
    };
    let sql = "INSERT INTO services (id, name, vpc, seed_high, seed_low, any_tenant, tenants, revision) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
    let ([high, low], tenants) = (service.seed, column(&service.tenants));
    let values = args![
        service.id.get(),
        service.name.as_str(),
        vpc.id.get(),
        high,
        low,
        service.any_tenant,
        tenants,
        service.revision
    ];
    w.q().run(sql, values).await?;
    w.push(&Change::ServiceUpserted(service.clone()))?;
    Ok(Created::New(service))
}

/// Whether VPCs of a tenant may mount the service, whose own VPC has the tenant `owner`.
pub(super) fn permits(service: &Service, owner: TenantId, tenant: TenantId) -> bool {
    tenant == owner || service.any_tenant || service.tenants.contains(&tenant)
}

/// Changes which tenants may mount the service. Tenants that have a mount keep their permission.
pub(crate) async fn update(
    w: &mut Write,
    id: ServiceId,
    new: &ServiceUpdate,
    expected: Option<u64>,
) -> Result<Service> {
    let mut service: Service = get(w.q(), id).await?;
    check_revision(id, &service, expected)?;
    let any_tenant = new.any_tenant.unwrap_or(service.any_tenant);
    let tenants = match &new.tenants {
        Some(tenants) => checked(w.q(), tenants).await?,
        None => service.tenants.clone(),
    };
    if (any_tenant, &tenants) == (service.any_tenant, &service.tenants) {
        return Ok(service);
    }
    (service.any_tenant, service.tenants, service.revision) = (any_tenant, tenants, w.revision);
    let owner = get::<Vpc>(w.q(), service.vpc).await?.tenant;
    let sql = "SELECT v.tenant, MIN(m.name), MIN(v.name) FROM mounts m JOIN vpcs v ON v.id = m.vpc \
               WHERE m.service = $1 GROUP BY v.tenant ORDER BY v.tenant";
    for row in w.q().rows(sql, args![id.get()]).await? {
        if !permits(&service, owner, TenantId::new(row.number(0)?)) {
            let (mount, vpc) = (row.text(1)?.to_owned(), row.text(2)?.to_owned());
            return Err(ServiceConflict::StillMounted { service: service.name, mount, vpc }.into());
        }
    }
    let sql = "UPDATE services SET any_tenant = $2, tenants = $3, revision = $4 WHERE id = $1";
    let values = args![id.get(), service.any_tenant, column(&service.tenants), service.revision];
    w.q().run(sql, values).await?;
    w.push(&Change::ServiceUpserted(service.clone()))?;
    Ok(service)
}

/// Deletes a service without members and mounts, which no node has.
pub(crate) async fn delete(w: &mut Write, id: ServiceId, expected: Option<u64>) -> Result<u64> {
    let service: Service = get(w.q(), id).await?;
    check_revision(id, &service, expected)?;
    let object = (KIND, service.name.as_str(), id.get());
    check_unused(w.q(), object, "mount", "SELECT name FROM mounts WHERE service = $1 LIMIT 1").await?;
    let members = "SELECT name FROM service_members WHERE service = $1 LIMIT 1";
    check_unused(w.q(), object, "member", members).await?;
    w.q().run("DELETE FROM services WHERE id = $1", args![id.get()]).await?;
    w.push(&Change::ServiceRemoved(service))?;
    Ok(w.revision)
}
