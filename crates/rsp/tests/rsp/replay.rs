//! No packet is accepted twice, whatever senders, receivers and clocks do.

use crate::make::{HERE, MTU, NOW_MS, notify, opener, refused, ring, sealer};
use proptest::prelude::*;
use sluice_envelope::{Limits, Refusal, WINDOW};
use sluice_rsp::{Opener, Sealer};

fn seal(sealer: &mut Sealer, now_ms: u64) -> Vec<u8> {
    sealer.seal(&ring(), now_ms, HERE, MTU, &notify(1)).unwrap().remove(0)
}

#[test]
fn replayed_packets_are_refused() {
    let keys = ring();
    let (mut sealer, mut opener) = (sealer(1, 1), opener());
    let packets: Vec<_> = (0..100).map(|_| seal(&mut sealer, NOW_MS)).collect();
    for packet in &packets {
        opener.open(&keys, NOW_MS, HERE, packet).unwrap();
    }
    for (packet, counter) in packets.iter().zip(1..) {
        assert_eq!(opener.open(&keys, NOW_MS, HERE, packet), refused(Refusal::Replayed { counter }));
    }
}

#[test]
fn late_packet_is_accepted_only_within_the_window() {
    let keys = ring();
    let (mut sealer, mut opener) = (sealer(1, 1), opener());
    let packets: Vec<_> = (0..=WINDOW).map(|_| seal(&mut sealer, NOW_MS)).collect();
    let last = packets.last().unwrap();
    opener.open(&keys, NOW_MS, HERE, last).unwrap();
    let behind = refused(Refusal::BehindWindow { counter: 1 });
    assert_eq!(opener.open(&keys, NOW_MS, HERE, &packets[0]), behind);
    assert!(opener.open(&keys, NOW_MS, HERE, &packets[1]).is_ok());
}

#[test]
fn each_boot_id_of_each_sender_has_its_own_window() {
    let keys = ring();
    let mut opener = opener();
    for (node, boot) in [(1, 1), (2, 1), (1, 2), (2, 2)] {
        let opened = opener.open(&keys, NOW_MS, HERE, &seal(&mut sealer(node, boot), NOW_MS)).unwrap();
        assert_eq!(opened.sender.get(), node);
    }
    assert_eq!(opener.senders().0, 4);
}

#[test]
fn restarted_receiver_accepts_nothing_from_before_its_start() {
    let keys = ring();
    let (mut sealer, mut before) = (sealer(1, 1), opener());
    let old = seal(&mut sealer, NOW_MS);
    before.open(&keys, NOW_MS, HERE, &old).unwrap();
    let mut after = Opener::new(Limits::default(), NOW_MS + 10);
    let forgotten = refused(Refusal::Forgotten { until_ms: NOW_MS + 9 });
    assert_eq!(after.open(&keys, NOW_MS + 10, HERE, &old), forgotten);
    assert!(after.open(&keys, NOW_MS + 10, HERE, &seal(&mut sealer, NOW_MS + 10)).is_ok());
}

#[test]
fn more_senders_than_the_limit_are_served_without_accepting_replays() {
    const SENDERS: u64 = 1000;
    let keys = ring();
    let mut opener = Opener::new(Limits { senders_max: 64, ..Limits::default() }, NOW_MS);
    let mut packets = Vec::new();
    for round in 0..3 {
        for node in 0..SENDERS {
            let now_ms = NOW_MS + round * SENDERS + node;
            let packet = seal(&mut sealer(node, round as u8), now_ms);
            opener.open(&keys, now_ms, HERE, &packet).expect("a packet of a new sender");
            assert!(opener.senders().0 <= 64);
            packets.push(packet);
        }
    }
    for packet in &packets {
        assert!(opener.open(&keys, NOW_MS + 3 * SENDERS, HERE, packet).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 16, ..ProptestConfig::default() })]

    /// Packets in any order are accepted once, if no packet is later than the window permits.
    #[test]
    fn packets_reordered_within_the_window_are_accepted_once(
        late in prop::collection::vec(0u64..WINDOW, 4000),
    ) {
        let keys = ring();
        let (mut sealer, mut opener) = (sealer(1, 1), opener());
        let mut packets: Vec<(u64, Vec<u8>)> = late
            .iter()
            .zip(0..)
            .map(|(late, number)| (number + late, seal(&mut sealer, NOW_MS)))
            .collect();
        packets.sort_by_key(|(arrives, _)| *arrives);
        for (_, packet) in &packets {
            prop_assert!(opener.open(&keys, NOW_MS, HERE, packet).is_ok());
        }
        for (_, packet) in &packets {
            let refusal = opener.open(&keys, NOW_MS, HERE, packet).unwrap_err();
            prop_assert!(matches!(refusal.name(), "replayed" | "behind_window"), "{}", refusal);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2 * ProptestConfig::default().cases, ..ProptestConfig::default() })]

    /// Random histories in which senders restart, clocks jump, and there are fewer windows than senders: no
    /// packet is accepted twice. A second receiver with enough windows must accept each packet the first time
    /// that it arrives with a permitted time, so a receiver that refuses too much does not pass either.
    #[test]
    fn no_packet_is_accepted_twice(
        senders_max in 1usize..6,
        steps in prop::collection::vec(
            (0u8..8, 0u64..8, any::<prop::sample::Index>(), -3000i64..3000),
            1..300,
        ),
    ) {
        const SKEW_MS: u64 = 5000;
        let keys = ring();
        let open = |opener: &mut Opener, now_ms: u64, packet: &[u8]| {
            opener.open(&keys, now_ms, HERE, packet).is_ok()
        };
        let mut few = Opener::new(Limits { skew_max_ms: SKEW_MS, senders_max }, NOW_MS);
        let mut enough = Opener::new(Limits { skew_max_ms: SKEW_MS, senders_max: 1000 }, NOW_MS);
        let mut sealers: Vec<Sealer> = (0..8).map(|node| sealer(node, 0)).collect();
        let (mut sent, mut now_ms, mut boots) = (Vec::<Sent>::new(), NOW_MS + 5000, 0);
        for (action, node, which, by_ms) in steps {
            match action {
                0..3 => {
                    let sent_ms = now_ms.saturating_add_signed(by_ms);
                    let packet = seal(&mut sealers[node as usize], sent_ms);
                    sent.push(Sent { packet, sent_ms, by_few: false, by_enough: false });
                }
                3 => now_ms = now_ms.saturating_add_signed(by_ms),
                4 => {
                    boots += 1;
                    sealers[node as usize] = sealer(node, boots);
                }
                _ if sent.is_empty() => {}
                _ => {
                    let at = which.index(sent.len());
                    let Sent { packet, sent_ms, by_few, by_enough } = &mut sent[at];
                    let accepted = open(&mut few, now_ms, packet);
                    prop_assert!(!(accepted && *by_few), "packet {} was accepted twice", at);
                    *by_few |= accepted;
                    prop_assert!(few.senders().0 <= senders_max);

                    let expected = !*by_enough && *sent_ms >= NOW_MS && sent_ms.abs_diff(now_ms) <= SKEW_MS;
                    prop_assert_eq!(open(&mut enough, now_ms, packet), expected, "packet {}", at);
                    *by_enough |= expected;
                }
            }
        }
    }
}

/// A packet of a random history, and which of the two receivers has accepted it.
struct Sent {
    packet: Vec<u8>,
    sent_ms: u64,
    by_few: bool,
    by_enough: bool,
}
