//! The contract of the northbound API, including hostile input.

mod common;

use common::{Cloud, args, basics};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::Connection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

#[tokio::test]
async fn creation_is_idempotent_by_name() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let vm = json!({"name": "vm", "subnet": basics.subnet, "host": basics.host, "ipv4": "10.0.0.9"});
    let subnet = json!({"name": "s2", "ipv4": "10.9.0.0/16", "dns": ["192.0.2.53"]});
    let calls = [
        ("/v1/tenants".to_owned(), json!({"name": "t2"}), None),
        (
            "/v1/clusters".to_owned(),
            json!({"name": "c2", "vips": ["192.0.2.12"]}),
            Some(json!({"name": "c2", "vips": ["192.0.2.13"]})),
        ),
        (
            "/v1/gateways".to_owned(),
            json!({"name": "g2", "cluster": basics.cluster, "vtep4": "192.0.2.2", "vtep6": "fd00::2"}),
            Some(json!({"name": "g2", "cluster": basics.cluster, "vtep4": "192.0.2.2", "vtep6": "fd00::3"})),
        ),
        (
            "/v1/hosts".to_owned(),
            json!({"name": "h2", "vtep": "fd00::22"}),
            Some(json!({"name": "h2", "vtep": "fd00::22", "agent": false})),
        ),
        (
            "/v1/vpcs".to_owned(),
            json!({"name": "v2", "tenant": basics.tenant, "cluster": basics.cluster, "vni": 77}),
            Some(json!({"name": "v2", "tenant": basics.tenant, "cluster": basics.cluster, "vni": 78})),
        ),
        (
            format!("/v1/vpcs/{}/subnets", basics.vpc),
            subnet,
            Some(json!({"name": "s2", "ipv4": "10.8.0.0/16"})),
        ),
        (
            basics.instances_path(),
            vm,
            Some(json!({"name": "vm", "subnet": basics.subnet, "host": basics.host, "ipv4": "10.0.0.10"})),
        ),
    ];
    for (path, body, other) in calls {
        let first = cloud.post(&path, body.clone()).await;
        assert_eq!(first.status, StatusCode::CREATED, "{path}: {}", first.body);
        let location = first.header("location").to_owned();
        let etag = first.header("etag").to_owned();
        assert_eq!(etag, format!("\"{}\"", first.body["revision"]));
        let again = cloud.post(&path, body).await;
        assert_eq!((again.status, again.id()), (StatusCode::OK, first.id()), "{path}");
        let found = cloud.get(&location).await;
        assert_eq!((found.status, found.header("etag")), (StatusCode::OK, etag.as_str()), "{path}");
        assert_eq!(found.body["id"], first.body["id"]);
        if let Some(other) = other {
            assert_eq!(cloud.post(&path, other).await.problem().0, 409, "{path}");
        }
        assert_eq!(cloud.delete(&location).await.status, StatusCode::OK, "{path}");
        assert_eq!(cloud.get(&location).await.problem(), (404, "not-found", first.id().as_str()));
        assert_eq!(cloud.delete(&location).await.problem().0, 404);
    }
}

