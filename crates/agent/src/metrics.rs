//! Prometheus metrics, gathered when they are asked for. What is a role's own comes from its
//! [`Source`]s.

use std::sync::Arc;

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
use sluice_tables::{Fill, drops};

use crate::apply::chain;
use crate::watch::StreamStatus;
use crate::{Error, Node, Ports};

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TableLabel {
    table: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct ReasonLabel {
    pub reason: String,
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

/// What a role adds to its node's metrics.
pub trait Source: Send + Sync {
    /// Registers its metrics, with their values of now.
    fn register(&self, registry: &mut Registry);
}

/// What one scrape shows.
struct Scrape {
    fill: Fill,
    revision: u64,
    stream: StreamStatus,
    drops: Vec<DropCount>,
    vni_drops: Vec<DropCount>,
    traffic: Vec<(u32, Traffic)>,
}

/// The name of a drop reason; its number where this version does not know it.
pub(crate) fn reason(number: u32) -> String {
    drops::name(number).map_or_else(|| number.to_string(), ToOwned::to_owned)
}

/// `GET /metrics`.
pub fn router<P: Ports>(node: Arc<Node<P>>) -> Router {
    Router::new().route("/metrics", get(serve::<P>)).with_state(node)
}

async fn serve<P: Ports>(State(node): State<Arc<Node<P>>>) -> Response {
    match scrape(&node).await.map(|scrape| encode(&scrape, &node.sources())) {
        Ok(body) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, chain(&error)).into_response(),
    }
}

async fn scrape<P: Ports>(node: &Node<P>) -> Result<Scrape, Error> {
    let stream = node.status.get();
    let (fill, revision, vrfs) = node
        .writer
        .run(|applier| {
            let vrfs: Vec<_> =
                applier.tables.vrfs().map(|entry| (entry.vrf.vni.get(), entry.counters)).collect();
            (applier.tables.fill(), applier.tables.applied_revision(), vrfs)
        })
        .await?;
    let datapath = node.datapath.clone();
    let read = move || {
        // Index 0 is shared by the VNIs that found no counters of their own.
        let own: Vec<_> = vrfs.into_iter().filter(|(_, counters)| *counters != 0).collect();
        let indices: Vec<u32> = own.iter().map(|(_, counters)| *counters).collect();
        let traffic = own.iter().map(|(vni, _)| *vni).zip(datapath.vni_traffic(&indices)?).collect();
        let (drops, vni_drops) = (datapath.drops()?, datapath.vni_drops()?);
        Ok::<_, sluice_datapath::Error>(Scrape { fill, revision, stream, drops, vni_drops, traffic })
    };
    Ok(tokio::task::spawn_blocking(read).await.map_err(|_| Error::WriterGone)??)
}

fn encode(scrape: &Scrape, sources: &[Arc<dyn Source>]) -> String {
    let mut registry = Registry::with_prefix("sluice");
    register_stream(&mut registry, scrape);
    register_fill(&mut registry, &scrape.fill);
    register_counters(&mut registry, scrape);
    for source in sources {
        source.register(&mut registry);
    }
    let mut body = String::new();
    text::encode(&mut body, &registry).expect("a string takes all that is written to it");
    body
}

/// Registers a number that goes up and down.
pub fn gauge(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let gauge = Gauge::<i64>::default();
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
    registry.register(name, help, gauge);
}

/// A number that only goes up.
#[must_use]
pub fn counter(value: u64) -> Counter {
    let counter = Counter::default();
    counter.inc_by(value);
    counter
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
    gauge(registry, "revision_applied", "Controller revision that is wholly in the tables", scrape.revision);
    registry.register("controller_streams", "Streams opened to the controller", counter(stream.connections));
    registry.register("update_steps", "Steps applied to the tables", counter(stream.steps));
    registry.register("update_failures", "Entries that could not be written", counter(stream.failures));
}

fn register_fill(registry: &mut Registry, fill: &Fill) {
    let entries = Family::<TableLabel, Gauge>::default();
    let limits = Family::<TableLabel, Gauge>::default();
    let unlimited = [
        ("vteps", fill.vteps),
        ("vips", fill.vips),
        ("groups", fill.groups),
        ("vrfs", fill.vrfs),
        ("ports", fill.ports),
        ("endpoints", fill.endpoints),
        ("routes", fill.routes),
    ];
    let limited = [
        ("cells", fill.cells_used, fill.cells_total),
        ("exact", fill.entries, fill.entry_slots),
        ("conflicts", fill.conflicts, fill.conflict_slots),
        ("counters", fill.counters_used, fill.counters_total),
    ];
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    for (table, used) in unlimited {
        entries.get_or_create(&TableLabel { table }).set(number(used));
    }
    for (table, used, limit) in limited {
        entries.get_or_create(&TableLabel { table }).set(number(used));
        limits.get_or_create(&TableLabel { table }).set(number(limit));
    }
    registry.register("table_entries", "Entries of a table", entries);
    registry.register("table_limit", "Most entries the table has room for as it is", limits);
    gauge(registry, "table_cells_pending", "Cells that wait for a grace period", fill.cells_pending);
}

fn register_counters(registry: &mut Registry, scrape: &Scrape) {
    let drops = Family::<ReasonLabel, Counter>::default();
    for count in &scrape.drops {
        drops.get_or_create(&ReasonLabel { reason: reason(count.reason) }).inc_by(count.packets);
    }
    registry.register("drops", "Packets dropped, by reason", drops);
    let vni_drops = Family::<VniReasonLabel, Counter>::default();
    for count in &scrape.vni_drops {
        let label = VniReasonLabel { vni: count.vni.unwrap_or(0), reason: reason(count.reason) };
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
