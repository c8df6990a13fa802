//! MAC addresses of address pairs. Instances that list the same address list the same MAC address with it, but no instance
//! of the VPC has it as its own: to neighbors, it would be in two places.

use super::alloc;
use crate::backend::Query;
use crate::rows::Record;
use crate::value::args;
use crate::{Conflict, Instance, InstanceOptions, Result};
use sluice_types::{MacAddr, VpcId};
use std::collections::HashMap;

/// The MAC addresses in the address pairs of a VPC, each with the name of an instance that lists it. This takes time in
/// proportion to the VPC's instances with pairs.
pub(super) async fn read(q: &mut dyn Query, vpc: VpcId) -> Result<HashMap<u64, String>> {
    // The text is how `further::save` writes a pair that has a MAC address.
    let sql = format!(
        "SELECT {} FROM instances WHERE options LIKE '%\"mac\":\"%' \
         AND id IN (SELECT instance FROM further_addresses WHERE vpc = $1 AND kind = 'pair')",
        Instance::COLUMNS
    );
    let mut macs = HashMap::new();
    for row in q.rows(&sql, args![vpc.get()]).await? {
        let Instance { options, name, .. } = Instance::decode(&row)?;
        macs.extend(options.pairs.iter().filter_map(|pair| Some((pair.mac?.to_u64(), name.clone()))));
    }
    Ok(macs)
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
