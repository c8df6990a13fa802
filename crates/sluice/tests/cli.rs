//! The command line against a real controller: nouns, apply, exit codes.

use serde_json::Value;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const CLOUD: &str = "
tenants: [{name: red}, {name: blue}]
clusters: [{name: edge, vips: [192.0.2.101]}]
gateways: [{name: gw-a, cluster: edge, vtep4: 192.0.2.11}]
hosts: [{name: metal, vtep: 192.0.2.21, agent: false}]
vpcs:
  - name: web
    tenant: red
    subnets: [{name: front, ipv4: 10.0.0.0/24, ipv6: 'fd00::/64'}]
    instances:
      - {name: web-1, subnet: front, host: metal, ipv4: 10.0.0.9}
      - {name: web-2, subnet: front, host: metal}
    routes: [{destination: 10.9.0.0/16, target: {peering: web-db}}]
  - {name: db, tenant: red, subnets: [{name: back, ipv4: 10.1.0.0/24}]}
  - {name: web, tenant: blue, subnets: [{name: front, ipv4: 10.0.0.0/24}]}
peerings: [{name: web-db, tenant: red, vpcs: [web, db]}]
";

struct Site {
    folder: tempfile::TempDir,
    controller: Child,
    api: String,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.controller.kill().expect("the controller is ours");
        self.controller.wait().expect("it ends");
    }
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address").port()
}

impl Site {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (api, southbound) = (free_port(), free_port());
        let controller = Command::new(env!("CARGO_BIN_EXE_sluice"))
            .args(["controller", "--log", "warn", "--southbound-name", "127.0.0.1"])
            .args(["--api", &format!("127.0.0.1:{api}"), "--southbound", &format!("127.0.0.1:{southbound}")])
            .arg("--state-dir")
            .arg(folder.path())
            .stdin(Stdio::null())
            .spawn()
            .expect("the binary starts");
        let site = Self { folder, controller, api: format!("http://127.0.0.1:{api}") };
        let begin = Instant::now();
        while site.run(&["nodes", "list"]).status.code() != Some(0) {
            assert!(begin.elapsed() < Duration::from_secs(30), "the controller does not come up");
            std::thread::sleep(Duration::from_millis(50));
        }
        site
    }

    fn run(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_sluice"))
            .args(args)
            .env("SLUICE_API", &self.api)
            .env_remove("SLUICE_TOKEN")
            .env_remove("SLUICE_TOKEN_FILE")
            .output()
            .expect("the binary starts")
    }

    /// Runs a command that must succeed; its output.
    fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[args, &["-o", "json"]].concat())).expect("JSON")
    }

    /// Runs a command that must fail so; its error.
    fn fails(&self, code: i32, args: &[&str]) -> String {
        let output = self.run(args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
        error
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path: PathBuf = self.folder.path().join(name);
        std::fs::File::create(&path).expect("a file").write_all(text.as_bytes()).expect("room for it");
        path.to_str().expect("UTF-8").to_owned()
    }
}

#[test]
fn apply_makes_a_cloud_once() {
    let site = Site::start();
    let file = site.file("cloud.yaml", CLOUD);
    let planned = site.ok(&["apply", "-f", &file, "--dry-run"]);
    assert!(
        planned.contains("would create peering web-db") && planned.ends_with("15 to create, 0 unchanged\n"),
        "{planned}"
    );
    assert_eq!(site.json(&["tenants", "list"]), serde_json::json!([]), "a dry run makes nothing");
    let made = site.ok(&["apply", "-f", &file]);
    assert!(made.ends_with("15 created, 0 unchanged\n"), "{made}");
    let again = site.ok(&["apply", "-f", &file]);
    assert!(again.ends_with("0 created, 15 unchanged\n"), "{again}");
    let planned = site.ok(&["apply", "-f", &file, "--dry-run"]);
    assert!(planned.ends_with("0 to create, 15 unchanged\n"), "{planned}");
    let other = site.file("other.yaml", &CLOUD.replace("10.0.0.9", "10.0.0.8"));
    let planned = site.run(&["apply", "-f", &other, "--dry-run"]);
    assert_eq!(planned.status.code(), Some(1));
    let planned = String::from_utf8_lossy(&planned.stdout).into_owned();
    assert!(planned.contains("differs      instance web-1: ipv4 is 10.0.0.9, not 10.0.0.8"), "{planned}");
    let error = site.fails(1, &["apply", "-f", &other]);
    assert!(error.contains("web-1"), "{error}");
    let error = site.fails(2, &["apply", "-f", &site.file("bad.yaml", "tenants: [{nam: red}]")]);
    assert!(error.contains("bad.yaml") && error.contains("nam"), "{error}");
}