#[tokio::test]
async fn peerings_and_routes_can_be_created_and_deleted() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let other = cloud.make("/v1/vpcs", json!({"name": "v2", "tenant": basics.tenant})).await;
    let body = json!({"name": "p", "vpcs": [other, basics.vpc]});
    let made = cloud.post("/v1/peerings", body.clone()).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    assert_eq!(made.body["vpcs"], json!([basics.vpc, other]));
    let peering = made.id();
    assert_eq!(cloud.post("/v1/peerings", body).await.status, StatusCode::OK);

    let tables = cloud.get(&format!("/v1/route-tables?vpc={}", basics.vpc)).await.body;
    let table = tables["items"][0]["id"].as_str().unwrap().to_owned();
    let named = cloud.get("/v1/route-tables?name=main&limit=1").await.body;
    assert_eq!((named["items"].as_array().unwrap().len(), named["next"].is_string()), (1, true));
    assert_eq!(cloud.get("/v1/route-tables?name=other").await.body["items"], json!([]));
    let routes = format!("/v1/route-tables/{table}/routes");
    let by_peering = json!({"destination": "10.64.0.0/10", "target": {"peering": peering}});
    let route = cloud.post(&routes, by_peering.clone()).await;
    assert_eq!(route.status, StatusCode::CREATED, "{}", route.body);
    assert_eq!(route.body["target"], json!({"peering": peering}));
    assert_eq!(cloud.post(&routes, by_peering).await.status, StatusCode::OK);
    let drop = json!({"destination": "2001:db8:ffff::/48", "target": "drop"});
    let drop = cloud.make(&routes, drop).await;
    let list = cloud.get(&format!("/v1/routes?table={table}")).await.body;
    assert_eq!(list["items"].as_array().unwrap().len(), 2);
    assert_eq!(list["items"][1]["destination"], "2001:db8:ffff::/48");
    assert_eq!(cloud.get("/v1/routes").await.problem().0, 400);

    let in_use = cloud.delete(&format!("/v1/peerings/{peering}")).await;
    assert_eq!(in_use.problem().0, 409);
    for route in [route.id(), drop] {
        assert_eq!(cloud.delete(&format!("/v1/routes/{route}")).await.status, StatusCode::OK);
    }
    assert_eq!(cloud.delete(&format!("/v1/peerings/{peering}")).await.status, StatusCode::OK);
}

#[tokio::test]
async fn modes_of_ipv6_addresses_are_checked() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let subnets = format!("/v1/vpcs/{}/subnets", basics.vpc);
    for wrong in [
        json!({"name": "o", "ipv6": "2001:db8:7::/112", "ipv6_mode": "slaac"}),
        json!({"name": "o", "ipv4": "10.7.0.0/24", "ipv6_mode": "dhcp"}),
        json!({"name": "o", "ipv6": "2001:db8:7::/64", "ipv6_mode": "eui64"}),
    ] {
        let answer = cloud.post(&subnets, wrong.clone()).await;
        assert_eq!(answer.problem(), (422, "invalid", "ipv6_mode"), "{wrong}");
    }
    for (given, mode) in [(json!({}), "dhcp"), (json!({"ipv6_mode": "slaac"}), "slaac")] {
        let mut body = json!({"name": mode, "ipv6": format!("2001:db8:{}::/64", mode.len())});
        body.as_object_mut().unwrap().extend(given.as_object().unwrap().clone());
        assert_eq!(cloud.post(&subnets, body).await.body["ipv6_mode"], mode);
    }
    let ipv4 = cloud.post(&subnets, json!({"name": "o", "ipv4": "10.7.0.0/24"})).await;
    assert!(ipv4.body.get("ipv6_mode").is_none(), "{}", ipv4.body);
}

