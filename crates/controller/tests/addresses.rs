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
    for body in [json!({"qos": null}), json!({"address_pairs": null}), json!({"qos": {"rate": 1}})] {
        let refused = patch(&cloud, &vm, body.clone()).await;
        assert!(refused.status.is_client_error(), "{body}");
    }
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
