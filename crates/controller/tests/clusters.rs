//! Changes of running clusters, seen through the API and by slow nodes: VPCs and instances that move,
//! gateways that drain, vIPs that are added and removed.

mod common;

use common::{Basics, Cloud, Node, basics, join};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sluice_southbound::Update;
use std::time::{Duration, Instant};

async fn patch(cloud: &Cloud, path: &str, body: Value) -> common::Answer {
    cloud.send(cloud.request(Method::PATCH, path).json(&body)).await
}

/// Creates a second cluster with a gateway. Returns their ids.
async fn second(cloud: &Cloud) -> (String, String) {
    let cluster = cloud.make("/v1/clusters", json!({"name": "c2", "vips": ["192.0.2.12"]})).await;
    let gateway = json!({"name": "g2", "cluster": cluster, "vtep4": "192.0.2.2"});
    let gateway = cloud.make("/v1/gateways", gateway).await;
    (cluster, gateway)
}

async fn join_and_ack_snapshot(cloud: &Cloud, path: &str) -> Node {
    let identity = cloud.enroll(path).await;
    let mut node = join(cloud, &identity, 0, 0).await;
    node.acked_step().await;
    node
}

/// Acknowledges messages until one fits, and returns that one.
async fn until(node: &mut Node, fits: impl Fn(&Update) -> bool) -> Update {
    loop {
        let update = node.next().await;
        if update.revision != 0 {
            node.ack(update.revision).await;
        }
        if fits(&update) {
            return update;
        }
    }
}

