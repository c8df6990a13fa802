//! Public pools, EIPs, NAT gateways and Internet routes over HTTP, with a gateway that has acknowledged them or not.

mod common;

use common::{Answer, Basics, Cloud, Node, PATIENCE, basics, join};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sluice_southbound::{Missing, NatGateway, PublicPrefix, RouteKey, Scope, Update};
use sluice_types::{EntryKey, ForwardProtocol, IpNet, PortForward};

async fn patch(cloud: &Cloud, path: &str, body: Value) -> Answer {
    cloud.send(cloud.request(Method::PATCH, path).json(&body)).await
}

async fn pool(cloud: &Cloud, basics: &Basics) -> String {
    let prefixes = json!(["198.51.100.0/24", "2001:db8:9::/56"]);
    cloud
        .make("/v1/public-pools", json!({"name": "world", "cluster": basics.cluster, "prefixes": prefixes}))
        .await
}

async fn instance(cloud: &Cloud, basics: &Basics, name: &str) -> Value {
    let made = cloud.post(&basics.instances_path(), basics.instance(name)).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    made.body
}

fn eip(basics: &Basics, pool: &str, name: &str, fields: Value) -> Value {
    let mut eip = json!({"name": name, "tenant": basics.tenant, "pool": pool});
    eip.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    eip
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// The next step of a gateway that has public addresses or removes some, acknowledged.
async fn public_step(node: &mut Node) -> Update {
    loop {
        let (_, step) = node.acked_step().await;
        let has =
            |part: &&Update| !part.public_prefixes.is_empty() || !part.removed_public_prefixes.is_empty();
        if let Some(part) = step.iter().find(has) {
            return part.clone();
        }
    }
}

#[tokio::test]
async fn pools_are_created_changed_and_deleted() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let body = json!({"name": "world", "cluster": basics.cluster, "prefixes": ["2001:db8:9::/56", "198.51.100.0/24"]});
    let made = cloud.post("/v1/public-pools", body.clone()).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let id = made.id();
    let path = format!("/v1/public-pools/{id}");
    assert_eq!(made.header("location"), path);
    let expected = json!({"id": id, "name": "world", "cluster": basics.cluster,
        "prefixes": ["198.51.100.0/24", "2001:db8:9::/56"], "reserved": [], "revision": made.body["revision"], "programmed": true});
    assert_eq!(cloud.get(&path).await.body, expected);
    assert_eq!(cloud.post("/v1/public-pools", body).await.status, StatusCode::OK);
    let listed = cloud.get(&format!("/v1/public-pools?cluster={}&name=world", basics.cluster)).await.body;
    assert_eq!(listed["items"], json!([expected]));

    let new =
        |name: &str, prefixes: Value| json!({"name": name, "cluster": basics.cluster, "prefixes": prefixes});
    for (prefixes, problem) in [
        (json!(["198.51.100.128/25"]), (409, "pool-overlap", "198.51.100.128/25")),
        (json!(["192.0.2.0/28"]), (409, "prefix-in-use", "192.0.2.0/28")),
        (json!(["127.0.0.0/8"]), (422, "invalid", "127.0.0.0/8")),
        (json!(["203.0.113.1/24"]), (422, "invalid", "prefixes[0]")),
        (json!(["203.0.113.0/24", "x"]), (422, "invalid", "prefixes[1]")),
        (json!([]), (422, "invalid", "prefixes")),
    ] {
        let refused = cloud.post("/v1/public-pools", new("other", prefixes)).await;
        assert_eq!(refused.problem(), problem, "{}", refused.body);
    }
    let host = cloud.post("/v1/hosts", json!({"name": "x", "vtep": "198.51.100.9"})).await;
    assert_eq!(host.problem(), (409, "underlay-address-taken", "198.51.100.9"));

    let reserved = patch(&cloud, &path, json!({"reserved": ["198.51.100.1/32"]})).await;
    assert_eq!(reserved.body["reserved"], json!(["198.51.100.1/32"]));
    let refused = cloud.post("/v1/eips", eip(&basics, &id, "x", json!({"address": "198.51.100.1"}))).await;
    assert_eq!(refused.problem(), (422, "reserved-address", "198.51.100.1"));
    for (prefix, at) in [("x", "reserved[0]"), ("203.0.113.0/24", "reserved")] {
        let refused = patch(&cloud, &path, json!({"reserved": [prefix]})).await;
        assert_eq!(refused.problem(), (422, "invalid", at));
    }
    patch(&cloud, &path, json!({"reserved": []})).await;
    let web = cloud.make("/v1/eips", eip(&basics, &id, "web", json!({}))).await;
    let shrunk = patch(&cloud, &path, json!({"prefixes": ["2001:db8:9::/56"]})).await;
    let user = format!("EIP `web` ({web}, 198.51.100.1)");
    assert_eq!(shrunk.problem(), (409, "in-use", user.as_str()));
    let changed = patch(&cloud, &path, json!({"prefixes": ["198.51.100.0/24"], "name": "v4"})).await;
    assert_eq!(
        (&changed.body["name"], &changed.body["prefixes"]),
        (&json!("v4"), &json!(["198.51.100.0/24"]))
    );
    assert_eq!(cloud.delete(&path).await.problem(), (409, "in-use", user.as_str()));
    cloud.delete(&format!("/v1/eips/{web}")).await;
    assert_eq!(cloud.delete(&path).await.status, StatusCode::OK);
    assert_eq!(cloud.get(&path).await.problem(), (404, "not-found", id.as_str()));
}

