//! Nodes whose tables are of a history that the database does not have, as after a restored backup.

mod common;

use common::{Basics, Cloud, Node, basics, code};
use reqwest::StatusCode;
use serde_json::{Value, json};
use sluice_southbound::proto::{Heartbeat, Hello, UnconfirmedEntries};
use sluice_southbound::{Endpoint, EndpointKey, Identity, Port, Unconfirmed, connect};
use sluice_types::{InstanceId, MacAddr, Vni};
use std::time::{Duration, Instant};

async fn join(cloud: &Cloud, identity: &Identity, hello: Hello) -> Node {
    let (controller, database) = (cloud.southbound.to_string(), hello.database_id);
    Node { connection: connect(identity, &controller, hello).await.unwrap(), database }
}

/// A Hello of a node that has this revision of this commit.
fn hello(database_id: u64, applied_revision: u64, commit_id: u64) -> Hello {
    Hello { applied_revision, database_id, commit_id, version: "test".into(), ..Hello::default() }
}

async fn events(cloud: &Cloud, kind: &str) -> Vec<Value> {
    let answer = cloud.get("/v1/events").await;
    let all = answer.body["items"].as_array().unwrap();
    all.iter().filter(|event| event["kind"] == kind).cloned().collect()
}

fn number(id: &str) -> u64 {
    id.rsplit('-').next().unwrap().parse().unwrap()
}

/// Catches steps without commit, a node of this history that gets a snapshot, and one of another history that gets
/// deltas, or a snapshot that removes what it does not mention.
#[tokio::test]
async fn node_of_another_history_keeps_what_the_database_lost() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let identity = cloud.enroll(&basics.gateway_path()).await;
    let mut node = join(&cloud, &identity, Hello::default()).await;
    let (revision, step) = node.acked_step().await;
    let (database, commit) = (node.database, step.last().unwrap().commit_id);
    assert!(commit != 0 && step.iter().all(|part| part.snapshot && !part.keep_unmentioned));
    cloud.make(&basics.instances_path(), basics.instance("vm1")).await;
    let (later, step) = node.acked_step().await;
    let later_commit = step.last().unwrap().commit_id;
    assert!(later_commit != 0 && later_commit != commit);
    drop(node);

    // The missing steps, also if the agent was killed between commit and revision.
    for commit in [commit, later_commit] {
        let mut node = join(&cloud, &identity, hello(database, revision, commit)).await;
        let step = node.step().await;
        assert!(step.iter().all(|part| !part.snapshot));
        assert_eq!(step.iter().map(|part| part.endpoints.len()).sum::<usize>(), 1);
    }
    // A revision that this commit does not have yet: the tables are of an unknown state of this history.
    let mut node = join(&cloud, &identity, hello(database, later, commit)).await;
    assert!(node.step().await.iter().all(|part| part.snapshot && !part.keep_unmentioned));
    assert_eq!(events(&cloud, "node_of_another_history").await, Vec::<Value>::new());

    let lost = Hello {
        highest_revision: later + 50,
        highest_id: 5_000,
        highest_vni: 77,
        ..hello(database, later, later_commit ^ 1)
    };
    for _ in 0..2 {
        let mut node = join(&cloud, &identity, lost.clone()).await;
        let (at, step) = node.acked_step().await;
        assert!(step.iter().all(|part| part.snapshot && part.keep_unmentioned));
        assert!(at > later + 50, "revision {at}");
    }
    // An unfinished snapshot: the revision is unknown, the history is not.
    let mut node = join(&cloud, &identity, Hello { applied_revision: 0, ..lost.clone() }).await;
    assert!(node.step().await.iter().all(|part| part.snapshot && part.keep_unmentioned));
    assert_eq!(events(&cloud, "node_of_another_history").await.len(), 1);
    assert_eq!(events(&cloud, "history_forked").await.len(), 1);
    let vpc = cloud.post("/v1/vpcs", json!({"name": "next", "tenant": basics.tenant})).await;
    assert!(number(&vpc.id()) > 5_000 && vpc.body["vni"].as_u64() > Some(77), "{}", vpc.body);
}

/// An agent without commit ids, whose revision is newer than the database's.
#[tokio::test]
async fn newer_revision_without_commit_is_of_another_history() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let identity = cloud.enroll(&basics.gateway_path()).await;
    let mut node = join(&cloud, &identity, Hello::default()).await;
    let (revision, _) = node.acked_step().await;
    let newer = hello(node.database, revision + 9, 0);
    let mut node = join(&cloud, &identity, newer).await;
    let (at, step) = node.acked_step().await;
    assert!(at > revision + 9 && step.iter().all(|part| part.keep_unmentioned));
    // Another database's revision says nothing.
    let mut node = join(&cloud, &identity, hello(node.database ^ 1, revision + 9, 7)).await;
    assert!(node.step().await.iter().all(|part| part.snapshot && !part.keep_unmentioned));
}

