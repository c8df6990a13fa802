//! What the client makes of answers on the wire: pages, problems, strangers, silence.

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use sluice_client::{Client, CloudFile, Error, Host, NewTenant, Tenant};
use sluice_types::{HostId, TenantId};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

async fn serve(router: Router) -> Client {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    Client::new(&url, Some("secret".to_owned())).unwrap()
}

fn problem(status: StatusCode, detail: &str) -> Response {
    let body = json!({"type": "about:blank", "title": "Refused", "status": status.as_u16(), "detail": detail,
        "offender": "10.0.0.7"});
    (status, [("content-type", "application/problem+json")], body.to_string()).into_response()
}

fn tenant(number: u64) -> Value {
    json!({"id": format!("tenant-{number}"), "name": format!("t{number}"), "revision": number, "programmed": true})
}

#[tokio::test]
async fn lists_follow_cursors_to_the_end_and_stop_at_the_limit() {
    let pages = |Query(query): Query<HashMap<String, String>>| async move {
        let from: u64 = query.get("cursor").map_or(0, |cursor| cursor.parse().unwrap());
        let count: u64 = query["limit"].parse::<u64>().unwrap().min(3);
        let items: Vec<Value> = (from + 1..=(from + count).min(8)).map(tenant).collect();
        let next = from + count;
        if next < 8 {
            Json(json!({"items": items, "next": next.to_string()}))
        } else {
            Json(json!({"items": items}))
        }
    };
    let client = serve(Router::new().route("/v1/tenants", get(pages))).await;
    let all: Vec<Tenant> = client.list(&[], None).await.unwrap();
    assert_eq!(all.iter().map(|tenant| tenant.id.get()).collect::<Vec<_>>(), (1..=8).collect::<Vec<_>>());
    let some: Vec<Tenant> = client.list(&[], Some(4)).await.unwrap();
    assert_eq!(some.len(), 4);
}

#[tokio::test]
async fn creation_says_whether_it_made_something_and_sends_the_token() {
    let create = |headers: HeaderMap, Json(body): Json<Value>| async move {
        if headers.get("authorization").is_none_or(|given| given != "Bearer secret") {
            return problem(StatusCode::UNAUTHORIZED, "no token");
        }
        let status = if body["name"] == "old" { StatusCode::OK } else { StatusCode::CREATED };
        (status, Json(json!({"id": "tenant-1", "name": body["name"], "revision": 1, "programmed": true})))
            .into_response()
    };
    let client = serve(Router::new().route("/v1/tenants", axum::routing::post(create))).await;
    let made = client.create((), &NewTenant { name: "new".to_owned() }).await.unwrap();
    assert!(made.created);
    assert_eq!((made.object.id, made.object.name.as_str()), (TenantId::new(1), "new"));
    assert!(!client.create((), &NewTenant { name: "old".to_owned() }).await.unwrap().created);
}

#[tokio::test]
async fn refusals_carry_the_apis_words_and_the_offender() {
    let refuse = || async { problem(StatusCode::CONFLICT, "address is taken") };
    let client = serve(Router::new().route("/v1/hosts/{id}", get(refuse))).await;
    let error = client.get::<Host>(HostId::new(3)).await.unwrap_err();
    assert_eq!(error.to_string(), "show host host-3: address is taken (offender: 10.0.0.7)");
    assert_eq!((error.status(), error.is_not_found(), error.is_transient()), (Some(409), false, false));
    // What is no problem document still has its status.
    let client = serve(Router::new()).await;
    let error = client.get::<Host>(HostId::new(3)).await.unwrap_err();
    assert_eq!(error.to_string(), "show host host-3: Not Found");
    assert!(error.is_not_found());
}

#[tokio::test]
async fn strangers_and_silence_are_told_apart() {
    let client = serve(Router::new().route("/v1/tenants", get(|| async { "hello" }))).await;
    let error = client.list::<Tenant>(&[], None).await.unwrap_err();
    assert!(matches!(error, Error::Malformed { .. }), "{error}");
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let client = Client::new(&format!("http://{unused}"), None).unwrap();
    let error = client.list::<Tenant>(&[], None).await.unwrap_err();
    assert!(
        error.is_transient() && error.to_string().contains("is `sluice controller` running there?"),
        "{error}"
    );
    for url in ["", "127.0.0.1:8080", "ftp://host", "unix:/run/x"] {
        assert!(matches!(Client::new(url, None), Err(Error::BadUrl(_))), "{url}");
    }
}

