//! Nodes connected to the controller over real TLS.

mod common;

use common::{Basics, Cloud, PATIENCE, basics, code, join};
use reqwest::{Method, StatusCode};
use serde_json::json;
use sluice_southbound::proto::Hello;
use sluice_southbound::{
    CertificateAuthority, Endpoint, EnrollmentBundle, Identity, Missing, Node as NodeName, Update, connect,
    enroll,
};
use sluice_types::{EntryKey, Vni};
use std::net::IpAddr;
use std::time::{Duration, Instant};

fn endpoints(step: &[Update]) -> Vec<Endpoint> {
    step.iter().flat_map(|part| part.endpoints.clone()).collect()
}

async fn create(cloud: &Cloud, basics: &Basics, name: &str) -> String {
    cloud.make(&basics.instances_path(), basics.instance(name)).await
}

#[tokio::test]
async fn enrollment_token_is_valid_once() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let bundle = cloud.bundle(&basics.gateway_path()).await;
    assert_eq!((bundle.node.as_str(), bundle.role.as_str()), (basics.gateway.as_str(), "gateway"));
    assert_eq!(bundle.controller, cloud.southbound.to_string());

    let guess = EnrollmentBundle { token: "0".repeat(64), ..bundle.clone() };
    let error = enroll(&guess, &cloud.state_dir("guess")).await.unwrap_err();
    assert_eq!(code(&error), "Unauthenticated");

    let dir = cloud.state_dir("node");
    let identity = enroll(&bundle, &dir).await.unwrap();
    assert_eq!(identity.node().unwrap().id(), basics.gateway);
    assert_eq!(Identity::load(&dir).unwrap(), Some(identity));
    let error = enroll(&bundle, &cloud.state_dir("again")).await.unwrap_err();
    assert_eq!(code(&error), "Unauthenticated");
    assert!(error.is_refusal());
}

#[tokio::test]
async fn invalid_request_does_not_use_up_the_token() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let bundle = cloud.bundle(&basics.host_path()).await;
    // The bundle has the certificate of another authority: the node must not send its token.
    let other = CertificateAuthority::create().unwrap();
    let misled = EnrollmentBundle { ca_pem: other.certificate_pem().to_owned(), ..bundle.clone() };
    let error = enroll(&misled, &cloud.state_dir("misled")).await.unwrap_err();
    assert!(matches!(error, sluice_southbound::Error::Connect { .. }), "{error:?}");
    // A state directory that cannot be written.
    std::fs::write(cloud.state_dir("file"), "").unwrap();
    assert!(enroll(&bundle, &cloud.state_dir("file")).await.is_err());
    enroll(&bundle, &cloud.state_dir("node")).await.unwrap();
}

#[tokio::test]
async fn hosts_without_agent_cannot_enroll() {
    let cloud = Cloud::start().await;
    basics(&cloud).await;
    let host = json!({"name": "foreign", "vtep": "192.0.2.99", "agent": false});
    let host = cloud.make("/v1/hosts", host).await;
    let answer = cloud.post(&format!("/v1/hosts/{host}/enrollment"), json!({})).await;
    assert_eq!(answer.problem(), (409, "no-agent", host.as_str()));
}

#[tokio::test]
async fn stream_needs_a_certificate_of_this_controller() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let bundle = cloud.bundle(&basics.gateway_path()).await;
    let node: NodeName = format!("gateway:{}", basics.gateway).parse().unwrap();
    let controller = cloud.southbound.to_string();

    // Without a certificate.
    let error = common::anonymous_watch(&bundle).await;
    assert_eq!(error.code(), tonic::Code::Unauthenticated);

    // With a certificate of another authority for the same name.
    let other = CertificateAuthority::create().unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let request = rcgen::CertificateParams::default().serialize_request(&key).unwrap().pem().unwrap();
    let forged = other.sign_csr(&request, node).unwrap();
    let forged = Identity::new(&bundle, node, forged, key.serialize_pem());
    assert!(connect(&forged, &controller, Hello::default()).await.is_err());

    // With a valid certificate of a gateway that is then deleted. A cluster with VPCs needs another gateway.
    let spare =
        json!({"name": "spare", "cluster": basics.cluster, "vtep4": "192.0.2.98", "vtep6": "fd00::98"});
    cloud.make("/v1/gateways", spare).await;
    let identity = cloud.enroll(&basics.gateway_path()).await;
    let mut node = join(&cloud, &identity, 0, 0).await;
    node.acked_step().await;
    let path = basics.gateway_path();
    assert_eq!(cloud.delete(&path).await.status, StatusCode::OK);
    let error = node.end().await.expect("a reason");
    assert_eq!(code(&error), "PermissionDenied");
    let error = connect(&identity, &controller, Hello::default()).await.err().expect("a refusal");
    assert_eq!(code(&error), "PermissionDenied");
}

