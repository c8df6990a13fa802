//! Who is asked, who is told, and what is remembered.

use super::*;
use sluice_tables::{Endpoint, Immediate, MemberService, Memory, NodeTables, Route, Sizes, Target, Vrf};
use sluice_types::{MacAddr, ServiceMember};

const SECOND_US: u64 = 1_000_000;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn host(last: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, last])
}

fn to(vni: u32, address: impl Into<IpAddr>) -> Destination {
    Destination { vni: Vni::new(vni).unwrap(), address: address.into() }
}

fn entry(destination: Destination, identity: u16) -> IdentityEntry {
    IdentityEntry { destination, identity }
}

/// The questions that are to be sent.
fn sent(identities: &mut Identities, now_us: u64) -> Vec<(IpAddr, Message)> {
    identities.take(now_us).collect()
}

#[test]
fn question_goes_to_the_destinations_host_and_its_answer_to_all_who_asked() {
    for address in ["10.0.0.5", "fd00::5"] {
        let (mut identities, one) = (Identities::new(), to(7, ip(address)));
        for asker in [2, 3, 2] {
            assert_eq!(identities.ask(0, host(asker), one, host(1)), Asked::Waiting);
        }
        let asked = (host(1), Message::Identify { entries: vec![one] });
        assert_eq!(sent(&mut identities, 0), std::slice::from_ref(&asked), "one question for all");
        assert_eq!(identities.answer(1, host(9), &[entry(one, 66)]), BTreeMap::new(), "not its host");
        assert_eq!(identities.answer(1, host(1), &[entry(to(7, [10, 0, 0, 6]), 66)]), BTreeMap::new());
        let told = [2, 3].map(|asker| (host(asker), vec![entry(one, 5)]));
        assert_eq!(identities.answer(1000, host(1), &[entry(one, 5)]), BTreeMap::from(told));
        assert_eq!(identities.answer(1001, host(1), &[entry(one, 5)]), BTreeMap::new(), "told already");

        assert_eq!(identities.ask(QUIET_US - 1, host(4), one, host(1)), Asked::Known(5));
        assert_eq!(identities.ask(QUIET_US, host(4), one, host(1)), Asked::Waiting);
        assert_eq!(sent(&mut identities, QUIET_US), [asked]);
    }
}

#[test]
fn the_new_host_of_an_instance_is_asked_and_the_old_one_not_believed() {
    let (mut identities, one) = (Identities::new(), to(7, [10, 0, 0, 5]));
    identities.ask(0, host(2), one, host(1));
    identities.answer(1, host(1), &[entry(one, 5)]);
    sent(&mut identities, 1);
    assert_eq!(identities.ask(2, host(2), one, host(3)), Asked::Waiting);
    assert_eq!(sent(&mut identities, 2), [(host(3), Message::Identify { entries: vec![one] })]);
    assert_eq!(identities.answer(3, host(1), &[entry(one, 5)]), BTreeMap::new());
    assert_eq!(identities.answer(4, host(3), &[entry(one, 6)])[&host(2)], [entry(one, 6)]);
}

#[test]
fn answer_that_comes_late_is_ignored_and_the_question_forgotten() {
    let (mut identities, one) = (Identities::new(), to(7, [10, 0, 0, 5]));
    identities.ask(SECOND_US, host(2), one, host(1));
    assert_eq!(identities.answer(SECOND_US + ANSWER_US, host(1), &[entry(one, 5)]), BTreeMap::new());
    identities.ask(3 * SECOND_US, host(2), to(8, [10, 0, 0, 5]), host(1));
    assert_eq!((identities.len(), identities.by_network.len()), (1, 1));
}

