//! One instance: its creation and removal.

use super::{alloc, bulk};
use crate::rows::{check_revision, get};
use crate::value::args;
use crate::write::Write;
use crate::{Change, Created, Instance, NewInstance, Result, StoreError, Vpc};
use sluice_types::{InstanceId, VpcId};
use std::net::IpAddr;

pub(crate) async fn create(w: &mut Write, vpc: VpcId, new: &NewInstance) -> Result<Created<Instance>> {
    let outcome = bulk::create(w, vpc, std::slice::from_ref(new)).await.map_err(|error| match error {
        StoreError::InBulk { source, .. } => *source,
        other => other,
    })?;
    let made = outcome.made.into_iter().next().map(Created::New);
    made.or_else(|| outcome.existing.into_iter().next().map(Created::Existing))
        .ok_or_else(|| StoreError::Corrupt(format!("instance `{}` was neither made nor found", new.name)))
}

pub(crate) async fn delete(w: &mut Write, id: InstanceId, expected: Option<u64>) -> Result<()> {
    let instance: Instance = get(w.q(), id).await?;
    check_revision(id, &instance, expected)?;
    let vpc: Vpc = get(w.q(), instance.vpc).await?;
    w.q().run("DELETE FROM instances WHERE id = $1", args![id.get()]).await?;
    let addresses = instance.ipv4.map(IpAddr::V4).into_iter().chain(instance.ipv6.map(IpAddr::V6));
    for address in addresses {
        alloc::give_back(w.q(), instance.subnet.get(), address).await?;
    }
    w.push(&Change::InstancesRemoved { vpc, instances: vec![instance] })
}