async fn event_kinds(cloud: &Cloud, subject: &str) -> Vec<String> {
    let events = cloud.get(&format!("/v1/events?subject={subject}")).await;
    assert_eq!(events.status, StatusCode::OK, "{}", events.body);
    let items = events.body["items"].as_array().unwrap();
    items.iter().map(|event| event["kind"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn vpc_moves_make_before_break_and_across_a_restart() {
    let mut cloud = Cloud::start().await;
    let basics: Basics = basics(&cloud).await;
    let (to, g2) = second(&cloud).await;
    let vm = cloud.make(&basics.instances_path(), basics.instance("vm")).await;
    let old_identity = cloud.enroll(&basics.gateway_path()).await;
    let mut old = join(&cloud, &old_identity, 0, 0).await;
    old.acked_step().await;
    let g2_identity = cloud.enroll(&format!("/v1/gateways/{g2}")).await;
    let mut new = join(&cloud, &g2_identity, 0, 0).await;
    let (base, _) = new.acked_step().await;
    let host_identity = cloud.enroll(&basics.host_path()).await;
    let mut host = join(&cloud, &host_identity, 0, 0).await;
    host.acked_step().await;
    let path = format!("/v1/vpcs/{}", basics.vpc);
    cloud.wait_until("programmed", &path, |vpc| vpc["programmed"] == true).await;

    let moving = patch(&cloud, &path, json!({"cluster": to})).await;
    assert_eq!((moving.status, &moving.body["cluster"]), (StatusCode::OK, &json!(basics.cluster)));
    assert_eq!((&moving.body["moving_to"], &moving.body["move_phase"]), (&json!(to), &json!("filling")));
    assert_eq!(moving.body["programmed"], false);
    // The gateway of the new cluster gets all entries, and does not acknowledge them yet.
    let step = new.step().await;
    let entries = |count: fn(&Update) -> usize| step.iter().map(count).sum::<usize>();
    assert_eq!(
        (entries(|u| u.vrfs.len()), entries(|u| u.routes.len()), entries(|u| u.endpoints.len())),
        (1, 2, 1)
    );
    let group: u32 = to.strip_prefix("cluster-").unwrap().parse().unwrap();
    let switched = |update: &Update| update.vrfs.iter().any(|vrf| vrf.group == Some(group));
    // Until it has written them, hosts still send to the old cluster.
    cloud.make(&basics.instances_path(), basics.instance("vm2")).await;
    let next = until(&mut host, |update| switched(update) || !update.ports.is_empty()).await;
    assert!(!switched(&next) && next.ports[0].name == "v/vm2");
    cloud.wait_until("waiting for the gateway", &path, |vpc| vpc["move_waiting_for"] == json!(["g2"])).await;
    assert_eq!(cloud.get(&path).await.body["move_phase"], "filling");

    // A restarted controller continues the move.
    let database = new.database;
    drop((new, host, old));
    cloud.restart().await;
    let mut new = join(&cloud, &g2_identity, base, database).await;
    let mut host = join(&cloud, &host_identity, 0, 0).await;
    host.acked_step().await;
    new.acked_step().await;
    let update = until(&mut host, switched).await;
    assert!(update.ports.is_empty(), "only the group of the VRF changes");
    let mut old = join(&cloud, &old_identity, 0, 0).await;
    old.acked_step().await;
    let removal = until(&mut old, |update| !update.removed_vnis.is_empty()).await;
    assert_eq!(removal.removed_endpoints.len(), 2);
    let vpc = cloud.wait_until("moved", &path, |vpc| vpc["moving_to"].is_null()).await;
    assert_eq!((&vpc["cluster"], &vpc["move_phase"]), (&json!(to), &Value::Null));
    assert_eq!(
        event_kinds(&cloud, &basics.vpc).await,
        ["vpc_move_started", "vpc_move_switched", "vpc_moved"]
    );
    assert_eq!(cloud.get(&format!("/v1/instances/{vm}")).await.status, StatusCode::OK);

    // A move to a cluster without gateways is refused, and so is a second move at the same time.
    let empty = cloud.make("/v1/clusters", json!({"name": "c3", "vips": ["192.0.2.13"]})).await;
    let refused = patch(&cloud, &path, json!({"cluster": empty})).await;
    assert_eq!(refused.problem(), (409, "no-gateways", "c3"));
    assert_eq!(patch(&cloud, &path, json!({"cluster": basics.cluster})).await.status, StatusCode::OK);
    let refused = patch(&cloud, &path, json!({"cluster": empty})).await;
    assert_eq!(refused.problem(), (409, "vpc-moves", "v"));
    let unknown = patch(&cloud, &path, json!({"cluster": "cluster-99999"})).await;
    assert_eq!(unknown.problem().0, 422);
    let back = patch(&cloud, &path, json!({"cluster": to})).await;
    assert_eq!((&back.body["cluster"], &back.body["moving_to"]), (&json!(basics.cluster), &json!(to)));
}

#[tokio::test]
async fn instance_moves_after_gateways_have_its_new_host() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let h2 = cloud.make("/v1/hosts", json!({"name": "h2", "vtep": "192.0.2.22"})).await;
    let vm = cloud.make(&basics.instances_path(), basics.instance("vm")).await;
    let mut gateway = join_and_ack_snapshot(&cloud, &basics.gateway_path()).await;
    let mut from = join_and_ack_snapshot(&cloud, &basics.host_path()).await;
    let mut to = join_and_ack_snapshot(&cloud, &format!("/v1/hosts/{h2}")).await;
    let path = format!("/v1/instances/{vm}");
    cloud.wait_until("programmed", &path, |vm| vm["programmed"] == true).await;
    // The gateway does not acknowledge, and hosts wait for it for one second.
    let start = Instant::now();
    let moved = patch(&cloud, &path, json!({"host": h2})).await;
    assert_eq!((moved.status, &moved.body["host"]), (StatusCode::OK, &json!(h2)), "{}", moved.body);
    let step = gateway.step().await;
    assert_eq!(step[0].endpoints[0].host, "192.0.2.22".parse::<std::net::IpAddr>().unwrap());
    let port = until(&mut to, |update| !update.ports.is_empty()).await;
    assert!(start.elapsed() >= Duration::from_secs(1), "the port came before the gateways had the new host");
    assert_eq!((port.ports[0].name.as_str(), port.vrfs.len()), ("v/vm", 1));
    gateway.ack(step.last().unwrap().revision).await;
    until(&mut from, |update| !update.removed_ports.is_empty()).await;
    cloud.wait_until("programmed", &path, |vm| vm["programmed"] == true).await;
    assert_eq!(event_kinds(&cloud, &vm).await, ["instance_moved"]);

    assert_eq!(patch(&cloud, &path, json!({"host": basics.host})).await.status, StatusCode::OK);
    gateway.acked_step().await;
    until(&mut from, |update| !update.ports.is_empty()).await;
    let unknown = patch(&cloud, &path, json!({"host": "host-99999"})).await;
    assert_eq!(unknown.problem(), (422, "unknown-reference", "host-99999"));
    let refused = patch(&cloud, &path, json!({"host": h2, "mac": "02:00:00:00:00:09"})).await;
    assert_eq!(refused.problem().0, 422);
}

#[tokio::test]
async fn gateway_drains_and_undrains() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let path = basics.gateway_path();
    let refused = cloud.post(&format!("{path}/drain"), json!({})).await;
    assert_eq!(refused.problem(), (409, "last-gateway", "g"));
    let spare =
        json!({"name": "spare", "cluster": basics.cluster, "vtep4": "192.0.2.98", "vtep6": "fd00::98"});
    let spare = cloud.make("/v1/gateways", spare).await;
    let mut node = join_and_ack_snapshot(&cloud, &path).await;
    let drained = cloud.post(&format!("{path}/drain"), json!({})).await;
    assert_eq!((drained.status, &drained.body["draining"]), (StatusCode::OK, &json!(true)));
    let update =
        until(&mut node, |update| update.cluster.as_ref().is_some_and(|plan| plan.members[0].draining));
    let plan = update.await.cluster.unwrap();
    assert!(
        plan.preferred_owners.len() == 2
            && plan
                .preferred_owners
                .iter()
                .all(|preferred_owner| preferred_owner.gateway.to_string() == spare)
    );
    // The store would allow it, because the draining gateway is still there.
    let refused = cloud.delete(&format!("/v1/gateways/{spare}")).await;
    assert_eq!(refused.problem(), (409, "last-gateway", "spare"));
    let cluster = cloud.get(&format!("/v1/clusters/{}", basics.cluster)).await.body;
    let vips = cluster["vips"].as_array().unwrap();
    let owners: Vec<_> = vips.iter().map(|vip| vip["preferred_owner"].clone()).collect();
    assert_eq!(owners, [json!(spare), json!(spare)]);
    let stale = cloud.request(Method::POST, &format!("{path}/undrain")).header("if-match", "\"1\"");
    assert_eq!(cloud.send(stale).await.problem().0, 412);
    let back = cloud.post(&format!("{path}/undrain"), json!({})).await;
    assert_eq!(back.body["draining"], false);
    assert_eq!(event_kinds(&cloud, &basics.gateway).await, ["gateway_draining", "gateway_undrained"]);
    assert_eq!(cloud.post("/v1/gateways/gw-99999/drain", json!({})).await.problem().0, 404);
}

#[tokio::test]
async fn moving_gateway_has_the_entries_of_both_clusters() {
    let mut cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    cloud.make(&basics.instances_path(), basics.instance("vm")).await;
    let (far, g2) = second(&cloud).await;
    let (path, g2_path) = (basics.gateway_path(), format!("/v1/gateways/{g2}"));
    let move_to =
        async |cloud: &Cloud, path: &str, body: Value| cloud.post(&format!("{path}/move"), body).await;
    let last = move_to(&cloud, &path, json!({"cluster": far})).await;
    assert_eq!(last.problem(), (409, "last-gateway", "g"));
    let missing = move_to(&cloud, &g2_path, json!({"cluster": basics.cluster})).await;
    assert_eq!(missing.problem(), (422, "family-missing", "g2"), "it has no IPv6 VTEP");
    let unknown = move_to(&cloud, &g2_path, json!({"cluster": "cluster-99999"})).await;
    assert_eq!(unknown.problem().0, 422);
    let long = move_to(&cloud, &g2_path, json!({"cluster": far, "reason": "x".repeat(201)})).await;
    assert_eq!(long.problem(), (422, "invalid", "reason"));

    // The far cluster has no VPC, so its gateway may leave.
    let vips = json!({"vips": ["192.0.2.10", "192.0.2.11", "fd00::10"]});
    assert_eq!(patch(&cloud, &format!("/v1/clusters/{}", basics.cluster), vips).await.status, StatusCode::OK);
    let new = json!({"name": "g3", "cluster": far, "vtep4": "192.0.2.3", "vtep6": "fd00::3"});
    let g3 = cloud.make("/v1/gateways", new).await;
    let g3_path = format!("/v1/gateways/{g3}");
    let identity = cloud.enroll(&g3_path).await;
    let mut node = join(&cloud, &identity, 0, 0).await;
    let (_, snapshot) = node.acked_step().await;
    let clusters_with_keys = |step: &[Update]| {
        step.iter()
            .flat_map(|part| &part.keys)
            .filter(|keys| !keys.keys.is_empty())
            .map(|k| k.cluster)
            .collect::<Vec<_>>()
    };
    assert!(snapshot.iter().all(|part| part.vrfs.is_empty()));
    let of_far = clusters_with_keys(&snapshot);
    let started = move_to(&cloud, &g3_path, json!({"cluster": basics.cluster, "reason": "a test"})).await;
    assert_eq!((started.status, &started.body["moving_to"]), (StatusCode::OK, &json!(basics.cluster)));
    let both = node.step().await;
    assert!(both[0].snapshot, "{both:?}");
    let sum = |count: fn(&Update) -> usize| both.iter().map(count).sum::<usize>();
    assert_eq!((sum(|u| u.vrfs.len()), sum(|u| u.endpoints.len()), sum(|u| u.vips.len())), (1, 1, 4));
    let plan = both.iter().find_map(|part| part.cluster.clone()).unwrap();
    assert!(plan.cluster.to_string() == far && plan.members.iter().any(|it| it.draining));
    assert_eq!(clusters_with_keys(&both), of_far, "it is still a member of the far cluster");
    // The move waits for the gateway, also across a restart.
    let waits =
        |body: &Value| body["move_waiting_for"] == json!(["the gateway to have the VPCs of both clusters"]);
    cloud.wait_until("waiting", &g3_path, waits).await;
    drop(node);
    cloud.restart().await;
    let mut node = join(&cloud, &identity, 0, 0).await;
    let (_, again) = node.acked_step().await;
    assert_eq!(again.iter().map(|part| part.endpoints.len()).sum::<usize>(), 1);
    let joined = until(&mut node, |update| !update.keys.is_empty()).await;
    assert_eq!(clusters_with_keys(&[joined]).len(), 1);
    let plan = until(&mut node, |update| update.cluster.is_some()).await.cluster.unwrap();
    assert_eq!(plan.cluster.to_string(), basics.cluster);
    assert!(
        plan.preferred_owners.iter().any(|preferred_owner| preferred_owner.gateway.to_string() == g3),
        "it has no vIP: {plan:?}"
    );
    let joined = cloud.wait_until("joined", &g3_path, |it| it["cluster"] == json!(basics.cluster)).await;
    assert_eq!(joined["moving_from"], json!(far));
    assert_eq!(event_kinds(&cloud, &g3).await, ["gateway_move_started", "gateway_move_joined"]);
}

#[tokio::test]
async fn vips_are_added_and_removed_in_order() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let mut gateway = join_and_ack_snapshot(&cloud, &basics.gateway_path()).await;
    let mut host = join_and_ack_snapshot(&cloud, &basics.host_path()).await;
    let path = format!("/v1/clusters/{}", basics.cluster);
    cloud.wait_until("programmed", &path, |cluster| cluster["programmed"] == true).await;
    let both = json!({"vips": ["192.0.2.11", "fd00::10"]});
    assert_eq!(patch(&cloud, &path, both).await.status, StatusCode::OK);
    // The gateway gets the new vIP before hosts, and hosts stop using the old one before it is removed.
    let (_, step) = gateway.acked_step().await;
    assert_eq!((step[0].vips.len(), step[0].removed_vips.len()), (3, 0));
    let groups = until(&mut host, |update| !update.groups.is_empty()).await.groups;
    assert_eq!(groups[0].vips.len(), 2);
    let groups = until(&mut host, |update| !update.groups.is_empty()).await.groups;
    assert_eq!(groups[0].vips, ["192.0.2.11".parse::<std::net::IpAddr>().unwrap()]);
    let removal = until(&mut gateway, |update| !update.removed_vips.is_empty()).await;
    assert_eq!(removal.removed_vips, ["192.0.2.10".parse::<std::net::IpAddr>().unwrap()]);
    let update = until(&mut gateway, |update| update.cluster.is_some()).await;
    let slots: Vec<_> = update.cluster.unwrap().vips.iter().map(|vip| vip.slot).collect();
    assert_eq!(slots, [1, 2]);
    assert_eq!(event_kinds(&cloud, &basics.cluster).await, ["cluster_vips", "cluster_vips"]);
}

