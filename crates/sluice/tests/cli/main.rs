//! The command line against a real controller and a simple agent: nouns, apply, output, exit codes.

mod internet;
mod network_classes;
mod services;

use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
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

/// The binary without the configuration of the person who runs the tests: it could name a database that is in use.
fn sluice() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SLUICE_") {
            command.env_remove(name);
        }
    }
    command
}

fn output(command: &mut Command) -> Output {
    command.output().expect("the binary starts")
}

impl Site {
    fn start() -> Self {
        Self::start_with(None)
    }

    /// Starts a controller, which requires the token if there is one.
    fn start_with(token: Option<&str>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (api, southbound) = (free_port(), free_port());
        let mut controller = sluice();
        controller.args(["controller", "--log", "warn", "--southbound-name", "127.0.0.1"]);
        let token_file = folder.path().join("api.token");
        if let Some(token) = token {
            std::fs::write(&token_file, token).expect("room for a token");
            controller.arg("--api-token-file").arg(&token_file);
        }
        let controller = controller
            .args(["--api", &format!("127.0.0.1:{api}"), "--southbound", &format!("127.0.0.1:{southbound}")])
            .arg("--state-dir")
            .arg(folder.path())
            .stdin(Stdio::null())
            .spawn()
            .expect("the binary starts");
        let site = Self { folder, controller, api: format!("http://127.0.0.1:{api}") };
        let begin = Instant::now();
        let mut ready = site.command(&["nodes", "list"]);
        if token.is_some() {
            ready.env("SLUICE_TOKEN_FILE", &token_file);
        }
        while !output(&mut ready).status.success() {
            assert!(begin.elapsed() < Duration::from_secs(30), "the controller does not come up");
            std::thread::sleep(Duration::from_millis(50));
        }
        site
    }

    /// A command for this controller.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = sluice();
        command.args(args).env("SLUICE_API", &self.api);
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        output(&mut self.command(args))
    }

    /// Runs a command that must succeed. Returns its standard output.
    fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[args, &["-o", "json"]].concat())).expect("JSON")
    }

    /// Runs a command that must fail with this exit code. Returns its standard error.
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
    assert!(planned.contains("unchanged    1 instance of VPC web\n"), "{planned}");
    let error = site.fails(1, &["apply", "-f", &other]);
    assert!(error.contains("web-1"), "{error}");
    let error = site.fails(2, &["apply", "-f", &site.file("bad.yaml", "tenants: [{nam: red}]")]);
    assert!(error.contains("bad.yaml") && error.contains("nam"), "{error}");
}

#[test]
fn apply_checks_the_file_before_anything_is_created() {
    let site = Site::start();
    let cases = [
        (
            CLOUD.replace("'fd00::/64'}", "'fd00::/64'}, {name: half, ipv4: 10.0.0.128/25}"),
            "subnet `half` in VPC `web`: `ipv4`: 10.0.0.128/25 overlaps 10.0.0.0/24 of subnet `front`",
        ),
        (
            CLOUD.replace("vpcs: [web, db]", "vpcs: [web, web]"),
            "peering `web-db`: `vpcs`: VPC `web` cannot be peered with itself",
        ),
        (
            CLOUD.replace("web-2, subnet: front", "web-2, subnet: frnt"),
            "instance `web-2` in VPC `web`: `subnet`: neither the file nor the cloud has a subnet `frnt`",
        ),
    ];
    for (number, (text, expected)) in cases.iter().enumerate() {
        let file = site.file(&format!("wrong-{number}.yaml"), text);
        let apply = ["apply", "-f", file.as_str(), "--dry-run"];
        for args in [&apply[..3], &apply[..]] {
            let error = site.fails(2, args);
            assert!(error.contains(&file) && error.contains(expected), "{error}");
        }
    }
    assert_eq!(site.json(&["tenants", "list"]), serde_json::json!([]));
}

