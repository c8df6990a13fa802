//! Placement through the API: new VPCs, reported loads, plans.

mod common;

use common::{Answer, Cloud, Node, join};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sluice_southbound::proto::{Heartbeat, Hello, Table, TableFill, VniLoad};
use sluice_southbound::{Identity, connect as connect_to};
use std::time::Duration;

/// Creates clusters with one gateway each. Returns the ids of the clusters and of the gateways.
async fn clusters(cloud: &Cloud, count: u8) -> (Vec<String>, Vec<String>) {
    let (mut clusters, mut gateways) = (Vec::new(), Vec::new());
    for number in 1..=count {
        let body = json!({"name": format!("c{number}"), "vips": [format!("198.51.100.{number}")]});
        let cluster = cloud.make("/v1/clusters", body).await;
        let vtep = format!("192.0.2.{number}");
        let body = json!({"name": format!("g{number}"), "cluster": cluster, "vtep4": vtep});
        gateways.push(cloud.make("/v1/gateways", body).await);
        clusters.push(cluster);
    }
    (clusters, gateways)
}

async fn settings(cloud: &Cloud, body: Value) -> Value {
    let answer = cloud.send(cloud.request(Method::PATCH, "/v1/placement/settings").json(&body)).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    answer.body
}

/// Creates a VPC without a cluster. Returns the cluster that was chosen.
async fn place_vpc(cloud: &Cloud, tenant: &str, name: &str) -> String {
    let answer = cloud.post("/v1/vpcs", json!({"name": name, "tenant": tenant})).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    answer.body["cluster"].as_str().unwrap().to_owned()
}

async fn connect(cloud: &Cloud, gateway: &str) -> Node {
    let identity = cloud.enroll(&format!("/v1/gateways/{gateway}")).await;
    join(cloud, &identity, 0, 0).await
}

/// Sends the heartbeat of a gateway with packet counts by VNI.
async fn send_heartbeat(node: &Node, cpu_permille: u32, counts: &[(u64, u64)]) {
    let load = |(vni, packets): &(u64, u64)| VniLoad { vni: *vni as u32, packets: *packets, bytes: 0 };
    let heartbeat = Heartbeat {
        packets: counts.iter().map(|(_, packets)| packets).sum(),
        cpu_permille,
        cells_total: 1 << 20,
        vnis: counts.iter().map(load).collect(),
        vnis_reported: true,
        ..Heartbeat::default()
    };
    node.connection.reports.heartbeat(heartbeat).await.unwrap();
}

/// Sends two heartbeats: one with zero counts, and one with the given packet counts by VNI.
async fn report_traffic(cloud: &Cloud, gateway: &str, node: &Node, counts: &[(u64, u64)]) {
    let nothing: Vec<(u64, u64)> = counts.iter().map(|(vni, _)| (*vni, 0)).collect();
    send_heartbeat(node, 0, &nothing).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    send_heartbeat(node, 500, counts).await;
    let busy = |body: &Value| {
        let all =
            body["clusters"].as_array().unwrap().iter().flat_map(|it| it["gateways"].as_array().unwrap());
        all.into_iter().any(|it| it["id"] == gateway && it["cpu"] == 0.5)
    };
    cloud.wait_until("reported", "/v1/placement", busy).await;
}

#[tokio::test]
async fn new_vpc_is_placed_within_the_limits_of_its_tenant() {
    let cloud = Cloud::start().await;
    let tenants = [
        cloud.make("/v1/tenants", json!({"name": "t1"})).await,
        cloud.make("/v1/tenants", json!({"name": "t2"})).await,
    ];
    let refused = cloud.post("/v1/vpcs", json!({"name": "v", "tenant": tenants[0]})).await;
    assert_eq!(refused.problem(), (422, "invalid", "cluster"));
    let (clusters, _) = clusters(&cloud, 3).await;
    // No demand is measured, so VPCs are counted.
    let mut found = Vec::new();
    for name in ["a", "b", "c"] {
        found.push(place_vpc(&cloud, &tenants[0], name).await);
    }
    found.sort();
    assert_eq!(found, clusters);
    // The same request again returns the same VPC.
    let again = cloud.post("/v1/vpcs", json!({"name": "a", "tenant": tenants[0]})).await;
    assert_eq!(again.status, StatusCode::OK, "{}", again.body);

    let set = settings(&cloud, json!({"clusters_per_tenant": 2})).await;
    assert_eq!((&set["clusters_per_tenant"], &set["water_level"]), (&json!(2), &json!(0.8)));
    let on = [place_vpc(&cloud, &tenants[1], "a").await, place_vpc(&cloud, &tenants[1], "b").await];
    assert_ne!(on[0], on[1]);
    for name in ["c", "d", "e"] {
        assert!(on.contains(&place_vpc(&cloud, &tenants[1], name).await), "a third cluster for one tenant");
    }
    let refused = cloud.post("/v1/vpcs", json!({"name": "x", "tenant": "tenant-999"})).await;
    assert_eq!(refused.problem(), (422, "unknown-reference", "tenant-999"));
    // A given cluster is used even if it exceeds the limit.
    let third = clusters.iter().find(|cluster| !on.contains(cluster)).unwrap();
    let body = json!({"name": "mine", "tenant": tenants[1], "cluster": third});
    assert_eq!(cloud.post("/v1/vpcs", body).await.body["cluster"], *third);
    let is_counted = |body: &Value| body["tenants_over_cluster_limit"] != 0;
    let over = cloud.wait_until("counted", "/v1/placement", is_counted).await;
    assert_eq!(
        over["tenants_over_cluster_limit"], 2,
        "the first tenant was on three clusters before the limit was set"
    );
}