#[tokio::test]
async fn refusals_name_the_offender() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let instances = basics.instances_path();
    let subnets = format!("/v1/vpcs/{}/subnets", basics.vpc);
    let vm = |extra: Value| {
        let mut body = basics.instance("vm");
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    cloud
        .make(
            &instances,
            json!({"name": "first", "subnet": basics.subnet, "host": basics.host, "ipv4": "10.0.0.5"}),
        )
        .await;
    let cases = [
        (instances.as_str(), vm(json!({"ipv4": "10.1.0.5"})), (422, "outside-subnet", "10.1.0.5")),
        (&instances, vm(json!({"ipv4": "10.0.0.5"})), (409, "address-taken", "10.0.0.5")),
        (&instances, vm(json!({"ipv4": "10.0.0.1"})), (422, "reserved-address", "10.0.0.1")),
        (&instances, vm(json!({"ipv4": "224.0.0.5"})), (422, "invalid", "ipv4")),
        (&instances, vm(json!({"mac": "01:00:5e:00:00:01"})), (422, "invalid", "mac")),
        (&instances, vm(json!({"host": "host-999"})), (422, "unknown-reference", "host-999")),
        (&instances, vm(json!({"host": "gw-1"})), (422, "invalid", "host")),
        (&instances, vm(json!({"color": "red"})), (422, "invalid", "color")),
        (&instances, vm(json!({"name": "a/b"})), (422, "invalid", "name")),
        (&subnets, json!({"name": "o", "ipv4": "10.0.1.0/24"}), (409, "prefix-overlap", "10.0.1.0/24")),
        (&subnets, json!({"name": "o", "ipv4": "10.7.0.1/24"}), (422, "invalid", "ipv4")),
        (&subnets, json!({"name": "o", "ipv4": "2001:db8:7::/64"}), (422, "invalid", "ipv4")),
        (&subnets, json!({"name": "o", "ipv4": "10.7.0.0/31"}), (422, "invalid", "ipv4")),
        (&subnets, json!({"name": "o", "ipv4": "0.0.0.0/0"}), (422, "invalid", "ipv4")),
        (&subnets, json!({"name": "o"}), (422, "invalid", "ipv4")),
        (
            &subnets,
            json!({"name": "o", "ipv4": "10.7.0.0/24", "dns": ["192.0.2.51", "192.0.2.52", "192.0.2.53"]}),
            (422, "invalid", "dns"),
        ),
        ("/v1/vpcs", json!({"name": "x", "tenant": "tenant-999"}), (422, "unknown-reference", "tenant-999")),
        ("/v1/vpcs", json!({"name": "x", "tenant": basics.tenant, "vni": 0}), (422, "invalid", "vni")),
        ("/v1/vpcs", json!({"name": "x", "tenant": basics.tenant, "mtu": 600}), (422, "invalid", "mtu")),
        ("/v1/clusters", json!({"name": "x", "vips": []}), (422, "invalid", "vips")),
        ("/v1/clusters", json!({"name": "x", "vips": ["ff02::1"]}), (422, "invalid", "vips[0]")),
        (
            "/v1/clusters",
            json!({"name": "x", "vips": ["192.0.2.77", "192.0.2.77"]}),
            (422, "invalid", "vips[1]"),
        ),
        (
            "/v1/hosts",
            json!({"name": "x", "vtep": "192.0.2.21"}),
            (409, "underlay-address-taken", "192.0.2.21"),
        ),
        ("/v1/gateways", json!({"name": "x", "cluster": basics.cluster}), (422, "invalid", "vtep4")),
        (
            "/v1/peerings",
            json!({"name": "x", "vpcs": [basics.vpc, basics.vpc]}),
            (422, "peered-with-itself", "vpcs"),
        ),
        ("/v1/peerings", json!({"name": "x", "vpcs": [basics.vpc]}), (422, "invalid", "vpcs")),
        ("/v1/vpcs/vpc-999/instances", vm(json!({})), (404, "not-found", "vpc-999")),
        ("/v1/vpcs/host-1/instances", vm(json!({})), (400, "bad-request", "host-1")),
    ];
    for (path, body, expected) in cases {
        let answer = cloud.post(path, body.clone()).await;
        assert_eq!(answer.problem(), expected, "{path} {body}: {}", answer.body);
        assert!(!answer.body["detail"].as_str().unwrap().is_empty());
    }
    let used = cloud.delete(&format!("/v1/subnets/{}", basics.subnet)).await;
    assert_eq!(used.problem().1, "in-use");
    assert_eq!(
        cloud.get("/v1/instances").await.body["items"].as_array().unwrap().len(),
        1,
        "nothing else changed"
    );
}

