use super::*;
use proptest::prelude::*;

/// A minor version that this program does not know.
const NEWER: u8 = VERSION.1 + 1;

/// Makes a body: kind, reserved byte, number of entries, id, entries.
fn body(kind: u8, id: u32, entries: &[&[u8]]) -> Vec<u8> {
    let mut out = vec![kind, 0];
    out.extend((entries.len() as u16).to_be_bytes());
    out.extend(id.to_be_bytes());
    entries.iter().for_each(|entry| out.extend(*entry));
    out
}

/// A query for 10.0.0.1 in VNI 7, revision 5.
const QUERY: [u8; 17] = [17, 0, 0, 0, 7, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 5];
/// Answer that there is no direct path to it, revision 5.
const NO_PATH: [u8; 17] = [17, ABSENT, 0, 0, 7, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 5];
/// Answer with a path to it: host 192.0.2.1, 02:00:00:00:00:01, VNI 8, 1 ms, revision 5, told by network, MTU 1450,
/// capabilities 9.
const PATH: [u8; 38] = [
    38, 0, 0, 0, 7, 10, 0, 0, 1, 192, 0, 2, 1, 2, 0, 0, 0, 0, 1, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 5,
    1, 5, 170, 9,
];
/// Question what has changed in VNI 7 since revision 5. The answers: 10.0.0.0/8; this change, up to revision 6; not known.
const NETWORK: [u8; 13] = [13, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 5];
const CHANGED: [u8; 10] = [10, 0, 0, 0, 7, 10, 0, 0, 0, 8];
const CURRENT: [u8; 23] = [23, UNCHANGED, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 1];
const NOT_KNOWN: [u8; 21] = [21, UNKNOWN, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6];

/// Question for the identity of 10.0.0.1 in VNI 7, and the answer that it is 258.
const IDENTITY_WANTED: [u8; 9] = [9, 0, 0, 0, 7, 10, 0, 0, 1];
const IDENTITY_TOLD: [u8; 11] = [11, 0, 0, 0, 7, 10, 0, 0, 1, 1, 2];

/// Permission for 192.0.2.1 in VNI 7.
const PERMISSION: [u8; 9] = [9, 0, 0, 0, 7, 192, 0, 2, 1];

fn changed<const N: usize>(mut entry: [u8; N], at: usize, to: u8) -> [u8; N] {
    entry[at] = to;
    entry
}

fn error(body: &[u8]) -> BodyError {
    match decode(VERSION.1, body).expect_err("a malformed body") {
        Refusal::Body(error) => error,
        refusal => panic!("not an error of the body: {refusal}"),
    }
}

