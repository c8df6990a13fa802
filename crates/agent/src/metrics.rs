//! Prometheus metrics, gathered at each scrape. The metrics of a role come from its [`MetricSource`]s. This
//! file changes when a metric is added that all nodes have.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use sluice_datapath::{DropCount, Traffic};
use sluice_southbound::table_name;
use sluice_tables::{TableUsage, drops};

use crate::heartbeat::fills;
use crate::metric_source::{MetricSource, ReasonLabel, counter, gauge};
use crate::{Error, Node, RETRIES_MAX, Role, StreamStatus, error_chain};

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TableLabel {
    table: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct VniReasonLabel {
    vni: u32,
    reason: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct VniLabel {
    vni: u32,
}

/// The values of one scrape.
struct Scrape {
    usage: TableUsage,
    revision: u64,
    retries: usize,
    unconfirmed: usize,
    stream: StreamStatus,
    drops: Vec<DropCount>,
    vni_drops: Vec<DropCount>,
    traffic: Vec<(u32, Traffic)>,
}

/// The name of a drop reason, or its number if this version does not know it.
pub(crate) fn reason_name(number: u32) -> String {
    drops::name(number).map_or_else(|| number.to_string(), ToOwned::to_owned)
}

/// Route `GET /metrics`.
pub fn router<R: Role>(node: Arc<Node<R>>) -> Router {
    Router::new().route("/metrics", get(serve::<R>)).with_state(node)
}

async fn serve<R: Role>(State(node): State<Arc<Node<R>>>) -> Response {
    match scrape(&node).await.map(|scrape| encode(&scrape, &node.metric_sources())) {
        Ok(body) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error_chain(&error)).into_response(),
    }
}

async fn scrape<R: Role>(node: &Node<R>) -> Result<Scrape, Error> {
    let stream = node.status.get();
    let (usage, revision, (retries, unconfirmed), vrfs) = node
        .writer
        .run(|applier| {
            let vrfs: Vec<_> =
                applier.tables.vrfs().map(|entry| (entry.vrf.vni.get(), entry.counters)).collect();
            let waiting = (applier.retries(), applier.unconfirmed().len());
            (applier.tables.usage(), applier.tables.applied_revision(), waiting, vrfs)
        })
        .await?;
    let datapath = node.datapath.clone();
    let read = move || {
        // Index 0 is shared by the VNIs for which no counters were left.
        let own: Vec<_> = vrfs.into_iter().filter(|(_, counters)| *counters != 0).collect();
        let indices: Vec<u32> = own.iter().map(|(_, counters)| *counters).collect();
        let traffic = own.iter().map(|(vni, _)| *vni).zip(datapath.vni_traffic(&indices)?).collect();
        let (drops, vni_drops) = (datapath.drops()?, datapath.vni_drops()?);
        Ok::<_, sluice_datapath::Error>(Scrape {
            usage,
            revision,
            retries,
            unconfirmed,
            stream,
            drops,
            vni_drops,
            traffic,
        })
    };
    Ok(tokio::task::spawn_blocking(read).await.map_err(Error::counters)??)
}

fn encode(scrape: &Scrape, sources: &[Arc<dyn MetricSource>]) -> String {
    let mut registry = Registry::with_prefix("sluice");
    register_stream(&mut registry, scrape);
    register_usage(&mut registry, &scrape.usage);
    register_counters(&mut registry, scrape);
    for source in sources {
        source.register(&mut registry);
    }
    let mut body = String::new();
    text::encode(&mut body, &registry).expect("writing to a string cannot fail");
    body
}

fn register_stream(registry: &mut Registry, scrape: &Scrape) {
    let stream = &scrape.stream;
    gauge(registry, "agent_up", "1 while the agent runs", 1);
    gauge(
        registry,
        "controller_connected",
        "1 while the controller's stream is open",
        stream.connected.into(),
    );
    gauge(
        registry,
        "revision_applied",
        "Controller revision that is completely in the tables",
        scrape.revision,
    );
    gauge(
        registry,
        "unconfirmed_entries",
        "Entries that the controller's database does not have, because it went back to an earlier state",
        scrape.unconfirmed as u64,
    );
    registry.register("controller_streams", "Streams opened to the controller", counter(stream.connections));
    registry.register("update_steps", "Update steps applied to the tables", counter(stream.steps));
    registry.register("update_entries", "Entries in updates of the controller", counter(stream.entries));
    registry.register("update_failures", "Entries that could not be written", counter(stream.failures));
    registry.register("table_digests", "Digests of the tables that were computed", counter(stream.digests));
    let seconds = Counter::<f64, AtomicU64>::default();
    seconds.inc_by(stream.digest_seconds);
    registry.register("table_digest_seconds", "Time that computing digests took", seconds);
    registry.register(
        "table_repairs",
        "Entries that differed from what the controller compiled, and were repaired",
        counter(stream.repaired),
    );
    gauge(
        registry,
        "update_retries_pending",
        "Entries that could not be written and are tried again",
        scrape.retries as u64,
    );
    gauge(registry, "update_retries_limit", "Most entries that are tried again", RETRIES_MAX as u64);
}

fn register_usage(registry: &mut Registry, usage: &TableUsage) {
    let entries = Family::<TableLabel, Gauge>::default();
    let limits = Family::<TableLabel, Gauge>::default();
    let without_limit = [
        ("vteps", usage.vteps),
        ("vips", usage.vips),
        ("groups", usage.groups),
        ("vrfs", usage.vrfs),
        ("ports", usage.ports),
        ("endpoints", usage.endpoints),
        ("senders", usage.senders),
        ("routes", usage.routes),
        ("public_prefixes", usage.public_prefixes),
        ("nat_gateways", usage.nat_gateways),
    ];
    let with_limit = [
        ("cells", usage.cells_used, usage.cells_total),
        ("exact", usage.entries, usage.entry_slots),
        ("conflicts", usage.conflicts, usage.conflict_slots),
        ("counters", usage.counters_used, usage.counters_total),
    ];
    let meters = Some(("meters", usage.meters, usage.meters_total)).filter(|_| usage.meters_total > 0);
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    for (table, used) in without_limit {
        entries.get_or_create(&TableLabel { table }).set(number(used));
    }
    for (table, used, limit) in with_limit.into_iter().chain(meters) {
        entries.get_or_create(&TableLabel { table }).set(number(used));
        limits.get_or_create(&TableLabel { table }).set(number(limit));
    }
    let capacities = Family::<TableLabel, Gauge>::default();
    for fill in fills(usage) {
        if let Some(table) = table_name(fill.table) {
            capacities.get_or_create(&TableLabel { table }).set(number(fill.capacity));
        }
    }
    registry.register("table_entries", "Entries in use, by table", entries);
    registry.register(
        "table_capacity",
        "Entries of which it is certain that the table holds them, with those in use",
        capacities,
    );
    registry.register("table_limit", "Most entries that the table can hold at its present size", limits);
    gauge(
        registry,
        "table_cells_pending",
        "Cells that wait for a grace period before reuse",
        usage.cells_pending,
    );
}

fn register_counters(registry: &mut Registry, scrape: &Scrape) {
    let drops = Family::<ReasonLabel, Counter>::default();
    for count in &scrape.drops {
        drops.get_or_create(&ReasonLabel { reason: reason_name(count.reason) }).inc_by(count.packets);
    }
    registry.register("drops", "Packets dropped, by reason", drops);
    let vni_drops = Family::<VniReasonLabel, Counter>::default();
    for count in &scrape.vni_drops {
        let label = VniReasonLabel { vni: count.vni.unwrap_or(0), reason: reason_name(count.reason) };
        vni_drops.get_or_create(&label).inc_by(count.packets);
    }
    registry.register("vni_drops", "Packets dropped, by VNI and reason", vni_drops);
    let packets = Family::<VniLabel, Counter>::default();
    let bytes = Family::<VniLabel, Counter>::default();
    for (vni, traffic) in &scrape.traffic {
        packets.get_or_create(&VniLabel { vni: *vni }).inc_by(traffic.packets);
        bytes.get_or_create(&VniLabel { vni: *vni }).inc_by(traffic.bytes);
    }
    registry.register("vni_packets", "Tenant packets forwarded, by VNI", packets);
    registry.register("vni_bytes", "Bytes of tenant packets forwarded, by VNI", bytes);
}