#[tokio::test]
async fn hostile_input_is_refused() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let raw = |body: Vec<u8>, kind: &'static str| {
        cloud.request(Method::POST, "/v1/tenants").header("content-type", kind).body(body)
    };
    let nested = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
    let deep = [b"{\"name\":".to_vec(), nested.clone(), b"}".to_vec()].concat();
    let bodies: [(Vec<u8>, u16, &str); 10] = [
        (b"".to_vec(), 400, "malformed-json"),
        (b"{".to_vec(), 400, "malformed-json"),
        (b"{\"name\":\"\xff\"}".to_vec(), 400, "malformed-json"),
        (b"{\"name\":\"a\"} {}".to_vec(), 400, "malformed-json"),
        (b"{\"name\":\"a\",\"name\":\"b\"}".to_vec(), 422, "invalid"),
        (b"{\"name\":null}".to_vec(), 422, "invalid"),
        (b"{\"name\":\"a\\u0000b\"}".to_vec(), 422, "invalid"),
        (nested, 422, "invalid"),
        (deep, 422, "invalid"),
        (format!("{{\"name\":\"{}\"}}", "x".repeat(2 << 20)).into_bytes(), 413, "body-too-large"),
    ];
    for (body, status, kind) in bodies {
        let shown = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
        let answer = cloud.send(raw(body, "application/json")).await;
        assert_eq!((answer.problem().0, answer.problem().1), (status, kind), "{shown}: {}", answer.body);
    }
    let long = cloud.post(&basics.instances_path(), basics.instance(&"x".repeat(100_000))).await;
    assert_eq!(long.problem(), (422, "invalid", "name"));
    let mut body = basics.instance("vm");
    body["subnet"] = json!("x".repeat(1 << 19));
    let long = cloud.post(&format!("{}/bulk", basics.instances_path()), json!({"instances": [body]})).await;
    assert_eq!(long.problem(), (422, "invalid", "instances[0].subnet"));
    assert!(long.body.to_string().len() < 4096, "the answer does not repeat all of the request");
    for kind in ["text/plain", "application/x-www-form-urlencoded"] {
        let answer = cloud.send(raw(b"{\"name\":\"a\"}".to_vec(), kind)).await;
        assert_eq!(answer.problem(), (415, "unsupported-media-type", "content-type"));
    }
    for path in
        ["/v1/vpcs/..%2f..%2fetc", "/v1/vpcs/vpc-99999999999999999999", "/v1/vpcs/%00", "/v1/vpcs/vpc-1'--"]
    {
        assert_eq!(cloud.get(path).await.problem().0, 400, "{path}");
    }
    for query in [
        "?limit=0",
        "?limit=1001",
        "?limit=x",
        "?cursor=zz",
        "?cursor=",
        "?nome=a",
        "?name=a&name=b",
        "?vpc=1",
    ] {
        let answer = cloud.get(&format!("/v1/instances{query}")).await;
        assert_eq!(answer.problem().0, 400, "{query}: {}", answer.body);
    }
    let injected = cloud.get("/v1/tenants?name=t'%20OR%20'1'='1").await;
    assert_eq!((injected.status, &injected.body["items"]), (StatusCode::OK, &json!([])));
    assert_eq!(cloud.get("/nowhere").await.problem().1, "no-such-path");
    // Parameters and bodies that a handler would ignore could be conditions that the caller relies on.
    let tenant = format!("/v1/tenants/{}", basics.tenant);
    let answer = cloud.send(cloud.request(Method::DELETE, &format!("{tenant}?if_revision=1"))).await;
    assert_eq!(answer.problem(), (400, "bad-request", "query"));
    let drain = json!({"name": "gw-x", "cluster": basics.cluster, "vtep4": "192.0.2.77",
        "vtep6": "2001:db8::77"});
    let drain = format!("/v1/gateways/{}/drain", cloud.make("/v1/gateways", drain).await);
    let answer = cloud.send(cloud.request(Method::POST, &drain).body("junk")).await;
    assert_eq!(answer.problem(), (400, "bad-request", "body"));
    let unchanged = cloud.get(drain.trim_end_matches("/drain")).await;
    assert_eq!(unchanged.body["draining"], false);
    let answer = cloud.send(cloud.request(Method::PUT, "/v1/tenants")).await;
    assert_eq!(answer.problem().0, 405);
    assert!(answer.header("allow").contains("POST"), "{:?}", answer.headers);
    assert_eq!(cloud.get(&format!("/v1/tenants/{}", basics.tenant)).await.body["name"], "t");
}

#[tokio::test]
async fn bulk_creation_is_all_or_nothing() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let path = format!("{}/bulk", basics.instances_path());
    let mut many: Vec<_> = (0..50).map(|i| basics.instance(&format!("vm{i}"))).collect();
    many[37]["ipv4"] = json!("10.99.0.1");
    let answer = cloud.post(&path, json!({"instances": many})).await;
    assert_eq!(answer.problem(), (422, "outside-subnet", "instances[37]"));
    assert_eq!(cloud.get("/v1/instances").await.body["items"], json!([]));
    many[37]["host"] = json!("host-999");
    let answer = cloud.post(&path, json!({"instances": many})).await;
    assert_eq!(answer.problem(), (422, "unknown-reference", "instances[37]"));
    many[37] = basics.instance("vm37");
    let answer = cloud.post(&path, json!({"instances": many})).await;
    assert_eq!((answer.status, &answer.body["created"]), (StatusCode::OK, &json!(50)));
    let empty = cloud.post(&path, json!({"instances": []})).await;
    assert_eq!((empty.status, &empty.body["created"]), (StatusCode::OK, &json!(0)));
    assert!(empty.body.get("first").is_none());
    let first = cloud.get(&format!("/v1/instances/{}", answer.body["first"].as_str().unwrap())).await;
    assert_eq!(first.body["name"], "vm0");
}