#[test]
fn each_kind_of_malformed_body_has_its_own_error() {
    let short = envelope::Refusal::Short { bytes: 7 };
    assert_eq!(decode(0, &[REQUEST, 0, 0, 1, 0, 0, 0]), Err(short.into()));
    assert_eq!(error(&body(0, 0, &[&QUERY])), BodyError::Kind { kind: 0 });
    assert_eq!(error(&body(12, 0, &[&QUERY])), BodyError::Kind { kind: 12 });
    for (kind, entry) in [(REPLY, &NO_PATH[..]), (NOTIFY, &PATH), (PERMIT, &PERMISSION), (STRAY, &QUERY)] {
        let mut reserved = body(kind, 0, &[entry]);
        reserved[1] = 1;
        assert_eq!(error(&reserved), BodyError::Reserved, "kind {kind}");
    }
    assert_eq!(error(&body(NOTIFY, 1, &[&NO_PATH])), BodyError::Reserved);
    assert_eq!(error(&body(REDIRECT, 1, &[&NO_PATH])), BodyError::Reserved);
    for kind in REQUEST..=RECONCILED {
        assert_eq!(error(&body(kind, 0, &[])), BodyError::Empty);
    }
    for length in [0, 1, 2, 16] {
        let cut = error(&body(REQUEST, 0, &[&QUERY, &changed(QUERY, 0, length)]));
        assert_eq!(cut, BodyError::Truncated { entry: 1 }, "length {length}");
    }
    assert_eq!(error(&body(REQUEST, 0, &[&changed(QUERY, 0, 18)])), BodyError::Truncated { entry: 0 });
    assert_eq!(error(&body(REQUEST, 0, &[&QUERY, &[]])), BodyError::Truncated { entry: 1 });
    let longer = [&changed(QUERY, 0, 18)[..], &[0]].concat();
    assert_eq!(error(&body(REQUEST, 0, &[&QUERY, &longer])), BodyError::Trailing { entry: 1 });
    assert_eq!(error(&[&body(REQUEST, 0, &[&QUERY])[..], &QUERY].concat()), BodyError::Trailing { entry: 1 });
    assert_eq!(error(&body(REQUEST, 0, &[&changed(QUERY, 1, HOST_V6)])), BodyError::Form { form: HOST_V6 });
    assert_eq!(error(&body(REPLY, 0, &[&changed(NO_PATH, 1, 0x30)])), BodyError::Form { form: 0x30 });
    assert_eq!(
        error(&body(NOTIFY, 0, &[&changed(NO_PATH, 1, UNCHANGED)])),
        BodyError::Form { form: UNCHANGED },
        "a Notify answers no query"
    );
    assert_eq!(error(&body(REQUEST, 0, &[&changed(QUERY, 4, 0)])), BodyError::Vni);
    let address = IpAddr::from([224, 0, 0, 1]);
    assert_eq!(error(&body(REQUEST, 0, &[&changed(QUERY, 5, 224)])), BodyError::Address { address });
    assert_eq!(error(&body(NOTIFY, 0, &[&changed(PATH, 13, 3)])), BodyError::Mac);
    let host = IpAddr::from([127, 0, 2, 1]);
    assert_eq!(error(&body(NOTIFY, 0, &[&changed(PATH, 9, 127)])), BodyError::Address { address: host });
    assert_eq!(error(&body(NOTIFY, 0, &[&changed(PATH, 21, 0)])), BodyError::Vni);
    for kind in [PERMIT, PERMITTED] {
        let numbered = if kind == PERMIT { BodyError::Reserved } else { BodyError::Mtu { mtu: 1 } };
        assert_eq!(error(&body(kind, 1, &[&PERMISSION])), numbered);
        assert_eq!(error(&body(kind, 0, &[&changed(PERMISSION, 4, 0)])), BodyError::Vni);
        let address = IpAddr::from([127, 0, 2, 1]);
        assert_eq!(error(&body(kind, 0, &[&changed(PERMISSION, 5, 127)])), BodyError::Address { address });
        let form = error(&body(kind, 0, &[&changed(PERMISSION, 1, ADDRESS_V6)]));
        assert_eq!(form, BodyError::Form { form: ADDRESS_V6 }, "it has no tenant's address");
        let long_address = error(&body(kind, 0, &[&changed(PERMISSION, 1, HOST_V6)]));
        assert_eq!(long_address, BodyError::Truncated { entry: 0 });
    }
}

