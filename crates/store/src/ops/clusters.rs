//! Clusters: creation, vIPs, hello interval, deletion, and the assignment of vIPs to gateways.
//!
//! The assignment says which gateway is the preferred owner of each vIP. Gateways apply it only if its
//! revision is higher than the one they have.

use super::removals::{self, Hold};
use super::underlay::{claim, release};
use super::{check_unused, events, families, keys, vip_slots};
use crate::backend::Query;
use crate::check::{self, Difference};
use crate::rows::{check_revision, find, find_one, get};
use crate::value::{args, list};
use crate::write::Write;
use crate::{Change, Cluster, Created, Gateway, Result};
use serde_json::json;
use sluice_types::{ClusterId, GatewayId, HELLO_INTERVAL_MS_DEFAULT};
use std::net::IpAddr;

/// Highest revision of an assignment that gateways may report. A higher one is not plausible and is ignored.
const ASSIGNMENT_REVISION_MAX: u64 = 1 << 60;

/// Selects a VPC that a cluster carries or that moves to it.
pub(super) const VPC_ON_CLUSTER: &str = "SELECT name FROM vpcs WHERE cluster = $1 OR moving_to = $1 LIMIT 1";

/// Updates the assignment after a change of the cluster or its gateways, and publishes both to the nodes.
/// `newcomers` are gateways that have just joined or can own vIPs again.
pub(super) async fn publish_assignment(
    w: &mut Write,
    mut cluster: Cluster,
    newcomers: &[GatewayId],
) -> Result<Cluster> {
    let gateways: Vec<Gateway> = find(w.q(), vec![("cluster", cluster.id.get().into())]).await?;
    vip_slots::choose_preferred_owners(&mut cluster, &gateways, newcomers);
    cluster.vip_plan_revision = next_assignment_revision(&cluster, w.revision);
    save_assignment(w, &cluster).await?;
    w.push(&Change::ClusterUpserted { cluster: cluster.clone(), gateways })?;
    Ok(cluster)
}

/// The revision of a changed assignment. It is higher than the previous one, which may be higher than the
/// revision of the database ([`reissue_assignment`]).
fn next_assignment_revision(cluster: &Cluster, revision: u64) -> u64 {
    revision.max(cluster.vip_plan_revision.saturating_add(1))
}

/// Raises the revision of the assignment above `known`, the revision that gateways have, so that they apply
/// the assignment of this database. Theirs can be higher if the database was restored from a backup. Returns
/// false if the database's revision is not lower, or `known` is not plausible.
pub(crate) async fn reissue_assignment(w: &mut Write, id: ClusterId, known: u64) -> Result<bool> {
    let mut cluster: Cluster = get(w.q(), id).await?;
    if cluster.vip_plan_revision >= known || known > ASSIGNMENT_REVISION_MAX {
        return Ok(false);
    }
    cluster.vip_plan_revision = w.revision.max(known + 1);
    save_assignment(w, &cluster).await?;
    let text = format!(
        "gateways of cluster `{}` had a newer vIP assignment than the database; the database's is issued again",
        cluster.name
    );
    let details = json!({"known": known, "reissued": cluster.vip_plan_revision});
    events::record(w, "cluster_assignment_reissued", &id, text, details).await?;
    let gateways = find(w.q(), vec![("cluster", id.get().into())]).await?;
    w.push(&Change::ClusterUpserted { cluster, gateways })?;
    Ok(true)
}

async fn save_assignment(w: &mut Write, cluster: &Cluster) -> Result<()> {
    let sql = "UPDATE clusters SET vips = $2, plan_revision = $3, revision = $4 WHERE id = $1";
    let values = args![cluster.id.get(), list(&cluster.vips), cluster.vip_plan_revision, cluster.revision];
    w.q().run(sql, values).await.map(drop)
}

pub(crate) async fn create(
    w: &mut Write,
    name: &str,
    vips: &[IpAddr],
    hello_interval_ms: Option<u16>,
) -> Result<Created<Cluster>> {
    check::name("cluster", name)?;
    check::vips(vips)?;
    hello_interval_ms.map_or(Ok(()), check::hello_interval)?;
    if let Some(existing) = find_one::<Cluster>(w.q(), vec![("name", name.into())]).await? {
        let addresses = existing.addresses();
        Difference::default()
            .field("vips", list(&addresses), list(vips))
            .given("hello_interval_ms", Some(existing.hello_interval_ms), hello_interval_ms)
            .conflict("cluster", name)?;
        return Ok(Created::Existing(existing));
    }
    let cluster = Cluster {
        id: ClusterId::new(w.id()),
        name: name.to_owned(),
        vips: vip_slots::assign_slots(&[], vips),
        hello_interval_ms: hello_interval_ms.unwrap_or(HELLO_INTERVAL_MS_DEFAULT),
        vip_plan_revision: w.revision,
        revision: w.revision,
    };
    let sql = "INSERT INTO clusters (id, name, vips, hello_ms, plan_revision, revision) \
               VALUES ($1, $2, $3, $4, $5, $5)";
    let values = args![
        cluster.id.get(),
        name,
        list(&cluster.vips),
        u64::from(cluster.hello_interval_ms),
        cluster.revision
    ];
    w.q().run(sql, values).await?;
    claim(w.q(), vips, "cluster", cluster.id.get(), name).await?;
    w.push(&Change::ClusterUpserted { cluster: cluster.clone(), gateways: Vec::new() })?;
    let now_ms = w.now_ms;
    keys::add_first(w, cluster.id, now_ms).await?;
    Ok(Created::New(cluster))
}