#[tokio::test]
async fn lists_have_pages_and_filters() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let many: Vec<_> = (0..25).map(|i| basics.instance(&format!("vm{i}"))).collect();
    cloud.post(&format!("{}/bulk", basics.instances_path()), json!({"instances": many})).await;
    let mut names = Vec::new();
    let mut cursor = String::new();
    let mut pages = 0;
    loop {
        let page = cloud.get(&format!("/v1/instances?vpc={}&limit=10{cursor}", basics.vpc)).await.body;
        names.extend(page["items"].as_array().unwrap().iter().map(|item| item["name"].clone()));
        pages += 1;
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!((names.len(), pages), (25, 3));
    assert_eq!((names[0].as_str(), names[24].as_str()), (Some("vm0"), Some("vm24")));
    let one = cloud.get("/v1/instances?name=vm7&limit=1").await.body;
    assert_eq!((one["items"].as_array().unwrap().len(), one.get("next")), (1, None));
    let none = cloud.get("/v1/instances?host=host-999").await.body;
    assert_eq!(none["items"], json!([]));
}

#[tokio::test]
async fn updates_and_deletions_check_if_match() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let path = format!("/v1/vpcs/{}", basics.vpc);
    let etag = cloud.get(&path).await.header("etag").to_owned();
    let patch =
        |tag: &str, body: Value| cloud.request(Method::PATCH, &path).header("if-match", tag).json(&body);
    let changed = cloud.send(patch(&etag, json!({"mtu": 1400}))).await;
    assert_eq!(
        (changed.status, &changed.body["mtu"], &changed.body["name"]),
        (StatusCode::OK, &json!(1400), &json!("v"))
    );
    assert_ne!(changed.header("etag"), etag);
    assert_eq!(
        cloud.send(patch(&etag, json!({"mtu": 1410}))).await.problem(),
        (412, "stale", basics.vpc.as_str())
    );
    assert_eq!(cloud.send(patch("W/\"1\"", json!({"mtu": 1410}))).await.problem().0, 400);
    assert_eq!(cloud.send(patch("*", json!({"name": "v9"}))).await.body["name"], "v9");
    let without = cloud.request(Method::PATCH, &path).json(&json!({"name": "v"}));
    assert_eq!(cloud.send(without).await.body["mtu"], 1400);
    let both = json!({"name": "half", "cluster": "cluster-999"});
    let both = cloud.send(cloud.request(Method::PATCH, &path).json(&both)).await;
    assert_eq!(both.problem(), (422, "invalid", "body"));
    assert_eq!(cloud.get(&path).await.body["name"], "v", "nothing changed");
    let tenant = format!("/v1/tenants/{}", basics.tenant);
    let renamed = cloud.request(Method::PATCH, &tenant).json(&json!({"name": "t9"}));
    assert_eq!(cloud.send(renamed).await.body["name"], "t9");
    let cluster = format!("/v1/clusters/{}", basics.cluster);
    let vips = cloud.request(Method::PATCH, &cluster).json(&json!({"vips": ["192.0.2.11"]}));
    let changed = cloud.send(vips).await.body;
    // The new vIP has the third slot, because the two old vIPs stayed until it was there.
    let mac = &changed["vips"][0]["mac"];
    let vip = json!({"slot": 2, "address": "192.0.2.11", "mac": mac, "preferred_owner": basics.gateway});
    assert_eq!(changed["vips"], json!([vip]));
    assert!(changed["vips"][0]["mac"].as_str().unwrap().ends_with(":02"));
    let stale = cloud.request(Method::DELETE, &cluster).header("if-match", "\"1\"");
    assert_eq!(cloud.send(stale).await.problem().0, 412);
}