#[test]
fn apply_reads_standard_input() {
    let site = Site::start();
    let apply = |text: &str| {
        let file = std::fs::File::open(site.file("input.yaml", text)).expect("the file");
        output(site.command(&["apply", "-f", "-", "--dry-run"]).stdin(file))
    };
    assert!(String::from_utf8_lossy(&apply(CLOUD).stdout).ends_with("15 to create, 0 unchanged\n"));
    let wrong = apply("tenants: [{nam: red}]");
    let error = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(wrong.status.code() == Some(2) && error.contains("standard input"), "{error}");
}

#[test]
fn apply_writes_only_its_report_to_standard_output() {
    let site = Site::start();
    // Without a gateway or a host, nothing has to be programmed.
    let file = site.file("tenants.yaml", "tenants: [{name: red}]");
    let applied = site.run(&["apply", "-f", &file, "--wait", "10", "-o", "json"]);
    let report: Value = serde_json::from_slice(&applied.stdout).expect("JSON");
    assert_eq!(report["total"]["created"], 1);
    assert!(String::from_utf8_lossy(&applied.stderr).ends_with("programmed\n"));
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
    let one = site.json(&["instances", "show", "web-1"]);
    assert_eq!(site.json(&["instances", "show", "red/web/web-1"]), one);
    assert!(site.fails(4, &["instances", "show", "blue/web/web-1"]).contains("no instance is named `web-1`"));
    assert!(site.fails(2, &["instances", "show", "web/web-1"]).contains("2 VPCs are named `web`"));
    site.fails(2, &["instances", "show", "red/web/web-1", "--vpc", "red/web"]);
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
fn modes_of_ipv6_addresses_are_given_and_shown() {
    let site = Site::start();
    let file = site.file("cloud.yaml", CLOUD);
    site.ok(&["apply", "-f", &file]);
    let front = ["subnets", "show", "front", "--vpc", "red/web"];
    assert_eq!(site.json(&front)["ipv6_mode"], "dhcp");
    let new =
        ["subnets", "create", "old", "--vpc", "red/web", "--ipv6", "fd00:9::/64", "--ipv6-mode", "slaac"];
    assert_eq!(site.json(&new)["ipv6_mode"], "slaac");
    let list = site.ok(&["subnets", "list"]);
    assert!(list.lines().any(|line| line.contains("fd00:9::/64") && line.contains("slaac")), "{list}");
    // Without a prefix it is wrong usage, as is a mode that does not exist.
    site.fails(
        2,
        &["subnets", "create", "x", "--vpc", "red/web", "--ipv4", "10.9.0.0/24", "--ipv6-mode", "dhcp"],
    );
    let unknown = [&new[..2], &["x"], &new[3..8], &["eui64"]].concat();
    assert!(site.fails(2, &unknown).contains("`dhcp` or `slaac`"), "{unknown:?}");
    // A file that names another mode differs; one that names the same does not.
    for (mode, code) in [("slaac", 1), ("dhcp", 0)] {
        let named = CLOUD.replacen("ipv6: 'fd00::/64'", &format!("ipv6: 'fd00::/64', ipv6_mode: {mode}"), 1);
        let file = site.file("named.yaml", &named);
        let output = site.run(&["apply", "-f", &file]);
        assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stderr));
    }
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
    let gw_b = site.json(&["gateways", "show", "gw-b"])["id"].clone();
    assert_eq!(
        (&cluster["vips"][0]["preferred_owner"], &cluster["vips"][0]["slot"]),
        (&gw_b, &Value::from(0))
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
    let ids = |args: &[&str]| -> Vec<u64> {
        let events = site.json(args);
        events.as_array().expect("a list").iter().filter_map(|event| event["id"].as_u64()).collect()
    };
    let all = ids(&["events", "list"]);
    for after in [all.iter().min().expect("events"), all.iter().max().expect("events")] {
        let listed = ids(&["events", "list", "--after", &after.to_string()]);
        assert!(listed.iter().all(|id| id > after), "{listed:?} follow {after}");
    }
    assert_eq!(site.ok(&["event", "list", "--limit", "1"]).lines().count(), 2);

    let set = site.json(&["vpcs", "update", "blue/web", "--offload-kbps", "never"]);
    assert_eq!(set["offload_kbps"], Value::from(u32::MAX));
    let set = site.json(&["vpcs", "update", "blue/web", "--offload-kbps", "default"]);
    assert!(set.get("offload_kbps").is_none(), "{set}");
    site.fails(2, &["vpcs", "update", "blue/web", "--offload-kbps", "0"]);
    site.fails(2, &["vpcs", "update", "blue/web"]);

    migrates_and_cancels(&site);
    site.ok(&["hosts", "create", "other", "--vtep", "192.0.2.22", "--foreign"]);
    let moved = site.json(&["instances", "move", "web-1", "--to", "other"]);
    assert_eq!(moved["host"], site.json(&["hosts", "show", "other"])["id"]);
}

