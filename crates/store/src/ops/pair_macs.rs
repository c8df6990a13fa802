//! MAC addresses of address pairs. Instances that list the same address list the same MAC address with it, but no instance
//! of the VPC has it as its own: to neighbors, it would be in two places.

use super::alloc;
use crate::backend::Query;
use crate::value::args;
use crate::{Conflict, Instance, InstanceOptions, Result};
use sluice_types::{MacAddr, VpcId};

/// One of these MAC addresses that is in an address pair of the VPC, with the name of an instance that lists it.
pub(super) async fn listed(
    q: &mut dyn Query,
    vpc: VpcId,
    macs: &[MacAddr],
) -> Result<Option<(MacAddr, String)>> {
    let numbers: Vec<i64> = macs.iter().map(|mac| mac.to_u64() as i64).collect();
    let sql = "SELECT f.mac, i.name FROM further_addresses f JOIN instances i ON i.id = f.instance \
               WHERE f.vpc = $1 AND f.mac <> 0 AND f.mac = ANY($2)";
    let row = q.row(sql, args![vpc.get(), numbers]).await?;
    row.map(|row| Ok((MacAddr::from_u64(row.number(0)?), row.text(1)?.to_owned()))).transpose()
}

/// Checks that no other instance of the VPC has a MAC address that a new pair has.
pub(super) async fn check(q: &mut dyn Query, before: &InstanceOptions, after: &Instance) -> Result<()> {
    let is_new = |mac: &MacAddr| before.pairs.iter().all(|pair| pair.mac != Some(*mac));
    let macs: Vec<MacAddr> = after.options.pairs.iter().filter_map(|pair| pair.mac).filter(is_new).collect();
    if macs.is_empty() {
        return Ok(());
    }
    let owners = alloc::mac_owners(q, after.vpc, &macs).await?;
    match owners.into_iter().find(|owner| owner.name != after.name) {
        Some(owner) => Err(Conflict::MacTaken { mac: owner.mac.to_string(), instance: owner.name }.into()),
        None => Ok(()),
    }
}