/// Catches a node that gives up its vIPs because the restored database is older than the node.
#[tokio::test]
async fn node_newer_than_the_backup_is_not_called_deleted() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let identity = cloud.enroll(&basics.host_path()).await;
    let mut node = join(&cloud, &identity, Hello::default()).await;
    let (revision, step) = node.acked_step().await;
    let (database, commit) = (node.database, step.last().unwrap().commit_id);
    drop(node);
    assert_eq!(cloud.delete(&basics.host_path()).await.status, StatusCode::OK);
    let controller = cloud.southbound.to_string();
    let refused = async |hello| connect(&identity, &controller, hello).await.err().expect("a refusal");
    let error = refused(hello(database, revision, commit)).await;
    assert_eq!((code(&error).as_str(), error.deleted_from()), ("PermissionDenied", Some(database)));
    let error = refused(hello(database, revision, commit ^ 1)).await;
    assert_eq!((code(&error).as_str(), error.deleted_from()), ("FailedPrecondition", None));
    assert_eq!(events(&cloud, "history_forked").await.len(), 0, "a node without an object changes nothing");
}

async fn report(node: &Node, entries: Vec<Unconfirmed>) {
    let total = entries.len() as u64;
    let entries = entries.into_iter().map(Into::into).collect();
    let heartbeat =
        Heartbeat { unconfirmed: Some(UnconfirmedEntries { total, entries }), ..Heartbeat::default() };
    node.connection.reports.heartbeat(heartbeat).await.unwrap();
}

async fn listed(cloud: &Cloud, count: usize) -> Value {
    cloud
        .wait_until("listed", "/v1/unconfirmed", |body| body["items"].as_array().unwrap().len() == count)
        .await
}

/// Instance 700 of the VPC, as its host and a gateway have it.
fn lost_instance(vni: Vni) -> (Port, Unconfirmed) {
    let (ipv4, mac) = ("10.0.7.7".parse().unwrap(), MacAddr::local(700));
    let ipv6 = sluice_types::eui64_address(&"2001:db8::/64".parse().unwrap(), mac);
    let port = Port {
        instance: InstanceId::new(700),
        name: "v/lost".into(),
        vni,
        mac,
        ipv4: Some("10.0.7.7/16".parse().unwrap()),
        router4: Some("10.0.0.1".parse().unwrap()),
        ipv6: ipv6.map(|address| sluice_types::Ipv6Net::new(address, 64).unwrap()),
        ipv6_dhcp: true,
        mtu: 1430,
        dns4: Vec::new(),
        identity: 0,
        options: sluice_southbound::PortOptions::default(),
        migration: None,
    };
    let host = "192.0.2.21".parse().unwrap();
    (port, Unconfirmed::Endpoint(Endpoint { vni, ipv4: Some(ipv4), ipv6: None, mac, host }))
}

/// Both nodes of the cloud, which have all that the database has.
async fn both(cloud: &Cloud, basics: &Basics) -> (Node, Node) {
    let mut gateway = join(cloud, &cloud.enroll(&basics.gateway_path()).await, Hello::default()).await;
    let mut host = join(cloud, &cloud.enroll(&basics.host_path()).await, Hello::default()).await;
    gateway.acked_step().await;
    host.acked_step().await;
    (gateway, host)
}

async fn vni(cloud: &Cloud, basics: &Basics) -> Vni {
    let vpc = cloud.get(&format!("/v1/vpcs/{}", basics.vpc)).await;
    Vni::new(u32::try_from(vpc.body["vni"].as_u64().unwrap()).unwrap()).unwrap()
}

/// Catches a removal that reaches the wrong node or names other entries, and a list that outlives its node's stream.
#[tokio::test]
async fn confirmed_entries_are_removed_from_their_nodes() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let (mut gateway, mut host) = both(&cloud, &basics).await;
    let vni = vni(&cloud, &basics).await;
    let (port, endpoint) = lost_instance(vni);
    report(&gateway, vec![endpoint, Unconfirmed::Vtep("192.0.2.77".parse().unwrap())]).await;
    report(&host, vec![Unconfirmed::Port(Box::new(port))]).await;
    let list = listed(&cloud, 2).await;
    assert_eq!(list["items"][0]["nodes"], json!(["h", "g"]), "{list}");
    assert_eq!(list["totals"], json!({"g": 2, "h": 1}));
    let unknown = cloud.post("/v1/unconfirmed/remove", json!({"instance": "inst-701"})).await;
    assert_eq!(unknown.problem(), (404, "not-found", "inst-701"));
    assert_eq!(cloud.post("/v1/unconfirmed/remove", json!({})).await.status, 422);
    let removed = cloud.post("/v1/unconfirmed/remove", json!({"instance": "inst-700"})).await;
    assert_eq!(removed.body, json!({"nodes": ["g", "h"], "entries": 2}));
    let (_, step) = gateway.acked_step().await;
    let key = EndpointKey { vni, ipv4: "10.0.7.7".parse().ok(), ipv6: None };
    assert_eq!((step.len(), step[0].removed_endpoints.clone()), (1, vec![key]));
    let (_, step) = host.acked_step().await;
    assert_eq!(step[0].removed_ports, [InstanceId::new(700)]);
    report(&gateway, vec![Unconfirmed::Vtep("192.0.2.77".parse().unwrap())]).await;
    report(&host, Vec::new()).await;
    listed(&cloud, 1).await;
    drop(gateway);
    listed(&cloud, 0).await;
}

