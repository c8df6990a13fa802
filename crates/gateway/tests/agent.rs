//! The gateway's agent on a real interface, with a test controller.

#[path = "../../agent/tests/support/mod.rs"]
mod support;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Parser;
use sluice_datapath::{Datapath, Interface, ObjectName, Settings};
use sluice_gateway::{Args, run};
use sluice_southbound::{
    ClusterPlan, Endpoint, Member, PlannedVip, PreferredOwner, Route, RouteKey, Scope, Update, Vip, Vrf,
    Vtep, VtepRole,
};
use sluice_sys::PacketSocket;
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
        nat_seed: None,
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
        vrfs: vec![Vrf {
            vni,
            mtu: 1430,
            router4: None,
            router6: None,
            group: None,
            elephant_kbps: 0,
            internet_meter: None,
        }],
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
    managed_on("u0")
}

fn managed_on(interface: &str) -> Vec<String> {
    let neighbors = ip(&format!("neigh show dev {interface}"));
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
fn second_agent_with_the_same_directories_is_refused() {
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
        let holder = format!("(process {}) with the programs and tables in", std::process::id());
        for more in [&[] as &[&str], &["--flush"]] {
            let second = run(other.args(more)).await.unwrap_err().to_string();
            assert!(second.contains(&holder), "{second}");
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

/// Catches a review that ends at the first interface that cannot be used or that does not try it again, and the pin
/// of a removed interface that stays.
#[test]
fn interface_that_cannot_be_used_does_not_stop_the_review_of_the_others() {
    in_namespace(|| async {
        let fixture = Fixture::new("bad");
        ip("link add u1 type veth peer name t1");
        ip("address add 198.51.100.10/24 dev u1");
        ip("link set u1 up");
        ip("link set t1 up");
        let mut controller =
            Controller::start("gateway:gw-7", &fixture.dir.path().join("enrollment.json")).await;
        let agent = tokio::spawn(run(fixture.args(&["--interface", "u1"])));
        controller.hello().await;
        let pins = || std::fs::read_dir(fixture.pins.join("links")).unwrap().count();
        assert_eq!(pins(), 2);
        // The first interface is replaced by one that has a program of another agent.
        ip("link add x0 type veth peer name y0");
        let settings = Settings {
            object: ObjectName::Gateway,
            cells: 4096,
            pin_dir: Some(Fixture::new("foreign").pins),
        };
        let other = Datapath::load(&settings).unwrap();
        let occupied = Interface::by_name("x0").unwrap();
        other.attach_xdp("gateway", &occupied).unwrap();
        ip("link del u0");
        ip("link set x0 name u0");
        ip("link set u0 up");
        ip("link set y0 up");
        let foreign = program().unwrap();
        assert_eq!(controller.step(cloud()).await.failures, Vec::<String>::new());
        eventually("the neighbor on the other interface is kept resolved", || {
            (managed_on("u1") == ["198.51.100.1"]).then_some(())
        })
        .await;
        eventually("the pin of the removed interface is removed", || (pins() == 1).then_some(())).await;
        assert_eq!(program(), Some(foreign));
        other.detach(&occupied).unwrap();
        ip("address add 192.0.2.10/24 dev u0");
        eventually("the program is attached as soon as that is possible", program).await;
        agent.abort();
        let _ = agent.await;
        run(fixture.args(&["--flush"])).await.unwrap();
        sluice_datapath::flush(settings.pin_dir.as_ref().unwrap()).unwrap();
    });
}

/// Catches a setting that stays changed, one that is restored to what an agent itself had set, and one that the
/// operator has changed since.
#[test]
fn flush_restores_the_interfaces() {
    in_namespace(|| async {
        let fixture = Fixture::new("restore");
        ip("link add u1 type veth peer name t1");
        ip("address add 198.51.100.10/24 dev u1");
        ip("link set u1 up promisc on");
        ip("link set t1 up");
        let path = |name: &str| format!("/proc/sys/net/{name}");
        let read = |name: &str| std::fs::read_to_string(path(name)).unwrap().trim().to_owned();
        let write = |name: &str, value: &str| std::fs::write(path(name), value).unwrap();
        let settings = [
            "ipv4/conf/u0/forwarding",
            "ipv6/conf/u0/accept_ra",
            "ipv4/conf/u1/forwarding",
            "ipv4/conf/lo/forwarding",
            "ipv6/conf/lo/forwarding",
        ];
        let all = || settings.map(read);
        write("ipv4/conf/u1/forwarding", "1");
        let before = all();
        assert_eq!(before, ["0", "1", "1", "0", "0"]);
        let promiscuous = |name: &str| ip(&format!("link show dev {name}")).contains("PROMISC");
        let mut controller =
            Controller::start("gateway:gw-7", &fixture.dir.path().join("enrollment.json")).await;
        let interfaces = ["--interface", "u1"];
        // The second agent finds everything changed already.
        for _ in 0..2 {
            let agent = tokio::spawn(run(fixture.args(&interfaces)));
            controller.hello().await;
            controller.step(cloud()).await;
            eventually("neighbors are kept resolved", || managed().first().cloned()).await;
            assert_eq!(all(), ["0", "1", "1", "1", "1"]);
            assert!(promiscuous("u0") && promiscuous("u1"));
            agent.abort();
            let _ = agent.await;
        }
        // An interface that is not an underlay interface any more is restored by the next agent.
        let agent = tokio::spawn(run(fixture.args(&[])));
        controller.hello().await;
        assert_eq!(all(), ["0", "1", "1", "1", "1"]);
        assert!(promiscuous("u1"), "it was so before");
        agent.abort();
        let _ = agent.await;
        write("ipv6/conf/u0/accept_ra", "0");
        run(fixture.args(&["--flush"])).await.unwrap();
        assert_eq!(all(), ["0", "0", "1", "0", "0"]);
        assert!(!promiscuous("u0") && managed().is_empty());
    });
}

/// An IPv4 packet in VXLAN from the host 192.0.2.2 to this gateway's VTEP, for instance 10.0.0.5 of VNI 7.
fn tunneled_packet() -> Vec<u8> {
    fn ipv4(source: [u8; 4], destination: [u8; 4], payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0];
        packet.extend((20 + payload.len() as u16).to_be_bytes());
        packet.extend([0, 0, 0, 0, 64, 17, 0, 0]);
        packet.extend(source);
        packet.extend(destination);
        let sum: u32 = packet.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        packet.extend(payload);
        packet
    }
    fn udp(port: u16, payload: &[u8]) -> Vec<u8> {
        let length = 8 + payload.len() as u16;
        [&[0xc0, 0], &port.to_be_bytes()[..], &length.to_be_bytes(), &[0, 0], payload].concat()
    }
    fn ethernet(to: MacAddr, from: MacAddr, packet: &[u8]) -> Vec<u8> {
        [&to.octets()[..], &from.octets(), &[8, 0], packet].concat()
    }
    let inner = ipv4([10, 0, 0, 6], [10, 0, 0, 5], &udp(9, b"data"));
    let frame = ethernet(sluice_types::ROUTER_MAC, MacAddr::local(2), &inner);
    let vxlan = [&[8, 0, 0, 0, 0, 0, 7, 0], &frame[..]].concat();
    let outer = ipv4([192, 0, 2, 2], [192, 0, 2, 10], &udp(4789, &vxlan));
    ethernet(MacAddr::local(4), MacAddr::local(3), &outer)
}

/// Catches a gateway that leaves a next hop to the kernel, which asks for it every five seconds only.
#[test]
fn host_that_is_connected_long_after_its_registration_gets_packets_at_once() {
    in_namespace(|| async {
        let fixture = Fixture::new("late");
        // The packets come by u1. What is connected to u0 is in another namespace.
        ip("link add u1 type veth peer name t1");
        ip("link set u1 up");
        ip("link set t1 up");
        let mut host = Command::new("unshare").args(["-n", "sleep", "100"]).spawn().unwrap();
        let namespace = format!("/proc/{}/ns/net", host.id());
        let own = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        eventually("the namespace of the host", || {
            (std::fs::read_link(&namespace).ok()? != own).then_some(())
        })
        .await;
        ip(&format!("link set t0 netns {}", host.id()));
        let in_host = |arguments: &str| {
            let line = format!("-t {} -n ip {arguments}", host.id());
            assert!(Command::new("nsenter").args(line.split(' ')).status().unwrap().success(), "{arguments}");
        };
        in_host("link set t0 up");
        let mut controller =
            Controller::start("gateway:gw-7", &fixture.dir.path().join("enrollment.json")).await;
        let agent = tokio::spawn(run(fixture.args(&["--metrics", METRICS, "--interface", "u1"])));
        controller.hello().await;
        let mut cloud = cloud();
        cloud.vteps.push(Vtep { address: address("192.0.2.2"), role: VtepRole::Host });
        // A gateway accepts packets of a VPC only from hosts that have an instance of it.
        let ipv4 = "10.0.0.6".parse().ok();
        cloud.endpoints.push(Endpoint { ipv4, host: address("192.0.2.2"), ..cloud.endpoints[0] });
        assert_eq!(controller.step(cloud).await.failures, Vec::<String>::new());
        // After a change the gateway asks once a second for ten seconds; then the kernel is on its own.
        tokio::time::sleep(Duration::from_secs(12)).await;
        let failed = || ip("neigh show nud failed dev u0").contains("192.0.2.1 ").then_some(());
        eventually("the host is not there", failed).await;

        in_host("address add 192.0.2.1/24 dev t0");
        let links: serde_json::Value = serde_json::from_str(&ip("-j link show dev t1")).unwrap();
        let index = u32::try_from(links[0]["ifindex"].as_u64().unwrap()).unwrap();
        let socket = PacketSocket::open().unwrap();
        let connected = Instant::now();
        let forwarded = loop {
            socket.send(index, &tunneled_packet()).unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
            let page = metrics(METRICS.parse::<SocketAddr>().unwrap()).await;
            if !page.contains("sluice_vni_packets_total{vni=\"7\"} 0") {
                break connected.elapsed();
            }
            assert!(connected.elapsed() < support::TIMEOUT, "{page}");
        };
        // The drops are counted every 200 ms, and there is one second between two questions. The kernel alone takes
        // 2.5 s on average.
        assert!(forwarded < Duration::from_millis(1500), "{forwarded:?}");
        agent.abort();
        let _ = agent.await;
        run(fixture.args(&["--flush"])).await.unwrap();
        host.kill().unwrap();
        host.wait().unwrap();
    });
}
