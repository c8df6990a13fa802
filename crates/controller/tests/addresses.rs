//! Secondary addresses, delegated prefixes, address pairs, spoofing protection and QoS over HTTP, and claims of hosts.

mod common;

use common::{Answer, Basics, Cloud, basics, join};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sluice_southbound::{AddressClaim, Missing, Scope, Update};
use sluice_types::EntryKey;
use std::time::Duration;

async fn patch(cloud: &Cloud, path: &str, body: Value) -> Answer {
    cloud.send(cloud.request(Method::PATCH, path).json(&body)).await
}

fn with(basics: &Basics, name: &str, fields: Value) -> Value {
    let mut instance = basics.instance(name);
    instance.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    instance
}

#[tokio::test]
async fn fields_of_instances() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let plain = cloud.post(&basics.instances_path(), basics.instance("plain")).await;
    let of = |answer: &Answer| {
        let fields =
            ["secondary_addresses", "delegated_prefixes", "address_pairs", "spoofing_protection", "qos"];
        json!(fields.map(|field| answer.body[field].clone()))
    };
    assert_eq!(of(&plain), json!([[], [], [], true, {"dscp": null, "rate_mbps": null}]));
    let fields = json!({
        "secondary_addresses": ["2001:db8::9", "10.0.0.9"],
        "delegated_prefixes": ["10.0.8.0/24"],
        "address_pairs": [{"address": "10.0.0.60", "mac": "00:00:5e:00:01:05"}, {"address": "2001:db8::60"}],
        "spoofing_protection": false,
        "qos": {"dscp": 46},
    });
    let made = cloud.post(&basics.instances_path(), with(&basics, "vm", fields.clone())).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let expected = json!([["10.0.0.9", "2001:db8::9"], ["10.0.8.0/24"],
        [{"address": "10.0.0.60", "mac": "00:00:5e:00:01:05", "held": false}, {"address": "2001:db8::60", "held": false}],
        false, {"dscp": 46, "rate_mbps": null}]);
    assert_eq!(of(&made), expected);
    let again = cloud.post(&basics.instances_path(), with(&basics, "vm", fields)).await;
    assert_eq!((again.status, of(&again)), (StatusCode::OK, expected));
    let other = with(&basics, "vm", json!({"secondary_addresses": []}));
    assert_eq!(cloud.post(&basics.instances_path(), other).await.problem(), (409, "name-taken", "vm"));

    let vm = format!("/v1/instances/{}", made.id());
    let changed = patch(&cloud, &vm, json!({"qos": {"rate_mbps": 100}, "secondary_addresses": []})).await;
    assert_eq!(changed.body["qos"], json!({"dscp": null, "rate_mbps": 100}));
    assert_eq!(
        (&changed.body["secondary_addresses"], &changed.body["spoofing_protection"]),
        (&json!([]), &json!(false))
    );
    let stale = cloud.request(Method::PATCH, &vm).header("if-match", "\"1\"").json(&json!({"qos": {}}));
    assert_eq!(cloud.send(stale).await.problem().0, 412);
    for (body, problem) in [
        (json!({"secondary_addresses": ["10.0.8.9"]}), (409, "address-delegated", "10.0.8.9")),
        (
            json!({"secondary_addresses": [plain.body["ipv4"]]}),
            (409, "address-taken", plain.body["ipv4"].as_str().unwrap()),
        ),
        (json!({"secondary_addresses": ["10.1.0.9"]}), (422, "outside-subnet", "10.1.0.9")),
        (json!({"secondary_addresses": ["10.0.0.60"]}), (409, "address-taken", "10.0.0.60")),
        (json!({"delegated_prefixes": ["10.0.0.0/28"]}), (409, "prefix-in-use", "10.0.0.0/28")),
        (json!({"qos": {"dscp": 64}}), (422, "invalid", "qos")),
        (json!({"qos": {}, "host": basics.host}), (422, "invalid", "body")),
    ] {
        let refused = patch(&cloud, &vm, body.clone()).await;
        assert_eq!(refused.problem(), problem, "{body}: {}", refused.body);
    }
    // One cause, one kind: another instance has the address in its pairs.
    let other = format!("/v1/instances/{}", plain.id());
    let taken = patch(&cloud, &other, json!({"secondary_addresses": ["10.0.0.60"]})).await;
    let new = with(&basics, "new", json!({"ipv4": "10.0.0.60"}));
    for refused in [taken, cloud.post(&basics.instances_path(), new).await] {
        assert_eq!(refused.problem(), (409, "address-taken", "10.0.0.60"));
        let detail = refused.body["detail"].as_str().unwrap();
        assert!(detail.contains("in the address pairs of instance `vm`"), "{detail}");
    }
    for body in [json!({"qos": null}), json!({"address_pairs": null}), json!({"qos": {"rate": 1}})] {
        let refused = patch(&cloud, &vm, body.clone()).await;
        assert!(refused.status.is_client_error(), "{body}");
    }
}

