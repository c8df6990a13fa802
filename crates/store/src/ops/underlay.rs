//! Underlay addresses: each belongs to at most one host, gateway or cluster.

use super::removals::{self, Hold};
use crate::backend::Query;
use crate::value::args;
use crate::{Conflict, Result};
use std::net::IpAddr;

/// Assigns addresses to an owner.
///
/// # Errors
/// [`Conflict::UnderlayAddressTaken`] with the present owner.
pub(super) async fn claim(
    q: &mut dyn Query,
    addresses: &[IpAddr],
    kind: &str,
    owner: u64,
    name: &str,
) -> Result<()> {
    for address in addresses {
        let sql = "SELECT kind, owner_name FROM underlay WHERE address = $1";
        if let Some(row) = q.row(sql, args![address.to_string()]).await? {
            let owner = format!("{} `{}`", row.text(0)?, row.text(1)?);
            return Err(Conflict::UnderlayAddressTaken { address: address.to_string(), owner }.into());
        }
        removals::check_free(q, &Hold::Underlay(*address)).await?;
        let sql = "INSERT INTO underlay (address, kind, owner, owner_name) VALUES ($1, $2, $3, $4)";
        q.run(sql, args![address.to_string(), kind, owner, name]).await?;
    }
    Ok(())
}

/// Frees all addresses of an owner.
pub(super) async fn release(q: &mut dyn Query, owner: u64) -> Result<()> {
    q.run("DELETE FROM underlay WHERE owner = $1", args![owner]).await.map(drop)
}
