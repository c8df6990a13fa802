//! Two gateways and a host on a bridge, each in its own network namespace, with real sockets, clocks,
//! switches and neighbors.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::gettid;
use sluice_agent::netlink::Link;
use sluice_agent::underlay::Vteps;
use sluice_envelope::{ClusterKey, KeyRing};
use sluice_gateway::ownership::{
    Layer2Announcer, OwnedVips, Ownership, OwnershipConfig, WitnessNeighbor, Written,
};
use sluice_gateway::ports::{Port, SharedPorts, Side};
use sluice_tables::{AgentHeartbeat, Immediate, Memory, NodeTables, Sizes};
use sluice_types::{GatewayId, MacAddr};

const PORT: u16 = 4798;

fn ip(arguments: &str) -> String {
    run("ip", arguments)
}

fn run(program: &str, arguments: &str) -> String {
    let output = Command::new(program).args(arguments.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..1_000 {
        if holds() {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
    panic!("did not happen within 20 s: {what}");
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread in a network namespace of its own, which is connected to the bridge.
struct Namespace {
    jobs: Sender<Job>,
    port: String,
}

impl Namespace {
    /// Its interface has the addresses 192.0.2.NUMBER and 2001:db8::NUMBER.
    fn new(number: u8) -> Self {
        let (jobs, queue): (Sender<Job>, Receiver<Job>) = channel();
        let (started, thread_id) = channel();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            started.send(gettid()).unwrap();
            while let Ok(job) = queue.recv() {
                job();
            }
        });
        let (id, port) = (thread_id.recv().unwrap(), format!("p{number}"));
        ip(&format!("link add {port} type veth peer name eth0 netns {id}"));
        ip(&format!("link set {port} master br0 up"));
        let namespace = Self { jobs, port };
        namespace.run(move || {
            ip("link set lo up");
            ip(&format!("addr add 192.0.2.{number}/24 dev eth0"));
            ip(&format!("addr add 2001:db8::{number}/64 dev eth0 nodad"));
            ip("link set eth0 up");
        });
        namespace
    }

    fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, receiver) = channel();
        self.jobs.send(Box::new(move || drop(sender.send(job())))).unwrap();
        receiver.recv().unwrap()
    }
}

/// Writes the state of an earlier agent: two members that own a vIP each.
fn write_saved_state(dir: &Path) {
    let member = |number: u8| {
        let vtep6 = format!("2001:db8::{number}");
        serde_json::json!({"gateway": format!("gw-{number}"), "vtep4": format!("192.0.2.{number}"),
            "vtep6": vtep6, "draining": false})
    };
    let vip = |slot: u8| {
        serde_json::json!({"slot": slot, "address": format!("192.0.2.10{slot}"),
            "mac": MacAddr::local(u64::from(slot) + 1)})
    };
    let claim = |slot: u8| {
        let owner = format!("gw-{}", slot + 1);
        serde_json::json!({"slot": slot, "epoch": 1, "owner": owner})
    };
    let saved = serde_json::json!({
        "plan": {"cluster": "cluster-1", "revision": 1, "vips": [vip(0), vip(1)],
            "members": [member(1), member(2)]},
        "config": {"revision": 1, "vips": [0, 1], "members": [
            {"gateway": "gw-1", "draining": false}, {"gateway": "gw-2", "draining": false}]},
        "claims": [claim(0), claim(1)],
    });
    fs::write(dir.join("cluster.json"), saved.to_string()).unwrap();
}

fn keys() -> KeyRing {
    let secret = std::array::from_fn(|i| i as u8);
    KeyRing::new(vec![ClusterKey::new(1, &secret, 0, u64::MAX).unwrap()]).unwrap()
}

struct Gateway {
    namespace: Namespace,
    ownership: Option<Ownership>,
    owned: Arc<Mutex<BTreeSet<IpAddr>>>,
    /// The tables that its programs would read.
    tables: NodeTables,
    dir: tempfile::TempDir,
    number: u8,
}

impl Gateway {
    fn new(number: u8) -> Self {
        let dir = tempfile::tempdir().unwrap();
        write_saved_state(dir.path());
        let owned = Arc::default();
        let memory = Memory::anonymous(4096).unwrap();
        let tables = NodeTables::create(memory, Immediate, Sizes::default()).unwrap();
        let mut gateway =
            Self { namespace: Namespace::new(number), ownership: None, owned, tables, dir, number };
        gateway.start();
        gateway
    }