/// Migrations without agents: nothing reports that the VM runs on the other host.
fn migrates_and_cancels(site: &Site) {
    for (name, vtep) in [("north", "192.0.2.31"), ("south", "192.0.2.32")] {
        site.ok(&["hosts", "create", name, "--vtep", vtep]);
    }
    let migrate = ["instances", "migrate", "red/web/web-2", "--to", "south"];
    assert!(site.fails(1, &migrate).contains("no vSwitch"), "its host is foreign");
    site.ok(&["instances", "move", "red/web/web-2", "--to", "north"]);
    let started = site.json(&[&migrate[..], &["--sessions", "none"]].concat());
    assert_eq!((&started["phase"], &started["sessions"]), (&"preparing".into(), &"none".into()));
    site.fails(5, &[&migrate[..], &["--sessions", "none", "--wait", "0"]].concat());
    assert!(site.fails(1, &migrate).contains("is migrating"), "with other sessions");
    site.fails(2, &[&migrate[..], &["--sessions", "some"]].concat());
    let shown = site.json(&["instances", "show", "red/web/web-2"]);
    assert_eq!(shown["migration"]["phase"], "preparing");
    site.ok(&["instances", "cancel-migration", "red/web/web-2"]);
    site.fails(4, &["instances", "cancel-migration", "red/web/web-2"]);
    assert!(site.json(&["instances", "show", "red/web/web-2"]).get("migration").is_none());
    site.ok(&["instances", "move", "red/web/web-2", "--to", "metal"]);
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
fn settings_plans_and_formats() {
    let site = Site::start();
    site.ok(&["apply", "-f", &site.file("cloud.yaml", CLOUD)]);
    let yaml: Value = serde_saphyr::from_str(&site.ok(&["vpcs", "list", "-o", "yaml"])).expect("YAML");
    assert_eq!(yaml, site.json(&["vpcs", "list"]));

    assert_eq!(site.json(&["scheduler", "off"])["enabled"], false);
    assert_eq!(site.json(&["scheduler", "show"])["settings"]["enabled"], false);
    assert!(site.ok(&["scheduler", "show"]).contains("gateways requested"));
    assert_eq!(site.json(&["scheduler", "set", "--moves-per-interval", "3"])["moves_per_interval"], 3);
    site.fails(2, &["scheduler", "set"]);
    site.fails(2, &["scheduler", "set", "--overload-threshold", "nan"]);

    let policies = site.json(&["health", "policy", "list"]);
    assert!(policies.as_array().unwrap().iter().all(|policy| policy["action"] == "none"), "{policies}");
    let set =
        ["health", "policy", "set", "nic_fault", "--action", "migrate", "--max-at-once", "2", "--hold", "30"];
    let policy = site.json(&set);
    assert_eq!(
        (&policy["action"], &policy["max_at_once"], &policy["hold_s"]),
        (&"migrate".into(), &2.into(), &30.into())
    );
    assert!(site.ok(&["health", "policy", "list"]).contains("migrate"));
    assert!(site.ok(&["health"]).contains("0 anomalies"));
    site.fails(2, &["health", "policy", "set", "nic_fault"]);
    site.fails(2, &["health", "policy", "set", "nic", "--action", "none"]);

    let set = site.json(&["placement", "set", "--clusters-per-tenant", "3", "--gateway", "gw-a=500"]);
    let gw_a = site.json(&["gateways", "show", "gw-a"])["id"].as_str().expect("an id").to_owned();
    assert_eq!((&set["clusters_per_tenant"], &set["gateways"][gw_a]), (&Value::from(3), &Value::from(500)));
    assert!(site.ok(&["placement", "show"]).contains("edge"));
    site.fails(2, &["placement", "set"]);
    site.fails(2, &["placement", "set", "--gateway", "gw-a"]);
    assert_eq!(site.json(&["placement", "plans"]), serde_json::json!([]));
    site.fails(4, &["placement", "show-plan", "9"]);

    let description: Value = serde_json::from_str(&site.ok(&["openapi"])).expect("JSON");
    assert!(description["openapi"].as_str().is_some_and(|version| version.starts_with("3.1")));
}

#[test]
fn token_is_read_from_a_file_or_the_environment() {
    let token = "0123456789abcdef";
    let site = Site::start_with(Some(token));
    let line = format!("{token}\n");
    let file = site.file("client.token", &line);
    let list = || site.command(&["tenants", "list"]);
    let code = |command: &mut Command| output(command).status.code();
    assert_eq!(code(&mut list()), Some(1), "without a token");
    assert_eq!(code(list().args(["--token-file", &file])), Some(0));
    assert_eq!(code(list().env("SLUICE_TOKEN_FILE", &file)), Some(0));
    assert_eq!(code(list().env("SLUICE_TOKEN", &line)), Some(0));
    assert_eq!(code(list().env("SLUICE_TOKEN", "another token")), Some(1));
    assert_eq!(code(list().args(["--token-file", "/nonexistent"])), Some(2));
    for text in ["", "0123\n4567\n"] {
        let file = site.file("wrong.token", text);
        let error = site.fails(2, &["tenants", "list", "--token-file", &file]);
        assert!(error.contains(&file), "{error}");
    }
    let two_lines = output(list().env("SLUICE_TOKEN", "0123\n4567"));
    assert_eq!(two_lines.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&two_lines.stderr).contains("SLUICE_TOKEN"));
}

