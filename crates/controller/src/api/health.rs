//! Health: the anomalies that nodes have found, and nodes that are not reached any more. This file changes when the list
//! gets another filter.

use super::problem::Problem;
use super::request::Query;
use super::{Api, App};
use crate::push::{NodeHealth, southbound_id};
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use sluice_store::{NodeId, StoreError};
use sluice_types::AnomalyClass;
use std::net::IpAddr;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// Nodes without a stream whose watchers are looked at.
const ABSENT_MAX: usize = 256;

/// An anomaly that lasts.
#[derive(Serialize, ToSchema)]
struct HealthFinding {
    /// Id of the gateway or host that it was found on.
    #[schema(example = "host-1")]
    node: String,
    name: String,
    /// `server_resources`, `stale_configuration`, `vm_misconfiguration`, `vm_unresponsive`, `nic_fault`,
    /// `hypervisor_fault`, `middlebox_overload`, `vswitch_overload` or `switch_overload`.
    #[schema(example = "nic_fault")]
    class: String,
    /// What it is about: `node`, `interface NAME`, the id of an instance, or `peer VTEP`.
    #[schema(example = "interface eth0")]
    subject: String,
    /// What was measured.
    evidence: String,
    /// What is likely.
    cause: String,
    /// When it was found, in milliseconds of the UNIX epoch by the clock of the node; 0 if that is not known.
    since_ms: u64,
    /// The node does not report any more: this is what it had found before.
    stale: bool,
    /// When the node reported last, in milliseconds of the UNIX epoch, to within a minute; 0 if it never has.
    reported_ms: u64,
}

/// Anomalies of all nodes.
#[derive(Serialize, ToSchema)]
struct Health {
    /// By node, class and subject.
    items: Vec<HealthFinding>,
    /// Nodes that report.
    reporting: usize,
    /// Some node has more anomalies than it reports.
    others: bool,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct HealthQuery {
    /// Only the node with this id or name.
    node: Option<String>,
}

/// Of the nodes that report and watch a node with these VTEPs: those that reach none of them, and all.
fn watchers(reports: &[NodeHealth], vteps: &[IpAddr]) -> (usize, usize) {
    let votes = reports.iter().filter(|health| health.is_fresh).filter_map(|health| {
        let watched = health.report.watched.iter();
        let mut watched = watched.filter(|watched| vteps.contains(&watched.peer)).peekable();
        watched.peek()?;
        Some(watched.all(|watched| watched.is_lost))
    });
    votes.fold((0, 0), |(lost, all), is_lost| (lost + usize::from(is_lost), all + 1))
}

/// Whether three quarters of the watchers do not reach a node: one of them may have another fault itself.
fn is_down((lost, all): (usize, usize)) -> bool {
    lost > 0 && lost * 4 >= all * 3
}

impl Api {
    async fn vteps(&self, node: NodeId) -> Result<Vec<IpAddr>, StoreError> {
        Ok(match node {
            NodeId::Host(id) => vec![self.db.store.host(id).await?.vtep],
            NodeId::Gateway(id) => {
                let gateway = self.db.store.gateway(id).await?;
                gateway.vtep4.map(IpAddr::V4).into_iter().chain(gateway.vtep6.map(IpAddr::V6)).collect()
            }
        })
    }

    /// The finding about a node that has no stream and that most of its watchers do not reach; `None` if they do.
    async fn unreachable(
        &self,
        (node, name): &(NodeId, String),
        reports: &[NodeHealth],
    ) -> Result<Option<HealthFinding>, Problem> {
        let vteps = match self.vteps(*node).await {
            Ok(vteps) => vteps,
            // It was deleted a moment ago.
            Err(StoreError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let (lost, all) = watchers(reports, &vteps);
        Ok(is_down((lost, all)).then(|| HealthFinding {
            node: southbound_id(*node).id(),
            name: name.clone(),
            class: AnomalyClass::ServerResources.to_string(),
            subject: "node".to_owned(),
            evidence: format!(
                "it has no stream to a controller, and {lost} of its {all} watchers get no answer"
            ),
            cause: "the server is down, or has no network, or its agent ended".to_owned(),
            since_ms: 0,
            stale: false,
            reported_ms: reports.iter().find(|it| it.node == *node).map_or(0, |it| it.reported_ms),
        }))
    }
}

/// Lists the anomalies that health checks have found.
#[utoipa::path(get, path = "/v1/health", tag = "nodes", params(HealthQuery),
    responses((status = 200, body = Health)))]
async fn list_health(
    State(api): State<App>,
    Query(query): Query<HealthQuery>,
) -> Result<Json<Health>, Problem> {
    let reports = api.push.node_health().await?;
    let mut nodes = api.push.members(|members| members.nodes());
    if let Some(wanted) = &query.node {
        nodes.retain(|(node, name)| name == wanted || node.to_string() == *wanted);
        if nodes.is_empty() {
            return Err(Problem::bad_request("node", format!("no node has the id or name `{wanted}`")));
        }
    }
    let mut health = Health { items: Vec::new(), reporting: 0, others: false };
    let mut absent = Vec::new();
    for (node, name) in nodes {
        // The reports are in order of nodes.
        let Ok(at) = reports.binary_search_by_key(&node, |health| health.node) else {
            absent.push((node, name));
            continue;
        };
        let NodeHealth { reported_ms, is_fresh, report, .. } = &reports[at];
        health.reporting += usize::from(*is_fresh);
        health.others |= report.others;
        health.items.extend(report.findings.iter().map(|finding| HealthFinding {
            node: southbound_id(node).id(),
            name: name.clone(),
            class: finding.class.to_string(),
            subject: finding.subject.clone(),
            evidence: finding.evidence.clone(),
            cause: finding.cause.clone(),
            since_ms: finding.since_ms,
            stale: !is_fresh,
            reported_ms: *reported_ms,
        }));
        if !is_fresh {
            absent.push((node, name));
        }
    }
    for node in absent.iter().filter(|(node, _)| !api.push.hub.view(*node).connected).take(ABSENT_MAX) {
        health.items.extend(api.unreachable(node, &reports).await?);
    }
    Ok(Json(health))
}

pub(super) fn routes() -> OpenApiRouter<std::sync::Arc<Api>> {
    OpenApiRouter::new().routes(routes!(list_health))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push::{Reported, WatchedNode};
    use sluice_types::HostId;

    #[test]
    fn a_node_is_down_if_most_watchers_reach_none_of_its_addresses() {
        let (vtep, other): (IpAddr, IpAddr) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let report = |is_fresh, watched: &[(IpAddr, bool)]| {
            let watched =
                watched.iter().map(|(peer, is_lost)| WatchedNode { peer: *peer, is_lost: *is_lost });
            let report = Reported { watched: watched.collect(), ..Reported::default() };
            NodeHealth { node: NodeId::Host(HostId::new(9)), reported_ms: 7, is_fresh, report }
        };
        assert_eq!(watchers(&[], &[vtep]), (0, 0));
        let reports = [
            report(true, &[(vtep, true), (other, false)]),
            report(true, &[(vtep, true), (other, true)]),
            report(false, &[(vtep, false), (other, false)]),
        ];
        assert_eq!(watchers(&reports, &[vtep]), (2, 2));
        assert_eq!(watchers(&reports, &[vtep, other]), (1, 2), "a watcher has one vote");
        let down = [(0, 0), (0, 3), (1, 1), (2, 3), (3, 4), (8, 10)].map(is_down);
        assert_eq!(down, [false, false, true, false, true, true]);
    }
}
