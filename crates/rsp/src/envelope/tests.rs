use super::*;
use crate::{Ask, Destination, Message};
use proptest::prelude::*;
use sluice_types::Vni;
use std::net::Ipv4Addr;

const NOW_MS: u64 = 1_700_000_000_000;
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9));
const NODE: NodeId = NodeId::new(1);
const OTHER: Protocol = Protocol::new(*b"SX", (1, 0), *b"othr");

fn key(id: u32) -> ClusterKey {
    let secret = std::array::from_fn(|i| i as u8 ^ id as u8);
    ClusterKey::new(id, &secret, 0, u64::MAX).unwrap()
}

fn keys() -> KeyRing {
    KeyRing::new(vec![key(1)]).unwrap()
}

fn sealer(protocol: Protocol) -> Sealer {
    Sealer::new(protocol, NODE, BootId::from_bytes([9; 16]))
}

fn copy(_: u8, body: &[u8]) -> Result<Vec<u8>, Refusal> {
    Ok(body.to_vec())
}

#[test]
fn counters_end_without_beginning_anew() {
    let mut sealer = sealer(OTHER);
    sealer.counter = u64::MAX - 1;
    let room = vec![vec![0; HEADER_BYTES]; 2];
    let sealed = sealer.seal_all(&keys(), NOW_MS, HERE, &mut room.clone());
    assert_eq!(sealed, Err(SealError::Exhausted));
    let last = sealer.seal(&keys(), NOW_MS, HERE, b"last").unwrap();
    assert_eq!(last[56..64], u64::MAX.to_be_bytes());
    assert_eq!(sealer.seal(&keys(), NOW_MS, HERE, b"more"), Err(SealError::Exhausted));
    assert_eq!(sealer.seal_all(&keys(), NOW_MS, HERE, &mut []), Ok(()));
}

#[test]
fn derived_keys_are_kept_to_a_bound() {
    let mut sealer = sealer(OTHER);
    for id in 0..20 {
        sealer.subkey(&key(id));
        assert!(sealer.subkeys.len() <= SUBKEYS_MAX);
    }
    // The one used longest ago goes first.
    sealer.subkey(&key(12));
    sealer.subkey(&key(30));
    let kept: Vec<&[u8; 16]> = sealer.subkeys.iter().map(|(name, _)| name).collect();
    let expected = [30, 12, 19, 18, 17, 16, 15, 14].map(key);
    assert_eq!(kept, expected.iter().map(ClusterKey::name).collect::<Vec<_>>());
}

#[test]
fn remembered_sender_takes_about_a_kibibyte() {
    assert!(size_of::<Sender>() + size_of::<SenderKey>() + size_of::<Box<Sender>>() <= 1024);
}

#[test]
fn protocols_do_not_read_each_others_packets() {
    let packet = sealer(OTHER).seal(&keys(), NOW_MS, HERE, b"hello, there").unwrap();
    let mut own = Opener::new(OTHER, Limits::default(), NOW_MS);
    let opened = own.open(&keys(), NOW_MS, HERE, &packet, copy).unwrap();
    assert_eq!((opened.body.as_slice(), opened.sender, opened.key_id), (&b"hello, there"[..], NODE, 1));
    assert_eq!(own.senders(), (1, Limits::default().senders_max));
    assert_eq!(
        own.open(&keys(), NOW_MS, HERE, &packet, copy),
        Err(Refusal::Replayed { counter: 1 }),
        "the window is the envelope's"
    );

    let mut rsp = crate::Opener::new(Limits::default(), NOW_MS);
    let found = u16::from_be_bytes(OTHER.magic);
    assert_eq!(rsp.open(&keys(), NOW_MS, HERE, &packet), Err(Refusal::Magic { found }));
    // With the magic of the other the cipher still tells them apart, both ways.
    let mut renamed = packet;
    renamed[..2].copy_from_slice(&Protocol::RSP.magic);
    assert_eq!(rsp.open(&keys(), NOW_MS, HERE, &renamed), Err(Refusal::Unauthentic));
    let destination = Destination { vni: Vni::new(7).unwrap(), address: Ipv4Addr::new(10, 0, 0, 1).into() };
    let asks = vec![Ask { destination, revision: 0 }];
    let mut renamed = crate::Sealer::new(NODE, BootId::from_bytes([9; 16]))
        .seal(&keys(), NOW_MS, HERE, 1500, &Message::Request { id: 1, asks })
        .unwrap()
        .remove(0);
    renamed[..2].copy_from_slice(&OTHER.magic);
    let opened = Opener::new(OTHER, Limits::default(), NOW_MS).open(&keys(), NOW_MS, HERE, &renamed, copy);
    assert_eq!(opened, Err(Refusal::Unauthentic));
}