#[test]
fn help_does_not_show_passwords_of_the_environment() {
    for (variable, line) in [("SLUICE_DATABASE", "controller --help"), ("SLUICE_API", "tenants list --help")]
    {
        let help = output(sluice().args(line.split(' ')).env(variable, "postgres://u:pa55word@h/d"));
        let help = String::from_utf8_lossy(&help.stdout).into_owned();
        assert!(help.contains(variable) && !help.contains("pa55word"), "{help}");
    }
}

/// An agent that gives this response to every request.
fn serve_agent(socket: &Path, body: &'static str) {
    let listener = UnixListener::bind(socket).expect("a socket");
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // A request without a body ends with an empty line.
            let lines = BufReader::new(&stream).lines().map_while(Result::ok);
            lines.take_while(|line| !line.is_empty()).for_each(drop);
            let head =
                format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            (&stream).write_all(format!("{head}{body}").as_bytes()).expect("the client reads the response");
        }
    });
}

#[test]
fn nodes_show_their_agents_answers() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("agent.sock");
    serve_agent(
        &socket,
        r#"{"role": "host", "total": [{"reason": "no_route", "packets": 3, "text": "no route"}],
            "paths": [{"vni": 7, "destination": "10.0.0.9"}], "ports": []}"#,
    );
    let run = |line: &str| {
        let output = output(sluice().args(line.split(' ')).arg("--socket").arg(&socket));
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    assert!(run("agent status").contains("host"));
    assert!(run("agent drops").contains("no_route"));
    assert!(run("path list").contains("10.0.0.9"));
    assert_eq!(run("port list").lines().count(), 1, "only the header");
}

