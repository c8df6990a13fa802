//! Applying a cloud file: which references are accepted, and that nothing is created if one is wrong.

use axum::extract::{Path, Query};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use sluice_client::{Client, CloudFile, Error, Options, Report, apply};
use std::collections::HashMap;

/// The objects of one kind that the cloud has.
fn objects(kind: &str) -> Vec<Value> {
    let objects = match kind {
        "tenants" => json!([{"id": "tenant-1", "name": "red"}]),
        "clusters" => json!([{"id": "cluster-1", "name": "edge", "vips": [], "hello_interval_ms": 4}]),
        "hosts" => json!([{"id": "host-1", "name": "metal", "vtep": "192.0.2.21", "agent": false}]),
        "vpcs" => json!([
            {"id": "vpc-1", "name": "web", "tenant": "tenant-1", "cluster": "cluster-1", "vni": 1, "mtu": 1430},
            {"id": "vpc-2", "name": "db", "tenant": "tenant-1", "cluster": "cluster-1", "vni": 2, "mtu": 1430},
        ]),
        "subnets" => json!([
            {"id": "subnet-1", "name": "front", "vpc": "vpc-1", "ipv4": "10.0.0.0/24"},
            {"id": "subnet-2", "name": "back", "vpc": "vpc-2", "ipv4": "10.1.0.0/24"},
        ]),
        "peerings" => {
            json!([{"id": "peer-1", "name": "web-db", "vpcs": ["vpc-1", "vpc-2"], "meters": {"vpc-1": "meter-1"}}])
        }
        "security-groups" => json!([
            {"id": "sg-1", "name": "default", "vpc": "vpc-1", "description": ""},
            {"id": "sg-2", "name": "ops", "vpc": "vpc-1", "description": ""},
            {"id": "sg-3", "name": "default", "vpc": "vpc-2", "description": ""},
        ]),
        "security-rules" => json!([
            {"id": "sgr-1", "group": "sg-2", "vpc": "vpc-1", "direction": "ingress", "family": "ipv4",
             "protocol": "tcp", "ports": "22", "remote": "any", "description": ""},
            {"id": "sgr-2", "group": "sg-2", "vpc": "vpc-1", "direction": "ingress", "family": "ipv6",
             "protocol": "any", "remote": {"group": "sg-1"}, "description": ""},
        ]),
        "instances" => json!([
            {"id": "inst-1", "name": "i", "vpc": "vpc-1", "subnet": "subnet-1", "host": "host-1",
             "mac": "02:00:00:00:00:01", "security_groups": ["sg-1", "sg-2"],
             "secondary_addresses": ["10.1.0.8", "10.1.0.9"], "delegated_prefixes": ["10.244.0.0/24"],
             "address_pairs": [{"address": "10.1.0.60", "held": true}], "spoofing_protection": true,
             "qos": {"dscp": null, "rate_mbps": 10}},
        ]),
        "public-pools" => {
            json!([{"id": "pool-1", "name": "world", "cluster": "cluster-1", "prefixes": ["198.51.100.0/24"]}])
        }
        "eips" => json!([
            {"id": "eip-1", "name": "www", "tenant": "tenant-1", "pool": "pool-1", "address": "198.51.100.1",
             "prefix_length": 32, "vpc": "vpc-1", "instance": "inst-1", "inside": "10.0.0.2", "meter": "meter-1"},
            {"id": "eip-2", "name": "free", "tenant": "tenant-1", "pool": "pool-1", "address": "198.51.100.9",
             "prefix_length": 32},
        ]),
        "meters" => json!([
            {"id": "meter-1", "name": "gold", "tenant": "tenant-1", "in_kbps": 8000, "in_burst": 50_000},
        ]),
        "nat-gateways" => json!([
            {"id": "nat-1", "name": "out", "vpc": "vpc-1", "pool": "pool-1", "addresses": ["198.51.100.2", "198.51.100.3"],
             "sessions": 10_000, "blocks": 4, "filtering": "endpoint-independent", "mapping": "endpoint-independent"},
        ]),
        "route-tables" => json!([{"id": "rtb-1", "name": "main", "vpc": "vpc-1"}]),
        _ => json!([]),
    };
    let mut objects = objects.as_array().cloned().unwrap_or_default();
    for object in &mut objects {
        object["revision"] = 1.into();
        object["programmed"] = true.into();
    }
    objects
}

