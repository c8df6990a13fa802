//! The states of permits over time.

use super::*;
use sluice_rsp::Capabilities;
use sluice_tables::{Endpoint, Immediate, Memory, Role, Sizes, Vrf};
use sluice_types::{MacAddr, Vni};

const SECOND_US: u64 = 1_000_000;
const OPEN: Reception = Reception { mtu: 1450, capabilities: Capabilities::NONE };

fn ip(last: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, last])
}

fn permit(sender: u8) -> Permit {
    Permit { receiver: ip(1), entry: PermitEntry { vni: Vni::new(7).unwrap(), host: ip(sender) } }
}

fn destination(last: u8) -> Destination {
    Destination { vni: Vni::new(7).unwrap(), address: IpAddr::from([10, 0, 0, last]) }
}

/// Number of entries that are to be sent.
fn sent(permits: &mut Permits, now_us: u64) -> usize {
    permits.take(now_us).values().map(Message::len).sum()
}

#[test]
fn confirmed_permit_is_renewed_while_paths_are_wanted() {
    let (mut permits, one) = (Permits::new(), permit(2));
    assert_eq!(permits.check(0, one), PermitState::Waiting);
    assert_eq!(sent(&mut permits, 0), 1);
    permits.confirm(2_000, &one, OPEN);
    for now_us in [2_000, RENEW_US] {
        assert_eq!((permits.check(now_us, one), sent(&mut permits, now_us)), (PermitState::Confirmed, 0));
    }
    // It is asked again, and paths are given meanwhile.
    let mut now_us = RENEW_US + 1;
    assert_eq!((permits.check(now_us, one), sent(&mut permits, now_us)), (PermitState::Confirmed, 1));
    permits.confirm(now_us, &one, OPEN);
    now_us += RENEW_US;
    assert_eq!((permits.check(now_us, one), sent(&mut permits, now_us)), (PermitState::Confirmed, 0));
}

/// Catches a gateway that confirms paths as unchanged to senders of which one still has the receiver's larger MTU, also from another gateway.
#[test]
fn what_a_receiver_receives_is_what_it_said_last() {
    let (mut permits, one) = (Permits::new(), permit(2));
    let less = Reception { mtu: 1400, ..OPEN };
    assert_eq!(permits.reception(&one), Reception::default());
    permits.check(0, one);
    permits.confirm(1_000, &one, OPEN);
    assert_eq!((permits.reception(&one), permits.has_changed(1_000, &one)), (OPEN, true));
    let mut now_us = 0;
    let mut said = |permits: &mut Permits, reception| {
        now_us += RENEW_US + 1;
        permits.check(now_us, one);
        permits.confirm(now_us, &one, reception);
        assert_eq!(permits.reception(&one), reception);
        now_us
    };
    while said(&mut permits, OPEN) < 1_000 + CHANGED_US {}
    let unchanged_us = said(&mut permits, OPEN);
    assert!(!permits.has_changed(unchanged_us, &one));
    let changed_us = said(&mut permits, less);
    for now_us in [changed_us, said(&mut permits, less)] {
        assert!(permits.has_changed(now_us, &one));
    }
    assert!(permits.has_changed(changed_us + CHANGED_US - 1, &one));
    assert!(!permits.has_changed(changed_us + CHANGED_US, &one));
    let other = permit(3);
    assert_eq!(permits.reception(&other), Reception::default(), "of another sender");
    let later_us = changed_us + CHANGED_US;
    permits.check(later_us, other);
    permits.confirm(later_us, &other, Reception::default());
    assert!(!permits.has_changed(later_us, &other), "nothing else was known");
}

