//! Public addresses, NAT gateways, port forwards and meters.

use super::*;

#[test]
fn nat_gateways_by_file_and_by_commands() {
    let site = Site::start();
    let cloud = "
tenants: [{name: red}]
clusters: [{name: edge, vips: [192.0.2.100]}]
public_pools: [{name: world, cluster: edge, prefixes: [198.51.100.0/24]}]
vpcs:
  - {name: web, tenant: red, nat_gateway: {name: out, pool: world, address_count: 2, filtering: endpoint-independent}}
  - {name: db, tenant: red}
";
    let file = site.file("cloud.yaml", cloud);
    assert!(site.ok(&["apply", "-f", &file]).ends_with("6 created, 0 unchanged\n"));
    assert!(site.ok(&["apply", "-f", &file]).ends_with("0 created, 6 unchanged\n"));
    let out = site.json(&["nat-gateway", "show", "out"]);
    assert_eq!(out["addresses"], serde_json::json!(["198.51.100.1", "198.51.100.2"]));
    assert_eq!((&out["filtering"], &out["sessions"]), (&"endpoint-independent".into(), &10_000.into()));

    let create = ["nat-gateway", "create", "out", "--vpc", "red/db", "--pool", "world"];
    let addresses =
        ["--address", "198.51.100.9", "--address", "198.51.100.8", "--sessions", "500", "--blocks", "2"];
    let made = site.json(&[&create[..], &addresses].concat());
    assert_eq!(made["addresses"], serde_json::json!(["198.51.100.8", "198.51.100.9"]));
    assert_eq!((&made["sessions"], &made["blocks"]), (&500.into(), &2.into()));
    let error = site.fails(2, &[&create[..], &addresses[..2], &["--address-count", "2"]].concat());
    assert!(error.contains("cannot be used with"), "{error}");
    let listed = site.ok(&["nat-gateways", "list", "--vpc", "red/web", "--pool", "world"]);
    assert!(listed.contains("198.51.100.1") && !listed.contains("198.51.100.8"), "{listed}");

    let update = |change: &[&str]| site.json(&[&["nat-gateway", "update", "red/db/out"], change].concat());
    let changed = update(&["--add-address", "198.51.100.7", "--remove-address", "198.51.100.9"]);
    assert_eq!(changed["addresses"], serde_json::json!(["198.51.100.7", "198.51.100.8"]));
    let changed = update(&["--address-count", "1", "--filtering", "endpoint-independent", "--name", "nat"]);
    assert_eq!(changed["addresses"], serde_json::json!(["198.51.100.7"]));
    assert_eq!((&changed["name"], &changed["filtering"]), (&"nat".into(), &"endpoint-independent".into()));
    let update = ["nat-gateway", "update", "nat"];
    let prefix =
        |prefix| site.json(&[&update[..], &["--nat64-prefix", prefix]].concat())["nat64_prefix"].clone();
    assert_eq!((prefix("64:ff9b::/96"), prefix("none")), ("64:ff9b::/96".into(), serde_json::Value::Null));
    let error = site.fails(1, &[&update[..], &["--nat64-prefix", "64:ff9b::/64"]].concat());
    assert!(error.contains("expected a unicast IPv6 prefix of length 96"), "{error}");
    site.fails(2, &update);
    let error = site.fails(2, &[&update[..], &["--remove-address", "198.51.100.8"]].concat());
    assert!(error.contains("NAT gateway `nat` has no address 198.51.100.8"), "{error}");
    let error = site.fails(1, &[&update[..], &["--add-address", "2001:db8::1"]].concat());
    assert!(error.contains("2001:db8::1 is an ipv6 address"), "{error}");
    let error = site.fails(1, &[&update[..], &["--mapping", "endpoint-dependent"]].concat());
    assert!(error.contains("`endpoint-dependent` mapping contradicts"), "{error}");
    let both = ["--mapping", "endpoint-dependent", "--filtering", "address-and-port-dependent"];
    assert_eq!(site.json(&[&update[..], &both].concat())["mapping"], "endpoint-dependent");
    let error = site.fails(2, &[&update[..], &["--mapping", "none"]].concat());
    assert!(error.contains("expected `endpoint-independent` or `endpoint-dependent`"), "{error}");
    let error = site.fails(2, &[&update[..], &["--filtering", "none"]].concat());
    assert!(error.contains("expected `address-and-port-dependent` or `endpoint-independent`"), "{error}");
    let error = site.fails(1, &["vpc", "delete", "db"]);
    assert!(error.contains("NAT gateway `nat`"), "{error}");
    let error = site.fails(2, &["port-forward", "create", "x", "--nat-gateway", "nat", "--protocol", "sctp"]);
    assert!(error.contains("expected `tcp` or `udp`"), "{error}");
    site.ok(&["nat-gateway", "delete", "nat"]);
    site.ok(&["vpc", "delete", "db"]);
}

