//! Services over HTTP, what nodes are sent of them, and the states that hosts and gateways report.

mod common;

use common::{Answer, Basics, Cloud, Node, basics, join};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sluice_southbound::{HostState, MemberState, Port, Update};
use sluice_types::InstanceId;

/// A service whose member is on the host, and a VPC that mounts it.
struct Site {
    cloud: Cloud,
    basics: Basics,
    service: String,
    vm: String,
    mount: String,
}

impl Site {
    async fn start() -> Self {
        let cloud = Cloud::start().await;
        let basics = basics(&cloud).await;
        let service = cloud.make(&format!("/v1/vpcs/{}/services", basics.vpc), json!({"name": "fw"})).await;
        let vm = cloud.make(&basics.instances_path(), basics.instance("vm")).await;
        let red = cloud.make("/v1/vpcs", json!({"name": "red", "tenant": basics.tenant})).await;
        let subnet = json!({"name": "web", "ipv4": "10.1.0.0/24"});
        let subnet = cloud.make(&format!("/v1/vpcs/{red}/subnets"), subnet).await;
        let mount = json!({"name": "m", "subnet": subnet, "service": service});
        let mount = cloud.make(&format!("/v1/vpcs/{red}/mounts"), mount).await;
        Self { cloud, basics, service, vm, mount }
    }

    fn members(&self) -> String {
        format!("/v1/services/{}/members", self.service)
    }

    async fn send(&self, method: Method, path: &str, body: Value) -> Answer {
        self.cloud.send(self.cloud.request(method, path).json(&body)).await
    }

    async fn wait_for_status(&self, status: &str) -> Value {
        let has = |body: &Value| body["items"][0]["status"] == status;
        self.cloud.wait_until(status, &self.members(), has).await["items"][0].clone()
    }
}

#[tokio::test]
async fn services_are_created_changed_and_deleted() {
    let site = Site::start().await;
    let (cloud, path) = (&site.cloud, format!("/v1/services/{}", site.service));
    let created = cloud.get(&path).await.body;
    let expected = json!({"id": site.service, "name": "fw", "vpc": site.basics.vpc, "allow_all_tenants": false,
        "allow_tenants": [], "revision": created["revision"], "programmed": true});
    assert_eq!(created, expected);
    let again = format!("/v1/vpcs/{}/services", site.basics.vpc);
    assert_eq!(cloud.post(&again, json!({"name": "fw"})).await.status, StatusCode::OK);
    assert_eq!(cloud.get("/v1/services?name=fw").await.body["items"], json!([expected]));

    let added = site.send(Method::POST, &site.members(), json!({"instance": site.vm})).await;
    assert_eq!((added.status, &added.body["status"]), (StatusCode::CREATED, &json!("waiting")));
    let again = site.send(Method::POST, &site.members(), json!({"instance": site.vm})).await;
    assert_eq!((again.status, &again.body), (StatusCode::OK, &added.body));
    let listed = cloud.get(&site.members()).await.body;
    assert_eq!(listed["items"], json!([added.body]));
    let vnics = cloud.get(&format!("/v1/mounts/{}/vnics", site.mount)).await.body;
    assert_eq!((&vnics["items"][0]["member"], &vnics["items"][0]["name"]), (&json!(site.vm), &json!("vm")));
    let member = format!("{}/{}", site.members(), site.vm);
    let drained = site.send(Method::PATCH, &member, json!({"draining": true})).await;
    assert_eq!(drained.body["draining"], true);

    let instance = format!("/v1/instances/{}", site.vm);
    assert_eq!(cloud.delete(&instance).await.problem(), (409, "instance-is-member", "fw"));
    assert_eq!(cloud.delete(&path).await.problem(), (409, "in-use", "mount `m`"));
    assert_eq!(cloud.delete(&format!("/v1/mounts/{}", site.mount)).await.status, StatusCode::OK);
    assert_eq!(cloud.delete(&path).await.problem(), (409, "in-use", "member `vm`"));
    assert_eq!(cloud.delete(&member).await.status, StatusCode::OK);
    assert_eq!(cloud.delete(&member).await.problem().0, 404);
    assert_eq!(cloud.delete(&path).await.status, StatusCode::OK);
    assert_eq!(cloud.get(&path).await.problem(), (404, "not-found", site.service.as_str()));
}

