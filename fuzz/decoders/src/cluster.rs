//! Datagrams of the cluster protocol: hellos, heartbeats, claims and configurations, and their envelope.
//!
//! An input is a byte that selects what is decoded, one that selects what is forged, and the bytes to decode.

use crate::sealed::{BOOT, NOW_MS, RECEIVER, forge, keys};
use sluice_cluster::{
    Body, Claim, Config, Health, Load, Member, Message, MessageCodec, Node, Pulse, Report, TableReport,
    VipId, VipSet,
};
use sluice_types::{ClusterId, GatewayId};

/// Selects that the bytes are a datagram; otherwise they are the message in one.
const DATAGRAM: u8 = 1;

pub fn run(data: &[u8]) {
    let [kind, choice, bytes @ ..] = data else { return };
    let mut receiver = MessageCodec::new(Node::Gateway(GatewayId::new(1)), BOOT, NOW_MS);
    if *kind == DATAGRAM {
        // Only the sealed parts of other inputs are authentic.
        assert!(receiver.open(keys(), NOW_MS, RECEIVER, bytes).is_err(), "an unsealed datagram was accepted");
        return;
    }
    let Ok(message) = Message::decode(bytes) else { return };
    let encoded = message.encode();
    assert_eq!(Message::decode(&encoded).as_ref(), Ok(&message), "decoded again");
    assert_eq!(encoded, bytes, "a message has one encoding");

    let mut sender = MessageCodec::new(message.from, BOOT, NOW_MS);
    let Ok(packet) = sender.seal(keys(), NOW_MS, RECEIVER, &message) else { return };
    let forged = forge(&packet, *choice);
    assert!(receiver.open(keys(), NOW_MS, RECEIVER, &forged).is_err(), "a forged datagram was accepted");
    assert_eq!(receiver.open(keys(), NOW_MS, RECEIVER, &packet), Ok((message, 3)));
    assert!(receiver.open(keys(), NOW_MS, RECEIVER, &packet).is_err(), "a replayed datagram was accepted");
}

pub fn seeds() -> Vec<Vec<u8>> {
    let ids = || (1..4).map(GatewayId::new);
    let report = Report {
        config: 5,
        digest: 7,
        holds: VipSet::first(2),
        reachable: ids().collect(),
        health: Health::Ready,
        tables: TableReport { revision: 300, behind: true, copies: true, translates: true },
    };
    let members = ids().map(|id| Member { id, draining: false }).collect();
    let claim = Claim { epoch: 9, owner: GatewayId::new(8) };
    let bodies = [
        Body::Hello(report.clone()),
        Body::Heartbeat(report),
        Body::Pulse(Pulse { echo: 4, config: 5, digest: 7, reachable: ids().collect() }),
        Body::Probe,
        Body::Claims(VipSet::first(3).iter().map(|vip: VipId| (vip, claim)).collect()),
        Body::Config(Config { revision: 5, vips: VipSet::first(2), hello_interval_ms: 40, members }),
        Body::Load(Load { busy_permille: 900, packets: Some(7) }),
    ];
    let from = Node::Gateway(GatewayId::new(8));
    let messages =
        bodies.map(|body| Message { cluster: ClusterId::new(3), from, incarnation: 1 << 34, seq: 2, body });
    let mut seeds: Vec<_> = messages.iter().map(|message| [vec![0, 0], message.encode()].concat()).collect();
    // Sealed for another receiver.
    let mut sender = MessageCodec::new(from, BOOT, NOW_MS);
    let elsewhere = "2001:db8::8".parse().expect("an address");
    let packet = sender.seal(keys(), NOW_MS, elsewhere, &messages[0]).expect("a key is valid");
    seeds.push([vec![DATAGRAM, 0], packet].concat());
    seeds
}
