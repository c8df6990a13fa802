//! An observer without the key learns from packets only which nodes communicate, when, and how much.

use crate::make::{HERE, MTU, NOW_MS, destination, key, path, ring, sealer};
use sluice_envelope::{HEADER_BYTES, KeyRing};
use sluice_rsp::{
    Answer, AnswerEntry, Capabilities, IdentityEntry, Message, NetworkAnswer, NetworkQuery, PermitEntry,
    Query, Reception, RedirectEntry, StrayEntry,
};
use std::collections::BTreeSet;

const ADDRESSES: [&str; 2] = ["10.123.45.67", "fd12:3456:789a::bcde"];
const HOSTS: [&str; 2] = ["198.51.100.201", "2001:db8:77::201"];
const VNI: u32 = 0x5a_a5_c3;

/// One message of each kind, all about the same destinations.
fn messages() -> Vec<Message> {
    let both = ADDRESSES.map(|address| destination(VNI, address));
    let answers: Vec<AnswerEntry> = both
        .into_iter()
        .flat_map(|destination| {
            HOSTS.map(|host| AnswerEntry { destination, answer: Answer::Path(path(host, 0x1122_3344_5566)) })
        })
        .collect();
    let [host, gateway] = HOSTS.map(|host| host.parse().unwrap());
    let permits = [host, gateway].map(|host| PermitEntry { vni: both[0].vni, host });
    vec![
        Message::Request {
            id: 0x0bad_cafe,
            capabilities: Capabilities::NONE,
            queries: both.map(|destination| Query { destination, revision: 0x1122_3344_5566 }).to_vec(),
        },
        Message::Reply { id: 0x0bad_cafe, answers: answers.clone() },
        Message::Notify { answers },
        Message::Redirect {
            entries: both.map(|destination| RedirectEntry { destination, host, gateway }).to_vec(),
        },
        Message::Stray {
            entries: both.map(|destination| StrayEntry { destination, host: gateway }).to_vec(),
        },
        Message::Permit { entries: permits.to_vec() },
        Message::Permitted { reception: Reception::default(), entries: permits.to_vec() },
        Message::Identify { entries: both.to_vec() },
        Message::Identity {
            entries: both.map(|destination| IdentityEntry { destination, identity: 0x5aa5 }).to_vec(),
        },
        Message::Reconcile { queries: vec![NetworkQuery { vni: both[0].vni, since: 0x1122_3344_5566 }] },
        Message::Reconciled {
            answers: both
                .map(|to| NetworkAnswer::Changed { vni: to.vni, prefix: to.address.into() })
                .into_iter()
                .chain([NetworkAnswer::Unknown { vni: both[0].vni, since: 1, revision: 0x1122_3344_5566 }])
                .collect(),
        },
    ]
}

/// Byte strings that the messages contain in clear text.
fn secrets() -> Vec<Vec<u8>> {
    let octets = |text: &str| match text.parse().unwrap() {
        std::net::IpAddr::V4(v4) => v4.octets().to_vec(),
        std::net::IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let mut out: Vec<Vec<u8>> = ADDRESSES.iter().chain(&HOSTS).map(|text| octets(text)).collect();
    out.push(VNI.to_be_bytes()[1..].to_vec());
    out.push(path(HOSTS[0], 0x1122_3344_5566).mac.octets().to_vec());
    out.push(path(HOSTS[0], 0).vni.get().to_be_bytes()[1..].to_vec());
    out.push(0x1122_3344_5566u64.to_be_bytes()[2..].to_vec());
    out.push(0x0bad_cafeu32.to_be_bytes().to_vec());
    out
}

#[test]
fn packets_contain_no_clear_text() {
    let keys = ring();
    let mut sealer = sealer(1, 1);
    for message in messages() {
        let packet = sealer.seal(&keys, NOW_MS, HERE, MTU, &message).unwrap().remove(0);
        for secret in secrets() {
            assert!(!packet.windows(secret.len()).any(|window| window == secret), "{secret:02x?}");
        }
    }
}

#[test]
fn packets_of_equal_messages_differ_in_every_encrypted_part() {
    let (keys, other) = (ring(), KeyRing::new(vec![key(2, 0, u64::MAX)]).unwrap());
    let message = &messages()[2];
    let mut same = sealer(1, 1);
    let mut packets: Vec<Vec<u8>> =
        (0..50).flat_map(|_| same.seal(&keys, NOW_MS, HERE, MTU, message).unwrap()).collect();
    packets.extend(same.seal(&keys, NOW_MS + 1, HERE, MTU, message).unwrap());
    packets.extend(same.seal(&other, NOW_MS, HERE, MTU, message).unwrap());
    packets.extend(sealer(1, 2).seal(&keys, NOW_MS, HERE, MTU, message).unwrap());
    packets.extend(sealer(2, 1).seal(&keys, NOW_MS, HERE, MTU, message).unwrap());
    // Eight bytes at the same position are equal only if nonce and key are equal.
    let length = packets[0].len();
    for at in (HEADER_BYTES..length - 8).step_by(8) {
        let seen: BTreeSet<&[u8]> = packets.iter().map(|packet| &packet[at..at + 8]).collect();
        assert_eq!(seen.len(), packets.len(), "at {at}");
    }
}

/// A machine that is resumed from a snapshot uses the same boot id and counters again, at another time.
#[test]
fn sender_resumed_from_a_snapshot_uses_other_nonces() {
    let keys = ring();
    let message = &messages()[2];
    let [first, second] =
        [0, 1].map(|later| sealer(1, 1).seal(&keys, NOW_MS + later, HERE, MTU, message).unwrap().remove(0));
    assert_eq!(first[56..64], second[56..64], "counters are equal");
    assert_ne!(first[HEADER_BYTES..HEADER_BYTES + 32], second[HEADER_BYTES..HEADER_BYTES + 32]);
}

#[test]
fn counters_never_repeat_under_a_boot_id() {
    let (keys, other) = (ring(), KeyRing::new(vec![key(2, 0, u64::MAX)]).unwrap());
    let mut sealer = sealer(1, 1);
    let mut counters = BTreeSet::new();
    let mut packets = 0;
    for round in 0..200 {
        let ring = if round % 3 == 0 { &other } else { &keys };
        for packet in sealer.seal(ring, NOW_MS, HERE, 576, &crate::make::notify(round % 40)).unwrap() {
            counters.insert(packet[56..64].to_vec());
            packets += 1;
        }
    }
    assert!(packets > 300);
    assert_eq!(counters.len(), packets);
}

#[test]
fn header_does_not_reveal_the_kind_of_message() {
    let keys = ring();
    let mut sealer = sealer(1, 1);
    let mut heads = messages().into_iter().map(|message| {
        let packet = sealer.seal(&keys, NOW_MS, HERE, MTU, &message).unwrap().remove(0);
        packet[..56].to_vec()
    });
    let first = heads.next().unwrap();
    assert!(heads.all(|head| head == first), "headers may differ only in the counter");
}
