use super::*;
use proptest::prelude::*;

/// A body: kind, reserved, id, and these entries.
fn body(kind: u8, id: u32, entries: &[&[u8]]) -> Vec<u8> {
    let mut out = vec![kind, 0];
    out.extend((entries.len() as u16).to_be_bytes());
    out.extend(id.to_be_bytes());
    entries.iter().for_each(|entry| out.extend(*entry));
    out
}

/// A question about 10.0.0.1 in VNI 7, revision 5.
const ASK: [u8; 17] = [17, 0, 0, 0, 7, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 5];
/// No direct path to it, revision 5.
const GONE: [u8; 17] = [17, ABSENT, 0, 0, 7, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 5];
/// Path to it: 192.0.2.1, 02:00:00:00:00:01, VNI 8, 1 ms, revision 5.
const PATH: [u8; 34] = [
    34, 0, 0, 0, 7, 10, 0, 0, 1, 192, 0, 2, 1, 2, 0, 0, 0, 0, 1, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 5,
];

fn changed<const N: usize>(mut entry: [u8; N], at: usize, to: u8) -> [u8; N] {
    entry[at] = to;
    entry
}

fn refusal(body: &[u8]) -> Refusal {
    decode(0, body).expect_err("a malformed body")
}

#[test]
fn every_refusal_of_a_body_has_its_case() {
    assert_eq!(refusal(&[REQUEST, 0, 0, 1, 0, 0, 0]), Refusal::Short { bytes: 7 });
    assert_eq!(refusal(&body(0, 0, &[&ASK])), Refusal::Kind { kind: 0 });
    assert_eq!(refusal(&body(5, 0, &[&ASK])), Refusal::Kind { kind: 5 });
    let mut reserved = body(REQUEST, 0, &[&ASK]);
    reserved[1] = 1;
    assert_eq!(refusal(&reserved), Refusal::Reserved);
    assert_eq!(refusal(&body(NOTIFY, 1, &[&GONE])), Refusal::Reserved);
    assert_eq!(refusal(&body(REDIRECT, 1, &[&GONE])), Refusal::Reserved);
    for kind in [REQUEST, REPLY, NOTIFY, REDIRECT] {
        assert_eq!(refusal(&body(kind, 0, &[])), Refusal::Empty);
    }
    for length in [0, 1, 2, 16] {
        let cut = refusal(&body(REQUEST, 0, &[&ASK, &changed(ASK, 0, length)]));
        assert_eq!(cut, Refusal::Truncated { entry: 1 }, "length {length}");
    }
    assert_eq!(refusal(&body(REQUEST, 0, &[&changed(ASK, 0, 18)])), Refusal::Truncated { entry: 0 });
    assert_eq!(refusal(&body(REQUEST, 0, &[&ASK, &[]])), Refusal::Truncated { entry: 1 });
    let longer = [&changed(ASK, 0, 18)[..], &[0]].concat();
    assert_eq!(refusal(&body(REQUEST, 0, &[&ASK, &longer])), Refusal::Trailing { entry: 1 });
    assert_eq!(refusal(&[&body(REQUEST, 0, &[&ASK])[..], &ASK].concat()), Refusal::Trailing { entry: 1 });
    assert_eq!(refusal(&body(REQUEST, 0, &[&changed(ASK, 1, HOST_V6)])), Refusal::Form { form: HOST_V6 });
    assert_eq!(refusal(&body(REPLY, 0, &[&changed(GONE, 1, 0x30)])), Refusal::Form { form: 0x30 });
    assert_eq!(
        refusal(&body(NOTIFY, 0, &[&changed(GONE, 1, UNCHANGED)])),
        Refusal::Form { form: UNCHANGED },
        "nobody asked"
    );
    assert_eq!(refusal(&body(REQUEST, 0, &[&changed(ASK, 4, 0)])), Refusal::Vni);
    let address = IpAddr::from([224, 0, 0, 1]);
    assert_eq!(refusal(&body(REQUEST, 0, &[&changed(ASK, 5, 224)])), Refusal::Address { address });
    assert_eq!(refusal(&body(NOTIFY, 0, &[&changed(PATH, 13, 3)])), Refusal::Mac);
    let host = IpAddr::from([127, 0, 2, 1]);
    assert_eq!(refusal(&body(NOTIFY, 0, &[&changed(PATH, 9, 127)])), Refusal::Address { address: host });
    assert_eq!(refusal(&body(NOTIFY, 0, &[&changed(PATH, 21, 0)])), Refusal::Vni);
}

