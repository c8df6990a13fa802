//! Deletions over HTTP, with nodes that have acknowledged them and nodes that have not.

mod common;

use common::{Basics, Cloud, Node, PATIENCE, basics, join};
use reqwest::StatusCode;
use serde_json::{Value, json};
use sluice_southbound::Identity;

/// A gateway and a host that enrolled, with streams, and an instance that both have.
struct Site {
    cloud: Cloud,
    basics: Basics,
    identities: [Identity; 2],
    gateway: Node,
    host: Node,
    instance: Value,
}

async fn revision(cloud: &Cloud) -> u64 {
    cloud.get("/v1/nodes").await.body["items"][0]["current"].as_u64().unwrap()
}

impl Site {
    async fn start() -> Self {
        let cloud = Cloud::start().await;
        let basics = basics(&cloud).await;
        let identities =
            [cloud.enroll(&basics.gateway_path()).await, cloud.enroll(&basics.host_path()).await];
        let mut gateway = join(&cloud, &identities[0], 0, 0).await;
        let mut host = join(&cloud, &identities[1], 0, 0).await;
        gateway.acked_step().await;
        host.acked_step().await;
        let instance = cloud.post(&basics.instances_path(), basics.instance("old")).await;
        assert_eq!(instance.status, StatusCode::CREATED, "{}", instance.body);
        gateway.acked_step().await;
        host.acked_step().await;
        Self { cloud, basics, identities, gateway, host, instance: instance.body }
    }

    fn path(&self) -> String {
        format!("/v1/instances/{}", self.instance["id"].as_str().unwrap())
    }

    /// A request for an instance with the old one's address.
    fn successor(&self) -> Value {
        let mut wanted = self.basics.instance("new");
        wanted["ipv4"] = self.instance["ipv4"].clone();
        wanted
    }

    async fn awaited(&self, revision: &Value) -> Vec<String> {
        let body = self.cloud.get(&format!("/v1/removals/{revision}")).await.body;
        let ids = body["waiting"].as_array().unwrap().iter();
        ids.map(|node| node["node"].as_str().unwrap().to_owned()).collect()
    }
}

#[tokio::test]
async fn nodes_that_have_not_acknowledged_are_named_and_addresses_held() {
    let mut site = Site::start().await;
    let answer = site.cloud.delete(&site.path()).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    let at = answer.body["revision"].clone();
    assert_eq!(answer.body["removed"], false, "{}", answer.body);
    assert_eq!(site.awaited(&at).await, [site.basics.gateway.clone(), site.basics.host.clone()]);

    // The gateway acknowledges it, the host does not.
    site.gateway.acked_step().await;
    let path = format!("/v1/removals/{at}");
    let host = site.basics.host.clone();
    site.cloud
        .wait_until("only the host", &path, |body| {
            let waiting = body["waiting"].as_array().unwrap();
            waiting.len() == 1 && waiting[0]["node"] == host
        })
        .await;
    let began = std::time::Instant::now();
    let waited = site.cloud.get(&format!("{path}?wait=1")).await.body;
    assert!(began.elapsed().as_millis() >= 1000, "it waits until the time is over");
    assert_eq!((&waited["removed"], &waited["waiting"][0]["name"]), (&json!(false), &json!("h")));
    assert_eq!(waited["waiting"][0]["connected"], true);
    let acknowledged = waited["waiting"][0]["acknowledged_revision"].as_u64().unwrap();
    assert!(acknowledged < at.as_u64().unwrap() && acknowledged > 0);
    let refused = site.cloud.post(&site.basics.instances_path(), site.successor()).await;
    assert_eq!(refused.problem(), (409, "held", site.instance["ipv4"].as_str().unwrap()));
    assert!(refused.body["detail"].as_str().unwrap().contains("instance `old`"), "{}", refused.body);
    let other = site.cloud.post(&site.basics.instances_path(), site.basics.instance("other")).await;
    assert_ne!(other.body["ipv4"], site.instance["ipv4"], "allocation skips it");
    let listed = site.cloud.get("/v1/removals").await.body;
    assert_eq!(listed["items"][0]["name"], "old", "{listed}");
    assert_eq!(listed["items"][0]["waiting"][0]["node"], host);

    // A node that is not connected is awaited all the same, with what it acknowledged.
    let successor = site.successor();
    let Site { cloud, basics, identities, mut gateway, host: stream, instance } = site;
    drop(stream);
    cloud.wait_until("disconnected", &path, |body| body["waiting"][0]["connected"] == false).await;
    assert_eq!(cloud.post(&basics.instances_path(), successor.clone()).await.problem().1, "held");

    // It returns, and takes a snapshot: a request that waits is answered.
    let waiting = tokio::spawn(cloud.request(reqwest::Method::GET, &format!("{path}?wait=60")).send());
    let mut again = join(&cloud, &identities[1], 0, 0).await;
    again.acked_step().await;
    let answer = tokio::time::timeout(PATIENCE, waiting).await.expect("an answer").unwrap().unwrap();
    let answer: Value = answer.json().await.unwrap();
    assert_eq!(answer, json!({"revision": at, "removed": true, "waiting": []}));
    let made = cloud.post(&basics.instances_path(), successor).await;
    assert_eq!((made.status, &made.body["ipv4"]), (StatusCode::CREATED, &instance["ipv4"]));
    assert_eq!(cloud.get("/v1/removals").await.body, json!({"items": []}));
    gateway.acked_step().await;
}

