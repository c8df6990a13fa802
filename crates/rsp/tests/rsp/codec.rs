//! Messages come out as they went in, in packets that fit the MTU; invalid messages are not sent.

use crate::make::{
    HERE, HERE_V6, MTU, NOW_MS, any_message, destination, join, notify, one_of_each, opener, path, ring,
    sealer,
};
use proptest::prelude::*;
use sluice_envelope::{self as envelope, KeyRing, NodeId, PACKET_BYTES_MAX};
use sluice_rsp::{
    Answer, AnswerEntry, BodyError, Capabilities, Message, Query, Reception, SealError, VERSION,
};
use sluice_types::MacAddr;
use std::net::IpAddr;

proptest! {
    #[test]
    fn sealed_message_is_opened_unchanged(
        message in any_message(),
        mtu in 576u16..=9500,
        over_v6 in any::<bool>(),
    ) {
        let (to, outer) = if over_v6 { (HERE_V6, 48) } else { (HERE, 28) };
        let keys = ring();
        let mut opener = opener();
        let packets = sealer(5, 1).seal(&keys, NOW_MS, to, mtu, &message).unwrap();
        let mut whole = None;
        for packet in &packets {
            prop_assert!(packet.len() + outer <= usize::from(mtu) && packet.len() <= PACKET_BYTES_MAX);
            let opened = opener.open(&keys, NOW_MS, to, packet).unwrap();
            prop_assert_eq!((opened.sender, opened.key_id, opened.skipped), (NodeId::new(5), 1, 0));
            whole = Some(match whole {
                None => opened.message,
                Some(before) => join(before, opened.message),
            });
        }
        prop_assert_eq!(whole, Some(message));
    }
}

#[test]
fn each_form_of_each_kind_is_opened_unchanged_over_ipv4_and_ipv6() {
    let keys = ring();
    for to in [HERE, HERE_V6] {
        let (mut sealer, mut opener) = (sealer(1, 1), opener());
        for message in one_of_each() {
            let packets = sealer.seal(&keys, NOW_MS, to, MTU, &message).unwrap();
            assert_eq!(packets.len(), 1);
            assert_eq!(opener.open(&keys, NOW_MS, to, &packets[0]).unwrap().message, message);
        }
    }
}

#[test]
fn packets_are_filled_to_the_mtu() {
    let keys = ring();
    // 38 bytes per entry, 88 for header, body header and tag, 28 for IP and UDP.
    let packets = |entries, mtu| {
        let sealed = sealer(1, 1).seal(&keys, NOW_MS, HERE, mtu, &notify(entries)).unwrap();
        sealed.iter().map(|packet| packet.len()).collect::<Vec<_>>()
    };
    let full = 88 + 36 * 38;
    assert_eq!(packets(36, 1500), [full]);
    assert_eq!(packets(40, 1500), [full, 88 + 4 * 38]);
    assert_eq!(packets(40, 1500 - 1 - (1500 - 28 - full as u16)), [full - 38, 88 + 5 * 38]);
    assert_eq!(packets(100, 1500), [full, full, 88 + 28 * 38]);
    assert_eq!(packets(0, 1500), []);
}