/// The same magic under another label is another protocol too.
#[test]
fn labels_part_keys() {
    let label = Protocol::new(OTHER.magic, OTHER.version, *b"zzzz");
    let packet = sealer(label).seal(&keys(), NOW_MS, HERE, b"hello").unwrap();
    let mut own = Opener::new(OTHER, Limits::default(), NOW_MS);
    assert_eq!(own.open(&keys(), NOW_MS, HERE, &packet, copy), Err(Refusal::Unauthentic));
    let newer = Protocol::new(OTHER.magic, (2, 0), OTHER.label);
    let packet = sealer(newer).seal(&keys(), NOW_MS, HERE, b"hello").unwrap();
    assert_eq!(own.open(&keys(), NOW_MS, HERE, &packet, copy), Err(Refusal::Version { major: 2 }));
    assert_eq!(own.senders().0, 0);
}

#[test]
fn what_the_reader_refuses_was_not_received() {
    let packet = sealer(OTHER).seal(&keys(), NOW_MS, HERE, b"").unwrap();
    let mut own = Opener::new(OTHER, Limits::default(), NOW_MS);
    let refuse = |_: u8, _: &[u8]| Err::<(), Refusal>(Refusal::Empty);
    assert_eq!(own.open(&keys(), NOW_MS, HERE, &packet, refuse), Err(Refusal::Empty));
    assert_eq!(own.senders().0, 0);
    assert!(own.open(&keys(), NOW_MS, HERE, &packet, copy).is_ok());
}

#[test]
fn what_no_receiver_takes_is_not_sealed() {
    let mut sealer = sealer(OTHER);
    let bytes = PACKET_BYTES_MAX + 1;
    let body = vec![0; bytes - HEADER_BYTES - TAG_BYTES];
    let long = SealError::Message(Refusal::Long { bytes });
    assert_eq!(sealer.seal(&keys(), NOW_MS, HERE, &body), Err(long));
    assert!(sealer.seal(&keys(), NOW_MS, HERE, &body[1..]).is_ok());
    let address = IpAddr::V4(Ipv4Addr::BROADCAST);
    let nobody = SealError::Message(Refusal::Address { address });
    assert_eq!(sealer.seal(&keys(), NOW_MS, address, b""), Err(nobody));
    assert_eq!(sealer.seal(&KeyRing::default(), 5, HERE, b""), Err(SealError::NoKey { now_ms: 5 }));
}

proptest! {
    #[test]
    fn any_change_is_noticed(body in prop::collection::vec(any::<u8>(), 0..64), at: prop::sample::Index, bit in 0..8u8) {
        let packet = sealer(OTHER).seal(&keys(), NOW_MS, HERE, &body).unwrap();
        let mut own = Opener::new(OTHER, Limits::default(), NOW_MS);
        let mut changed = packet.clone();
        changed[at.index(packet.len())] ^= 1 << bit;
        // A minor version may differ, but is sealed in as well.
        prop_assert!(own.open(&keys(), NOW_MS, HERE, &changed, copy).is_err());
        prop_assert_eq!(own.open(&keys(), NOW_MS, HERE, &packet, copy).unwrap().body, body);
    }
}