#[tokio::test]
async fn concurrent_creations_are_spread_over_clusters() {
    let cloud = Cloud::start().await;
    let (clusters, _) = clusters(&cloud, 4).await;
    let tenant = cloud.make("/v1/tenants", json!({"name": "t"})).await;
    let names: Vec<String> = (0..40).map(|number| format!("v{number}")).collect();
    let found = futures::future::join_all(names.iter().map(|name| place_vpc(&cloud, &tenant, name))).await;
    for cluster in &clusters {
        assert_eq!(found.iter().filter(|found| *found == cluster).count(), 10, "{found:?}");
    }
}

#[tokio::test]
async fn full_clusters_are_refused_with_the_reason() {
    let cloud = Cloud::start().await;
    let (_, gateways) = clusters(&cloud, 2).await;
    let tenant = cloud.make("/v1/tenants", json!({"name": "t"})).await;
    settings(&cloud, json!({"gateways": {&gateways[0]: 4, &gateways[1]: 4}})).await;
    for name in ["a", "b", "c", "d", "e", "f"] {
        place_vpc(&cloud, &tenant, name).await;
    }
    // Each cluster has three VPCs of one packet a second and a capacity of four; the water level is 0.8.
    let refused = cloud.post("/v1/vpcs", json!({"name": "g", "tenant": tenant})).await;
    assert_eq!(refused.problem(), (507, "no-capacity", "cluster"));
    let detail = refused.body["detail"].as_str().unwrap();
    assert_eq!(
        detail,
        "no cluster has enough capacity: 2 of 2 would be above the water level with 1 more packets/s"
    );
    for (body, field) in [
        (json!({"water_level": 1.5}), "water_level"),
        (json!({"clusters_per_tenant": 0}), "clusters_per_tenant"),
        (json!({"gateways": {"gw-999": 1}}), "gw-999"),
        (json!({"color": 1}), "color"),
    ] {
        let answer = cloud.send(cloud.request(Method::PATCH, "/v1/placement/settings").json(&body)).await;
        assert_eq!((answer.problem().0, answer.problem().2), (422, field), "{}", answer.body);
    }
    settings(&cloud, json!({"gateways": {&gateways[1]: null}})).await;
    place_vpc(&cloud, &tenant, "g").await;
}

#[tokio::test]
async fn capacity_of_a_deleted_gateway_can_be_removed() {
    let cloud = Cloud::start().await;
    let (_, gateways) = clusters(&cloud, 1).await;
    let set = settings(&cloud, json!({"gateways": {&gateways[0]: 4}})).await;
    assert_eq!(set["gateways"], json!({&gateways[0]: 4}));
    let deleted = cloud.delete(&format!("/v1/gateways/{}", gateways[0])).await;
    assert_eq!(deleted.status, StatusCode::OK, "{}", deleted.body);
    let set = settings(&cloud, json!({"gateways": {&gateways[0]: null}})).await;
    assert_eq!(set["gateways"], json!({}));
}

