//! Live migrations over HTTP, and the reports of the hosts, also of a host that reports to another controller, late or twice.

mod common;

use common::{Basics, Cloud, Node, basics, join};
use reqwest::StatusCode;
use serde_json::{Value, json};
use sluice_southbound::{Identity, MigrationPhase, MigrationSide, MigrationState, Port, Update};

/// A VM on the first of two hosts.
struct Site {
    cloud: Cloud,
    basics: Basics,
    target: String,
    vm: String,
    source_identity: Identity,
    target_identity: Identity,
}

impl Site {
    async fn start() -> Self {
        let cloud = Cloud::start().await;
        let basics = basics(&cloud).await;
        let target = cloud.make("/v1/hosts", json!({"name": "h2", "vtep": "192.0.2.22"})).await;
        let vm = cloud.make(&basics.instances_path(), basics.instance("vm")).await;
        let source_identity = cloud.enroll(&basics.host_path()).await;
        let target_identity = cloud.enroll(&format!("/v1/hosts/{target}")).await;
        Self { cloud, basics, target, vm, source_identity, target_identity }
    }

    async fn join(&self, identity: &Identity) -> Node {
        let mut node = join(&self.cloud, identity, 0, 0).await;
        node.acked_step().await;
        node
    }

    fn instance(&self) -> String {
        format!("/v1/instances/{}", self.vm)
    }

    fn migration(&self) -> String {
        format!("{}/{}/migration", self.basics.instances_path(), self.vm)
    }

    async fn event_kinds(&self) -> Vec<String> {
        let events = self.cloud.get(&format!("/v1/events?subject={}", self.vm)).await;
        let items = events.body["items"].as_array().unwrap();
        items.iter().map(|event| event["kind"].as_str().unwrap().to_owned()).collect()
    }

    async fn wait_for_metric(&self, line: &str) {
        let has = |metrics: &Value| metrics.as_str().is_some_and(|text| text.contains(line));
        self.cloud.wait_until(line, "/metrics", has).await;
    }
}

/// Acknowledges messages until one has a port, and returns that port and its message.
async fn port(node: &mut Node) -> (Port, Update) {
    loop {
        let update = node.next().await;
        if update.revision != 0 {
            node.ack(update.revision).await;
        }
        if let Some(port) = update.ports.first() {
            return (port.clone(), update);
        }
    }
}

async fn report(node: &Node, port: &Port, phase: MigrationPhase, sessions: u64) {
    let migration = port.migration.unwrap().id;
    let state =
        MigrationState { instance: port.instance, migration, phase, sessions, problem: String::new() };
    node.connection.reports.migrations(vec![state]).await.unwrap();
}

#[tokio::test]
async fn instance_migrates_when_its_target_host_says_so() {
    let mut site = Site::start().await;
    let mut source = site.join(&site.source_identity).await;
    let mut target = site.join(&site.target_identity).await;
    assert_eq!(site.cloud.get(&site.instance()).await.body["migration"], Value::Null);
    let body = json!({"host": site.target, "sessions": "none"});
    let started = site.cloud.post(&site.migration(), body.clone()).await;
    assert_eq!(
        (started.status, &started.body["phase"]),
        (StatusCode::CREATED, &json!("preparing")),
        "{}",
        started.body
    );
    assert_eq!(
        (&started.body["from"], &started.body["host"]),
        (&json!(site.basics.host), &json!(site.target))
    );
    assert_eq!(site.cloud.post(&site.migration(), body).await.status, StatusCode::OK, "it is in progress");

    let (outgoing, _) = port(&mut source).await;
    let (incoming, update) = port(&mut target).await;
    let [from, to] = [&outgoing, &incoming].map(|port| port.migration.unwrap());
    assert_eq!(from.side, MigrationSide::Outgoing { to: "192.0.2.22".parse().unwrap() });
    assert_eq!(to.side, MigrationSide::Incoming { from: "192.0.2.21".parse().unwrap() });
    assert_eq!((from.key, update.vrfs.len()), (to.key, 1));
    let shown = site.cloud.get(&site.instance()).await.body;
    assert_eq!(
        (&shown["host"], &shown["migration"]["host"]),
        (&json!(site.basics.host), &json!(site.target))
    );

    report(&target, &incoming, MigrationPhase::Ready, 3).await;
    site.cloud.wait_until("ready", &site.instance(), |vm| vm["migration"]["phase"] == "ready").await;
    let ready = site.cloud.get(&site.migration()).await.body;
    assert_eq!((&ready["copied_sessions"], &ready["sessions"]), (&json!(3), &json!("none")));
    assert!(ready["ready_ms"].as_u64() >= ready["started_ms"].as_u64());
    // The source host cannot decide.
    report(&source, &outgoing, MigrationPhase::Switched, 3).await;
    site.wait_for_metric("migration_reports_ignored_total 1").await;
    assert_eq!(site.cloud.get(&site.instance()).await.body["host"], json!(site.basics.host));

    // The hosts switch while there is no controller.
    site.cloud.restart().await;
    let mut target = site.join(&site.target_identity).await;
    report(&target, &incoming, MigrationPhase::Switched, 5).await;
    let moved =
        site.cloud.wait_until("migrated", &site.instance(), |vm| vm["host"] == json!(site.target)).await;
    assert_eq!(moved["migration"], Value::Null);
    let (now, _) = port(&mut target).await;
    assert_eq!((now.migration, now.instance), (None, incoming.instance));
    report(&target, &incoming, MigrationPhase::Switched, 5).await;
    site.wait_for_metric("migration_reports_ignored_total 1").await;
    site.wait_for_metric("controller_migrations_total 1").await;
    assert_eq!(site.event_kinds().await, ["instance_migration_started", "instance_migrated"]);
    assert_eq!(site.cloud.get(&site.migration()).await.problem().0, 404);
}

