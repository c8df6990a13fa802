//! RSP transports over real sockets, on addresses of a loopback device.

#[path = "support/mod.rs"]
mod support;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sluice_agent::rsp::{
    KeyKind, KeyStore, Keys, MessageKind, Received, RspTransport, TransportConfig, Unsent,
};
use sluice_agent::underlay::Vteps;
use sluice_envelope::NodeId;
use sluice_rsp::{
    Answer, AnswerEntry, Capabilities, Destination, Message, Query, RSP_PORT, Reception, RedirectEntry,
    host_secret,
};
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

/// The keys of a cluster.
struct Site {
    dir: tempfile::TempDir,
    secret: [u8; 32],
    gateways: KeyStore,
}

impl Site {
    fn new(fill: u8) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let secret = std::array::from_fn(|i| fill ^ i as u8);
        let gateways = store(dir.path(), KeyKind::Cluster, secret);
        Self { dir, secret, gateways }
    }

    /// A gateway at the addresses that end with `number`.
    fn gateway(&self, number: u8) -> RspTransport {
        gateway(number, self.gateways.subscribe())
    }

    /// A host with the key of its address.
    fn host(&self, own: &str) -> RspTransport {
        self.host_with_key_of(own, own)
    }

    /// A host with the key of another address.
    fn host_with_key_of(&self, own: &str, other: &str) -> RspTransport {
        let secret = host_secret(&self.secret, address(other));
        let keys = store(self.dir.path(), KeyKind::Host, secret).subscribe();
        let vteps = match address(own) {
            IpAddr::V4(v4) => Vteps { v4: Some(v4), v6: None },
            IpAddr::V6(v6) => Vteps { v4: None, v6: Some(v6) },
        };
        open(vteps, keys)
    }
}

fn store(dir: &Path, kind: KeyKind, secret: [u8; 32]) -> KeyStore {
    let (mut keys, _) = KeyStore::load(dir, kind);
    let key = Key { id: 1, secret: Secret::new(secret), not_before_ms: 0, not_after_ms: u64::MAX };
    keys.update(vec![ClusterKeys { cluster: CLUSTER, keys: vec![key] }], false).unwrap();
    keys
}

fn gateway(number: u8, keys: watch::Receiver<Arc<Keys>>) -> RspTransport {
    let (v4, v6) = (format!("192.0.2.{number}").parse().ok(), format!("2001:db8::{number}").parse().ok());
    open(Vteps { v4, v6 }, keys)
}

fn open(vteps: Vteps, keys: watch::Receiver<Arc<Keys>>) -> RspTransport {
    let config = TransportConfig { node: NodeId::new(7), vteps, port: RSP_PORT };
    let transport = RspTransport::open(config, keys).unwrap();
    // A receiver refuses packets that were sent in the millisecond of its start: it cannot know whether an
    // earlier receiver accepted them.
    std::thread::sleep(Duration::from_millis(2));
    transport
}

/// Adds the nodes' addresses. The path MTU between them is that of the device.
fn add_addresses(mtu: u32) {
    ip(&format!("link set lo mtu {mtu}"));
    for host in 1..=4 {
        ip(&format!("addr add 192.0.2.{host}/32 dev lo"));
        ip(&format!("addr add 2001:db8::{host}/128 dev lo nodad"));
    }
}

/// The next `count` messages.
async fn receive(transport: &mut RspTransport, count: usize) -> Vec<Received> {
    let all = async {
        let mut all = Vec::new();
        while all.len() < count {
            transport.ready().await;
            transport.flush();
            all.extend(transport.receive(64));
        }
        all
    };
    timeout(Duration::from_secs(20), all).await.expect("the sent messages arrive")
}

fn queries(count: u32) -> Vec<Query> {
    let vni = Vni::new(9).unwrap();
    let query = |number: u32| Query {
        destination: Destination { vni, address: IpAddr::from((0x0a00_0001 + number).to_be_bytes()) },
        revision: u64::from(number),
    };
    (0..count).map(query).collect()
}

fn request(id: u32, count: u32) -> Message {
    Message::Request { id, capabilities: Capabilities::OWN, queries: queries(count) }
}

fn answered(message: &Message) -> Message {
    let Message::Request { id, queries, .. } = message else { panic!("{message:?}") };
    let answer = |query: &Query| AnswerEntry {
        destination: query.destination,
        answer: Answer::Path(sluice_rsp::Path {
            host: address("192.0.2.3"),
            mac: MacAddr::local(5),
            vni: query.destination.vni,
            lifetime_ms: 60_000,
            revision: 42,
            by_network: false,
            reception: Reception::default(),
        }),
    };
    Message::Reply { id: *id, answers: queries.iter().map(answer).collect() }
}