#[tokio::test]
async fn vpc_moves_only_to_a_cluster_whose_tables_can_hold_it() {
    let cloud = Cloud::start().await;
    let (clusters, gateways) = clusters(&cloud, 2).await;
    let tenant = cloud.make("/v1/tenants", json!({"name": "t"})).await;
    let body = json!({"name": "v", "tenant": tenant, "cluster": clusters[0]});
    let vpc = cloud.make("/v1/vpcs", body).await;
    for number in 1..=2 {
        let subnet = json!({"name": format!("s{number}"), "ipv4": format!("10.{number}.0.0/16")});
        cloud.make(&format!("/v1/vpcs/{vpc}/subnets"), subnet).await;
    }
    let node = connect(&cloud, &gateways[1]).await;
    let report = async |capacity: u64| {
        let tables = vec![TableFill { table: Table::Entries as i32, used: 0, capacity }];
        let heartbeat = Heartbeat { tables, ..Heartbeat::default() };
        node.connection.reports.heartbeat(heartbeat).await.unwrap();
        let reported = |body: &Value| body["clusters"][1]["capacity_entries"] == capacity;
        cloud.wait_until("reported", "/v1/placement", reported).await;
    };
    let path = format!("/v1/vpcs/{vpc}");
    let moved =
        async || cloud.send(cloud.request(Method::PATCH, &path).json(&json!({"cluster": clusters[1]}))).await;
    // The VPC needs three entries: its VRF and two subnets.
    report(2).await;
    let refused = moved().await;
    assert_eq!(refused.problem(), (409, "tables-too-small", "cluster"));
    let detail = refused.body["detail"].as_str().unwrap();
    assert_eq!(detail, format!("{} would have 3 entries, but its tables hold only 2", clusters[1]));
    report(3).await;
    let moving = moved().await;
    assert_eq!((moving.status, &moving.body["moving_to"]), (StatusCode::OK, &json!(clusters[1])));
}

/// Two VPCs with subnets, on a cluster with a gateway that reports how full its tables are.
struct FullTables {
    cloud: Cloud,
    node: Node,
    tenant: String,
    cluster: String,
    host: String,
    vpcs: [String; 2],
    subnets: [String; 2],
}

impl FullTables {
    async fn new() -> Self {
        let cloud = Cloud::start().await;
        let (clusters, gateways) = clusters(&cloud, 1).await;
        let node = connect(&cloud, &gateways[0]).await;
        let tenant = cloud.make("/v1/tenants", json!({"name": "t"})).await;
        let host = cloud.make("/v1/hosts", json!({"name": "h", "vtep": "192.0.2.77"})).await;
        let (mut vpcs, mut subnets) = (Vec::new(), Vec::new());
        for (number, ipv6) in [(1, None), (2, Some("2001:db8::/64"))] {
            let body = json!({"name": format!("v{number}"), "tenant": tenant, "cluster": clusters[0]});
            let vpc = cloud.make("/v1/vpcs", body).await;
            let body = json!({"name": "s", "ipv4": format!("10.{number}.0.0/16"), "ipv6": ipv6});
            subnets.push(cloud.make(&format!("/v1/vpcs/{vpc}/subnets"), body).await);
            vpcs.push(vpc);
        }
        let (cluster, vpcs, subnets) =
            (clusters[0].clone(), vpcs.try_into().unwrap(), subnets.try_into().unwrap());
        Self { cloud, node, tenant, cluster, host, vpcs, subnets }
    }

    /// The gateway has everything, and reports space for these numbers of entries, of entries if one is an IPv6 address,
    /// of routes and of VRFs. `used` is a different number for each report.
    async fn report(&self, used: u64, space: [u64; 4]) {
        let [entries, entries_with_ipv6, routes, vrfs] = space;
        let spaces = [
            (Table::Entries, entries),
            (Table::EntriesWithIpv6, entries_with_ipv6),
            (Table::Routes, routes),
            (Table::Vrfs, vrfs),
        ];
        self.report_tables(used, &spaces).await;
    }

    /// The same for these tables.
    async fn report_tables(&self, used: u64, spaces: &[(Table, u64)]) {
        let fill =
            |(table, space): &(Table, u64)| TableFill { table: *table as i32, used, capacity: used + space };
        let tables = spaces.iter().map(fill).collect();
        let tables_revision = self.revision().await;
        let heartbeat = Heartbeat { tables, tables_revision, ..Heartbeat::default() };
        self.node.connection.reports.heartbeat(heartbeat).await.unwrap();
        let reported = |body: &Value| body["items"][0]["tables"][0]["used"] == used;
        self.cloud.wait_until("reported", "/v1/nodes", reported).await;
    }

    /// The revision of the database, which a bulk of nothing returns.
    async fn revision(&self) -> u64 {
        self.create_bulk(&[], 0).await.body["revision"].as_u64().unwrap()
    }

    fn instance(&self, name: &str, vpc: usize) -> Value {
        json!({"name": name, "subnet": self.subnets[vpc], "host": self.host})
    }