#[tokio::test]
async fn refused_eips() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let pool = pool(&cloud, &basics).await;
    let vm = instance(&cloud, &basics, "vm").await;
    let vm_id = vm["id"].as_str().unwrap();
    let first = json!({"address": "198.51.100.7", "instance": vm_id});
    let first = cloud.post("/v1/eips", eip(&basics, &pool, "first", first.clone())).await;
    let expected = json!({"id": first.id(), "name": "first", "tenant": basics.tenant, "pool": pool,
        "address": "198.51.100.7", "prefix_length": 32, "vpc": basics.vpc, "instance": vm_id, "inside": vm["ipv4"],
        "nptv6": false, "revision": first.body["revision"], "programmed": false});
    assert_eq!(first.body, expected);
    for (fields, problem) in [
        (json!({"address": "198.51.100.7"}), (409, "address-taken", "198.51.100.7")),
        (json!({"address": "198.51.100.0"}), (422, "reserved-address", "198.51.100.0")),
        (json!({"address": "203.0.113.1"}), (422, "outside-pool", "203.0.113.1")),
        (json!({"address": "198.51.100.8", "family": "ipv6"}), (422, "invalid", "family")),
        (json!({"address": "198.51.100.8", "prefix_length": 31}), (422, "invalid", "prefix_length")),
        (json!({"prefix_length": 129}), (422, "invalid", "prefix_length")),
        (json!({"prefix_length": 48}), (422, "invalid", "prefix_length")),
        (json!({"nptv6": true}), (422, "invalid", "nptv6")),
        (json!({"family": "ipv6", "nptv6": true}), (422, "invalid", "nptv6")),
        (json!({"instance": vm_id}), (409, "has-eip", "first")),
        (json!({"instance": vm_id, "subnet": basics.subnet}), (422, "invalid", "subnet")),
        (json!({"instance": vm_id, "inside": "10.0.0.99"}), (422, "invalid", "inside")),
        (json!({"inside": "10.0.0.2"}), (422, "invalid", "inside")),
        (json!({"instance": "inst-999"}), (422, "unknown-reference", "inst-999")),
        (json!({"subnet": basics.subnet}), (422, "invalid", "subnet")),
        (json!({"prefix_length": 60, "subnet": basics.subnet}), (422, "invalid", "subnet")),
        (json!({"pool": "pool-999"}), (422, "unknown-reference", "pool-999")),
    ] {
        let refused = cloud.post("/v1/eips", eip(&basics, &pool, "second", fields)).await;
        assert_eq!(refused.problem(), problem, "{}", refused.body);
    }
    let path = format!("/v1/eips/{}", first.id());
    for (body, problem) in [
        (json!({"inside": "10.0.0.2"}), (422, "invalid", "inside")),
        (json!({"inside": null}), (422, "invalid", "inside")),
        (json!({"instance": vm_id, "subnet": basics.subnet}), (422, "invalid", "subnet")),
        (json!({"subnet": basics.subnet}), (422, "invalid", "subnet")),
    ] {
        let refused = patch(&cloud, &path, body).await;
        assert_eq!(refused.problem(), problem, "{}", refused.body);
    }
    assert_eq!(cloud.get(&path).await.body, expected, "nothing changed");

    // Another tenant, and another cluster.
    let tenant = cloud.make("/v1/tenants", json!({"name": "other"})).await;
    let mut theirs = eip(&basics, &pool, "theirs", json!({"instance": vm_id}));
    theirs["tenant"] = json!(tenant);
    assert_eq!(cloud.post("/v1/eips", theirs).await.problem(), (422, "eip-across-tenants", "v"));
    let far = cloud.make("/v1/clusters", json!({"name": "far", "vips": ["192.0.2.30"]})).await;
    let prefixes = json!({"name": "far", "cluster": far, "prefixes": ["203.0.113.0/24"]});
    let far_pool = cloud.make("/v1/public-pools", prefixes).await;
    let other = instance(&cloud, &basics, "other").await["id"].clone();
    let refused = cloud.post("/v1/eips", eip(&basics, &far_pool, "far", json!({"instance": other}))).await;
    assert_eq!(refused.problem(), (409, "eip-across-clusters", "v"));
    let detail = refused.body["detail"].as_str().unwrap();
    assert!(detail.contains("cluster `far`") && detail.contains("cluster `c`"), "{detail}");

    // The VPC stays where the pool is.
    cloud.make("/v1/gateways", json!({"name": "g2", "cluster": far, "vtep4": "192.0.2.2"})).await;
    let moved = patch(&cloud, &format!("/v1/vpcs/{}", basics.vpc), json!({"cluster": far})).await;
    assert_eq!(moved.problem(), (409, "vpc-has-eip", "first"), "{}", moved.body);
}