#[tokio::test]
async fn other_tenants_need_permission() {
    let site = Site::start().await;
    let cloud = &site.cloud;
    let tenant = cloud.make("/v1/tenants", json!({"name": "other"})).await;
    let vpc = cloud.make("/v1/vpcs", json!({"name": "blue", "tenant": tenant})).await;
    let subnet = json!({"name": "web", "ipv4": "10.2.0.0/24"});
    let subnet = cloud.make(&format!("/v1/vpcs/{vpc}/subnets"), subnet).await;
    let (mounts, body) =
        (format!("/v1/vpcs/{vpc}/mounts"), json!({"name": "m", "subnet": subnet, "service": site.service}));
    assert_eq!(cloud.post(&mounts, body.clone()).await.problem(), (409, "tenant-not-permitted", "blue"));
    let path = format!("/v1/services/{}", site.service);
    let permitted = site.send(Method::PATCH, &path, json!({"allow_tenants": [tenant]})).await;
    assert_eq!(permitted.body["allow_tenants"], json!([tenant]));
    cloud.make(&mounts, body).await;
    let withdrawn = site.send(Method::PATCH, &path, json!({"allow_tenants": []})).await;
    assert_eq!(withdrawn.problem(), (409, "still-mounted", "m"));
}

/// Acknowledges messages until one fits, and returns it.
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

/// Whether a message says that the gateway watches hosts.
fn watches(update: &Update) -> bool {
    update.watched_hosts.as_ref().is_some_and(|hosts| !hosts.is_empty())
}

fn number(id: &str) -> InstanceId {
    id.parse().unwrap()
}

/// Catches a member that gets flows before its host has its vNIC, and one that keeps them on a host that is dead.
#[tokio::test]
async fn members_get_flows_as_hosts_and_gateways_report() {
    let site = Site::start().await;
    let host = site.cloud.enroll(&site.basics.host_path()).await;
    let gateway = site.cloud.enroll(&site.basics.gateway_path()).await;
    let (mut host, mut gateway) =
        (join(&site.cloud, &host, 0, 0).await, join(&site.cloud, &gateway, 0, 0).await);
    let first = until(&mut gateway, |update| !update.services.is_empty()).await;
    assert!(first.services[0].members.is_empty() && first.service_addresses.len() == 1, "{first:?}");
    host.acked_step().await;
    site.send(Method::POST, &site.members(), json!({"instance": site.vm})).await;
    let watched = until(&mut gateway, watches).await;
    assert_eq!(watched.watched_hosts, Some(vec!["192.0.2.21".parse().unwrap()]));

    let vm = number(&site.vm);
    let up = |up: bool| vec![MemberState { instance: vm, up, evidence: "3 of 3".to_owned() }];
    host.connection.reports.members(up(true)).await.unwrap();
    let has_vnic = |update: &Update| update.ports.iter().any(|port: &Port| port.options.bonded);
    let ports = until(&mut host, has_vnic).await.ports;
    assert!(ports.iter().any(|port| port.instance == vm && port.options.member.is_some()), "{ports:?}");
    site.wait_for_status("up").await;
    let chosen = until(&mut gateway, |update| !update.services.is_empty()).await;
    let [member] = chosen.services[0].members[..] else { panic!("{chosen:?}") };
    assert!(member.selected && member.number == 1);

    host.connection.reports.members(up(false)).await.unwrap();
    assert_eq!(site.wait_for_status("vm_silent").await["evidence"], "3 of 3");
    host.connection.reports.members(up(true)).await.unwrap();
    site.wait_for_status("up").await;
    let reach =
        |reachable: bool| vec![HostState { host: member.host, reachable, evidence: "0 of 5".to_owned() }];
    gateway.connection.reports.hosts(reach(false)).await.unwrap();
    assert_eq!(site.wait_for_status("host_unreachable").await["evidence"], "0 of 5");
    gateway.connection.reports.hosts(reach(true)).await.unwrap();
    site.wait_for_status("up").await;
    let events = site.cloud.get(&format!("/v1/events?subject={}", site.service)).await.body;
    let kinds: Vec<_> =
        events["items"].as_array().unwrap().iter().map(|event| event["kind"].clone()).collect();
    let expected = ["member_added", "member_up", "member_down", "member_up", "member_down", "member_up"];
    assert_eq!(kinds, expected);
}
