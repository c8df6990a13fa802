//! Meters over HTTP, with a gateway that has acknowledged them or not.

mod common;

use common::{Answer, Basics, Cloud, basics, join};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sluice_southbound::{Meter, Missing, Scope, Update};
use sluice_types::{EntryKey, MeterLimit};

async fn patch(cloud: &Cloud, path: &str, body: Value) -> Answer {
    cloud.send(cloud.request(Method::PATCH, path).json(&body)).await
}

fn meter(basics: &Basics, name: &str, fields: Value) -> Value {
    let mut meter = json!({"name": name, "tenant": basics.tenant});
    meter.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    meter
}

async fn eip(cloud: &Cloud, basics: &Basics, fields: Value) -> Value {
    let pool = json!({"name": "world", "cluster": basics.cluster, "prefixes": ["198.51.100.0/24"]});
    let pool = cloud.post("/v1/public-pools", pool).await.id();
    let mut eip = json!({"name": "www", "tenant": basics.tenant, "pool": pool});
    eip.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let made = cloud.post("/v1/eips", eip).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    made.body
}

#[tokio::test]
async fn meters_are_created_changed_and_deleted() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let body = meter(&basics, "gold", json!({"in_kbps": 8000, "out_kbps": 64, "out_burst": 16384}));
    let made = cloud.post("/v1/meters", body.clone()).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let (id, path) = (made.id(), format!("/v1/meters/{}", made.id()));
    assert_eq!(made.header("location"), path);
    let expected = json!({"id": id, "name": "gold", "tenant": basics.tenant, "in_kbps": 8000, "out_kbps": 64,
        "out_burst": 16384, "revision": made.body["revision"], "programmed": true});
    cloud.wait_until("known", &path, |body| *body == expected).await;
    assert_eq!(cloud.post("/v1/meters", body).await.status, StatusCode::OK);
    let differs = cloud.post("/v1/meters", meter(&basics, "gold", json!({"in_kbps": 9000}))).await;
    assert_eq!(differs.problem(), (409, "name-taken", "gold"));
    let listed = cloud.get(&format!("/v1/meters?tenant={}&name=gold", basics.tenant)).await.body;
    assert_eq!(listed["items"], json!([expected]));

    for (fields, offender) in [
        (json!({}), "in_kbps"),
        (json!({"in_kbps": 63}), "in_kbps"),
        (json!({"out_kbps": 400_000_001}), "out_kbps"),
        (json!({"in_kbps": 64, "in_burst": 16383}), "in_burst"),
        (json!({"in_kbps": 64, "out_burst": 20000}), "out_burst"),
        (json!({"out_kbps": 64, "out_burst": 8000 * 86_400 + 1}), "out_burst"),
        (json!({"in_kbps": 64, "name": "a b"}), "name"),
    ] {
        let refused = cloud.post("/v1/meters", meter(&basics, "other", fields)).await;
        assert_eq!(refused.problem(), (422, "invalid", offender), "{}", refused.body);
    }
    for (body, offender) in [
        (json!({"in_kbps": null, "out_kbps": null}), "in_kbps"),
        (json!({"in_kbps": null, "in_burst": 20000}), "in_burst"),
        (json!({"out_burst": 1}), "out_burst"),
    ] {
        assert_eq!(patch(&cloud, &path, body).await.problem(), (422, "invalid", offender));
    }
    assert_eq!(cloud.get(&path).await.body, expected, "nothing changed");

    let limits = |body: &Value| ["in_kbps", "in_burst", "out_kbps", "out_burst"].map(|it| body[it].clone());
    for (body, after) in [
        (json!({"in_burst": 50_000}), json!([8000, 50000, 64, 16384])),
        (json!({"in_kbps": 9000, "out_burst": null}), json!([9000, 50000, 64, null])),
        (json!({"in_kbps": null}), json!([null, null, 64, null])),
        (json!({"name": "silver"}), json!([null, null, 64, null])),
    ] {
        let changed = patch(&cloud, &path, body).await;
        assert_eq!((changed.status, json!(limits(&changed.body))), (StatusCode::OK, after));
    }
    assert_eq!(cloud.delete(&path).await.status, StatusCode::OK);
    assert_eq!(cloud.get(&path).await.problem(), (404, "not-found", id.as_str()));
}