/// Checks that the hosts and gateways of a cluster have the address families of these vIPs.
pub(crate) async fn check_vips(q: &mut dyn Query, id: ClusterId, vips: &[IpAddr]) -> Result<()> {
    let before: Cluster = get(q, id).await?;
    let after = Cluster { vips: vip_slots::assign_slots(&before.vips, vips), ..before.clone() };
    families::check_vip_change(q, &before, &after).await
}

pub(crate) async fn replace_vips(
    w: &mut Write,
    id: ClusterId,
    vips: &[IpAddr],
    expected: Option<u64>,
) -> Result<Cluster> {
    check::vips(vips)?;
    let mut cluster: Cluster = get(w.q(), id).await?;
    check_revision(id, &cluster, expected)?;
    let updated = vip_slots::assign_slots(&cluster.vips, vips);
    if updated == cluster.vips {
        return Ok(cluster);
    }
    let before = cluster.clone();
    cluster.vips = updated;
    families::check_vip_change(w.q(), &before, &cluster).await?;
    cluster.revision = w.revision;
    release(w.q(), id.get()).await?;
    claim(w.q(), vips, "cluster", id.get(), &cluster.name).await?;
    let text = format!("cluster `{}` now has {} vIPs", cluster.name, cluster.vips.len());
    let details = json!({"vips": cluster.addresses(), "revision": w.revision});
    events::record(w, "cluster_vips", &id, text, details).await?;
    publish_assignment(w, cluster, &[]).await
}

pub(crate) async fn delete(w: &mut Write, id: ClusterId, expected: Option<u64>) -> Result<u64> {
    let cluster: Cluster = get(w.q(), id).await?;
    check_revision(id, &cluster, expected)?;
    let object = ("cluster", cluster.name.as_str(), id.get());
    check_unused(
        w.q(),
        object,
        "gateway",
        "SELECT name FROM gateways WHERE cluster = $1 OR other_cluster = $1 LIMIT 1",
    )
    .await?;
    check_unused(w.q(), object, "VPC", VPC_ON_CLUSTER).await?;
    let pools = "SELECT name FROM public_pools WHERE cluster = $1 LIMIT 1";
    check_unused(w.q(), object, "public pool", pools).await?;
    release(w.q(), id.get()).await?;
    keys::delete_all(w, id).await?;
    w.q().run("DELETE FROM clusters WHERE id = $1", args![id.get()]).await?;
    let nodes = removals::clusters_and_hosts(w.q(), [id]).await?;
    let holds: Vec<_> = cluster.addresses().into_iter().map(Hold::Underlay).collect();
    let name = cluster.name.clone();
    w.push(&Change::ClusterRemoved(cluster))?;
    removals::record(w, ("cluster", id.get(), &name), nodes, &holds).await
}

/// Changes the preferred owner of a vIP from `from` to `to`. Returns false and changes nothing if the
/// preferred owner is another gateway, or if `to` is not a gateway of the cluster, drains, leaves, or has no
/// VTEP of the vIP's family.
pub(crate) async fn set_preferred_owner(
    w: &mut Write,
    id: ClusterId,
    address: IpAddr,
    from: GatewayId,
    to: GatewayId,
) -> Result<bool> {
    let mut cluster: Cluster = get(w.q(), id).await?;
    let gateways: Vec<Gateway> = find(w.q(), vec![("cluster", id.get().into())]).await?;
    let can_own = |gateway: &Gateway| {
        gateway.id == to && !gateway.is_retiring() && gateway.has_family(address.is_ipv4())
    };
    let vip = cluster.vips.iter_mut().find(|vip| vip.address == address && vip.preferred_owner == Some(from));
    let Some(vip) = vip.filter(|_| gateways.iter().any(can_own)) else { return Ok(false) };
    vip.preferred_owner = Some(to);
    cluster.vip_plan_revision = next_assignment_revision(&cluster, w.revision);
    save_assignment(w, &cluster).await?;
    w.push(&Change::ClusterUpserted { cluster, gateways })?;
    Ok(true)
}

/// Sets the interval between two hellos of the gateways of a cluster.
pub(crate) async fn set_hello_interval(
    w: &mut Write,
    id: ClusterId,
    hello_interval_ms: u16,
    expected: Option<u64>,
) -> Result<Cluster> {
    check::hello_interval(hello_interval_ms)?;
    let mut cluster: Cluster = get(w.q(), id).await?;
    check_revision(id, &cluster, expected)?;
    if cluster.hello_interval_ms == hello_interval_ms {
        return Ok(cluster);
    }
    let text = format!(
        "the hello interval of cluster `{}` is now {hello_interval_ms} ms; it was {} ms",
        cluster.name, cluster.hello_interval_ms
    );
    events::record(
        w,
        "cluster_hello",
        &id,
        text,
        json!({"from": cluster.hello_interval_ms, "to": hello_interval_ms}),
    )
    .await?;
    cluster.hello_interval_ms = hello_interval_ms;
    cluster.revision = w.revision;
    let sql = "UPDATE clusters SET hello_ms = $2 WHERE id = $1";
    w.q().run(sql, args![id.get(), u64::from(hello_interval_ms)]).await?;
    publish_assignment(w, cluster, &[]).await
}
