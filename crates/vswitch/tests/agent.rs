//! A host's agent on real interfaces, with a test controller.

#[path = "../../agent/tests/support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;
use sluice_southbound::{Group, Port, Update, Vrf};
use sluice_types::{InstanceId, MacAddr, Vni};
use sluice_vswitch::{Args, run};
use support::{Controller, eventually, in_namespace, ip, local};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

struct Fixture {
    dir: tempfile::TempDir,
    pins: PathBuf,
    socket: PathBuf,
}

impl Fixture {
    fn new(name: &str) -> Self {
        let pins = PathBuf::from(format!("/sys/fs/bpf/sluice-test-{}-{name}", std::process::id()));
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        Self { dir, pins, socket }
    }

    fn args(&self, more: &[&str]) -> Args {
        let path = |name: &str| self.dir.path().join(name).display().to_string();
        let mut line = vec!["vswitch".to_owned()];
        line.extend(["--enrollment".into(), path("enrollment.json"), "--state-dir".into(), path("state")]);
        line.extend(["--socket".into(), path("socket"), "--pin-dir".into(), self.pins.display().to_string()]);
        line.extend(["--table-memory-mib".into(), "1".into(), "--uplink".into(), "u0".into()]);
        line.extend(["--port-names".into(), "tap*".into()]);
        line.extend(more.iter().map(|word| (*word).to_owned()));
        Cli::parse_from(line).args
    }
}

fn cloud() -> Update {
    let vni = Vni::new(7).unwrap();
    let vip = "192.0.2.100".parse().unwrap();
    Update {
        revision: 10,
        database_id: 3,
        snapshot: true,
        groups: vec![Group { id: 1, vips: vec![vip], detect: false }],
        vrfs: vec![Vrf { vni, mtu: 1430, router4: None, router6: None, group: Some(1), elephant_kbps: 0 }],
        ports: vec![Port {
            instance: InstanceId::new(5),
            name: "blue/vm".to_owned(),
            vni,
            mac: MacAddr::local(5),
            ipv4: Some("10.0.0.5/24".parse().unwrap()),
            router4: Some("10.0.0.1".parse().unwrap()),
            ipv6: None,
            ipv6_dhcp: false,
            mtu: 1430,
            dns4: Vec::new(),
        }],
        ..Update::default()
    }
}

async fn attach(socket: &Path, ifname: &str, instance: &str) -> (u16, serde_json::Value) {
    let body = serde_json::json!({ "ifname": ifname, "instance": instance }).to_string();
    local(socket, "POST", "/ports/attach", &body).await
}

/// Number of ports in the tables, and number of interfaces with a program.
async fn state(socket: &Path) -> (u64, usize) {
    let (_, status) = local(socket, "GET", "/status", "").await;
    (status["tables"]["ports"].as_u64().unwrap(), status["interfaces"].as_array().unwrap().len())
}

#[test]
fn port_is_attached_survives_the_agent_and_is_removed_with_its_instance() {
    in_namespace(|| async {
        ip("link add tap0 type veth peer name vm0");
        let fixture = Fixture::new("port");
        let mut controller =
            Controller::start("host:host-3", &fixture.dir.path().join("enrollment.json")).await;
        let agent = tokio::spawn(run(fixture.args(&[])));
        assert_eq!(controller.hello().await.applied_revision, 0);
        assert!(!controller.heartbeat().await.vnis_reported, "only gateways report the traffic of VNIs");
        // The operator may attach the interface before the controller sends the instance.
        let socket = fixture.socket.clone();
        let early = tokio::spawn(async move { attach(&socket, "tap0", "vm").await });
        assert_eq!(controller.step(cloud()).await.failures, Vec::<String>::new());
        let (status, port) = early.await.unwrap();
        assert_eq!(
            (status, &port["id"], &port["ipv4"]),
            (200, &"inst-5".into(), &"10.0.0.5/24".into()),
            "{port}"
        );
        assert_eq!(state(&fixture.socket).await, (1, 2));
        assert!(ip("-d link show dev sluice-vx").contains("external"));
        assert!(ip("link show dev tap0").contains("UP"));

        agent.abort();
        let _ = agent.await;
        let agent = tokio::spawn(run(fixture.args(&[])));
        assert_eq!(controller.hello().await.applied_revision, 10);
        assert_eq!(state(&fixture.socket).await, (1, 2));

        let removal = Update {
            revision: 11,
            database_id: 3,
            removed_ports: vec![InstanceId::new(5)],
            ..Update::default()
        };
        assert_eq!(controller.step(removal).await.failures, Vec::<String>::new());
        assert_eq!(
            state(&fixture.socket).await,
            (0, 2),
            "the program stays on the interface, and drops packets"
        );
        let (_, ports) = local(&fixture.socket, "GET", "/ports", "").await;
        assert_eq!(
            (&ports["ports"][0]["ifname"], &ports["ports"][0]["active"]),
            (&"tap0".into(), &false.into())
        );
        let detach = r#"{"ifname":"tap0"}"#;
        assert_eq!(local(&fixture.socket, "POST", "/ports/detach", detach).await.0, 200);
        assert_eq!(local(&fixture.socket, "POST", "/ports/detach", detach).await.0, 404);
        assert_eq!(state(&fixture.socket).await, (0, 2), "and after it was detached");

        agent.abort();
        let _ = agent.await;
        run(fixture.args(&["--flush"])).await.unwrap();
        assert!(!ip("link show").contains("sluice-vx"));
        run(fixture.args(&["--flush", "--unguard"])).await.unwrap();
        assert!(!fixture.pins.exists());
    });
}