#[test]
fn identities_have_a_destination_and_sixteen_bits() {
    let destination = Destination { vni: Vni::new(7).unwrap(), address: [10, 0, 0, 1].into() };
    let wanted = Message::Identify { entries: vec![destination] };
    let told = Message::Identity { entries: vec![IdentityEntry { destination, identity: 0x0102 }] };
    for (kind, entry, message) in
        [(IDENTIFY, &IDENTITY_WANTED[..], wanted), (IDENTITY, &IDENTITY_TOLD[..], told)]
    {
        let read = decode(VERSION.1, &body(kind, 0, &[entry])).expect("a valid body");
        assert_eq!((read.message, read.skipped), (message, 0));
        assert_eq!(error(&body(kind, 1, &[entry])), BodyError::Reserved);
        let with = |at: usize, to| body(kind, 0, &[&[&entry[..at], &[to], &entry[at + 1..]].concat()]);
        assert_eq!(error(&with(4, 0)), BodyError::Vni);
        let address = IpAddr::from([224, 0, 0, 1]);
        assert_eq!(error(&with(5, 224)), BodyError::Address { address });
        assert_eq!(error(&with(1, HOST_V6)), BodyError::Form { form: HOST_V6 }, "it has no host's address");
        let cut = &changed::<8>(entry[..8].try_into().unwrap(), 0, 8);
        assert_eq!(error(&body(kind, 0, &[cut])), BodyError::Truncated { entry: 0 });
    }
    assert_eq!(error(&body(IDENTITY, 0, &[&IDENTITY_WANTED])), BodyError::Truncated { entry: 0 });
    assert_eq!(error(&body(IDENTIFY, 0, &[&IDENTITY_TOLD])), BodyError::Trailing { entry: 0 });
}

#[test]
fn networks_are_asked_about_and_answered() {
    let vni = Vni::new(7).unwrap();
    let asked = Message::Reconcile { queries: vec![NetworkQuery { vni, since: 5 }] };
    let prefix = "10.0.0.0/8".parse().unwrap();
    let answers = vec![
        NetworkAnswer::Changed { vni, prefix },
        NetworkAnswer::Current { vni, since: 5, revision: 6, changes: 1 },
        NetworkAnswer::Unknown { vni, since: 5, revision: 6 },
    ];
    let told = Message::Reconciled { answers };
    for (bytes, message) in [
        (body(RECONCILE, 0, &[&NETWORK]), asked),
        (body(RECONCILED, 0, &[&CHANGED, &CURRENT, &NOT_KNOWN]), told),
    ] {
        assert_eq!(encoded(&message), bytes);
        assert_eq!(decode(VERSION.1, &bytes).expect("a valid body").message, message);
        let mut with_id = bytes.clone();
        with_id[7] = 1;
        assert_eq!(error(&with_id), BodyError::Reserved);
        // Earlier versions do not have these kinds.
        assert_eq!(decode(FLAGS_SINCE - 1, &bytes), Err(BodyError::Kind { kind: bytes[0] }.into()));
    }
    let told = |entry: &[u8]| error(&body(RECONCILED, 0, &[entry]));
    let address = IpAddr::from([10, 0, 0, 0]);
    assert_eq!(told(&changed(CHANGED, 9, 33)), BodyError::Prefix { address, length: 33 });
    assert_eq!(told(&changed(CHANGED, 9, 6)), BodyError::Prefix { address, length: 6 });
    assert_eq!(told(&changed(CHANGED, 4, 0)), BodyError::Vni);
    for form in [UNCHANGED | ADDRESS_V6, UNCHANGED | UNKNOWN, UNKNOWN | ADDRESS_V6, HOST_V6, ABSENT] {
        assert_eq!(told(&changed(CURRENT, 1, form)), BodyError::Form { form });
    }
    assert_eq!(
        error(&body(RECONCILE, 0, &[&changed(NETWORK, 1, UNCHANGED)])),
        BodyError::Form { form: UNCHANGED }
    );
    for (entry, length) in [(&NETWORK[..], 12), (&CHANGED, 9), (&CURRENT, 22), (&NOT_KNOWN, 20)] {
        let kind = if entry.len() == NETWORK.len() { RECONCILE } else { RECONCILED };
        let cut = [&[length][..], &entry[1..usize::from(length)]].concat();
        assert_eq!(error(&body(kind, 0, &[&cut])), BodyError::Truncated { entry: 0 });
    }
}

