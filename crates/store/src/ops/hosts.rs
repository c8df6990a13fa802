//! Hosts: creation and deletion.

use super::removals::{self, Hold};
use super::underlay::{claim, release};
use super::{check_unused, keys, migrations, southbound};
use crate::check::{self, Difference};
use crate::rows::{check_revision, find_one, get};
use crate::value::args;
use crate::write::Write;
use crate::{Change, Created, Host, NewHost, Result};
use sluice_types::HostId;

pub(crate) async fn create(w: &mut Write, new: &NewHost) -> Result<Created<Host>> {
    check::name("host", &new.name)?;
    check::underlay(new.vtep)?;
    if let Some(existing) = find_one::<Host>(w.q(), vec![("name", new.name.as_str().into())]).await? {
        Difference::default()
            .field("vtep", existing.vtep, new.vtep)
            .field("agent", existing.agent, new.agent)
            .conflict("host", &new.name)?;
        return Ok(Created::Existing(existing));
    }
    let host = Host {
        id: HostId::new(w.id()),
        name: new.name.clone(),
        vtep: new.vtep,
        agent: new.agent,
        revision: w.revision,
    };
    claim(w.q(), &[new.vtep], "host", host.id.get(), &new.name).await?;
    let sql = "INSERT INTO hosts (id, name, vtep, agent, revision) VALUES ($1, $2, $3, $4, $5)";
    let values = args![host.id.get(), new.name.as_str(), new.vtep.to_string(), new.agent, host.revision];
    w.q().run(sql, values).await?;
    w.push(&Change::HostUpserted(host.clone()))?;
    Ok(Created::New(host))
}

pub(crate) async fn delete(w: &mut Write, id: HostId, expected: Option<u64>) -> Result<u64> {
    let host: Host = get(w.q(), id).await?;
    check_revision(id, &host, expected)?;
    let object = ("host", host.name.as_str(), id.get());
    check_unused(w.q(), object, "instance", "SELECT name FROM instances WHERE host = $1 LIMIT 1").await?;
    let sql = "SELECT i.name FROM migrations m JOIN instances i ON i.id = m.instance \
               WHERE m.target = $1 AND m.ended = 0 LIMIT 1";
    check_unused(w.q(), object, "the migration of instance", sql).await?;
    migrations::forget_host(w.q(), id).await?;
    release(w.q(), id.get()).await?;
    w.q().run("DELETE FROM hosts WHERE id = $1", args![id.get()]).await?;
    // The database does not record which clusters' keys the host has: it may have had instances of any VPC.
    if southbound::forget_node(w.q(), "host", id.get()).await? {
        keys::request_renewal_of_all(w).await?;
    }
    let (nodes, holds) = (removals::all_gateways(w.q()).await?, [Hold::Underlay(host.vtep)]);
    let name = host.name.clone();
    w.push(&Change::HostRemoved(host))?;
    removals::record(w, ("host", id.get(), &name), nodes, &holds).await
}