#[tokio::test]
async fn canceled_migration_is_rolled_back_and_a_late_switch_is_told() {
    let site = Site::start().await;
    let mut source = site.join(&site.source_identity).await;
    let mut target = site.join(&site.target_identity).await;
    let body = json!({"host": site.target});
    assert_eq!(site.cloud.post(&site.migration(), body.clone()).await.body["sessions"], "copy");
    let (incoming, _) = port(&mut target).await;
    let _ = port(&mut source).await;
    let deleted = site.cloud.delete(&format!("/v1/hosts/{}", site.target)).await;
    assert_eq!(deleted.problem(), (409, "in-use", "the migration of instance `vm`"));
    assert_eq!(site.cloud.delete(&site.migration()).await.status, StatusCode::NO_CONTENT);
    let (back, _) = port(&mut source).await;
    assert_eq!(back.migration, None);
    let gone = tokio::time::timeout(common::PATIENCE, async {
        loop {
            let update = target.next().await;
            if !update.removed_ports.is_empty() {
                return update.removed_ports;
            }
        }
    });
    assert_eq!(gone.await.expect("the port is removed"), [incoming.instance]);
    report(&target, &incoming, MigrationPhase::Switched, 0).await;
    site.wait_for_metric("migrations_refused_total 1").await;
    report(&target, &incoming, MigrationPhase::Switched, 0).await;
    site.wait_for_metric("migration_reports_ignored_total 1").await;
    assert_eq!(site.cloud.get(&site.instance()).await.body["host"], json!(site.basics.host));
    let expected =
        ["instance_migration_started", "instance_migration_cancelled", "instance_migration_refused"];
    assert_eq!(site.event_kinds().await, expected);
    assert_eq!(site.cloud.delete(&site.migration()).await.problem().0, 404);
}

#[tokio::test]
async fn impossible_migrations_are_refused() {
    let site = Site::start().await;
    let foreign = json!({"name": "foreign", "vtep": "192.0.2.29", "agent": false});
    let foreign = site.cloud.make("/v1/hosts", foreign).await;
    let third = site.cloud.make("/v1/hosts", json!({"name": "h3", "vtep": "192.0.2.23"})).await;
    for (body, problem) in [
        (json!({"host": site.basics.host}), (409, "on-host-already", "h")),
        (json!({"host": foreign}), (409, "host-without-vswitch", "foreign")),
        (json!({"host": "host-99999"}), (422, "unknown-reference", "host-99999")),
    ] {
        let refused = site.cloud.post(&site.migration(), body).await;
        assert_eq!(refused.problem(), problem, "{}", refused.body);
    }
    for body in [json!({}), json!({"host": site.target, "sessions": "sync"}), json!({"host": "h2"})] {
        let refused = site.cloud.post(&site.migration(), body).await;
        assert!(refused.status.is_client_error(), "{}", refused.body);
    }
    let other = json!({"name": "other", "tenant": site.basics.tenant});
    let other = site.cloud.make("/v1/vpcs", other).await;
    let elsewhere = format!("/v1/vpcs/{other}/instances/{}/migration", site.vm);
    let body = json!({"host": site.target, "sessions": "reset"});
    assert_eq!(site.cloud.post(&elsewhere, body.clone()).await.problem().0, 404);
    assert_eq!(site.cloud.get(&site.migration()).await.problem().0, 404);
    let started = site.cloud.post(&site.migration(), body).await;
    assert_eq!((started.status, &started.body["sessions"]), (StatusCode::CREATED, &json!("reset")));
    let busy = site.cloud.post(&site.migration(), json!({"host": third})).await;
    assert_eq!(busy.problem(), (409, "instance-migrates", "vm"));
}
