//! Tenants: creation, renaming, deletion.

use super::check_unused;
use crate::check::{self, Difference};
use crate::rows::{check_revision, find_one, get};
use crate::value::args;
use crate::write::Write;
use crate::{Change, Created, Result, Tenant};
use sluice_types::TenantId;

pub(crate) async fn create(w: &mut Write, name: &str) -> Result<Created<Tenant>> {
    check::name("tenant", name)?;
    if let Some(existing) = find_one(w.q(), vec![("name", name.into())]).await? {
        return Ok(Created::Existing(existing));
    }
    let tenant = Tenant { id: TenantId::new(w.id()), name: name.to_owned(), revision: w.revision };
    let sql = "INSERT INTO tenants (id, name, revision) VALUES ($1, $2, $3)";
    w.q().run(sql, args![tenant.id.get(), name, tenant.revision]).await?;
    w.push(&Change::TenantUpserted(tenant.clone()))?;
    Ok(Created::New(tenant))
}

pub(crate) async fn rename(w: &mut Write, id: TenantId, name: &str, expected: Option<u64>) -> Result<Tenant> {
    check::name("tenant", name)?;
    let mut tenant: Tenant = get(w.q(), id).await?;
    check_revision(id, &tenant, expected)?;
    if tenant.name == name {
        return Ok(tenant);
    }
    if let Some(other) = find_one::<Tenant>(w.q(), vec![("name", name.into())]).await? {
        Difference::default().field("the id", other.id, id).conflict("tenant", name)?;
    }
    tenant.name = name.to_owned();
    tenant.revision = w.revision;
    let sql = "UPDATE tenants SET name = $2, revision = $3 WHERE id = $1";
    w.q().run(sql, args![id.get(), name, tenant.revision]).await?;
    w.push(&Change::TenantUpserted(tenant.clone()))?;
    Ok(tenant)
}

pub(crate) async fn delete(w: &mut Write, id: TenantId, expected: Option<u64>) -> Result<u64> {
    let tenant: Tenant = get(w.q(), id).await?;
    check_revision(id, &tenant, expected)?;
    let object = ("tenant", tenant.name.as_str(), id.get());
    check_unused(w.q(), object, "VPC", "SELECT name FROM vpcs WHERE tenant = $1 LIMIT 1").await?;
    check_unused(w.q(), object, "EIP", "SELECT name FROM eips WHERE tenant = $1 LIMIT 1").await?;
    check_unused(w.q(), object, "meter", "SELECT name FROM meters WHERE tenant = $1 LIMIT 1").await?;
    w.q().run("DELETE FROM tenants WHERE id = $1", args![id.get()]).await?;
    w.push(&Change::TenantRemoved(tenant))?;
    Ok(w.revision)
}
