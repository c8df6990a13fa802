//! The gateway's agent on a real interface, with a test controller.

#[path = "../../agent/tests/support/mod.rs"]
mod support;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::Parser;
use sluice_gateway::{Args, run};
use sluice_southbound::{
    ClusterPlan, Endpoint, Member, PlannedVip, PreferredOwner, Route, RouteKey, Scope, Update, Vip, Vrf,
    Vtep, VtepRole,
};
use sluice_types::{ClusterId, GatewayId, MacAddr, Vni};
use support::{Controller, eventually, in_namespace, ip, local, metrics};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

struct Fixture {
    dir: tempfile::TempDir,
    pins: PathBuf,
}

const METRICS: &str = "127.0.0.1:9100";

impl Fixture {
    fn new(name: &str) -> Self {
        let pins = PathBuf::from(format!("/sys/fs/bpf/sluice-test-{}-{name}", std::process::id()));
        Self { dir: tempfile::tempdir().unwrap(), pins }
    }

    fn args(&self, more: &[&str]) -> Args {
        let path = |name: &str| self.dir.path().join(name).display().to_string();
        let mut line = vec!["gateway".to_owned()];
        line.extend(["--enrollment".into(), path("enrollment.json"), "--state-dir".into(), path("state")]);
        line.extend(["--socket".into(), path("socket"), "--pin-dir".into(), self.pins.display().to_string()]);
        line.extend(["--table-memory-mib".into(), "1".into(), "--interface".into(), "u0".into()]);
        line.extend(more.iter().map(|word| (*word).to_owned()));
        Cli::parse_from(line).args
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A plan in which the vIP belongs to this gateway.
fn plan() -> ClusterPlan {
    let gateway = GatewayId::new(7);
    let vtep4 = Some([192, 0, 2, 7].into());
    ClusterPlan {
        cluster: ClusterId::new(1),
        revision: 10,
        vips: vec![PlannedVip { slot: 0, address: address("192.0.2.100"), mac: MacAddr::local(9) }],
        members: vec![Member { gateway, vtep4, vtep6: None, draining: false }],
        preferred_owners: vec![PreferredOwner { slot: 0, gateway }],
        hello_interval_ms: 4,
    }
}

fn cloud() -> Update {
    let vni = Vni::new(7).unwrap();
    Update {
        revision: 10,
        database_id: 3,
        snapshot: true,
        vteps: ["192.0.2.1", "2001:db8::1", "198.51.100.1", "203.0.113.1"]
            .map(|host| Vtep { address: address(host), role: VtepRole::Host })
            .into(),
        vips: vec![Vip { address: address("192.0.2.100"), mac: MacAddr::local(9) }],
        cluster: Some(plan()),
        vrfs: vec![Vrf { vni, mtu: 1430, router4: None, router6: None, group: None, elephant_kbps: 0 }],
        endpoints: vec![Endpoint {
            vni,
            ipv4: "10.0.0.5".parse().ok(),
            ipv6: None,
            mac: MacAddr::local(1),
            host: address("192.0.2.1"),
        }],
        routes: vec![Route {
            key: RouteKey { vni, prefix: "10.0.0.0/24".parse().unwrap() },
            scope: Scope::Local,
        }],
        ..Update::default()
    }
}

/// Id of the XDP program on the underlay interface.
fn program() -> Option<u64> {
    let links: serde_json::Value = serde_json::from_str(&ip("-j -d link show dev u0")).unwrap();
    links[0]["xdp"]["prog"]["id"].as_u64()
}

/// Neighbors that the kernel keeps resolved for the agent.
fn managed() -> Vec<String> {
    let neighbors = ip("neigh show dev u0");
    let managed = neighbors.lines().filter(|line| line.contains("managed"));
    let mut found: Vec<_> = managed.map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    found.sort();
    found
}

#[test]
fn gateway_applies_updates_and_resumes_after_a_crash() {
    in_namespace(|| async {
        let fixture = Fixture::new("life");
        ip("route add 198.51.100.0/24 nexthop via 192.0.2.3 dev u0 nexthop via 192.0.2.4 dev u0");
        let mut controller =
            Controller::start("gateway:gw-7", &fixture.dir.path().join("enrollment.json")).await;
        let agent = tokio::spawn(run(fixture.args(&["--metrics", METRICS])));
        let hello = controller.hello().await;
        assert_eq!((hello.applied_revision, hello.database_id), (0, 0));
        let heartbeat = controller.heartbeat().await;
        assert!(
            heartbeat.vnis_reported && heartbeat.cells_total > 0,
            "a gateway reports the traffic of VNIs"
        );
        let ack = controller.step(cloud()).await;
        assert_eq!(ack.failures, Vec::<String>::new());
        let first = program().expect("XDP is attached");
        // There is no route to the last VTEP, and so no neighbor.
        let expected = ["192.0.2.1", "192.0.2.3", "192.0.2.4", "2001:db8::1"];
        eventually("neighbors are kept resolved", || (managed() == expected).then_some(())).await;

        let page = metrics(METRICS.parse::<SocketAddr>().unwrap()).await;
        for line in [
            "sluice_controller_connected 1",
            "sluice_revision_applied 10",
            "sluice_vni_packets_total{vni=\"7\"} 0",
            "sluice_offload_all 0",
            "sluice_flow_events_total{outcome=\"notified\"} 0",
            "sluice_flow_events_lost_total 0",
            "sluice_flow_events_refused_total 0",
            "sluice_rsp_refused_total{reason=\"authentication_failed\"} 0",
            "sluice_rsp_sent_total{kind=\"notify\"} 0",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} in {page}");
        }
        assert!(page.contains("sluice_gateway_load_ratio{resource=\"cpu\"} "), "{page}");
        agent.abort();
        let _ = agent.await;
        assert_eq!(program(), Some(first), "the program runs without an agent");

        let agent = tokio::spawn(run(fixture.args(&[])));
        let hello = controller.hello().await;
        assert_eq!((hello.applied_revision, hello.database_id), (10, 3));
        assert!(program().is_some_and(|new| new != first), "the new agent has replaced the program");
        let removal = Update {
            revision: 11,
            database_id: 3,
            removed_vteps: vec![address("2001:db8::1")],
            ..Update::default()
        };
        assert_eq!(controller.step(removal).await.failures, Vec::<String>::new());
        eventually("the neighbor of the removed VTEP is released", || {
            (managed() == expected[..3]).then_some(())
        })
        .await;
        let (status, answer) = local(&fixture.dir.path().join("socket"), "GET", "/status", "").await;
        assert_eq!(status, 200);
        assert_eq!(
            (&answer["tables"]["endpoints"], &answer["adopted"]),
            (&1.into(), &true.into()),
            "{answer}"
        );

        controller.hang_up();
        assert_eq!(controller.hello().await.applied_revision, 11);
        agent.abort();
        let _ = agent.await;
        run(fixture.args(&["--flush"])).await.unwrap();
        assert_eq!((program(), fixture.pins.exists()), (None, false));
    });
}

#[test]
fn invalid_configuration_is_refused_before_anything_is_changed() {
    in_namespace(|| async {
        let fixture = Fixture::new("refused");
        let error = |result: Result<(), sluice_gateway::Error>| result.unwrap_err().to_string();
        let foreign = error(run(fixture.args(&["--vtep4", "203.0.113.1"])).await);
        assert!(foreign.contains("203.0.113.1 is on no interface"), "{foreign}");
        let missing = error(run(fixture.args(&["--interface", "nothere"])).await);
        assert!(missing.contains("\"nothere\""), "{missing}");
        let twice = error(run(fixture.args(&["--interface", "u0"])).await);
        assert!(twice.contains("twice"), "{twice}");
        assert_eq!((program(), fixture.pins.exists()), (None, false));
    });
}

#[test]
fn second_agent_with_the_same_state_directory_is_refused() {
    in_namespace(|| async {
        let fixture = Fixture::new("twice");
        let mut controller =
            Controller::start("gateway:gw-7", &fixture.dir.path().join("enrollment.json")).await;
        let agent = tokio::spawn(run(fixture.args(&[])));
        controller.hello().await;
        let second = run(fixture.args(&[])).await.unwrap_err().to_string();
        assert!(second.contains("another agent is running"), "{second}");
        // The programs and tables are those of the first agent, whatever the state directory is.
        let other = Fixture { dir: tempfile::tempdir().unwrap(), pins: fixture.pins.clone() };
        std::fs::copy(fixture.dir.path().join("enrollment.json"), other.dir.path().join("enrollment.json"))
            .unwrap();
        for more in [&[] as &[&str], &["--flush"]] {
            let second = run(other.args(more)).await.unwrap_err().to_string();
            assert!(second.contains("with the programs and tables in"), "{second}");
        }
        assert!(program().is_some());
        agent.abort();
        let _ = agent.await;
        run(fixture.args(&["--flush"])).await.unwrap();
    });
}

/// Catches: a host's agent started as a gateway, whose XDP program would take VXLAN packets from the host.
#[test]
fn host_cannot_run_as_a_gateway() {
    in_namespace(|| async {
        let fixture = Fixture::new("role");
        let _controller = Controller::start("host:host-3", &fixture.dir.path().join("enrollment.json")).await;
        let error = run(fixture.args(&[])).await.unwrap_err().to_string();
        assert!(error.contains("host:host-3, which cannot run as a gateway"), "{error}");
        assert_eq!((program(), fixture.pins.exists()), (None, false));
    });
}