#[tokio::test]
async fn errors_do_not_contain_the_password_of_the_url() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let client = Client::new(&format!("http://user:secret@{unused}"), None).unwrap();
    let error = client.list::<Tenant>(&[], None).await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot reach the API at http://{unused}: ")), "{error}");
    for url in ["https://u:secret@h", "http://u:secret@h:x", "u:secret@h", "http://h:x?token=secret"] {
        let Err(error) = Client::new(url, None) else { panic!("{url} was accepted") };
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    let error = Client::new("https://u:secret@h:443", None).unwrap_err().to_string();
    assert_eq!(error, "`https://h:443` is not an API URL: expected http://HOST:PORT");
}

#[tokio::test]
async fn names_and_ids_are_told_apart() {
    // host-1 is the id of `b` and the name of host-2.
    let host = |id: u64, name: &str| {
        json!({"id": format!("host-{id}"), "name": name, "vtep": "192.0.2.1", "agent": true, "revision": 1,
            "programmed": true})
    };
    let list = move |Query(query): Query<HashMap<String, String>>| async move {
        let named: Vec<Value> = match query.get("name").map(String::as_str) {
            Some("host-1") => vec![host(2, "host-1")],
            Some("b") => vec![host(1, "b")],
            Some("host-3") => vec![host(5, "host-3")],
            Some("twice") => vec![host(3, "twice"), host(4, "twice")],
            _ => vec![],
        };
        Json(json!({"items": named}))
    };
    let show = move |Path(id): Path<String>| async move {
        match id.as_str() {
            "host-1" => Json(host(1, "b")).into_response(),
            "host-2" => Json(host(2, "host-1")).into_response(),
            "host-3" => problem(StatusCode::SERVICE_UNAVAILABLE, "the database does not respond"),
            _ => problem(StatusCode::NOT_FOUND, "no such host"),
        }
    };
    let client = serve(Router::new().route("/v1/hosts", get(list)).route("/v1/hosts/{id}", get(show))).await;
    let find = async |text: &str| client.find::<Host>(text, &[]).await.map(|host| host.id.get());
    assert!(matches!(find("host-1").await, Err(Error::NameOrId { .. })));
    assert_eq!(find("name:host-1").await.unwrap(), 2);
    assert_eq!(find("id:host-1").await.unwrap(), 1);
    assert_eq!(find("host-2").await.unwrap(), 2);
    assert_eq!(find("b").await.unwrap(), 1);
    assert!(find("host-9").await.unwrap_err().is_not_found());
    // Whether host-3 is also an id is not known, so its name alone decides nothing.
    let unknown = find("host-3").await.unwrap_err().to_string();
    assert!(unknown.contains("the database does not respond"), "{unknown}");
    assert!(!format!("{client:?}").contains("secret"), "{client:?}");
    assert_eq!(find("unknown-host").await.unwrap_err().to_string(), "no host is named `unknown-host`");
    let twice = find("twice").await.unwrap_err().to_string();
    assert_eq!(twice, "2 hosts are named `twice`: host-3, host-4; give the id");
}

#[tokio::test]
async fn waiting_ends_when_programmed_and_names_the_laggards_when_not() {
    let calls = Arc::new(AtomicU32::new(0));
    let show = |State(calls): State<Arc<AtomicU32>>, Path(id): Path<String>| async move {
        let programmed = id == "host-1" && calls.fetch_add(1, Ordering::Relaxed) >= 3;
        let mut host = json!({"id": id, "name": "a", "vtep": "192.0.2.1", "agent": true, "revision": 7,
            "programmed": programmed});
        if id == "host-3" {
            host["failures"] =
                json!([{"node": "gw-2", "entry": "VTEP 192.0.2.1", "reason": "the memory is full"}]);
        }
        Json(host)
    };
    let nodes = || async {
        Json(json!({"items": [
            {"node": "gw-1", "name": "edge", "acknowledged_revision": 6, "current": 7, "connected": false},
            {"node": "gw-2", "acknowledged_revision": 7, "current": 7, "connected": true},
        ]}))
    };
    let router = Router::new().route("/v1/hosts/{id}", get(show)).route("/v1/nodes", get(nodes));
    let client = serve(router.with_state(calls.clone())).await;
    assert!(
        client.wait_programmed::<Host>(HostId::new(1), Duration::from_secs(10)).await.unwrap().programmed
    );
    assert_eq!(calls.load(Ordering::Relaxed), 4);
    let error = client.wait_programmed::<Host>(HostId::new(2), Duration::from_millis(50)).await.unwrap_err();
    assert_eq!(error.to_string(), "host host-2 is not programmed after 0 s; nodes that lag behind: edge");
    let error = client.wait_programmed::<Host>(HostId::new(3), Duration::from_millis(50)).await.unwrap_err();
    let text = "host host-3 is not programmed after 0 s; nodes that lag behind: edge; gw-2 has no VTEP 192.0.2.1: \
                the memory is full";
    assert_eq!(error.to_string(), text);
    let never = |_: &Host| false;
    let longest = client.wait_programmed::<Host>(HostId::new(1), Duration::MAX).await;
    assert!(longest.unwrap().programmed);
    let error = client.wait_until(HostId::new(1), Duration::from_millis(50), never).await.unwrap_err();
    assert_eq!(error.to_string(), "the change of host host-1 is not complete after 0 s");
}