#[tokio::test]
async fn hello_intervals_reach_gateways() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let mut gateway = join_and_ack_snapshot(&cloud, &basics.gateway_path()).await;
    let path = format!("/v1/clusters/{}", basics.cluster);
    assert_eq!(cloud.get(&path).await.body["hello_interval_ms"], 4);
    let next_plan = async |gateway: &mut _| {
        until(gateway, |update: &Update| update.cluster.is_some()).await.cluster.unwrap()
    };
    let set = patch(&cloud, &path, json!({"hello_interval_ms": 100})).await;
    assert_eq!((set.status, &set.body["hello_interval_ms"]), (StatusCode::OK, &json!(100)));
    let mut plan = next_plan(&mut gateway).await;
    while plan.hello_interval_ms != 100 {
        plan = next_plan(&mut gateway).await;
    }
    let set = patch(&cloud, &path, json!({"vips": ["192.0.2.10", "192.0.2.13", "fd00::10"]})).await;
    assert_eq!(set.body["hello_interval_ms"], 100, "fields that are left out keep their values");
    for (body, field) in [
        (json!({"hello_interval_ms": 1}), "hello_interval_ms"),
        (json!({"hello_interval_ms": 251}), "hello_interval_ms"),
        (json!({}), "body"),
        (json!({"hello_interval_ms": 20, "vips": ["192.0.2.10"]}), "body"),
    ] {
        assert_eq!(patch(&cloud, &path, body).await.problem(), (422, "invalid", field));
    }
    let new = |hello_interval_ms: u32| json!({"name": "slow", "vips": ["192.0.2.77"], "hello_interval_ms": hello_interval_ms});
    assert_eq!(cloud.post("/v1/clusters", new(300)).await.problem(), (422, "invalid", "hello_interval_ms"));
    assert_eq!(cloud.post("/v1/clusters", new(250)).await.body["hello_interval_ms"], 250);
    assert_eq!(cloud.post("/v1/clusters", new(250)).await.status, StatusCode::OK, "the same cluster exists");
    assert_eq!(cloud.post("/v1/clusters", new(50)).await.status, StatusCode::CONFLICT);
}