#[test]
fn a_port_is_shown_with_what_its_class_grants() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("agent.sock");
    serve_agent(
        &socket,
        r#"{"ports": [{"ifname": "tap0", "instance": "red/web", "id": "inst-1", "credit": [
            {"dimension": "sent_mbps", "used": 38, "limit": 40, "credit": 12, "limited": null},
            {"dimension": "cpu_permille", "used": 9, "limit": 10, "credit": -3, "limited": "no_credit"}]},
            {"ifname": "tap1", "instance": "red/db", "id": "inst-2", "credit": null},
            {"ifname": "tap2", "instance": "red/log", "id": "inst-3", "terms": "none", "credit": [
            {"dimension": "sent_mbps", "used": 7, "limit": null, "credit": null, "limited": null}],
            "packet_costs": {"packet_ns": 610, "kib_ns": 55, "sent_ns": 900, "received_ns": 950,
            "calibrated": true, "windows": 31}}]}"#,
    );
    let show = |name: &str, options: &[&str]| {
        output(sluice().args(["port", "show", name, "--socket"]).arg(&socket).args(options))
    };
    let text = |shown: std::process::Output| String::from_utf8(shown.stdout).expect("text");
    let shown = text(show("web", &[]));
    let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines.iter().filter(|line| line.first() == Some(&"CREDIT")).count(), 0, "{shown}");
    let table = &lines[lines.len() - 3..];
    assert_eq!(table[0], ["DIMENSION", "USED", "LIMIT", "CREDIT", "LIMITED"], "{shown}");
    assert_eq!(table[1], ["sent_mbps", "38", "40", "12", "-"], "{shown}");
    assert_eq!(table[2], ["cpu_permille", "9", "10", "-3", "no_credit"], "{shown}");
    assert!(!text(show("tap1", &[])).contains("DIMENSION"));
    let shown = text(show("tap2", &[]));
    let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(lines.contains(&vec!["sent_mbps", "7", "-", "-", "-"]), "{shown}");
    assert_eq!(lines.last().unwrap(), &["610", "55", "900", "950", "yes", "31"], "{shown}");
    let json: Value = serde_json::from_str(&text(show("inst-1", &["-o", "json"]))).expect("JSON");
    assert_eq!(json["ifname"], "tap0");
    assert_eq!(json["credit"][1]["credit"], -3);
    let unknown = show("tap9", &[]);
    let error = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(unknown.status.code() == Some(4) && error.contains("is \"tap9\";"), "{error}");
}

#[test]
fn attachment_that_takes_long_says_what_it_waits_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("agent.sock");
    let listener = UnixListener::bind(&socket).expect("a socket");
    let agent = std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("a client");
        std::thread::sleep(Duration::from_secs(1));
        (&stream).write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").expect("the client waits");
        // Until the client has read the response.
        BufReader::new(&stream).lines().map_while(Result::ok).for_each(drop);
    });
    let attached =
        output(sluice().args(["port", "attach", "tap0", "--instance", "vm-7", "--socket"]).arg(&socket));
    let notice = String::from_utf8_lossy(&attached.stderr).into_owned();
    assert!(attached.status.success() && notice.matches("instance `vm-7`").count() == 1, "{notice}");
    agent.join().expect("the agent ends");
}