/// Addresses and prefixes that no instance can have, each with what the answer must name.
fn bad_addresses() -> Vec<(Value, &'static str)> {
    let secondary = |text: &str| json!({"secondary_addresses": [text]});
    let pair = |text: &str| json!({"address_pairs": [{"address": text}]});
    let prefix = |text: &str| json!({"delegated_prefixes": [text]});
    let mut bad = Vec::new();
    for address in [
        "0.0.0.0",
        "255.255.255.255",
        "127.0.0.1",
        "169.254.0.9",
        "224.0.0.5",
        "192.0.2.21",
        "10.0.0.0",
        "10.0.0.1",
        "10.0.255.255",
        "::",
        "::1",
        "fe80::9",
        "ff02::1",
        "::ffff:10.0.0.9",
        "fd00::91",
        "2001:db8::",
        "2001:db8::1",
    ] {
        bad.extend([(secondary(address), address), (pair(address), address)]);
    }
    for text in ["fe80::9%eth0", "10.0.0.9/32", "10.0.0.09", "", "10.0.0.9 "] {
        bad.extend([(secondary(text), "secondary_addresses"), (pair(text), "address")]);
    }
    for text in [
        "10.0.0.0/30",
        "10.0.0.9/24",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "224.0.0.0/4",
        "fe80::/64",
        "ff00::/8",
        "::1/128",
        "10.0.0.9/32",
        "::ffff:0.0.0.0/96",
        "2001:db8::/96",
        "10.0.0.0/16",
    ] {
        bad.push((prefix(text), text));
    }
    bad.push((prefix("10.0.8.0/33"), "delegated_prefixes[0]"));
    bad
}

/// All settings that no instance can have.
fn bad_settings() -> Vec<(Value, &'static str)> {
    let many = |count: u32| (0..count).map(|i| format!("10.0.9.{i}")).collect::<Vec<_>>();
    let mut bad = bad_addresses();
    bad.extend([
        (json!({"secondary_addresses": many(17)}), "secondary_addresses"),
        (json!({"secondary_addresses": ["10.0.0.9", "10.0.0.9"]}), "10.0.0.9"),
        (
            json!({"secondary_addresses": ["10.0.0.9"], "address_pairs": [{"address": "10.0.0.9"}]}),
            "10.0.0.9",
        ),
        (json!({"secondary_addresses": ["10.0.8.9"], "delegated_prefixes": ["10.0.8.0/24"]}), "10.0.8.9"),
        (json!({"delegated_prefixes": ["10.0.8.0/24", "10.0.8.0/25"]}), "10.0.8.0/2"),
        (
            json!({"address_pairs": [{"address": "10.0.0.9", "mac": "01:00:00:00:00:01"}]}),
            "01:00:00:00:00:01",
        ),
        (json!({"address_pairs": [{"address": "10.0.0.9", "held": true}]}), "held"),
        (json!({"qos": {"dscp": 64}}), "DSCP 64"),
        (json!({"qos": {"dscp": -1}}), "dscp"),
        (json!({"qos": {"dscp": 256}}), "dscp"),
        (json!({"qos": {"rate_mbps": 0}}), "rate of 0"),
        (json!({"qos": {"rate_mbps": -5}}), "rate_mbps"),
        (json!({"qos": {"rate_mbps": 400_001}}), "400001"),
        (json!({"qos": {"rate_mbps": 1_u64 << 32}}), "rate_mbps"),
        (json!({"qos": {"rate_mbps": 1.5}}), "rate_mbps"),
        (json!({"qos": {"rate": 1}}), "rate"),
        (json!({"spoofing_protection": "off"}), "spoofing_protection"),
        (json!({"secondary": []}), "secondary"),
    ]);
    bad
}

