//! Snapshots: the topology and instances as of one revision.

use super::{group_sets, history, keys, migrations, mounts, network_classes};
use crate::backend::Query;
use crate::rows::{Record, find};
use crate::schema;
use crate::value::Value;
use crate::{Instance, InstancesOf, Peering, Position, Result, Route, SnapshotPart, Topology, Vpc};
use sluice_types::{ClusterId, HostId, VpcId};
use std::collections::BTreeSet;
use tokio::sync::mpsc::Sender;

/// Instances in one page.
const PAGE: usize = 8192;

/// Which instances are read.
enum Filter {
    Vpcs(Vec<i64>),
    Host(u64),
}

/// Sends the state that the transaction `q` sees. Ends early, without an error, if the receiver is closed.
pub(crate) async fn send(q: &mut dyn Query, of: InstancesOf, sink: &Sender<SnapshotPart>) -> Result<u64> {
    let topology = topology(q).await?;
    let revision = topology.revision;
    let filter = match of {
        InstancesOf::None => Filter::Vpcs(Vec::new()),
        InstancesOf::Host(id) => Filter::Host(id.get()),
        InstancesOf::Around(id) => Filter::Vpcs(vpcs_of_host(q, &topology, id).await?),
        InstancesOf::All => Filter::Vpcs(topology.vpcs.iter().map(|vpc| vpc.id.get() as i64).collect()),
        InstancesOf::Cluster(id) => vpcs_on(&topology, &[id]),
        InstancesOf::Gateway(id) => {
            let gateway = topology.gateways.iter().find(|gateway| gateway.id == id);
            let clusters: Vec<_> = gateway.into_iter().flat_map(|gateway| gateway.clusters()).collect();
            vpcs_on(&topology, &clusters)
        }
    };
    if sink.send(SnapshotPart::Topology(Box::new(topology))).await.is_err() {
        return Ok(revision);
    }
    let mut after = 0;
    loop {
        let page = page(q, &filter, after).await?;
        let Some(last) = page.last() else { break };
        after = last.id.get();
        let full = page.len() == PAGE;
        if sink.send(SnapshotPart::Instances(page)).await.is_err() {
            return Ok(revision);
        }
        if !full {
            break;
        }
    }
    if let Filter::Host(host) = filter {
        let coming = migrations::coming_to(q, HostId::new(host)).await?;
        if !coming.is_empty() {
            // The snapshot ends here: it does not matter whether the receiver is closed.
            let _ = sink.send(SnapshotPart::Instances(coming)).await;
        }
    }
    Ok(revision)
}

/// The instances of a host, then those that migrate to it, and the position that the transaction `q` sees.
pub(crate) async fn of_host(q: &mut dyn Query, host: HostId) -> Result<(Position, Vec<Instance>)> {
    let position = history::newest(q).await?;
    let filter = Filter::Host(host.get());
    let mut instances: Vec<Instance> = Vec::new();
    loop {
        let after = instances.last().map_or(0, |last| last.id.get());
        let mut page = page(q, &filter, after).await?;
        let full = page.len() == PAGE;
        instances.append(&mut page);
        if !full {
            instances.append(&mut migrations::coming_to(q, host).await?);
            return Ok((position, instances));
        }
    }
}

/// The VPCs that have an instance on a host or one that migrates to it, and those peered with them.
async fn vpcs_of_host(q: &mut dyn Query, topology: &Topology, host: HostId) -> Result<Vec<i64>> {
    let sql = "SELECT vpc FROM instances WHERE host = $1 \
               UNION SELECT vpc FROM migrations WHERE target = $1 AND ended = 0";
    let rows = q.rows(sql, vec![host.get().into()]).await?;
    let here = rows.iter().map(|row| row.number(0).map(VpcId::new)).collect::<Result<BTreeSet<_>>>()?;
    let ends = topology.peerings.iter().flat_map(|peering| [(peering.a, peering.b), (peering.b, peering.a)]);
    let peers = ends.filter(|(end, _)| here.contains(end)).map(|(_, peer)| peer);
    let all: BTreeSet<VpcId> = peers.chain(here.iter().copied()).collect();
    Ok(all.into_iter().map(|vpc| vpc.get() as i64).collect())
}

/// Selects the VPCs on these clusters.
fn vpcs_on(topology: &Topology, clusters: &[ClusterId]) -> Filter {
    let on = |vpc: &&Vpc| vpc.clusters().any(|cluster| clusters.contains(&cluster));
    Filter::Vpcs(topology.vpcs.iter().filter(on).map(|vpc| vpc.id.get() as i64).collect())
}

async fn topology(q: &mut dyn Query) -> Result<Topology> {
    let Position { revision, commit } = history::newest(q).await?;
    Ok(Topology {
        revision,
        commit,
        hosts: find(q, vec![]).await?,
        clusters: find(q, vec![]).await?,
        gateways: find(q, vec![]).await?,
        vpcs: find(q, vec![]).await?,
        subnets: find(q, vec![]).await?,
        routes: routes(q).await?,
        peerings: find::<Peering>(q, vec![]).await?,
        security_groups: find(q, vec![]).await?,
        security_rules: find(q, vec![]).await?,
        group_sets: group_sets::all(q).await?,
        eips: find(q, vec![]).await?,
        nat_gateways: find(q, vec![]).await?,
        meters: find(q, vec![]).await?,
        port_forwards: find(q, vec![]).await?,
        default_class: network_classes::default_class(q).await?,
        services: find(q, vec![]).await?,
        service_members: find(q, vec![]).await?,
        mounts: find(q, vec![]).await?,
        vnics: mounts::all_vnics(q).await?,
        mounted_ports: mounts::ports(q, None).await?,
        keys: keys::list(q, None).await?,
        nat_seed: schema::nat_seed(q).await?,
    })
}

async fn routes(q: &mut dyn Query) -> Result<Vec<(VpcId, Route)>> {
    let sql = "SELECT r.id, r.route_table, r.prefix, r.peering, r.internet, r.revision, t.vpc FROM routes r \
               JOIN route_tables t ON t.id = r.route_table ORDER BY r.id";
    q.rows(sql, vec![])
        .await?
        .iter()
        .map(|row| Ok((VpcId::new(row.number(6)?), Route::decode(row)?)))
        .collect()
}

/// Instances after an id, in order of id.
async fn page(q: &mut dyn Query, filter: &Filter, after: u64) -> Result<Vec<Instance>> {
    let (condition, value) = match filter {
        // The `+` prevents the use of the index by VPC: with it, each page would read and sort all remaining
        // instances.
        Filter::Vpcs(vpcs) => ("+vpc = ANY($1)", Value::Ints(vpcs.clone())),
        Filter::Host(id) => ("host = $1", (*id).into()),
    };
    let sql = format!(
        "SELECT {} FROM instances WHERE {condition} AND id > $2 ORDER BY id LIMIT $3",
        Instance::COLUMNS
    );
    q.rows(&sql, vec![value, after.into(), (PAGE as u64).into()])
        .await?
        .iter()
        .map(Instance::decode)
        .collect()
}