#[test]
fn interfaces_that_cannot_be_ports_are_refused() {
    in_namespace(|| async {
        ip("link add tap0 type veth peer name vm0");
        ip("link add tap1 type veth peer name vm1");
        let fixture = Fixture::new("refused");
        let mut controller =
            Controller::start("host:host-3", &fixture.dir.path().join("enrollment.json")).await;
        let agent = tokio::spawn(run(fixture.args(&["--vtep", "2001:db8::10"])));
        controller.hello().await;
        controller.step(cloud()).await;
        // An interface with an address of the host, and a port of a bridge.
        ip("link add tap2 type veth peer name vm2");
        ip("address add 198.51.100.1/24 dev tap2");
        ip("link add br0 type bridge");
        ip("link set vm2 master br0");
        for (ifname, reason) in [
            ("u0", "of this host itself"),
            ("sluice-vx", "of this host itself"),
            ("lo", "of this host itself"),
            ("nothere", "no interface"),
            ("tap2", "198.51.100.1 of this host"),
            ("vm2", "a port of a bridge"),
        ] {
            let (status, answer) = attach(&fixture.socket, ifname, "vm").await;
            assert_eq!(status, 400, "{ifname}: {answer}");
            assert!(answer["error"].as_str().unwrap().contains(reason), "{ifname}: {answer}");
        }
        // Without a wait for the instance, which would end with another error.
        assert_eq!(attach(&fixture.socket, "nothere", "unknown").await.0, 400);
        assert_eq!(attach(&fixture.socket, "tap0", "blue/vm").await.0, 200);
        let (status, answer) = attach(&fixture.socket, "tap1", "blue/vm").await;
        assert_eq!(status, 409, "{answer}");
        assert!(answer["error"].as_str().unwrap().contains("tap0"), "{answer}");
        ip("link del tap0");
        let socket = fixture.socket.clone();
        // The list of interfaces is that of the pins.
        eventually("the port of the deleted interface and its pin are removed", || {
            let status = local(&socket, "GET", "/status", "");
            let (_, status) =
                tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(status));
            let is_pinned = status["interfaces"].as_array().unwrap().iter().any(|name| name == "tap0");
            (status["tables"]["ports"] == 0 && !is_pinned).then_some(())
        })
        .await;
        assert_eq!(attach(&fixture.socket, "tap1", "blue/vm").await.0, 200);
        agent.abort();
        let _ = agent.await;
        run(fixture.args(&["--flush", "--unguard"])).await.unwrap();
    });
}

/// Names of the interfaces that are listed as guarded.
async fn guarded(socket: &Path) -> Vec<String> {
    let (status, answer) = local(socket, "GET", "/ports/guarded", "").await;
    assert_eq!(status, 200, "{answer}");
    let list = answer["guarded"].as_array().unwrap();
    list.iter().map(|view| view["ifname"].as_str().unwrap().to_owned()).collect()
}