    async fn create_instance(&self, name: &str, vpc: usize) -> Answer {
        let path = format!("/v1/vpcs/{}/instances", self.vpcs[vpc]);
        self.cloud.post(&path, self.instance(name, vpc)).await
    }

    async fn create_bulk(&self, names: &[&str], vpc: usize) -> Answer {
        let instances: Vec<Value> = names.iter().map(|name| self.instance(name, vpc)).collect();
        let path = format!("/v1/vpcs/{}/instances/bulk", self.vpcs[vpc]);
        self.cloud.post(&path, json!({"instances": instances})).await
    }

    async fn create_vpc(&self, name: &str, cluster: Option<&str>) -> Answer {
        self.cloud.post("/v1/vpcs", json!({"name": name, "tenant": self.tenant, "cluster": cluster})).await
    }

    async fn create_subnet(&self, name: &str) -> Answer {
        let body = json!({"name": name, "ipv4": "10.9.0.0/16", "ipv6": "2001:db8:9::/64"});
        self.cloud.post(&format!("/v1/vpcs/{}/subnets", self.vpcs[0]), body).await
    }

    async fn create_route(&self, destination: &str) -> Answer {
        let tables = self.cloud.get(&format!("/v1/route-tables?vpc={}", self.vpcs[0])).await.body;
        let path = format!("/v1/route-tables/{}/routes", tables["items"][0]["id"].as_str().unwrap());
        self.cloud.post(&path, json!({"destination": destination, "target": "drop"})).await
    }

    async fn create_peering(&self) -> Answer {
        self.cloud.post("/v1/peerings", json!({"name": "p", "vpcs": self.vpcs})).await
    }

    /// The entries of an attached EIP do not fit when those of two others are there. Nevertheless these
    /// move, and are requested again.
    async fn eips_need_routes(&self) {
        let pool = json!({"name": "p", "cluster": self.cluster, "prefixes": ["203.0.113.0/24"]});
        let pool = self.cloud.make("/v1/public-pools", pool).await;
        let id = async |name, vpc| self.create_instance(name, vpc).await.body["id"].clone();
        let (a, b) = (id("a", 0).await, id("b", 1).await);
        let create = |name: &str, instance: &Value| {
            let body = json!({"name": name, "tenant": self.tenant, "pool": pool, "instance": instance});
            async move { self.cloud.post("/v1/eips", body).await }
        };
        let attach = |eip: String, instance: &Value| {
            let body = json!({"instance": instance});
            let path = format!("/v1/eips/{eip}");
            async move { self.cloud.send(self.cloud.request(Method::PATCH, &path).json(&body)).await }
        };
        self.report(103, [9, 9, 2, 9]).await;
        let web = create("web", &a).await;
        assert_eq!(web.status, StatusCode::CREATED, "{}", web.body);
        self.refused("routes", create("other", &b)).await;
        let spare = create("spare", &Value::Null).await;
        self.refused("routes", attach(spare.id(), &b)).await;
        assert_eq!(create("web", &a).await.status, StatusCode::OK);
        let moved = attach(web.id(), &b).await;
        assert_eq!((moved.status, &moved.body["instance"]), (StatusCode::OK, &b), "{}", moved.body);
    }

    /// The call must be refused because of a table, and change nothing.
    async fn refused(&self, table: &str, call: impl Future<Output = Answer>) {
        let before = self.revision().await;
        let answer = call.await;
        assert_eq!(answer.problem(), (507, "tables-full", self.cluster.as_str()), "{}", answer.body);
        let detail = answer.body["detail"].as_str().unwrap();
        assert!(detail.contains(&format!("table `{table}` of gw-")), "{detail}");
        assert_eq!(self.revision().await, before, "the refused call changed something");
    }
}

