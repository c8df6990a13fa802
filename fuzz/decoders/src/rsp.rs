//! Packets of RSP and the messages in them.
//!
//! An input is a byte that selects what is decoded, one that selects what is forged, the sender's minor version, and
//! the bytes to decode.

use crate::sealed::{BOOT, NOW_MS, RECEIVER, forge, keys};
use sluice_envelope::{Limits, NodeId};
use sluice_rsp::{
    Answer, AnswerEntry, Capabilities, Destination, IdentityEntry, Message, NetworkAnswer, NetworkQuery,
    Opener, Path, PermitEntry, Query, Reception, RedirectEntry, Sealer, StrayEntry, VERSION, decode,
};
use sluice_types::{MacAddr, Vni};
use std::net::IpAddr;

/// Selects that the bytes are a packet; otherwise they are the body of one.
const PACKET: u8 = 1;
/// MTU that the packets of a message are made for.
const MTU: u16 = 1500;

pub fn run(data: &[u8]) {
    let [kind, choice, minor, bytes @ ..] = data else { return };
    let mut receiver = Opener::new(Limits::default(), NOW_MS);
    if *kind == PACKET {
        assert!(receiver.open(keys(), NOW_MS, RECEIVER, bytes).is_err(), "an unsealed packet was accepted");
        return;
    }
    let Ok(body) = decode(*minor, bytes) else { return };
    assert!(body.skipped == 0 || *minor > VERSION.1, "an entry of this version was ignored");
    let message = body.message;
    if message.is_empty() {
        return;
    }
    let mut sender = Sealer::new(NodeId::new(8), BOOT);
    let packets =
        sender.seal(keys(), NOW_MS, RECEIVER, MTU, &message).expect("a decoded message can be sent");
    let forged = forge(&packets[0], *choice);
    assert!(receiver.open(keys(), NOW_MS, RECEIVER, &forged).is_err(), "a forged packet was accepted");
    let mut received: Option<Message> = None;
    for packet in &packets {
        let part = receiver.open(keys(), NOW_MS, RECEIVER, packet).expect("a sealed packet is accepted");
        assert_eq!(part.skipped, 0);
        received = Some(join(received, part.message));
        assert!(receiver.open(keys(), NOW_MS, RECEIVER, packet).is_err(), "a replayed packet was accepted");
    }
    assert_eq!(received.as_ref(), Some(&message), "decoded again");
}

/// Appends a part of a message to the parts before it.
fn join(before: Option<Message>, part: Message) -> Message {
    match (before, part) {
        (None, part) => part,
        (
            Some(Message::Request { id, capabilities, mut queries }),
            Message::Request { queries: more, .. },
        ) => {
            queries.extend(more);
            Message::Request { id, capabilities, queries }
        }
        (Some(Message::Reply { id, mut answers }), Message::Reply { answers: more, .. }) => {
            answers.extend(more);
            Message::Reply { id, answers }
        }
        (Some(Message::Notify { mut answers }), Message::Notify { answers: more }) => {
            answers.extend(more);
            Message::Notify { answers }
        }
        (Some(Message::Redirect { mut entries }), Message::Redirect { entries: more }) => {
            entries.extend(more);
            Message::Redirect { entries }
        }
        (Some(Message::Stray { mut entries }), Message::Stray { entries: more }) => {
            entries.extend(more);
            Message::Stray { entries }
        }
        (Some(Message::Permit { mut entries }), Message::Permit { entries: more }) => {
            entries.extend(more);
            Message::Permit { entries }
        }
        (Some(Message::Permitted { reception, mut entries }), Message::Permitted { entries: more, .. }) => {
            entries.extend(more);
            Message::Permitted { reception, entries }
        }
        (Some(Message::Identify { mut entries }), Message::Identify { entries: more }) => {
            entries.extend(more);
            Message::Identify { entries }
        }
        (Some(Message::Identity { mut entries }), Message::Identity { entries: more }) => {
            entries.extend(more);
            Message::Identity { entries }
        }
        (Some(Message::Reconcile { mut queries }), Message::Reconcile { queries: more }) => {
            queries.extend(more);
            Message::Reconcile { queries }
        }
        (Some(Message::Reconciled { mut answers }), Message::Reconciled { answers: more }) => {
            answers.extend(more);
            Message::Reconciled { answers }
        }
        (Some(before), part) => panic!("{part:?} is not a part of {before:?}"),
    }
}

