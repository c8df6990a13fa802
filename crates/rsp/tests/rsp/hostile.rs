//! Packets that are damaged, forged, for another receiver, or sent by a wrong clock: each is refused with the
//! right reason and changes nothing.

use crate::make::{HERE, HERE_V6, MTU, NOW_MS, notify, one_of_each, opener, refused, ring, sealer};
use proptest::prelude::*;
use sluice_envelope::{BootId, ClusterKey, HEADER_BYTES, KeyRing, Limits, NodeId, PACKET_BYTES_MAX, Refusal};
use sluice_rsp::{Opener, Sealer};

/// One packet of each kind.
fn packets() -> Vec<Vec<u8>> {
    let keys = ring();
    let mut sealer = sealer(1, 1);
    one_of_each().iter().flat_map(|message| sealer.seal(&keys, NOW_MS, HERE, MTU, message).unwrap()).collect()
}

/// Passes each packet of `bad` to an opener that knows the sender and to one that does not. Afterwards the
/// good packets must be accepted as if nothing had happened. `check` gets the index of each bad packet and
/// its refusal.
fn assert_refused_without_effect(bad: &[Vec<u8>], check: impl Fn(usize, Refusal)) {
    let keys = ring();
    let hello = sealer(1, 1).seal(&keys, NOW_MS, HERE, MTU, &notify(1)).unwrap().remove(0);
    for knows_sender in [false, true] {
        let mut opener = opener();
        let good = if knows_sender {
            opener.open(&keys, NOW_MS, HERE, &hello).unwrap();
            packets().split_off(1)
        } else {
            packets()
        };
        for (number, packet) in bad.iter().enumerate() {
            match opener.open(&keys, NOW_MS, HERE, packet) {
                Err(sluice_rsp::Refusal::Envelope(refusal)) => check(number, refusal),
                other => panic!("the bad packet {number} must be refused by the envelope: {other:?}"),
            }
        }
        assert_eq!(opener.senders().0, usize::from(knows_sender));
        assert_eq!(opener.refused().iter().sum::<u64>(), bad.len() as u64);
        for packet in good {
            opener.open(&keys, NOW_MS, HERE, &packet).expect("a good packet");
        }
    }
}

#[test]
fn packet_truncated_at_each_byte_is_refused() {
    for packet in packets() {
        let cut: Vec<Vec<u8>> = (0..packet.len()).map(|bytes| packet[..bytes].to_vec()).collect();
        assert_refused_without_effect(&cut, |bytes, refusal| {
            let expected = if bytes < 88 { Refusal::Short { bytes } } else { Refusal::AuthenticationFailed };
            // An opener that knows the sender has received the counter of the first packet already.
            assert!(refusal == expected || refusal == Refusal::Replayed { counter: 1 }, "{bytes}: {refusal}");
        });
    }
}

#[test]
fn packet_with_trailing_bytes_is_refused() {
    let longer: Vec<Vec<u8>> =
        packets().into_iter().skip(1).map(|packet| [&packet[..], &[0]].concat()).collect();
    assert_refused_without_effect(&longer, |_, refusal| assert_eq!(refusal, Refusal::AuthenticationFailed));
    let huge = vec![vec![0; PACKET_BYTES_MAX + 1]];
    let bytes = PACKET_BYTES_MAX + 1;
    assert_refused_without_effect(&huge, |_, refusal| assert_eq!(refusal, Refusal::Long { bytes }));
}

#[test]
fn every_flipped_bit_is_detected() {
    for packet in packets() {
        let flipped: Vec<Vec<u8>> = (0..packet.len() * 8)
            .map(|bit| {
                let mut flipped = packet.clone();
                flipped[bit / 8] ^= 0x80 >> (bit % 8);
                flipped
            })
            .collect();
        assert_refused_without_effect(&flipped, |bit, refusal| {
            let byte = bit / 8;
            let expected = match byte {
                0..2 => matches!(refusal, Refusal::Magic { .. }),
                2 => matches!(refusal, Refusal::Version { .. }),
                4..8 => matches!(refusal, Refusal::UnknownKey { .. }),
                32..48 => matches!(refusal, Refusal::Misdirected { .. }),
                48..56 => matches!(
                    refusal,
                    Refusal::TooOld { .. }
                        | Refusal::TooNew { .. }
                        | Refusal::Forgotten { .. }
                        | Refusal::AuthenticationFailed
                ),
                63 if refusal == Refusal::BehindWindow { counter: 0 } => true,
                _ => refusal == Refusal::AuthenticationFailed,
            };
            assert!(expected || refusal == Refusal::Replayed { counter: 1 }, "byte {byte}: {refusal}");
        });
    }
}

#[test]
fn packet_for_another_receiver_is_refused() {
    let keys = ring();
    let packet = &sealer(1, 1).seal(&keys, NOW_MS, HERE, MTU, &notify(1)).unwrap()[0];
    let mut opener = opener();
    let misdirected = refused(Refusal::Misdirected { to: HERE });
    assert_eq!(opener.open(&keys, NOW_MS, HERE_V6, packet), misdirected);
    assert!(opener.open(&keys, NOW_MS, HERE, packet).is_ok());
}

