//! Nodes that open streams and read nothing, among others that keep up. Deadlines are those of the controller.

mod common;

use common::{Cloud, Node, Stalled, basics, code, join, stall};
use futures::future::join_all;
use serde_json::json;
use sluice_southbound::{Identity, Update};
use std::fmt::Write;
use std::time::{Duration, Instant};

/// Gateways that read nothing: one more than the places for nodes that did not take their last snapshot.
const STALLED: usize = 9;
/// Hosts that keep up.
const HOSTS: usize = 30;
/// Enough for 13 parts of a snapshot: four may wait in the controller for a node that reads nothing, and HTTP/2
/// takes one or two more.
const INSTANCES: usize = 100_000;
/// A node that takes nothing is disconnected after 10 s. Longer for a slow machine, shorter than what a snapshot
/// would take for all nodes in turn.
const DEADLINE: Duration = Duration::from_secs(25);

async fn metric(cloud: &Cloud, name: &str) -> u64 {
    let text = cloud.get("/metrics").await.body;
    let prefix = format!("sluice_controller_{name} ");
    let line = text.as_str().unwrap().lines().find_map(|line| line.strip_prefix(&prefix));
    line.unwrap_or_else(|| panic!("no metric {name}")).parse().unwrap()
}

async fn wait_for(cloud: &Cloud, name: &str, fits: impl Fn(u64) -> bool) {
    let began = Instant::now();
    loop {
        let value = metric(cloud, name).await;
        if fits(value) {
            return;
        }
        assert!(began.elapsed() < DEADLINE, "{name} is {value}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn endpoints(step: &[Update]) -> usize {
    step.iter().map(|part| part.endpoints.len()).sum()
}

/// Acknowledges everything until the stream ends. Returns the number of steps with entries.
async fn follow(mut node: Node) -> usize {
    let mut steps = 0;
    while let Ok(Some(update)) = node.connection.updates.next().await {
        let (update, _) = Update::read(update);
        if update.revision != 0 {
            node.ack(update.revision).await;
            steps += usize::from(!update.is_empty());
        }
    }
    steps
}

/// Creates instances that have no agent on their host.
async fn fill(cloud: &Cloud, vpc: &str) {
    let subnet = json!({"name": "large", "ipv4": "10.128.0.0/9"});
    let subnet = cloud.make(&format!("/v1/vpcs/{vpc}/subnets"), subnet).await;
    let foreign = json!({"name": "foreign", "vtep": "192.0.2.99", "agent": false});
    let host = cloud.make("/v1/hosts", foreign).await;
    let mut body = String::from("{\"instances\":[");
    for i in 0..INSTANCES {
        let comma = if i == 0 { "" } else { "," };
        write!(body, "{comma}{{\"name\":\"vm{i}\",\"subnet\":\"{subnet}\",\"host\":\"{host}\"}}").unwrap();
    }
    body.push_str("]}");
    let request = cloud.request(reqwest::Method::POST, &format!("/v1/vpcs/{vpc}/instances/bulk"));
    let answer = cloud.send(request.header("content-type", "application/json").body(body)).await;
    assert_eq!(answer.status, reqwest::StatusCode::OK, "{}", answer.body);
}

async fn gateways(cloud: &Cloud, cluster: &str, count: usize) -> Vec<Identity> {
    let mut identities = Vec::new();
    for number in 0..count {
        let gateway = json!({
            "name": format!("g{number}"),
            "cluster": cluster,
            "vtep4": format!("198.51.100.{}", number + 1),
            "vtep6": format!("fd00:1::{}", number + 1),
        });
        let id = cloud.make("/v1/gateways", gateway).await;
        identities.push(cloud.enroll(&format!("/v1/gateways/{id}")).await);
    }
    identities
}

async fn hosts(cloud: &Cloud) -> Vec<Identity> {
    let mut identities = Vec::new();
    for number in 0..HOSTS {
        let vtep = format!("203.0.113.{}", number + 1);
        let id = cloud.make("/v1/hosts", json!({"name": format!("h{number}"), "vtep": vtep})).await;
        identities.push(cloud.enroll(&format!("/v1/hosts/{id}")).await);
    }
    identities
}

async fn stall_all(identities: &[Identity]) -> Vec<Stalled> {
    join_all(identities.iter().map(stall)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_read_nothing_delay_no_others() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    fill(&cloud, &basics.vpc).await;
    let slow = gateways(&cloud, &basics.cluster, STALLED).await;
    let fast = cloud.enroll(&basics.gateway_path()).await;
    let hosts = hosts(&cloud).await;

    // They hold their tables, once for all of them, and no connection of the database.
    let began = Instant::now();
    let stalled = stall_all(&slow).await;
    wait_for(&cloud, "snapshots_sending", |count| count == STALLED as u64).await;
    wait_for(&cloud, "snapshot_bytes", |bytes| bytes > 1_000_000).await;
    wait_for(&cloud, "snapshots_reading", |count| count == 0).await;
    let bytes = metric(&cloud, "snapshot_bytes").await;
    // About 30 bytes for each endpoint.
    let once = 50 * INSTANCES as u64;
    assert!(bytes > 1_000_000 && bytes < once, "{bytes} bytes for {STALLED} nodes");

    // Meanwhile others get their snapshots, and changes.
    let mut gateway = join(&cloud, &fast, 0, 0).await;
    let (_, step) = gateway.acked_step().await;
    assert_eq!(endpoints(&step), INSTANCES);
    let mut followers = Vec::new();
    for identity in &hosts {
        let mut node = join(&cloud, identity, 0, 0).await;
        node.acked_step().await;
        followers.push(tokio::spawn(follow(node)));
    }
    let instance = cloud.make(&basics.instances_path(), basics.instance("one")).await;
    assert_eq!(endpoints(&gateway.acked_step().await.1), 1);
    assert_eq!(cloud.delete(&format!("/v1/instances/{instance}")).await.status, 200);
    assert_eq!(gateway.acked_step().await.1[0].removed_endpoints.len(), 1);
    assert_eq!(
        metric(&cloud, "stalled_streams_total").await,
        0,
        "all of that was within {:?}",
        began.elapsed()
    );

    // Then they are disconnected, which frees what they held although they do not read.
    wait_for(&cloud, "stalled_streams_total", |count| count == STALLED as u64).await;
    wait_for(&cloud, "snapshot_bytes", |bytes| bytes == 0).await;
    wait_for(&cloud, "snapshots_sending", |count| count == 0).await;
    let disconnected = join_all(stalled.iter().map(Stalled::disconnected));
    assert!(tokio::time::timeout(DEADLINE, disconnected).await.is_ok());
    let events = cloud.get("/v1/events?limit=1000").await.body;
    let of_stalls =
        events["items"].as_array().unwrap().iter().filter(|event| event["kind"] == "node_stalled");
    assert_eq!(of_stalls.count(), STALLED, "{events}");

    // When they return, they have places of their own.
    let again = stall_all(&slow).await;
    wait_for(&cloud, "snapshots_waiting", |count| count == 1).await;
    assert_eq!(
        metric(&cloud, "snapshots_slow_sending").await,
        metric(&cloud, "snapshots_slow_sending_limit").await
    );
    assert_eq!(metric(&cloud, "snapshots_sending").await, 0);
    let mut gateway = join(&cloud, &fast, 0, 0).await;
    assert_eq!(endpoints(&gateway.acked_step().await.1), INSTANCES);
    assert_eq!(metric(&cloud, "snapshots_waiting").await, 1, "it did not wait for them");
    // One that reads at last is no longer slow.
    drop((again, stalled));
    let mut node = join(&cloud, &slow[0], 0, 0).await;
    assert_eq!(endpoints(&node.acked_step().await.1), INSTANCES);
    followers.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Takes twice the 15 s for which the controller waits for a report.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_that_reads_but_reports_nothing_is_disconnected() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let (gateway, host) =
        (cloud.enroll(&basics.gateway_path()).await, cloud.enroll(&basics.host_path()).await);
    let mut quiet = join(&cloud, &host, 0, 0).await;
    quiet.acked_step().await;
    let mut silent = join(&cloud, &gateway, 0, 0).await;
    silent.step().await;
    let began = Instant::now();
    let ended = tokio::time::timeout(Duration::from_secs(50), silent.connection.updates.next()).await;
    assert_eq!(code(&ended.unwrap().unwrap_err()), "DeadlineExceeded");
    assert!(began.elapsed() > Duration::from_secs(14), "{:?}", began.elapsed());
    assert_eq!(metric(&cloud, "stalled_streams_total").await, 1);
    // A node that owes no acknowledgment may be quiet.
    cloud.make(&basics.instances_path(), basics.instance("one")).await;
    assert_eq!(quiet.acked_step().await.1.iter().map(|part| part.ports.len()).sum::<usize>(), 1);
}

/// Each change concerns all hosts, which acknowledge it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledgments_of_many_nodes_are_saved_together() {
    let cloud = Cloud::start().await;
    basics(&cloud).await;
    let hosts = hosts(&cloud).await;
    let mut followers = Vec::new();
    for identity in &hosts {
        let mut node = join(&cloud, identity, 0, 0).await;
        node.acked_step().await;
        followers.push(tokio::spawn(follow(node)));
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = metric(&cloud, "acknowledgment_saves_total").await;
    let began = Instant::now();
    let mut number = 0;
    while began.elapsed() < Duration::from_secs(3) {
        number += 1;
        let vtep = format!("198.18.{}.{}", number / 200, number % 200 + 1);
        let host = json!({"name": format!("new{number}"), "vtep": vtep, "agent": false});
        cloud.make("/v1/hosts", host).await;
    }
    let saves = metric(&cloud, "acknowledgment_saves_total").await - before;
    // Five a second, however many nodes there are.
    let most = began.elapsed().as_millis() as u64 / 200 + 1;
    assert!(saves >= 2 && saves <= most, "{saves} transactions in {:?}", began.elapsed());
    drop(cloud);
    for follower in followers {
        follower.abort();
    }
}
