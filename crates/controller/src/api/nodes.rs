//! Nodes: what gateways and hosts have of what they should have.

use super::problem::Problem;
use super::{Api, App};
use crate::hub::NodeView;
use crate::members::Members;
use crate::southbound::named;
use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

/// What an operator carries to a new node. A secret until it is used.
#[derive(ToSchema)]
#[schema(as = EnrolmentBundle)]
#[allow(dead_code)] // only describes `sluice_southbound::EnrolmentBundle`
pub struct Bundle {
    /// One-time token, good for an hour.
    token: String,
    /// The controller's authority, PEM.
    ca_pem: String,
    /// HOST:PORT of the southbound listener.
    controller: String,
    /// What the controller's certificate is checked for.
    server_name: String,
    /// The node's id.
    #[schema(example = "gw-1")]
    node: String,
    /// `gateway` or `host`.
    role: String,
}

#[derive(Serialize, ToSchema)]
struct Node {
    /// A gateway's or host's id.
    #[schema(example = "gw-1")]
    node: String,
    name: String,
    /// `gateway` or `host`.
    role: &'static str,
    /// Everything up to this revision is in its tables.
    acked: u64,
    /// Of the database, as far as this controller has followed it. What a node
    /// is not concerned by, it acknowledges a moment later.
    current: u64,
    /// Has a stream to this controller.
    connected: bool,
    /// Milliseconds of the UNIX epoch; 0: never.
    last_seen_ms: u64,
    /// What it could not write.
    failures: Vec<String>,
    /// Of its agent; empty until it connects to this controller.
    version: String,
    /// Of its last heartbeat to this controller, like what follows.
    cells_used: u64,
    cells_total: u64,
    packets: u64,
    drops: u64,
    /// Gateways: share of the forwarding cores' time, in thousandths.
    cpu_permille: u32,
    /// Gateways: share of table memory in use, in thousandths.
    memory_permille: u32,
    /// Gateways: every flow is offloaded, for the load is high.
    offload_all: bool,
    tx_bytes: u64,
    tx_packets: u64,
}

impl Node {
    fn new(view: NodeView, node_name: String, current: u64) -> Self {
        let id = named(view.node);
        Self {
            node: id.id(),
            name: node_name,
            role: id.role(),
            acked: view.state.acked,
            current,
            connected: view.connected,
            last_seen_ms: view.state.last_seen_ms,
            failures: view.state.failures,
            version: view.version,
            cells_used: view.heartbeat.cells_used,
            cells_total: view.heartbeat.cells_total,
            packets: view.heartbeat.packets,
            drops: view.heartbeat.drops,
            cpu_permille: view.heartbeat.cpu_permille,
            memory_permille: view.heartbeat.memory_permille,
            offload_all: view.heartbeat.offload_all,
            tx_bytes: view.heartbeat.tx_bytes,
            tx_packets: view.heartbeat.tx_packets,
        }
    }
}

/// All gateways, and all hosts with agents.
#[derive(Serialize, ToSchema)]
struct Nodes {
    items: Vec<Node>,
}

#[utoipa::path(get, path = "/v1/nodes", tag = "nodes", responses((status = 200, body = Nodes)))]
async fn list_nodes(State(api): State<App>) -> Result<Json<Nodes>, Problem> {
    let (nodes, current) = api.core.members(|members| (members.nodes(), Members::revision(members)));
    let one = |(node, name)| Node::new(api.core.hub.view(node), name, current);
    let items = nodes.into_iter().map(one).collect();
    Ok(Json(Nodes { items }))
}

pub(super) fn routes() -> OpenApiRouter<std::sync::Arc<Api>> {
    OpenApiRouter::new().routes(routes!(list_nodes))
}