/// A ring with another secret of the right key id: the most that an attacker without the key can have.
fn forged_ring() -> KeyRing {
    let secret = std::array::from_fn(|i| 0x55 ^ i as u8);
    KeyRing::new(vec![ClusterKey::new(1, &secret, 0, u64::MAX).unwrap()]).unwrap()
}

#[test]
fn senders_without_the_key_are_not_remembered() {
    let (keys, forged) = (ring(), forged_ring());
    let mut opener = opener();
    for number in 0..3000u32 {
        let boot = BootId::from_bytes(u128::from(number).to_be_bytes());
        let mut forger = Sealer::new(NodeId::new(u64::from(number % 7)), boot);
        let packet = &forger.seal(&forged, NOW_MS, HERE, MTU, &notify(1)).unwrap()[0];
        assert_eq!(opener.open(&keys, NOW_MS, HERE, packet), refused(Refusal::AuthenticationFailed));
        assert_eq!(opener.senders().0, 0);
    }
}

#[test]
fn forged_counter_does_not_advance_the_window() {
    let keys = ring();
    let (mut sealer, mut opener) = (sealer(1, 1), opener());
    let mut seal = || sealer.seal(&keys, NOW_MS, HERE, MTU, &notify(1)).unwrap().remove(0);
    opener.open(&keys, NOW_MS, HERE, &seal()).unwrap();
    let mut forged = seal();
    forged[56..64].copy_from_slice(&u64::MAX.to_be_bytes());
    assert_eq!(opener.open(&keys, NOW_MS, HERE, &forged), refused(Refusal::AuthenticationFailed));
    assert!(opener.open(&keys, NOW_MS, HERE, &seal()).is_ok());
}

#[test]
fn clocks_may_differ_by_the_permitted_skew_only() {
    let keys = ring();
    let limits = Limits { skew_max_ms: 2000, ..Limits::default() };
    let mut opener = Opener::new(limits, NOW_MS - 60_000);
    let mut sealer = sealer(1, 1);
    let mut open_sent_at = |sent_ms| {
        let packet = sealer.seal(&ring(), sent_ms, HERE, MTU, &notify(1)).unwrap().remove(0);
        opener.open(&keys, NOW_MS, HERE, &packet).map(|_| sent_ms)
    };
    for sent_ms in [NOW_MS - 2000, NOW_MS, NOW_MS + 2000] {
        assert_eq!(open_sent_at(sent_ms), Ok(sent_ms));
    }
    assert_eq!(open_sent_at(NOW_MS - 2001), refused(Refusal::TooOld { by_ms: 2001 }));
    assert_eq!(open_sent_at(NOW_MS + 2001), refused(Refusal::TooNew { by_ms: 2001 }));
    assert_eq!(open_sent_at(0), refused(Refusal::TooOld { by_ms: NOW_MS }));
    assert_eq!(open_sent_at(u64::MAX - 1), refused(Refusal::TooNew { by_ms: u64::MAX - 1 - NOW_MS }));
}

#[test]
fn smallest_and_largest_times_do_not_overflow() {
    let keys = ring();
    for now_ms in [0, u64::MAX - 1] {
        let mut opener = Opener::new(Limits { skew_max_ms: u64::MAX, senders_max: 0 }, now_ms);
        let packet = &sealer(1, 1).seal(&keys, now_ms, HERE, MTU, &notify(1)).unwrap()[0];
        // At time 0 no packet can be newer than the start of the receiver.
        assert_eq!(opener.open(&keys, now_ms, HERE, packet).is_ok(), now_ms != 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8 * ProptestConfig::default().cases, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let mut opener = opener();
        prop_assert!(opener.open(&ring(), NOW_MS, HERE, &bytes).is_err());
        prop_assert_eq!(opener.senders().0, 0);
        prop_assert_eq!(opener.refused().iter().sum::<u64>(), 1);
    }

    /// The packet is valid up to a random byte, so that each check of the header is reached.
    #[test]
    fn random_bytes_after_a_valid_start_are_refused(
        from in 0usize..=HEADER_BYTES,
        bytes in prop::collection::vec(any::<u8>(), 0..1000),
    ) {
        let mut opener = opener();
        let good = sealer(1, 1).seal(&ring(), NOW_MS, HERE, MTU, &notify(3)).unwrap().remove(0);
        let packet = [&good[..from], &bytes].concat();
        prop_assume!(packet != good);
        let refusal = opener.open(&ring(), NOW_MS, HERE, &packet).expect_err("random bytes");
        prop_assert!(matches!(refusal, sluice_rsp::Refusal::Envelope(_)), "{}", refusal);
        prop_assert_eq!(opener.senders().0, 0);
    }
}

#[test]
fn refusal_names_are_unique() {
    let mut names: Vec<&str> = sluice_rsp::Refusal::NAMES.to_vec();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), sluice_rsp::Refusal::NAMES.len());
}