#[tokio::test]
async fn new_gateway_gets_a_snapshot_and_then_deltas() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    create(&cloud, &basics, "vm1").await;
    let identity = cloud.enroll(&basics.gateway_path()).await;
    let mut node = join(&cloud, &identity, 0, 0).await;
    let (first, step) = node.acked_step().await;
    assert!(step.iter().all(|part| part.snapshot));
    assert!(step[..step.len() - 1].iter().all(|part| part.revision == 0));
    assert_eq!(endpoints(&step).len(), 1);
    let all = |step: &[Update], count: fn(&Update) -> usize| step.iter().map(count).sum::<usize>();
    assert_eq!(all(&step, |part| part.vips.len()), 2);
    assert_eq!(all(&step, |part| part.routes.len()), 2);
    assert_eq!(all(&step, |part| part.vteps.len()), 1 + 2, "of the host, and its own");

    let vm2 = create(&cloud, &basics, "vm2").await;
    let (second, step) = node.acked_step().await;
    assert!(second > first && step.iter().all(|part| !part.snapshot));
    let added = endpoints(&step);
    assert_eq!(added.len(), 1);

    cloud.delete(&format!("/v1/instances/{vm2}")).await;
    let (third, step) = node.acked_step().await;
    assert!(third > second);
    assert_eq!(step[0].removed_endpoints, [added[0].key()]);
}

#[tokio::test]
async fn returning_gateway_gets_the_missing_deltas() {
    let mut cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let identity = cloud.enroll(&basics.gateway_path()).await;
    let mut node = join(&cloud, &identity, 0, 0).await;
    let (revision, _) = node.acked_step().await;
    let database = node.database;
    drop(node);
    create(&cloud, &basics, "vm1").await;

    let mut node = join(&cloud, &identity, revision, database).await;
    let (revision, step) = node.acked_step().await;
    assert!(step.iter().all(|part| !part.snapshot), "the log still has the missing steps");
    assert_eq!(endpoints(&step).len(), 1);
    drop(node);

    // Also after a restart of the controller.
    create(&cloud, &basics, "vm2").await;
    cloud.restart().await;
    let mut node = join(&cloud, &identity, revision, database).await;
    let (_, step) = node.acked_step().await;
    assert!(step.iter().all(|part| !part.snapshot), "instances alone need no snapshot");
    assert_eq!(endpoints(&step).len(), 1);
    drop(node);

    // But not if the tables belong to another database, or are newer than this one.
    for (applied, database) in [(revision, database ^ 1), (1 << 40, database)] {
        let mut node = join(&cloud, &identity, applied, database).await;
        let step = node.step().await;
        assert!(step.iter().all(|part| part.snapshot));
        assert_eq!(endpoints(&step).len(), 2);
    }
}

#[tokio::test]
async fn host_gets_only_its_own_ports() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let other = cloud.make("/v1/hosts", json!({"name": "h2", "vtep": "fd00::22"})).await;
    let identity = cloud.enroll(&basics.host_path()).await;
    let mut node = join(&cloud, &identity, 0, 0).await;
    let (_, step) = node.acked_step().await;
    assert!(step.iter().all(|part| part.vrfs.is_empty() && part.ports.is_empty()));
    let groups: Vec<_> = step.iter().flat_map(|part| part.groups.clone()).collect();
    assert_eq!(groups.len(), 1);
    assert_eq!(groups[0].vips, ["192.0.2.10".parse::<std::net::IpAddr>().unwrap()]);

    let elsewhere = json!({"name": "vm0", "subnet": basics.subnet, "host": other});
    cloud.make(&basics.instances_path(), elsewhere).await;
    let vm = create(&cloud, &basics, "vm1").await;
    let (_, step) = node.acked_step().await;
    assert_eq!(step.iter().map(|part| part.ports.len()).sum::<usize>(), 1);
    let last = step.last().unwrap();
    assert_eq!((last.ports[0].name.as_str(), last.vrfs.len()), ("v/vm1", 1));

    // Ports contain the MTU of the VPC, so they are sent again.
    let patch = cloud.request(Method::PATCH, &format!("/v1/vpcs/{}", basics.vpc));
    assert_eq!(cloud.send(patch.json(&json!({"mtu": 1400}))).await.status, StatusCode::OK);
    let (_, step) = node.acked_step().await;
    let ports: Vec<_> = step.iter().flat_map(|part| part.ports.clone()).collect();
    assert!(step[0].snapshot && ports.len() == 1 && ports[0].mtu == 1400);

    cloud.delete(&format!("/v1/instances/{vm}")).await;
    let (_, step) = node.acked_step().await;
    assert_eq!(step.iter().map(|part| part.removed_ports.len()).sum::<usize>(), 1);
    assert_eq!(step.iter().map(|part| part.removed_vnis.len()).sum::<usize>(), 1);
}