#[tokio::test]
async fn keys_reach_only_nodes_that_need_them() {
    let mut cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let identity = cloud.enroll(&basics.gateway_path()).await;
    let mut gateway = join(&cloud, &identity, 0, 0).await;
    let (revision, step) = gateway.acked_step().await;
    let keys: Vec<_> = step.iter().flat_map(|part| part.keys.clone()).collect();
    assert_eq!((keys.len(), keys[0].keys.len()), (1, 1));
    let host_identity = cloud.enroll(&basics.host_path()).await;
    let mut host = join(&cloud, &host_identity, 0, 0).await;
    let (_, step) = host.acked_step().await;
    assert!(step.iter().all(|part| part.keys.is_empty()), "it has no network on the cluster");
    cloud.make(&basics.instances_path(), basics.instance("vm")).await;
    let (_, step) = host.acked_step().await;
    let host_keys: Vec<_> = step.iter().flat_map(|part| part.keys.clone()).collect();
    assert!(
        !step[0].keys.is_empty() && step[0].ports.is_empty(),
        "keys come before the entries that need them"
    );
    assert_eq!(
        (host_keys.len(), host_keys[0].cluster, host_keys[0].keys[0].id),
        (1, keys[0].cluster, keys[0].keys[0].id)
    );
    // A host has secrets of its own, for RSP only.
    let vtep = "192.0.2.21".parse().unwrap();
    let derived = sluice_rsp::host_secret(keys[0].keys[0].secret.bytes(), vtep);
    assert_eq!(host_keys[0].keys[0].secret.bytes(), &derived);
    // A renewed key reaches all nodes that had the old one, and an event records it.
    let path = format!("/v1/clusters/{}/rotate-key", basics.cluster);
    let rotated = cloud.post(&path, json!({})).await;
    assert_eq!(rotated.status, StatusCode::OK, "{}", rotated.body);
    let keys = until(&mut gateway, |update| !update.keys.is_empty()).await.keys;
    let new = keys[0].keys.last().unwrap();
    assert_eq!((keys[0].keys.len(), json!(new.not_before_ms)), (2, rotated.body["valid_from_ms"].clone()));
    assert_eq!(json!(keys[0].keys[0].not_after_ms), rotated.body["previous_keys_expire_ms"]);
    let step = host.step().await;
    let host_keys = step[0].keys.clone();
    let host_at = step.last().unwrap().revision;
    assert_eq!((host_keys[0].keys.len(), host_keys[0].keys[1].id), (2, new.id));
    let derived = sluice_rsp::host_secret(new.secret.bytes(), vtep);
    assert_eq!(host_keys[0].keys[1].secret.bytes(), &derived);
    assert_eq!(event_kinds(&cloud, &basics.cluster).await, ["cluster_key_renewed"]);
    assert_eq!(cloud.post(&path, json!({})).await.problem(), (409, "key-is-new", "c"));
    assert_eq!(cloud.post("/v1/clusters/cluster-999/rotate-key", json!({})).await.problem().0, 404);
    // A node that continues from its tables gets the keys at once, also from a restarted controller.
    let database = gateway.database;
    let mut again = join(&cloud, &host_identity, host_at, database).await;
    assert_eq!(again.next().await.keys, host_keys);
    drop(again);
    for _ in 0..2 {
        let mut again = join(&cloud, &identity, revision, database).await;
        let first = again.next().await;
        assert!(!first.snapshot && first.revision == 0 && first.cluster.is_some());
        assert_eq!(first.keys, keys);
        drop(again);
        cloud.restart().await;
    }
    let secret = keys[0].keys[0].secret;
    let hex: String = secret.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let list = format!("{:?}", secret.bytes());
    for path in ["/v1/clusters", "/v1/gateways", "/v1/nodes", "/v1/events", "/metrics", "/openapi.json"] {
        let text = cloud.get(path).await.body.to_string();
        assert!(text.len() > 2 && !text.contains(&hex) && !text.contains(&list), "{path}");
    }
}

