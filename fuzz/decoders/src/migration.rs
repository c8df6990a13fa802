//! Datagrams between the two hosts of a migration, and their envelope.
//!
//! An input is a byte that selects what is decoded, one that selects what is forged, and the bytes to decode.

use crate::sealed::{BOOT, NOW_MS, RECEIVER, forge, keys};
use sluice_envelope::{Limits, NodeId, Opener, Refusal, Sealer};
use sluice_tables::sessions::Flow;
use sluice_types::InstanceId;
use sluice_vswitch::migration_wire::{
    Answer, BODY_BYTES_MAX, COPIES_MAX, Head, Message, PROTOCOL, Reply, Request, SessionCopy,
};

/// Selects that the bytes are a datagram; otherwise they are the message in one.
const DATAGRAM: u8 = 1;

const SENDER: NodeId = NodeId::new(8);

pub fn run(data: &[u8]) {
    let [kind, choice, bytes @ ..] = data else { return };
    let mut receiver = Opener::new(PROTOCOL, Limits::default(), NOW_MS);
    if *kind == DATAGRAM {
        // Only the sealed parts of other inputs are authentic.
        assert!(open(&mut receiver, bytes).is_err(), "an unsealed datagram was accepted");
        return;
    }
    let Some(message) = Message::decode(bytes) else { return };
    // It may differ from the input: a receiver ignores flags that it does not know, and what follows a request.
    let body = message.encode();
    assert!(body.len() <= BODY_BYTES_MAX, "a body of {} bytes", body.len());
    assert_eq!(Message::decode(&body).as_ref(), Some(&message), "decoded again");

    let mut sender = Sealer::new(PROTOCOL, SENDER, BOOT);
    let packet = sender.seal(keys(), NOW_MS, RECEIVER, &body).expect("a decoded message can be sent");
    let forged = forge(&packet, *choice);
    assert!(open(&mut receiver, &forged).is_err(), "a forged datagram was accepted");
    assert_eq!(open(&mut receiver, &packet), Ok(message));
    assert!(open(&mut receiver, &packet).is_err(), "a replayed datagram was accepted");
}

/// Reads a datagram as a host does. The error is `None` if the envelope is authentic and the body is malformed.
fn open(receiver: &mut Opener, packet: &[u8]) -> Result<Message, Option<Refusal>> {
    let read = |_: u8, body: &[u8]| Message::decode(body).ok_or(None);
    receiver.open(keys(), NOW_MS, RECEIVER, packet, read).map(|opened| opened.body)
}

fn copy(source: &str, destination: &str, is_egress: bool) -> SessionCopy {
    let flow = Flow {
        scope: 0,
        protocol: 6,
        source: source.parse().expect("an endpoint"),
        destination: destination.parse().expect("an endpoint"),
    };
    SessionCopy {
        flow,
        is_egress,
        state: 0x50006,
        age: 9,
        idle: 8,
        packets: [1, 2],
        bytes: [3, u64::MAX],
        member: 7,
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let head = Head { migration: 3, instance: InstanceId::new(7), number: 2 };
    let request = |freeze, cursor, idle_max| Message::Request(Request { head, freeze, cursor, idle_max });
    let reply = |answer| Message::Reply(Reply { head, answer });
    let ipv4 = copy("10.0.0.5:4096", "10.0.0.6:443", true);
    let ipv6 = copy("[fd00::5]:4096", "[fd00::6]:443", false);
    let messages = [
        request(false, 0, u32::MAX),
        request(true, 1 << 32, 16),
        request(true, u64::MAX, 0),
        reply(Answer::Refused),
        reply(Answer::Sessions { frozen: true, next: None, copies: Vec::new() }),
        reply(Answer::Sessions { frozen: false, next: Some(1 << 32), copies: vec![ipv4, ipv6] }),
        reply(Answer::Sessions { frozen: true, next: None, copies: vec![ipv4; COPIES_MAX] }),
        reply(Answer::Sessions { frozen: true, next: Some(9), copies: vec![ipv6; COPIES_MAX] }),
    ];
    let mut seeds: Vec<_> = messages.iter().map(|message| [vec![0, 0], message.encode()].concat()).collect();
    // Sealed for another receiver.
    let mut sender = Sealer::new(PROTOCOL, SENDER, BOOT);
    let elsewhere = "2001:db8::8".parse().expect("an address");
    let packet = sender.seal(keys(), NOW_MS, elsewhere, &messages[0].encode()).expect("a key is valid");
    seeds.push([vec![DATAGRAM, 0], packet].concat());
    seeds
}