#[tokio::test]
async fn what_does_not_fit_is_refused_by_the_name_of_the_table() {
    let full = FullTables::new().await;
    let status = |answer: Answer| (answer.status.as_u16(), answer.body);
    let created = |answer: Answer| assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    // Nothing is refused before the gateway has reported.
    created(full.create_instance("old", 0).await);
    full.report(100, [3, 4, 1, 1]).await;
    // An address, and a host that may be new to the VPC.
    created(full.create_instance("a", 0).await);
    let answer = full.create_instance("b", 0).await;
    let expected = format!(
        "{} cannot hold this: table `entries` of gw-2 has 100 entries in use and certainly holds 103; 2 more \
         were admitted after its report, so 1 are left, and 2 are needed",
        full.cluster
    );
    let detail = answer.body["detail"].as_str().unwrap();
    assert_eq!(detail.replace("gw-3", "gw-2"), expected);
    full.refused("entries", full.create_instance("b", 0)).await;
    full.refused("entries", full.create_bulk(&["b", "c"], 0)).await;
    full.refused("entries", full.create_bulk(&["a", "old", "c"], 0)).await;
    full.refused("entries_with_ipv6", full.create_instance("b", 1)).await;
    // What exists needs nothing more.
    assert_eq!(full.create_instance("a", 0).await.status, StatusCode::OK);
    let (code, bulk) = status(full.create_bulk(&["a", "old"], 0).await);
    assert_eq!((code, &bulk["existing"]), (200, &json!(2)), "{bulk}");

    full.refused("routes", full.create_subnet("s2")).await;
    full.refused("routes", full.create_peering()).await;
    created(full.create_route("192.0.2.0/25").await);
    full.refused("routes", full.create_route("192.0.2.128/25")).await;
    assert_eq!(full.create_route("192.0.2.0/25").await.status, StatusCode::OK);
    full.refused("vrfs", full.create_vpc("v3", Some(&full.cluster))).await;
    full.refused("vrfs", full.create_vpc("v3", None)).await;
    assert_eq!(full.create_vpc("v1", Some(&full.cluster)).await.status, StatusCode::OK);

    // A report of the same revision does not make space for what was created after it; one with more space does.
    full.report(101, [5, 5, 10, 10]).await;
    created(full.create_instance("b", 1).await);
    full.refused("entries_with_ipv6", full.create_bulk(&["c", "d"], 0)).await;
    created(full.create_subnet("s2").await);
    created(full.create_peering().await);
    created(full.create_route("192.0.2.128/25").await);
    created(full.create_vpc("v3", None).await);
    full.eips_need_routes().await;
    full.report(102, [5, 5, 0, 0]).await;
    let (code, bulk) = status(full.create_bulk(&["a", "c", "d"], 0).await);
    assert_eq!((code, &bulk["created"], &bulk["existing"]), (200, &json!(2), &json!(1)), "{bulk}");
    full.refused("vrfs", full.create_vpc("v4", None)).await;
    let tables = &full.cloud.get("/v1/nodes").await.body["items"][0]["tables"];
    let first = json!({"table": "entries", "used": 102, "capacity": 107});
    assert_eq!((tables.as_array().unwrap().len(), &tables[0]), (4, &first));
}

/// Catches addresses of NAT gateways for which a gateway has no numbers: it would never have all entries of its cluster.
#[tokio::test]
async fn nat_gateways_need_numbers_for_their_addresses() {
    let full = FullTables::new().await;
    let pool = json!({"name": "p", "cluster": full.cluster, "prefixes": ["203.0.113.0/24"]});
    let pool = full.cloud.make("/v1/public-pools", pool).await;
    let nat = |vpc: usize, count: u64| {
        let body = json!({"name": "n", "vpc": full.vpcs[vpc], "pool": pool, "address_count": count});
        full.cloud.post("/v1/nat-gateways", body)
    };
    full.report_tables(13, &[(Table::Routes, 99), (Table::Vrfs, 99), (Table::NatAddresses, 3)]).await;
    let first = nat(0, 2).await;
    assert_eq!(first.status, StatusCode::CREATED, "{}", first.body);
    full.refused("nat_addresses", nat(1, 2)).await;
    assert_eq!(nat(1, 1).await.status, StatusCode::CREATED);
    assert_eq!(nat(0, 2).await.status, StatusCode::OK, "it exists");
    let path = format!("/v1/nat-gateways/{}", first.id());
    let patch = |body: Value| full.cloud.send(full.cloud.request(Method::PATCH, &path).json(&body));
    full.refused("nat_addresses", patch(json!({"address_count": 3}))).await;
    // Addresses that are replaced give their numbers to the new ones.
    let replaced = patch(json!({"addresses": ["203.0.113.8", "203.0.113.9"]})).await;
    assert_eq!(replaced.status, StatusCode::OK, "{}", replaced.body);
}