#[tokio::test]
async fn offload_threshold_can_be_set_and_removed() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let mut gateway = join_and_ack_snapshot(&cloud, &basics.gateway_path()).await;
    let path = format!("/v1/vpcs/{}", basics.vpc);
    assert!(cloud.get(&path).await.body.get("offload_kbps").is_none());
    for (given, expected) in [(json!(500), 500), (json!(u32::MAX), u32::MAX), (Value::Null, 0)] {
        let set = patch(&cloud, &path, json!({"offload_kbps": given})).await;
        assert_eq!(
            (set.status, set.body.get("offload_kbps").unwrap_or(&Value::Null)),
            (StatusCode::OK, &given)
        );
        let update = until(&mut gateway, |update| !update.vrfs.is_empty()).await;
        assert_eq!(update.vrfs[0].elephant_kbps, expected);
    }
    assert_eq!(
        patch(&cloud, &path, json!({"offload_kbps": 0})).await.problem(),
        (422, "invalid", "offload_kbps")
    );
    let new = json!({"name": "w", "tenant": basics.tenant, "offload_kbps": 9});
    let made = cloud.post("/v1/vpcs", new).await;
    assert_eq!(made.body["offload_kbps"], 9);
    let kept = patch(&cloud, &format!("/v1/vpcs/{}", made.id()), json!({"mtu": 1400})).await;
    assert_eq!(kept.body["offload_kbps"], 9, "fields that are left out keep their values");
}

#[tokio::test]
async fn events_are_listed_by_page() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let path = format!("/v1/clusters/{}", basics.cluster);
    for last in 0..5 {
        let vips = json!({"vips": ["192.0.2.10", "fd00::10", format!("192.0.2.{}", last + 80)]});
        assert_eq!(patch(&cloud, &path, vips).await.status, StatusCode::OK);
    }
    let all = cloud.get("/v1/events?limit=1000").await.body["items"].as_array().unwrap().clone();
    assert!(all.len() >= 5);
    let first = all[0]["id"].as_u64().unwrap();
    let next = cloud.get(&format!("/v1/events?after={first}&limit=2")).await.body["items"].clone();
    assert_eq!(next.as_array().unwrap()[..], all[1..3]);
    let newest = cloud.get("/v1/events?limit=1").await.body["items"].clone();
    assert_eq!(newest.as_array().unwrap()[..], all[all.len() - 1..]);
    assert!(all[0]["text"].as_str().unwrap().starts_with("cluster `c` now has "));
    for bad in ["limit=0", "limit=1001", "after=-1", "since=3"] {
        assert_eq!(cloud.get(&format!("/v1/events?{bad}")).await.problem().0, 400, "{bad}");
    }
}