/// Catches: a controller that looks at a node without entries only when nothing has changed for a while, so that under
/// steady change the node seems to stand still; and one that sends each host every revision.
#[tokio::test]
async fn node_without_entries_makes_progress_under_steady_change() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let identity = cloud.enroll(&basics.host_path()).await;
    let mut node = join(&cloud, &identity, 0, 0).await;
    let (first, _) = node.acked_step().await;
    // VPCs that have no instance on this host.
    let changes = async {
        for number in 0..100 {
            let vpc = json!({"name": format!("other-{number}"), "tenant": basics.tenant});
            cloud.make("/v1/vpcs", vpc).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let progresses = |nodes: &serde_json::Value| {
        let host = nodes["items"].as_array().unwrap().iter().find(|node| node["role"] == "host").unwrap();
        host["acknowledged_revision"].as_u64() > Some(first)
    };
    tokio::select! {
        update = node.next() => panic!("a message about networks of others: {update:?}"),
        _ = cloud.wait_until("progress", "/v1/nodes", progresses) => {}
        () = changes => panic!("revision {first} is still the latest that the host has"),
    }
}

#[tokio::test]
async fn instance_is_programmed_when_gateways_and_host_acknowledged_it() {
    let mut cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let gateway = cloud.enroll(&basics.gateway_path()).await;
    let host = cloud.enroll(&basics.host_path()).await;
    let path = format!("/v1/instances/{}", create(&cloud, &basics, "vm1").await);
    let programmed = |body: &serde_json::Value| body["programmed"] == true;
    assert!(!programmed(&cloud.get(&path).await.body));

    let mut gateway_node = join(&cloud, &gateway, 0, 0).await;
    let (revision, _) = gateway_node.acked_step().await;
    let vpc_path = format!("/v1/vpcs/{}", basics.vpc);
    cloud.wait_until("the VPC programmed", &vpc_path, programmed).await;
    assert!(!programmed(&cloud.get(&path).await.body), "its host has not acknowledged it");
    let mut host_node = join(&cloud, &host, 0, 0).await;
    host_node.acked_step().await;
    cloud.wait_until("the instance programmed", &path, programmed).await;

    let body = cloud.get("/v1/nodes").await.body;
    let nodes = body["items"].as_array().unwrap();
    assert_eq!(nodes.len(), 2);
    assert!(nodes.iter().all(|node| node["connected"] == true && node["version"] == "test"));

    // Acknowledgments are stored, also across a restart.
    let database = gateway_node.database;
    tokio::time::sleep(Duration::from_millis(300)).await;
    cloud.restart().await;
    cloud.wait_until("still programmed", &path, programmed).await;
    let body = cloud.get("/v1/nodes").await.body;
    assert!(body["items"].as_array().unwrap().iter().all(|node| node["connected"] == false));
    // A gateway that is offline still counts.
    let late = format!("/v1/instances/{}", create(&cloud, &basics, "vm2").await);
    assert!(!programmed(&cloud.get(&late).await.body));
    let mut gateway_node = join(&cloud, &gateway, revision, database).await;
    gateway_node.acked_step().await;
    let mut host_node = join(&cloud, &host, 0, 0).await;
    host_node.acked_step().await;
    cloud.wait_until("the late instance programmed", &late, programmed).await;
}

#[tokio::test]
async fn failures_are_shown_until_a_snapshot_is_written() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let identity = cloud.enroll(&basics.gateway_path()).await;
    let mut node = join(&cloud, &identity, 0, 0).await;
    let step = node.step().await;
    let revision = step.last().unwrap().revision;
    node.connection.reports.ack(revision, vec!["endpoint table full".into()], false).await.unwrap();
    let failed = |body: &serde_json::Value| body["items"][0]["failures"][0] == "endpoint table full";
    cloud.wait_until("the failure shown", "/v1/nodes", failed).await;

    // A change without entries for any node.
    cloud.make("/v1/tenants", json!({"name": "another"})).await;
    let mark = node.next().await;
    assert!(mark.is_empty() && mark.revision > revision);
    node.connection.reports.ack(mark.revision, Vec::new(), false).await.unwrap();
    // The missing entries are still missing.
    let missing = format!("entries of revision {revision} or before could not be written");
    let current = |body: &serde_json::Value| {
        let node = &body["items"][0];
        node["acknowledged_revision"] == node["current"] && node["failures"] == json!([missing])
    };
    cloud.wait_until("the gateway current", "/v1/nodes", current).await;
    // The failures are removed after a complete snapshot.
    drop(node);
    let mut node = join(&cloud, &identity, 0, 0).await;
    node.acked_step().await;
    let whole = |body: &serde_json::Value| body["items"][0]["failures"] == json!([]);
    cloud.wait_until("the gateway whole", "/v1/nodes", whole).await;
    // Or when the node reports that it has written the rest.
    cloud.make("/v1/tenants", json!({"name": "third"})).await;
    let revision = node.next().await.revision;
    node.connection.reports.ack(revision, vec!["endpoint table full".into()], false).await.unwrap();
    cloud.wait_until("the failure shown", "/v1/nodes", failed).await;
    node.connection.reports.ack(revision, Vec::new(), true).await.unwrap();
    cloud.wait_until("the gateway whole again", "/v1/nodes", whole).await;
}