#[test]
fn nouns_take_names_and_ids() {
    let site = Site::start();
    site.ok(&["apply", "-f", &site.file("cloud.yaml", CLOUD)]);
    let vpc = site.json(&["vpcs", "show", "red/web"]);
    let id = vpc["id"].as_str().expect("an id");
    assert_eq!(site.json(&["vpc", "show", id]), vpc);
    let error = site.fails(2, &["vpcs", "show", "web"]);
    assert!(error.contains("2 VPCs are named `web`"), "{error}");
    let list = site.ok(&["instances", "list", "--vpc", "red/web"]);
    assert!(list.starts_with("ID") && list.lines().count() == 3 && list.contains("10.0.0.9"), "{list}");
    let routes = site.json(&["routes", "list", "--vpc", "red/web"]);
    assert_eq!(routes[0]["destination"], "10.9.0.0/16");
    let new = ["instances", "create", "web-3", "--vpc", "red/web", "--subnet", "front", "--host", "metal"];
    let made = site.json(&new);
    assert_eq!(made["name"], "web-3");
    assert_eq!(site.json(&new)["id"], made["id"], "creating again finds it");
    let renamed = site.json(&["tenants", "update", "blue", "--name", "azure"]);
    assert_eq!(renamed["name"], "azure");
    let stale = site.fails(1, &["instances", "delete", "web-3", "--if-revision", "1"]);
    assert!(stale.contains("revision"), "{stale}");
    site.ok(&["instances", "delete", "web-3"]);
    assert!(site.fails(4, &["instances", "show", "web-3"]).contains("no instance is named `web-3`"));
    assert!(site.fails(4, &["instances", "show", "inst-999"]).contains("inst-999"));
    let used = site.fails(1, &["subnets", "delete", "front", "--vpc", "red/web"]);
    assert!(used.contains("still used by"), "{used}");
}