#[tokio::test]
async fn references_to_meters() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let gold = cloud.make("/v1/meters", meter(&basics, "gold", json!({"in_kbps": 64}))).await;
    let path = format!("/v1/meters/{gold}");
    let tenant = cloud.make("/v1/tenants", json!({"name": "other"})).await;
    let theirs = json!({"name": "theirs", "tenant": tenant, "in_kbps": 64});
    let theirs = cloud.make("/v1/meters", theirs).await;
    let www = eip(&cloud, &basics, json!({"meter": gold})).await;
    assert_eq!(www["meter"], json!(gold));
    let eip_path = format!("/v1/eips/{}", www["id"].as_str().unwrap());
    let vpc_path = format!("/v1/vpcs/{}", basics.vpc);
    for (path, field) in [(&eip_path, "meter"), (&vpc_path, "internet_meter")] {
        let refused = patch(&cloud, path, json!({field: theirs})).await;
        assert_eq!(refused.problem(), (422, "meter-across-tenants", "theirs"), "{}", refused.body);
        let unknown = patch(&cloud, path, json!({field: "meter-999"})).await;
        assert_eq!(unknown.problem(), (422, "unknown-reference", "meter-999"), "{}", unknown.body);
    }
    let new =
        json!({"name": "w", "tenant": basics.tenant, "cluster": basics.cluster, "internet_meter": theirs});
    assert_eq!(cloud.post("/v1/vpcs", new).await.problem(), (422, "meter-across-tenants", "theirs"));
    let used = cloud.delete(&path).await;
    assert_eq!(used.problem(), (409, "in-use", "EIP `www`"));
    assert_eq!(used.body["detail"], "meter `gold` is still used by EIP `www`");
    let by_meter = |meter: &str| format!("/v1/eips?meter={meter}");
    assert_eq!(cloud.get(&by_meter(&gold)).await.body["items"].as_array().unwrap().len(), 1);
    assert_eq!(cloud.get(&by_meter(&theirs)).await.body["items"], json!([]));
    let with = patch(&cloud, &vpc_path, json!({"internet_meter": gold})).await;
    assert_eq!((with.status, &with.body["internet_meter"]), (StatusCode::OK, &json!(gold)));
    let kept = patch(&cloud, &vpc_path, json!({"mtu": 1400})).await;
    assert_eq!(kept.body["internet_meter"], json!(gold), "fields that are left out keep their values");
    let without = patch(&cloud, &eip_path, json!({"meter": null})).await;
    assert_eq!((without.status, &without.body["meter"]), (StatusCode::OK, &Value::Null));
    assert_eq!(cloud.delete(&path).await.problem(), (409, "in-use", "VPC `v`"));
    let without = patch(&cloud, &vpc_path, json!({"internet_meter": null})).await;
    assert_eq!(without.body["internet_meter"], Value::Null);
    assert_eq!(cloud.delete(&path).await.status, StatusCode::OK);
}

