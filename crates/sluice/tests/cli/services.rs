//! Services, their members and their mounts.

use super::*;

#[test]
fn services_are_mounted_by_commands() {
    let site = Site::start();
    let cloud = "
tenants: [{name: red}, {name: blue}]
clusters: [{name: edge, vips: [192.0.2.100]}]
hosts: [{name: h1, vtep: 192.0.2.1}, {name: metal, vtep: 192.0.2.2, agent: false}]
vpcs:
  - name: svc
    tenant: red
    subnets: [{name: s, ipv4: 10.0.0.0/24}]
    instances:
      - {name: fw-1, subnet: s, host: h1}
      - {name: fw-2, subnet: s, host: metal}
  - name: web
    tenant: blue
    subnets: [{name: front, ipv4: 10.1.0.0/24}]
";
    site.ok(&["apply", "-f", &site.file("cloud.yaml", cloud)]);
    let service = site.json(&["services", "create", "fw", "--vpc", "svc"]);
    assert_eq!((&service["name"], &service["allow_all_tenants"]), (&"fw".into(), &false.into()));
    let member =
        |verb: &'static str, instance: &'static str| ["services", verb, "svc/fw", "--instance", instance];
    let added = site.json(&member("add-member", "fw-1"));
    assert_eq!((&added["number"], &added["status"]), (&1.into(), &"waiting".into()));
    assert!(site.fails(1, &member("add-member", "fw-2")).contains("runs no vSwitch"));

    let mount = ["mounts", "create", "m", "--vpc", "web", "--subnet", "front", "--service", "svc/fw"];
    assert!(site.fails(1, &mount).contains("does not permit the tenant of VPC `web`"));
    let update = ["services", "update", "fw", "--vpc", "svc"];
    site.fails(2, &update);
    let permitted = site.json(&[&update[..], &["--allow-tenant", "blue"]].concat());
    assert_eq!(permitted["allow_tenants"].as_array().map(Vec::len), Some(1));
    let made = site.json(&[&mount[..], &["--ipv4", "10.1.0.9"]].concat());
    assert_eq!((&made["ipv4"], &made["service"]), (&"10.1.0.9".into(), &service["id"]));
    let error = site.fails(1, &[&update[..], &["--allow-no-tenants"]].concat());
    assert!(error.contains("mount `m` of VPC `web`"), "{error}");
    site.fails(2, &[&update[..], &["--allow-no-tenants", "--allow-tenant", "blue"]].concat());
    let listed = site.ok(&["mounts", "list", "--service", "svc/fw"]);
    assert!(listed.contains("10.1.0.9"), "{listed}");
    let vnics = site.ok(&["mount", "vnics", "web/m"]);
    assert!(vnics.contains("fw-1") && vnics.contains("waiting"), "{vnics}");

    let drained = site.json(&member("drain-member", "fw-1"));
    assert_eq!(drained["draining"], true);
    let undrained = site.json(&[&member("drain-member", "fw-1")[..], &["--undo"]].concat());
    assert_eq!(undrained["draining"], false);
    assert!(site.ok(&["service", "members", "fw"]).contains("fw-1"));
    assert!(site.fails(1, &["instances", "delete", "fw-1"]).contains("is a member of service `fw`"));
    site.ok(&member("remove-member", "fw-1"));
    site.ok(&["mounts", "delete", "m"]);
    let open = site.json(&[&update[..], &["--allow-no-tenants", "--allow-all-tenants"]].concat());
    assert_eq!((&open["allow_tenants"], &open["allow_all_tenants"]), (&serde_json::json!([]), &true.into()));
    site.ok(&["services", "delete", "fw"]);
}