#[tokio::test]
async fn vpcs_go_to_clusters_whose_tables_have_room() {
    let full = FullTables::new().await;
    full.report(100, [50, 50, 50, 0]).await;
    let body = json!({"name": "other", "vips": ["198.51.100.99"]});
    let other = full.cloud.make("/v1/clusters", body).await;
    let body = json!({"name": "g9", "cluster": other, "vtep4": "192.0.2.99"});
    full.cloud.make("/v1/gateways", body).await;
    for name in ["a", "b", "c", "d"] {
        assert_eq!(place_vpc(&full.cloud, &full.tenant, name).await, other);
    }
    let path = format!("/v1/vpcs?name=a&tenant={}", full.tenant);
    let vpc = full.cloud.get(&path).await.body["items"][0]["id"].as_str().unwrap().to_owned();
    let to = json!({"cluster": full.cluster});
    let path = format!("/v1/vpcs/{vpc}");
    let moved = async || full.cloud.send(full.cloud.request(Method::PATCH, &path).json(&to)).await;
    full.refused("vrfs", moved()).await;
    full.report(101, [50, 50, 50, 1]).await;
    assert_eq!(moved().await.status, StatusCode::OK);
    full.refused("vrfs", full.create_vpc("e", Some(&full.cluster))).await;
}

#[tokio::test]
async fn plan_that_is_stopped_can_be_resumed() {
    let cloud = Cloud::start().await;
    let (clusters, gateways) = clusters(&cloud, 2).await;
    for gateway in &gateways {
        settings(&cloud, json!({"gateways": {gateway: 10}})).await;
    }
    let tenant = cloud.make("/v1/tenants", json!({"name": "t"})).await;
    for number in 0..4 {
        let body = json!({"name": format!("v{number}"), "tenant": tenant, "cluster": clusters[0]});
        cloud.make("/v1/vpcs", body).await;
    }
    let plan = cloud.post("/v1/placement/plan", json!({"kind": "rebalance", "tolerance": 0.0})).await.body;
    assert_eq!(plan["steps"], 2, "{plan}");
    let post = async |verb: &str| cloud.post(&format!("/v1/placement/plans/1/{verb}"), json!({})).await;
    assert_eq!(post("stop").await.problem(), (409, "plan-not-applying", "1"));
    assert_eq!(post("apply").await.status, StatusCode::ACCEPTED);
    // No gateway has a stream, so the first step does not end.
    let is_moving =
        |body: &Value| body["items"].as_array().unwrap().iter().any(|it| it["moving_to"].is_string());
    cloud.wait_until("moving", "/v1/vpcs", is_moving).await;
    let stopped = post("stop").await;
    assert_eq!((stopped.status, &stopped.body["state"]), (StatusCode::OK, &json!("stopped")));
    assert_eq!(stopped.body["note"], "stopped by the operator");
    assert_eq!(post("stop").await.problem(), (409, "plan-not-applying", "1"));
    let events = cloud.get("/v1/events?subject=plan-1").await.body;
    assert_eq!(events["items"][0]["kind"], "plan_ended", "{events}");
    assert_eq!(cloud.post("/v1/placement/plans/9/stop", json!({})).await.problem().0, 404);
    let resumed = post("apply").await;
    assert_eq!((&resumed.body["state"], &resumed.body["note"]), (&json!("applying"), &json!("")));
}

#[tokio::test]
async fn reported_traffic_is_the_demand_of_vpcs() {
    let cloud = Cloud::start().await;
    let (clusters, gateways) = clusters(&cloud, 2).await;
    let tenant = cloud.make("/v1/tenants", json!({"name": "t"})).await;
    let mut vnis = Vec::new();
    for name in ["busy", "idle"] {
        let body = json!({"name": name, "tenant": tenant, "cluster": clusters[0]});
        vnis.push(cloud.post("/v1/vpcs", body).await.body["vni"].as_u64().unwrap());
    }
    let node = connect(&cloud, &gateways[0]).await;
    report_traffic(&cloud, &gateways[0], &node, &[(vnis[0], 100_000), (vnis[1], 0)]).await;
    let placement = cloud.get("/v1/placement").await.body;
    assert_eq!(placement["largest"][0]["name"], "busy");
    assert!(placement["largest"][0]["measured"] == true && placement["largest"][1]["measured"] == true);
    let first = &placement["clusters"][0];
    let gateway = &first["gateways"][0];
    assert!(gateway["reporting"] == true && gateway["capacity"] == "estimated", "{gateway}");
    // At half load, the capacity is twice the packet rate.
    let ratio = gateway["capacity_pps"].as_f64().unwrap() / gateway["pps"].as_f64().unwrap();
    assert!((ratio - 2.0).abs() < 0.01, "{gateway}");
    assert_eq!(first["capacity_entries"], 1 << 19);
    let other = &placement["clusters"][1]["gateways"][0];
    assert!(other["reporting"] == false && other["capacity"] == "assumed", "{other}");
    // The next VPC is placed on the cluster without traffic.
    assert_eq!(place_vpc(&cloud, &tenant, "new").await, clusters[1]);
    drop(node);
    let is_forgotten = |body: &Value| body["clusters"][0]["gateways"][0]["reporting"] == false;
    cloud.wait_until("forgotten", "/v1/placement", is_forgotten).await;
}