#[tokio::test]
async fn eips_are_programmed_when_gateways_have_them() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let pool = pool(&cloud, &basics).await;
    let vm = instance(&cloud, &basics, "vm").await;
    let other = instance(&cloud, &basics, "other").await;
    let identity = cloud.enroll(&basics.gateway_path()).await;
    let mut gateway = join(&cloud, &identity, 0, 0).await;
    gateway.acked_step().await;

    // Not attached, it needs no entry.
    let made = cloud.post("/v1/eips", eip(&basics, &pool, "web", json!({}))).await;
    assert_eq!((&made.body["address"], &made.body["instance"]), (&json!("198.51.100.1"), &Value::Null));
    let path = format!("/v1/eips/{}", made.id());
    let attached = patch(&cloud, &path, json!({"instance": vm["id"]})).await;
    assert_eq!((attached.status, &attached.body["programmed"]), (StatusCode::OK, &json!(false)));
    let (revision, prefix) = next_public(&mut gateway).await;
    let inside = format!("{}/32", vm["ipv4"].as_str().unwrap());
    assert_eq!((prefix.outside, prefix.inside), (net("198.51.100.1/32"), net(&inside)));
    assert!(["192.0.2.10", "fd00::10"].contains(&prefix.vip.to_string().as_str()));
    assert_eq!(cloud.get(&path).await.body["programmed"], false, "the gateway has not acknowledged it");
    gateway.ack(revision).await;
    cloud.wait_until("programmed", &path, |body| body["programmed"] == true).await;

    // An entry that the gateway could not write is named.
    let mut missing = Missing::default();
    missing.add(EntryKey::PublicPrefix(prefix.outside), "no room".to_owned());
    gateway.connection.reports.missing(missing).await.unwrap();
    gateway.connection.reports.ack(revision, vec!["1 entry failed".into()], false).await.unwrap();
    let failed = cloud.wait_until("not programmed", &path, |body| body["programmed"] == false).await;
    assert_eq!(failed["failures"][0]["entry"], "public prefix 198.51.100.1/32", "{failed}");
    gateway.connection.reports.missing(Missing::default()).await.unwrap();
    gateway.ack(revision).await;
    cloud.wait_until("programmed again", &path, |body| body["programmed"] == true).await;

    // It moves, and a snapshot has it.
    patch(&cloud, &path, json!({"instance": other["id"]})).await;
    let moved = public_step(&mut gateway).await;
    let inside = format!("{}/32", other["ipv4"].as_str().unwrap());
    assert_eq!(moved.public_prefixes, [PublicPrefix { inside: net(&inside), ..prefix }]);
    let mut again = join(&cloud, &identity, 0, 0).await;
    let (_, snapshot) = again.acked_step().await;
    let found: Vec<_> = snapshot.iter().flat_map(|part| part.public_prefixes.clone()).collect();
    assert_eq!(found, moved.public_prefixes);

    // The instance is deleted: the EIP remains, and its address is free when the gateway has removed it.
    cloud.delete(&format!("/v1/instances/{}", other["id"].as_str().unwrap())).await;
    let removed = public_step(&mut again).await;
    assert_eq!(
        (removed.removed_public_prefixes, removed.public_prefixes),
        (vec![net("198.51.100.1/32")], vec![])
    );
    assert_eq!(cloud.get(&path).await.body["instance"], Value::Null);
    cloud.wait_until("removed by the gateway", &path, |body| body["programmed"] == true).await;
    let deleting = tokio::spawn(cloud.request(Method::DELETE, &format!("{path}?wait=60")).send());
    cloud.wait_until("deleted", "/v1/eips", |body| body["items"] == json!([])).await;
    let wanted = eip(&basics, &pool, "next", json!({"address": "198.51.100.1"}));
    let early = cloud.post("/v1/eips", wanted.clone()).await;
    assert_eq!(early.problem(), (409, "held", "198.51.100.1"));
    let mut ended = std::pin::pin!(tokio::time::timeout(PATIENCE, deleting));
    let answer = loop {
        tokio::select! {
            answer = &mut ended => break answer.expect("an answer").unwrap().unwrap(),
            update = again.next() => if update.revision != 0 { again.ack(update.revision).await },
        }
    };
    assert_eq!(answer.json::<Value>().await.unwrap()["removed"], true);
    cloud.make("/v1/eips", wanted).await;
}

