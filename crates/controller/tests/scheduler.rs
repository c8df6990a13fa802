//! The scheduler, with gateways that say how busy they are.

mod common;

use common::{Cloud, Node, PATIENCE, join};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sluice_southbound::proto::Heartbeat;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What a gateway forwards at most, in packets a second.
const CAPACITY: f64 = 1_000_000.0;

struct Gateway {
    id: String,
    node: Node,
    packets: f64,
    said: Instant,
}

/// A cluster of two gateways that tell how busy their vIPs keep them, and perhaps another.
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
            let identity = self.cloud.enrol(&format!("/v1/gateways/{id}")).await;
            let node = join(&self.cloud, &identity, 0, 0).await;
            self.gateways.push(Gateway { id, node, packets: 0.0, said: Instant::now() });
        }
    }

    /// The home of each vIP.
    async fn homes(&self) -> BTreeMap<String, String> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let mut homes = BTreeMap::new();
        for cluster in self.others.iter().chain([&self.cluster]) {
            let cluster = self.cloud.get(&format!("/v1/clusters/{cluster}")).await.body;
            let vips = cluster["vips"].as_array().unwrap().iter();
            homes.extend(vips.map(|vip| (text(&vip["address"]), text(&vip["home"]))));
        }
        homes
    }

    /// Every gateway reports: as busy as the vIPs that are at home there make it.
    async fn report(&mut self, demand: impl Fn(&str) -> f64) {
        let homes = self.homes().await;
        for gateway in &mut self.gateways {
            let own = homes.iter().filter(|(_, home)| **home == gateway.id);
            let busy: f64 = own.map(|(vip, _)| demand(vip)).sum();
            gateway.packets += busy * CAPACITY * gateway.said.elapsed().as_secs_f64();
            gateway.said = Instant::now();
            let heartbeat = Heartbeat {
                packets: gateway.packets as u64,
                cpu_permille: (busy * 1000.0).round() as u32,
                ..Heartbeat::default()
            };
            gateway.node.connection.reports.heartbeat(heartbeat).await.unwrap();
        }
    }

    /// Reports until the scheduler's answer fits.
    async fn until(
        &mut self,
        what: &str,
        demand: impl Fn(&str) -> f64,
        fits: impl Fn(&Value) -> bool,
    ) -> Value {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
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
async fn an_overloaded_gateway_gives_a_vip_and_it_is_said_why() {
    let mut site = Site::start().await;
    let off = site.set(json!({"enabled": false})).await;
    assert_eq!((off.status, &off.body["enabled"]), (StatusCode::OK, &json!(false)), "{}", off.body);
    let before = site.homes().await;
    let (busy, idle) = (site.gateways[0].id.clone(), site.gateways[1].id.clone());
    let of_busy: Vec<String> =
        before.iter().filter(|(_, home)| **home == busy).map(|(vip, _)| vip.clone()).collect();
    assert_eq!(of_busy.len(), 2, "{before:?}");
    // Each of the first gateway's vIPs takes 45% of a gateway, each of the other's 5%.
    let demand = move |vip: &str| if of_busy.iter().any(|it| it == vip) { 0.45 } else { 0.05 };
    let seen = |answer: &Value| {
        let loads: Vec<f64> =
            answer["gateways"].as_array().unwrap().iter().map(|it| it["load"].as_f64().unwrap()).collect();
        loads == [0.9, 0.1]
    };
    let looked = site.until("seen", &demand, seen).await;
    let rounds = looked["round_ms"].as_u64().unwrap();
    site.until("looked again", &demand, |answer| answer["round_ms"].as_u64() > Some(rounds)).await;
    assert_eq!(site.homes().await, before, "it is switched off");

    assert_eq!(site.set(json!({"enabled": true})).await.status, StatusCode::OK);
    let moved = site.until("moved", &demand, |answer| answer["moves"].as_u64() > Some(1)).await;
    // The one that takes it has three then, and gives one of its light ones back.
    assert_eq!((&moved["moves"], &moved["gateways_wanted"]), (&json!(2), &json!(0)), "{moved}");
    assert_eq!(moved["decisions"][1]["why"], json!({"share": {"from": 3, "to": 1}}), "{moved}");
    let decision = &moved["decisions"][0];
    let action = &decision["action"]["move_vip"];
    assert_eq!(
        (&action["from"], &action["to"], &decision["done"]),
        (&json!(busy), &json!(idle), &json!(true))
    );
    let vip = action["vip"].as_str().unwrap();
    let after = site.homes().await;
    assert_eq!((&before[vip], &after[vip]), (&busy, &idle));
    assert_eq!(before.iter().filter(|(vip, home)| after[*vip] != **home).count(), 2);
    let events = site.cloud.get(&format!("/v1/events?subject={}", site.cluster)).await.body;
    let event =
        events["items"].as_array().unwrap().iter().find(|event| event["kind"] == "scheduler_vip").unwrap();
    let text = event["text"].as_str().unwrap();
    assert_eq!(text, decision["text"]);
    assert!(text.contains("its owner is at 90.0%, to be below 75.0%, and will be at 45.0%"), "{text}");
    assert_eq!(event["details"]["why"]["overloaded"]["threshold"], 0.75);

    // The loads are as they were announced, and nothing moves any more.
    let relieved = |answer: &Value| {
        answer["gateways"].as_array().unwrap().iter().all(|it| it["load"].as_f64().unwrap() < 0.6)
    };
    let calm = site.until("relieved", &demand, relieved).await;
    let rounds = calm["round_ms"].as_u64().unwrap();
    let later = site
        .until("two rounds on", &demand, |answer| answer["round_ms"].as_u64() > Some(rounds + 1500))
        .await;
    assert_eq!(later["moves"], 2, "{later}");
    let metrics = site.cloud.get("/metrics").await.body;
    assert!(metrics.as_str().unwrap().contains("sluice_controller_scheduler_moves_total 2"));
}

#[tokio::test]
async fn where_vips_do_not_help_a_gateway_is_asked_for() {
    let mut site = Site::start().await;
    let asked = site.until("asked", |_| 0.45, |answer| answer["gateways_wanted"] != 0).await;
    let decision = asked["decisions"].as_array().unwrap().last().unwrap();
    assert_eq!(decision["action"]["request_gateway"]["cluster"], json!(site.cluster), "{asked}");
    let waits = |answer: &Value| {
        answer["waits"].as_array().unwrap().iter().any(|it| it["wait"]["expansion"].is_object())
    };
    let waiting = site.until("waiting for it", |_| 0.45, waits).await;
    assert_eq!(waiting["clusters_in_need"], json!([site.cluster]));
    assert_eq!((&waiting["moves"], &waiting["gateways_wanted"]), (&json!(0), &json!(1)), "{waiting}");
    let events = site.cloud.get("/v1/events").await.body;
    let wanted =
        events["items"].as_array().unwrap().iter().filter(|it| it["kind"] == "scheduler_gateway_wanted");
    assert_eq!(wanted.count(), 1);
}

#[tokio::test]
async fn a_cluster_that_can_spare_a_gateway_gives_it() {
    let mut site = Site::start().await;
    let vips: Vec<String> = (11..=16).map(|number| format!("198.51.100.{number}")).collect();
    let spare = site.cloud.make("/v1/clusters", json!({"name": "spare", "vips": vips})).await;
    site.others.push(spare.clone());
    site.add(&spare, 3..=5).await;
    let busy = |vip: &str| if vip.len() < "198.51.100.11".len() { 0.45 } else { 0.02 };
    // It is emptied first, and then the move begins, which waits for its tables.
    let given = site.until("given", busy, |answer| answer["gateways_given"] != 0).await;
    assert_eq!((&given["gateways_given"], &given["gateways_wanted"]), (&json!(1), &json!(0)), "{given}");
    let decisions = given["decisions"].as_array().unwrap();
    let kinds: Vec<&str> = decisions
        .iter()
        .map(|it| it["action"].as_object().unwrap().keys().next().unwrap().as_str())
        .collect();
    assert_eq!(kinds, ["release_gateway", "move_vip", "move_vip", "reassign_gateway"], "{given}");
    assert!(decisions.iter().all(|it| it["done"] == true), "{given}");
    let gateway = decisions[3]["action"]["reassign_gateway"]["gateway"].as_str().unwrap();
    let moving = site.cloud.get(&format!("/v1/gateways/{gateway}")).await.body;
    assert_eq!((&moving["cluster"], &moving["moving_to"]), (&json!(spare), &json!(site.cluster)));
    let events = site.cloud.get(&format!("/v1/events?subject={gateway}")).await.body;
    let kinds: Vec<&str> =
        events["items"].as_array().unwrap().iter().map(|it| it["kind"].as_str().unwrap()).collect();
    assert!(kinds.contains(&"scheduler_release") && kinds.contains(&"scheduler_reassign"), "{kinds:?}");
    let begun = events["items"].as_array().unwrap().iter().find(|it| it["kind"] == "gateway_move_begun");
    let why = begun.unwrap()["text"].as_str().unwrap();
    assert!(why.ends_with("the scheduler gives it away, and it has no vIP left"), "{why}");
}

#[tokio::test]
async fn settings_that_would_move_vips_back_and_forth_are_refused() {
    let cloud = Cloud::start().await;
    let patch = |body: Value| cloud.send(cloud.request(Method::PATCH, "/v1/scheduler").json(&body));
    assert_eq!(patch(json!({"receive_below": 0.9})).await.problem(), (422, "invalid", "settings"));
    assert_eq!(patch(json!({"moves_per_interval": 0})).await.problem(), (422, "invalid", "settings"));
    assert_eq!(patch(json!({"colour": 1})).await.problem(), (422, "invalid", "colour"));
    assert_eq!(patch(json!({"hold_ms": 5})).await.body["hold_ms"], 5);
    assert_eq!(cloud.get("/v1/scheduler").await.body["settings"]["hold_ms"], 5);
}