#[tokio::test]
async fn plans_are_stored_before_anything_moves() {
    let mut cloud = Cloud::start().await;
    let (clusters, gateways) = clusters(&cloud, 3).await;
    let tenant = cloud.make("/v1/tenants", json!({"name": "t"})).await;
    for number in 0..9 {
        let body = json!({"name": format!("v{number}"), "tenant": tenant, "cluster": clusters[0]});
        cloud.make("/v1/vpcs", body).await;
    }
    for (gateway, pps) in gateways.iter().zip([30, 30, 30]) {
        settings(&cloud, json!({"gateways": {gateway: pps}})).await;
    }
    let plan = |kind: &str| json!({"kind": kind, "seed": 5, "tolerance": 0.0});
    let computed = cloud.post("/v1/placement/plan", plan("rebalance")).await;
    assert_eq!(computed.status, StatusCode::CREATED, "{}", computed.body);
    let body = computed.body;
    assert_eq!((&body["state"], &body["steps"], &body["done"]), (&json!("proposed"), &json!(6), &json!(0)));
    assert_eq!((&body["max_load_before"], &body["max_load"]), (&json!(0.3), &json!(0.1)));
    for step in body["moves"].as_array().unwrap() {
        assert_eq!((&step["from"], &step["entries"]), (&json!(clusters[0]), &json!(1)));
        assert!(step["text"].as_str().unwrap().contains("of its packet rate"), "{step}");
        assert_eq!(step["exceeded"], json!([]), "{step}");
    }
    let all = cloud.get("/v1/vpcs").await.body;
    assert!(
        all["items"].as_array().unwrap().iter().all(|vpc| vpc["cluster"] == clusters[0]),
        "nothing moved"
    );
    let solved = cloud.post("/v1/placement/plan", plan("solve")).await.body;
    assert_eq!(
        (&solved["max_load"], &solved["kind"], &solved["id"]),
        (&json!(0.1), &json!("solve"), &json!(2))
    );

    cloud.restart().await;
    let kept = cloud.get("/v1/placement/plans").await.body;
    assert_eq!(kept["items"].as_array().unwrap().len(), 2);
    assert_eq!(cloud.get("/v1/placement/plans/1").await.body, body, "the plan does not change");
    assert_eq!(cloud.get("/v1/placement/plans/9").await.problem(), (404, "not-found", "9"));
    let refused = cloud.post("/v1/placement/plan", json!({"kind": "rebalance", "tolerance": -1})).await;
    assert_eq!(refused.problem(), (422, "invalid", "tolerance"));
    let refused = cloud.post("/v1/placement/plan", json!({"kind": "guess"})).await;
    assert_eq!(refused.problem(), (422, "invalid", "kind"));
    // The demand exceeds the capacity of all clusters.
    settings(&cloud, json!({"water_level": 0.05})).await;
    let refused = cloud.post("/v1/placement/plan", plan("solve")).await;
    assert_eq!(refused.problem(), (507, "no-capacity", "clusters"));
}