#[test]
fn exit_codes_say_what_went_wrong() {
    let run = |args: &[&str]| {
        let output = output(sluice().args(args));
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
    for name in ["", "1234567890123456", "a/b", "a b"] {
        assert_eq!(run(&["port", "attach", name, "--instance", "vm"]).0, Some(2), "{name:?}");
    }
    assert_eq!(run(&["lab", "up", "--name", "bad name"]).0, Some(2));
    let (code, error) = run(&["lab", "up", "--file", "/nonexistent.yaml"]);
    assert!(code == Some(2) && error.contains("/nonexistent.yaml"), "{error}");
    // A state directory cannot be in a file.
    let listen = ["--api", "127.0.0.1:0", "--southbound", "127.0.0.1:0"];
    let (code, error) = run(&[&["controller", "--state-dir", "/dev/null/state"][..], &listen].concat());
    assert_eq!(code, Some(6), "{error}");
}

#[test]
fn completion_knows_the_verbs() {
    for shell in ["bash", "zsh", "fish"] {
        let script = output(sluice().args(["completion", shell]));
        let text = String::from_utf8_lossy(&script.stdout).into_owned();
        assert!(
            script.status.success() && text.contains("sluice") && text.contains("enroll"),
            "{shell}: {text}"
        );
    }
}

const GROUPS: &str = "
vpcs:
  - name: db
    tenant: red
    subnets: [{name: back, ipv4: 10.1.0.0/24}]
    security_groups:
      - name: sql
        description: databases
        rules:
          - {direction: ingress, family: ipv4, protocol: tcp, ports: 5432, remote: {group: clients}}
          - {direction: ingress, family: ipv4, protocol: icmp, icmp_type: 8}
      - {name: clients}
    instances:
      - {name: db-1, subnet: back, host: metal, security_groups: [sql, default]}
      - {name: db-2, subnet: back, host: metal, security_groups: []}
      - {name: db-3, subnet: back, host: metal}
";

#[test]
fn security_groups_by_file_and_by_commands() {
    let site = Site::start();
    site.ok(&["apply", "-f", &site.file("cloud.yaml", CLOUD)]);
    let file = site.file("groups.yaml", GROUPS);
    let planned = site.ok(&["apply", "-f", &file, "--dry-run"]);
    assert!(planned.contains("would create security rule ingress ipv4 tcp of sql"), "{planned}");
    assert!(planned.ends_with("7 to create, 2 unchanged\n"), "{planned}");
    let made = site.ok(&["apply", "-f", &file]);
    assert!(made.ends_with("7 created, 2 unchanged\n"), "{made}");
    let again = site.ok(&["apply", "-f", &file]);
    assert!(again.ends_with("0 created, 9 unchanged\n"), "{again}");
    let wrong = site.file("wrong.yaml", &GROUPS.replace("ports: 5432", "icmp_type: 5432"));
    assert!(site.fails(2, &["apply", "-f", &wrong]).contains("icmp_type"));

    let id = |group: &str| site.json(&["security-groups", "show", group, "--vpc", "db"])["id"].clone();
    let groups = |name: &str| site.json(&["instances", "show", name])["security_groups"].clone();
    let both = serde_json::json!([id("default"), id("sql")]);
    assert_eq!((groups("db-1"), groups("db-2")), (both.clone(), serde_json::json!([])));
    assert_eq!(groups("db-3"), serde_json::json!([id("default")]));
    let list = site.ok(&["security-rules", "list", "--group", "sql", "--vpc", "db"]);
    assert!(list.starts_with("ID") && list.lines().count() == 5 && list.contains("5432"), "{list}");

    // The same by commands.
    let group = site.json(&["security-group", "create", "ops", "--vpc", "db", "--description", "staff"]);
    assert_eq!(group["description"], "staff");
    let ssh = ["security-rules", "create", "ingress", "--group", "ops", "--vpc", "db", "--protocol", "tcp"];
    let ssh = [&ssh[..], &["--ports", "22", "--remote", "192.0.2.0/24"]].concat();
    let rule = site.json(&ssh);
    assert_eq!((&rule["family"], &rule["ports"]), (&Value::from("ipv4"), &Value::from("22")));
    assert!(site.fails(1, &ssh).contains("has this rule already"));
    let family = ["security-rules", "create", "egress", "--group", "ops", "--vpc", "db"];
    let no_length = site.fails(2, &[&family[..], &["--remote", "10.1.0.12"]].concat());
    assert!(no_length.contains("`10.1.0.12` is not a prefix: expected ADDRESS/LENGTH"), "{no_length}");
    assert!(site.fails(2, &family).contains("--family"));
    let from_group = [&family[..], &["--family", "ipv6", "--remote-group", "sql"]].concat();
    assert_eq!(site.json(&from_group)["remote"]["group"], id("sql"));
    let used = site.fails(1, &["security-groups", "delete", "clients", "--vpc", "db"]);
    assert!(used.contains("security group `clients` is still used by rule sgr-"), "{used}");
    let kept = site.fails(1, &["security-groups", "update", "default", "--vpc", "db", "--name", "x"]);
    assert!(kept.contains("cannot be deleted or renamed"), "{kept}");
    let renamed = site.json(&["security-groups", "update", "ops", "--vpc", "db", "--name", "staff"]);
    assert_eq!(renamed["name"], "staff");

    let new = ["instances", "create", "db-4", "--vpc", "db", "--subnet", "back", "--host", "metal"];
    let open = site.json(&[&new[..], &["--no-security-groups"]].concat());
    assert_eq!(open["security_groups"], serde_json::json!([]));
    let set = ["instances", "set-security-groups", "db-4"];
    let two = [&set[..], &["--security-group", "sql", "--security-group", "default"]].concat();
    assert_eq!(site.json(&two)["security_groups"], both);
    assert_eq!(
        site.json(&[&set[..], &["--no-security-groups"]].concat())["security_groups"],
        open["security_groups"]
    );
    assert!(site.fails(2, &set).contains("--no-security-groups"));
    site.fails(2, &[&two[..], &["--no-security-groups"]].concat());
    assert!(site.fails(4, &[&set[..], &["--security-group", "dmz"]].concat()).contains("dmz"));
    let delete = ["security-rules", "delete", rule["id"].as_str().expect("an id")];
    // A host whose agent does not run.
    site.json(&["hosts", "create", "absent", "--vtep", "192.0.2.29"]);
    site.json(&["instances", "create", "db-5", "--vpc", "db", "--subnet", "back", "--host", "absent"]);
    let unanswered = site.fails(5, &[&delete[..], &["--dry-run"]].concat());
    assert!(unanswered.contains("0 sessions on 0 of 1 host would end"), "{unanswered}");
    assert!(unanswered.contains("host `absent`: it has no stream"), "{unanswered}");
    site.ok(&delete);
}

#[test]
fn further_addresses_of_instances() {
    let site = Site::start();
    site.json(&["tenants", "create", "red"]);
    let cluster = ["clusters", "create", "c", "--vip", "192.0.2.100"];
    site.json(&cluster);
    site.json(&["hosts", "create", "metal", "--vtep", "192.0.2.1"]);
    site.json(&["vpcs", "create", "web", "--tenant", "red"]);
    site.json(&["subnets", "create", "front", "--vpc", "web", "--ipv4", "10.0.0.0/24"]);
    let new = ["instances", "create", "vm", "--vpc", "web", "--subnet", "front", "--host", "metal"];
    let options =
        ["--secondary-address", "10.0.0.9", "--address-pair", "10.0.0.60=00:00:5e:00:01:05", "--dscp", "46"];
    let made = site.json(&[&new[..], &options].concat());
    assert_eq!(made["secondary_addresses"], serde_json::json!(["10.0.0.9"]));
    assert_eq!((&made["qos"]["dscp"], &made["spoofing_protection"]), (&46.into(), &true.into()));

    let set = ["instances", "set-addresses", "vm"];
    let changed =
        site.json(&[&set[..], &["--delegated-prefix", "10.244.0.0/24", "--no-secondary-addresses"]].concat());
    assert_eq!(changed["delegated_prefixes"], serde_json::json!(["10.244.0.0/24"]));
    assert_eq!(changed["secondary_addresses"], serde_json::json!([]));
    assert!(site.fails(2, &set).contains("--delegated-prefix"));
    assert!(
        site.fails(1, &[&set[..], &["--secondary-address", "10.0.0.60"]].concat()).contains("already used")
    );
    site.fails(2, &[&set[..], &["--delegated-prefix", "10.244.0.1/24"]].concat());

    // Of the QoS, what is not named stays.
    let qos = ["instances", "set-qos", "vm"];
    let limited = site.json(&[&qos[..], &["--rate-mbps", "100"]].concat());
    assert_eq!(limited["qos"], serde_json::json!({"dscp": 46, "rate_mbps": 100}));
    let kept = site.json(&[&qos[..], &["--dscp", "keep", "--rate-mbps", "unlimited"]].concat());
    assert_eq!(kept["qos"], serde_json::json!({"dscp": null, "rate_mbps": null}));
    assert!(site.fails(2, &qos).contains("--rate-mbps"));
    let off = site.json(&["instances", "set-spoofing-protection", "vm", "off"]);
    assert_eq!(off["spoofing_protection"], false);
    let listed = site.ok(&["instances", "list"]);
    assert!(listed.contains("10.0.0.60=00:00:5e:00:01:05") && listed.contains("10.244.0.0/24"), "{listed}");
    let none = site.json(&["instances", "set-address-pairs", "vm", "--no-address-pairs"]);
    assert_eq!(none["address_pairs"], serde_json::json!([]));
}
