//! Clusters, their gateways, and hosts: what has addresses in the underlay.

use super::{events, families, keys, places, unused};
use crate::backend::Query;
use crate::check::{self, Difference};
use crate::rows::{check_revision, find, find_one, get};
use crate::value::{args, list};
use crate::write::Write;
use crate::{Change, Cluster, Conflict, Created, Gateway, Host, NewGateway, NewHost, Result};
use serde_json::json;
use sluice_types::{ClusterId, GatewayId, HELLO_MS_DEFAULT, HostId};
use std::net::IpAddr;

/// No plan is of a later revision, whoever says so.
const PLAN_REVISION_MAX: u64 = 1 << 60;

/// Takes addresses of the underlay for one owner; each has one owner only.
async fn claim(q: &mut dyn Query, addresses: &[IpAddr], kind: &str, owner: u64, name: &str) -> Result<()> {
    for address in addresses {
        let sql = "SELECT kind, owner_name FROM underlay WHERE address = $1";
        if let Some(row) = q.row(sql, args![address.to_string()]).await? {
            let owner = format!("{} `{}`", row.text(0)?, row.text(1)?);
            return Err(Conflict::UnderlayAddressTaken { address: address.to_string(), owner }.into());
        }
        let sql = "INSERT INTO underlay (address, kind, owner, owner_name) VALUES ($1, $2, $3, $4)";
        q.run(sql, args![address.to_string(), kind, owner, name]).await?;
    }
    Ok(())
}

async fn release(q: &mut dyn Query, owner: u64) -> Result<()> {
    q.run("DELETE FROM underlay WHERE owner = $1", args![owner]).await.map(drop)
}

/// Something about a cluster or its gateways changed: homes are settled anew, and
/// nodes learn of it all.
pub(super) async fn replan(w: &mut Write, mut cluster: Cluster, newcomers: &[GatewayId]) -> Result<Cluster> {
    let gateways: Vec<Gateway> = find(w.q(), vec![("cluster", cluster.id.get().into())]).await?;
    places::settle(&mut cluster, &gateways, newcomers);
    cluster.plan_revision = next_plan(&cluster, w.revision);
    save_plan(w, &cluster).await?;
    w.push(&Change::ClusterUpserted { cluster: cluster.clone(), gateways })?;
    Ok(cluster)
}

/// The revision of a changed plan: above the one before it, which may be above the database's ([`raise_plan`]).
pub(super) fn next_plan(cluster: &Cluster, revision: u64) -> u64 {
    revision.max(cluster.plan_revision.saturating_add(1))
}

/// Gateways have a plan of a revision that this database has not: it was restored from a backup. They keep to
/// that plan until there is a newer one, so this one becomes newer. True if it was older.
pub(crate) async fn raise_plan(w: &mut Write, id: ClusterId, above: u64) -> Result<bool> {
    let mut cluster: Cluster = get(w.q(), id).await?;
    if cluster.plan_revision >= above || above > PLAN_REVISION_MAX {
        return Ok(false);
    }
    cluster.plan_revision = w.revision.max(above + 1);
    save_plan(w, &cluster).await?;
    let text = format!(
        "gateways of cluster `{}` had a newer plan than the database, which is told again",
        cluster.name
    );
    events::note(
        w,
        "cluster_plan_raised",
        &id,
        text,
        json!({"known": above, "raised": cluster.plan_revision}),
    )
    .await?;
    let gateways = find(w.q(), vec![("cluster", id.get().into())]).await?;
    w.push(&Change::ClusterUpserted { cluster, gateways })?;
    Ok(true)
}

pub(super) async fn save_plan(w: &mut Write, cluster: &Cluster) -> Result<()> {
    let sql = "UPDATE clusters SET vips = $2, plan_revision = $3, revision = $4 WHERE id = $1";
    let values = args![cluster.id.get(), list(&cluster.vips), cluster.plan_revision, cluster.revision];
    w.q().run(sql, values).await.map(drop)
}

pub(crate) async fn create_cluster(
    w: &mut Write,
    name: &str,
    vips: &[IpAddr],
    hello_ms: Option<u16>,
) -> Result<Created<Cluster>> {
    check::name("cluster", name)?;
    check::vips(vips)?;
    hello_ms.map_or(Ok(()), check::hello)?;
    if let Some(existing) = find_one::<Cluster>(w.q(), vec![("name", name.into())]).await? {
        let addresses = existing.addresses();
        Difference::default()
            .field("vips", list(&addresses), list(vips))
            .given("hello_ms", Some(existing.hello_ms), hello_ms)
            .conflict("cluster", name)?;
        return Ok(Created::Existing(existing));
    }
    let cluster = Cluster {
        id: ClusterId::new(w.id()),
        name: name.to_owned(),
        vips: places::place(&[], vips),
        hello_ms: hello_ms.unwrap_or(HELLO_MS_DEFAULT),
        plan_revision: w.revision,
        revision: w.revision,
    };
    let sql = "INSERT INTO clusters (id, name, vips, hello_ms, plan_revision, revision) \
               VALUES ($1, $2, $3, $4, $5, $5)";
    let values =
        args![cluster.id.get(), name, list(&cluster.vips), u64::from(cluster.hello_ms), cluster.revision];
    w.q().run(sql, values).await?;
    claim(w.q(), vips, "cluster", cluster.id.get(), name).await?;
    w.push(&Change::ClusterUpserted { cluster: cluster.clone(), gateways: Vec::new() })?;
    let now_ms = w.now_ms;
    keys::first(w, cluster.id, now_ms).await?;
    Ok(Created::New(cluster))
}

