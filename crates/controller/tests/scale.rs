//! Measures the stages of one bulk creation with two gateways. It is run by hand.

mod common;

use common::{Cloud, basics, join};
use serde_json::json;
use std::fmt::Write;
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: SLUICE_INSTANCES=1000000 cargo test --release --test scale -- --ignored --nocapture"]
async fn bulk_creation_stage_by_stage() {
    let count = std::env::var("SLUICE_INSTANCES").map_or(100_000, |text| text.parse().unwrap());
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let subnet = json!({"name": "big", "ipv4": "10.128.0.0/9"});
    let subnet = cloud.make(&format!("/v1/vpcs/{}/subnets", basics.vpc), subnet).await;
    let foreign = json!({"name": "foreign", "vtep": "192.0.2.99", "agent": false});
    let host = cloud.make("/v1/hosts", foreign).await;
    let second = json!({"name": "g2", "cluster": basics.cluster, "vtep4": "192.0.2.2", "vtep6": "fd00::92"});
    let second = cloud.make("/v1/gateways", second).await;
    let mut tasks = Vec::new();
    for path in [basics.gateway_path(), format!("/v1/gateways/{second}")] {
        let identity = cloud.enroll(&path).await;
        let mut node = join(&cloud, &identity, 0, 0).await;
        tasks.push(tokio::spawn(async move {
            let (mut entries, mut bytes) = (0, 0);
            loop {
                let update = node.connection.updates.next().await.unwrap().unwrap();
                bytes += update.endpoints.as_ref().map_or(0, |batch| 50 * batch.endpoints.len());
                entries += update.endpoints.map_or(0, |batch| batch.endpoints.len());
                if update.revision != 0 {
                    node.ack(update.revision).await;
                    if entries >= count {
                        return (Instant::now(), bytes, node);
                    }
                }
            }
        }));
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut body = String::from("{\"instances\":[");
    for i in 0..count {
        let comma = if i == 0 { "" } else { "," };
        write!(body, "{comma}{{\"name\":\"vm{i}\",\"subnet\":\"{subnet}\",\"host\":\"{host}\"}}").unwrap();
    }
    body.push_str("]}");
    let start = Instant::now();
    let request = cloud.request(reqwest::Method::POST, &format!("{}/bulk", basics.instances_path()));
    let request = request.header("content-type", "application/json").body(body);
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), reqwest::StatusCode::OK);
    println!("answered after {:?}", start.elapsed());
    let mut nodes = Vec::new();
    for task in tasks {
        let (at, bytes, node) = task.await.unwrap();
        // The stream must stay open, because its last acknowledgment may not have arrived yet.
        nodes.push(node);
        println!("a gateway had all after {:?}, about {bytes} bytes", at - start);
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let metrics = cloud.get("/metrics").await.body;
    for line in metrics.as_str().unwrap().lines().filter(|line| line.contains("bulk")) {
        println!("{line}");
    }
    let identity = cloud.enroll(&basics.gateway_path()).await;
    let start = Instant::now();
    let mut node = join(&cloud, &identity, 0, 0).await;
    let (mut entries, mut end) = (0, false);
    while !end {
        let update = node.connection.updates.next().await.unwrap().unwrap();
        entries += update.endpoints.map_or(0, |batch| batch.endpoints.len());
        end = update.revision != 0;
    }
    assert_eq!(entries, count);
    println!("snapshot of {entries} after {:?}", start.elapsed());
}
