//! What each call of the store does, inside a transaction or over single queries.

pub(crate) mod alloc;
pub(crate) mod bulk;
pub(crate) mod enrolment;
pub(crate) mod events;
pub(crate) mod families;
pub(crate) mod gateway_moves;
pub(crate) mod homes;
pub(crate) mod instances;
pub(crate) mod keys;
pub(crate) mod moves;
pub(crate) mod outbox;
pub(crate) mod peerings;
pub(crate) mod placement;
pub(crate) mod places;
pub(crate) mod plan;
pub(crate) mod routes;
pub(crate) mod settings;
pub(crate) mod snapshot;
pub(crate) mod subnets;
pub(crate) mod tenants;
pub(crate) mod vpcs;

use crate::backend::Query;
use crate::value::args;
use crate::{Conflict, Result};

/// Refuses to remove `kind` `name` while this query finds somebody who uses it;
/// the query selects the user's name.
async fn unused(
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