#[tokio::test]
async fn new_vpc_is_placed_on_the_only_cluster() {
    let cloud = Cloud::start().await;
    let tenant = cloud.make("/v1/tenants", json!({"name": "t"})).await;
    let vpc = json!({"name": "v", "tenant": tenant});
    assert_eq!(cloud.post("/v1/vpcs", vpc.clone()).await.problem(), (422, "invalid", "cluster"));
    let cluster = cloud.make("/v1/clusters", json!({"name": "a", "vips": ["192.0.2.10"]})).await;
    assert_eq!(cloud.post("/v1/vpcs", vpc).await.body["cluster"], json!(cluster));
}

#[tokio::test]
async fn token_is_required_except_for_health() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "correct horse battery staple".replace(' ', "-")).unwrap();
    let guarded = sluice_controller::Args { api_token_file: Some(file), ..args(&dir) };
    let cloud = Cloud::with(dir, guarded).await;
    for path in ["/healthz", "/readyz", "/openapi.json"] {
        assert_eq!(cloud.get(path).await.status, StatusCode::OK, "{path}");
    }
    for path in ["/v1/tenants", "/metrics", "/nowhere"] {
        let answer = cloud.get(path).await;
        assert_eq!(answer.problem(), (401, "unauthorized", "authorization"), "{path}");
        assert_eq!(answer.header("www-authenticate"), "Bearer");
    }
    for (token, status) in [("wrong", 401), ("correct-horse-battery-staple", 200)] {
        let request = cloud.request(Method::GET, "/v1/tenants").bearer_auth(token);
        assert_eq!(cloud.send(request).await.status.as_u16(), status);
    }
}

#[tokio::test]
async fn every_answer_has_a_request_id() {
    let cloud = Cloud::start().await;
    let own = cloud.get("/v1/tenants").await.header("x-request-id").to_owned();
    assert!(!own.is_empty());
    for (given, kept) in [("trace-7", true), ("", false), ("a b", false), (&*"x".repeat(65), false)] {
        let request = cloud.request(Method::GET, "/nowhere").header("x-request-id", given);
        assert_eq!(cloud.send(request).await.header("x-request-id") == given, kept, "{given}");
    }
}

#[tokio::test]
async fn unavailable_database_is_reported() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    assert_eq!(cloud.get("/readyz").await.status, StatusCode::OK);
    // Another process locks the file.
    let file = cloud.dir.path().join("state/sluice.db");
    let mut locker =
        SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(file)).await.unwrap();
    sqlx::query("BEGIN EXCLUSIVE").execute(&mut locker).await.unwrap();

    let answer = cloud.post("/v1/tenants", json!({"name": "late"})).await;
    assert_eq!((answer.problem().0, answer.problem().1), (503, "database-unavailable"));
    assert_eq!(answer.header("retry-after"), "1");
    let detail = answer.body["detail"].as_str().unwrap();
    assert!(detail.contains("lock") || detail.contains("hold"), "missing cause: {detail}");
    assert_eq!(cloud.get("/readyz").await.problem().0, 503);
    assert_eq!(cloud.get("/healthz").await.status, StatusCode::OK);

    sqlx::query("ROLLBACK").execute(&mut locker).await.unwrap();
    assert_eq!(cloud.post("/v1/tenants", json!({"name": "late"})).await.status, StatusCode::CREATED);
    // The result of the last check is kept for a second.
    cloud.wait_until("ready", "/readyz", |_| true).await;
    assert_eq!(cloud.get(&format!("/v1/tenants/{}", basics.tenant)).await.status, StatusCode::OK);
}

/// With `SLUICE_UPDATE=1`, the test writes the copy in the repository.
#[test]
fn openapi_document_in_the_repository_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../api/openapi.json");
    let generated = sluice_controller::openapi_json().unwrap();
    if std::env::var_os("SLUICE_UPDATE").is_some() {
        std::fs::write(path, &generated).unwrap();
    }
    let checked_in = std::fs::read_to_string(path).unwrap_or_default();
    assert!(checked_in == generated, "api/openapi.json is out of date: run this test with SLUICE_UPDATE=1");
    let document: Value = serde_json::from_str(&generated).unwrap();
    assert_eq!(document["openapi"].as_str().unwrap().split_at(4).0, "3.1.");
    let bulk = &document["paths"]["/v1/vpcs/{vpc}/instances/bulk"]["post"];
    assert!(bulk["responses"]["default"]["content"]["application/problem+json"].is_object());
}
