//! The vIP scheduler, with simulated gateways that report their load.

mod common;

use common::{Cloud, Node, PATIENCE, join};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sluice_southbound::proto::Heartbeat;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Capacity of a gateway in packets a second.
const CAPACITY: f64 = 1_000_000.0;

struct Gateway {
    id: String,
    node: Node,
    packets: f64,
    reported_at: Instant,
}

/// A cluster of two gateways that report the load of their vIPs, and possibly other clusters.
struct Site {
    cloud: Cloud,
    cluster: String,
    others: Vec<String>,
    gateways: Vec<Gateway>,
}

impl Site {
    async fn start() -> Self {
        let cloud = Cloud::start().await;
        let vips: Vec<String> = (1..=4).map(|number| format!("198.51.100.{number}")).collect();
        let cluster = cloud.make("/v1/clusters", json!({"name": "c", "vips": vips})).await;
        let mut site = Self { cloud, cluster: cluster.clone(), others: Vec::new(), gateways: Vec::new() };
        site.add(&cluster, 1..=2).await;
        site
    }

    async fn add(&mut self, cluster: &str, numbers: std::ops::RangeInclusive<u8>) {
        for number in numbers {
            let vtep = format!("192.0.2.{number}");
            let body = json!({"name": format!("g{number}"), "cluster": cluster, "vtep4": vtep});
            let id = self.cloud.make("/v1/gateways", body).await;
            let identity = self.cloud.enroll(&format!("/v1/gateways/{id}")).await;
            let node = join(&self.cloud, &identity, 0, 0).await;
            self.gateways.push(Gateway { id, node, packets: 0.0, reported_at: Instant::now() });
        }
    }

    /// The preferred owner of each vIP.
    async fn preferred_owners(&self) -> BTreeMap<String, String> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let mut owners = BTreeMap::new();
        for cluster in self.others.iter().chain([&self.cluster]) {
            let cluster = self.cloud.get(&format!("/v1/clusters/{cluster}")).await.body;
            let vips = cluster["vips"].as_array().unwrap().iter();
            owners.extend(vips.map(|vip| (text(&vip["address"]), text(&vip["preferred_owner"]))));
        }
        owners
    }

    /// Every gateway reports the load of the vIPs whose preferred owner it is.
    async fn report(&mut self, demand: impl Fn(&str) -> f64) {
        let owners = self.preferred_owners().await;
        for gateway in &mut self.gateways {
            let own = owners.iter().filter(|(_, owner)| **owner == gateway.id);
            let busy: f64 = own.map(|(vip, _)| demand(vip)).sum();
            gateway.packets += busy * CAPACITY * gateway.reported_at.elapsed().as_secs_f64();
            gateway.reported_at = Instant::now();
            let heartbeat = Heartbeat {
                packets: gateway.packets as u64,
                cpu_permille: (busy * 1000.0).round() as u32,
                ..Heartbeat::default()
            };
            gateway.node.connection.reports.heartbeat(heartbeat).await.unwrap();
        }
    }

    /// Reports until the answer of the scheduler fits.
    async fn until(
        &mut self,
        what: &str,
        demand: impl Fn(&str) -> f64,
        fits: impl Fn(&Value) -> bool,
    ) -> Value {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            self.report(&demand).await;
            let answer = self.cloud.get("/v1/scheduler").await.body;
            if fits(&answer) {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("never {what}");
    }

    async fn set(&self, patch: Value) -> common::Answer {
        self.cloud.send(self.cloud.request(Method::PATCH, "/v1/scheduler").json(&patch)).await
    }
}