/// Catches an instance that counts as programmed although a gateway or its host could not write one of its entries, and
/// others that do not although theirs are written.
#[tokio::test]
async fn objects_with_missing_entries_are_not_programmed_and_name_them() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let gateway = cloud.enroll(&basics.gateway_path()).await;
    let host = cloud.enroll(&basics.host_path()).await;
    let paths = [create(&cloud, &basics, "vm1").await, create(&cloud, &basics, "vm2").await];
    let paths = paths.map(|id| format!("/v1/instances/{id}"));
    let vpc = format!("/v1/vpcs/{}", basics.vpc);
    let vni = Vni::new(cloud.get(&vpc).await.body["vni"].as_u64().unwrap() as u32).unwrap();
    let address = cloud.get(&paths[0]).await.body["ipv4"].as_str().unwrap().parse::<IpAddr>().unwrap();
    let mut host = join(&cloud, &host, 0, 0).await;
    host.acked_step().await;
    let mut node = join(&cloud, &gateway, 0, 0).await;
    let revision = node.step().await.last().unwrap().revision;
    let reports = node.connection.reports.clone();
    let report = async |entries: &[EntryKey], others| {
        let entries = entries.iter().map(|key| (*key, "the memory is full".to_owned())).collect();
        reports.missing(Missing { entries, others }).await.unwrap();
        reports.ack(revision, vec!["1 entry failed".into()], false).await.unwrap();
    };
    report(&[EntryKey::Endpoint(vni, address)], false).await;
    let programmed = |body: &serde_json::Value| body["programmed"] == true;
    cloud.wait_until("the other instance programmed", &paths[1], programmed).await;
    cloud.wait_until("the VPC programmed", &vpc, programmed).await;
    let first = cloud.get(&paths[0]).await.body;
    assert_eq!(first["programmed"], false);
    let failure = json!({
        "node": basics.gateway, "entry": format!("endpoint {address} of VNI {vni}"), "reason": "the memory is full",
    });
    assert_eq!(first["failures"], json!([failure]));
    let listed = cloud.get("/v1/instances").await.body;
    assert_eq!(listed["items"][0]["failures"], json!([failure]));
    assert!(listed["items"][1].get("failures").is_none(), "{listed}");

    // Entries without names may be of any object.
    report(&[], true).await;
    let unnamed = |body: &serde_json::Value| {
        body["programmed"] == false && body["failures"][0]["reason"] == "1 entry failed"
    };
    cloud.wait_until("no instance programmed", &paths[1], unnamed).await;
    report(&[EntryKey::Vrf(vni)], false).await;
    let vrf = |body: &serde_json::Value| body["failures"][0]["entry"] == format!("VRF of VNI {vni}");
    for path in [&vpc, &paths[0], &paths[1]] {
        cloud.wait_until("the VRF named", path, vrf).await;
    }
    reports.missing(Missing::default()).await.unwrap();
    reports.ack(revision, Vec::new(), true).await.unwrap();
    cloud.wait_until("the instance programmed", &paths[0], programmed).await;

    let key = EntryKey::Port(vni, address);
    let missing = Missing { entries: [(key, "no interface".to_owned())].into(), others: false };
    host.connection.reports.missing(missing).await.unwrap();
    host.connection.reports.ack(1, vec!["1 entry failed".into()], false).await.unwrap();
    let port = |body: &serde_json::Value| {
        body["failures"][0]["entry"] == key.to_string() && body["programmed"] == false
    };
    cloud.wait_until("the port named", &paths[0], port).await;
    assert_eq!(cloud.get(&paths[1]).await.body["programmed"], true);
}