#[test]
fn flags_of_paths_came_with_a_minor_version() {
    let path = |minor, entry: &[u8]| match decode(minor, &body(NOTIFY, 0, &[entry]))?.message {
        Message::Notify { answers } => Ok(answers[0].answer),
        message => panic!("{message:?}"),
    };
    let by_network = |minor, entry: &[u8]| match path(minor, entry) {
        Ok(Answer::Path(path)) => path.by_network,
        other => panic!("{other:?}"),
    };
    let earlier = &changed::<34>(PATH[..34].try_into().unwrap(), 0, 34);
    let with_flags = &changed::<35>(PATH[..35].try_into().unwrap(), 0, 35);
    assert!(by_network(VERSION.1, &PATH) && !by_network(VERSION.1, &changed(PATH, 34, 0)));
    assert!(!by_network(FLAGS_SINCE - 1, earlier) && by_network(FLAGS_SINCE, with_flags));
    let refused = |error: BodyError| Err(Refusal::from(error));
    assert_eq!(path(FLAGS_SINCE - 1, with_flags), refused(BodyError::Trailing { entry: 0 }));
    assert_eq!(path(FLAGS_SINCE, earlier), refused(BodyError::Truncated { entry: 0 }));
    assert_eq!(path(VERSION.1, &changed(PATH, 34, 2)), refused(BodyError::Reserved));
    // Flags of a newer version are ignored.
    assert!(by_network(NEWER, &changed(PATH, 34, 3)));
}

#[test]
fn reception_came_with_a_minor_version() {
    let decoded = |minor, body: &[u8]| decode(minor, body).map(|body| body.message);
    let reception = |mtu, bits| Reception { mtu, capabilities: Capabilities::from_bits(bits) };
    let path = |minor, entry: &[u8]| match decoded(minor, &body(NOTIFY, 0, &[entry]))? {
        Message::Notify { answers } => match answers[0].answer {
            Answer::Path(path) => Ok(path.reception),
            answer => panic!("{answer:?}"),
        },
        message => panic!("{message:?}"),
    };
    let earlier = &changed::<35>(PATH[..35].try_into().unwrap(), 0, 35);
    let refused = |error: BodyError| Err(Refusal::from(error));
    assert_eq!(path(VERSION.1, &PATH), Ok(reception(1450, 9)));
    assert_eq!(path(RECEPTION_SINCE - 1, earlier), Ok(Reception::default()));
    assert_eq!(path(RECEPTION_SINCE - 1, &PATH), refused(BodyError::Trailing { entry: 0 }));
    assert_eq!(path(VERSION.1, earlier), refused(BodyError::Truncated { entry: 0 }));
    let not_known = changed(changed(PATH, 35, 0), 36, 0);
    assert_eq!(path(VERSION.1, &not_known), Ok(reception(0, 9)));
    assert_eq!(path(VERSION.1, &changed(PATH, 35, 4)), refused(BodyError::Mtu { mtu: 0x4aa }));

    let vni = Vni::new(7).unwrap();
    let entries = vec![PermitEntry { vni, host: [192, 0, 2, 1].into() }];
    let mut permitted = body(PERMITTED, 1280, &[&PERMISSION]);
    permitted[1] = 9;
    let told = Message::Permitted { reception: reception(1280, 9), entries };
    assert_eq!(encoded(&told), permitted);
    assert_eq!(decoded(VERSION.1, &permitted), Ok(told));
    assert_eq!(decoded(RECEPTION_SINCE - 1, &permitted), Err(BodyError::Reserved.into()));
    for mtu in [1, 1279, 0x1_0000, u32::MAX] {
        assert_eq!(error(&body(PERMITTED, mtu, &[&PERMISSION])), BodyError::Mtu { mtu });
    }
    let mut request = body(REQUEST, 3, &[&QUERY]);
    request[1] = 9;
    let asked = decoded(VERSION.1, &request).expect("a valid body");
    assert!(matches!(&asked, Message::Request { id: 3, capabilities, .. } if capabilities.bits() == 9));
    assert_eq!(encoded(&asked), request);
    assert_eq!(decoded(RECEPTION_SINCE - 1, &request), Err(BodyError::Reserved.into()));
}