#[test]
fn port_forwards_by_file_and_by_commands() {
    let site = Site::start();
    let cloud = CLOUD.replace("    routes: [", "    nat_gateway: NAT\n    routes: [");
    let forward = "{name: web, protocol: tcp, port: 443, instance: web-1, inside_port: 8443}";
    let nat = format!("{{name: out, pool: world, address_count: 2, port_forwards: [{forward}]}}");
    let pools = "
public_pools: [{name: world, cluster: edge, prefixes: [198.51.100.0/24]}]
";
    let file = site.file("cloud.yaml", &(cloud.replace("NAT", &nat) + pools));
    assert!(site.ok(&["apply", "-f", &file]).ends_with("18 created, 0 unchanged\n"));
    assert!(site.ok(&["apply", "-f", &file]).ends_with("0 created, 18 unchanged\n"));
    let other =
        site.file("other.yaml", &(cloud.replace("NAT", &nat.replace("port: 443", "port: 444")) + pools));
    let error = site.fails(1, &["apply", "-f", &other]);
    assert!(error.contains("port forward `web`") && error.contains("port is 443, not 444"), "{error}");
    let web = site.json(&["port-forward", "show", "web"]);
    assert_eq!((&web["address"], &web["port"]), (&"198.51.100.1".into(), &443.into()));
    assert_eq!((&web["inside"], &web["inside_port"]), (&"10.0.0.9".into(), &8443.into()));

    let create = ["port-forward", "create", "dns", "--nat-gateway", "red/web/out", "--protocol", "udp"];
    let to = ["--port", "53", "--instance", "red/web/web-1", "--address", "198.51.100.2"];
    let made = site.json(&[&create[..], &to].concat());
    assert_eq!((&made["address"], &made["inside_port"]), (&"198.51.100.2".into(), &53.into()));
    let listed = site.ok(&["port-forwards", "list", "--vpc", "red/web", "--instance", "red/web/web-1"]);
    assert!(listed.contains("198.51.100.1:443") && listed.contains("10.0.0.9:53"), "{listed}");
    let error = site.fails(2, &[&create[..], &["--port", "0"], &to[2..]].concat());
    assert!(error.contains("0 is not in 1..=65535"), "{error}");
    let error = site.fails(1, &["nat-gateway", "delete", "out"]);
    assert!(error.contains("port forward `web`"), "{error}");
    for name in ["web", "red/web/dns"] {
        site.ok(&["port-forward", "delete", name]);
    }
    site.ok(&["nat-gateway", "delete", "out"]);
}