#[test]
fn requests_are_answered_from_the_address_they_came_to_in_both_families() {
    in_namespace(|| async {
        add_addresses(1500);
        let site = Site::new(0xa0);
        let (mut gateway, request) = (site.gateway(2), request(3, 4));
        for (own, to) in [("192.0.2.1", "192.0.2.2"), ("2001:db8::1", "2001:db8::2")] {
            let mut host = site.host(own);
            host.send(Some(CLUSTER), address(to), &request);
            let [received] = receive(&mut gateway, 1).await.try_into().unwrap();
            assert_eq!((received.cluster, &received.message), (CLUSTER, &request));
            assert_eq!(Some(received.from.ip()), host.own_address(address(to)));
            gateway.send_to(Some(CLUSTER), received.from, &answered(&received.message));
            let [received] = receive(&mut host, 1).await.try_into().unwrap();
            assert_eq!(received.from, SocketAddr::new(address(to), RSP_PORT));
            assert_eq!(received.message, answered(&request));
            let stats = host.stats();
            assert_eq!((stats.sent(MessageKind::Request), stats.received(MessageKind::Reply)), (1, 1));
        }
        let stats = gateway.stats();
        assert_eq!((stats.received(MessageKind::Request), stats.sent(MessageKind::Reply)), (2, 2));
    });
}

#[test]
fn packets_fit_the_path_mtu_and_follow_it_when_it_shrinks() {
    in_namespace(|| async {
        add_addresses(9000);
        let site = Site::new(0xa0);
        let (mut host, mut host6) = (site.host("192.0.2.1"), site.host("2001:db8::1"));
        let (mut gateway, request) = (site.gateway(2), request(3, 400));
        host.send(Some(CLUSTER), address("192.0.2.2"), &request);
        let [one] = receive(&mut gateway, 1).await.try_into().unwrap();
        assert_eq!(one.message, request);
        // The path no longer takes jumbo frames. The sender does not know this yet, so its packet is too
        // long.
        ip("link set lo mtu 1500");
        host.send(Some(CLUSTER), address("192.0.2.2"), &request);
        assert_eq!(host.stats().unsent(Unsent::TooLong), 1);
        for (host, to) in [(&mut host, "192.0.2.2"), (&mut host6, "2001:db8::2")] {
            host.send(Some(CLUSTER), address(to), &request);
            let mut all = Vec::new();
            while all.len() < 400 {
                for received in receive(&mut gateway, 1).await {
                    let Message::Request { queries: some, .. } = received.message else {
                        panic!("{received:?}")
                    };
                    assert!(some.len() < 100, "{} queries in a packet of 1500 bytes", some.len());
                    all.extend(some);
                }
            }
            assert_eq!(all, queries(400));
        }
    });
}

#[test]
fn packets_that_are_not_authentic_are_refused_and_counted_by_reason() {
    in_namespace(|| async {
        add_addresses(1500);
        let (site, other_site) = (Site::new(0xa0), Site::new(0xb0));
        let (mut host, mut gateway) = (site.host("192.0.2.1"), site.gateway(2));
        let request = request(3, 1);
        let to = address("192.0.2.2");
        // A packet sealed with another secret of the same key id, random bytes, an empty datagram, and one
        // that is longer than any packet.
        let mut forger = other_site.host("192.0.2.3");
        forger.send(Some(CLUSTER), to, &request);
        let raw = UdpSocket::bind("192.0.2.3:0").await.unwrap();
        let target = SocketAddr::new(to, RSP_PORT);
        let mut noise = vec![0x55; 200];
        raw.send_to(&noise, target).await.unwrap();
        raw.send_to(&[], target).await.unwrap();
        noise.resize(9500, 0);
        ip("link set lo mtu 65536");
        raw.send_to(&noise, target).await.unwrap();
        host.send(Some(CLUSTER), to, &request);
        let [received] = receive(&mut gateway, 1).await.try_into().unwrap();
        assert_eq!(received.message, request);
        let stats = gateway.stats();
        for (name, count) in [("authentication_failed", 1), ("magic", 1), ("short", 1), ("long", 1)] {
            assert_eq!(stats.refused(name), count, "{name}");
        }

        // A packet that was sealed for another address of the node is refused: recorded packets cannot be
        // sent elsewhere.
        let recorder = UdpSocket::bind("192.0.2.3:4000").await.unwrap();
        host.send_to(Some(CLUSTER), recorder.local_addr().unwrap(), &request);
        let mut recorded = [0; 2048];
        let (length, _) = recorder.recv_from(&mut recorded).await.unwrap();
        raw.send_to(&recorded[..length], target).await.unwrap();
        let redirect = Message::Redirect {
            entries: vec![RedirectEntry {
                destination: queries(1)[0].destination,
                host: address("192.0.2.3"),
                gateway: address("192.0.2.2"),
            }],
        };
        host.send(Some(CLUSTER), to, &redirect);
        let [received] = receive(&mut gateway, 1).await.try_into().unwrap();
        assert_eq!(received.message, redirect);
        assert_eq!(stats.refused("misdirected"), 1);
    });
}