#[test]
fn message_that_receivers_refuse_is_not_sealed_and_uses_no_counter() {
    let keys = ring();
    let mut sealer = sealer(1, 1);
    let mut refused = |keys: &KeyRing, to: IpAddr, mtu, message: &Message| {
        sealer.seal(keys, NOW_MS, to, mtu, message).expect_err("an invalid message")
    };
    let here = destination(7, "10.0.0.1");
    let notify_of =
        |destination, answer| Message::Notify { answers: vec![AnswerEntry { destination, answer }] };
    let good = path("192.0.2.7", 1);
    for bad in
        ["0.0.0.0", "127.0.0.1", "224.0.0.5", "255.255.255.255", "::", "::1", "ff02::1", "::ffff:10.0.0.1"]
    {
        let address: IpAddr = bad.parse().unwrap();
        let in_message = SealError::Message(BodyError::Address { address });
        let as_receiver = SealError::Envelope(envelope::SealError::Address { address });
        assert_eq!(
            refused(&keys, HERE, MTU, &notify_of(destination(7, bad), Answer::Path(good))),
            in_message
        );
        assert_eq!(refused(&keys, HERE, MTU, &notify_of(here, Answer::Path(path(bad, 1)))), in_message);
        assert_eq!(refused(&keys, address, MTU, &notify(1)), as_receiver);
    }
    for mac in [0, 0x0100_0000_0000, 0xffff_ffff_ffff] {
        let bad = sluice_rsp::Path { mac: MacAddr::from_u64(mac), ..good };
        assert_eq!(
            refused(&keys, HERE, MTU, &notify_of(here, Answer::Path(bad))),
            SealError::Message(BodyError::Mac)
        );
    }
    for mtu in [1, 1279] {
        let reception = Reception { mtu, ..good.reception };
        let bad = sluice_rsp::Path { reception, ..good };
        let entries = vec![sluice_rsp::PermitEntry { vni: good.vni, host: good.host }];
        for message in
            [notify_of(here, Answer::Path(bad)), Message::Permitted { reception, entries: entries.clone() }]
        {
            let error = refused(&keys, HERE, MTU, &message);
            assert_eq!(error, SealError::Message(BodyError::Mtu { mtu: mtu.into() }));
        }
    }
    let unsolicited = notify_of(here, Answer::Unchanged { lifetime_ms: 1, revision: 1 });
    assert!(matches!(refused(&keys, HERE, MTU, &unsolicited), SealError::Message(BodyError::Form { .. })));
    assert_eq!(refused(&keys, HERE, 575, &notify(1)), SealError::Mtu { mtu: 575 });
    let no_key = SealError::Envelope(envelope::SealError::NoKey { now_ms: NOW_MS });
    assert_eq!(refused(&KeyRing::default(), HERE, MTU, &notify(1)), no_key);

    let first = sealer.seal(&keys, NOW_MS, HERE, MTU, &notify(1)).unwrap();
    assert_eq!(first[0][56..64], 1u64.to_be_bytes(), "the failed calls used no counter");
}

#[test]
fn header_contains_the_version() {
    let packet = &sealer(1, 1).seal(&ring(), NOW_MS, HERE, MTU, &notify(1)).unwrap()[0];
    assert_eq!((packet[2], packet[3]), VERSION);
}

/// What both hosts can do is what a path says: neither more nor less.
#[test]
fn answer_has_the_capabilities_that_both_hosts_have() {
    let known = path("192.0.2.7", 5);
    let all = Capabilities::from_bits(0b1010_0110);
    let known = sluice_rsp::Path { reception: Reception { capabilities: all, ..known.reception }, ..known };
    let query = Query { destination: destination(7, "10.0.0.1"), revision: 0 };
    for (sender, common) in [(0, 0), (0b0000_1111, 0b0000_0110), (0b0101_1001, 0), (0xff, 0b1010_0110)] {
        let mut answer = query.answer(Some(&known), 9);
        answer.restrict(Capabilities::from_bits(sender));
        let capabilities = Capabilities::from_bits(common);
        let reception = Reception { capabilities, ..known.reception };
        assert_eq!(answer.answer, Answer::Path(sluice_rsp::Path { reception, ..known }));
    }
    assert_eq!(Capabilities::OWN, Capabilities::NONE, "no packet of a direct path is encrypted");
}

#[test]
fn answer_depends_on_the_revision_in_the_query() {
    let query = |revision| Query { destination: destination(7, "10.0.0.1"), revision };
    let known = path("192.0.2.7", 5);
    assert_eq!(query(0).answer(None, 9).answer, Answer::Absent { revision: 9 });
    assert_eq!(query(0).answer(Some(&known), 9).answer, Answer::Path(known));
    assert_eq!(query(4).answer(Some(&known), 9).answer, Answer::Path(known));
    assert_eq!(
        query(5).answer(Some(&known), 9).answer,
        Answer::Unchanged { lifetime_ms: 60_000, revision: 5 }
    );
    assert_eq!(query(6).answer(Some(&known), 9).answer, Answer::Path(known));
    let unrevised = path("192.0.2.7", 0);
    assert_eq!(
        query(0).answer(Some(&unrevised), 9).answer,
        Answer::Path(unrevised),
        "revision 0 in a query means that the host has no path"
    );
}