#[tokio::test]
async fn peerings_have_meters() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let other = json!({"name": "w", "tenant": basics.tenant, "cluster": basics.cluster});
    let other = cloud.make("/v1/vpcs", other).await;
    let subnet = json!({"name": "s", "ipv4": "10.7.0.0/24"});
    cloud.make(&format!("/v1/vpcs/{other}/subnets"), subnet).await;
    let gold = cloud.make("/v1/meters", meter(&basics, "gold", json!({"out_kbps": 64}))).await;
    let body = json!({"name": "p", "vpcs": [other, basics.vpc], "meters": {&other: gold}});
    let made = cloud.post("/v1/peerings", body.clone()).await;
    assert_eq!(
        (made.status, &made.body["meters"]),
        (StatusCode::CREATED, &json!({&other: gold})),
        "{}",
        made.body
    );
    assert_eq!(cloud.post("/v1/peerings", body).await.status, StatusCode::OK);
    let path = format!("/v1/peerings/{}", made.id());
    let set = async |meters: Value| patch(&cloud, &path, json!({"meters": meters})).await;
    let both = set(json!({&basics.vpc: gold})).await;
    assert_eq!(
        (both.status, &both.body["meters"]),
        (StatusCode::OK, &json!({&basics.vpc: gold, &other: gold}))
    );
    let one = set(json!({&other: null})).await;
    assert_eq!(one.body["meters"], json!({&basics.vpc: gold}));
    assert_eq!(set(json!({})).await.body["revision"], one.body["revision"], "nothing changed");

    let tenant = cloud.make("/v1/tenants", json!({"name": "other"})).await;
    let theirs = json!({"name": "theirs", "tenant": tenant, "in_kbps": 64});
    let theirs = cloud.make("/v1/meters", theirs).await;
    let third = json!({"name": "x", "tenant": basics.tenant, "cluster": basics.cluster});
    let third = cloud.make("/v1/vpcs", third).await;
    for (meters, expected) in [
        (json!({&other: theirs}), (422, "meter-across-tenants", "theirs")),
        (json!({&third: gold}), (422, "vpc-not-peered", "x")),
        (json!({&other: "meter-999"}), (422, "unknown-reference", "meter-999")),
    ] {
        let refused = set(meters.clone()).await;
        assert_eq!(refused.problem(), expected, "{}", refused.body);
        let new = json!({"name": "q", "vpcs": [other, basics.vpc], "meters": meters});
        assert_eq!(cloud.post("/v1/peerings", new).await.problem(), expected);
    }
    for body in
        [json!({}), json!({"meters": {"v": gold}}), json!({"meters": {&other: 7}}), json!({"vpcs": []})]
    {
        assert_eq!(
            patch(&cloud, &path, body.clone()).await.status,
            StatusCode::UNPROCESSABLE_ENTITY,
            "{body}"
        );
    }
    let gone = patch(&cloud, "/v1/peerings/peer-999", json!({"meters": {}})).await;
    assert_eq!(gone.problem(), (404, "not-found", "peer-999"));
    let used = cloud.delete(&format!("/v1/meters/{gold}")).await;
    assert_eq!(used.problem(), (409, "in-use", "peering `p`"));

    // A route that lacks its meter is a failure of the peering.
    let identity = cloud.enroll(&basics.gateway_path()).await;
    let mut gateway = join(&cloud, &identity, 0, 0).await;
    let (revision, snapshot) = gateway.acked_step().await;
    let routes = snapshot.iter().flat_map(|part| &part.routes);
    let metered: Vec<_> = routes.filter(|it| matches!(it.scope, Scope::MeteredPeer { .. })).collect();
    assert!(metered.len() >= 2, "both directions: {metered:?}");
    assert_eq!(snapshot.iter().map(|part| part.meters.len()).sum::<usize>(), 1);
    cloud.wait_until("programmed", &path, |body| body["programmed"] == true).await;
    let mut missing = Missing::default();
    missing.add(EntryKey::Route(metered[0].key.vni, metered[0].key.prefix), "no room".to_owned());
    gateway.connection.reports.missing(missing).await.unwrap();
    gateway.connection.reports.ack(revision, vec!["1 entry failed".into()], true).await.unwrap();
    let failed = cloud.wait_until("not programmed", &path, |body| body["failures"] != Value::Null).await;
    assert_eq!((&failed["programmed"], &failed["failures"][0]["reason"]), (&json!(false), &json!("no room")));
}

