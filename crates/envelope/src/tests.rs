//! Tests of sealer and opener together, with two protocols that share the cluster keys.

use crate::header::Header;
use crate::open::{Sender, SenderKey};
use crate::seal::{SUBKEYS_MAX, seal_packet};
use crate::{
    BootId, ClusterKey, HEADER_BYTES, KeyRing, Limits, NodeId, Opener, PACKET_BYTES_MAX, Protocol, Refusal,
    SealError, Sealer, TAG_BYTES,
};
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr};

const NOW_MS: u64 = 1_700_000_000_000;
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9));
const NODE: NodeId = NodeId::new(1);
const BOOT: BootId = BootId::from_bytes([9; 16]);
const ONE: Protocol = Protocol::new(*b"SX", (1, 0), *b"one ");
const TWO: Protocol = Protocol::new(*b"SY", (1, 0), *b"two ");

fn key(id: u32) -> ClusterKey {
    let secret = std::array::from_fn(|i| i as u8 ^ id as u8);
    ClusterKey::new(id, &secret, 0, u64::MAX).unwrap()
}

fn keys() -> KeyRing {
    KeyRing::new(vec![key(1)]).unwrap()
}

fn sealer(protocol: Protocol) -> Sealer {
    Sealer::new(protocol, NODE, BOOT)
}

fn opener(protocol: Protocol) -> Opener {
    Opener::new(protocol, Limits::default(), NOW_MS)
}

fn copy(_: u8, body: &[u8]) -> Result<Vec<u8>, Refusal> {
    Ok(body.to_vec())
}

#[test]
fn counters_end_and_do_not_restart() {
    let mut sealer = sealer(ONE);
    sealer.counter = u64::MAX - 1;
    let two = sealer.seal_all(&keys(), NOW_MS, HERE, &["first", "second"]);
    assert_eq!(two, Err(SealError::CountersExhausted));
    let last = sealer.seal(&keys(), NOW_MS, HERE, b"last").unwrap();
    assert_eq!(last[56..64], u64::MAX.to_be_bytes(), "the failed call used no counter");
    assert_eq!(sealer.seal(&keys(), NOW_MS, HERE, b"more"), Err(SealError::CountersExhausted));
    assert_eq!(sealer.seal_all::<&[u8]>(&keys(), NOW_MS, HERE, &[]), Ok(vec![]));
}

#[test]
fn subkeys_of_a_sealer_are_bounded() {
    let mut sealer = sealer(ONE);
    for id in 0..20 {
        sealer.subkey(&key(id));
        assert!(sealer.subkeys.len() <= SUBKEYS_MAX);
    }
    // The least recently used subkey is dropped first.
    sealer.subkey(&key(12));
    sealer.subkey(&key(30));
    let kept: Vec<&[u8; 16]> = sealer.subkeys.iter().map(|(name, _)| name).collect();
    let expected = [30, 12, 19, 18, 17, 16, 15, 14].map(key);
    assert_eq!(kept, expected.iter().map(ClusterKey::name).collect::<Vec<_>>());
}

#[test]
fn remembered_sender_takes_at_most_one_kibibyte() {
    assert!(size_of::<Sender>() + size_of::<SenderKey>() + size_of::<Box<Sender>>() <= 1024);
}

#[test]
fn packet_is_opened_once() {
    let packet = sealer(ONE).seal(&keys(), NOW_MS, HERE, b"hello, there").unwrap();
    let mut opener = opener(ONE);
    let opened = opener.open(&keys(), NOW_MS, HERE, &packet, copy).unwrap();
    assert_eq!(
        (opened.body.as_slice(), opened.sender, opened.boot, opened.key_id),
        (&b"hello, there"[..], NODE, BOOT, 1)
    );
    assert_eq!(opener.senders(), (1, Limits::default().senders_max));
    assert_eq!(opener.open(&keys(), NOW_MS, HERE, &packet, copy), Err(Refusal::Replayed { counter: 1 }));
}

