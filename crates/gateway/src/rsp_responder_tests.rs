//! A gateway's RSP responder and a host's transport over real sockets.

#[path = "../../agent/tests/support/mod.rs"]
mod support;

use super::*;
use crate::offload_metrics::Outcome;
use sluice_agent::rsp::{KeyKind, KeyStore, MessageKind, TransportConfig};
use sluice_agent::underlay::Vteps;
use sluice_envelope::NodeId;
use sluice_rsp::{
    Answer, AnswerEntry, Capabilities, Destination, NetworkAnswer, NetworkQuery, Path, Query, RSP_PORT,
    Reception, RedirectEntry, host_secret,
};
use sluice_southbound::{ClusterKeys, Key};
use sluice_tables::{
    Endpoint, Immediate, Memory, NodeTables, ReaderGate, Role, Route, Sizes, Target, Vrf, WaitForThreads,
};
use sluice_types::{MacAddr, Secret, Vni};
use std::net::IpAddr;
use support::{TIMEOUT, in_namespace, ip};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Events that the test sends.
struct Channel {
    events: mpsc::UnboundedReceiver<FlowEvent>,
    next: Option<FlowEvent>,
}

impl EventSource<FlowEvent> for Channel {
    async fn ready(&mut self) -> Result<(), Error> {
        if self.next.is_none() {
            let closed = || Error::Config("the test ends".to_owned());
            self.next = Some(self.events.recv().await.ok_or_else(closed)?);
        }
        Ok(())
    }