#[test]
fn mapped_ipv4_address_is_refused() {
    let mut entry = vec![29, ADDRESS_V6, 0, 0, 7];
    entry.extend([0; 10]);
    entry.extend([0xff, 0xff, 10, 0, 0, 1]);
    entry.extend([0; 8]);
    let address = "::ffff:10.0.0.1".parse().unwrap();
    assert_eq!(error(&body(REQUEST, 0, &[&entry])), BodyError::Address { address });
}

#[test]
fn newer_minor_version_is_understood_in_part() {
    // A longer entry, an entry of an unknown form, a known entry, and bytes after the last entry.
    let longer = [&changed(QUERY, 0, 20)[..], &[1, 2, 3]].concat();
    let mut newer = body(REQUEST, 9, &[&longer, &changed(QUERY, 1, 0x40), &QUERY]);
    newer.extend([1, 2, 3]);
    newer[1] = 1;
    let read = decode(NEWER, &newer).expect("the known entries are read");
    assert_eq!((read.message.len(), read.skipped), (2, 1));
    assert!(matches!(&read.message, Message::Request { id: 9, queries, .. } if queries[0] == queries[1]));
    assert!(decode(0, &newer).is_err());
    // Known fields must still be valid.
    assert_eq!(decode(NEWER, &body(REQUEST, 0, &[&changed(QUERY, 4, 0)])), Err(BodyError::Vni.into()));
    assert_eq!(decode(NEWER, &body(12, 0, &[&QUERY])), Err(BodyError::Kind { kind: 12 }.into()));
    assert_eq!(
        decode(NEWER, &body(REQUEST, 0, &[&changed(QUERY, 0, 16)])),
        Err(BodyError::Truncated { entry: 0 }.into())
    );
    let only_unknown = decode(NEWER, &body(NOTIFY, 3, &[&changed(NO_PATH, 1, 0x80)])).expect("a valid body");
    assert!(only_unknown.message.is_empty() && only_unknown.skipped == 1);
}

/// Encodes a message that was decoded.
fn encoded(message: &Message) -> Vec<u8> {
    let bodies = encode(message, 60_000).expect("a decoded message can be encoded");
    assert_eq!(bodies.len(), 1);
    bodies[0].clone()
}

/// Checks that a body which is decoded is encoded as the same bytes, and that a newer minor version accepts
/// it as well. Returns whether the body was decoded.
fn check_decoding(body: &[u8]) -> Result<bool, TestCaseError> {
    let newer = decode(NEWER, body);
    let Ok(read) = decode(VERSION.1, body) else { return Ok(false) };
    prop_assert_eq!(encoded(&read.message), body);
    prop_assert_eq!(newer, Ok(read));
    Ok(true)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16 * ProptestConfig::default().cases, ..ProptestConfig::default() })]

    /// Random bytes are refused, or decoded to a message that is encoded as the same bytes: each message has
    /// exactly one encoding.
    #[test]
    fn random_bodies_have_one_encoding(
        kind in 0u8..13,
        bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let body = [&[kind][..], &bytes].concat();
        check_decoding(&body)?;
    }

    /// As above, with bodies that are almost valid, which pass more of the checks. Undamaged bodies must be
    /// decoded, so a decoder that refuses everything does not pass.
    #[test]
    fn damaged_bodies_have_one_encoding(
        notify in any::<bool>(),
        entries in prop::collection::vec(any::<bool>(), 1..6),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        cut in 0usize..8,
    ) {
        let entry = |path: &bool| if *path { &PATH[..] } else { &NO_PATH[..] };
        let entries: Vec<&[u8]> = entries.iter().map(entry).collect();
        let mut body = body(if notify { NOTIFY } else { REPLY }, 0, &entries);
        let undamaged = body.clone();
        for (at, byte) in damage {
            let at = at.index(body.len());
            body[at] = byte;
        }
        body.truncate(body.len().saturating_sub(cut * cut / 4));
        let decoded = check_decoding(&body)?;
        prop_assert!(decoded || body != undamaged, "a valid body was refused");
    }
}
