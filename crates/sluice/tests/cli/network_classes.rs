//! Network classes, and the instances that have them.

use super::*;

#[test]
fn network_classes_by_file_and_by_commands() {
    let site = Site::start();
    let cloud = "
tenants: [{name: red}]
clusters: [{name: edge, vips: [192.0.2.100]}]
hosts: [{name: metal, vtep: 192.0.2.1, agent: false}]
network_classes: [{name: gold, mbps: {base: 100, max: 400, clamp: 200, credit: 3000}}]
vpcs:
  - name: web
    tenant: red
    subnets: [{name: front, ipv4: 10.0.0.0/24}]
    instances:
      - {name: a, subnet: front, host: metal, network_class: gold}
      - {name: b, subnet: front, host: metal}
";
    let file = site.file("cloud.yaml", cloud);
    assert!(site.ok(&["apply", "-f", &file]).ends_with("8 created, 0 unchanged\n"));
    assert!(site.ok(&["apply", "-f", &file]).ends_with("0 created, 8 unchanged\n"));
    let bad = cloud.replace("network_class: gold", "network_class: lead");
    let error = site.fails(2, &["apply", "-f", &site.file("bad.yaml", &bad)]);
    assert!(error.contains("instance `a` in VPC `web`: `network_class`: neither the file"), "{error}");
    let gold = site.json(&["network-class", "show", "gold"]);
    let id = |class: &str| site.json(&["network-classes", "show", class])["id"].clone();
    let class = |vm: &str| site.json(&["instances", "show", vm])["network_class"].clone();
    assert_eq!((class("a"), class("b")), (gold["id"].clone(), Value::Null));

    let create = ["network-classes", "create", "silver"];
    let limits =
        ["--kpps", "base=10,max=40,clamp=20,credit=0", "--cpu", "base=100,max=2000,clamp=500,credit=60000"];
    let silver = site.json(&[&create[..], &limits].concat());
    let kpps = serde_json::json!({"base": 10, "max": 40, "clamp": 20, "credit": 0});
    assert_eq!((&silver["mbps"], &silver["kpps"]), (&Value::Null, &kpps));
    assert_eq!(silver["cpu_permille"]["max"], 2000);
    assert!(site.fails(2, &create).contains("--mbps"));
    let error = site.fails(2, &[&create[..], &["--mbps", "base=10,max=40"]].concat());
    assert!(error.contains("`clamp` is missing"), "{error}");
    let error = site.fails(1, &["network-class", "create", "x", "--mbps", "base=9,max=4,clamp=9,credit=0"]);
    assert!(error.contains("mbps.base is 9"), "{error}");
    let listed = site.ok(&["network-classes", "list"]);
    assert!(listed.contains("base=10,max=40,clamp=20,credit=0"), "{listed}");

    let new = ["instances", "create", "c", "--vpc", "web", "--subnet", "front", "--host", "metal"];
    let made = site.json(&[&new[..], &["--network-class", "silver"]].concat());
    assert_eq!(made["network_class"], silver["id"]);
    site.fails(2, &[&new[..], &["--network-class", "silver", "--rate-mbps", "10"]].concat());
    let set = ["instances", "set-qos"];
    let error = site.fails(1, &[&set[..], &["a", "--rate-mbps", "10"]].concat());
    assert!(error.contains("either a rate or a network class"), "{error}");
    let rated = site.json(&[&set[..], &["a", "--rate-mbps", "10", "--network-class", "none"]].concat());
    assert_eq!((&rated["qos"]["rate_mbps"], &rated["network_class"]), (&10.into(), &Value::Null));
    site.json(&[&set[..], &["a", "--rate-mbps", "unlimited", "--network-class", "silver"]].concat());
    assert_eq!(class("a"), id("silver"));

    let is_default = |class: &str| site.json(&["network-classes", "show", class])["is_default"].clone();
    let set_default = |class: &str, option: &str| site.json(&["network-class", "update", class, option]);
    assert_eq!(set_default("silver", "--default")["is_default"], true);
    let tin =
        ["network-classes", "create", "default-tin", "--kpps", "base=1,max=1,clamp=1,credit=0", "--default"];
    assert_eq!(site.json(&tin)["is_default"], true);
    assert_eq!((is_default("silver"), is_default("default-tin")), (false.into(), true.into()));
    assert_eq!(set_default("default-tin", "--no-default")["is_default"], false);
    site.fails(2, &["network-class", "update", "silver", "--default", "--no-default"]);
    let update = ["network-class", "update", "silver"];
    let changed = site.json(&[&update[..], &["--kpps", "none", "--name", "tin"]].concat());
    assert_eq!((&changed["kpps"], &changed["name"]), (&Value::Null, &"tin".into()));
    assert!(
        site.fails(1, &["network-class", "update", "tin", "--cpu", "none"]).contains("nothing is limited")
    );
    site.fails(2, &update);
    let error = site.fails(1, &["network-class", "delete", "tin"]);
    assert!(error.contains("2 instances, one of which is instance `a`"), "{error}");
    site.ok(&["network-class", "delete", "gold"]);
}
