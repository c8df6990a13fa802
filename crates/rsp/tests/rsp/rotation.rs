//! Key rotation: keys become valid and expire while packets are in transit, and no packet is lost.

use crate::make::{HERE, MTU, NOW_MS, key, notify, refused, sealer};
use proptest::prelude::*;
use sluice_envelope::{self as envelope, ClusterKey, KeyRing, Limits, Refusal};
use sluice_rsp::{Opener, SealError};

/// A new key is created every ten minutes and is valid for fifteen minutes.
const PERIOD_MS: u64 = 600_000;
const VALID_MS: u64 = 900_000;
/// Keys are distributed this long before they become valid.
const AHEAD_MS: u64 = 60_000;
const SKEW_MS: u64 = 5000;

fn key_of_period(id: u32) -> ClusterKey {
    let not_before_ms = NOW_MS + u64::from(id) * PERIOD_MS;
    key(id, not_before_ms, not_before_ms + VALID_MS)
}

/// Keys of a node whose last update was at `now_ms`. Old keys are removed when no packet that was sealed with
/// them can still be in transit.
fn ring_at(now_ms: u64) -> KeyRing {
    let has = |id: &u32| {
        let not_before_ms = NOW_MS + u64::from(*id) * PERIOD_MS;
        now_ms + AHEAD_MS >= not_before_ms && now_ms < not_before_ms + VALID_MS + 2 * SKEW_MS
    };
    KeyRing::new((0..40).filter(has).map(key_of_period).collect()).unwrap()
}

proptest! {
    /// Sender and receiver get new keys at different times and have different clocks. Over several hours, no
    /// packet is lost, and the newest key is used.
    #[test]
    fn rotation_loses_no_packet(
        sender_skew_ms in -2500i64..2500,
        update_age_ms in (0u64..20_000, 0u64..20_000),
        delay_ms in prop::collection::vec(0u64..2000, 200),
        gap_ms in 1u64..110_000,
    ) {
        let mut sealer = sealer(1, 1);
        let limits = Limits { skew_max_ms: SKEW_MS, ..Limits::default() };
        let mut opener = Opener::new(limits, NOW_MS - SKEW_MS);
        let (mut now_ms, mut used) = (NOW_MS + SKEW_MS, Vec::new());
        for delay_ms in delay_ms {
            now_ms += gap_ms;
            let sender_ms = now_ms.saturating_add_signed(sender_skew_ms);
            let sender_ring = ring_at(now_ms - update_age_ms.0.min(now_ms - NOW_MS));
            let packet = sealer.seal(&sender_ring, sender_ms, HERE, MTU, &notify(1)).unwrap().remove(0);
            let receiver_ring = ring_at(now_ms + delay_ms - update_age_ms.1.min(now_ms - NOW_MS));
            let opened = opener.open(&receiver_ring, now_ms + delay_ms, HERE, &packet);
            prop_assert!(opened.is_ok(), "{:?}", opened);
            used.push(opened.unwrap().key_id);
        }
        // The sender takes each new key into use, and never returns to an older one.
        prop_assert!(used.windows(2).all(|pair| pair[0] <= pair[1] && pair[1] - pair[0] <= 1), "{:?}", used);
        let periods = (now_ms - NOW_MS) / PERIOD_MS;
        prop_assert!(u64::from(*used.last().unwrap()).abs_diff(periods) <= 1);
    }
}

#[test]
fn period_of_a_key_is_measured_by_the_senders_clock() {
    let ring = KeyRing::new(vec![key(1, NOW_MS, NOW_MS + 100)]).unwrap();
    let mut sealer = sealer(1, 1);
    let mut opener = Opener::new(Limits::default(), NOW_MS - 1000);
    let no_key = |at_ms| SealError::Envelope(envelope::SealError::NoKey { now_ms: at_ms });
    let mut seal =
        |at_ms| sealer.seal(&ring, at_ms, HERE, MTU, &notify(1)).map(|mut packets| packets.remove(0));
    assert_eq!(seal(NOW_MS - 1), Err(no_key(NOW_MS - 1)));
    assert_eq!(seal(NOW_MS + 100), Err(no_key(NOW_MS + 100)));
    // Sealed within the period, opened when the key is not valid by the receiver's clock.
    let (first, last) = (seal(NOW_MS).unwrap(), seal(NOW_MS + 99).unwrap());
    assert!(opener.open(&ring, NOW_MS - 500, HERE, &first).is_ok());
    assert!(opener.open(&ring, NOW_MS + 500, HERE, &last).is_ok());
    // Sealed outside the period by a sender that ignores it.
    let lax = KeyRing::new(vec![key(1, 0, u64::MAX)]).unwrap();
    for at_ms in [NOW_MS - 1, NOW_MS + 100] {
        let packet = crate::make::sealer(2, 1).seal(&lax, at_ms, HERE, MTU, &notify(1)).unwrap().remove(0);
        assert_eq!(opener.open(&ring, NOW_MS, HERE, &packet), refused(Refusal::KeyPeriod { id: 1 }));
    }
}

#[test]
fn packet_with_an_unknown_key_is_refused_until_the_key_arrives() {
    let (old, new) = (key(1, 0, u64::MAX), key(2, 1, u64::MAX));
    let mut sealer = sealer(1, 1);
    let mut opener = Opener::new(Limits::default(), NOW_MS);
    let (old_ring, both) = (KeyRing::new(vec![old.clone()]).unwrap(), KeyRing::new(vec![old, new]).unwrap());
    let packet = sealer.seal(&both, NOW_MS, HERE, MTU, &notify(1)).unwrap().remove(0);
    assert_eq!(opener.open(&old_ring, NOW_MS, HERE, &packet), refused(Refusal::UnknownKey { id: 2 }));
    assert_eq!(opener.open(&both, NOW_MS, HERE, &packet).unwrap().key_id, 2);
}

#[test]
fn keys_of_many_clusters_can_be_used_in_turn() {
    // More clusters than a sealer keeps subkeys for.
    let clusters: Vec<ClusterKey> = (1..=20).map(|id| key(id, 0, u64::MAX)).collect();
    let all = KeyRing::new(clusters.clone()).unwrap();
    let mut sealer = sealer(1, 1);
    let mut opener = Opener::new(Limits::default(), NOW_MS);
    for round in 0..3 {
        for cluster in &clusters {
            let own = KeyRing::new(vec![cluster.clone()]).unwrap();
            let packet = sealer.seal(&own, NOW_MS, HERE, MTU, &notify(1)).unwrap().remove(0);
            assert_eq!(
                opener.open(&all, NOW_MS, HERE, &packet).unwrap().key_id,
                cluster.id(),
                "round {round}"
            );
        }
    }
}

#[test]
fn keys_with_equal_ids_and_different_secrets_are_separate() {
    let rings = [7u8, 8].map(|salt| {
        let secret = std::array::from_fn(|i| salt ^ i as u8);
        KeyRing::new(vec![ClusterKey::new(1, &secret, 0, u64::MAX).unwrap()]).unwrap()
    });
    let mut sealer = sealer(1, 1);
    let mut opener = Opener::new(Limits::default(), NOW_MS);
    for (right, wrong) in [(0, 1), (1, 0), (0, 1)] {
        let packet = sealer.seal(&rings[right], NOW_MS, HERE, MTU, &notify(1)).unwrap().remove(0);
        assert_eq!(opener.open(&rings[wrong], NOW_MS, HERE, &packet), refused(Refusal::AuthenticationFailed));
        assert!(opener.open(&rings[right], NOW_MS, HERE, &packet).is_ok());
    }
}
