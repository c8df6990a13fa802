use super::*;
use proptest::prelude::*;

pub(crate) fn record(number: u32) -> Record {
    let endpoint =
        |address: u32, port: u32| SocketAddrV4::new(Ipv4Addr::from(address), (1024 + port % 60_000) as u16);
    Record {
        vni: Vni::new(1 + number % Vni::MAX).unwrap(),
        protocol: [6, 17, 1][number as usize % 3],
        inside: if number.is_multiple_of(5) {
            SocketAddr::from((Ipv6Addr::from(0x2001_0db8_u128 << 96 | u128::from(number)), number as u16))
        } else {
            endpoint(0x0a00_0001 + number % 0xff_ffff, number).into()
        },
        remote: endpoint(0xc633_6401, number / 7),
        outside: endpoint(0xcb00_7105, number / 3),
        state: State::new((number as u8) & 0x7f).unwrap(),
        idle: number % Record::IDLE_MAX,
    }
}

fn data(records: u32, units: u32) -> Message {
    Message::Data(Data {
        pass: PassId { boot: u64::MAX, number: u32::MAX },
        seq: 7,
        last: records.is_multiple_of(2),
        age: 3,
        records: (0..records).map(|number| record(number * 7919)).collect(),
        units: (1..=units)
            .map(|vni| {
                (Vni::new(vni).unwrap(), if vni.is_multiple_of(2) { Role::Owner } else { Role::Former })
            })
            .collect(),
    })
}

#[test]
fn largest_messages_fit_and_are_decoded_unchanged() {
    let pass = PassId { boot: 1 << 63, number: 1 };
    let ack = |progress| Message::Ack(Ack { pass, progress, next: 9, seen: u64::MAX - 1 });
    let done = [(false, false), (false, true), (true, false), (true, true)]
        .map(|(copied, returned)| Progress::Done { copied, returned });
    let acks = [Progress::Receiving, Progress::Unknown].into_iter().chain(done).map(ack);
    let others = [Message::Begin(pass), Message::Want, data(0, 0), data(0, 324), data(40, 0)];
    for message in acks.chain(others) {
        let bytes = message.encode();
        assert!(bytes.len() <= MESSAGE_BYTES_MAX, "{} bytes", bytes.len());
        assert_eq!(Message::decode(&bytes), Ok(message));
    }
}

#[test]
fn a_part_of_a_pass_is_filled_up_to_the_limit() {
    // Record 5 has an inside address of IPv6.
    for (number, most) in [(1, RECORDS_MAX), (5, 34)] {
        let Message::Data(mut part) = data(0, 0) else { unreachable!("it is a part of a pass") };
        let many = vec![record(number); 100];
        part.records = many[..fitting(&many)].to_vec();
        assert_eq!(part.records.len(), most);
        while part.has_room() > 0 {
            part.units.push((Vni::new(1).unwrap(), Role::Owner));
        }
        let bytes = Message::Data(part).encode().len();
        assert!(bytes <= MESSAGE_BYTES_MAX && bytes + UNIT_BYTES > MESSAGE_BYTES_MAX, "{bytes} bytes");
    }
}

/// Nodes of two releases exchange messages during an upgrade, so the bytes must not change within a version.
#[test]
fn encoding_does_not_change() {
    let session = Record {
        vni: Vni::new(0x010203).unwrap(),
        protocol: 6,
        inside: "10.0.0.5:4096".parse().unwrap(),
        remote: "198.51.100.1:443".parse().unwrap(),
        outside: "203.0.113.5:2048".parse().unwrap(),
        state: State::new(State::REPLIED | State::CONFIRMED).unwrap(),
        idle: 0x0a0b0c,
    };
    let session64 = Record { inside: "[2001:db8::5]:4096".parse().unwrap(), ..session };
    let pass = PassId { boot: 0x0102_0304_0506_0708, number: 9 };
    let part = Data {
        pass,
        seq: 2,
        last: true,
        age: 5,
        records: vec![session, session64],
        units: vec![(Vni::new(7).unwrap(), Role::Former)],
    };
    let id = [0, 0, 0, 9, 1, 2, 3, 4, 5, 6, 7, 8];
    let ack = Ack { pass, progress: Progress::Done { copied: false, returned: true }, next: 3, seen: 4 };
    let expected: [(Message, Vec<u8>); 4] = [
        (Message::Begin(pass), [&[1, 0, 0, 0][..], &id].concat()),
        (
            Message::Data(part),
            [
                &[2, 1, 0, 5][..],
                &id,
                &[0, 0, 0, 2, 0, 2, 0, 1],
                &[
                    1, 2, 3, 6, 10, 0, 0, 5, 16, 0, 198, 51, 100, 1, 1, 187, 203, 0, 113, 5, 8, 0, 6, 10, 11,
                    12,
                ],
                &[1, 2, 3, 0x86, 0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 16, 0],
                &[198, 51, 100, 1, 1, 187, 203, 0, 113, 5, 8, 0, 6, 10, 11, 12],
                &[0, 0, 7, 1],
            ]
            .concat(),
        ),
        (Message::Ack(ack), [&[3, 0, 0, 6][..], &id, &[0, 0, 0, 3], &[0, 0, 0, 0, 0, 0, 0, 4]].concat()),
        (Message::Want, vec![4, 0, 0, 0]),
    ];
    for (message, bytes) in expected {
        assert_eq!(message.encode(), bytes, "{message:?}");
    }
}