/// Runs a gateway that acknowledges every update and reconnects when its stream ends.
fn serve(cloud: &Cloud, identity: Identity) -> tokio::task::JoinHandle<()> {
    let address = cloud.southbound.to_string();
    tokio::spawn(async move {
        loop {
            let hello = Hello { version: "test".into(), ..Hello::default() };
            if let Ok(connection) = connect_to(&identity, &address, hello).await {
                let mut node = Node { connection, database: 0 };
                while let Ok(Some(update)) = node.connection.updates.next().await {
                    if update.revision > 0
                        && node.connection.reports.ack(update.revision, vec![], true).await.is_err()
                    {
                        break;
                    }
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
}

#[tokio::test]
async fn plan_is_applied_across_a_restart_of_the_controller() {
    let mut cloud = Cloud::start().await;
    let (clusters, gateways) = clusters(&cloud, 2).await;
    let mut serving = Vec::new();
    for gateway in &gateways {
        settings(&cloud, json!({"gateways": {gateway: 10}})).await;
        let identity = cloud.enroll(&format!("/v1/gateways/{gateway}")).await;
        serving.push(serve(&cloud, identity));
    }
    let tenant = cloud.make("/v1/tenants", json!({"name": "t"})).await;
    let mut vpcs = Vec::new();
    for number in 0..6 {
        let body = json!({"name": format!("v{number}"), "tenant": tenant, "cluster": clusters[0]});
        vpcs.push(cloud.make("/v1/vpcs", body).await);
    }
    let plan = json!({"kind": "rebalance", "tolerance": 0.0});
    for id in [1, 2] {
        let computed = cloud.post("/v1/placement/plan", plan.clone()).await.body;
        assert_eq!((&computed["id"], &computed["steps"]), (&json!(id), &json!(3)), "{computed}");
    }
    let apply = |id: u64| format!("/v1/placement/plans/{id}/apply");
    assert_eq!(cloud.post(&apply(1), json!({"parallel": 65})).await.problem().0, 422);
    let started = cloud.post(&apply(1), json!({})).await;
    assert_eq!((started.status, &started.body["state"]), (StatusCode::ACCEPTED, &json!("applying")));
    assert_eq!(cloud.post(&apply(2), json!({})).await.problem(), (409, "plan-applying", "1"));
    cloud.wait_until("started", "/v1/placement/plans/1", |body| body["done"] != 0).await;
    cloud.restart().await;
    let done = cloud.wait_until("done", "/v1/placement/plans/1", |body| body["state"] != "applying").await;
    assert_eq!((&done["state"], &done["done"]), (&json!("done"), &json!(3)), "{done}");
    let all = cloud.get("/v1/vpcs").await.body;
    let on = |cluster: &str| {
        let items = all["items"].as_array().unwrap();
        items.iter().filter(|vpc| vpc["cluster"] == cluster && vpc["moving_to"].is_null()).count()
    };
    assert_eq!((on(&clusters[0]), on(&clusters[1])), (3, 3), "{all}");
    assert_eq!(cloud.post(&apply(1), json!({})).await.problem(), (409, "plan-done", "1"));
    let events = cloud.get("/v1/events").await.body;
    let steps: Vec<&Value> =
        events["items"].as_array().unwrap().iter().filter(|event| event["kind"] == "plan_step").collect();
    assert_eq!(steps.len(), 3, "{events}");
    let text = steps[0]["text"].as_str().unwrap();
    assert!(text.contains("step 1 of plan 1") && text.contains("60.0% of its packet rate"), "{text}");

    // The steps of the other plan are already done.
    cloud.post(&apply(2), json!({"parallel": 2})).await;
    let done = cloud.wait_until("over", "/v1/placement/plans/2", |body| body["state"] != "applying").await;
    assert_eq!(done["state"], "done", "{done}");
    serving.into_iter().for_each(|task| task.abort());
}

#[tokio::test]
async fn plan_stops_at_a_vpc_that_was_moved_in_between() {
    let cloud = Cloud::start().await;
    let (clusters, gateways) = clusters(&cloud, 3).await;
    let mut serving = Vec::new();
    for gateway in &gateways {
        settings(&cloud, json!({"gateways": {gateway: 10}})).await;
        let identity = cloud.enroll(&format!("/v1/gateways/{gateway}")).await;
        serving.push(serve(&cloud, identity));
    }
    let tenant = cloud.make("/v1/tenants", json!({"name": "t"})).await;
    for number in 0..3 {
        let body = json!({"name": format!("v{number}"), "tenant": tenant, "cluster": clusters[0]});
        cloud.make("/v1/vpcs", body).await;
    }
    let plan = cloud.post("/v1/placement/plan", json!({"kind": "rebalance", "tolerance": 0.0})).await.body;
    let (vpc, to) = (plan["moves"][0]["vpcs"][0].as_str().unwrap(), &plan["moves"][0]["to"]);
    let third = clusters[1..].iter().find(|cluster| *to != ***cluster).unwrap();
    let path = format!("/v1/vpcs/{vpc}");
    let moved = cloud.send(cloud.request(Method::PATCH, &path).json(&json!({"cluster": third}))).await;
    assert_eq!(moved.status, StatusCode::OK, "{}", moved.body);
    cloud.post("/v1/placement/plans/1/apply", json!({})).await;
    let stopped = cloud.wait_until("over", "/v1/placement/plans/1", |body| body["state"] != "applying").await;
    let note = stopped["note"].as_str().unwrap();
    assert!(stopped["state"] == "stopped" && stopped["done"] == 0, "{stopped}");
    assert!(
        note.starts_with("step 1: ") && note.contains(vpc) && note.ends_with("compute a new plan"),
        "{note}"
    );
    serving.into_iter().for_each(|task| task.abort());
}
