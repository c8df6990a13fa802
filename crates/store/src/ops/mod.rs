//! The operations of the store: a file for each kind of object, and files for moves, for shared checks and
//! allocation, and for what is not an object. Operations that change objects take a
//! [`Write`](crate::write::Write); the others take a [`Query`], in a transaction or not.

pub(crate) mod adopt;
pub(crate) mod alloc;
pub(crate) mod bulk;
pub(crate) mod bulk_groups;
pub(crate) mod bulk_plan;
mod bulk_survey;
pub(crate) mod claims;
pub(crate) mod clusters;
pub(crate) mod eips;
pub(crate) mod events;
pub(crate) mod families;
pub(crate) mod further;
pub(crate) mod gateway_moves;
pub(crate) mod gateways;
pub(crate) mod group_sets;
pub(crate) mod health;
pub(crate) mod history;
pub(crate) mod hosts;
pub(crate) mod instances;
pub(crate) mod keys;
pub(crate) mod members;
pub(crate) mod meters;
pub(crate) mod migrations;
pub(crate) mod mounts;
pub(crate) mod nat_gateways;
pub(crate) mod network_classes;
pub(crate) mod outbox;
mod pair_macs;
pub(crate) mod peerings;
pub(crate) mod placement_plans;
pub(crate) mod port_forwards;
pub(crate) mod public_pools;
pub(crate) mod removals;
pub(crate) mod routes;
pub(crate) mod security_groups;
pub(crate) mod security_rules;
pub(crate) mod services;
pub(crate) mod settings;
pub(crate) mod snapshot;
pub(crate) mod southbound;
pub(crate) mod subnets;
pub(crate) mod tenants;
pub(crate) mod underlay;
pub(crate) mod vip_slots;
pub(crate) mod vpc_moves;
pub(crate) mod vpcs;

use crate::backend::Query;
use crate::value::args;
use crate::{Conflict, Result};

/// Checks that no other object uses the object `(kind, name, id)`. `query` selects the name of one user by
/// the id.
async fn check_unused(
    q: &mut dyn Query,
    object: (&'static str, &str, u64),
    user_kind: &str,
    query: &'static str,
) -> Result<()> {
    let (kind, name, id) = object;
    match q.row(query, args![id]).await? {
        None => Ok(()),
        Some(row) => {
            let user = format!("{user_kind} `{}`", row.text(0)?);
            Err(Conflict::InUse { kind, name: name.to_owned(), user }.into())
        }
    }
}
