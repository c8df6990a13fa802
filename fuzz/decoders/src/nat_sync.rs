//! Datagrams with which gateways copy sessions of source NAT, and their envelope.
//!
//! An input is a byte that selects what is decoded, one that selects what is forged, and the bytes to decode.

use crate::sealed::{BOOT, NOW_MS, RECEIVER, forge, keys};
use sluice_nat_sync::{Ack, Data, Message, MessageCodec, PassId, Progress, Record, Role, State};
use sluice_types::{GatewayId, Vni};

/// Selects that the bytes are a datagram; otherwise they are the message in one.
const DATAGRAM: u8 = 1;

const SENDER: GatewayId = GatewayId::new(8);

pub fn run(data: &[u8]) {
    let [kind, choice, bytes @ ..] = data else { return };
    let mut receiver = MessageCodec::new(GatewayId::new(1), BOOT, NOW_MS);
    if *kind == DATAGRAM {
        // Only the sealed parts of other inputs are authentic.
        assert!(receiver.open(keys(), NOW_MS, RECEIVER, bytes).is_err(), "an unsealed datagram was accepted");
        return;
    }
    let Ok(message) = Message::decode(bytes) else { return };
    assert_eq!(message.encode(), bytes, "a message has one encoding");
    if let Message::Data(data) = &message {
        assert!(data.records.iter().all(Record::is_valid), "a session is not valid");
    }
    let mut sender = MessageCodec::new(SENDER, BOOT, NOW_MS);
    let Ok(packet) = sender.seal(keys(), NOW_MS, RECEIVER, &message) else { return };
    let forged = forge(&packet, *choice);
    assert!(receiver.open(keys(), NOW_MS, RECEIVER, &forged).is_err(), "a forged datagram was accepted");
    assert_eq!(receiver.open(keys(), NOW_MS, RECEIVER, &packet), Ok((SENDER, message)));
    assert!(receiver.open(keys(), NOW_MS, RECEIVER, &packet).is_err(), "a replayed datagram was accepted");
}

pub fn seeds() -> Vec<Vec<u8>> {
    let vni = |number| Vni::new(number).expect("a small number is a VNI");
    let session = |(protocol, inside): (u8, &str)| Record {
        vni: vni(7),
        protocol,
        inside: inside.parse().expect("an endpoint"),
        remote: "198.51.100.1:443".parse().expect("an endpoint"),
        outside: "203.0.113.5:2048".parse().expect("an endpoint"),
        state: State::new(State::REPLIED | State::CONFIRMED).expect("both bits have a meaning"),
        idle: 80,
    };
    let pass = PassId { boot: 1 << 34, number: 2 };
    let data = Data {
        pass,
        seq: 3,
        last: true,
        age: 1,
        records: [(6, "10.0.0.5:4096"), (17, "[fd00::5]:4096"), (1, "10.0.0.5:7")].map(session).to_vec(),
        units: vec![(vni(7), Role::Owner), (vni(8), Role::Former)],
    };
    let progress = Progress::Done { copied: true, returned: false };
    let messages = [
        Message::Begin(pass),
        Message::Data(data),
        Message::Ack(Ack { pass, progress, next: 4, seen: 2 }),
        Message::Want,
    ];
    let mut seeds: Vec<_> = messages.iter().map(|message| [vec![0, 0], message.encode()].concat()).collect();
    // Sealed for another receiver.
    let mut sender = MessageCodec::new(SENDER, BOOT, NOW_MS);
    let elsewhere = "2001:db8::8".parse().expect("an address");
    let packet = sender.seal(keys(), NOW_MS, elsewhere, &messages[0]).expect("a key is valid");
    seeds.push([vec![DATAGRAM, 0], packet].concat());
    seeds
}