#[tokio::test]
async fn overloaded_gateway_gives_a_vip_away_with_a_reason() {
    let mut site = Site::start().await;
    let off = site.set(json!({"enabled": false})).await;
    assert_eq!((off.status, &off.body["enabled"]), (StatusCode::OK, &json!(false)), "{}", off.body);
    let before = site.preferred_owners().await;
    let (busy, idle) = (site.gateways[0].id.clone(), site.gateways[1].id.clone());
    let of_busy: Vec<String> =
        before.iter().filter(|(_, owner)| **owner == busy).map(|(vip, _)| vip.clone()).collect();
    assert_eq!(of_busy.len(), 2, "{before:?}");
    // Each vIP of the first gateway causes a load of 45%, each vIP of the other one 5%.
    let demand = move |vip: &str| if of_busy.iter().any(|it| it == vip) { 0.45 } else { 0.05 };
    let seen = |answer: &Value| {
        let loads: Vec<f64> =
            answer["gateways"].as_array().unwrap().iter().map(|it| it["load"].as_f64().unwrap()).collect();
        loads == [0.9, 0.1]
    };
    let first = site.until("seen", &demand, seen).await;
    let rounds = first["round_ms"].as_u64().unwrap();
    site.until("another round", &demand, |answer| answer["round_ms"].as_u64() > Some(rounds)).await;
    assert_eq!(site.preferred_owners().await, before, "the scheduler is off");

    assert_eq!(site.set(json!({"enabled": true})).await.status, StatusCode::OK);
    let moved = site.until("moved", &demand, |answer| answer["moves"].as_u64() > Some(1)).await;
    // The gateway that accepts the vIP then has three, and gives one with little load back.
    assert_eq!((&moved["moves"], &moved["gateways_requested"]), (&json!(2), &json!(0)), "{moved}");
    assert_eq!(moved["decisions"][1]["reason"], json!({"share": {"from": 3, "to": 1}}), "{moved}");
    let decision = &moved["decisions"][0];
    let action = &decision["action"]["move_vip"];
    assert_eq!(
        (&action["from"], &action["to"], &decision["done"]),
        (&json!(busy), &json!(idle), &json!(true))
    );
    let vip = action["vip"].as_str().unwrap();
    let after = site.preferred_owners().await;
    assert_eq!((&before[vip], &after[vip]), (&busy, &idle));
    assert_eq!(before.iter().filter(|(vip, owner)| after[*vip] != **owner).count(), 2);
    let events = site.cloud.get(&format!("/v1/events?subject={}", site.cluster)).await.body;
    let event =
        events["items"].as_array().unwrap().iter().find(|event| event["kind"] == "scheduler_vip").unwrap();
    let text = event["text"].as_str().unwrap();
    assert_eq!(text, decision["text"]);
    assert!(
        text.contains("its owner is at 90.0% load, must get below 75.0%, and will be at 45.0%"),
        "{text}"
    );
    assert_eq!(event["details"]["reason"]["overloaded"]["threshold"], 0.75);

    // The loads are as predicted, and nothing else moves.
    let relieved = |answer: &Value| {
        answer["gateways"].as_array().unwrap().iter().all(|it| it["load"].as_f64().unwrap() < 0.6)
    };
    let calm = site.until("relieved", &demand, relieved).await;
    let rounds = calm["round_ms"].as_u64().unwrap();
    let later = site
        .until("two rounds later", &demand, |answer| answer["round_ms"].as_u64() > Some(rounds + 1500))
        .await;
    assert_eq!(later["moves"], 2, "{later}");
    let metrics = site.cloud.get("/metrics").await.body;
    assert!(metrics.as_str().unwrap().contains("sluice_controller_scheduler_moves_total 2"));
}