#[test]
fn no_host_can_forge_messages_of_gateways_or_of_other_hosts() {
    in_namespace(|| async {
        add_addresses(1500);
        let site = Site::new(0xa0);
        let (mut host, mut gateway) = (site.host("192.0.2.1"), site.gateway(2));
        let answer = answered(&request(3, 1));
        let Message::Reply { answers, .. } = answer else { unreachable!() };
        let notify = Message::Notify { answers };
        let request = request(4, 1);
        // A host with a valid key of its own sends what a gateway sends, and what another host sends.
        let mut neighbor = site.host("192.0.2.3");
        neighbor.send(Some(CLUSTER), address("192.0.2.1"), &notify);
        let mut forger = site.host_with_key_of("192.0.2.4", "192.0.2.1");
        forger.send(Some(CLUSTER), address("192.0.2.2"), &request);
        // With the right keys, both are accepted.
        gateway.send(Some(CLUSTER), address("192.0.2.1"), &notify);
        host.send(Some(CLUSTER), address("192.0.2.2"), &request);
        let [received] = receive(&mut host, 1).await.try_into().unwrap();
        assert_eq!((received.from.ip(), received.message), (address("192.0.2.2"), notify));
        let [received] = receive(&mut gateway, 1).await.try_into().unwrap();
        assert_eq!((received.from.ip(), received.message), (address("192.0.2.1"), request));
        for stats in [host.stats(), gateway.stats()] {
            assert_eq!(stats.refused("authentication_failed"), 1);
        }
    });
}

#[test]
fn without_a_key_nothing_is_sent_or_accepted_until_it_comes() {
    in_namespace(|| async {
        add_addresses(1500);
        let site = Site::new(0xa0);
        let (late, keys) = watch::channel(Arc::new(Keys::default()));
        let (mut host, mut gateway) = (site.host("192.0.2.1"), gateway(2, keys));
        let request = request(3, 1);
        host.send(Some(CLUSTER), address("192.0.2.2"), &request);
        gateway.send(Some(CLUSTER), address("192.0.2.1"), &answered(&request));
        let stats = gateway.stats();
        while stats.refused("unknown_key") == 0 {
            gateway.ready().await;
            assert!(gateway.receive(1).is_empty());
        }
        assert_eq!((stats.unsent(Unsent::NoKey), stats.sent(MessageKind::Reply)), (1, 0));
        late.send_replace(site.gateways.subscribe().borrow().clone());
        host.send(Some(CLUSTER), address("192.0.2.2"), &request);
        assert_eq!(receive(&mut gateway, 1).await[0].message, request);
        // There are no keys of another cluster, nor without a cluster.
        host.send(Some(CLUSTER + 1), address("192.0.2.2"), &request);
        host.send(None, address("192.0.2.2"), &request);
        assert_eq!(host.stats().unsent(Unsent::NoKey), 2);
    });
}

#[test]
fn messages_to_a_family_that_the_node_does_not_have_are_counted() {
    in_namespace(|| async {
        add_addresses(1500);
        let site = Site::new(0xa0);
        let vteps = Vteps { v4: "192.0.2.1".parse().ok(), v6: None };
        let config = TransportConfig { node: NodeId::new(1), vteps, port: RSP_PORT };
        let mut host = RspTransport::open(config.clone(), site.gateways.subscribe()).unwrap();
        host.send(Some(CLUSTER), address("2001:db8::2"), &request(3, 1));
        assert_eq!(host.stats().unsent(Unsent::NoAddress), 1);
        let taken = RspTransport::open(config, site.gateways.subscribe())
            .err()
            .expect("the port is taken")
            .to_string();
        assert!(taken.contains("4797 of 192.0.2.1"), "{taken}");
        // The agent of another node may run on the same machine.
        let _other = site.gateway(2);
    });
}
