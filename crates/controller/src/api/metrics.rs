//! The metrics of the controller, collected for each request of `/metrics`. This file changes when a module
//! gets a metric.

use super::Api;
use crate::clock::now_ms;
use crate::push::{
    BYTES_MAX, Finished, MAX_BYTES, MAX_STEPS, Members, NodeView, PLACES, SLOW_PLACES, southbound_id,
};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use sluice_store::SNAPSHOTS_MAX;
use sluice_types::AnomalyClass;
use std::sync::atomic::{AtomicU64, Ordering};

type Labels = Vec<(String, String)>;

fn counter(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let counter = Counter::<u64>::default();
    counter.inc_by(value);
    registry.register(name, help, counter);
}

fn gauge(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let gauge = Gauge::<i64>::default();
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
    registry.register(name, help, gauge);
}

/// All metrics as text. `answers` has the number of API answers by class.
///
/// # Errors
/// The metrics cannot be formatted.
pub fn text(api: &Api, answers: &[(&str, u64)]) -> Result<String, std::fmt::Error> {
    let mut all = Registry::with_prefix("sluice_controller");
    let registry = &mut all;
    let requests = Family::<Labels, Counter>::default();
    for (class, count) in answers {
        requests.get_or_create(&vec![("class".to_owned(), (*class).to_owned())]).inc_by(*count);
    }
    registry.register("api_requests", "API requests answered, by class of status", requests);
    gauge(registry, "api_connections", "Open connections to the API", api.connections.open() as u64);
    let limit = api.connections.limit() as u64;
    gauge(registry, "api_connections_limit", "Most connections to the API; others wait", limit);
    streams(registry, api);
    snapshots(registry, api);
    let fill = api.push.log.fill();
    let revision = api.push.members(Members::revision);
    gauge(registry, "revision", "Last compiled revision", revision);
    gauge(registry, "log_steps", "Compiled steps kept for nodes", fill.steps as u64);
    gauge(registry, "log_steps_limit", "Most steps that are kept", MAX_STEPS as u64);
    gauge(registry, "log_bytes", "Bytes of compiled steps kept for nodes", fill.bytes as u64);
    gauge(registry, "log_bytes_limit", "Most bytes that are kept", MAX_BYTES as u64);
    let members = api.push.members(Members::nodes);
    let views: Vec<_> = members.into_iter().map(|(node, _)| api.push.hub.view(node)).collect();
    nodes(registry, &views);
    let unconfirmed = api.push.unconfirmed.all().iter().map(|(_, total, _)| total).sum();
    let help = "Entries that connected nodes have and the database lost";
    gauge(registry, "unconfirmed_entries", help, unconfirmed);
    health(registry, api);
    removals(registry, api);
    let (waiting, limit) = api.push.claims.waiting();
    gauge(registry, "address_claims_waiting", "Claims of addresses that wait", waiting as u64);
    gauge(registry, "address_claims_waiting_limit", "Most of address_claims_waiting", limit as u64);
    let (waiting, limit) = api.push.migrations.waiting();
    gauge(registry, "migration_reports_waiting", "Reports of live migrations that wait", waiting as u64);
    gauge(registry, "migration_reports_waiting_limit", "Most of migration_reports_waiting", limit as u64);
    let refused = Family::<Labels, Counter>::default();
    for (reason, count) in api.ownership.refused() {
        refused.get_or_create(&vec![("reason".to_owned(), reason.to_owned())]).inc_by(count);
    }
    registry.register("cluster_refused", "Cluster datagrams that were refused or could not be sent", refused);
    scheduler(registry, api);
    let (last, finished) = api.push.timeline.last();
    counter(registry, "bulks", "Bulk creations that all gateways have acknowledged", finished);
    if let Some(last) = last {
        bulk(registry, &last);
    }
    let mut text = String::new();
    encode(&mut text, &all)?;
    Ok(text)
}

fn streams(registry: &mut Registry, api: &Api) {
    let c = &api.push.counters;
    let all: [(&str, &str, &AtomicU64); 20] = [
        ("snapshots", "Snapshots sent to nodes", &c.snapshots),
        ("steps", "Steps sent to nodes", &c.steps),
        ("sent_bytes", "Bytes of updates sent to nodes", &c.bytes),
        ("enrollments", "Tokens exchanged for certificates", &c.enrolled),
        ("refusals", "Refused enrollments and streams", &c.refused),
        ("digests_equal", "Digests of tables that agree with what was compiled", &c.digests_equal),
        ("digests_different", "Digests of tables that differ from what was compiled", &c.digests_different),
        ("digests_undecided", "Digests of tables not compared because of changes", &c.digests_undecided),
        ("repaired_entries", "Entries that nodes repaired after their digests differed", &c.repaired),
        ("stalled_streams", "Streams ended because the node took or acknowledged nothing", &c.stalled),
        ("acknowledgment_saves", "Transactions that saved what nodes acknowledged", &c.saves),
        ("address_claims", "Addresses of pairs that got another holder", &c.claims),
        ("address_claims_late", "Claims of addresses that their holder announced later", &c.claims_late),
        ("address_claims_refused", "Claims of addresses that were refused", &c.claims_refused),
        ("migrations", "Instances that have migrated to another host", &c.migrations),
        ("migrations_refused", "Hosts that switched to a canceled migration", &c.migrations_refused),
        ("member_changes", "Members of services that got another status", &c.member_changes),
        ("migration_reports_ignored", "Reports of migrations that were ignored", &c.migrations_ignored),
        ("health_migrations", "Migrations that health checks have started", &c.health_migrations),
        ("ending_sessions_answers_ignored", "Answers about sessions that nothing awaits", &c.answers_ignored),
    ];
    for (name, help, value) in all {
        counter(registry, name, help, value.load(Ordering::Relaxed));
    }
    counter(registry, "store_errors", "Failed store calls of background tasks", api.db.errors());
}