/// The next public address of a gateway, with the revision that is to be acknowledged.
async fn next_public(node: &mut Node) -> (u64, PublicPrefix) {
    loop {
        let step = node.step().await;
        let revision = step.last().unwrap().revision;
        if let Some(prefix) = step.iter().find_map(|part| part.public_prefixes.first()) {
            return (revision, *prefix);
        }
        node.ack(revision).await;
    }
}

#[tokio::test]
async fn whole_prefixes_are_translated_or_routed() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let pool = pool(&cloud, &basics).await;
    let identity = cloud.enroll(&basics.gateway_path()).await;
    let mut gateway = join(&cloud, &identity, 0, 0).await;
    gateway.acked_step().await;
    let fields = |nptv6: bool| json!({"prefix_length": 64, "subnet": basics.subnet, "nptv6": nptv6});
    let made = cloud.post("/v1/eips", eip(&basics, &pool, "all", fields(true))).await;
    assert_eq!((made.status, &made.body["nptv6"]), (StatusCode::CREATED, &json!(true)), "{}", made.body);
    let other = cloud.post("/v1/eips", eip(&basics, &pool, "all", fields(false))).await;
    assert_eq!(other.problem(), (409, "name-taken", "all"));
    let sent = public_step(&mut gateway).await.public_prefixes;
    assert_eq!((sent[0].outside, sent[0].nptv6), (net("2001:db8:9::/64"), true));
    let shown = |body: &Value, field: &str| body[field].clone();
    assert_eq!(shown(&made.body, "address"), "2001:db8:9::");
    assert_eq!(
        (shown(&made.body, "prefix_length"), shown(&made.body, "inside")),
        (json!(64), json!("2001:db8::"))
    );
    let used = cloud.delete(&format!("/v1/subnets/{}", basics.subnet)).await;
    assert_eq!(used.problem(), (409, "in-use", "EIP `all`"));
    let subnet = json!({"name": "routed", "ipv6": "2001:db8:9::/64"});
    let subnet = cloud.make(&format!("/v1/vpcs/{}/subnets", basics.vpc), subnet).await;
    let path = format!("/v1/eips/{}", made.id());
    let routed = patch(&cloud, &path, json!({"subnet": subnet})).await;
    assert_eq!(shown(&routed.body, "inside"), shown(&routed.body, "address"));
    let detached = patch(&cloud, &path, json!({"instance": null, "name": "none"})).await;
    assert_eq!((&detached.body["subnet"], &detached.body["name"]), (&Value::Null, &json!("none")));
    let by_tenant = cloud.get(&format!("/v1/eips?tenant={}&pool={pool}&name=none", basics.tenant)).await.body;
    assert_eq!(by_tenant["items"].as_array().unwrap().len(), 1);
    assert_eq!(cloud.get(&format!("/v1/eips?vpc={}", basics.vpc)).await.body["items"], json!([]));
}