#[tokio::test]
async fn meters_are_programmed_when_gateways_have_them() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let vm = cloud.post(&basics.instances_path(), basics.instance("vm")).await.body;
    let identity = cloud.enroll(&basics.gateway_path()).await;
    let mut gateway = join(&cloud, &identity, 0, 0).await;
    gateway.acked_step().await;
    let gold = cloud.make("/v1/meters", meter(&basics, "gold", json!({"in_kbps": 8000}))).await;
    let path = format!("/v1/meters/{gold}");
    // Nothing has it, so no gateway needs it.
    cloud.wait_until("known", &path, |body| body["programmed"] == true).await;
    let www = eip(&cloud, &basics, json!({"meter": gold, "instance": vm["id"]})).await;
    let eip_path = format!("/v1/eips/{}", www["id"].as_str().unwrap());
    let id: u32 = gold.strip_prefix("meter-").unwrap().parse().unwrap();
    let (revision, step) = next_metered(&mut gateway).await;
    let limit = |rate_kbps, burst_bytes| Some(MeterLimit { rate_kbps, burst_bytes });
    assert_eq!(step.meters, [Meter { id, inward: limit(8000, 400_000), outward: None }]);
    assert_eq!(step.public_prefixes[0].meter, Some(id));

    // An entry that the gateway could not write is named at all that has it.
    let mut missing = Missing::default();
    missing.add(EntryKey::Meter(id), "no room".to_owned());
    gateway.connection.reports.missing(missing).await.unwrap();
    // Its tables are complete without a meter.
    gateway.connection.reports.ack(revision, vec!["1 entry failed".into()], true).await.unwrap();
    for path in [&path, &eip_path] {
        let failed = cloud.wait_until("not programmed", path, |body| body["failures"] != Value::Null).await;
        let failure = &failed["failures"][0];
        assert_eq!((&failed["programmed"], &failure["reason"]), (&json!(false), &json!("no room")));
        assert_eq!(failure["entry"], format!("meter {id}"));
    }
    // No gateway has an EIP that is not attached, so it lacks nothing.
    let spare = eip(&cloud, &basics, json!({"name": "spare", "meter": gold})).await;
    let shown = cloud.get(&format!("/v1/eips/{}", spare["id"].as_str().unwrap())).await.body;
    assert_eq!(shown["failures"], Value::Null);
    gateway.connection.reports.missing(Missing::default()).await.unwrap();
    gateway.ack(revision).await;
    for path in [&path, &eip_path] {
        cloud.wait_until("programmed", path, |body| body["programmed"] == true).await;
    }

    // A change of the rate is a meter alone, and the EIP stays as it is.
    let changed = patch(&cloud, &path, json!({"out_kbps": 64})).await;
    assert_eq!(changed.body["programmed"], false);
    let (revision, step) = next_metered(&mut gateway).await;
    let both = Meter { id, inward: limit(8000, 400_000), outward: limit(64, 196_608) };
    assert_eq!((step.meters.as_slice(), step.entry_count()), (&[both][..], 1));
    assert_eq!(cloud.get(&path).await.body["programmed"], false, "the gateway has not acknowledged it");
    gateway.ack(revision).await;
    cloud.wait_until("programmed", &path, |body| body["programmed"] == true).await;

    // A snapshot has it, and the end of its use is its removal.
    let mut again = join(&cloud, &identity, 0, 0).await;
    let (_, snapshot) = again.acked_step().await;
    assert_eq!(snapshot.iter().flat_map(|part| part.meters.clone()).collect::<Vec<_>>(), [both]);
    patch(&cloud, &eip_path, json!({"instance": null})).await;
    let (_, step) = next_metered(&mut again).await;
    assert_eq!((step.removed_meters, step.removed_public_prefixes.len()), (vec![id], 1));
}

/// The next step of a gateway that has or removes a meter, with the revision that is to be acknowledged.
async fn next_metered(node: &mut common::Node) -> (u64, Update) {
    loop {
        let step = node.step().await;
        let revision = step.last().unwrap().revision;
        let metered = |part: &&Update| !part.meters.is_empty() || !part.removed_meters.is_empty();
        if let Some(part) = step.iter().find(metered) {
            return (revision, part.clone());
        }
        node.ack(revision).await;
    }
}