#[test]
fn ipv4_has_no_second_form() {
    let mut entry = vec![29, ADDRESS_V6, 0, 0, 7];
    entry.extend([0; 10]);
    entry.extend([0xff, 0xff, 10, 0, 0, 1]);
    entry.extend([0; 8]);
    let address = "::ffff:10.0.0.1".parse().unwrap();
    assert_eq!(refusal(&body(REQUEST, 0, &[&entry])), Refusal::Address { address });
}

#[test]
fn newer_minor_version_is_understood_in_part() {
    // A longer entry, an entry of another form, and something behind them all.
    let longer = [&changed(ASK, 0, 20)[..], &[1, 2, 3]].concat();
    let mut newer = body(REQUEST, 9, &[&longer, &changed(ASK, 1, 0x40), &ASK]);
    newer.extend([1, 2, 3]);
    newer[1] = 1;
    let read = decode(1, &newer).expect("what is known is read");
    assert_eq!((read.message.len(), read.skipped), (2, 1));
    assert!(matches!(&read.message, Message::Request { id: 9, asks } if asks[0] == asks[1]));
    assert!(decode(0, &newer).is_err());
    // What is known must be right all the same.
    assert_eq!(decode(1, &body(REQUEST, 0, &[&changed(ASK, 4, 0)])), Err(Refusal::Vni));
    assert_eq!(decode(1, &body(7, 0, &[&ASK])), Err(Refusal::Kind { kind: 7 }));
    assert_eq!(decode(1, &body(REQUEST, 0, &[&changed(ASK, 0, 16)])), Err(Refusal::Truncated { entry: 0 }));
    let none_known = decode(1, &body(NOTIFY, 3, &[&changed(GONE, 1, 0x80)])).expect("nothing wrong");
    assert!(none_known.message.is_empty() && none_known.skipped == 1);
}

/// What was read, as the encoder writes it.
fn written(message: &Message) -> Vec<u8> {
    let packets = encode(message, 60_000).expect("what was read can be written");
    assert_eq!(packets.len(), 1);
    packets[0][HEADER_BYTES..].to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    /// Bytes without any order are refused or read, and there is one way only to
    /// write what is read.
    #[test]
    fn random_bodies_have_one_form(kind in 0u8..6, bytes in prop::collection::vec(any::<u8>(), 0..200), minor in 0u8..3) {
        let body = [&[kind][..], &bytes].concat();
        if let Ok(read) = decode(minor, &body) && minor == 0 {
            prop_assert_eq!(written(&read.message), body);
        }
    }

    /// The same of bodies that are almost right, which get much further.
    #[test]
    fn damaged_bodies_have_one_form(
        notify in any::<bool>(),
        entries in prop::collection::vec(any::<bool>(), 1..6),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        cut in 0usize..8,
        minor in 0u8..2,
    ) {
        let entries: Vec<&[u8]> = entries.iter().map(|path| if *path { &PATH[..] } else { &GONE }).collect();
        let mut body = body(if notify { NOTIFY } else { REPLY }, 0, &entries);
        for (at, byte) in damage {
            let at = at.index(body.len());
            body[at] = byte;
        }
        body.truncate(body.len().saturating_sub(cut * cut / 4));
        if let Ok(read) = decode(minor, &body) && minor == 0 {
            prop_assert_eq!(written(&read.message), body);
        }
    }
}