/// That a cluster may have these vIPs and no others, as far as its hosts and gateways are concerned.
pub(crate) async fn check_vips(q: &mut dyn Query, id: ClusterId, vips: &[IpAddr]) -> Result<()> {
    let before: Cluster = get(q, id).await?;
    let after = Cluster { vips: places::place(&before.vips, vips), ..before.clone() };
    families::fits_still(q, &before, &after).await
}

pub(crate) async fn update_cluster(
    w: &mut Write,
    id: ClusterId,
    vips: &[IpAddr],
    expected: Option<u64>,
) -> Result<Cluster> {
    check::vips(vips)?;
    let mut cluster: Cluster = get(w.q(), id).await?;
    check_revision(id, &cluster, expected)?;
    let placed = places::place(&cluster.vips, vips);
    if placed == cluster.vips {
        return Ok(cluster);
    }
    let before = cluster.clone();
    cluster.vips = placed;
    families::fits_still(w.q(), &before, &cluster).await?;
    cluster.revision = w.revision;
    release(w.q(), id.get()).await?;
    claim(w.q(), vips, "cluster", id.get(), &cluster.name).await?;
    let text = format!("cluster `{}` has {} vIPs now", cluster.name, cluster.vips.len());
    let details = json!({"vips": cluster.addresses(), "revision": w.revision});
    events::note(w, "cluster_vips", &id, text, details).await?;
    replan(w, cluster, &[]).await
}

pub(crate) async fn delete_cluster(w: &mut Write, id: ClusterId, expected: Option<u64>) -> Result<()> {
    let cluster: Cluster = get(w.q(), id).await?;
    check_revision(id, &cluster, expected)?;
    let object = ("cluster", cluster.name.as_str(), id.get());
    unused(
        w.q(),
        object,
        "gateway",
        "SELECT name FROM gateways WHERE cluster = $1 OR other_cluster = $1 LIMIT 1",
    )
    .await?;
    unused(w.q(), object, "VPC", VPC_ON).await?;
    release(w.q(), id.get()).await?;
    keys::forget(w, id).await?;
    w.q().run("DELETE FROM clusters WHERE id = $1", args![id.get()]).await?;
    w.push(&Change::ClusterRemoved(cluster))
}

pub(crate) async fn create_gateway(w: &mut Write, new: &NewGateway) -> Result<Created<Gateway>> {
    check::name("gateway", &new.name)?;
    let vteps: Vec<IpAddr> = new.vtep4.map(IpAddr::V4).into_iter().chain(new.vtep6.map(IpAddr::V6)).collect();
    if vteps.is_empty() {
        return Err(check::invalid("vtep4", "a gateway needs an IPv4 or an IPv6 VTEP address"));
    }
    for vtep in &vteps {
        check::underlay(*vtep)?;
    }
    let cluster: Cluster = get(w.q(), new.cluster).await?;
    if let Some(existing) = find_one::<Gateway>(w.q(), vec![("name", new.name.as_str().into())]).await? {
        Difference::default()
            .field("cluster", existing.cluster, new.cluster)
            .optional("vtep4", existing.vtep4, new.vtep4)
            .optional("vtep6", existing.vtep6, new.vtep6)
            .conflict("gateway", &new.name)?;
        return Ok(Created::Existing(existing));
    }
    let gateway = Gateway {
        id: GatewayId::new(w.id()),
        name: new.name.clone(),
        cluster: new.cluster,
        vtep4: new.vtep4,
        vtep6: new.vtep6,
        draining: false,
        moving: None,
        revision: w.revision,
    };
    families::fits_gateway(&cluster, &gateway)?;
    let (id, vtep4, vtep6) =
        (gateway.id.get(), new.vtep4.map(|a| a.to_string()), new.vtep6.map(|a| a.to_string()));
    claim(w.q(), &vteps, "gateway", id, &new.name).await?;
    let sql =
        "INSERT INTO gateways (id, name, cluster, vtep4, vtep6, revision) VALUES ($1, $2, $3, $4, $5, $6)";
    let revision = w.revision;
    w.q().run(sql, args![id, new.name.as_str(), new.cluster.get(), vtep4, vtep6, revision]).await?;
    replan(w, cluster, &[gateway.id]).await?;
    Ok(Created::New(gateway))
}

