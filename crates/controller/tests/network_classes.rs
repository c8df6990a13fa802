//! Network classes over HTTP, and the policies that hosts are sent.

mod common;

use common::{Answer, Cloud, basics, join};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sluice_types::{Allowance, CreditPolicy};

async fn patch(cloud: &Cloud, path: &str, body: Value) -> Answer {
    cloud.send(cloud.request(Method::PATCH, path).json(&body)).await
}

fn gold() -> Value {
    json!({"base": 100, "max": 400, "clamp": 200, "credit": 3000})
}

#[tokio::test]
async fn classes_are_created_changed_and_deleted() {
    let cloud = Cloud::start().await;
    let body = json!({"name": "gold", "mbps": gold()});
    let made = cloud.post("/v1/network-classes", body.clone()).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let (id, path) = (made.id(), format!("/v1/network-classes/{}", made.id()));
    assert_eq!(made.header("location"), path);
    let expected = json!({"id": id, "name": "gold", "mbps": gold(), "kpps": null, "cpu_permille": null,
        "is_default": false, "revision": made.body["revision"], "programmed": true});
    cloud.wait_until("known", &path, |body| *body == expected).await;
    assert_eq!(cloud.post("/v1/network-classes", body).await.status, StatusCode::OK);
    let differs = cloud.post("/v1/network-classes", json!({"name": "gold", "kpps": gold()})).await;
    assert_eq!(differs.problem(), (409, "name-taken", "gold"));
    let listed = cloud.get("/v1/network-classes?name=gold").await.body;
    assert_eq!(listed["items"], json!([expected]));

    let with = |field: &str, value: Value| {
        let mut allowance = gold();
        allowance[field] = value;
        json!({"name": "other", "mbps": allowance})
    };
    for (body, offender) in [
        (json!({"name": "other"}), "mbps"),
        (with("base", json!(0)), "mbps.base"),
        (with("base", json!(401)), "mbps.base"),
        (with("max", json!(400_001)), "mbps.max"),
        (with("clamp", json!(99)), "mbps.clamp"),
        (with("credit", json!(300 * 86_400 + 1)), "mbps.credit"),
        (json!({"name": "a b", "mbps": gold()}), "name"),
    ] {
        let refused = cloud.post("/v1/network-classes", body).await;
        assert_eq!(refused.problem(), (422, "invalid", offender), "{}", refused.body);
    }
    for body in [with("credit", json!(-1)), with("tau", json!(1)), with("clamp", Value::Null)] {
        let refused = cloud.post("/v1/network-classes", body.clone()).await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{body}");
    }

    let changed = patch(&cloud, &path, json!({"kpps": gold(), "mbps": null})).await;
    assert_eq!((&changed.body["mbps"], &changed.body["kpps"]), (&Value::Null, &gold()));
    let renamed = patch(&cloud, &path, json!({"name": "silver"})).await;
    assert_eq!((&renamed.body["name"], &renamed.body["kpps"]), (&json!("silver"), &gold()));
    assert_eq!(patch(&cloud, &path, json!({"kpps": null})).await.problem(), (422, "invalid", "mbps"));
    let stale =
        cloud.request(Method::PATCH, &path).header("if-match", "\"1\"").json(&json!({"mbps": gold()}));
    assert_eq!(cloud.send(stale).await.problem().0, 412);
    assert_eq!(cloud.delete(&path).await.status, StatusCode::OK);
    assert_eq!(cloud.get(&path).await.problem(), (404, "not-found", id.as_str()));
}

/// Catches: a host that is not told of the default, or of its end, and two classes that are the default.
#[tokio::test]
async fn hosts_are_sent_the_default_once() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let class =
        cloud.make("/v1/network-classes", json!({"name": "gold", "mbps": gold(), "is_default": true})).await;
    let path = format!("/v1/network-classes/{class}");
    let identity = cloud.enroll(&basics.host_path()).await;
    let mut host = join(&cloud, &identity, 0, 0).await;
    let mbps = Some(Allowance { base: 100, max: 400, clamp: 200, credit: 3000 });
    let policy = Some(CreditPolicy { mbps, ..CreditPolicy::default() });
    let (_, snapshot) = host.acked_step().await;
    let sent: Vec<_> = snapshot.iter().filter_map(|part| part.default_credit).collect();
    assert_eq!(sent, [policy]);
    cloud.wait_until("programmed", &path, |body| body["programmed"] == true).await;

    // Another class takes its place: one message, with the new policy.
    let made =
        cloud.post("/v1/network-classes", json!({"name": "tin", "kpps": gold(), "is_default": true})).await;
    assert_eq!((made.status, &made.body["programmed"]), (StatusCode::CREATED, &json!(false)));
    let step = host.step().await;
    let sent: Vec<_> = step.iter().filter_map(|part| part.default_credit).collect();
    assert_eq!(sent, [Some(CreditPolicy { kpps: mbps, ..CreditPolicy::default() })]);
    host.ack(step.last().unwrap().revision).await;
    let path = format!("/v1/network-classes/{}", made.id());
    cloud.wait_until("programmed", &path, |body| body["programmed"] == true).await;
    let classes = cloud.get("/v1/network-classes").await.body;
    let defaults: Vec<_> =
        classes["items"].as_array().unwrap().iter().map(|class| class["is_default"].clone()).collect();
    assert_eq!(defaults, [json!(false), json!(true)]);
    patch(&cloud, &path, json!({"is_default": false})).await;
    let step = host.step().await;
    let sent: Vec<_> = step.iter().filter_map(|part| part.default_credit).collect();
    assert_eq!(sent, [None]);
}