    fn start(&mut self) {
        let (number, dir, owned) = (self.number, self.dir.path().to_owned(), self.owned.clone());
        let heartbeat = self.tables.agent_heartbeat();
        let ownership = self.namespace.run(move || {
            let index = run("cat", "/proc/thread-self/net/dev_mcast");
            let index = index.lines().find(|line| line.contains("eth0")).unwrap();
            let index: u32 = index.split_whitespace().next().unwrap().parse().unwrap();
            let shown = ip("-br link show dev eth0");
            let mac: MacAddr = shown.split_whitespace().nth(2).unwrap().parse().unwrap();
            let link = Link {
                index,
                name: "eth0".to_owned(),
                mac,
                mtu: 1500,
                kind: Some("veth".to_owned()),
                peer_elsewhere: true,
                external_vxlan: false,
                vxlan_gbp: false,
                enslaved: false,
                promiscuous: false,
            };
            let before: OwnedVips =
                owned.lock().unwrap().iter().map(|vip| (*vip, MacAddr::local(1))).collect();
            let set_owned = move |now: &OwnedVips, written: Written| {
                *owned.lock().unwrap() = now.keys().copied().collect();
                written.done();
                true
            };
            let ownership = Ownership::start(OwnershipConfig {
                own: GatewayId::new(number.into()),
                vteps: Vteps {
                    v4: Some([192, 0, 2, number].into()),
                    v6: format!("2001:db8::{number}").parse().ok(),
                },
                port: PORT,
                state_dir: dir,
                owned: before,
                tables: 1,
                translates: false,
                set_owned: Box::new(set_owned),
                heartbeat,
                announcer: Box::new(
                    Layer2Announcer::new(SharedPorts::new(vec![Port { link, side: Side::Underlay }]))
                        .unwrap(),
                ),
            });
            let ownership = ownership.unwrap();
            ownership.set_keys(keys());
            // The host answers neighbor discovery; the other gateway must not be probed.
            let witness =
                |address: &str| WitnessNeighbor { ifindex: index, mac, address: address.parse().unwrap() };
            ownership.set_neighbors(vec![witness("2001:db8::9"), witness("192.0.2.2"), witness("192.0.2.1")]);
            ownership
        });
        self.ownership = Some(ownership);
    }

    fn owns(&self, vips: &[u8]) -> bool {
        let wanted: BTreeSet<IpAddr> =
            vips.iter().map(|slot| IpAddr::from([192, 0, 2, 100 + slot])).collect();
        *self.owned.lock().unwrap() == wanted
    }

    /// Whether the switch has learned the vMACs of these vIPs on this gateway's port.
    fn is_learned(&self, vips: &[u8]) -> bool {
        let table = run("bridge", "fdb show br br0");
        vips.iter().all(|slot| {
            let mac = MacAddr::local(u64::from(*slot) + 1).to_string();
            table
                .lines()
                .any(|line| line.starts_with(&mac) && line.contains(&format!("dev {} ", self.namespace.port)))
        })
    }

    /// Whether the packet programs regard the agent as healthy.
    fn has_heartbeat(&self) -> bool {
        let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap());
        now.as_nanos() as u64 - self.tables.agent_heartbeat().last_beat_ns() < AgentHeartbeat::TIMEOUT_NS
    }

    fn health(&self) -> Option<&'static str> {
        self.ownership.as_ref().and_then(|ownership| ownership.status().get().health)
    }
}

#[test]
fn gateways_on_a_switch_take_over_each_others_vips() {
    // The gateways' log is shown when the test fails.
    let _ = tracing_subscriber::fmt().with_test_writer().try_init();
    // The switch is in the namespace of this thread.
    thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        ip("link set lo up");
        ip("link add br0 type bridge mcast_snooping 0");
        ip("link set br0 up");
        let _host = Namespace::new(9);
        // The second gateway is not running; the host is the witness that the underlay is reachable.
        let one = Gateway::new(1);
        eventually("the first owns both vIPs", || one.owns(&[0, 1]) && one.is_learned(&[0, 1]));
        let mut two = Gateway::new(2);
        eventually("the second is ready", || two.health() == Some("ready"));
        assert!(one.owns(&[0, 1]) && two.owns(&[]));
        eventually("both have a heartbeat", || one.has_heartbeat() && two.has_heartbeat());

        // The link of the first gateway fails: the second has only the host as a witness.
        ip("link set p1 down");
        eventually("the second owns both vIPs", || two.owns(&[0, 1]) && two.is_learned(&[0, 1]));
        eventually("the first is isolated", || one.health() == Some("isolated"));
        assert!(one.owns(&[0, 1]), "an isolated gateway still answers for its vIPs");
        eventually("its heartbeat stops", || !one.has_heartbeat());
        ip("link set p1 up");
        eventually("the first gives up its vIPs", || one.owns(&[]) && two.owns(&[0, 1]));
        eventually("it is ready again", || one.health() == Some("ready") && one.has_heartbeat());

        // An agent that ends leaves its tables as they are; the next one gives up the vIPs.
        two.ownership = None;
        eventually("the first owns both vIPs", || one.owns(&[0, 1]) && one.is_learned(&[0, 1]));
        assert!(two.owns(&[0, 1]));
        eventually("the heartbeat of the second stops", || !two.has_heartbeat());
        two.start();
        eventually("the second gives up its vIPs", || two.owns(&[]) && two.has_heartbeat());
        assert!(one.owns(&[0, 1]));
        let counts = one.ownership.as_ref().unwrap().status().get().counts;
        assert!(counts.taken_over >= 2 && counts.refused.is_empty(), "{counts:?}");
    })
    .join()
    .unwrap();
}
