//! Two gateways and a host on a bridge, each in its own network namespace: real
//! sockets, clocks, switches and neighbours.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, RwLock};
use std::thread;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::gettid;
use sluice_agent::netlink::Link;
use sluice_agent::underlay::Vteps;
use sluice_gateway::ownership::{Layer2, Neighbour, Owned, Ownership, Setup};
use sluice_rsp::{ClusterKey, KeyRing};
use sluice_tables::{Attendance, Immediate, Memory, NodeTables, Sizes};
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
    panic!("not within 20 s: {what}");
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread in a network namespace of its own, on the bridge.
struct Place {
    jobs: Sender<Job>,
    port: String,
}

impl Place {
    /// Its interface has the addresses .NUMBER and ::NUMBER.
    fn new(number: u8) -> Self {
        let (jobs, queue): (Sender<Job>, Receiver<Job>) = channel();
        let (told, thread_id) = channel();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            told.send(gettid()).unwrap();
            while let Ok(job) = queue.recv() {
                job();
            }
        });
        let (id, port) = (thread_id.recv().unwrap(), format!("p{number}"));
        ip(&format!("link add {port} type veth peer name eth0 netns {id}"));
        ip(&format!("link set {port} master br0 up"));
        let place = Self { jobs, port };
        place.run(move || {
            ip("link set lo up");
            ip(&format!("addr add 192.0.2.{number}/24 dev eth0"));
            ip(&format!("addr add 2001:db8::{number}/64 dev eth0 nodad"));
            ip("link set eth0 up");
        });
        place
    }

    fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, receiver) = channel();
        self.jobs.send(Box::new(move || drop(sender.send(job())))).unwrap();
        receiver.recv().unwrap()
    }
}

/// What a gateway left that ran here before: two members, a vIP each.
fn remember(dir: &Path) {
    let member = |number: u8| {
        let vtep6 = format!("2001:db8::{number}");
        serde_json::json!({"gateway": format!("gw-{number}"), "vtep4": format!("192.0.2.{number}"),
            "vtep6": vtep6, "draining": false})
    };
    let vip = |place: u8| {
        serde_json::json!({"place": place, "address": format!("192.0.2.10{place}"),
            "mac": MacAddr::local(u64::from(place) + 1)})
    };
    let claim = |place: u8| {
        let owner = format!("gw-{}", place + 1);
        serde_json::json!({"place": place, "epoch": 1, "owner": owner})
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
    place: Place,
    ownership: Option<Ownership>,
    owned: Arc<Mutex<BTreeSet<IpAddr>>>,
    /// What its programs would read.
    tables: NodeTables,
    dir: tempfile::TempDir,
    number: u8,
}

impl Gateway {
    fn new(number: u8) -> Self {
        let dir = tempfile::tempdir().unwrap();
        remember(dir.path());
        let owned = Arc::default();
        let memory = Memory::anonymous(4096).unwrap();
        let tables = NodeTables::create(memory, Immediate, Sizes::default()).unwrap();
        let mut gateway = Self { place: Place::new(number), ownership: None, owned, tables, dir, number };
        gateway.start();
        gateway
    }

    fn start(&mut self) {
        let (number, dir, owned) = (self.number, self.dir.path().to_owned(), self.owned.clone());
        let attendance = self.tables.attendance();
        let ownership = self.place.run(move || {
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
                enslaved: false,
            };
            let before: Owned = owned.lock().unwrap().iter().map(|vip| (*vip, MacAddr::local(1))).collect();
            let tables = move |now: &Owned| {
                *owned.lock().unwrap() = now.keys().copied().collect();
                true
            };
            let ownership = Ownership::start(Setup {
                own: GatewayId::new(number.into()),
                vteps: Vteps {
                    v4: Some([192, 0, 2, number].into()),
                    v6: format!("2001:db8::{number}").parse().ok(),
                },
                port: PORT,
                state_dir: dir,
                owned: before,
                tables: Box::new(tables),
                attendance,
                announcer: Box::new(Layer2::new(Arc::new(RwLock::new(vec![link]))).unwrap()),
            });
            let ownership = ownership.unwrap();
            ownership.set_keys(keys());
            // The host answers neighbour discovery, the other gateway is not asked.
            let witness =
                |address: &str| Neighbour { ifindex: index, mac, address: address.parse().unwrap() };
            ownership.set_neighbours(vec![
                witness("2001:db8::9"),
                witness("192.0.2.2"),
                witness("192.0.2.1"),
            ]);
            ownership
        });
        self.ownership = Some(ownership);
    }

    fn owns(&self, vips: &[u8]) -> bool {
        let wanted: BTreeSet<IpAddr> =
            vips.iter().map(|place| IpAddr::from([192, 0, 2, 100 + place])).collect();
        *self.owned.lock().unwrap() == wanted
    }

    /// The switch finds the vMACs of these vIPs here.
    fn is_found(&self, vips: &[u8]) -> bool {
        let table = run("bridge", "fdb show br br0");
        vips.iter().all(|place| {
            let mac = MacAddr::local(u64::from(*place) + 1).to_string();
            table
                .lines()
                .any(|line| line.starts_with(&mac) && line.contains(&format!("dev {} ", self.place.port)))
        })
    }

    /// The programs take its agent for one that is well.
    fn attends(&self) -> bool {
        let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap());
        now.as_nanos() as u64 - self.tables.attendance().noted_ns() < Attendance::LIMIT_NS
    }

    fn standing(&self) -> Option<&'static str> {
        self.ownership.as_ref().and_then(|ownership| ownership.view().get().standing)
    }
}

#[test]
fn gateways_on_a_switch_take_over_for_each_other() {
    // What gateways say is shown with a failed test.
    let _ = tracing_subscriber::fmt().with_test_writer().try_init();
    // The switch is this thread's namespace.
    thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        ip("link set lo up");
        ip("link add br0 type bridge mcast_snooping 0");
        ip("link set br0 up");
        let _host = Place::new(9);
        // The other is not there; the host says that the underlay is.
        let one = Gateway::new(1);
        eventually("the first has both", || one.owns(&[0, 1]) && one.is_found(&[0, 1]));
        let mut two = Gateway::new(2);
        eventually("the second is well", || two.standing() == Some("fit"));
        assert!(one.owns(&[0, 1]) && two.owns(&[]));
        eventually("both attend to their programs", || one.attends() && two.attends());

        // The first one's link fails: the second has nobody but the host to ask.
        ip("link set p1 down");
        eventually("the second has both", || two.owns(&[0, 1]) && two.is_found(&[0, 1]));
        eventually("the first knows that it is alone", || one.standing() == Some("cut_off"));
        assert!(one.owns(&[0, 1]), "who is cut off keeps what it has, silently");
        eventually("and its programs count it as away", || !one.attends());
        ip("link set p1 up");
        eventually("the first gives way", || one.owns(&[]) && two.owns(&[0, 1]));
        eventually("and is well", || one.standing() == Some("fit") && one.attends());

        // An agent that ends leaves its tables as they are; its successor gives way.
        two.ownership = None;
        eventually("the first has both", || one.owns(&[0, 1]) && one.is_found(&[0, 1]));
        assert!(two.owns(&[0, 1]));
        eventually("the second's programs know that it is away", || !two.attends());
        two.start();
        eventually("the second gives way", || two.owns(&[]) && two.attends());
        assert!(one.owns(&[0, 1]));
        let counts = one.ownership.as_ref().unwrap().view().get().counts;
        assert!(counts.taken_over >= 2 && counts.refused.is_empty(), "{counts:?}");
    })
    .join()
    .unwrap();
}