#[tokio::test]
async fn instances_name_a_class() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let class = cloud.make("/v1/network-classes", json!({"name": "gold", "mbps": gold()})).await;
    let class_path = format!("/v1/network-classes/{class}");
    let with = |name: &str, fields: Value| {
        let mut instance = basics.instance(name);
        instance.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        instance
    };
    let plain = cloud.post(&basics.instances_path(), basics.instance("plain")).await;
    assert_eq!(plain.body["network_class"], Value::Null);
    let vm = cloud.post(&basics.instances_path(), with("vm", json!({"network_class": class}))).await;
    assert_eq!((vm.status, &vm.body["network_class"]), (StatusCode::CREATED, &json!(class)));
    let path = format!("/v1/instances/{}", vm.id());
    let kept = patch(&cloud, &path, json!({"qos": {"dscp": 46}})).await;
    assert_eq!(kept.body["network_class"], json!(class), "fields that are left out keep their values");

    let both = json!({"network_class": class, "qos": {"rate_mbps": 10}});
    let refused = [
        patch(&cloud, &path, json!({"qos": {"rate_mbps": 10}})).await,
        cloud.post(&basics.instances_path(), with("both", both)).await,
    ];
    for refused in refused {
        assert_eq!(refused.problem(), (422, "invalid", "network_class"));
        let detail = refused.body["detail"].as_str().unwrap();
        assert!(detail.contains("qos.rate_mbps is 10") && detail.contains(&class), "{detail}");
    }
    let unknown = patch(&cloud, &path, json!({"network_class": "class-999"})).await;
    assert_eq!(unknown.problem(), (422, "unknown-reference", "class-999"), "{}", unknown.body);
    let used = cloud.delete(&class_path).await;
    assert_eq!(used.problem().0, 409);
    let user = format!("network class `gold` is still used by instance `vm` ({})", vm.id());
    assert_eq!(used.body["detail"], user);
    let without = patch(&cloud, &path, json!({"network_class": null})).await;
    assert_eq!((without.status, &without.body["network_class"]), (StatusCode::OK, &Value::Null));
    assert_eq!(cloud.delete(&class_path).await.status, StatusCode::OK);
}

/// Catches: a class that counts as programmed before its hosts have it, and a change that does not reach them.
#[tokio::test]
async fn hosts_are_sent_the_policy() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let class = cloud.make("/v1/network-classes", json!({"name": "gold", "mbps": gold()})).await;
    let path = format!("/v1/network-classes/{class}");
    let mut body = basics.instance("vm");
    body["network_class"] = json!(class);
    cloud.make(&basics.instances_path(), body).await;
    cloud.wait_until("not programmed", &path, |body| body["programmed"] == false).await;
    let identity = cloud.enroll(&basics.host_path()).await;
    let mut host = join(&cloud, &identity, 0, 0).await;
    let mbps = Some(Allowance { base: 100, max: 400, clamp: 200, credit: 3000 });
    let (_, snapshot) = host.acked_step().await;
    let ports: Vec<_> = snapshot.iter().flat_map(|part| &part.ports).collect();
    assert_eq!(ports[0].options.qos.credit, Some(CreditPolicy { mbps, ..CreditPolicy::default() }));
    cloud.wait_until("programmed", &path, |body| body["programmed"] == true).await;

    let changed = patch(&cloud, &path, json!({"mbps": null, "kpps": gold()})).await;
    assert_eq!(changed.body["programmed"], false);
    let step = host.step().await;
    let ports: Vec<_> = step.iter().flat_map(|part| &part.ports).collect();
    assert_eq!(ports.len(), 1);
    assert_eq!(ports[0].options.qos.credit, Some(CreditPolicy { kpps: mbps, ..CreditPolicy::default() }));
    assert_eq!(cloud.get(&path).await.body["programmed"], false, "the host has not acknowledged it");
    host.ack(step.last().unwrap().revision).await;
    cloud.wait_until("programmed", &path, |body| body["programmed"] == true).await;
}