#[tokio::test]
async fn internet_routes_reach_gateways() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let identity = cloud.enroll(&basics.gateway_path()).await;
    let mut gateway = join(&cloud, &identity, 0, 0).await;
    gateway.acked_step().await;
    let tables = cloud.get(&format!("/v1/route-tables?vpc={}", basics.vpc)).await.body;
    let routes = format!("/v1/route-tables/{}/routes", tables["items"][0]["id"].as_str().unwrap());
    let made = cloud.post(&routes, json!({"destination": "0.0.0.0/0", "target": "internet"})).await;
    assert_eq!((made.status, &made.body["target"]), (StatusCode::CREATED, &json!("internet")));
    let again = cloud.post(&routes, json!({"destination": "0.0.0.0/0", "target": "internet"})).await;
    assert_eq!(again.status, StatusCode::OK);
    let other = cloud.post(&routes, json!({"destination": "0.0.0.0/0", "target": "drop"})).await;
    assert_eq!(other.problem(), (409, "name-taken", "0.0.0.0/0"));
    let both = json!({"destination": "::/0", "target": {"peering": "peer-1", "internet": null}});
    assert_eq!(cloud.post(&routes, both).await.problem().0, 422);
    let (_, step) = gateway.acked_step().await;
    let is_default = |key: &RouteKey| key.prefix == net("0.0.0.0/0");
    let route = step.iter().flat_map(|part| &part.routes).find(|route| is_default(&route.key)).unwrap();
    assert_eq!(route.scope, Scope::Internet);
    cloud
        .wait_until("programmed", &format!("/v1/routes/{}", made.id()), |body| body["programmed"] == true)
        .await;
    cloud.delete(&format!("/v1/routes/{}", made.id())).await;
    let (_, step) = gateway.acked_step().await;
    assert!(step.iter().flat_map(|part| &part.removed_routes).any(is_default));
}

