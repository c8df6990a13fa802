//! One consistent picture of everything.

use super::outbox;
use crate::backend::Query;
use crate::rows::{Record, find};
use crate::value::args;
use crate::{Instance, InstancesOf, Peering, Result, Route, SnapshotPart, StoreError, Topology};
use sluice_types::VpcId;
use tokio::sync::mpsc::Sender;

/// Instances read at once.
const PAGE: usize = 8192;

/// Sends the picture that the transaction `q` sees. Ends early, without an
/// error, when nobody listens any more.
pub(crate) async fn send(q: &mut dyn Query, of: InstancesOf, sink: &Sender<SnapshotPart>) -> Result<u64> {
    let topology = topology(q).await?;
    let revision = topology.revision;
    if sink.send(SnapshotPart::Topology(Box::new(topology))).await.is_err() {
        return Ok(revision);
    }
    let mut after = 0;
    loop {
        let page = page(q, of, after).await?;
        let Some(last) = page.last() else { return Ok(revision) };
        after = last.id.get();
        let full = page.len() == PAGE;
        if sink.send(SnapshotPart::Instances(page)).await.is_err() || !full {
            return Ok(revision);
        }
    }
}

async fn topology(q: &mut dyn Query) -> Result<Topology> {
    Ok(Topology {
        revision: outbox::revision(q).await?,
        hosts: find(q, vec![]).await?,
        clusters: find(q, vec![]).await?,
        gateways: find(q, vec![]).await?,
        vpcs: find(q, vec![]).await?,
        subnets: find(q, vec![]).await?,
        routes: routes(q).await?,
        peerings: find::<Peering>(q, vec![]).await?,
    })
}

async fn routes(q: &mut dyn Query) -> Result<Vec<(VpcId, Route)>> {
    let sql = "SELECT r.id, r.route_table, r.prefix, r.peering, r.revision, t.vpc FROM routes r \
               JOIN route_tables t ON t.id = r.route_table ORDER BY r.id";
    q.rows(sql, vec![])
        .await?
        .iter()
        .map(|row| Ok((VpcId::new(row.number(5)?), Route::decode(row)?)))
        .collect()
}

/// Instances after an id, in order of id.
async fn page(q: &mut dyn Query, of: InstancesOf, after: u64) -> Result<Vec<Instance>> {
    let (condition, value) = match of {
        InstancesOf::Cluster(id) => ("vpc IN (SELECT id FROM vpcs WHERE cluster = $1)", id.get()),
        InstancesOf::Host(id) => ("host = $1", id.get()),
    };
    // `id + 0` would keep an index by id away; here it is wanted.
    let sql = format!(
        "SELECT {} FROM instances WHERE {condition} AND id > $2 ORDER BY id LIMIT $3",
        Instance::COLUMNS
    );
    let after = i64::try_from(after).map_err(|e| StoreError::Corrupt(e.to_string()))?;
    q.rows(&sql, args![value, after, PAGE as u64]).await?.iter().map(Instance::decode).collect()
}
