//! Underlay addresses: each belongs to at most one host, gateway or cluster, and to no pool of public addresses.

use super::public_pools;
use super::removals::{self, HeldKind, Hold};
use crate::backend::Query;
use crate::value::args;
use crate::{Conflict, Result};
use sluice_types::IpNet;
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
        if let Some(pool) = public_pools::containing(q, *address).await? {
            let owner = format!("public pool `{}`", pool.name);
            return Err(Conflict::UnderlayAddressTaken { address: address.to_string(), owner }.into());
        }
        removals::check_free(q, &Hold::Underlay(*address)).await?;
        removals::check_none_held(q, HeldKind::Public, &[IpNet::from(*address)]).await?;
        let sql = "INSERT INTO underlay (address, kind, owner, owner_name) VALUES ($1, $2, $3, $4)";
        q.run(sql, args![address.to_string(), kind, owner, name]).await?;
    }
    Ok(())
}

/// An underlay address in one of these prefixes, and its owner.
pub(super) async fn inside(q: &mut dyn Query, prefixes: &[IpNet]) -> Result<Option<(IpNet, IpAddr, String)>> {
    for row in q.rows("SELECT address, kind, owner_name FROM underlay ORDER BY address", vec![]).await? {
        let address: IpAddr = row.parse(0)?;
        if let Some(prefix) = prefixes.iter().find(|prefix| prefix.contains(&address)) {
            return Ok(Some((*prefix, address, format!("{} `{}`", row.text(1)?, row.text(2)?))));
        }
    }
    Ok(None)
}

/// Frees all addresses of an owner.
pub(super) async fn release(q: &mut dyn Query, owner: u64) -> Result<()> {
    q.run("DELETE FROM underlay WHERE owner = $1", args![owner]).await.map(drop)
}
