//! A host's agent on real interfaces, with a test controller.

#[path = "../../agent/tests/support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};

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
        assert_eq!(state(&fixture.socket).await, (0, 1));

        agent.abort();
        let _ = agent.await;
        run(fixture.args(&["--flush"])).await.unwrap();
        assert!(!fixture.pins.exists() && !ip("link show").contains("sluice-vx"));
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
            let state =
                tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(state(&socket)));
            (state == (0, 1)).then_some(())
        })
        .await;
        assert_eq!(attach(&fixture.socket, "tap1", "blue/vm").await.0, 200);
        agent.abort();
        let _ = agent.await;
        run(fixture.args(&["--flush"])).await.unwrap();
    });
}
