//! RSP over real sockets, on addresses of a loopback device.

#[path = "support/mod.rs"]
mod support;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use sluice_agent::rsp::{Edge, EdgeConfig, KeyBook, Keys, Kind, Received, Trust, Unsent};
use sluice_agent::underlay::Vteps;
use sluice_rsp::{Answer, Answered, Ask, Destination, Message, Moved, NodeId, Path, RSP_PORT};
use sluice_southbound::{ClusterKeys, Key};
use sluice_types::{MacAddr, Secret, Vni};
use support::{in_namespace, ip};
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::time::timeout;

const CLUSTER: u32 = 7;

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Keys that live as long as the test's directory.
struct Bench {
    _dir: tempfile::TempDir,
    book: KeyBook,
}

impl Bench {
    fn new(fill: u8) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (mut book, _) = KeyBook::load(dir.path(), Trust::Rsp);
        let secret = Secret::new(std::array::from_fn(|i| fill ^ i as u8));
        let key = Key { id: 1, secret, not_before_ms: 0, not_after_ms: u64::MAX };
        book.update(vec![ClusterKeys { cluster: CLUSTER, keys: vec![key] }], false).unwrap();
        Self { _dir: dir, book }
    }

    /// An edge at the addresses that end with `host`.
    fn edge(&self, host: u8) -> Edge {
        edge(host, self.book.subscribe())
    }
}

fn edge(host: u8, keys: watch::Receiver<Arc<Keys>>) -> Edge {
    let vteps =
        Vteps { v4: format!("192.0.2.{host}").parse().ok(), v6: format!("2001:db8::{host}").parse().ok() };
    Edge::open(EdgeConfig { node: NodeId::new(host.into()), vteps, port: RSP_PORT }, keys).unwrap()
}

/// The nodes' addresses; the device's MTU is the way's.
fn addresses(mtu: u32) {
    ip(&format!("link set lo mtu {mtu}"));
    for host in 1..=3 {
        ip(&format!("addr add 192.0.2.{host}/32 dev lo"));
        ip(&format!("addr add 2001:db8::{host}/128 dev lo nodad"));
    }
}

/// The next `count` messages.
async fn receive(edge: &mut Edge, count: usize) -> Vec<Received> {
    let all = async {
        let mut all = Vec::new();
        while all.len() < count {
            edge.ready().await;
            edge.flush();
            all.extend(edge.receive(64));
        }
        all
    };
    timeout(Duration::from_secs(20), all).await.expect("messages that were sent")
}

fn asks(count: u32) -> Vec<Ask> {
    let vni = Vni::new(9).unwrap();
    let ask = |number: u32| Ask {
        destination: Destination { vni, address: IpAddr::from((0x0a00_0001 + number).to_be_bytes()) },
        revision: u64::from(number),
    };
    (0..count).map(ask).collect()
}

fn answered(message: &Message) -> Message {
    let Message::Request { id, asks } = message else { panic!("{message:?}") };
    let answer = |ask: &Ask| Answered {
        destination: ask.destination,
        answer: Answer::Path(Path {
            host: address("192.0.2.3"),
            mac: MacAddr::local(5),
            vni: ask.destination.vni,
            lifetime_ms: 60_000,
            revision: 42,
        }),
    };
    Message::Reply { id: *id, answers: asks.iter().map(answer).collect() }
}

#[test]
fn questions_are_answered_from_the_address_they_came_to_in_both_families() {
    in_namespace(|| async {
        addresses(1500);
        let bench = Bench::new(0xa0);
        let (mut host, mut gateway) = (bench.edge(1), bench.edge(2));
        for to in ["192.0.2.2", "2001:db8::2"] {
            let question = Message::Request { id: 3, asks: asks(4) };
            host.send(CLUSTER, address(to), &question);
            let [received] = receive(&mut gateway, 1).await.try_into().unwrap();
            assert_eq!((received.cluster, &received.message), (CLUSTER, &question));
            assert_eq!(Some(received.from.ip()), host.own_address(address(to)));
            gateway.send_to(CLUSTER, received.from, &answered(&received.message));
            let [received] = receive(&mut host, 1).await.try_into().unwrap();
            assert_eq!(received.from, SocketAddr::new(address(to), RSP_PORT));
            assert_eq!(received.message, answered(&question));
        }
        let stats = (host.stats(), gateway.stats());
        assert_eq!((stats.0.sent(Kind::Request), stats.0.received(Kind::Reply)), (2, 2));
        assert_eq!((stats.1.received(Kind::Request), stats.1.sent(Kind::Reply)), (2, 2));
    });
}

