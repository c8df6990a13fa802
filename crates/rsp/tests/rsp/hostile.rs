//! What was not sealed with the key, or not for this receiver.

use crate::make::{HERE, HERE_V6, MTU, NOW_MS, notify, one_of_each, opener, ring, sealer};
use proptest::prelude::*;
use sluice_rsp::{
    BootId, ClusterKey, HEADER_BYTES, KeyRing, Limits, NodeId, Opener, PACKET_BYTES_MAX, Refusal, Sealer,
};

/// A packet of each kind.
fn packets() -> Vec<Vec<u8>> {
    let keys = ring();
    let mut sealer = sealer(1, 1);
    one_of_each().iter().flat_map(|message| sealer.seal(&keys, NOW_MS, HERE, MTU, message).unwrap()).collect()
}

/// Tries all of `bad` on an opener that knows the sender and on one that does not;
/// the good packets must pass afterwards, as if nothing had happened.
fn refused_without_a_trace(bad: &[Vec<u8>], what: impl Fn(usize, Refusal)) {
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
            let refusal = opener.open(&keys, NOW_MS, HERE, packet).expect_err("a bad packet");
            what(number, refusal);
        }
        assert_eq!(opener.senders().0, usize::from(knows_sender));
        assert_eq!(opener.refused().iter().sum::<u64>(), bad.len() as u64);
        for packet in good {
            opener.open(&keys, NOW_MS, HERE, &packet).expect("a good packet");
        }
    }
}

#[test]
fn truncated_at_each_byte() {
    for packet in packets() {
        let cut: Vec<Vec<u8>> = (0..packet.len()).map(|bytes| packet[..bytes].to_vec()).collect();
        refused_without_a_trace(&cut, |bytes, refusal| {
            let expected = if bytes < 88 { Refusal::Short { bytes } } else { Refusal::Unauthentic };
            // The counter of the first packet is known where its sender is.
            assert!(refusal == expected || refusal == Refusal::Replayed { counter: 1 }, "{bytes}: {refusal}");
        });
    }
}

#[test]
fn longer_by_a_byte() {
    let longer: Vec<Vec<u8>> =
        packets().into_iter().skip(1).map(|packet| [&packet[..], &[0]].concat()).collect();
    refused_without_a_trace(&longer, |_, refusal| assert_eq!(refusal, Refusal::Unauthentic));
    let huge = vec![vec![0; PACKET_BYTES_MAX + 1]];
    let bytes = PACKET_BYTES_MAX + 1;
    refused_without_a_trace(&huge, |_, refusal| assert_eq!(refusal, Refusal::Long { bytes }));
}

#[test]
fn every_bit_flipped() {
    for packet in packets() {
        let flipped: Vec<Vec<u8>> = (0..packet.len() * 8)
            .map(|bit| {
                let mut flipped = packet.clone();
                flipped[bit / 8] ^= 0x80 >> (bit % 8);
                flipped
            })
            .collect();
        refused_without_a_trace(&flipped, |bit, refusal| {
            let byte = bit / 8;
            let named = match byte {
                0..2 => matches!(refusal, Refusal::Magic { .. }),
                2 => matches!(refusal, Refusal::Version { .. }),
                4..8 => matches!(refusal, Refusal::UnknownKey { .. }),
                32..48 => matches!(refusal, Refusal::Misdirected { .. }),
                48..56 => matches!(
                    refusal,
                    Refusal::TooOld { .. }
                        | Refusal::TooNew { .. }
                        | Refusal::Forgotten { .. }
                        | Refusal::Unauthentic
                ),
                63 if refusal == Refusal::BehindWindow { counter: 0 } => true,
                _ => refusal == Refusal::Unauthentic,
            };
            assert!(named || refusal == Refusal::Replayed { counter: 1 }, "byte {byte}: {refusal}");
        });
    }
}

#[test]
fn for_another_receiver() {
    let keys = ring();
    let packet = &sealer(1, 1).seal(&keys, NOW_MS, HERE, MTU, &notify(1)).unwrap()[0];
    let mut opener = opener();
    assert_eq!(opener.open(&keys, NOW_MS, HERE_V6, packet), Err(Refusal::Misdirected { to: HERE }));
    assert!(opener.open(&keys, NOW_MS, HERE, packet).is_ok());
}

/// A key of the right id and another secret: what an attacker has at best.
fn forgers_ring() -> KeyRing {
    let secret = std::array::from_fn(|i| 0x55 ^ i as u8);
    KeyRing::new(vec![ClusterKey::new(1, &secret, 0, u64::MAX).unwrap()]).unwrap()
}

