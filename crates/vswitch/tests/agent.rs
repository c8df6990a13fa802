//! A host's agent on real interfaces, with a test controller.

#[path = "../../agent/tests/support/mod.rs"]
mod support;

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;
use sluice_southbound::{Group, Policy, PolicyKey, Port, Qos, SecurityRule, Update, Vrf};
use sluice_types::{
    AddressFamily, Direction, InstanceId, MacAddr, PortRange, Protocol, ROUTER_MAC, Remote, RuleMatch,
    SecurityRuleId, Vni,
};
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
        groups: vec![Group { id: 1, vips: vec![vip], detect_after_ms: None }],
        vrfs: vec![Vrf {
            vni,
            mtu: 1430,
            router4: None,
            router6: None,
            group: Some(1),
            elephant_kbps: 0,
            internet_meter: None,
        }],
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
            identity: 0,
            options: sluice_southbound::PortOptions::default(),
            migration: None,
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

/// The queueing disciplines and the classes of tap0, as `tc` shows them.
fn tc() -> String {
    let show = |what: &str| {
        let output = Command::new("tc").args([what, "show", "dev", "tap0"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    show("qdisc") + &show("class")
}

fn change_tc(line: &str) {
    assert!(Command::new("tc").args(line.split(' ')).status().unwrap().success(), "{line}");
}

/// Catches a rate that is not enforced, is lost, or outlives the port, and an agent whose start drops what waits.
#[test]
fn a_port_is_shaped_while_it_has_a_rate() {
    in_namespace(|| async {
        ip("link add tap0 type veth peer name vm0");
        let fixture = Fixture::new("rate");
        let socket = &fixture.socket;
        let mut controller =
            Controller::start("host:host-3", &fixture.dir.path().join("enrollment.json")).await;
        let agent = tokio::spawn(run(fixture.args(&[])));
        controller.hello().await;
        let mut revision = 10;
        let mut with_qos = |dscp: Option<u8>, rate_mbps: u32| {
            let mut update = cloud();
            (update.revision, update.snapshot) = (revision, revision == 10);
            revision += 1;
            update.ports[0].options.qos = Qos { dscp, rate_mbps: NonZeroU32::new(rate_mbps), credit: None };
            update
        };
        let has = |parts: &'static [&'static str]| {
            move || parts.iter().all(|part| tc().contains(part)).then_some(())
        };
        controller.step(with_qos(Some(46), 8)).await;
        let (status, port) = attach(socket, "tap0", "vm").await;
        assert_eq!((status, &port["dscp"], &port["rate_mbps"]), (200, &46.into(), &8.into()), "{port}");
        let at_8: &[&str] =
            &["htb 51ce: root", "rate 8Mbit ceil 8Mbit", "51ce:20", "51ce:16", "bfifo 51cf:", "bfifo 51d0:"];
        assert!(has(at_8)().is_some(), "{}", tc());
        controller.step(with_qos(None, 20)).await;
        eventually("the new rate is set", has(&["htb 51ce: root", "rate 20Mbit ceil 20Mbit"])).await;
        // Another program changes and removes it.
        let at_20: &[&str] = &["htb 51ce: root", "rate 20Mbit ceil 20Mbit", "bfifo 51cf:"];
        for change in
            ["class change dev tap0 parent 51ce: classid 51ce:1 htb rate 1mbit", "qdisc del dev tap0 root"]
        {
            change_tc(change);
            eventually("the shaper is restored", has(at_20)).await;
        }
        let mut monitor =
            Command::new("tc").arg("monitor").stdout(std::process::Stdio::piped()).spawn().unwrap();
        agent.abort();
        let _ = agent.await;
        let agent = tokio::spawn(run(fixture.args(&[])));
        controller.hello().await;
        assert!(has(at_20)().is_some(), "{}", tc());
        monitor.kill().unwrap();
        let events = monitor.wait_with_output().unwrap().stdout;
        let events = String::from_utf8(events).unwrap();
        assert!(!events.contains("htb") && !events.contains("bfifo"), "the shaper is not touched: {events}");

        controller.step(with_qos(Some(1), 0)).await;
        eventually("the shaper is removed with the rate", || (!tc().contains("htb")).then_some(())).await;
        controller.step(with_qos(None, 20)).await;
        eventually("it returns", has(at_20)).await;
        assert_eq!(local(socket, "POST", "/ports/detach", r#"{"ifname":"tap0"}"#).await.0, 200);
        assert!(!tc().contains("htb"), "it is removed with the port: {}", tc());
        assert_eq!(attach(socket, "tap0", "vm").await.0, 200);
        assert!(has(at_20)().is_some(), "{}", tc());
        agent.abort();
        let _ = agent.await;
        run(fixture.args(&["--flush", "--unguard"])).await.unwrap();
        assert!(!tc().contains("htb"), "it is removed with the agent: {}", tc());
    });
}

/// Catches hosts on which the kernel drops packets with identities, and ones that lose packets with each start.
#[test]
fn vxlan_device_of_an_earlier_version_is_replaced_once() {
    in_namespace(|| async {
        ip("link add sluice-vx type vxlan external dstport 4789");
        let index = || ip("-o link show dev sluice-vx").split(':').next().map(str::to_owned);
        let fixture = Fixture::new("vxlan");
        let mut controller =
            Controller::start("host:host-3", &fixture.dir.path().join("enrollment.json")).await;
        let mut indices = vec![index()];
        for _ in 0..2 {
            let agent = tokio::spawn(run(fixture.args(&[])));
            controller.hello().await;
            let device = ip("-d link show dev sluice-vx");
            assert!(
                device.contains("external") && device.contains("gbp") && device.contains("UP"),
                "{device}"
            );
            let (_, status) = local(&fixture.socket, "GET", "/status", "").await;
            assert_eq!(status["interfaces"], serde_json::json!(["sluice-vx"]), "the program is attached");
            indices.push(index());
            agent.abort();
            let _ = agent.await;
        }
        assert!(indices[0] != indices[1] && indices[1] == indices[2], "{indices:?}");
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

/// A policy of identity 5 that permits UDP to these ports. The rule of port N has id N.
fn policy(ports: &[u16]) -> Policy {
    let rule = |port: &u16| {
        let any = RuleMatch::everything(Direction::Egress, AddressFamily::Ipv4, Remote::Any);
        let matches = RuleMatch { protocol: Protocol::UDP, ports: PortRange::new(*port, *port).ok(), ..any };
        SecurityRule { id: SecurityRuleId::new((*port).into()), matches }
    };
    let key = PolicyKey { vni: Vni::new(7).unwrap(), identity: 5 };
    Policy { key, rules: ports.iter().map(rule).collect(), groups: Default::default() }
}

/// A datagram of the instance to this port of another one.
fn datagram(port: u16) -> Vec<u8> {
    let mut frame = [ROUTER_MAC.octets(), MacAddr::local(5).octets()].concat();
    frame.extend([0x08, 0x00]);
    let mut header = [0x45, 0, 0, 32, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 5, 10, 0, 0, 77];
    let sum: u32 = header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let sum = !(((sum >> 16) + (sum & 0xffff)) as u16);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(header);
    frame.extend([4000_u16.to_be_bytes(), port.to_be_bytes(), 12_u16.to_be_bytes(), [0, 0]].concat());
    frame.extend([1, 2, 3, 4]);
    frame
}

/// The destination ports of the listed sessions, with the ids of their rules.
async fn sessions(socket: &Path, query: &str) -> Vec<(u64, String)> {
    let (status, answer) = local(socket, "GET", &format!("/sessions{query}"), "").await;
    assert_eq!(status, 200, "{answer}");
    let list = answer["sessions"].as_array().unwrap().iter();
    let mut found: Vec<_> = list
        .map(|view| (view["remote_port"].as_u64().unwrap(), view["rule"].as_str().unwrap_or("-").to_owned()))
        .collect();
    found.sort();
    found
}

/// Waits until these sessions are listed.
async fn eventually_sessions(socket: &Path, wanted: &[u64]) {
    let wanted: Vec<_> = wanted.iter().map(|port| (*port, format!("sgr-{port}"))).collect();
    for _ in 0..500 {
        if sessions(socket, "").await == wanted {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{:?}, not {wanted:?}", sessions(socket, "").await);
}

/// Checks the lists of ports and sessions: one port with sessions to ports 53 and 123.
async fn check_list(socket: &Path) {
    let (_, ports) = local(socket, "GET", "/ports", "").await;
    let port = &ports["ports"][0];
    assert_eq!(
        (&port["identity"], &port["filter"], &port["sessions"]),
        (&5.into(), &"policy".into(), &2.into()),
        "{port}"
    );
    for (query, found) in [
        ("?port=tap0&protocol=udp&address=10.0.0.77", 2),
        ("?instance=blue/vm&address=10.0.0.5", 2),
        ("?address=10.0.0.78", 0),
        ("?protocol=6", 0),
        ("?limit=1", 1),
    ] {
        assert_eq!(sessions(socket, query).await.len(), found, "{query}");
    }
    let (_, cut) = local(socket, "GET", "/sessions?limit=1", "").await;
    let view = &cut["sessions"][0];
    assert_eq!((&cut["is_cut"], &view["direction"]), (&true.into(), &"egress".into()), "{view}");
    assert_eq!((&view["local_address"], &view["packets_out"]), (&"10.0.0.5".into(), &1.into()), "{view}");
    for (query, status, reason) in [
        ("?port=tap9", 404, "tap9 is not attached"),
        ("?instance=red/vm", 404, "red/vm"),
        ("?limit=0", 400, "limit 0"),
        ("?protocol=foo", 400, "`foo` is not a protocol"),
        ("?address=foo", 400, "address"),
    ] {
        let (found, answer) = local(socket, "GET", &format!("/sessions{query}"), "").await;
        assert_eq!(found, status, "{answer}");
        assert!(answer["error"].as_str().unwrap().contains(reason), "{answer}");
    }
}

/// Catches sessions that are lost with their agent, live on without their rule, or are inherited; and a list that does not
/// show them.
#[test]
fn sessions_of_a_filtered_port_follow_its_policy() {
    in_namespace(|| async {
        ip("link add tap0 type veth peer name vm0");
        ip("link set vm0 up");
        let fixture = Fixture::new("filter");
        let socket = &fixture.socket;
        let mut controller =
            Controller::start("host:host-3", &fixture.dir.path().join("enrollment.json")).await;
        let more = ["--sessions", "1000", "--sessions-per-port", "5"];
        let agent = tokio::spawn(run(fixture.args(&more)));
        controller.hello().await;
        let port = Port { identity: 5, ..cloud().ports.remove(0) };
        let first = Update { policies: vec![policy(&[53, 123])], ports: vec![port], ..cloud() };
        assert_eq!(controller.step(first).await.failures, Vec::<String>::new());
        assert_eq!(attach(socket, "tap0", "vm").await.0, 200);
        let wire = sluice_sys::PacketSocket::open().unwrap();
        let vm = nix::net::if_::if_nametoindex("vm0").unwrap();
        let send = |port: u16| wire.send(vm, &datagram(port)).unwrap();
        [53, 123, 99].into_iter().for_each(send);
        eventually_sessions(socket, &[53, 123]).await;
        let (_, drops) = local(socket, "GET", "/drops", "").await;
        assert!(drops.to_string().contains("egress_denied"), "{drops}");
        check_list(socket).await;

        agent.abort();
        let _ = agent.await;
        let agent = tokio::spawn(run(fixture.args(&more)));
        assert_eq!(controller.hello().await.applied_revision, 10);
        eventually_sessions(socket, &[53, 123]).await;
        // Without the rule of port 123, its session ends; the other one gets the rule's new position.
        let delta = |revision| Update { revision, database_id: 3, ..Update::default() };
        controller.step(Update { policies: vec![policy(&[22, 53])], ..delta(11) }).await;
        eventually_sessions(socket, &[53]).await;
        send(123);
        // The instance may begin four of five sessions: after the sweep, three more fit.
        controller.step(Update { policies: vec![policy(&[22, 53, 60, 61, 62])], ..delta(12) }).await;
        let counted = || async {
            let (_, ports) = local(socket, "GET", "/ports", "").await;
            ports["ports"][0]["sessions"].as_u64().unwrap()
        };
        while counted().await != 1 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        // One without an answer that is old would make room.
        [53, 22, 60, 61, 62].into_iter().for_each(send);
        eventually_sessions(socket, &[22, 53, 60, 61]).await;
        let (_, drops) = local(socket, "GET", "/drops", "").await;
        assert!(drops.to_string().contains("session_limit"), "{drops}");

        let detach = r#"{"ifname":"tap0"}"#;
        assert_eq!(local(socket, "POST", "/ports/detach", detach).await.0, 200);
        assert_eq!(attach(socket, "tap0", "vm").await.0, 200);
        assert_eq!(sessions(socket, "").await, []);
        send(60);
        eventually_sessions(socket, &[60]).await;
        agent.abort();
        let _ = agent.await;
        run(fixture.args(&["--flush", "--unguard"])).await.unwrap();
    });
}

/// Catches an agent that does not start, or loses sessions, because its tables have another size.
#[test]
fn session_tables_keep_their_size_until_they_are_flushed() {
    in_namespace(|| async {
        let fixture = Fixture::new("sizes");
        let mut controller =
            Controller::start("host:host-3", &fixture.dir.path().join("enrollment.json")).await;
        let slots = |more: &'static [&'static str]| {
            let entries = |pins: &Path| {
                let path = pins.join("maps/sessions4").display().to_string();
                let output =
                    Command::new("bpftool").args(["-j", "map", "show", "pinned", &path]).output().unwrap();
                let map: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
                map["max_entries"].as_u64().unwrap()
            };
            let (args, pins) = (fixture.args(more), fixture.pins.clone());
            (args, move || entries(&pins))
        };
        // 1500 slots in buckets of 7.
        for (more, buckets) in [(&["--sessions", "1000"], 215), (&["--sessions", "5000"], 215)] {
            let (args, entries) = slots(more);
            let agent = tokio::spawn(run(args));
            controller.hello().await;
            assert_eq!(entries(), buckets);
            agent.abort();
            let _ = agent.await;
        }
        run(fixture.args(&["--flush", "--unguard"])).await.unwrap();
        let (args, entries) = slots(&["--sessions", "5000"]);
        let agent = tokio::spawn(run(args));
        controller.hello().await;
        assert_eq!(entries(), 1072);
        agent.abort();
        let _ = agent.await;
        run(fixture.args(&["--flush", "--unguard"])).await.unwrap();
    });
}