#[tokio::test]
async fn refused_nat_gateways() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let pool = pool(&cloud, &basics).await;
    cloud.make("/v1/eips", eip(&basics, &pool, "web", json!({"address": "198.51.100.7"}))).await;
    let nat = |fields: Value| {
        let mut nat = json!({"name": "out", "vpc": basics.vpc, "pool": pool});
        nat.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        nat
    };
    for (fields, problem) in [
        (json!({"addresses": ["198.51.100.7"]}), (409, "address-taken", "198.51.100.7")),
        (json!({"addresses": ["198.51.100.0"]}), (422, "reserved-address", "198.51.100.0")),
        (json!({"addresses": ["203.0.113.1"]}), (422, "outside-pool", "203.0.113.1")),
        (json!({"addresses": ["2001:db8:9::1"]}), (422, "invalid", "2001:db8:9::1")),
        (json!({"addresses": []}), (422, "invalid", "addresses")),
        (json!({"address_count": 17}), (422, "invalid", "address_count")),
        // It would be the largest demand of a table.
        (json!({"address_count": u64::MAX}), (422, "invalid", "address_count")),
        (json!({"addresses": ["198.51.100.8"], "address_count": 1}), (422, "invalid", "address_count")),
        (json!({"sessions": 0}), (422, "invalid", "sessions")),
        (json!({"blocks": 17}), (422, "invalid", "blocks")),
        (
            json!({"mapping": "endpoint-dependent", "filtering": "endpoint-independent"}),
            (422, "invalid", "mapping"),
        ),
        (json!({"pool": "pool-999"}), (422, "unknown-reference", "pool-999")),
        (json!({"vpc": "vpc-999"}), (422, "unknown-reference", "vpc-999")),
        (json!({"name": "a b"}), (422, "invalid", "name")),
    ] {
        let refused = cloud.post("/v1/nat-gateways", nat(fields)).await;
        assert_eq!(refused.problem(), problem, "{}", refused.body);
    }
    assert_eq!(cloud.post("/v1/nat-gateways", nat(json!({"filtering": "none"}))).await.status, 422);
    let made = cloud.post("/v1/nat-gateways", nat(json!({"address_count": 2}))).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let path = format!("/v1/nat-gateways/{}", made.id());
    assert_eq!(made.header("location"), path);
    let expected = json!({"id": made.id(), "name": "out", "vpc": basics.vpc, "pool": pool,
        "addresses": ["198.51.100.1", "198.51.100.2"], "sessions": 10_000, "blocks": 4,
        "filtering": "address-and-port-dependent", "mapping": "endpoint-independent", "revision": made.body["revision"], "programmed": false});
    assert_eq!(made.body, expected);
    assert_eq!(cloud.post("/v1/nat-gateways", nat(json!({}))).await.status, StatusCode::OK);
    let second = cloud.post("/v1/nat-gateways", nat(json!({"name": "second"}))).await;
    assert_eq!(second.problem(), (409, "has-nat-gateway", "out"), "{}", second.body);
    for (body, problem) in [
        (json!({"addresses": ["2001:db8:9::1"]}), (422, "invalid", "2001:db8:9::1")),
        (json!({"addresses": ["198.51.100.1", "198.51.100.7"]}), (409, "address-taken", "198.51.100.7")),
        (json!({"address_count": 0}), (422, "invalid", "address_count")),
        (json!({"address_count": 1, "addresses": ["198.51.100.1"]}), (422, "invalid", "address_count")),
        (json!({"sessions": 1_000_001}), (422, "invalid", "sessions")),
        (
            json!({"mapping": "endpoint-dependent", "filtering": "endpoint-independent"}),
            (422, "invalid", "mapping"),
        ),
        (json!({"blocks": 0}), (422, "invalid", "blocks")),
    ] {
        let refused = patch(&cloud, &path, body).await;
        assert_eq!(refused.problem(), problem, "{}", refused.body);
    }
    assert_eq!(cloud.get(&path).await.body, expected, "nothing changed");
    let listed = cloud.get(&format!("/v1/nat-gateways?vpc={}&pool={pool}&name=out", basics.vpc)).await.body;
    assert_eq!(listed["items"], json!([expected]));

    // Another cluster: neither the pool of a NAT gateway, nor a place for the VPC.
    let far = cloud.make("/v1/clusters", json!({"name": "far", "vips": ["192.0.2.30"]})).await;
    cloud.make("/v1/gateways", json!({"name": "g2", "cluster": far, "vtep4": "192.0.2.2"})).await;
    let moved = patch(&cloud, &format!("/v1/vpcs/{}", basics.vpc), json!({"cluster": far})).await;
    assert_eq!(moved.problem(), (409, "vpc-has-nat-gateway", "out"), "{}", moved.body);
    assert_eq!(cloud.delete(&path).await.status, StatusCode::OK);
    let prefixes = json!({"name": "far", "cluster": far, "prefixes": ["203.0.113.0/24"]});
    let far_pool = cloud.make("/v1/public-pools", prefixes).await;
    let refused = cloud.post("/v1/nat-gateways", nat(json!({"pool": far_pool}))).await;
    assert_eq!(refused.problem(), (409, "nat-gateway-across-clusters", "far"), "{}", refused.body);
}