#[test]
fn packets_fit_the_way_and_follow_it_when_it_narrows() {
    in_namespace(|| async {
        addresses(9000);
        let bench = Bench::new(0xa0);
        let (mut host, mut gateway) = (bench.edge(1), bench.edge(2));
        let question = Message::Request { id: 3, asks: asks(400) };
        host.send(CLUSTER, address("192.0.2.2"), &question);
        let [one] = receive(&mut gateway, 1).await.try_into().unwrap();
        assert_eq!(one.message, question);
        // Wide jumbo frames no more, which the sender does not know yet: its packet is too long.
        ip("link set lo mtu 1500");
        host.send(CLUSTER, address("192.0.2.2"), &question);
        assert_eq!(host.stats().unsent(Unsent::TooLong), 1);
        for to in ["192.0.2.2", "2001:db8::2"] {
            host.send(CLUSTER, address(to), &question);
            let mut all = Vec::new();
            while all.len() < 400 {
                for received in receive(&mut gateway, 1).await {
                    let Message::Request { asks, .. } = received.message else { panic!("{received:?}") };
                    assert!(asks.len() < 100, "{} questions in a packet of 1500 bytes", asks.len());
                    all.extend(asks);
                }
            }
            assert_eq!(all, asks(400));
        }
    });
}

#[test]
fn what_is_not_authentic_is_refused_by_reason() {
    in_namespace(|| async {
        addresses(1500);
        let (bench, stranger) = (Bench::new(0xa0), Bench::new(0xb0));
        let (mut host, mut gateway) = (bench.edge(1), bench.edge(2));
        let question = Message::Request { id: 3, asks: asks(1) };
        let to = address("192.0.2.2");
        // Another secret of the same id; noise; nothing; a jumbo; a replay.
        let mut forger = stranger.edge(3);
        forger.send(CLUSTER, to, &question);
        let raw = UdpSocket::bind("192.0.2.3:0").await.unwrap();
        let target = SocketAddr::new(to, RSP_PORT);
        let mut noise = vec![0x55; 200];
        raw.send_to(&noise, target).await.unwrap();
        raw.send_to(&[], target).await.unwrap();
        noise.resize(9500, 0);
        ip("link set lo mtu 65536");
        raw.send_to(&noise, target).await.unwrap();
        host.send(CLUSTER, to, &question);
        let [received] = receive(&mut gateway, 1).await.try_into().unwrap();
        assert_eq!(received.message, question);
        let stats = gateway.stats();
        for (name, count) in [("unauthentic", 1), ("magic", 1), ("short", 1), ("long", 1)] {
            assert_eq!(stats.refused(name), count, "{name}");
        }

        // What was recorded on the way is of no use, neither there nor elsewhere.
        let tap = UdpSocket::bind("192.0.2.3:4000").await.unwrap();
        host.send_to(CLUSTER, tap.local_addr().unwrap(), &question);
        let mut recorded = [0; 2048];
        let (length, _) = tap.recv_from(&mut recorded).await.unwrap();
        raw.send_to(&recorded[..length], target).await.unwrap();
        let elsewhere = Message::Redirect {
            moved: vec![Moved {
                destination: asks(1)[0].destination,
                host: address("192.0.2.3"),
                ask: address("192.0.2.2"),
            }],
        };
        host.send(CLUSTER, to, &elsewhere);
        let [received] = receive(&mut gateway, 1).await.try_into().unwrap();
        assert_eq!(received.message, elsewhere);
        assert_eq!(stats.refused("misdirected"), 1);
    });
}

#[test]
fn without_a_key_nothing_is_said_or_heard_until_it_comes() {
    in_namespace(|| async {
        addresses(1500);
        let bench = Bench::new(0xa0);
        let (late, keys) = watch::channel(Arc::new(Keys::default()));
        let (mut host, mut gateway) = (bench.edge(1), edge(2, keys));
        let question = Message::Request { id: 3, asks: asks(1) };
        host.send(CLUSTER, address("192.0.2.2"), &question);
        gateway.send(CLUSTER, address("192.0.2.1"), &answered(&question));
        let stats = gateway.stats();
        while stats.refused("unknown_key") == 0 {
            gateway.ready().await;
            assert!(gateway.receive(1).is_empty());
        }
        assert_eq!((stats.unsent(Unsent::NoKey), stats.sent(Kind::Reply)), (1, 0));
        late.send_replace(bench.book.subscribe().borrow().clone());
        host.send(CLUSTER, address("192.0.2.2"), &question);
        assert_eq!(receive(&mut gateway, 1).await[0].message, question);
        // No cluster but its own.
        host.send(CLUSTER + 1, address("192.0.2.2"), &question);
        assert_eq!(host.stats().unsent(Unsent::NoKey), 1);
    });
}

#[test]
fn a_node_without_the_other_family_says_so() {
    in_namespace(|| async {
        addresses(1500);
        let bench = Bench::new(0xa0);
        let vteps = Vteps { v4: "192.0.2.1".parse().ok(), v6: None };
        let config = EdgeConfig { node: NodeId::new(1), vteps, port: RSP_PORT };
        let mut host = Edge::open(config.clone(), bench.book.subscribe()).unwrap();
        host.send(CLUSTER, address("2001:db8::2"), &Message::Request { id: 3, asks: asks(1) });
        assert_eq!(host.stats().unsent(Unsent::NoAddress), 1);
        let taken = Edge::open(config, bench.book.subscribe()).err().expect("the port is taken").to_string();
        assert!(taken.contains("4797 of 192.0.2.1"), "{taken}");
        // Another node's agent on the same machine.
        let _other = bench.edge(2);
    });
}