#[test]
fn eips_by_file_and_by_commands() {
    let site = Site::start();
    let cloud = CLOUD.replace("    routes: [", "    routes: [{destination: 0.0.0.0/0, target: internet}, ");
    let internet = "
public_pools: [{name: world, cluster: edge, prefixes: [198.51.100.0/24, '2001:db8:9::/56']}]
eips: [{name: www, tenant: red, pool: world, vpc: web, instance: web-1}]
";
    let file = site.file("cloud.yaml", &(cloud + internet));
    assert!(site.ok(&["apply", "-f", &file]).ends_with("18 created, 0 unchanged\n"));
    assert!(site.ok(&["apply", "-f", &file]).ends_with("0 created, 18 unchanged\n"));
    let www = site.json(&["eip", "show", "www"]);
    assert_eq!((&www["address"], &www["inside"]), (&"198.51.100.1".into(), &"10.0.0.9".into()));
    let routes = site.ok(&["route", "list", "--vpc", "red/web"]);
    assert!(routes.contains("internet"), "{routes}");
    site.ok(&["route", "create", "::/0", "--vpc", "red/web", "--internet"]);
    let error =
        site.fails(2, &["route", "create", "10.7.0.0/16", "--vpc", "red/web", "--internet", "--drop"]);
    assert!(error.contains("cannot be used with"), "{error}");

    // Pools.
    let update = |change: &[&str]| site.json(&[&["public-pool", "update", "world"], change].concat());
    let added = update(&["--add-prefix", "203.0.113.0/24"]);
    assert_eq!(added["prefixes"][1], "203.0.113.0/24");
    let removed = update(&["--remove-prefix", "203.0.113.0/24", "--name", "net"]);
    assert_eq!((removed["prefixes"].as_array().unwrap().len(), &removed["name"]), (2, &"net".into()));
    let error = site.fails(2, &["public-pool", "update", "net", "--remove-prefix", "203.0.113.0/24"]);
    assert!(error.contains("pool `net` has no prefix 203.0.113.0/24"), "{error}");
    let update = |change: &[&str]| site.json(&[&["public-pool", "update", "net"], change].concat());
    let reserved = update(&["--add-reserved", "198.51.100.3/32", "--add-reserved", "198.51.100.4/32"]);
    assert_eq!(reserved["reserved"], serde_json::json!(["198.51.100.3/32", "198.51.100.4/32"]));
    let reserved = update(&["--remove-reserved", "198.51.100.3/32"]);
    assert_eq!(reserved["reserved"], serde_json::json!(["198.51.100.4/32"]));
    let error = site.fails(2, &["public-pool", "update", "net", "--remove-reserved", "198.51.100.3/32"]);
    assert!(error.contains("pool `net` has no reserved prefix 198.51.100.3/32"), "{error}");
    let error = site.fails(1, &["public-pool", "delete", "net"]);
    assert!(error.contains("EIP `www`"), "{error}");

    // EIPs.
    let create = |name: &str, rest: &[&str]| {
        site.json(&[&["eip", "create", name, "--tenant", "red", "--pool", "net"], rest].concat())
    };
    assert_eq!(create("mail", &["--address", "198.51.100.9"])["instance"], Value::Null);
    let whole = ["--prefix-length", "64", "--subnet", "red/web/front", "--nptv6"];
    assert_eq!(create("whole", &whole)["nptv6"], true);
    let listed = site.ok(&["eip", "list", "--vpc", "red/web"]);
    assert!(listed.contains("2001:db8:9::/64") && listed.contains("198.51.100.1 "), "{listed}");
    let column = listed.split_whitespace().position(|word| word.eq_ignore_ascii_case("nptv6")).unwrap();
    let nptv6 = |outside: &str| {
        let line = listed.lines().find(|line| line.contains(outside)).unwrap();
        line.split_whitespace().nth(column).unwrap()
    };
    assert_eq!((nptv6("2001:db8:9::/64"), nptv6("198.51.100.1 ")), ("yes", "no"), "{listed}");
    let single = ["eip", "create", "x", "--tenant", "red", "--pool", "net", "--nptv6"];
    let error = site.fails(2, &single);
    assert!(error.contains("--prefix-length"), "{error}");
    let attached = site.json(&["eip", "attach", "red/mail", "--instance", "red/web/web-2"]);
    assert_eq!(attached["inside"], "10.0.0.2");
    let error = site.fails(1, &["eip", "attach", "mail", "--instance", "red/web/web-1"]);
    assert!(error.contains("EIP `www`"), "{error}");
    assert_eq!(site.json(&["eip", "detach", "www"])["vpc"], Value::Null);
    let moved = site.json(&["eip", "attach", "mail", "--instance", "red/web/web-1", "--inside", "10.0.0.9"]);
    assert_eq!(moved["inside"], "10.0.0.9");
    site.fails(2, &["eip", "attach", "mail"]);
    assert_eq!(site.json(&["eip", "update", "mail", "--name", "post"])["name"], "post");
    site.ok(&["eip", "delete", "post"]);
    assert_eq!(site.json(&["eip", "list", "--tenant", "red"]).as_array().unwrap().len(), 2);
}

