//! Keys, nodes and messages for the tests.

use proptest::prelude::*;
use sluice_envelope::{self as envelope, BootId, ClusterKey, KeyRing, Limits, NodeId};
use sluice_rsp::{
    Answer, AnswerEntry, Capabilities, Destination, IdentityEntry, Message, NetworkAnswer, NetworkQuery,
    Opener, Path, PermitEntry, Query, RECEPTION_MTU_MIN, Reception, RedirectEntry, Refusal, Sealer,
    StrayEntry,
};
use sluice_types::{IpNet, MacAddr, Vni, is_unicast};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A time in 2023.
pub const NOW_MS: u64 = 1_700_000_000_000;
pub const MTU: u16 = 1500;
pub const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9));
pub const HERE_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9));

pub fn key(id: u32, not_before_ms: u64, not_after_ms: u64) -> ClusterKey {
    let secret = std::array::from_fn(|i| (id as u8).wrapping_mul(31) ^ i as u8);
    ClusterKey::new(id, &secret, not_before_ms, not_after_ms).expect("a key")
}

/// A ring with one key that is always valid.
pub fn ring() -> KeyRing {
    KeyRing::new(vec![key(1, 0, u64::MAX)]).expect("a ring")
}

pub fn sealer(node: u64, boot: u8) -> Sealer {
    Sealer::new(NodeId::new(node), BootId::from_bytes([boot; 16]))
}

pub fn opener() -> Opener {
    Opener::new(Limits::default(), NOW_MS)
}

/// The result of opening a packet that the envelope refuses.
pub fn refused<T>(refusal: envelope::Refusal) -> Result<T, Refusal> {
    Err(Refusal::Envelope(refusal))
}

pub fn destination(vni: u32, address: &str) -> Destination {
    Destination { vni: Vni::new(vni).expect("a VNI"), address: address.parse().expect("an address") }
}

pub fn path(host: &str, revision: u64) -> Path {
    Path {
        host: host.parse().expect("an address"),
        mac: MacAddr::local(revision + 1),
        vni: Vni::new(0x00ab_cdef).expect("a VNI"),
        lifetime_ms: 60_000,
        revision,
        by_network: false,
        reception: Reception { mtu: 1450, capabilities: Capabilities::from_bits(3) },
    }
}

/// A Notify with this number of paths, whose entries all have the same size.
pub fn notify(entries: u32) -> Message {
    let answers = (0..entries).map(|n| AnswerEntry {
        destination: destination(1 + n, "10.0.0.1"),
        answer: Answer::Path(path("192.0.2.77", 1)),
    });
    Message::Notify { answers: answers.collect() }
}

/// One message of each kind. Together they contain each form of entry.
pub fn one_of_each() -> Vec<Message> {
    let (v4, v6) = (destination(7, "10.0.0.1"), destination(8, "fd00::1"));
    let answers = |answers: &[Answer]| {
        [v4, v6]
            .into_iter()
            .flat_map(|destination| {
                answers.iter().map(move |answer| AnswerEntry { destination, answer: *answer })
            })
            .collect::<Vec<_>>()
    };
    let (path_v4, path_v6) = (Answer::Path(path("192.0.2.7", 3)), Answer::Path(path("2001:db8::7", 4)));
    let (unchanged, absent) =
        (Answer::Unchanged { lifetime_ms: 500, revision: 6 }, Answer::Absent { revision: 7 });
    let addresses = ["192.0.2.7", "2001:db8::7"].map(|text| text.parse().expect("an address"));
    let entries = [v4, v6].into_iter().flat_map(|destination| {
        addresses
            .into_iter()
            .flat_map(move |host| addresses.map(|gateway| RedirectEntry { destination, host, gateway }))
    });
    let strays = [v4, v6]
        .into_iter()
        .flat_map(|destination| addresses.into_iter().map(move |host| StrayEntry { destination, host }));
    let permits: Vec<_> = addresses.into_iter().map(|host| PermitEntry { vni: v4.vni, host }).collect();
    vec![
        Message::Request {
            id: 1,
            capabilities: Capabilities::from_bits(1),
            queries: vec![Query { destination: v4, revision: 0 }, Query { destination: v6, revision: 9 }],
        },
        Message::Reply { id: u32::MAX, answers: answers(&[path_v4, path_v6, unchanged, absent]) },
        Message::Notify { answers: answers(&[path_v4, path_v6, absent]) },
        Message::Redirect { entries: entries.collect() },
        Message::Stray { entries: strays.collect() },
        Message::Permit { entries: permits.clone() },
        Message::Permitted {
            reception: Reception { mtu: 1450, capabilities: Capabilities::from_bits(2) },
            entries: permits,
        },
        Message::Identify { entries: vec![v4, v6] },
        Message::Identity {
            entries: vec![
                IdentityEntry { destination: v4, identity: 0 },
                IdentityEntry { destination: v6, identity: u16::MAX },
            ],
        },
        Message::Reconcile {
            queries: vec![
                NetworkQuery { vni: v4.vni, since: 0 },
                NetworkQuery { vni: v6.vni, since: u64::MAX },
            ],
        },
        Message::Reconciled {
            answers: vec![
                NetworkAnswer::Changed { vni: v4.vni, prefix: v4.address.into() },
                NetworkAnswer::Changed { vni: v4.vni, prefix: "fd00::/8".parse().expect("a prefix") },
                NetworkAnswer::Current { vni: v4.vni, since: 3, revision: 9, changes: 2 },
                NetworkAnswer::Unknown { vni: v6.vni, since: 0, revision: 9 },
            ],
        },
    ]
}