/// Catches an adopted object that differs from what the nodes have.
#[tokio::test]
async fn adopted_instance_is_sent_to_the_nodes_that_have_it() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let (mut gateway, mut host) = both(&cloud, &basics).await;
    let (port, endpoint) = lost_instance(vni(&cloud, &basics).await);
    report(&gateway, vec![endpoint]).await;
    listed(&cloud, 1).await;
    // The gateway does not know the instance: its host must be connected.
    let body = json!({"instance": "inst-700"});
    assert_eq!(cloud.post("/v1/unconfirmed/adopt", body.clone()).await.problem().0, 404);
    report(&host, vec![Unconfirmed::Port(Box::new(port.clone()))]).await;
    cloud.wait_until("reported", "/v1/unconfirmed", |body| body["totals"]["h"] == 1).await;
    let adopted = cloud.post("/v1/unconfirmed/adopt", body).await;
    assert_eq!(adopted.status, StatusCode::CREATED, "{}", adopted.body);
    assert_eq!((adopted.id().as_str(), &adopted.body["name"]), ("inst-700", &json!("lost")));
    assert_eq!(adopted.body["host"], basics.host.as_str());
    let (_, step) = gateway.acked_step().await;
    let sent = step[0].endpoints[0];
    assert_eq!(
        (sent.mac, sent.ipv4, sent.ipv6),
        (port.mac, port.ipv4.map(|net| net.addr()), port.ipv6.map(|net| net.addr()))
    );
    let (_, step) = host.acked_step().await;
    let ports: Vec<_> = step.iter().flat_map(|part| part.ports.clone()).collect();
    // It has the groups of a new instance, because nodes do not know those of the lost one.
    let policies: Vec<_> = step.iter().flat_map(|part| part.policies.clone()).collect();
    assert_eq!(
        policies.iter().map(|policy| (policy.key.vni, policy.key.identity)).collect::<Vec<_>>(),
        [(port.vni, 1)]
    );
    assert_eq!(ports, [Port { identity: 1, ..port }]);
}

async fn acknowledged(cloud: &Cloud, revision: u64) {
    let has = |body: &Value| {
        body["items"].as_array().unwrap().iter().any(|node| node["acknowledged_revision"] == revision)
    };
    cloud.wait_until("acknowledged", "/v1/nodes", has).await;
}

/// Catches a controller that gives away numbers before its nodes have said that they have them.
#[tokio::test]
async fn started_controller_waits_for_its_nodes() {
    let mut cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let identity = cloud.enroll(&basics.host_path()).await;
    let mut node = join(&cloud, &identity, Hello::default()).await;
    let (revision, _) = node.acked_step().await;
    acknowledged(&cloud, revision).await;
    let lost = Hello { highest_id: 9_000, ..hello(node.database, revision, 0x1234) };
    let began = Instant::now();
    cloud.restart().await;
    let made = cloud.post("/v1/tenants", json!({"name": "early"}));
    let joined = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        join(&cloud, &identity, lost).await
    };
    let (made, _node) = tokio::join!(made, joined);
    // The controller waits 3 s. A machine that stood still for longer shows nothing.
    if began.elapsed() < Duration::from_secs(3) {
        assert!(number(&made.id()) > 9_000, "{}", made.body);
    }
}

/// Catches a backup whose numbers are taken a second time because the node that has them is absent.
#[tokio::test]
async fn numbers_jump_if_nodes_are_absent_after_a_long_pause() {
    use sqlx::{Connection as _, Executor as _};
    let mut cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let identity = cloud.enroll(&basics.host_path()).await;
    let mut node = join(&cloud, &identity, Hello::default()).await;
    let (revision, _) = node.acked_step().await;
    acknowledged(&cloud, revision).await;
    drop(node);
    cloud.restart().await;
    let soon = cloud.make("/v1/tenants", json!({"name": "soon"})).await;
    assert_eq!(events(&cloud, "history_unchecked").await.len(), 0, "the node was seen a moment ago");
    cloud.controller.take().unwrap().stop().await.unwrap();
    let file = cloud.dir.path().join("state/sluice.db");
    let mut database = sqlx::SqliteConnection::connect(&format!("sqlite:{}", file.display())).await.unwrap();
    database.execute("UPDATE node_states SET last_seen_ms = last_seen_ms - 61000").await.unwrap();
    database.close().await.unwrap();
    let args =
        sluice_controller::Args { api: cloud.api, southbound: cloud.southbound, ..common::args(&cloud.dir) };
    cloud.controller = Some(sluice_controller::Controller::start(args).await.unwrap());
    let later = cloud.make("/v1/tenants", json!({"name": "later"})).await;
    assert!(number(&later) > number(&soon) + 1000, "{later}");
    assert_eq!(events(&cloud, "history_unchecked").await.len(), 1);
}
