//! The gateway's agent with an interface to the Internet.

#[path = "../../agent/tests/support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use clap::Parser;
use sluice_agent::netlink::Netlink;
use sluice_gateway::ownership::{Layer2Announcer, VipAnnouncer};
use sluice_gateway::ports::{Port, SharedPorts, Side};
use sluice_gateway::public_announcer::PublicAddresses;
use sluice_gateway::{Args, run};
use sluice_southbound::{NatGateway, Update, Vip, Vrf, Vtep, VtepRole};
use sluice_types::{MacAddr, Vni};
use support::{Controller, eventually, in_namespace, ip, local};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

/// Files of an agent whose underlay interface is u0.
struct Fixture {
    dir: tempfile::TempDir,
    pins: PathBuf,
}

impl Fixture {
    /// Also makes the interface u1, whose other end is t1.
    fn new(name: &str) -> Self {
        make_internet();
        let pins = PathBuf::from(format!("/sys/fs/bpf/sluice-internet-{}-{name}", std::process::id()));
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

    async fn controller(&self) -> Controller {
        Controller::start("gateway:gw-7", &self.dir.path().join("enrollment.json")).await
    }
}

fn make_internet() {
    ip("link add u1 type veth peer name t1");
    ip("addr add 198.51.100.10/24 dev u1");
    ip("addr add 2001:db8:1::10/64 dev u1 nodad");
    ip("link set u1 up");
    ip("link set t1 up");
}

/// Name of the program on an interface.
fn program(interface: &str) -> Option<String> {
    let links: serde_json::Value =
        serde_json::from_str(&ip(&format!("-j -d link show dev {interface}"))).unwrap();
    links[0]["xdp"]["prog"]["name"].as_str().map(str::to_owned)
}

/// Neighbors on u1 that the kernel keeps resolved for the agent, in order.
fn kept() -> Vec<String> {
    let neighbors = ip("neigh show dev u1");
    let kept = neighbors.lines().filter(|line| line.contains("managed"));
    let mut kept: Vec<String> = kept.map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    kept.sort();
    kept
}

fn cloud() -> Update {
    let host = Vtep { address: "192.0.2.1".parse().unwrap(), role: VtepRole::Host };
    Update { revision: 10, database_id: 3, snapshot: true, vteps: vec![host], ..Update::default() }
}

/// What arrives on an interface, one line of `tcpdump` for each frame. It ends with this value.
struct Listener {
    tcpdump: Child,
    lines: Receiver<String>,
}

impl Listener {
    fn start(interface: &str) -> Self {
        let filter = "arp or rarp or icmp6[0] == 136";
        let argv = ["-n", "-l", "-e", "--immediate-mode", "-Q", "in", "-i", interface, filter];
        let mut command = Command::new("tcpdump");
        let mut tcpdump = command.args(argv).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut messages = BufReader::new(tcpdump.stderr.take().unwrap()).lines();
        assert!(messages.any(|line| line.unwrap().contains("listening on")));
        let (sender, lines) = channel();
        let stdout = BufReader::new(tcpdump.stdout.take().unwrap());
        std::thread::spawn(move || {
            stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self { tcpdump, lines }
    }

    /// Waits for a frame with all these words. Returns the frames before it.
    async fn frame(&self, words: &[&str]) -> Vec<String> {
        let mut before = Vec::new();
        let what = format!("a frame with {words:?}");
        eventually(&what, || {
            while let Ok(line) = self.lines.try_recv() {
                if words.iter().all(|word| line.contains(word)) {
                    return Some(());
                }
                before.push(line);
            }
            None
        })
        .await;
        before
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.tcpdump.kill();
        let _ = self.tcpdump.wait();
    }
}

#[test]
fn interfaces_to_the_internet_are_checked_before_anything_is_changed() {
    in_namespace(|| async {
        let fixture = Fixture::new("refused");
        let error = |result: Result<(), sluice_gateway::Error>| result.unwrap_err().to_string();
        for (more, words) in [
            (&["--internet", "u0"][..], "interface \"u0\" is given twice"),
            (&["--internet", "u1", "--internet", "u1"], "interface \"u1\" is given twice"),
            (&["--internet", "nothere"], "no interface \"nothere\""),
            (&["--internet", "x"].repeat(8), "9 interfaces are given; at most 8"),
        ] {
            let refused = error(run(fixture.args(more)).await);
            assert!(refused.contains(words), "{more:?}: {refused}");
        }
        // An address on the Internet is no address of the underlay.
        ip("addr flush dev u0");
        let refused = error(run(fixture.args(&["--internet", "u1"])).await);
        assert!(refused.contains("no global address on u0"), "{refused}");
        assert_eq!((program("u0"), program("u1"), fixture.pins.exists()), (None, None, false));
    });
}

/// Catches: the wrong program, gateways of the Internet that are not resolved, an interface that is not followed, a
/// setting that is left behind.
#[test]
fn interface_to_the_internet_has_its_program_and_its_gateways_are_kept_resolved() {
    in_namespace(|| async {
        let fixture = Fixture::new("follow");
        ip("route add default via 198.51.100.1 dev u1");
        ip("-6 route add default via fe80::1 dev u1");
        ip("route add 203.0.113.0/24 via 198.51.100.2 dev u1");
        let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/net/{name}")).unwrap();
        let settings = ["ipv4/conf/u1/forwarding", "ipv6/conf/u1/forwarding", "ipv6/conf/u1/accept_ra"];
        let before = settings.map(read);
        let mut controller = fixture.controller().await;
        let agent = tokio::spawn(run(fixture.args(&["--internet", "u1"])));
        controller.hello().await;
        assert_eq!(controller.step(cloud()).await.failures, Vec::<String>::new());
        assert_eq!((program("u0").as_deref(), program("u1").as_deref()), (Some("gateway"), Some("internet")));
        let gateways = ["198.51.100.1", "198.51.100.2", "fe80::1"];
        eventually("the gateways are kept resolved", || (kept() == gateways).then_some(())).await;
        assert_eq!(settings.map(read), before, "the operator's settings stay");
        ip("route del 203.0.113.0/24");
        let gateways = [gateways[0], gateways[2]];
        eventually("a gateway is released", || (kept() == gateways).then_some(())).await;

        ip("link del u1");
        make_internet();
        eventually("the new interface has the program", || program("u1")).await;
        ip("route add default via 198.51.100.3 dev u1");
        eventually("its gateway is kept resolved", || (kept() == ["198.51.100.3"]).then_some(())).await;
        agent.abort();
        let _ = agent.await;
        assert_eq!(program("u1").as_deref(), Some("internet"), "it runs without an agent");

        // The interface is not given any more.
        let agent = tokio::spawn(run(fixture.args(&[])));
        controller.hello().await;
        assert_eq!((program("u0").as_deref(), program("u1")), (Some("gateway"), None));
        assert!(!ip("link show dev u1").contains("PROMISC") && kept().is_empty());
        agent.abort();
        let _ = agent.await;
        run(fixture.args(&["--flush"])).await.unwrap();
    });
}

/// Catches: an announcement of the vIP on the Internet, which is an address of the underlay, or of a public address on the
/// underlay; and one that is not repeated.
#[test]
fn vmacs_and_public_addresses_are_announced_on_the_internet() {
    in_namespace(|| async {
        make_internet();
        let netlink = Netlink::open().unwrap();
        let [u0, u1] = [netlink.require_link("u0").await.unwrap(), netlink.require_link("u1").await.unwrap()];
        let ports = SharedPorts::new(vec![
            Port { link: u0, side: Side::Underlay },
            Port { link: u1, side: Side::Internet },
        ]);
        let [underlay, internet] = ["t0", "t1"].map(Listener::start);
        let addresses = PublicAddresses::default();
        let mac = MacAddr::local(9);
        let announcer = tokio::spawn({
            let (addresses, ports) = (addresses.clone(), ports.clone());
            let vmacs = move |batch: Vec<IpAddr>| async move {
                Ok(batch.into_iter().map(|address| (address, mac)).collect())
            };
            async move { addresses.run(ports, vmacs).await }
        });
        let [vip, marker] = ["192.0.2.100", "192.0.2.101"].map(|address| address.parse().unwrap());
        let mut vips = Layer2Announcer::new(ports).unwrap();
        vips.announce(vip, mac);
        addresses.announce(["203.0.113.5", "2001:db8:2::5"].map(|address| address.parse().unwrap()));
        let mac = mac.to_string();
        let mut others = internet.frame(&[&mac, "Reverse Request who-is"]).await;
        for _ in 0..2 {
            others.extend(internet.frame(&[&mac, "Request who-has 203.0.113.5"]).await);
            others.extend(internet.frame(&[&mac, "neighbor advertisement, tgt is 2001:db8:2::5"]).await);
        }
        assert_eq!(others, Vec::<String>::new(), "the vIP is no address of the Internet");
        // What comes before the last frame has been seen by then.
        vips.announce(marker, MacAddr::local(10));
        let mut others = underlay.frame(&[&mac, "Reverse Request who-is"]).await;
        others.extend(underlay.frame(&[&mac, "Request who-has 192.0.2.100"]).await);
        others.extend(underlay.frame(&["Reverse Request who-is"]).await);
        others.extend(underlay.frame(&["Request who-has 192.0.2.101"]).await);
        assert_eq!(others, Vec::<String>::new(), "public addresses are no addresses of the underlay");
        announcer.abort();
    });
}

/// A change of the cloud.
fn cloud_change() -> Update {
    Update { snapshot: false, vteps: Vec::new(), ..cloud() }
}

fn nat_gateway(vni: u32, last: u8) -> NatGateway {
    NatGateway {
        vni: Vni::new(vni).unwrap(),
        addresses: vec![[203, 0, 113, last].into()],
        vip: "192.0.2.100".parse().unwrap(),
        sessions: 100,
        blocks: 4,
        any_remote: false,
        shares_ports: false,
        forwards: Vec::new(),
        nat64: None,
    }
}

/// Catches: NAT tables of another size than the options say, a number that is not kept or never free again, tables that are
/// replaced by those of another size, a gateway without Internet that refuses NAT gateways.
#[test]
fn nat_gateways_have_as_many_addresses_as_there_is_room_for() {
    in_namespace(|| async {
        let fixture = Fixture::new("nat");
        let socket = fixture.dir.path().join("socket");
        let mut controller = fixture.controller().await;
        let options = ["--internet", "u1", "--nat-addresses", "1", "--nat-sessions", "256"];
        let agent = tokio::spawn(run(fixture.args(&options)));
        controller.hello().await;
        let vrf = |vni| Vrf {
            vni: Vni::new(vni).unwrap(),
            mtu: 1450,
            router4: None,
            router6: None,
            group: None,
            elephant_kbps: sluice_southbound::ELEPHANT_NEVER,
            internet_meter: None,
        };
        let vip = Vip { address: "192.0.2.100".parse().unwrap(), mac: MacAddr::local(1) };
        let step = controller.step(Update {
            vips: vec![vip],
            vrfs: vec![vrf(7), vrf(8)],
            nat_gateways: vec![nat_gateway(7, 1), nat_gateway(8, 2)],
            ..cloud()
        });
        let failures = step.await.failures;
        let words = "NAT gateway of VNI 8: the public address 203.0.113.2 gets no number";
        assert!(failures.len() == 1 && failures[0].contains(words), "{failures:?}");
        let empty = serde_json::json!({"sessions": [], "is_cut": false});
        assert_eq!(local(&socket, "GET", "/nat/sessions?vni=7", "").await, (200, empty));
        let (status, error) = local(&socket, "GET", "/nat/sessions?inside=x", "").await;
        assert!(status == 400 && error.to_string().contains("`x` is not an IP address"), "{error}");
        // The number is free after a round.
        let removed = vec![Vni::new(7).unwrap()];
        let first = Update { revision: 11, removed_nat_gateways: removed, ..cloud_change() };
        assert_eq!(controller.step(first).await.failures, Vec::<String>::new());
        for revision in 12.. {
            let again = Update { revision, nat_gateways: vec![nat_gateway(8, 2)], ..cloud_change() };
            if controller.step(again).await.failures.is_empty() {
                break;
            }
            assert!(revision < 500, "the number is not free");
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        agent.abort();
        let _ = agent.await;

        let more = ["--internet", "u1", "--nat-addresses", "2"];
        let refused = run(fixture.args(&more)).await.unwrap_err();
        assert!(sluice_agent::error_chain(&refused).contains("nat_groups"), "{refused}");
        let agent = tokio::spawn(run(fixture.args(&[])));
        controller.hello().await;
        let update = Update { revision: 600, nat_gateways: vec![nat_gateway(7, 1)], ..cloud_change() };
        assert_eq!(controller.step(update).await.failures, Vec::<String>::new());
        assert_eq!(local(&socket, "GET", "/nat/sessions", "").await.0, 404);
        agent.abort();
        let _ = agent.await;
        run(fixture.args(&["--flush"])).await.unwrap();
    });
}