#[test]
fn messages_with_impossible_fields_are_refused() {
    let Message::Data(mut good) = data(0, 1) else { unreachable!("it is a part of a pass") };
    good.records.push(record(1));
    let good = Message::Data(good).encode();
    let refused = |at: usize, bytes: &[u8]| {
        let mut bad = good.clone();
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        Message::decode(&bad).expect_err("the message is not valid")
    };
    let at = DATA_HEAD_BYTES;
    assert_eq!(refused(0, &[9]), DecodeError::Kind(9));
    assert_eq!(refused(1, &[2]), DecodeError::Field("flags"));
    assert_eq!(refused(4, &[0; 4]), DecodeError::Field("pass"));
    assert_eq!(refused(at, &[0; 3]), DecodeError::Field("VNI"));
    assert_eq!(refused(at + 3, &[47]), DecodeError::Field("session"));
    for endpoint in [at + 4, at + 10, at + 16] {
        for address in [[0, 0, 0, 0], [127, 0, 0, 1], [224, 0, 0, 1], [255, 255, 255, 255]] {
            assert_eq!(refused(endpoint, &address), DecodeError::Field("session"));
        }
    }
    assert_eq!(refused(at + 22, &[0x80]), DecodeError::Field("state"));
    assert_eq!(refused(at + 29, &[2]), DecodeError::Field("role"));
    // More sessions than there are bytes for, and bytes at the end.
    let needed = 2 * RECORD_BYTES + UNIT_BYTES;
    assert_eq!(refused(20, &[0, 2]), DecodeError::Length { found: needed - RECORD_BYTES, needed });
    assert!(matches!(Message::decode(&[&good[..], &[0]].concat()), Err(DecodeError::Length { .. })));
    assert_eq!(Message::decode(&[4; MESSAGE_BYTES_MAX + 1]), Err(DecodeError::Long(MESSAGE_BYTES_MAX + 1)));
    assert_eq!(Message::decode(&[4, 0, 0, 1]), Err(DecodeError::Field("flags")));
    let pass = PassId { boot: 1, number: 1 };
    let mut ack = Message::Ack(Ack { pass, progress: Progress::Unknown, next: 0, seen: 0 }).encode();
    ack[27] = 1;
    assert_eq!(Message::decode(&ack), Err(DecodeError::Field("seen")));
    ack[3] = 2;
    assert_eq!(Message::decode(&ack), Err(DecodeError::Field("progress")));
}

proptest! {
    #[test]
    fn messages_are_decoded_unchanged(numbers in prop::collection::vec(any::<u32>(), 0..34), age: u16, seq: u32) {
        let pass = PassId { boot: u64::from(seq) << 20, number: seq.max(1) };
        let records = numbers.into_iter().map(record).collect();
        let message = Message::Data(Data { pass, seq, last: age.is_multiple_of(2), age, records, units: Vec::new() });
        prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
    }

    /// Whatever bytes are decoded, they are the only encoding of what they mean.
    #[test]
    fn bytes_have_one_meaning(kind in 1..5u8, mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        bytes.insert(0, kind);
        if let Ok(message) = Message::decode(&bytes) {
            prop_assert_eq!(message.encode(), bytes);
        }
    }

    #[test]
    fn changed_messages_have_one_meaning(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let mut bytes = data(3, 2).encode();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(message) = Message::decode(&bytes) {
            prop_assert_eq!(message.encode(), bytes);
        }
    }
}