/// Catches a kind of object that is left out.
#[tokio::test]
async fn waiting_for_a_cloud_includes_every_kind_of_object() {
    let kinds = [
        ("clusters", "cluster-1"),
        ("gateways", "gw-1"),
        ("hosts", "host-1"),
        ("vpcs", "vpc-1"),
        ("subnets", "subnet-1"),
        ("security-groups", "sg-1"),
        ("security-rules", "sgr-1"),
        ("instances", "inst-1"),
        ("routes", "route-1"),
        ("peerings", "peer-1"),
        ("nat-gateways", "nat-1"),
        ("port-forwards", "fwd-1"),
        ("meters", "meter-1"),
        ("eips", "eip-1"),
    ];
    let others = [("tenants", "tenant-1"), ("route-tables", "rtb-1")];
    let cloud = CloudFile::parse("vpcs: [{name: a, tenant: a}]").unwrap();
    // The last one is a cloud of which all objects are programmed.
    for lagging in kinds.iter().map(|(kind, _)| *kind).chain([""]) {
        // It has the fields of every kind of object.
        let object = move |kind: &str| {
            let id = kinds.iter().chain(&others).find(|(known, _)| *known == kind).map(|(_, id)| *id);
            json!({"id": id, "name": "a", "revision": 1, "programmed": kind != lagging, "cluster": "cluster-1",
                "vips": [], "hello_interval_ms": 4, "vtep": "192.0.2.1", "agent": true, "tenant": "tenant-1",
                "vni": 1, "mtu": 1430, "vpc": "vpc-1", "subnet": "subnet-1", "host": "host-1",
                "mac": "02:00:00:00:00:01", "table": "rtb-1", "destination": "10.0.0.0/8", "target": "drop",
                "vpcs": ["vpc-1", "vpc-2"], "description": "", "group": "sg-1", "direction": "ingress",
                "family": "ipv4", "protocol": "tcp", "remote": "any", "pool": "pool-1", "addresses": ["192.0.2.1"],
                "address": "192.0.2.1", "prefix_length": 32, "sessions": 1, "blocks": 1,
                "filtering": "address-and-port-dependent", "mapping": "endpoint-independent", "nat_gateway": "nat-1",
                "port": 80, "instance": "inst-1", "inside": "10.0.0.1", "inside_port": 80})
        };
        let list = move |Path(kind): Path<String>| async move { Json(json!({"items": [object(&kind)]})) };
        let show = move |Path((kind, _)): Path<(String, String)>| async move { Json(object(&kind)) };
        let router = Router::new().route("/v1/{kind}", get(list)).route("/v1/{kind}/{id}", get(show));
        let client = serve(router).await;
        let waited = client.wait_cloud_programmed(&cloud, Duration::from_millis(20)).await;
        let is_expected = match &waited {
            Ok(()) => lagging.is_empty(),
            Err(error) => !lagging.is_empty() && matches!(error, Error::NotProgrammed { .. }),
        };
        assert!(is_expected, "{lagging}: {waited:?}");
    }
}

#[tokio::test]
async fn waiting_for_a_plan_tolerates_transient_errors_and_any_timeout() {
    let calls = Arc::new(AtomicU32::new(0));
    let show = |State(calls): State<Arc<AtomicU32>>| async move {
        let state = match calls.fetch_add(1, Ordering::Relaxed) {
            0 | 2 => return problem(StatusCode::SERVICE_UNAVAILABLE, "the database does not respond"),
            1 => "applying",
            _ => "done",
        };
        let plan = json!({"id": 3, "created_ms": 0, "state": state, "steps": 2, "done": 1, "parallel": 1,
            "note": "", "kind": "solve", "max_load_before": 0.5, "max_load": 0.5, "max_load_lower_bound": 0.5,
            "entries": 9, "moves": []});
        Json(plan).into_response()
    };
    let router = Router::new().route("/v1/placement/plans/{id}", get(show));
    let client = serve(router.with_state(calls.clone())).await;
    assert_eq!(client.wait_plan(3, Duration::from_secs(u64::MAX)).await.unwrap().state, "done");
    assert_eq!(calls.load(Ordering::Relaxed), 4);
    calls.store(1, Ordering::Relaxed);
    assert_eq!(client.wait_plan(3, Duration::ZERO).await.unwrap().state, "applying");
    assert!(client.wait_plan(3, Duration::ZERO).await.unwrap_err().is_transient());
}