async fn list(Path(kind): Path<String>, Query(query): Query<HashMap<String, String>>) -> Json<Value> {
    let mut found = objects(&kind);
    for key in ["name", "tenant", "vpc", "table", "group"] {
        let Some(wanted) = query.get(key) else { continue };
        found.retain(|object| match (kind.as_str(), key) {
            ("peerings", "vpc") => object["vpcs"].as_array().unwrap().contains(&json!(wanted)),
            _ => object[key] == json!(wanted),
        });
    }
    Json(json!({"items": found}))
}

async fn show(Path((kind, id)): Path<(String, String)>) -> Response {
    match objects(&kind).into_iter().find(|object| object["id"] == json!(id)) {
        Some(object) => Json(object).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// A client of an API that creates nothing.
async fn client() -> Client {
    let router = Router::new().route("/v1/{kind}", get(list)).route("/v1/{kind}/{id}", get(show));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    Client::new(&url, None).unwrap()
}

async fn run(yaml: &str, dry_run: bool) -> Result<Report, Error> {
    let cloud = CloudFile::parse(yaml).unwrap();
    apply(&client().await, &cloud, Options { dry_run }, &mut |_| {}).await
}

fn neither(object: &str, what: &str) -> String {
    format!("{object}: neither the file nor the cloud has a {what}")
}

/// Applying each file is an error of the file, with this text, before anything is created.
async fn are_refused(cases: &[(&str, String)]) {
    for (yaml, expected) in cases {
        for dry_run in [true, false] {
            // A creation would be another error, since the API creates nothing.
            let error = run(yaml, dry_run).await.unwrap_err();
            assert!(matches!(error, Error::CloudFile(_)), "{yaml}: {error}");
            assert_eq!(error.to_string(), *expected);
        }
    }
}

#[tokio::test]
async fn wrong_reference_is_an_error_before_anything_is_created() {
    let cases = [
        ("gateways: [{name: g, cluster: far}]", neither("gateway `g`: `cluster`", "cluster `far`")),
        ("vpcs: [{name: v, tenant: blue}]", neither("VPC `v`: `tenant`", "tenant `blue`")),
        ("vpcs: [{name: v, tenant: red, cluster: far}]", neither("VPC `v`: `cluster`", "cluster `far`")),
        (
            "vpcs: [{name: web, tenant: red, instances: [{name: q, subnet: s, host: metal}]}]",
            neither("instance `q` in VPC `web`: `subnet`", "subnet `s`"),
        ),
        (
            "vpcs: [{name: web, tenant: red, instances: [{name: q, subnet: front, host: host-9}]}]",
            neither("instance `q` in VPC `web`: `host`", "host `host-9`"),
        ),
        // The subnet is in another VPC: by name, and by id.
        (
            "vpcs: [{name: v, tenant: red, instances: [{name: q, subnet: front, host: metal}]}]",
            neither("instance `q` in VPC `v`: `subnet`", "subnet `front`"),
        ),
        (
            "vpcs: [{name: web, tenant: red, instances: [{name: q, subnet: subnet-2, host: metal}]}]",
            "instance `q` in VPC `web`: `subnet`: subnet subnet-2 is not in vpc-1".to_owned(),
        ),
        (
            "vpcs: [{name: web, tenant: red, instances: [{name: q, subnet: front, host: metal, security_groups: [dmz]}]}]",
            neither("instance `q` in VPC `web`: `security_groups`", "security group `dmz`"),
        ),
        // The group is in another VPC: by name, and by id.
        (
            "vpcs: [{name: db, tenant: red, instances: [{name: q, subnet: back, host: metal, security_groups: [ops]}]}]",
            neither("instance `q` in VPC `db`: `security_groups`", "security group `ops`"),
        ),
        (
            "vpcs: [{name: db, tenant: red, instances: [{name: q, subnet: back, host: metal, security_groups: [sg-2]}]}]",
            "instance `q` in VPC `db`: `security_groups`: security group sg-2 is not in vpc-2".to_owned(),
        ),
        (
            "vpcs: [{name: v, tenant: red, security_groups: [{name: a, rules: \
             [{direction: egress, family: ipv4}, {direction: egress, family: ipv4, remote: {group: b}}]}]}]",
            neither("rule 2 of security group `a` in VPC `v`: `remote`", "security group `b`"),
        ),
        ("peerings: [{name: p, tenant: red, vpcs: [web, x]}]", neither("peering `p`: `vpcs`", "VPC `x`")),
        (
            "peerings: [{name: p, vpcs: [web, vpc-1]}]",
            "peering `p`: `vpcs`: `web` and `vpc-1` are the same VPC".to_owned(),
        ),
        (
            "vpcs: [{name: web, tenant: red}]\npeerings: [{name: p, vpcs: [vpc-1, web]}]",
            "peering `p`: `vpcs`: `vpc-1` and `web` are the same VPC".to_owned(),
        ),
        (
            "tenants: [{name: a}, {name: b}]\nvpcs: [{name: v, tenant: a}, {name: v, tenant: b}]\n\
             peerings: [{name: p, vpcs: [v, web]}]",
            "peering `p`: `tenant`: several tenants have a VPC `v`; give one of them".to_owned(),
        ),
        (
            "vpcs: [{name: web, tenant: red, routes: [{destination: 10.9.0.0/16, target: {peering: p}}]}]",
            neither("route 10.9.0.0/16 in VPC `web`: `target`", "peering `p`"),
        ),
        // The peering is in the file, but its VPCs are others.
        (
            "vpcs: [{name: v, tenant: red, routes: [{destination: 10.9.0.0/16, target: {peering: p}}]}]\n\
             peerings: [{name: p, vpcs: [web, db]}]",
            neither("route 10.9.0.0/16 in VPC `v`: `target`", "peering `p`"),
        ),
    ];
    are_refused(&cases).await;
}

#[tokio::test]
async fn wrong_references_of_pools_and_eips_are_errors() {
    let cases = [
        (
            "public_pools: [{name: p, cluster: far, prefixes: [203.0.113.0/24]}]",
            neither("public pool `p`: `cluster`", "cluster `far`"),
        ),
        ("eips: [{name: e, tenant: blue, pool: world}]", neither("EIP `e`: `tenant`", "tenant `blue`")),
        ("eips: [{name: e, tenant: red, pool: far}]", neither("EIP `e`: `pool`", "public pool `far`")),
        (
            "eips: [{name: e, tenant: red, pool: world, vpc: x, instance: i}]",
            neither("EIP `e`: `vpc`", "VPC `x`"),
        ),
        (
            "eips: [{name: e, tenant: red, pool: world, vpc: web, instance: q}]",
            neither("EIP `e`: `instance`", "instance `q`"),
        ),
        (
            "vpcs: [{name: v, tenant: red, nat_gateway: {name: n, pool: far}}]",
            neither("NAT gateway `n` of VPC `v`: `pool`", "public pool `far`"),
        ),
        (
            "vpcs: [{name: web, tenant: red, instances: [{name: j, subnet: front, host: metal}], nat_gateway: \
             {name: out, pool: world, port_forwards: [{name: f, protocol: tcp, port: 1, instance: j}, \
             {name: g, protocol: tcp, port: 2, instance: i}, {name: h, protocol: udp, port: 1, instance: q}]}}]",
            neither("port forward `h` in VPC `web`: `instance`", "instance `q`"),
        ),
        // The VPC is new, and the instance is in another one.
        (
            "vpcs: [{name: v, tenant: red, nat_gateway: {name: n, pool: world, port_forwards: \
             [{name: f, protocol: tcp, port: 1, instance: i}]}}]",
            neither("port forward `f` in VPC `v`: `instance`", "instance `i`"),
        ),
        (
            "vpcs: [{name: db, tenant: red, nat_gateway: {name: n, pool: world, port_forwards: \
             [{name: f, protocol: tcp, port: 1, instance: inst-1}]}}]",
            "port forward `f` in VPC `db`: `instance`: instance inst-1 is not in vpc-2".to_owned(),
        ),
        ("meters: [{name: m, tenant: blue, in_kbps: 64}]", neither("meter `m`: `tenant`", "tenant `blue`")),
        ("eips: [{name: e, tenant: red, pool: world, meter: x}]", neither("EIP `e`: `meter`", "meter `x`")),
        (
            "vpcs: [{name: v, tenant: red, internet_meter: meter-9}]",
            neither("VPC `v`: `internet_meter`", "meter `meter-9`"),
        ),
        (
            "peerings: [{name: p, tenant: red, vpcs: [web, db], meters: {db: x}}]",
            neither("peering `p`: `meters`", "meter `x`"),
        ),
        (
            "peerings: [{name: p, vpcs: [web, db], meters: {db: gold}}]",
            "peering `p`: `tenant`: give the tenant of the VPCs, to which the meters belong".to_owned(),
        ),
        // The meter belongs to another tenant.
        (
            "tenants: [{name: blue}]\nvpcs: [{name: v, tenant: blue, internet_meter: gold}]",
            neither("VPC `v`: `internet_meter`", "meter `gold`"),
        ),
        (
            "tenants: [{name: blue}]\nmeters: [{name: m, tenant: blue, in_kbps: 64}]\n\
             vpcs: [{name: v, tenant: red, internet_meter: m}]",
            neither("VPC `v`: `internet_meter`", "meter `m`"),
        ),
        // What it is to be attached to is in another VPC: by id, and by name.
        (
            "eips: [{name: e, tenant: red, pool: world, vpc: db, instance: inst-1}]",
            "EIP `e`: `instance`: instance inst-1 is not in vpc-2".to_owned(),
        ),
        (
            "eips: [{name: e, tenant: red, pool: world, vpc: web, subnet: subnet-2}]",
            "EIP `e`: `subnet`: subnet subnet-2 is not in vpc-1".to_owned(),
        ),
        (
            "vpcs: [{name: v, tenant: red}]\neips: [{name: e, tenant: red, pool: world, vpc: v, subnet: front}]",
            neither("EIP `e`: `subnet`", "subnet `front`"),
        ),
    ];
    are_refused(&cases).await;
}

#[tokio::test]
async fn references_to_objects_of_file_and_cloud_are_accepted() {
    let yaml = "
tenants: [{name: blue}]
vpcs:
  - name: web
    tenant: red
    instances: [{name: q, subnet: front, host: metal}, {name: r, subnet: subnet-1, host: 'name:metal'}]
    routes:
      - {destination: 10.8.0.0/16, target: {peering: web-db}}
      - {destination: 10.9.0.0/16, target: {peering: web-app}}
  - name: app
    tenant: tenant-1
    cluster: edge
    subnets: [{name: s, ipv4: 10.9.0.0/24}]
    instances: [{name: a, subnet: 'name:s', host: host-1}]
  - {name: app, tenant: 'name:blue'}
  - {name: x, tenant: blue}
peerings:
  - {name: web-app, tenant: red, vpcs: [vpc-1, app]}
  - {name: app-x, tenant: blue, vpcs: [x, app]}
";
    let total = run(yaml, true).await.unwrap().total();
    assert_eq!((total.created, total.unchanged, total.differing), (12, 1, 0));
}

/// Catches a rule that exists and counts as new, or the other way round, and groups of an instance that are compared in
/// order.
#[tokio::test]
async fn security_groups_are_compared_with_the_cloud() {
    let web = |groups: &str, instances: &str| {
        format!("vpcs: [{{name: web, tenant: red, security_groups: [{groups}], instances: [{instances}]}}]")
    };
    let instance =
        |groups: &str| format!("{{name: i, subnet: front, host: metal, security_groups: [{groups}]}}");
    let known = "{name: ops, rules: [{direction: ingress, family: ipv4, protocol: 6, ports: 22, \
                 remote: {prefix: 0.0.0.0/0}}, {direction: ingress, family: ipv6, remote: {group: default}}]}";
    let tally = async |yaml: &str| {
        let total = run(yaml, true).await.unwrap().total();
        (total.created, total.unchanged, total.differing)
    };
    // The VPC, the group, two rules, the instance.
    assert_eq!(tally(&web(known, &instance("ops, sg-1"))).await, (0, 5, 0));
    assert_eq!(tally(&web("", "{name: i, subnet: front, host: metal}")).await, (0, 2, 0));
    assert_eq!(tally(&web("", &instance("ops"))).await, (0, 1, 1));
    assert_eq!(tally(&web("", &instance(""))).await, (0, 1, 1));
    assert_eq!(tally(&web(&known.replace("22", "23"), "")).await, (1, 3, 0));
    assert_eq!(tally(&web("{name: ops, description: x}", "")).await, (0, 1, 1));
    // Groups that do not exist yet.
    let new = "{name: a, rules: [{direction: ingress, family: ipv4, remote: {group: b}}]}, {name: b}";
    assert_eq!(tally(&web(new, &instance("a, b"))).await, (3, 1, 1));
    let vpc = web(new, "{name: n, subnet: s, host: metal, security_groups: [default, b]}");
    let vpc = vpc.replace("name: web", "name: new, subnets: [{name: s}]");
    assert_eq!(tally(&vpc).await, (6, 0, 0));
}

/// Catches settings of an instance that are not compared, or in order, or although the file does not mention them.
#[tokio::test]
async fn settings_of_instances_are_compared_with_the_cloud() {
    let differing = async |fields: &str| {
        let yaml = format!(
            "vpcs: [{{name: web, tenant: red, instances: [{{name: i, subnet: front, host: metal, {fields}}}]}}]"
        );
        run(&yaml, true).await.unwrap().total().differing
    };
    for (same, other) in [
        ("secondary_addresses: [10.1.0.9, 10.1.0.8]", "secondary_addresses: []"),
        ("delegated_prefixes: [10.244.0.0/24]", "delegated_prefixes: [10.244.0.0/25]"),
        (
            "address_pairs: [{address: 10.1.0.60}]",
            "address_pairs: [{address: 10.1.0.60, mac: '00:00:5e:00:01:05'}]",
        ),
        ("spoofing_protection: true", "spoofing_protection: false"),
        ("qos: {rate_mbps: 10}", "qos: {dscp: 46, rate_mbps: 10}"),
    ] {
        assert_eq!((differing(same).await, differing(other).await), (0, 1), "{same}");
    }
}

/// Catches EIPs that are compared with less than the file says, and those of objects that the file creates.
#[tokio::test]
async fn eips_are_compared_with_the_cloud() {
    let tally = async |yaml: &str| {
        let total = run(yaml, true).await.unwrap().total();
        (total.created, total.unchanged, total.differing)
    };
    let www =
        async |fields: &str| tally(&format!("eips: [{{name: www, tenant: red, pool: world{fields}}}]")).await;
    for same in ["", ", address: 198.51.100.1, family: ipv4", ", vpc: web, instance: i, inside: 10.0.0.2"] {
        assert_eq!(www(same).await, (0, 1, 0), "{same}");
    }
    for other in
        [", address: 198.51.100.2", ", family: ipv6", ", prefix_length: 64", ", vpc: web, subnet: front"]
    {
        assert_eq!(www(other).await, (0, 0, 1), "{other}");
    }
    // One that is not attached is attached, unless something else differs.
    let free = async |fields: &str| {
        let yaml = format!("eips: [{{name: free, tenant: red, pool: world{fields}}}]");
        let total = run(&yaml, true).await.unwrap().total();
        (total.attached, total.unchanged, total.differing)
    };
    assert_eq!(free("").await, (0, 1, 0));
    assert_eq!(free(", vpc: web, instance: i, inside: 10.0.0.2").await, (1, 0, 0));
    assert_eq!(free(", vpc: web, instance: i, address: 198.51.100.8").await, (0, 0, 1));
    let pool =
        |prefixes: &str| format!("public_pools: [{{name: world, cluster: edge, prefixes: [{prefixes}]}}]");
    assert_eq!(tally(&pool("198.51.100.0/24")).await, (0, 1, 0));
    assert_eq!(tally(&pool("203.0.113.0/24")).await, (0, 0, 1));
    let new = "
tenants: [{name: blue}]
public_pools: [{name: new, cluster: edge, prefixes: [203.0.113.0/24]}]
vpcs: [{name: v, tenant: blue, subnets: [{name: s}], instances: [{name: n, subnet: s, host: metal}],
        routes: [{destination: 0.0.0.0/0, target: internet}]}]
eips:
  - {name: a, tenant: blue, pool: new, vpc: v, instance: n}
  - {name: b, tenant: red, pool: world, vpc: web, instance: inst-1}
";
    assert_eq!(tally(new).await, (8, 0, 0));
}

/// Catches meters that are compared with less than the file says, and those that the file creates.
#[tokio::test]
async fn meters_are_compared_with_the_cloud() {
    let tally = async |yaml: &str| {
        let total = run(yaml, true).await.unwrap().total();
        (total.created, total.unchanged, total.differing)
    };
    let gold = async |fields: &str| tally(&format!("meters: [{{name: gold, tenant: red, {fields}}}]")).await;
    assert_eq!(gold("in_kbps: 8000, in_burst: 50000").await, (0, 1, 0));
    for other in
        ["in_kbps: 8000", "in_kbps: 8001, in_burst: 50000", "in_kbps: 8000, in_burst: 50000, out_kbps: 64"]
    {
        assert_eq!(gold(other).await, (0, 0, 1), "{other}");
    }
    let www = async |fields: &str| {
        let silver = "meters: [{name: silver, tenant: red, in_kbps: 64}]";
        tally(&format!("{silver}\neips: [{{name: www, tenant: red, pool: world{fields}}}]")).await
    };
    assert_eq!(www("").await, (1, 1, 0));
    assert_eq!(www(", meter: gold").await, (1, 1, 0));
    assert_eq!(www(", meter: silver").await, (1, 0, 1));
    assert_eq!(tally("vpcs: [{name: web, tenant: red, internet_meter: gold}]").await, (0, 0, 1));
    let peering = async |fields: &str| {
        let silver = "meters: [{name: silver, tenant: red, in_kbps: 64}]";
        tally(&format!("{silver}\npeerings: [{{name: web-db, tenant: red, vpcs: [db, web]{fields}}}]")).await
    };
    assert_eq!(peering("").await, (1, 1, 0));
    assert_eq!(peering(", meters: {web: gold}").await, (1, 1, 0));
    assert_eq!(peering(", meters: {db: gold}").await, (1, 0, 1));
    assert_eq!(peering(", meters: {web: silver}").await, (1, 0, 1));
    let new = "
tenants: [{name: blue}]
meters: [{name: m, tenant: 'name:blue', in_kbps: 64}]
vpcs: [{name: v, tenant: blue, internet_meter: m}, {name: w, tenant: red, internet_meter: gold}]
eips: [{name: e, tenant: red, pool: world, meter: gold}]
";
    assert_eq!(tally(new).await, (5, 0, 0));
}

/// Catches NAT gateways that are compared with less than the file says, and those of objects that the file creates.
#[tokio::test]
async fn nat_gateways_are_compared_with_the_cloud() {
    let tally = async |yaml: &str| {
        let total = run(yaml, true).await.unwrap().total();
        (total.created, total.unchanged, total.differing)
    };
    let out = async |fields: &str| {
        let nat_gateway = format!("{{name: out, pool: world{fields}}}");
        tally(&format!("vpcs: [{{name: web, tenant: red, nat_gateway: {nat_gateway}}}]")).await
    };
    let same = [
        "",
        ", address_count: 2, blocks: 4",
        ", addresses: [198.51.100.3, 198.51.100.2], sessions: 10000",
        ", filtering: endpoint-independent, mapping: endpoint-independent",
    ];
    for same in same {
        assert_eq!(out(same).await, (0, 2, 0), "{same}");
    }
    let others = [
        ", address_count: 1",
        ", addresses: [198.51.100.2]",
        ", sessions: 1",
        ", blocks: 5",
        ", filtering: address-and-port-dependent",
        ", mapping: endpoint-dependent",
    ];
    for other in others {
        assert_eq!(out(other).await, (0, 1, 1), "{other}");
    }
    let new = "
tenants: [{name: blue}]
public_pools: [{name: new, cluster: edge, prefixes: [203.0.113.0/24]}]
vpcs: [{name: v, tenant: blue, nat_gateway: {name: n, pool: new}}]
";
    assert_eq!(tally(new).await, (4, 0, 0));
}