/// Each bad setting is refused with its offender, when an instance is created and when it is changed, and changes nothing.
#[tokio::test]
async fn bad_settings_change_nothing() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let vm = cloud.post(&basics.instances_path(), with(&basics, "vm", json!({}))).await;
    let path = format!("/v1/instances/{}", vm.id());
    let before = cloud.get(&path).await.body;
    let mut wrong = Vec::new();
    for (settings, offender) in bad_settings() {
        let created = cloud.post(&basics.instances_path(), with(&basics, "new", settings.clone())).await;
        for answer in [created, patch(&cloud, &path, settings.clone()).await] {
            let names = |field: &str| answer.body[field].as_str().is_some_and(|text| text.contains(offender));
            if !answer.status.is_client_error() || !names("detail") && !names("offender") {
                wrong.push(format!("{settings}: {} {}", answer.status, answer.body));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(cloud.get(&path).await.body, before);
    // Of two writers with one revision, one is refused.
    let etag = format!("\"{}\"", before["revision"]);
    let write = |rate: u32| {
        let body = json!({"qos": {"rate_mbps": rate}});
        cloud.send(cloud.request(Method::PATCH, &path).header("if-match", &etag).json(&body))
    };
    let (one, two) = tokio::join!(write(1), write(2));
    let mut statuses = [one.status.as_u16(), two.status.as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 412]);
    assert_eq!(cloud.get("/v1/instances").await.body["items"].as_array().unwrap().len(), 1);
}

/// The next step, without its end, as one update.
fn joined(step: Vec<Update>) -> Update {
    let mut all = Update::default();
    for part in step {
        all.endpoints.extend(part.endpoints);
        all.routes.extend(part.routes);
        all.ports.extend(part.ports);
        all.removed_endpoints.extend(part.removed_endpoints);
        all.removed_routes.extend(part.removed_routes);
    }
    all
}

#[tokio::test]
async fn hosts_claim_addresses_and_gateways_follow() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let fields = json!({"address_pairs": [{"address": "10.0.0.60"}], "delegated_prefixes": ["10.0.8.0/24"]});
    let vm = cloud.post(&basics.instances_path(), with(&basics, "vm", fields)).await;
    let path = format!("/v1/instances/{}", vm.id());
    let gateway = cloud.enroll(&basics.gateway_path()).await;
    let mut gateway = join(&cloud, &gateway, 0, 0).await;
    let host = cloud.enroll(&basics.host_path()).await;
    let mut host = join(&cloud, &host, 0, 0).await;
    let first = joined(gateway.acked_step().await.1);
    assert_eq!(first.endpoints.len(), 1);
    assert!(first.routes.iter().any(|route| matches!(route.scope, Scope::NextHop(_))), "{:?}", first.routes);
    let port = joined(host.acked_step().await.1).ports.remove(0);
    cloud.wait_until("programmed", &path, |vm| vm["programmed"] == true).await;

    let address = "10.0.0.60".parse().unwrap();
    let claim = AddressClaim { instance: port.instance, address, age: Duration::from_millis(5) };
    let wrong = AddressClaim { address: "10.0.0.61".parse().unwrap(), ..claim };
    host.connection.reports.claims(vec![wrong, claim, claim]).await.unwrap();
    let held = cloud.wait_until("held", &path, |vm| vm["address_pairs"][0]["held"] == true).await;
    let (revision, step) = gateway.acked_step().await;
    assert_eq!(Some(revision), held["revision"].as_u64());
    let endpoints = joined(step).endpoints;
    assert_eq!(
        endpoints.iter().map(|e| (e.ipv4.map(Into::into), e.mac)).collect::<Vec<_>>(),
        [(Some(address), sluice_types::ROUTER_MAC)]
    );
    let ports = joined(host.acked_step().await.1).ports;
    assert!(ports[0].options.pairs[0].held);
    cloud.wait_until("programmed", &path, |vm| vm["programmed"] == true).await;
    let metrics = cloud.get("/metrics").await.body.to_string();
    for line in ["address_claims_total 1", "address_claims_refused_total 1", "address_claims_late_total 0"] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }

    // An entry of the instance that the host does not have makes it not programmed.
    let mut missing = Missing::default();
    let prefix = "10.0.8.0/24".parse().unwrap();
    missing.add(EntryKey::Delegated(port.vni, prefix), "full".to_owned());
    host.connection.reports.missing(missing).await.unwrap();
    host.connection.reports.ack(revision, vec!["1 entry failed".into()], false).await.unwrap();
    let failed = cloud.wait_until("failed", &path, |vm| vm["programmed"] == false).await;
    assert!(failed["failures"][0]["entry"].as_str().unwrap().contains("10.0.8.0/24"), "{failed}");
    host.connection.reports.missing(Missing::default()).await.unwrap();
    host.ack(revision).await;
    cloud.wait_until("written", &path, |vm| vm["programmed"] == true).await;

    // The prefix and the pair are given up: the address is held until nodes have acknowledged that.
    let none = patch(&cloud, &path, json!({"address_pairs": [], "delegated_prefixes": []})).await;
    assert_eq!(none.status, StatusCode::OK, "{}", none.body);
    let other = with(&basics, "other", json!({"ipv4": "10.0.0.60"}));
    assert_eq!(
        cloud.post(&basics.instances_path(), other.clone()).await.problem(),
        (409, "held", "10.0.0.60")
    );
    let gone = joined(gateway.acked_step().await.1);
    assert_eq!((gone.removed_endpoints.len(), gone.removed_routes.len()), (1, 1));
    host.acked_step().await;
    cloud.wait_until("released", "/v1/removals", |list| list["items"] == json!([])).await;
    assert_eq!(cloud.post(&basics.instances_path(), other).await.status, StatusCode::CREATED);
}