/// A VPC on a cluster, or on its way there.
pub(super) const VPC_ON: &str = "SELECT name FROM vpcs WHERE cluster = $1 OR moving_to = $1 LIMIT 1";

/// Whether another gateway of its cluster neither drains nor leaves.
pub(super) async fn others_stay(w: &mut Write, gateway: &Gateway) -> Result<bool> {
    let sql = "SELECT id FROM gateways WHERE cluster = $1 AND id <> $2 AND draining = 0 \
               AND (other_cluster IS NULL OR joined = 1) LIMIT 1";
    w.q().any(sql, args![gateway.cluster.get(), gateway.id.get()]).await
}

pub(crate) async fn drain_gateway(
    w: &mut Write,
    id: GatewayId,
    draining: bool,
    expected: Option<u64>,
) -> Result<Gateway> {
    let mut gateway: Gateway = get(w.q(), id).await?;
    check_revision(id, &gateway, expected)?;
    if gateway.draining == draining {
        return Ok(gateway);
    }
    if draining && !others_stay(w, &gateway).await? {
        return Err(Conflict::LastGateway { gateway: gateway.name }.into());
    }
    gateway.draining = draining;
    gateway.revision = w.revision;
    let sql = "UPDATE gateways SET draining = $2, revision = $3 WHERE id = $1";
    w.q().run(sql, args![id.get(), draining, gateway.revision]).await?;
    let cluster: Cluster = get(w.q(), gateway.cluster).await?;
    let details = json!({"cluster": cluster.id.to_string(), "revision": w.revision});
    let (kind, text) = if draining {
        ("gateway_draining", "gives its vIPs to the others of cluster")
    } else {
        ("gateway_undrained", "takes part again in cluster")
    };
    let text = format!("gateway `{}` {text} `{}`", gateway.name, cluster.name);
    events::note(w, kind, &id, text, details).await?;
    let newcomers: &[GatewayId] = if gateway.retires() { &[] } else { &[id] };
    replan(w, cluster, newcomers).await?;
    Ok(gateway)
}

pub(crate) async fn delete_gateway(w: &mut Write, id: GatewayId, expected: Option<u64>) -> Result<()> {
    let gateway: Gateway = get(w.q(), id).await?;
    check_revision(id, &gateway, expected)?;
    let others = "SELECT COUNT(*) FROM gateways WHERE cluster = $1 AND id <> $2 \
                  AND (other_cluster IS NULL OR joined = 1)";
    let others = w.q().row(others, args![gateway.cluster.get(), id.get()]).await?;
    if others.map_or(Ok(0), |row| row.number(0))? == 0 {
        // Its VPCs would have nothing left that forwards for them.
        let object = ("gateway", gateway.name.as_str(), gateway.cluster.get());
        unused(w.q(), object, "VPC", VPC_ON).await?;
    }
    release(w.q(), id.get()).await?;
    w.q().run("DELETE FROM gateways WHERE id = $1", args![id.get()]).await?;
    if forget_node(w.q(), "gateway", id.get()).await? {
        // It may have been of other clusters before.
        keys::want_new(w).await?;
    }
    let cluster = get(w.q(), gateway.cluster).await?;
    replan(w, cluster, &[]).await.map(drop)
}

pub(crate) async fn create_host(w: &mut Write, new: &NewHost) -> Result<Created<Host>> {
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

pub(crate) async fn delete_host(w: &mut Write, id: HostId, expected: Option<u64>) -> Result<()> {
    let host: Host = get(w.q(), id).await?;
    check_revision(id, &host, expected)?;
    let object = ("host", host.name.as_str(), id.get());
    unused(w.q(), object, "instance", "SELECT name FROM instances WHERE host = $1 LIMIT 1").await?;
    release(w.q(), id.get()).await?;
    w.q().run("DELETE FROM hosts WHERE id = $1", args![id.get()]).await?;
    // Of which clusters it has keys is not remembered: it may have had instances of any.
    if forget_node(w.q(), "host", id.get()).await? {
        keys::want_new(w).await?;
    }
    w.push(&Change::HostRemoved(host))
}

/// What is remembered of a node's stream and enrolment goes with the node. True if it ever had a stream, and
/// with it keys.
async fn forget_node(q: &mut dyn Query, kind: &str, id: u64) -> Result<bool> {
    let seen = q.run("DELETE FROM node_states WHERE kind = $1 AND node = $2", args![kind, id]).await?;
    q.run("DELETE FROM enrolment_tokens WHERE kind = $1 AND node = $2", args![kind, id]).await?;
    Ok(seen > 0)
}
