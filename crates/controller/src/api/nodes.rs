//! Nodes: which revision gateways and hosts have written, and what they report.

use super::problem::Problem;
use super::{Api, App};
use crate::push::Members;
use crate::push::NodeView;
use crate::push::southbound_id;
use axum::Json;
use axum::extract::State;
use serde::Serialize;
use sluice_southbound::proto::TableFill;
use sluice_southbound::table_name;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

/// What an operator copies to a new node. It is secret until it is used.
#[derive(ToSchema)]
#[schema(as = EnrollmentBundle)]
#[allow(dead_code)] // only describes `sluice_southbound::EnrollmentBundle`
pub struct Bundle {
    /// One-time token, valid for an hour.
    token: String,
    /// Certificate of the controller's certificate authority, in PEM.
    ca_pem: String,
    /// HOST:PORT of the southbound listener.
    controller: String,
    /// Name that the controller's certificate must have.
    server_name: String,
    /// Id of the node.
    #[schema(example = "gw-1")]
    node: String,
    /// `gateway` or `host`.
    role: String,
}

/// How full a table of a gateway is.
#[derive(Serialize, ToSchema)]
#[schema(as = NodeTable)]
struct Table {
    /// `entries` (addresses, VNIs and senders), `entries_with_ipv6` (the same, if one of the further entries is an
    /// IPv6 address), `routes` or `vrfs` (which share their memory).
    #[schema(example = "entries")]
    table: &'static str,
    /// Entries in use.
    used: u64,
    /// Entries that certainly fit, with those in use.
    capacity: u64,
}

#[derive(Serialize, ToSchema)]
struct Node {
    /// Id of the gateway or host.
    #[schema(example = "gw-1")]
    node: String,
    name: String,
    /// `gateway` or `host`.
    role: &'static str,
    /// The node has written all entries up to this revision.
    acknowledged_revision: u64,
    /// Revision of the database that this controller has compiled. A node acknowledges revisions that have
    /// no entries for it a moment later.
    current: u64,
    /// The node has a stream to this controller.
    connected: bool,
    /// Time of the last message in milliseconds of the UNIX epoch; 0 if there was none.
    last_seen_ms: u64,
    /// Entries that the node could not write.
    failures: Vec<String>,
    /// Version of its agent. Empty until it connects to this controller.
    version: String,
    /// Used cells of its tables, in its last heartbeat to this controller.
    cells_used: u64,
    /// Cells of its tables.
    cells_total: u64,
    /// Gateways: how full the tables are, from which admission of new objects follows.
    tables: Vec<Table>,
    /// Packets received since its programs were loaded.
    packets: u64,
    /// Packets dropped since its programs were loaded.
    drops: u64,
    /// Gateways: busy time of the forwarding cores, in thousandths.
    cpu_permille: u32,
    /// Gateways: used table memory, in thousandths.
    memory_permille: u32,
    /// Gateways: every flow is offloaded, because the load is high.
    offload_all: bool,
    /// Bytes sent.
    tx_bytes: u64,
    /// Packets sent.
    tx_packets: u64,
}

impl Node {
    fn new(view: NodeView, node_name: String, current: u64) -> Self {
        let id = southbound_id(view.node);
        let table = |fill: &TableFill| {
            let TableFill { used, capacity, .. } = *fill;
            Some(Table { table: table_name(fill.table)?, used, capacity })
        };
        Self {
            node: id.id(),
            name: node_name,
            role: id.role(),
            acknowledged_revision: view.state.acknowledged_revision,
            current,
            connected: view.connected,
            last_seen_ms: view.state.last_seen_ms,
            failures: view.state.failures,
            version: view.version,
            cells_used: view.heartbeat.cells_used,
            cells_total: view.heartbeat.cells_total,
            tables: view.heartbeat.tables.iter().filter_map(table).collect(),
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
    let (nodes, current) = api.push.members(|members| (members.nodes(), Members::revision(members)));
    let one = |(node, name)| Node::new(api.push.hub.view(node), name, current);
    let items = nodes.into_iter().map(one).collect();
    Ok(Json(Nodes { items }))
}

pub(super) fn routes() -> OpenApiRouter<std::sync::Arc<Api>> {
    OpenApiRouter::new().routes(routes!(list_nodes))
}