#[test]
fn protocols_refuse_each_others_packets() {
    for (own, other) in [(ONE, TWO), (TWO, ONE)] {
        let mut packet = sealer(other).seal(&keys(), NOW_MS, HERE, b"hello").unwrap();
        let mut opener = opener(own);
        let found = u16::from_be_bytes(other.magic);
        assert_eq!(opener.open(&keys(), NOW_MS, HERE, &packet, copy), Err(Refusal::Magic { found }));
        // The magic number can be forged; the subkey still belongs to the other protocol.
        packet[..2].copy_from_slice(&own.magic);
        assert_eq!(opener.open(&keys(), NOW_MS, HERE, &packet, copy), Err(Refusal::AuthenticationFailed));
        assert_eq!(opener.senders().0, 0);
    }
}

/// The header is equal in both protocols, so only the label separates their keys.
#[test]
fn label_alone_separates_protocols() {
    let same_magic = Protocol::new(ONE.magic, ONE.version, *b"zzzz");
    let packet = sealer(same_magic).seal(&keys(), NOW_MS, HERE, b"hello").unwrap();
    let mut opener = opener(ONE);
    assert_eq!(opener.open(&keys(), NOW_MS, HERE, &packet, copy), Err(Refusal::AuthenticationFailed));
    assert_eq!(opener.senders().0, 0);
}

#[test]
fn only_the_major_version_must_be_equal() {
    let mut opener = opener(ONE);
    let major = Protocol::new(ONE.magic, (2, 0), ONE.label);
    let packet = sealer(major).seal(&keys(), NOW_MS, HERE, b"hello").unwrap();
    assert_eq!(opener.open(&keys(), NOW_MS, HERE, &packet, copy), Err(Refusal::Version { major: 2 }));
    let minor = Protocol::new(ONE.magic, (1, 7), ONE.label);
    let packet = sealer(minor).seal(&keys(), NOW_MS, HERE, b"hello").unwrap();
    let read_minor = |minor: u8, _: &[u8]| Ok::<_, Refusal>(minor);
    assert_eq!(opener.open(&keys(), NOW_MS, HERE, &packet, read_minor).unwrap().body, 7);
}

#[test]
fn body_below_the_minimum_is_refused_before_decryption() {
    let protocol = ONE.with_body_bytes_min(4);
    let mut sealer = sealer(protocol);
    let mut opener = opener(protocol);
    let short = sealer.seal(&keys(), NOW_MS, HERE, b"abc").unwrap();
    let bytes = HEADER_BYTES + 3 + TAG_BYTES;
    assert_eq!(opener.open(&keys(), NOW_MS, HERE, &short, copy), Err(Refusal::Short { bytes }));
    let long_enough = sealer.seal(&keys(), NOW_MS, HERE, b"abcd").unwrap();
    assert!(opener.open(&keys(), NOW_MS, HERE, &long_enough, copy).is_ok());
}

#[test]
fn packet_whose_body_is_refused_counts_as_not_received() {
    let packet = sealer(ONE).seal(&keys(), NOW_MS, HERE, b"").unwrap();
    let mut opener = opener(ONE);
    let refuse = |_: u8, _: &[u8]| Err::<(), Refusal>(Refusal::AuthenticationFailed);
    assert_eq!(opener.open(&keys(), NOW_MS, HERE, &packet, refuse), Err(Refusal::AuthenticationFailed));
    assert_eq!(opener.senders().0, 0);
    assert!(opener.open(&keys(), NOW_MS, HERE, &packet, copy).is_ok());
}

