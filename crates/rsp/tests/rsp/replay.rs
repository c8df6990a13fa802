//! No packet is taken twice.

use crate::make::{HERE, MTU, NOW_MS, notify, opener, ring, sealer};
use proptest::prelude::*;
use sluice_rsp::{Limits, Opener, Refusal, Sealer, WINDOW};

fn seal(sealer: &mut Sealer, now_ms: u64) -> Vec<u8> {
    sealer.seal(&ring(), now_ms, HERE, MTU, &notify(1)).unwrap().remove(0)
}

#[test]
fn replay_is_refused() {
    let keys = ring();
    let (mut sealer, mut opener) = (sealer(1, 1), opener());
    let packets: Vec<_> = (0..100).map(|_| seal(&mut sealer, NOW_MS)).collect();
    for packet in &packets {
        opener.open(&keys, NOW_MS, HERE, packet).unwrap();
    }
    for (packet, counter) in packets.iter().zip(1..) {
        assert_eq!(opener.open(&keys, NOW_MS, HERE, packet), Err(Refusal::Replayed { counter }));
    }
}

#[test]
fn far_behind_is_refused_and_just_within_is_not() {
    let keys = ring();
    let (mut sealer, mut opener) = (sealer(1, 1), opener());
    let packets: Vec<_> = (0..=WINDOW).map(|_| seal(&mut sealer, NOW_MS)).collect();
    let last = packets.last().unwrap();
    opener.open(&keys, NOW_MS, HERE, last).unwrap();
    assert_eq!(opener.open(&keys, NOW_MS, HERE, &packets[0]), Err(Refusal::BehindWindow { counter: 1 }));
    assert!(opener.open(&keys, NOW_MS, HERE, &packets[1]).is_ok());
}

#[test]
fn senders_and_their_lives_have_windows_of_their_own() {
    let keys = ring();
    let mut opener = opener();
    for (node, boot) in [(1, 1), (2, 1), (1, 2), (2, 2)] {
        let opened = opener.open(&keys, NOW_MS, HERE, &seal(&mut sealer(node, boot), NOW_MS)).unwrap();
        assert_eq!(opened.sender.get(), node);
    }
    assert_eq!(opener.senders().0, 4);
}

#[test]
fn restarted_receiver_takes_nothing_that_its_predecessor_took() {
    let keys = ring();
    let (mut sealer, mut before) = (sealer(1, 1), opener());
    let old = seal(&mut sealer, NOW_MS);
    before.open(&keys, NOW_MS, HERE, &old).unwrap();
    let mut after = Opener::new(Limits::default(), NOW_MS + 10);
    assert_eq!(after.open(&keys, NOW_MS + 10, HERE, &old), Err(Refusal::Forgotten { until_ms: NOW_MS + 9 }));
    assert!(after.open(&keys, NOW_MS + 10, HERE, &seal(&mut sealer, NOW_MS + 10)).is_ok());
}

#[test]
fn senders_beyond_the_bound_are_served_and_their_packets_not_taken_twice() {
    const SENDERS: u64 = 1000;
    let keys = ring();
    let mut opener = Opener::new(Limits { senders_max: 64, ..Limits::default() }, NOW_MS);
    let mut packets = Vec::new();
    for round in 0..3 {
        for node in 0..SENDERS {
            let now_ms = NOW_MS + round * SENDERS + node;
            let packet = seal(&mut sealer(node, round as u8), now_ms);
            opener.open(&keys, now_ms, HERE, &packet).expect("a sender more");
            assert!(opener.senders().0 <= 64);
            packets.push(packet);
        }
    }
    for packet in &packets {
        assert!(opener.open(&keys, NOW_MS + 3 * SENDERS, HERE, packet).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    /// In any order, as long as none comes later than the window allows.
    #[test]
    fn reordered_within_the_window(late in prop::collection::vec(0u64..WINDOW, 4000)) {
        let keys = ring();
        let (mut sealer, mut opener) = (sealer(1, 1), opener());
        let mut packets: Vec<(u64, Vec<u8>)> = late
            .iter()
            .zip(0..)
            .map(|(late, number)| (number + late, seal(&mut sealer, NOW_MS)))
            .collect();
        packets.sort_by_key(|(comes, _)| *comes);
        for (_, packet) in &packets {
            prop_assert!(opener.open(&keys, NOW_MS, HERE, packet).is_ok());
        }
        for (_, packet) in &packets {
            let refusal = opener.open(&keys, NOW_MS, HERE, packet).unwrap_err();
            let seen = matches!(refusal, Refusal::Replayed { .. } | Refusal::BehindWindow { .. });
            prop_assert!(seen, "{}", refusal);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// Whatever senders restart, whatever clocks do, and with fewer windows than
    /// senders: a packet that was taken is not taken again.
    #[test]
    fn nothing_is_taken_twice(
        senders_max in 1usize..6,
        steps in prop::collection::vec((0u8..8, 0u64..8, any::<prop::sample::Index>(), -3000i64..3000), 1..300),
    ) {
        let keys = ring();
        let mut opener = Opener::new(Limits { skew_max_ms: 5000, senders_max }, NOW_MS);
        let mut sealers: Vec<Sealer> = (0..8).map(|node| sealer(node, 0)).collect();
        let (mut sent, mut taken, mut now_ms, mut boots) = (Vec::new(), Vec::new(), NOW_MS + 5000, 0);
        for (action, node, which, by_ms) in steps {
            match action {
                0..3 => sent.push(seal(&mut sealers[node as usize], now_ms.saturating_add_signed(by_ms))),
                3 => now_ms = now_ms.saturating_add_signed(by_ms),
                4 => {
                    boots += 1;
                    sealers[node as usize] = sealer(node, boots);
                }
                _ if sent.is_empty() => {}
                _ => {
                    let at = which.index(sent.len());
                    if opener.open(&keys, now_ms, HERE, &sent[at]).is_ok() {
                        prop_assert!(!taken.contains(&at), "packet {} twice", at);
                        taken.push(at);
                    }
                    prop_assert!(opener.senders().0 <= senders_max);
                }
            }
        }
    }
}