#[tokio::test]
async fn second_stream_ends_the_first_and_wrong_acknowledgements_end_a_stream() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let identity = cloud.enroll(&basics.gateway_path()).await;
    let mut first = join(&cloud, &identity, 0, 0).await;
    first.acked_step().await;
    let mut second = join(&cloud, &identity, 0, 0).await;
    assert_eq!(code(&first.end().await.unwrap()), "Aborted");
    let (revision, _) = second.acked_step().await;
    second.ack(revision + 1000).await;
    assert_eq!(code(&second.end().await.unwrap()), "InvalidArgument");
    let path = format!("/v1/vpcs/{}", basics.vpc);
    cloud.wait_until("programmed", &path, |body| body["programmed"] == true).await;
}

#[tokio::test]
async fn change_reaches_a_gateway_at_once() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let identity = cloud.enroll(&basics.gateway_path()).await;
    let mut node = join(&cloud, &identity, 0, 0).await;
    node.acked_step().await;
    let mut best = PATIENCE;
    for i in 0..20 {
        create(&cloud, &basics, &format!("vm{i}")).await;
        let committed = Instant::now();
        node.acked_step().await;
        best = best.min(committed.elapsed());
    }
    // The machine may be busy, so the fastest counts. Polling alone would never be this fast.
    assert!(best < Duration::from_millis(50), "{best:?}");
}

#[tokio::test]
async fn bulk_creation_arrives_as_one_step_and_is_timed() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let identity = cloud.enroll(&basics.gateway_path()).await;
    let mut node = join(&cloud, &identity, 0, 0).await;
    node.acked_step().await;
    let count = 20_000;
    let many: Vec<_> = (0..count).map(|i| basics.instance(&format!("vm{i}"))).collect();
    let path = format!("{}/bulk", basics.instances_path());
    let answer = cloud.post(&path, json!({"instances": many})).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert_eq!((&answer.body["created"], &answer.body["existing"]), (&json!(count), &json!(0)));
    let (revision, step) = node.acked_step().await;
    assert_eq!(answer.body["revision"], revision);
    assert_eq!(endpoints(&step).len(), count);
    assert!(step.len() > 1, "the step has several messages");

    let metrics = || async {
        let text = cloud.get("/metrics").await.body;
        text.as_str().unwrap_or_default().to_owned()
    };
    let deadline = Instant::now() + PATIENCE;
    let text = loop {
        let text = metrics().await;
        if text.contains("sluice_controller_bulks_total 1") {
            break text;
        }
        assert!(Instant::now() < deadline, "the bulk creation was not timed: {text}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    for stage in ["parse", "store", "read", "compile", "send", "ack", "total"] {
        assert!(text.contains(&format!("bulk_stage_seconds{{stage=\"{stage}\"}}")), "{stage}: {text}");
    }
    assert!(text.contains(&format!("sluice_controller_bulk_instances {count}")));
    // The same request again creates nothing.
    let answer = cloud.post(&path, json!({"instances": many[..10]})).await;
    assert_eq!((&answer.body["created"], &answer.body["existing"]), (&json!(0), &json!(10)));
}
