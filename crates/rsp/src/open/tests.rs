use super::*;
use crate::envelope::seal_packet;
use crate::header::Header;
use crate::{ClusterKey, HEADER_BYTES};
use std::net::Ipv4Addr;

const NOW_MS: u64 = 1_700_000_000_000;
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9));
const NODE: NodeId = NodeId::new(1);
const BOOT: BootId = BootId::from_bytes([9; 16]);

fn key() -> ClusterKey {
    ClusterKey::new(1, &std::array::from_fn(|i| i as u8), 0, u64::MAX).unwrap()
}

/// A packet with any body, as only a holder of the key can make it.
fn packet(counter: u64, body: &[u8]) -> Vec<u8> {
    let header = Header { minor: 0, key_id: 1, sender: NODE, boot: BOOT, to: HERE, sent_ms: NOW_MS, counter };
    let mut packet = vec![0; HEADER_BYTES];
    packet.extend(body);
    let subkey = key().subkey(Protocol::RSP.label, NODE, &BOOT);
    seal_packet(&Protocol::RSP, &subkey, &header, &mut packet);
    packet
}

/// A question about 10.0.0.1 in VNI 7.
const GOOD: [u8; 25] = [1, 0, 0, 1, 0, 0, 0, 1, 17, 0, 0, 0, 7, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 5];

#[test]
fn authentic_nonsense_changes_nothing() {
    let keys = KeyRing::new(vec![key()]).unwrap();
    let mut opener = Opener::new(Limits::default(), NOW_MS);
    let mut bad = GOOD;
    bad[0] = 9;
    for _ in 0..2 {
        let refusal = opener.open(&keys, NOW_MS, HERE, &packet(5, &bad)).unwrap_err();
        assert_eq!(refusal, Refusal::Kind { kind: 9 });
        assert_eq!(opener.senders().0, 0);
    }
    assert!(opener.open(&keys, NOW_MS, HERE, &packet(5, &GOOD)).is_ok());
    // A known sender's nonsense uses up no counter either.
    for _ in 0..2 {
        let refusal = opener.open(&keys, NOW_MS, HERE, &packet(6, &bad)).unwrap_err();
        assert_eq!(refusal, Refusal::Kind { kind: 9 });
    }
    assert!(opener.open(&keys, NOW_MS, HERE, &packet(6, &GOOD)).is_ok());
    assert_eq!(opener.refused()[14], 4);
    assert_eq!(opener.refused().iter().sum::<u64>(), 4);
}

#[test]
fn counter_zero_is_nobodys() {
    let keys = KeyRing::new(vec![key()]).unwrap();
    let mut opener = Opener::new(Limits::default(), NOW_MS);
    let zero = Err(Refusal::BehindWindow { counter: 0 });
    assert_eq!(opener.open(&keys, NOW_MS, HERE, &packet(0, &GOOD)), zero);
    assert!(opener.open(&keys, NOW_MS, HERE, &packet(1, &GOOD)).is_ok());
    assert_eq!(opener.open(&keys, NOW_MS, HERE, &packet(0, &GOOD)), zero);
}

#[test]
fn ipv4_receivers_may_know_themselves_as_mapped() {
    let keys = KeyRing::new(vec![key()]).unwrap();
    let mut opener = Opener::new(Limits::default(), NOW_MS);
    let mapped = "::ffff:192.0.2.9".parse().unwrap();
    assert!(opener.open(&keys, NOW_MS, mapped, &packet(1, &GOOD)).is_ok());
}