#[tokio::test]
async fn nat_gateways_are_programmed_when_gateways_have_them() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let pool = pool(&cloud, &basics).await;
    let identity = cloud.enroll(&basics.gateway_path()).await;
    let mut gateway = join(&cloud, &identity, 0, 0).await;
    gateway.acked_step().await;
    let vni = cloud.get(&format!("/v1/vpcs/{}", basics.vpc)).await.body["vni"].as_u64().unwrap();
    let vni = sluice_types::Vni::new(vni as u32).unwrap();

    let new = json!({"name": "out", "vpc": basics.vpc, "pool": pool, "filtering": "endpoint-independent",
        "nat64_prefix": "64:ff9b::/96"});
    let made = cloud.post("/v1/nat-gateways", new).await;
    let path = format!("/v1/nat-gateways/{}", made.id());
    let (revision, nat) = next_nat(&mut gateway).await;
    let first = std::net::Ipv4Addr::new(198, 51, 100, 1);
    let expected = NatGateway {
        vni,
        addresses: vec![first],
        vip: nat.vip,
        sessions: 10_000,
        blocks: 4,
        any_remote: true,
        shares_ports: false,
        forwards: Vec::new(),
        nat64: "64:ff9b::".parse().ok(),
    };
    assert_eq!(nat, expected);
    assert!(["192.0.2.10", "fd00::10"].contains(&nat.vip.to_string().as_str()));
    assert_eq!(cloud.get(&path).await.body["programmed"], false, "the gateway has not acknowledged it");
    gateway.ack(revision).await;
    cloud.wait_until("programmed", &path, |body| body["programmed"] == true).await;

    // An entry that the gateway could not write is named.
    let mut missing = Missing::default();
    missing.add(EntryKey::NatGateway(vni), "no room".to_owned());
    gateway.connection.reports.missing(missing).await.unwrap();
    gateway.connection.reports.ack(revision, vec!["1 entry failed".into()], false).await.unwrap();
    let failed = cloud.wait_until("not programmed", &path, |body| body["programmed"] == false).await;
    assert_eq!(failed["failures"][0]["entry"], format!("NAT gateway of VNI {vni}"), "{failed}");
    gateway.connection.reports.missing(Missing::default()).await.unwrap();
    gateway.ack(revision).await;

    port_forwards_are_part_of_it(&cloud, &basics, &mut gateway, (&made.id(), &expected)).await;

    // More addresses, then others; a snapshot has them.
    patch(&cloud, &path, json!({"address_count": 2, "sessions": 5})).await;
    let (revision, more) = next_nat(&mut gateway).await;
    let second = std::net::Ipv4Addr::new(198, 51, 100, 2);
    let expected = NatGateway { addresses: vec![first, second], sessions: 5, ..expected };
    assert_eq!(more, expected);
    gateway.ack(revision).await;
    let shares = json!({"addresses": ["198.51.100.2"], "filtering": "address-and-port-dependent",
        "mapping": "endpoint-dependent"});
    patch(&cloud, &path, shares).await;
    let (_, fewer) = next_nat(&mut gateway).await;
    let expected = NatGateway { addresses: vec![second], any_remote: false, shares_ports: true, ..expected };
    assert_eq!(fewer, expected);
    let wanted = eip(&basics, &pool, "web", json!({"address": "198.51.100.1"}));
    let early = cloud.post("/v1/eips", wanted.clone()).await;
    assert_eq!(early.problem(), (409, "held", "198.51.100.1"));
    let mut again = join(&cloud, &identity, 0, 0).await;
    let (_, snapshot) = again.acked_step().await;
    let found: Vec<_> = snapshot.iter().flat_map(|part| part.nat_gateways.clone()).collect();
    assert_eq!(found, [expected]);
    cloud.wait_until("the address is free", "/v1/removals", |body| body["items"] == json!([])).await;
    cloud.make("/v1/eips", wanted).await;

    cloud.delete(&path).await;
    let removed = loop {
        let (_, step) = again.acked_step().await;
        let removed: Vec<_> = step.into_iter().flat_map(|part| part.removed_nat_gateways).collect();
        if !removed.is_empty() {
            break removed;
        }
    };
    assert_eq!(removed, [vni]);
}