/// Names of the programs that are attached by tcx, by the names of their pins, such as `tcx-5-tap0`: `bpftool net`
/// of Debian 12 does not know tcx.
fn programs(pins: &Path) -> Vec<(String, String)> {
    let bpftool = |words: &[&str]| {
        let output = Command::new("bpftool").arg("-j").args(words).output().unwrap();
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let entries = std::fs::read_dir(pins.join("links")).unwrap().map(|entry| entry.unwrap().path());
    let program = |pin: PathBuf| {
        let link = bpftool(&["link", "show", "pinned", &pin.display().to_string()]);
        let program = bpftool(&["prog", "show", "id", &link["prog_id"].to_string()]);
        let interface = pin.file_name().unwrap().to_str().unwrap().rsplit('-').next().unwrap().to_owned();
        (interface, program["name"].as_str().unwrap().to_owned())
    };
    let mut programs: Vec<_> = entries.map(program).collect();
    programs.sort();
    programs
}

fn guard_rules() -> String {
    let output = Command::new("nft").args(["list", "ruleset"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn ipv6_disabled(ifname: &str) -> String {
    let path = format!("/proc/sys/net/ipv6/conf/{ifname}/disable_ipv6");
    std::fs::read_to_string(path).unwrap().trim().to_owned()
}

/// Catches an interface that the host's stack can use in any state of the agent and its files.
#[test]
fn interfaces_that_may_be_ports_are_always_closed() {
    in_namespace(|| async {
        ip("link add tap0 type veth peer name vm0");
        ip("link add other0 type veth peer name vm1");
        std::fs::write("/proc/sys/net/ipv6/conf/tap0/disable_ipv6", "1").unwrap();
        let fixture = Fixture::new("guard");
        let socket = &fixture.socket;
        let mut controller =
            Controller::start("host:host-3", &fixture.dir.path().join("enrollment.json")).await;
        let agent = tokio::spawn(run(fixture.args(&[])));
        controller.hello().await;
        controller.step(cloud()).await;
        assert_eq!(guarded(socket).await, ["tap0"], "before it is attached");
        ip("link add tap1 type veth peer name vm2");
        let closed_by = |ifname: &str, program: &str| {
            programs(&fixture.pins).contains(&(ifname.to_owned(), program.to_owned()))
        };
        eventually("a new interface is closed", || closed_by("tap1", "port_ingress").then_some(())).await;
        assert_eq!(ipv6_disabled("tap1"), "1");
        let (status, answer) = attach(socket, "other0", "vm").await;
        assert!(status == 400 && answer["error"].as_str().unwrap().contains("--port-names"), "{answer}");
        assert_eq!(attach(socket, "tap0", "vm").await.0, 200);
        assert_eq!(guarded(socket).await, ["tap1"]);
        assert!(guard_rules().contains(r#"iifname "tap*""#), "{}", guard_rules());
        // Another program removes all rules, or some. A change of any interface makes the agent look.
        let (complete, taps) = (guard_rules(), guard_rules().matches(r#"name "tap*" goto"#).count());
        assert_eq!(taps, 4, "{complete}");
        for change in ["flush ruleset", "flush chain arp sluice_guard sent"] {
            assert!(Command::new("nft").args(change.split(' ')).status().unwrap().success());
            ip("link set other0 up");
            ip("link set other0 down");
            let is_complete = || (guard_rules().matches(r#"name "tap*" goto"#).count() == taps).then_some(());
            eventually("the guard is installed again", is_complete).await;
        }

        agent.abort();
        let _ = agent.await;
        std::fs::remove_file(fixture.dir.path().join("state/attachments.json")).unwrap();
        let agent = tokio::spawn(run(fixture.args(&[])));
        controller.hello().await;
        assert_eq!(guarded(socket).await, ["tap0", "tap1"], "the file of attachments was lost");
        assert_eq!(state(socket).await, (0, 3), "no port, and all have their program");

        agent.abort();
        let _ = agent.await;
        run(fixture.args(&["--flush"])).await.unwrap();
        assert!(closed_by("tap0", "guard") && closed_by("tap1", "guard"), "{:?}", programs(&fixture.pins));
        assert_eq!(ipv6_disabled("tap1"), "1");
        assert!(guard_rules().contains("tap*"));
        // The next agent adopts the attachments of the guard.
        let agent = tokio::spawn(run(fixture.args(&[])));
        controller.hello().await;
        assert_eq!(guarded(socket).await, ["tap0", "tap1"]);
        assert!(closed_by("tap0", "port_ingress"), "{:?}", programs(&fixture.pins));
        // Not those of the loopback interface.
        let records = || {
            let entries = std::fs::read_dir(fixture.pins.join("changes")).unwrap();
            entries.filter(|entry| format!("{entry:?}").contains("disable_ipv6")).count()
        };
        ip("link add tap2 type veth peer name vm3");
        eventually("the change of tap2 is recorded", || (records() == 2).then_some(())).await;
        ip("link del tap2");
        eventually("its record is removed", || (records() == 1).then_some(())).await;

        agent.abort();
        let _ = agent.await;
        run(fixture.args(&["--flush", "--unguard"])).await.unwrap();
        let disabled = ["tap0", "tap1"].map(ipv6_disabled);
        assert_eq!(
            (guard_rules().as_str(), disabled),
            ("", ["1", "0"].map(str::to_owned)),
            "as before the agent"
        );
        assert!(!fixture.pins.exists());
    });
}

#[test]
fn names_of_the_hosts_own_interfaces_are_refused() {
    in_namespace(|| async {
        let fixture = Fixture::new("names");
        for names in ["u*", "u0", "sluice-*", "l*"] {
            let mut args = fixture.args(&[]);
            args.port_names = vec!["tap*".parse().unwrap(), names.parse().unwrap()];
            let error = run(args).await.unwrap_err().to_string();
            assert!(error.contains("an interface of this host itself"), "{names}: {error}");
        }
        let mut args = fixture.args(&[]);
        args.port_names = (0..17).map(|number| format!("tap{number}").parse().unwrap()).collect();
        assert!(run(args).await.unwrap_err().to_string().contains("at most 16"));
        assert_eq!(guard_rules(), "");
    });
}