/// Any unicast address. Others are changed, not rejected: proptest fails after a fixed number of rejections, which
/// many cases reach.
fn any_address() -> impl Strategy<Value = IpAddr> {
    let v4 = any::<u32>().prop_map(|bits| {
        let address = IpAddr::from(Ipv4Addr::from(bits));
        if is_unicast(address) { address } else { Ipv4Addr::from(bits & 0x00ff_ffff | 10 << 24).into() }
    });
    let v6 = any::<u128>().prop_map(|bits| {
        let address = Ipv6Addr::from(bits);
        let valid = is_unicast(address.into()) && address.to_ipv4_mapped().is_none();
        if valid { address.into() } else { IpAddr::from(Ipv6Addr::from(bits >> 8 | 0x20 << 120)) }
    });
    prop_oneof![v4, v6]
}

fn any_vni() -> impl Strategy<Value = Vni> {
    (1..=Vni::MAX).prop_map(|number| Vni::new(number).expect("within range"))
}

fn any_destination() -> impl Strategy<Value = Destination> {
    (any_vni(), any_address()).prop_map(|(vni, address)| Destination { vni, address })
}

fn any_capabilities() -> impl Strategy<Value = Capabilities> {
    any::<u8>().prop_map(Capabilities::from_bits)
}

fn any_reception() -> impl Strategy<Value = Reception> {
    let mtu = prop_oneof![Just(0), RECEPTION_MTU_MIN..=u16::MAX];
    (mtu, any_capabilities()).prop_map(|(mtu, capabilities)| Reception { mtu, capabilities })
}

fn any_path() -> impl Strategy<Value = Answer> {
    const MULTICAST: u64 = 1 << 40;
    let mac = (1_u64..1 << 48).prop_map(|bits| MacAddr::from_u64((bits & !MULTICAST).max(1)));
    (any_address(), mac, any_vni(), any::<u32>(), any::<u64>(), any::<bool>(), any_reception()).prop_map(
        |(host, mac, vni, lifetime_ms, revision, by_network, reception)| {
            Answer::Path(Path { host, mac, vni, lifetime_ms, revision, by_network, reception })
        },
    )
}

fn any_answers(unchanged: bool) -> impl Strategy<Value = Vec<AnswerEntry>> {
    let absent = any::<u64>().prop_map(|revision| Answer::Absent { revision });
    let second = if unchanged {
        (any::<u32>(), any::<u64>())
            .prop_map(|(lifetime_ms, revision)| Answer::Unchanged { lifetime_ms, revision })
            .boxed()
    } else {
        absent.clone().boxed()
    };
    let answer = prop_oneof![any_path(), second, absent];
    let one =
        (any_destination(), answer).prop_map(|(destination, answer)| AnswerEntry { destination, answer });
    prop::collection::vec(one, 1..200)
}

fn any_network_answer() -> impl Strategy<Value = NetworkAnswer> {
    let changed = (any_vni(), any_address(), 0..=32_u8).prop_map(|(vni, address, length)| {
        NetworkAnswer::Changed { vni, prefix: IpNet::new(address, length).expect("a length").trunc() }
    });
    let current = (any_vni(), any::<u64>(), any::<u64>(), any::<u16>())
        .prop_map(|(vni, since, revision, changes)| NetworkAnswer::Current { vni, since, revision, changes });
    let unknown = (any_vni(), any::<u64>(), any::<u64>())
        .prop_map(|(vni, since, revision)| NetworkAnswer::Unknown { vni, since, revision });
    prop_oneof![changed, current, unknown]
}