#[tokio::test]
async fn deletion_waits_for_the_nodes() {
    let mut site = Site::start().await;
    let path = format!("{}?wait=60", site.path());
    let waiting = tokio::spawn(site.cloud.request(reqwest::Method::DELETE, &path).send());
    site.gateway.acked_step().await;
    assert!(!waiting.is_finished(), "the host has not acknowledged the deletion");
    site.host.acked_step().await;
    let answer = tokio::time::timeout(PATIENCE, waiting).await.expect("an answer").unwrap().unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let answer: Value = answer.json().await.unwrap();
    assert_eq!((&answer["removed"], &answer["waiting"]), (&json!(true), &json!([])));
}

#[tokio::test]
async fn all_kinds_of_objects_are_deleted_with_a_wait() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let vpc = &basics.vpc;
    let other = cloud.make("/v1/vpcs", json!({"name": "v2", "tenant": basics.tenant})).await;
    let peering = cloud.make("/v1/peerings", json!({"name": "p", "vpcs": [vpc, other]})).await;
    let group = cloud.make(&format!("/v1/vpcs/{vpc}/security-groups"), json!({"name": "g"})).await;
    let rule = json!({"direction": "ingress", "family": "ipv4", "protocol": "tcp"});
    let rule = cloud.make(&format!("/v1/security-groups/{group}/rules"), rule).await;
    let tables = cloud.get(&format!("/v1/route-tables?vpc={vpc}")).await.body;
    let table = tables["items"][0]["id"].as_str().unwrap();
    let route = json!({"destination": "192.0.2.0/24", "target": "drop"});
    let route = cloud.make(&format!("/v1/route-tables/{table}/routes"), route).await;
    let vm = cloud.make(&basics.instances_path(), basics.instance("vm")).await;
    let objects = [
        format!("/v1/instances/{vm}"),
        format!("/v1/routes/{route}"),
        format!("/v1/security-rules/{rule}"),
        format!("/v1/security-groups/{group}"),
        format!("/v1/peerings/{peering}"),
        format!("/v1/vpcs/{other}"),
        format!("/v1/subnets/{}", basics.subnet),
        format!("/v1/vpcs/{vpc}"),
        basics.host_path(),
        basics.gateway_path(),
        format!("/v1/clusters/{}", basics.cluster),
        format!("/v1/tenants/{}", basics.tenant),
    ];
    for path in objects {
        let unknown = cloud.delete(&format!("{path}?wait=1&until=3")).await;
        assert_eq!(unknown.problem(), (400, "bad-request", "query"), "{path}: {}", unknown.body);
        let answer = cloud.delete(&format!("{path}?wait=1")).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.body);
        assert_eq!(answer.body["removed"], true, "no node enrolled: {path}");
        assert_eq!(cloud.get(&path).await.status, StatusCode::NOT_FOUND, "{path}");
    }
}

#[tokio::test]
async fn node_that_could_not_write_or_was_deleted() {
    let mut site = Site::start().await;
    let at = site.cloud.delete(&site.path()).await.body["revision"].clone();
    site.gateway.acked_step().await;
    // The host acknowledges the revision, but could not write all entries.
    let step = site.host.step().await;
    let revision = step.last().unwrap().revision;
    let failure = vec!["port: the tables are full".to_owned()];
    site.host.connection.reports.ack(revision, failure.clone(), false).await.unwrap();
    let path = format!("/v1/removals/{at}");
    site.cloud
        .wait_until("failed", &path, |body| {
            let waiting = body["waiting"].as_array().unwrap();
            waiting.len() == 1 && waiting[0]["failures"] == json!(failure)
        })
        .await;
    // A deleted node is not awaited.
    let gone = site.cloud.delete(&site.basics.host_path()).await;
    assert_eq!(gone.status, StatusCode::OK, "{}", gone.body);
    site.cloud.wait_until("removed", &path, |body| body["removed"] == true).await;
    let made = site.cloud.make("/v1/hosts", json!({"name": "h2", "vtep": "192.0.2.22"})).await;
    let again = json!({"name": "h3", "vtep": "192.0.2.21"});
    assert_eq!(site.cloud.post("/v1/hosts", again.clone()).await.problem(), (409, "held", "192.0.2.21"));
    site.gateway.acked_step().await;
    let at = &gone.body["revision"];
    site.cloud.wait_until("removed", &format!("/v1/removals/{at}"), |body| body["removed"] == true).await;
    assert_ne!(site.cloud.make("/v1/hosts", again).await, made);
}

#[tokio::test]
async fn requests_are_checked_before_anything_is_deleted() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let vm = cloud.make(&basics.instances_path(), basics.instance("vm")).await;
    let path = format!("/v1/instances/{vm}");
    for query in ["wait=0", "wait=61", "wait=x", "wait=-1", "wait=1&wait=2", "until=3"] {
        assert_eq!(cloud.delete(&format!("{path}?{query}")).await.status, 400, "{query}");
    }
    assert_eq!(cloud.get(&path).await.status, StatusCode::OK, "nothing was deleted");
    let newest = cloud.delete(&path).await;
    // No node enrolled.
    assert_eq!((&newest.body["removed"], &newest.body["waiting"]), (&json!(true), &json!([])));
    let at = newest.body["revision"].as_u64().unwrap();
    let get = async |rest: String| cloud.get(&format!("/v1/removals{rest}")).await;
    for rest in ["/x", "/-1", "/18446744073709551616", "/1?wait=61", "?limit=0", "?cursor=zz", "?x=1"] {
        assert_eq!(get(rest.to_owned()).await.problem().0, 400, "{rest}");
    }
    assert_eq!(get(format!("/{}", at + 1)).await.problem().0, 404);
    assert_eq!(get(format!("/{}", u64::MAX)).await.problem().0, 404);
    for revision in [1, at] {
        assert_eq!(get(format!("/{revision}")).await.body["removed"], true);
    }
    assert_eq!(revision(&cloud).await, at);
}