/// A sealer starts at 1, so this packet is made by hand.
#[test]
fn counter_zero_is_refused() {
    let packet = |counter| {
        let header =
            Header { minor: 0, key_id: 1, sender: NODE, boot: BOOT, to: HERE, sent_ms: NOW_MS, counter };
        seal_packet(&ONE, &key(1).subkey(ONE.label, NODE, &BOOT), &header, b"hello")
    };
    let mut opener = opener(ONE);
    let refused = Err(Refusal::BehindWindow { counter: 0 });
    assert_eq!(opener.open(&keys(), NOW_MS, HERE, &packet(0), copy), refused);
    assert!(opener.open(&keys(), NOW_MS, HERE, &packet(1), copy).is_ok());
    assert_eq!(opener.open(&keys(), NOW_MS, HERE, &packet(0), copy), refused);
}

#[test]
fn local_address_may_be_given_as_mapped_ipv4() {
    let packet = sealer(ONE).seal(&keys(), NOW_MS, HERE, b"hello").unwrap();
    let mapped = "::ffff:192.0.2.9".parse().unwrap();
    assert!(opener(ONE).open(&keys(), NOW_MS, mapped, &packet, copy).is_ok());
}

#[test]
fn packet_that_every_receiver_would_refuse_is_not_sealed() {
    let mut sealer = sealer(ONE);
    let bytes = PACKET_BYTES_MAX + 1;
    let body = vec![0; bytes - HEADER_BYTES - TAG_BYTES];
    assert_eq!(sealer.seal(&keys(), NOW_MS, HERE, &body), Err(SealError::TooLong { bytes }));
    for address in ["255.255.255.255", "0.0.0.0", "224.0.0.1", "::ffff:192.0.2.9"] {
        let address = address.parse().unwrap();
        assert_eq!(sealer.seal(&keys(), NOW_MS, address, b""), Err(SealError::Address { address }));
    }
    assert_eq!(sealer.seal(&KeyRing::default(), 5, HERE, b""), Err(SealError::NoKey { now_ms: 5 }));
    let packet = sealer.seal(&keys(), NOW_MS, HERE, &body[1..]).unwrap();
    assert_eq!(packet.len(), PACKET_BYTES_MAX);
    assert_eq!(packet[56..64], 1u64.to_be_bytes(), "the failed calls used no counter");
}

#[test]
fn refusal_names_and_numbers_are_stable() {
    let address = HERE;
    let all = [
        (1, "short", Refusal::Short { bytes: 0 }),
        (2, "long", Refusal::Long { bytes: 0 }),
        (3, "magic", Refusal::Magic { found: 0 }),
        (4, "version", Refusal::Version { major: 0 }),
        (5, "unknown_key", Refusal::UnknownKey { id: 0 }),
        (6, "misdirected", Refusal::Misdirected { to: address }),
        (7, "too_old", Refusal::TooOld { by_ms: 0 }),
        (8, "too_new", Refusal::TooNew { by_ms: 0 }),
        (9, "key_period", Refusal::KeyPeriod { id: 0 }),
        (10, "replayed", Refusal::Replayed { counter: 0 }),
        (11, "behind_window", Refusal::BehindWindow { counter: 0 }),
        (12, "forgotten", Refusal::Forgotten { until_ms: 0 }),
        (13, "authentication_failed", Refusal::AuthenticationFailed),
    ];
    assert_eq!(all.len() + 1, Refusal::NAMES.len());
    for (number, name, refusal) in all {
        assert_eq!((refusal.number(), refusal.name()), (number, name));
    }
}

proptest! {
    #[test]
    fn every_changed_bit_is_detected(
        body in prop::collection::vec(any::<u8>(), 0..64),
        at: prop::sample::Index,
        bit in 0..8u8,
    ) {
        let packet = sealer(ONE).seal(&keys(), NOW_MS, HERE, &body).unwrap();
        let mut opener = opener(ONE);
        let mut changed = packet.clone();
        changed[at.index(packet.len())] ^= 1 << bit;
        // The minor version may differ between nodes, but it is authenticated as well.
        prop_assert!(opener.open(&keys(), NOW_MS, HERE, &changed, copy).is_err());
        prop_assert_eq!(opener.open(&keys(), NOW_MS, HERE, &packet, copy).unwrap().body, body);
    }
}