#[test]
fn an_eip_whose_instance_was_deleted_is_attached_again() {
    let site = Site::start();
    let internet = "
public_pools: [{name: world, cluster: edge, prefixes: [198.51.100.0/24]}]
eips: [{name: www, tenant: red, pool: world, vpc: web, instance: web-1}]
";
    let file = site.file("cloud.yaml", &(CLOUD.to_owned() + internet));
    assert!(site.ok(&["apply", "-f", &file]).ends_with("17 created, 0 unchanged\n"));
    let inside = |site: &Site| site.json(&["eip", "show", "www"])["inside"].clone();
    site.ok(&["instance", "delete", "red/web/web-1"]);
    assert_eq!(inside(&site), Value::Null);
    let planned = site.ok(&["apply", "-f", &file, "--dry-run"]);
    assert!(planned.contains("would attach EIP www\n"), "{planned}");
    assert!(planned.ends_with("1 to create, 15 unchanged, 1 to attach\n"), "{planned}");
    assert!(site.ok(&["apply", "-f", &file]).ends_with("1 created, 15 unchanged, 1 attached\n"));
    assert_eq!(inside(&site), "10.0.0.9");
    assert!(site.ok(&["apply", "-f", &file]).ends_with("0 created, 17 unchanged\n"));
    let id = site.json(&["instance", "show", "red/web/web-1"])["id"].clone();
    let other = format!("red/db/{}", id.as_str().unwrap());
    let error = site.fails(2, &["eip", "attach", "www", "--instance", &other]);
    assert!(error.contains("is not in vpc-"), "{error}");
    let eip = site.json(&["eip", "show", "www"])["id"].clone();
    let other = format!("blue/{}", eip.as_str().unwrap());
    site.ok(&["tenant", "create", "blue"]);
    let error = site.fails(2, &["eip", "delete", &other]);
    assert!(error.contains("is not in tenant-"), "{error}");
}

/// Catches an address that is given to an EIP which takes any, before the one that asks for it.
#[test]
fn requested_addresses_of_a_file_are_given_first() {
    let site = Site::start();
    let internet = "
public_pools: [{name: world, cluster: edge, prefixes: [198.51.100.0/24]}]
eips:
  - {name: any, tenant: red, pool: world}
  - {name: first, tenant: red, pool: world, address: 198.51.100.1}
";
    let file = site.file("cloud.yaml", &(CLOUD.to_owned() + internet));
    site.ok(&["apply", "-f", &file]);
    assert_eq!(site.json(&["eip", "show", "any"])["address"], "198.51.100.2");
}

#[test]
fn meters_by_file_and_by_commands() {
    let site = Site::start();
    let cloud = CLOUD.replace("  - name: web\n", "  - name: web\n    internet_meter: all\n");
    assert_ne!(cloud, CLOUD);
    let internet = "
public_pools: [{name: world, cluster: edge, prefixes: [198.51.100.0/24]}]
meters: [{name: all, tenant: red, in_kbps: 8000, out_kbps: 64, out_burst: 16384}, {name: gold, tenant: red, out_kbps: 1000}]
eips: [{name: www, tenant: red, pool: world, meter: gold}]
";
    let file = site.file("cloud.yaml", &(cloud + internet));
    let created = site.ok(&["apply", "-f", &file]);
    assert!(created.ends_with(" created, 0 unchanged\n"), "{created}");
    assert!(site.ok(&["apply", "-f", &file]).contains("\n0 created, "), "{created}");
    let all = site.json(&["meters", "show", "red/all"]);
    assert_eq!(
        (&all["in_kbps"], &all["out_burst"], &all["in_burst"]),
        (&8000.into(), &16384.into(), &Value::Null)
    );
    let gold = site.json(&["meter", "show", "gold"])["id"].clone();
    assert_eq!(site.json(&["vpc", "show", "red/web"])["internet_meter"], all["id"]);
    assert_eq!(site.json(&["eip", "show", "www"])["meter"], gold);
    let listed = site.ok(&["meters", "list", "--tenant", "red"]);
    assert!(listed.contains("all") && listed.contains("8000"), "{listed}");

    let create = ["meters", "create", "new", "--tenant", "red"];
    site.fails(2, &create);
    site.fails(2, &[&create[..], &["--in-kbps", "64", "--out-burst", "20000"]].concat());
    let error = site.fails(1, &[&create[..], &["--in-kbps", "63"]].concat());
    assert!(error.contains("a rate of 63 kbit/s is not between 64 and 400000000"), "{error}");
    let new = site.json(&[&create[..], &["--in-kbps", "64", "--in-burst", "16384"]].concat());
    let update = |rest: &[&str]| site.json(&[&["meters", "update", "new"], rest].concat());
    let changed = update(&["--out-kbps", "65", "--in-burst", "none"]);
    assert_eq!((&changed["out_kbps"], &changed["in_burst"]), (&65.into(), &Value::Null));
    let changed = update(&["--in-kbps", "none", "--name", "next"]);
    assert_eq!((&changed["in_kbps"], &changed["name"]), (&Value::Null, &"next".into()));
    site.fails(2, &["meters", "update", "next"]);
    let error = site.fails(1, &["meters", "update", "next", "--out-kbps", "none"]);
    assert!(error.contains("a meter needs a limit"), "{error}");

    assert_eq!(site.json(&["eip", "update", "www", "--meter", "next"])["meter"], new["id"]);
    let eips = site.json(&["eip", "list", "--meter", "next"]);
    assert_eq!(eips.as_array().unwrap().len(), 1);
    let error = site.fails(1, &["meters", "delete", "next"]);
    assert!(error.contains("meter `next` is still used by EIP `www`"), "{error}");
    assert_eq!(site.json(&["eip", "update", "www", "--meter", "none"])["meter"], Value::Null);
    let with = ["vpc", "update", "red/web", "--internet-meter", "next"];
    assert_eq!(site.json(&with)["internet_meter"], new["id"]);
    let without = ["vpc", "update", "red/web", "--internet-meter", "none"];
    assert_eq!(site.json(&without)["internet_meter"], Value::Null);
    let made = site.json(&["vpc", "create", "metered", "--tenant", "red", "--internet-meter", "next"]);
    assert_eq!(made["internet_meter"], new["id"]);
    site.ok(&["vpc", "delete", "metered"]);
    let create = ["eip", "create", "mail", "--tenant", "red", "--pool", "world", "--meter", "next"];
    assert_eq!(site.json(&create)["meter"], new["id"]);
    site.fails(4, &["eip", "update", "mail", "--meter", "unknown"]);
    site.ok(&["eip", "delete", "mail"]);
    site.ok(&["meters", "delete", "next"]);
}

