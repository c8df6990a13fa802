use super::*;
use crate::refusal::BodyError;
use sluice_envelope::ClusterKey;
use std::net::Ipv4Addr;

const NOW_MS: u64 = 1_700_000_000_000;
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9));

fn keys() -> KeyRing {
    let key = ClusterKey::new(1, &std::array::from_fn(|i| i as u8), 0, u64::MAX).unwrap();
    KeyRing::new(vec![key]).unwrap()
}

/// The first packet of the same boot id at each call: any body, sealed with the right key.
fn packet(body: &[u8]) -> Vec<u8> {
    let mut sealer = envelope::Sealer::new(RSP, NodeId::new(1), BootId::from_bytes([9; 16]));
    sealer.seal(&keys(), NOW_MS, HERE, body).unwrap()
}

/// A Request for the path to 10.0.0.1 in VNI 7.
const GOOD: [u8; 25] = [1, 0, 0, 1, 0, 0, 0, 1, 17, 0, 0, 0, 7, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 5];

#[test]
fn authentic_packet_with_invalid_body_changes_only_a_counter() {
    let keys = keys();
    let mut opener = Opener::new(Limits::default(), NOW_MS);
    let mut bad = GOOD;
    bad[0] = 99;
    let unknown_kind = Refusal::Body(BodyError::Kind { kind: 99 });
    for _ in 0..2 {
        assert_eq!(opener.open(&keys, NOW_MS, HERE, &packet(&bad)), Err(unknown_kind));
        assert_eq!(opener.senders().0, 0);
    }
    // The same counter is still accepted with a valid body, once.
    assert!(opener.open(&keys, NOW_MS, HERE, &packet(&GOOD)).is_ok());
    let replayed = Refusal::Envelope(envelope::Refusal::Replayed { counter: 1 });
    assert_eq!(opener.open(&keys, NOW_MS, HERE, &packet(&GOOD)), Err(replayed));
    assert_eq!((opener.refused()[14], opener.refused()[10]), (2, 1));
    assert_eq!(opener.refused().iter().sum::<u64>(), 3);
}

/// As above, for a sender that the receiver knows already.
#[test]
fn invalid_body_of_a_known_sender_uses_no_counter() {
    let keys = keys();
    let mut opener = Opener::new(Limits::default(), NOW_MS);
    let mut sealer = envelope::Sealer::new(RSP, NodeId::new(1), BootId::from_bytes([9; 16]));
    let first = sealer.seal(&keys, NOW_MS, HERE, &GOOD).unwrap();
    assert!(opener.open(&keys, NOW_MS, HERE, &first).is_ok());
    // A twin with the same boot id makes another packet with counter 2.
    let mut twin = envelope::Sealer::new(RSP, NodeId::new(1), BootId::from_bytes([9; 16]));
    twin.seal(&keys, NOW_MS, HERE, &GOOD).unwrap();
    let bad = twin.seal(&keys, NOW_MS, HERE, &[99, 0, 0, 1, 0, 0, 0, 1]).unwrap();
    let unknown_kind = Refusal::Body(BodyError::Kind { kind: 99 });
    assert_eq!(opener.open(&keys, NOW_MS, HERE, &bad), Err(unknown_kind));
    let good = sealer.seal(&keys, NOW_MS, HERE, &GOOD).unwrap();
    assert!(opener.open(&keys, NOW_MS, HERE, &good).is_ok());
}