#[test]
fn receiver_that_no_longer_answers_gets_no_more_paths() {
    let (mut permits, one) = (Permits::new(), permit(2));
    permits.check(0, one);
    permits.confirm(1_000, &one, OPEN);
    let mut asked = 0;
    for now_us in (0..60 * SECOND_US).step_by(50_000) {
        let state = permits.check(now_us, one);
        asked += sent(&mut permits, now_us);
        // When the records of the first request are forgotten, another one is made.
        match now_us {
            0..=VALID_US => assert_eq!(state, PermitState::Confirmed, "{now_us}"),
            _ => assert_ne!(state, PermitState::Confirmed, "{now_us}"),
        }
    }
    assert!((100..=121).contains(&asked), "{asked} times in a minute, at most twice a second");
    // An answer to an old question says nothing about now.
    let mut late = Permits::new();
    late.check(0, one);
    late.keep(&one, destination(1));
    assert_eq!(late.confirm(ANSWER_US, &one, OPEN), [], "its flow may have ended by now");
    assert_eq!(late.check(RENEW_US + 1, one), PermitState::Confirmed);
    assert_eq!(late.check(VALID_US + 1, one), PermitState::Unconfirmed);
}

/// Catches a gateway that sends a packet for each permit that it renews: with many hosts, these are most of its packets.
#[test]
fn renewed_permits_share_packets_and_others_do_not_wait() {
    let mut permits = Permits::new();
    let senders = 2..=101;
    for sender in senders.clone() {
        permits.check(0, permit(sender));
    }
    permits.take(0);
    senders.clone().for_each(|sender| drop(permits.confirm(1_000, &permit(sender), OPEN)));
    // They are renewed one after the other, each of them when its path is asked for.
    let (mut messages, mut entries) = (0, 0);
    let begin_us = RENEW_US + 1;
    for (number, sender) in senders.clone().enumerate() {
        let now_us = begin_us + number as u64 * 10_000;
        assert_eq!(permits.check(now_us, permit(sender)), PermitState::Confirmed);
        if permits.due_us().is_some_and(|due_us| due_us <= now_us) {
            let taken = permits.take(now_us);
            messages += taken.len();
            entries += taken.values().map(Message::len).sum::<usize>();
        }
    }
    assert!((3..=5).contains(&messages) && entries > 60, "{messages} messages with {entries} entries");
    // One that is new is sent at once, without those that wait.
    let now_us = begin_us + 1_000_000;
    permits.take(now_us);
    permits.check(now_us + 1_000, permit(2 + 200));
    assert_eq!(permits.check(now_us + RENEW_US, permit(2)), PermitState::Confirmed);
    assert!(permits.due_us().is_some_and(|due_us| due_us <= now_us + 1_000));
    let rest = permits.take(now_us + RENEW_US).values().map(Message::len).sum::<usize>();
    assert_eq!(rest, 2, "the new one, and one that is renewed after a pause");
}

#[test]
fn paths_wait_for_the_answer_and_are_bounded() {
    let (mut permits, one, other) = (Permits::new(), permit(2), permit(3));
    permits.keep(&one, destination(1));
    assert_eq!(permits.confirm(0, &one, OPEN), [], "nobody was asked");
    permits.check(0, one);
    for last in [1, 1, 2] {
        permits.keep(&one, destination(last));
    }
    permits.check(0, other);
    assert_eq!(permits.confirm(10, &other, OPEN), []);
    assert_eq!(permits.confirm(10, &one, OPEN), [destination(1), destination(2)]);
    assert_eq!(permits.confirm(10, &one, OPEN), []);
    permits.check(RENEW_US + 1, one);
    (0..=255).for_each(|last| permits.keep(&one, destination(last)));
    assert_eq!(permits.confirm(RENEW_US + 10, &one, OPEN).len(), WAITING_MAX);
}