pub fn any_message() -> impl Strategy<Value = Message> {
    let network = (any_vni(), any::<u64>()).prop_map(|(vni, since)| NetworkQuery { vni, since });
    let query =
        (any_destination(), any::<u64>()).prop_map(|(destination, revision)| Query { destination, revision });
    let redirect = (any_destination(), any_address(), any_address())
        .prop_map(|(destination, host, gateway)| RedirectEntry { destination, host, gateway });
    let stray =
        (any_destination(), any_address()).prop_map(|(destination, host)| StrayEntry { destination, host });
    let permit = || (any_vni(), any_address()).prop_map(|(vni, host)| PermitEntry { vni, host });
    let identity = (any_destination(), any::<u16>())
        .prop_map(|(destination, identity)| IdentityEntry { destination, identity });
    prop_oneof![
        (any::<u32>(), any_capabilities(), prop::collection::vec(query, 1..200))
            .prop_map(|(id, capabilities, queries)| Message::Request { id, capabilities, queries }),
        (any::<u32>(), any_answers(true)).prop_map(|(id, answers)| Message::Reply { id, answers }),
        any_answers(false).prop_map(|answers| Message::Notify { answers }),
        prop::collection::vec(redirect, 1..200).prop_map(|entries| Message::Redirect { entries }),
        prop::collection::vec(stray, 1..200).prop_map(|entries| Message::Stray { entries }),
        prop::collection::vec(permit(), 1..200).prop_map(|entries| Message::Permit { entries }),
        (any_reception(), prop::collection::vec(permit(), 1..200))
            .prop_map(|(reception, entries)| Message::Permitted { reception, entries }),
        prop::collection::vec(any_destination(), 1..200).prop_map(|entries| Message::Identify { entries }),
        prop::collection::vec(identity, 1..200).prop_map(|entries| Message::Identity { entries }),
        prop::collection::vec(network, 1..200).prop_map(|queries| Message::Reconcile { queries }),
        prop::collection::vec(any_network_answer(), 1..200)
            .prop_map(|answers| Message::Reconciled { answers }),
    ]
}

/// Joins the parts of a message that was sent in two packets.
pub fn join(first: Message, second: Message) -> Message {
    fn both<T>(a: Vec<T>, b: Vec<T>) -> Vec<T> {
        a.into_iter().chain(b).collect()
    }
    match (first, second) {
        (
            Message::Request { id, capabilities, queries: a },
            Message::Request { id: same, capabilities: too, queries: b },
        ) => {
            assert_eq!((id, capabilities), (same, too));
            Message::Request { id, capabilities, queries: both(a, b) }
        }
        (Message::Reply { id, answers: a }, Message::Reply { id: same, answers: b }) => {
            assert_eq!(id, same);
            Message::Reply { id, answers: both(a, b) }
        }
        (Message::Notify { answers: a }, Message::Notify { answers: b }) => {
            Message::Notify { answers: both(a, b) }
        }
        (Message::Redirect { entries: a }, Message::Redirect { entries: b }) => {
            Message::Redirect { entries: both(a, b) }
        }
        (Message::Stray { entries: a }, Message::Stray { entries: b }) => {
            Message::Stray { entries: both(a, b) }
        }
        (Message::Permit { entries: a }, Message::Permit { entries: b }) => {
            Message::Permit { entries: both(a, b) }
        }
        (
            Message::Permitted { reception, entries: a },
            Message::Permitted { reception: same, entries: b },
        ) => {
            assert_eq!(reception, same);
            Message::Permitted { reception, entries: both(a, b) }
        }
        (Message::Identify { entries: a }, Message::Identify { entries: b }) => {
            Message::Identify { entries: both(a, b) }
        }
        (Message::Identity { entries: a }, Message::Identity { entries: b }) => {
            Message::Identity { entries: both(a, b) }
        }
        (Message::Reconcile { queries: a }, Message::Reconcile { queries: b }) => {
            Message::Reconcile { queries: both(a, b) }
        }
        (Message::Reconciled { answers: a }, Message::Reconciled { answers: b }) => {
            Message::Reconciled { answers: both(a, b) }
        }
        kinds => panic!("the packets carry different kinds of messages: {kinds:?}"),
    }
}