fn messages() -> Vec<Message> {
    let vni = Vni::new(100).expect("a VNI");
    let addresses = ["10.0.0.1", "fd00::1"].map(|text| text.parse::<IpAddr>().expect("an address"));
    let hosts = ["192.0.2.8", "2001:db8::8"].map(|text| text.parse::<IpAddr>().expect("an address"));
    let destinations = addresses.map(|address| Destination { vni, address });
    let reception = Reception { mtu: 1450, capabilities: Capabilities::from_bits(1) };
    let path = |host| Path {
        host,
        mac: MacAddr::local(5),
        vni,
        lifetime_ms: 1000,
        revision: 7,
        by_network: true,
        reception,
    };
    let mut answers = Vec::new();
    for destination in destinations {
        answers.extend(hosts.map(|host| AnswerEntry { destination, answer: Answer::Path(path(host)) }));
        answers.push(AnswerEntry { destination, answer: Answer::Absent { revision: 9 } });
    }
    let unchanged = Answer::Unchanged { lifetime_ms: 1000, revision: 7 };
    let replied = destinations.map(|destination| AnswerEntry { destination, answer: unchanged });
    let entries = destinations.into_iter().zip(hosts);
    let redirect = |(destination, host)| RedirectEntry { destination, host, gateway: hosts[0] };
    let permits = hosts.map(|host| PermitEntry { vni, host });
    let identity = |destination| IdentityEntry { destination, identity: 258 };
    vec![
        Message::Request {
            id: 3,
            capabilities: reception.capabilities,
            queries: destinations.map(|destination| Query { destination, revision: 1 }).into(),
        },
        Message::Reply { id: 3, answers: [&answers[..], &replied].concat() },
        Message::Notify { answers },
        Message::Redirect { entries: entries.clone().map(redirect).collect() },
        Message::Stray {
            entries: entries.map(|(destination, host)| StrayEntry { destination, host }).collect(),
        },
        Message::Permit { entries: permits.to_vec() },
        Message::Permitted { reception, entries: permits.to_vec() },
        Message::Identify { entries: destinations.to_vec() },
        Message::Identity { entries: destinations.map(identity).to_vec() },
        Message::Reconcile { queries: vec![NetworkQuery { vni, since: 7 }] },
        Message::Reconciled {
            answers: [
                addresses.map(|address| NetworkAnswer::Changed { vni, prefix: address.into() }),
                [
                    NetworkAnswer::Current { vni, since: 7, revision: 9, changes: 2 },
                    NetworkAnswer::Unknown { vni, since: 7, revision: 9 },
                ],
            ]
            .concat(),
        },
    ]
}

pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for message in messages() {
        for minor in [VERSION.1, VERSION.1 + 1] {
            seeds.push([vec![0, 0, minor], body(&message)].concat());
        }
        let packets = Sealer::new(NodeId::new(8), BOOT).seal(keys(), NOW_MS, RECEIVER, MTU, &message);
        // The end of the tag is inverted: more bits than the changes of a test can restore.
        let mut packet = packets.expect("a key is valid").remove(0);
        packet.iter_mut().rev().take(8).for_each(|byte| *byte = !*byte);
        seeds.push([vec![PACKET, 0, 0], packet].concat());
    }
    seeds
}

/// The body of a message. It is taken from the envelope, because the crate only encodes messages to seal them.
fn body(message: &Message) -> Vec<u8> {
    let packets = Sealer::new(NodeId::new(8), BOOT).seal(keys(), NOW_MS, RECEIVER, MTU, message);
    let packet = packets.expect("a key is valid").remove(0);
    let protocol = sluice_envelope::Protocol::new(*b"SR", VERSION, *b"seal");
    let mut opener = sluice_envelope::Opener::new(protocol, Limits::default(), NOW_MS);
    let read = |_, body: &[u8]| Ok::<_, sluice_envelope::Refusal>(body.to_vec());
    opener.open(keys(), NOW_MS, RECEIVER, &packet, read).expect("the packet was sealed above").body
}