#[test]
fn questions_and_askers_are_bounded() {
    let mut identities = Identities::new();
    let mut accepted = |vni: u32, wanted: usize| {
        let accepts = |number: &usize| {
            let destination = to(vni, (*number as u32 + (10 << 24)).to_be_bytes());
            identities.ask(SECOND_US, host(2), destination, host(1)) == Asked::Waiting
        };
        (0..wanted).take_while(accepts).count()
    };
    // One network takes half of the space, others have shares of the rest.
    assert_eq!(accepted(1, RECORDS_MAX), RECORDS_MAX / 2);
    for vni in 2..18 {
        assert_eq!(accepted(vni, RECORDS_MAX), SHARE_MAX, "VNI {vni}");
    }
    assert_eq!(accepted(18, 1), 0);
    let later = SECOND_US + ANSWER_US;
    let one = to(18, [10, 0, 0, 0]);
    let outcomes = (1..=20).map(|asker| identities.ask(later, host(asker), one, host(99)));
    assert_eq!(outcomes.filter(|asked| *asked == Asked::Waiting).count(), ASKERS_MAX);
    assert_eq!(identities.answer(later, host(99), &[entry(one, 5)]).len(), ASKERS_MAX);
}

/// Networks 1 and 2 are peered. Network 1 has instances on the hosts 1 and 2, and on the foreign host 3.
#[test]
fn only_a_host_with_a_vswitch_is_asked_about_an_instance_of_the_askers_network() {
    let memory = Memory::anonymous(4096).unwrap();
    let mut tables = NodeTables::create(memory, Immediate, Sizes::default()).unwrap();
    for (last, role) in [(1, Role::Host), (2, Role::Host), (3, Role::ForeignHost)] {
        tables.upsert_vtep(host(last), role).unwrap();
    }
    for vni in [1, 2].map(|number| Vni::new(number).unwrap()) {
        let vrf = Vrf { vni, mtu: 1430, router4: None, router6: None, group: None, elephant_bytes: None };
        tables.upsert_vrf(&vrf).unwrap();
    }
    for (of, prefix, target) in [
        (1, "10.1.0.0/16", Target::Local),
        (1, "fd01::/64", Target::Local),
        (1, "10.2.0.0/16", Target::Peer(Vni::new(2).unwrap())),
        (2, "10.2.0.0/16", Target::Local),
    ] {
        let (vni, prefix) = (Vni::new(of).unwrap(), prefix.parse().unwrap());
        tables.upsert_route(&Route { vni, prefix, target }).unwrap();
    }
    for (vni, address, on) in
        [(1, "10.1.0.1", 1), (1, "10.1.0.2", 2), (1, "fd01::2", 2), (1, "10.1.0.3", 3), (2, "10.2.0.2", 2)]
    {
        let endpoint = Endpoint {
            vni: Vni::new(vni).unwrap(),
            address: ip(address),
            mac: MacAddr::local(1),
            host: host(on),
        };
        tables.upsert_endpoint(&endpoint).unwrap();
    }
    // The mounts of a service with a member, and of one without.
    let member = ServiceMember { number: 5, mac: MacAddr::local(9), host: host(2), selected: false };
    for (id, members, address) in [(1, vec![member], "10.1.0.8"), (2, Vec::new(), "10.1.0.7")] {
        tables.upsert_service(&MemberService { id, seed: [1, 2], members }).unwrap();
        tables.upsert_service_address(Vni::new(1).unwrap(), ip(address), id).unwrap();
    }
    let reader = tables.reader();
    let of = |asker, vni, address| holder(&reader, 42, host(asker), &to(vni, ip(address)));
    assert_eq!(of(1, 1, "10.1.0.2"), Holder::Host(host(2)));
    assert_eq!(of(1, 1, "fd01::2"), Holder::Host(host(2)));
    assert_eq!(of(1, 1, "10.1.0.9"), Holder::NoHost, "no instance");
    assert_eq!(of(1, 1, "10.1.0.8"), Holder::Host(host(2)), "a member of the service");
    assert_eq!(of(1, 1, "10.1.0.7"), Holder::NoHost, "a service without members");
    assert_eq!(of(1, 1, "10.2.0.2"), Holder::NoHost, "an instance of a peered network");
    assert_eq!(of(1, 1, "10.1.0.3"), Holder::NoHost, "on a foreign host");
    assert_eq!(of(1, 2, "10.2.0.2"), Holder::Unknown, "the asker has no instance of network 2");
    assert_eq!(holder(&reader, 0, host(1), &to(1, ip("10.1.0.2"))), Holder::Unknown, "during a snapshot");
}