    fn drain(&mut self, out: &mut Vec<FlowEvent>) -> Result<(), Error> {
        out.extend(self.next.take());
        while let Ok(elephant) = self.events.try_recv() {
            out.push(elephant);
        }
        Ok(())
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

const SECRET: [u8; 32] = *b"the secret of a cluster 32 bytes";

fn store(dir: &std::path::Path, kind: KeyKind, secret: [u8; 32]) -> KeyStore {
    let (mut keys, _) = KeyStore::load(dir, kind);
    let key = Key { id: 1, secret: Secret::new(secret), not_before_ms: 0, not_after_ms: u64::MAX };
    keys.update(vec![ClusterKeys { cluster: 7, keys: vec![key] }], false).unwrap();
    keys
}

/// A host with the key of its address.
fn host(dir: &std::path::Path, own: &str) -> RspTransport {
    let own = address(own);
    let vteps = match own {
        IpAddr::V4(v4) => Vteps { v4: Some(v4), v6: None },
        IpAddr::V6(v6) => Vteps { v4: None, v6: Some(v6) },
    };
    transport(vteps, &store(dir, KeyKind::Host, host_secret(&SECRET, own)))
}

fn transport(vteps: Vteps, keys: &KeyStore) -> RspTransport {
    let config = TransportConfig { node: NodeId::new(7), vteps, port: RSP_PORT };
    let transport = RspTransport::open(config, keys.subscribe()).unwrap();
    // A receiver refuses packets that were sent in the millisecond of its start: it cannot know whether an
    // earlier receiver accepted them.
    std::thread::sleep(Duration::from_millis(2));
    transport
}

fn vni() -> Vni {
    Vni::new(5).unwrap()
}

/// An address of the network that no instance has.
fn no_instance(like: IpAddr) -> IpAddr {
    address(if like.is_ipv4() { "10.0.0.9" } else { "fd00::9" })
}

/// A network with 10.0.0.N and fd00::N on the hosts 192.0.2.N and 2001:db8::N.
fn tables(gate: &ReaderGate) -> NodeTables {
    let memory = Memory::anonymous(4096).unwrap();
    let grace = WaitForThreads::new(Immediate, gate.clone());
    let mut tables = NodeTables::create(memory, grace, Sizes::default()).unwrap();
    let vrf = Vrf { vni: vni(), mtu: 1430, router4: None, router6: None, group: None, elephant_bytes: None };
    tables.upsert_vrf(&vrf).unwrap();
    for prefix in ["10.0.0.0/24", "fd00::/64"] {
        let prefix = prefix.parse().unwrap();
        tables.upsert_route(&Route { vni: vni(), prefix, target: Target::Local }).unwrap();
    }
    for n in [1, 3] {
        for (inner, outer) in [
            (format!("10.0.0.{n}"), format!("192.0.2.{n}")),
            (format!("fd00::{n}"), format!("2001:db8::{n}")),
        ] {
            tables.upsert_vtep(address(&outer), Role::Host).unwrap();
            let (address, host, mac) = (address(&inner), address(&outer), MacAddr::local(n));
            tables.upsert_endpoint(&Endpoint { vni: vni(), address, mac, host }).unwrap();
        }
    }
    tables.set_applied_revision(42);
    tables
}

async fn next(transport: &mut RspTransport) -> Received {
    let next = async {
        loop {
            transport.ready().await;
            if let Some(received) = transport.receive(1).pop() {
                return received;
            }
        }
    };
    timeout(TIMEOUT, next).await.expect("the gateway sends a message")
}

/// The destination's host is asked for its identity; what is no instance has identity 0.
async fn identities_are_passed_on(
    host: &mut RspTransport,
    receiver: &mut RspTransport,
    gateway: IpAddr,
    destination: Destination,
) {
    let unknown = Destination { vni: vni(), address: no_instance(destination.address) };
    host.send(Some(7), gateway, &Message::Identify { entries: vec![destination, unknown] });
    let entries = vec![IdentityEntry { destination: unknown, identity: 0 }];
    assert_eq!(next(host).await.message, Message::Identity { entries });
    assert_eq!(next(receiver).await.message, Message::Identify { entries: vec![destination] });
    // Another host's answer is not believed.
    let told = |identity| Message::Identity { entries: vec![IdentityEntry { destination, identity }] };
    host.send(Some(7), gateway, &told(66));
    receiver.send(Some(7), gateway, &told(258));
    assert_eq!(next(host).await.message, told(258));
}

/// A host asks what has changed before and after an instance is removed.
async fn changes_are_told(
    host: &mut RspTransport,
    tables: &mut NodeTables,
    gateway: IpAddr,
    destination: Destination,
) {
    let (vni, since) = (destination.vni, tables.applied_revision());
    let mut ask = async |since| {
        host.send(Some(7), gateway, &Message::Reconcile { queries: vec![NetworkQuery { vni, since }] });
        next(host).await.message
    };
    let told = |answers: &[NetworkAnswer]| Message::Reconciled { answers: answers.to_vec() };
    let current = |since, revision, changes| NetworkAnswer::Current { vni, since, revision, changes };
    assert_eq!(ask(since).await, told(&[current(since, since, 0)]));
    let unknown = NetworkAnswer::Unknown { vni, since: 1, revision: since };
    assert_eq!(ask(1).await, told(&[unknown]));
    tables.remove_endpoint(vni, destination.address).unwrap();
    tables.set_applied_revision(since + 1);
    let changed = NetworkAnswer::Changed { vni, prefix: destination.address.into() };
    assert_eq!(ask(since).await, told(&[changed, current(since, since + 1, 1)]));
    assert_eq!(ask(since + 1).await, told(&[current(since + 1, since + 1, 0)]));
}

/// The path is sent also to a host that says that it has it, because the gateway has just learned what the other host receives; with the
/// capabilities that both have.
async fn a_request_is_answered(
    host: &mut RspTransport,
    gateway: IpAddr,
    destination: Destination,
    path: Path,
) {
    let Path { revision, reception, .. } = path;
    let queries = [revision, revision, revision, 0].map(|revision| Query { destination, revision }).to_vec();
    let capabilities = Capabilities::from_bits(3);
    host.send(Some(7), gateway, &Message::Request { id: 9, capabilities, queries });
    let reception = Reception { capabilities: Capabilities::from_bits(2), ..reception };
    let answer = Answer::Path(Path { reception, ..path });
    let answers = vec![AnswerEntry { destination, answer }; 4];
    assert_eq!(next(host).await.message, Message::Reply { id: 9, answers });
}

#[test]
fn elephants_are_notified_and_requests_answered() {
    in_namespace(|| async {
        for host in 1..=3 {
            ip(&format!("addr add 192.0.2.{host}/32 dev lo"));
            ip(&format!("addr add 2001:db8::{host}/128 dev lo nodad"));
        }
        let dir = tempfile::tempdir().unwrap();
        let keys = store(dir.path(), KeyKind::Cluster, SECRET);
        let gate = ReaderGate::default();
        let mut tables = tables(&gate);
        let reader = (SharedReader::new(tables.reader(), gate), tables.keep_journal());
        let (sender, events) = mpsc::unbounded_channel();
        let stats = Arc::new(OffloadStats::default());
        let elephants = Channel { events, next: None };
        let vteps = Vteps { v4: "192.0.2.2".parse().ok(), v6: "2001:db8::2".parse().ok() };
        let transport_2 = transport(vteps, &keys);
        let (sent, mut redirects) = (transport_2.stats(), 1);
        let accept: AcceptTargets = Box::new(|_, _| {});
        let responder =
            RspResponder::new(transport_2, elephants, reader, keys.subscribe(), stats.clone(), accept);
        tokio::spawn(responder.run());

        for (source, destination, own, gateway, other) in [
            ("10.0.0.1", "10.0.0.3", "192.0.2.1", "192.0.2.2", "192.0.2.3"),
            ("fd00::1", "fd00::3", "2001:db8::1", "2001:db8::2", "2001:db8::3"),
        ] {
            let (mut host, mut receiver) = (self::host(dir.path(), own), self::host(dir.path(), other));
            let elephant = FlowEvent {
                vni: vni(),
                source: address(source),
                destination: address(destination),
                sender: address(gateway),
                time_ns: 0,
            };
            sender.send(elephant).unwrap();
            let entries = vec![PermitEntry { vni: vni(), host: address(own) }];
            let asked = next(&mut receiver).await;
            assert_eq!(asked.message, Message::Permit { entries: entries.clone() });
            let reception = Reception { mtu: 1400, capabilities: Capabilities::from_bits(6) };
            receiver.send_to(Some(7), asked.from, &Message::Permitted { reception, entries });
            let destination = Destination { vni: vni(), address: address(destination) };
            let revision = tables.applied_revision();
            let path = Path {
                host: address(other),
                mac: MacAddr::local(3),
                vni: vni(),
                lifetime_ms: 60_000,
                revision,
                by_network: true,
                reception,
            };
            let answer = AnswerEntry { destination, answer: Answer::Path(path) };
            let notified = next(&mut host).await;
            assert_eq!(notified.message, Message::Notify { answers: vec![answer] });
            assert_eq!(notified.from, SocketAddr::new(address(gateway), RSP_PORT));

            a_request_is_answered(&mut host, address(gateway), destination, path).await;

            // The other host reports that this one sends it packets for an instance that it does not have. It
            // can speak for itself only, and about nodes only.
            let strays = [own, other, "192.0.2.99", "2001:db8::99"]
                .map(|sender| StrayEntry { destination, host: address(sender) });
            receiver.send(Some(7), address(gateway), &Message::Stray { entries: strays.to_vec() });
            let entry = RedirectEntry { destination, host: address(other), gateway: address(gateway) };
            assert_eq!(next(&mut host).await.message, Message::Redirect { entries: vec![entry] });
            assert_eq!(sent.sent(MessageKind::Redirect), redirects);
            redirects += 1;

            identities_are_passed_on(&mut host, &mut receiver, address(gateway), destination).await;
            changes_are_told(&mut host, &mut tables, address(gateway), destination).await;
        }
        assert_eq!((stats.count(Outcome::Waiting), stats.requested()), (2, 8));
    });
}