#[test]
fn meters_of_peerings_by_file_and_by_commands() {
    let site = Site::start();
    let cloud = CLOUD.replace("vpcs: [web, db]}]", "vpcs: [web, db], meters: {db: gold}}]");
    assert_ne!(cloud, CLOUD);
    let file = site.file("cloud.yaml", &(cloud + "meters: [{name: gold, tenant: red, out_kbps: 1000}]\n"));
    let created = site.ok(&["apply", "-f", &file]);
    assert!(created.ends_with(" created, 0 unchanged\n"), "{created}");
    assert!(site.ok(&["apply", "-f", &file]).contains("\n0 created, "), "{created}");
    let id = |noun: &str, name: &str| site.json(&[noun, "show", name])["id"].as_str().unwrap().to_owned();
    let [web, db] = ["red/web", "red/db"].map(|name| id("vpc", name));
    let gold = id("meter", "gold");
    assert_eq!(site.json(&["peering", "show", "web-db"])["meters"], serde_json::json!({&db: gold}));
    let listed = site.ok(&["peerings", "list"]);
    assert!(listed.contains(&gold), "{listed}");

    site.ok(&["vpc", "create", "app", "--tenant", "red", "--cluster", "edge"]);
    fn with<'a>(sides: &[&'a str]) -> Vec<&'a str> {
        let sides = sides.iter().flat_map(|side| ["--meter", side]);
        ["peerings", "update", "web-db"].into_iter().chain(sides).collect()
    }
    assert_eq!(site.json(&with(&["red/web=gold"]))["meters"], serde_json::json!({&web: gold, &db: gold}));
    let (web_none, db_none) = ("red/web=none", format!("{db}=none"));
    assert_eq!(site.json(&with(&[web_none, &db_none]))["meters"], Value::Null);
    for wrong in ["web", "web=", "=gold"] {
        assert!(site.fails(2, &with(&[wrong])).contains("expected VPC=METER"), "{wrong}");
    }
    site.fails(2, &with(&[]));
    site.fails(4, &with(&["red/web=unknown"]));
    let error = site.fails(1, &with(&["red/app=gold"]));
    assert!(error.contains("VPC `app` is not one of the two VPCs of peering `web-db`"), "{error}");

    let create = ["peerings", "create", "web-app", "red/web", "red/app", "--meter", "red/app=gold"];
    assert_eq!(site.json(&create)["meters"], serde_json::json!({id("vpc", "red/app"): gold}));
    let error = site.fails(1, &["meters", "delete", "gold"]);
    assert!(error.contains("meter `gold` is still used by peering `web-app`"), "{error}");
    site.ok(&["peerings", "delete", "web-app"]);
    site.ok(&["meters", "delete", "gold"]);
}