#[test]
fn who_has_no_key_makes_the_receiver_remember_nothing() {
    let (keys, forgers) = (ring(), forgers_ring());
    let mut opener = opener();
    for number in 0..3000u32 {
        let boot = BootId::from_bytes(u128::from(number).to_be_bytes());
        let mut forger = Sealer::new(NodeId::new(u64::from(number % 7)), boot);
        let packet = &forger.seal(&forgers, NOW_MS, HERE, MTU, &notify(1)).unwrap()[0];
        assert_eq!(opener.open(&keys, NOW_MS, HERE, packet), Err(Refusal::Unauthentic));
        assert_eq!(opener.senders().0, 0);
    }
}

#[test]
fn forged_counters_do_not_move_the_window() {
    let keys = ring();
    let (mut sealer, mut opener) = (sealer(1, 1), opener());
    let mut seal = || sealer.seal(&keys, NOW_MS, HERE, MTU, &notify(1)).unwrap().remove(0);
    opener.open(&keys, NOW_MS, HERE, &seal()).unwrap();
    let mut forged = seal();
    forged[56..64].copy_from_slice(&u64::MAX.to_be_bytes());
    assert_eq!(opener.open(&keys, NOW_MS, HERE, &forged), Err(Refusal::Unauthentic));
    assert!(opener.open(&keys, NOW_MS, HERE, &seal()).is_ok());
}

#[test]
fn clocks_may_differ_by_the_skew_and_no_more() {
    let keys = ring();
    let limits = Limits { skew_max_ms: 2000, ..Limits::default() };
    let mut opener = Opener::new(limits, NOW_MS - 60_000);
    let (mut sealer, mut open) =
        (sealer(1, 1), |sent_ms, packet: &[u8]| opener.open(&keys, NOW_MS, HERE, packet).map(|_| sent_ms));
    let mut at = |sent_ms| {
        let packet = sealer.seal(&ring(), sent_ms, HERE, MTU, &notify(1)).unwrap().remove(0);
        open(sent_ms, &packet)
    };
    for sent_ms in [NOW_MS - 2000, NOW_MS, NOW_MS + 2000] {
        assert_eq!(at(sent_ms), Ok(sent_ms));
    }
    assert_eq!(at(NOW_MS - 2001), Err(Refusal::TooOld { by_ms: 2001 }));
    assert_eq!(at(NOW_MS + 2001), Err(Refusal::TooNew { by_ms: 2001 }));
    assert_eq!(at(0), Err(Refusal::TooOld { by_ms: NOW_MS }));
    assert_eq!(at(u64::MAX - 1), Err(Refusal::TooNew { by_ms: u64::MAX - 1 - NOW_MS }));
}

#[test]
fn times_at_the_ends_of_the_clock_do_not_overflow() {
    let keys = ring();
    for now_ms in [0, u64::MAX - 1] {
        let mut opener = Opener::new(Limits { skew_max_ms: u64::MAX, senders_max: 0 }, now_ms);
        let packet = &sealer(1, 1).seal(&keys, now_ms, HERE, MTU, &notify(1)).unwrap()[0];
        // At time 0 nothing can be later than what came before.
        assert_eq!(opener.open(&keys, now_ms, HERE, packet).is_ok(), now_ms != 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2048, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let mut opener = opener();
        prop_assert!(opener.open(&ring(), NOW_MS, HERE, &bytes).is_err());
        prop_assert_eq!(opener.senders().0, 0);
        prop_assert_eq!(opener.refused().iter().sum::<u64>(), 1);
    }

    /// Random from some byte on, so that every test of the header is reached.
    #[test]
    fn random_behind_a_good_beginning(
        from in 0usize..=HEADER_BYTES,
        bytes in prop::collection::vec(any::<u8>(), 0..1000),
    ) {
        let mut opener = opener();
        let good = sealer(1, 1).seal(&ring(), NOW_MS, HERE, MTU, &notify(3)).unwrap().remove(0);
        let packet = [&good[..from], &bytes].concat();
        prop_assume!(packet != good);
        let refusal = opener.open(&ring(), NOW_MS, HERE, &packet).expect_err("random");
        prop_assert!((1..=13).contains(&refusal.number()), "{}", refusal);
        prop_assert_eq!(opener.senders().0, 0);
    }
}

#[test]
fn refusals_have_numbers_of_their_own() {
    let mut names: Vec<&str> = Refusal::NAMES.to_vec();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Refusal::NAMES.len());
    assert_eq!((Refusal::Short { bytes: 1 }.number(), Refusal::Short { bytes: 1 }.name()), (1, "short"));
    assert_eq!((Refusal::Unauthentic.number(), Refusal::Unauthentic.name()), (13, "unauthentic"));
    assert_eq!((Refusal::Mac.number(), Refusal::Mac.name()), (22, "mac"));
}