#[tokio::test]
async fn gateway_is_requested_if_moving_vips_does_not_help() {
    let mut site = Site::start().await;
    let requested = site.until("requested", |_| 0.45, |answer| answer["gateways_requested"] != 0).await;
    let decision = requested["decisions"].as_array().unwrap().last().unwrap();
    assert_eq!(decision["action"]["request_gateway"]["cluster"], json!(site.cluster), "{requested}");
    let waits = |answer: &Value| {
        answer["waits"].as_array().unwrap().iter().any(|it| it["wait"]["expansion"].is_object())
    };
    let waiting = site.until("waiting for it", |_| 0.45, waits).await;
    assert_eq!(waiting["overloaded_clusters"], json!([site.cluster]));
    assert_eq!((&waiting["moves"], &waiting["gateways_requested"]), (&json!(0), &json!(1)), "{waiting}");
    let events = site.cloud.get("/v1/events").await.body;
    let requests =
        events["items"].as_array().unwrap().iter().filter(|it| it["kind"] == "scheduler_gateway_requested");
    assert_eq!(requests.count(), 1);
}

#[tokio::test]
async fn cluster_with_spare_gateways_gives_one_to_an_overloaded_cluster() {
    let mut site = Site::start().await;
    let vips: Vec<String> = (11..=16).map(|number| format!("198.51.100.{number}")).collect();
    let spare = site.cloud.make("/v1/clusters", json!({"name": "spare", "vips": vips})).await;
    site.others.push(spare.clone());
    site.add(&spare, 3..=5).await;
    let busy = |vip: &str| if vip.len() < "198.51.100.11".len() { 0.45 } else { 0.02 };
    // The gateway is emptied first. Then its move starts, which waits for its tables.
    let reassigned = site.until("reassigned", busy, |answer| answer["gateways_reassigned"] != 0).await;
    let counts = (&reassigned["gateways_reassigned"], &reassigned["gateways_requested"]);
    assert_eq!(counts, (&json!(1), &json!(0)), "{reassigned}");
    let decisions = reassigned["decisions"].as_array().unwrap();
    let kinds: Vec<&str> = decisions
        .iter()
        .map(|it| it["action"].as_object().unwrap().keys().next().unwrap().as_str())
        .collect();
    assert_eq!(kinds, ["release_gateway", "move_vip", "move_vip", "reassign_gateway"], "{reassigned}");
    assert!(decisions.iter().all(|it| it["done"] == true), "{reassigned}");
    let gateway = decisions[3]["action"]["reassign_gateway"]["gateway"].as_str().unwrap();
    let moving = site.cloud.get(&format!("/v1/gateways/{gateway}")).await.body;
    assert_eq!((&moving["cluster"], &moving["moving_to"]), (&json!(spare), &json!(site.cluster)));
    let events = site.cloud.get(&format!("/v1/events?subject={gateway}")).await.body;
    let kinds: Vec<&str> =
        events["items"].as_array().unwrap().iter().map(|it| it["kind"].as_str().unwrap()).collect();
    assert!(kinds.contains(&"scheduler_release") && kinds.contains(&"scheduler_reassign"), "{kinds:?}");
    let started = events["items"].as_array().unwrap().iter().find(|it| it["kind"] == "gateway_move_started");
    let text = started.unwrap()["text"].as_str().unwrap();
    assert!(text.ends_with("(reason: the scheduler reassigns it: it has no vIP left)"), "{text}");
}

#[tokio::test]
async fn invalid_settings_are_refused() {
    let cloud = Cloud::start().await;
    let patch = |body: Value| cloud.send(cloud.request(Method::PATCH, "/v1/scheduler").json(&body));
    for (body, setting) in [
        (json!({"accept_threshold": 0.9}), "accept_threshold"),
        (json!({"relief_threshold": 0.9}), "relief_threshold"),
        (json!({"overload_threshold": 0.1}), "overload_threshold"),
        (json!({"moves_per_interval": 0}), "moves_per_interval"),
    ] {
        assert_eq!(patch(body).await.problem(), (422, "invalid", setting));
    }
    assert_eq!(patch(json!({"color": 1})).await.problem(), (422, "invalid", "color"));
    assert_eq!(patch(json!({"hold_down_ms": 5})).await.body["hold_down_ms"], 5);
    assert_eq!(cloud.get("/v1/scheduler").await.body["settings"]["hold_down_ms"], 5);
}