/// Creates and deletes a port forward of a NAT gateway, which the node has.
async fn port_forwards_are_part_of_it(
    cloud: &Cloud,
    basics: &Basics,
    gateway: &mut Node,
    (id, expected): (&str, &NatGateway),
) {
    let vm = json!({"name": "vm", "subnet": basics.subnet, "host": basics.host});
    let vm = cloud.post(&format!("/v1/vpcs/{}/instances", basics.vpc), vm).await;
    let forward = |name: &str, port: u16| {
        let (nat, vm) = (id, vm.id());
        json!({"name": name, "nat_gateway": nat, "protocol": "tcp", "port": port, "instance": vm, "inside_port": 8443})
    };
    let web = cloud.post("/v1/port-forwards", forward("web", 443)).await;
    assert_eq!(web.body["address"], "198.51.100.1", "{}", web.body);
    let (revision, nat) = next_nat(gateway).await;
    let inside = web.body["inside"].as_str().unwrap();
    let forwarded = PortForward {
        protocol: ForwardProtocol::Tcp,
        outside: "198.51.100.1:443".parse().unwrap(),
        inside: format!("{inside}:8443").parse().unwrap(),
    };
    assert_eq!(nat, NatGateway { forwards: vec![forwarded], ..expected.clone() });
    let web = format!("/v1/port-forwards/{}", web.id());
    assert_eq!(cloud.get(&web).await.body["programmed"], false);
    gateway.ack(revision).await;
    cloud.wait_until("programmed", &web, |body| body["programmed"] == true).await;
    let twice = cloud.post("/v1/port-forwards", forward("other", 443)).await;
    assert_eq!(twice.problem(), (409, "port-forwarded", "198.51.100.1:443"));
    let twice = cloud.post("/v1/port-forwards", forward("other", 444)).await;
    assert_eq!(twice.problem(), (409, "endpoint-forwarded", format!("{inside}:8443").as_str()));
    let mut body = forward("other", 444);
    body["protocol"] = json!("sctp");
    assert_eq!(cloud.post("/v1/port-forwards", body).await.status, 422);
    let mut body = forward("other", 444);
    body["address"] = json!("198.51.100.9");
    assert_eq!(cloud.post("/v1/port-forwards", body).await.problem(), (422, "invalid", "address"));
    let used = cloud.delete(&format!("/v1/nat-gateways/{id}")).await;
    assert_eq!(used.problem(), (409, "in-use", "port forward `web`"));
    cloud.delete(&web).await;
    let (revision, nat) = next_nat(gateway).await;
    assert_eq!(nat, *expected);
    gateway.ack(revision).await;
}

/// The next NAT gateway of a gateway, with the revision that is to be acknowledged.
async fn next_nat(node: &mut Node) -> (u64, NatGateway) {
    loop {
        let step = node.step().await;
        let revision = step.last().unwrap().revision;
        if let Some(nat) = step.iter().find_map(|part| part.nat_gateways.first()) {
            return (revision, nat.clone());
        }
        node.ack(revision).await;
    }
}