#[test]
fn clusters_gateways_and_what_moves() {
    let site = Site::start();
    site.ok(&["apply", "-f", &site.file("cloud.yaml", CLOUD)]);
    let error = site.fails(1, &["gateway", "drain", "gw-a"]);
    assert!(error.contains("last of its cluster"), "{error}");
    site.ok(&["gateways", "create", "gw-b", "--cluster", "edge", "--vtep4", "192.0.2.12"]);
    assert_eq!(site.json(&["gateway", "drain", "gw-a"])["draining"], true);
    let list = site.ok(&["gateways", "list"]);
    assert!(list.lines().any(|line| line.contains("gw-a") && line.contains("yes")), "{list}");
    let cluster = site.json(&["clusters", "show", "edge"]);
    let home = site.json(&["gateways", "show", "gw-b"])["id"].clone();
    assert_eq!(
        (&cluster["vips"][0]["preferred_owner"], &cluster["vips"][0]["slot"]),
        (&home, &Value::from(0))
    );
    assert_eq!(site.json(&["gateways", "undrain", "gw-a"])["draining"], false);
    site.ok(&["clusters", "update", "edge", "--vip", "192.0.2.102", "--vip", "192.0.2.101"]);
    let list = site.ok(&["clusters", "list"]);
    assert!(list.contains("192.0.2.101, 192.0.2.102"), "in order of place: {list}");
    let rotated = site.json(&["cluster", "rotate-key", "edge"]);
    let (from, until) = (&rotated["valid_from_ms"], &rotated["previous_keys_expire_ms"]);
    assert_eq!(from.as_u64().map(|ms| ms + 300_000), until.as_u64());
    assert!(site.fails(1, &["clusters", "rotate-key", "edge"]).contains("within the last 5 minutes"));

    site.ok(&["clusters", "create", "far", "--vip", "192.0.2.201"]);
    let error = site.fails(1, &["vpcs", "move", "red/web", "--to", "far"]);
    assert!(error.contains("no gateway"), "{error}");
    site.ok(&["gateways", "create", "gw-c", "--cluster", "far", "--vtep4", "192.0.2.13"]);
    let moving = site.json(&["vpcs", "move", "red/web", "--to", "far"]);
    let far = site.json(&["clusters", "show", "far"])["id"].clone();
    assert_eq!((&moving["moving_to"], &moving["move_phase"]), (&far, &Value::from("filling")));
    assert_eq!(site.json(&["vpcs", "show", "db"])["moving_to"], far, "its peer goes with it");
    site.fails(5, &["vpcs", "move", "red/web", "--to", "far", "--wait", "0"]);
    let events = site.json(&["events", "list", "--subject", moving["id"].as_str().expect("an id")]);
    assert_eq!(events[0]["kind"], "vpc_move_started");
    let last = events[0]["id"].to_string();
    assert!(site.ok(&["event", "list", "--after", &last, "--limit", "1"]).lines().count() <= 2);

    let set = site.json(&["vpcs", "update", "blue/web", "--offload-kbps", "never"]);
    assert_eq!(set["offload_kbps"], Value::from(u32::MAX));
    let set = site.json(&["vpcs", "update", "blue/web", "--offload-kbps", "default"]);
    assert!(set.get("offload_kbps").is_none(), "{set}");
    site.fails(2, &["vpcs", "update", "blue/web", "--offload-kbps", "0"]);
    site.fails(2, &["vpcs", "update", "blue/web"]);

    site.ok(&["hosts", "create", "other", "--vtep", "192.0.2.22", "--foreign"]);
    let moved = site.json(&["instances", "move", "web-1", "--to", "other"]);
    assert_eq!(moved["host"], site.json(&["hosts", "show", "other"])["id"]);
}

#[test]
fn enrollment_is_written_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let site = Site::start();
    site.ok(&["apply", "-f", &site.file("cloud.yaml", CLOUD)]);
    let path = site.folder.path().join("gw-a.json");
    let file = path.to_str().expect("UTF-8");
    site.ok(&["gateways", "enroll", "gw-a", "--out", file]);
    let bundle: Value =
        serde_json::from_str(&std::fs::read_to_string(&path).expect("the bundle")).expect("JSON");
    assert!(bundle["ca_pem"].as_str().is_some_and(|pem| pem.contains("BEGIN CERTIFICATE")));
    assert_eq!(std::fs::metadata(&path).expect("the bundle").permissions().mode() & 0o777, 0o600);
    site.fails(2, &["gateways", "enroll", "gw-a", "--out", file]);
}

#[test]
fn exit_codes_say_what_went_wrong() {
    let run = |args: &[&str]| {
        let output =
            Command::new(env!("CARGO_BIN_EXE_sluice")).args(args).output().expect("the binary starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let unused = format!("http://127.0.0.1:{}", free_port());
    let (code, error) = run(&["tenants", "list", "--api", &unused]);
    assert_eq!(code, Some(3));
    assert_eq!(error.matches("Connection refused").count(), 1, "{error}");
    assert_eq!(run(&["tenants", "list", "--api", "nonsense"]).0, Some(2));
    assert_eq!(run(&["tenants", "frobnicate"]).0, Some(2));
    assert_eq!(run(&["port", "list", "--socket", "/nonexistent.sock"]).0, Some(3));
    assert_eq!(run(&["path", "list", "--socket", "/nonexistent.sock"]).0, Some(3));
    let (code, _) = run(&["completion", "bash"]);
    assert_eq!(code, Some(0));
}