#[test]
fn permits_are_forgotten_and_bounded() {
    let mut permits = Permits::new();
    let of = |vni: u32, number: usize| {
        let entry = PermitEntry { vni: Vni::new(vni).unwrap(), host: ip(2) };
        Permit { receiver: IpAddr::from((number as u32 + (1 << 24)).to_be_bytes()), entry }
    };
    let mut accepted = |vni, wanted: usize| {
        let accepts = |number: &usize| permits.check(SECOND_US, of(vni, *number)) == PermitState::Waiting;
        (0..wanted).take_while(accepts).count()
    };
    // One network takes half of the space, others have shares of the rest.
    assert_eq!(accepted(1, PERMITS_MAX), PERMITS_MAX / 2);
    for vni in 2..18 {
        assert_eq!(accepted(vni, PERMITS_MAX), SHARE_MAX, "VNI {vni}");
    }
    assert_eq!(accepted(18, 1), 0);
    assert_eq!((permits.len(), sent(&mut permits, SECOND_US)), (PERMITS_MAX, PERMITS_MAX));
    permits.confirm(SECOND_US, &of(1, 0), OPEN);
    let later = SECOND_US + VALID_US;
    assert_eq!(permits.check(later, of(18, 0)), PermitState::Waiting);
    assert_eq!((permits.len(), permits.by_network.len()), (1, 1));
}

/// Catches a host that lets others send in a network that it has no part in.
#[test]
fn only_a_host_of_the_network_names_the_target_of_a_migration() {
    let memory = Memory::anonymous(1 << 12).unwrap();
    let mut tables = NodeTables::create(memory, Immediate, Sizes::default()).unwrap();
    for host in [ip(1), ip(2)] {
        tables.upsert_vtep(host, Role::Host).unwrap();
    }
    let vni = Vni::new(7).unwrap();
    let vrf = Vrf { vni, mtu: 1430, router4: None, router6: None, group: None, elephant_bytes: None };
    tables.upsert_vrf(&vrf).unwrap();
    let address = IpAddr::from([10, 0, 0, 1]);
    tables.upsert_endpoint(&Endpoint { vni, address, mac: MacAddr::local(1), host: ip(1) }).unwrap();
    let entry = |vni, host| PermitEntry { vni: Vni::new(vni).unwrap(), host };
    let asked = [entry(7, ip(2)), entry(8, ip(2)), entry(7, ip(3)), entry(7, ip(1))];
    let mut targets = NamedTargets::default();
    let mut named = |from, entries: &[PermitEntry]| accept(&mut tables, &mut targets, 0, from, entries);
    assert_eq!(named(ip(2), &asked), 4, "it has no instance");
    assert_eq!(named(ip(1), &asked), 3);
    assert_eq!(named(ip(2), &[entry(7, ip(2)), entry(7, ip(1))]), 2, "it was only named");
    assert!(tables.is_sender(7, ip(2)) && !tables.is_sender(8, ip(2)) && !tables.is_sender(7, ip(3)));
    // The last instance of the network leaves the host.
    tables.remove_endpoint(vni, address).unwrap();
    assert!(tables.is_sender(7, ip(1)));
    assert_eq!(accept(&mut tables, &mut targets, 0, ip(1), &asked[..1]), 1);
}

/// Catches a host that fills the tables of a gateway with senders.
#[test]
fn hosts_name_a_bounded_number_of_others() {
    let mut targets = NamedTargets::default();
    let entry = |number: usize| {
        let host = IpAddr::from((number as u32 + (1 << 24)).to_be_bytes());
        PermitEntry { vni: Vni::new(7).unwrap(), host }
    };
    let mut named = |now_us, last, wanted: usize| {
        (0..wanted).filter(|number| targets.note(now_us, ip(last), entry(*number))).count()
    };
    for _ in 0..2 {
        assert_eq!(named(SECOND_US, 1, NAMED_BY_HOST_MAX + 9), NAMED_BY_HOST_MAX);
    }
    let others: usize = (2..=20).map(|last| named(SECOND_US, last, NAMED_BY_HOST_MAX)).sum();
    assert_eq!(others, NAMED_MAX - NAMED_BY_HOST_MAX);
    assert_eq!(named(SECOND_US + NAMED_US, 20, 1), 1, "the others are forgotten");
}