/// What the nodes that are connected to this replica have found, by class.
fn health(registry: &mut Registry, api: &Api) {
    let findings = Family::<Labels, Gauge>::default();
    let reports = api.push.health.all();
    for class in AnomalyClass::ALL {
        let all = reports.iter().flat_map(|(_, report)| &report.findings);
        let count = all.filter(|finding| finding.class == class).count();
        let labels = vec![("class".to_owned(), class.to_string())];
        findings.get_or_create(&labels).set(i64::try_from(count).unwrap_or(i64::MAX));
    }
    let help = "Anomalies that connected nodes have found, by class";
    registry.register("health_findings", help, findings);
    let events = api.push.counters.health_events.load(Ordering::Relaxed);
    counter(registry, "health_events", "Events about anomalies that were recorded", events);
}

fn removals(registry: &mut Registry, api: &Api) {
    let pending = &api.push.removals;
    let help = "Deletions that some node which had the entries has not acknowledged";
    gauge(registry, "pending_removals", help, pending.count.load(Ordering::Relaxed));
    let oldest_ms = pending.oldest_ms.load(Ordering::Relaxed);
    let age_ms = if oldest_ms == 0 { 0 } else { now_ms().saturating_sub(oldest_ms) };
    gauge(registry, "oldest_removal_seconds", "Age of the oldest pending removal", age_ms / 1000);
}

fn snapshots(registry: &mut Registry, api: &Api) {
    let figures = api.push.snapshots.figures();
    let read = api.db.store.snapshots_being_read();
    for (name, help, value, limit) in [
        ("snapshots_sending", "Snapshots that nodes are taking", figures.sending, PLACES),
        (
            "snapshots_slow_sending",
            "Snapshots of nodes that did not acknowledge their last one",
            figures.slow_sending,
            SLOW_PLACES,
        ),
        ("snapshot_bytes", "Bytes of gateways' tables that are sent", figures.bytes, BYTES_MAX),
        ("snapshots_reading", "Snapshots that hold a database connection", read, SNAPSHOTS_MAX),
    ] {
        gauge(registry, name, help, value as u64);
        gauge(registry, &format!("{name}_limit"), &format!("Most of {name}"), limit as u64);
    }
    let help = "Nodes that wait until they may be sent a snapshot";
    gauge(registry, "snapshots_waiting", help, figures.waiting as u64);
}

fn nodes(registry: &mut Registry, views: &[NodeView]) {
    let connected = Family::<Labels, Gauge>::default();
    let acked = Family::<Labels, Gauge>::default();
    let failures = Family::<Labels, Gauge>::default();
    for view in views {
        let labels = vec![("node".to_owned(), southbound_id(view.node).id())];
        connected.get_or_create(&labels).set(view.connected.into());
        acked.get_or_create(&labels).set(i64::try_from(view.state.acknowledged_revision).unwrap_or(i64::MAX));
        let count = i64::try_from(view.state.failures.len()).unwrap_or(i64::MAX);
        failures.get_or_create(&labels).set(count);
    }
    registry.register("node_connected", "Whether the node has a stream to this controller", connected);
    registry.register("node_acknowledged_revision", "Last revision that the node acknowledged", acked);
    registry.register("node_failures", "Entries that the node could not write", failures);
}

fn scheduler(registry: &mut Registry, api: &Api) {
    let status = api.place.scheduler.get();
    counter(
        registry,
        "scheduler_moves",
        "vIPs to which the scheduler gave another preferred owner",
        status.moves,
    );
    let help = "New gateways that the scheduler requested";
    counter(registry, "scheduler_gateways_requested", help, status.gateways_requested);
    let help = "Gateways that keep their vIPs only because of a limit";
    gauge(registry, "scheduler_waits", help, status.waits.len() as u64);
    let load = Family::<Labels, Gauge<f64, AtomicU64>>::default();
    for gateway in status.reports.iter().flat_map(|cluster| &cluster.gateways) {
        load.get_or_create(&vec![("gateway".to_owned(), gateway.id.to_string())]).set(gateway.load);
    }
    registry.register("scheduler_gateway_load", "Load of each gateway as the scheduler computes it", load);
}

fn bulk(registry: &mut Registry, last: &Finished) {
    let stages = Family::<Labels, Gauge<f64, AtomicU64>>::default();
    let all = [
        ("parse", last.api.parse),
        ("store", last.api.store),
        ("read", last.compile.read),
        ("compile", last.compile.compile),
        ("send", last.send),
        ("ack", last.ack),
        ("total", last.total),
    ];
    for (stage, duration) in all {
        let labels = vec![("stage".to_owned(), stage.to_owned())];
        stages.get_or_create(&labels).set(duration.as_secs_f64());
    }
    registry.register("bulk_stage_seconds", "Duration of each stage of the last bulk creation", stages);
    gauge(registry, "bulk_instances", "Instances of the last bulk creation", last.instances as u64);
    gauge(registry, "bulk_revision", "Revision of the last bulk creation", last.revision);
}
