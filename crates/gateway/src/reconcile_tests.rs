//! Answers about networks 1 and 2. The hosts A and B have instances of network 1, and only B has one of network 2.

use super::*;
use sluice_rsp::NetworkAnswer::{Changed, Current, Unknown};
use sluice_tables::{Endpoint, Immediate, Memory, NodeTables, Role, Sizes, Vrf};
use sluice_types::{MacAddr, Vni};

const A: &str = "192.0.2.21";
const B: &str = "2001:db8::22";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

fn query(number: u32, since: u64) -> NetworkQuery {
    NetworkQuery { vni: vni(number), since }
}

struct Gateway {
    tables: NodeTables,
    journal: Journal,
    stats: OffloadStats,
}

impl Gateway {
    fn new() -> Self {
        let memory = Memory::anonymous(4096).unwrap();
        let mut tables = NodeTables::create(memory, Immediate, Sizes::default()).unwrap();
        for host in [A, B] {
            tables.upsert_vtep(ip(host), Role::Host).unwrap();
        }
        for number in [1, 2] {
            let vni = vni(number);
            let vrf = Vrf { vni, mtu: 1430, router4: None, router6: None, group: None, elephant_bytes: None };
            tables.upsert_vrf(&vrf).unwrap();
        }
        let mut gateway = Self { journal: tables.keep_journal(), tables, stats: OffloadStats::default() };
        gateway.place(1, "10.0.0.1", A);
        gateway.place(1, "fd00::2", B);
        gateway.place(2, "10.0.0.1", B);
        gateway.tables.set_applied_revision(10);
        gateway
    }

    fn place(&mut self, number: u32, address: &str, host: &str) {
        let (vni, address) = (vni(number), ip(address));
        let entry = Endpoint { vni, address, mac: MacAddr::local(number.into()), host: ip(host) };
        self.tables.upsert_endpoint(&entry).unwrap();
    }

    fn asked(&self, from: &str, queries: &[NetworkQuery]) -> Vec<Vec<NetworkAnswer>> {
        answers(&self.tables.reader(), &self.journal, ip(from), queries, &self.stats)
    }
}

fn current(number: u32, since: u64, revision: u64, changes: u16) -> NetworkAnswer {
    Current { vni: vni(number), since, revision, changes }
}

fn changed(number: u32, prefix: &str) -> NetworkAnswer {
    Changed { vni: vni(number), prefix: prefix.parse().unwrap() }
}

#[test]
fn networks_without_changes_share_a_packet_and_changes_have_their_own() {
    let mut gateway = Gateway::new();
    let queries = [query(1, 10), query(2, 10)];
    assert_eq!(gateway.asked(B, &queries), [[current(1, 10, 10, 0), current(2, 10, 10, 0)]]);
    // An instance comes, one moves to another host, and one ends.
    gateway.place(1, "10.0.0.9", A);
    gateway.place(1, "10.0.0.1", B);
    gateway.tables.remove_endpoint(vni(1), ip("fd00::2")).unwrap();
    gateway.tables.set_applied_revision(12);
    let of_1 = vec![changed(1, "10.0.0.1/32"), changed(1, "fd00::2/128"), current(1, 10, 12, 2)];
    assert_eq!(gateway.asked(B, &queries), [of_1, vec![current(2, 10, 12, 0)]]);
    assert_eq!(gateway.asked(B, &[query(1, 12)]), [[current(1, 12, 12, 0)]]);
    let counts =
        [Reconciliation::Unchanged, Reconciliation::Changed].map(|it| gateway.stats.reconciliations(it));
    assert_eq!(counts, [4, 1]);
}

#[test]
fn a_host_learns_nothing_of_networks_that_it_does_not_have() {
    let gateway = Gateway::new();
    assert_eq!(gateway.asked(A, &[query(1, 10), query(2, 10), query(3, 10)]), [[current(1, 10, 10, 0)]]);
    assert_eq!(gateway.asked("192.0.2.99", &[query(1, 10)]), Vec::<Vec<_>>::new());
    assert_eq!(gateway.stats.reconciliations(Reconciliation::Ignored), 3);
}

#[test]
fn what_a_gateway_does_not_know_it_says_or_leaves_out() {
    let mut gateway = Gateway::new();
    let unknown = |since| Unknown { vni: vni(1), since, revision: 10 };
    for since in [0, 9] {
        assert_eq!(gateway.asked(A, &[query(1, since)]), [[unknown(since)]]);
    }
    // Another gateway is ahead.
    assert_eq!(gateway.asked(A, &[query(1, 11)]), Vec::<Vec<_>>::new());
    // A snapshot is incomplete.
    gateway.tables.set_applied_revision(0);
    assert_eq!(gateway.asked(A, &[query(1, 10), query(1, 0)]), Vec::<Vec<_>>::new());
}

#[test]
fn a_network_is_answered_once_and_few_with_changes() {
    let mut gateway = Gateway::new();
    let many = 3..3 + CHANGED_MAX as u32 + 2;
    for number in many.clone() {
        let vrf = Vrf {
            vni: vni(number),
            mtu: 1430,
            router4: None,
            router6: None,
            group: None,
            elephant_bytes: None,
        };
        gateway.tables.upsert_vrf(&vrf).unwrap();
        gateway.place(number, "10.0.0.1", A);
    }
    gateway.tables.set_applied_revision(11);
    many.clone().for_each(|number| gateway.place(number, "10.0.0.1", B));
    many.clone().for_each(|number| gateway.place(number, "10.0.0.2", A));
    gateway.tables.set_applied_revision(12);
    let queries: Vec<_> = many.flat_map(|number| [query(number, 11); 2]).collect();
    let answers = gateway.asked(A, &queries);
    assert_eq!(answers.len(), CHANGED_MAX);
    for (packet, number) in answers.iter().zip(3..) {
        assert_eq!(*packet, [changed(number, "10.0.0.1/32"), current(number, 11, 12, 1)]);
    }
}

/// So many changes of one revision do not fit in a packet.
#[test]
fn many_changes_are_told_in_parts() {
    let mut gateway = Gateway::new();
    let address = |last: usize| format!("10.1.0.{last}");
    (1..=CHANGES_MAX + 1).for_each(|last| gateway.place(1, &address(last), A));
    gateway.tables.set_applied_revision(11);
    for (removed, revision) in [(CHANGES_MAX, 12), (1, 13)] {
        let of = if revision == 12 { 1..=removed } else { CHANGES_MAX + 1..=CHANGES_MAX + 1 };
        for last in of {
            gateway.tables.remove_endpoint(vni(1), ip(&address(last))).unwrap();
        }
        gateway.tables.set_applied_revision(revision);
    }
    // The first part of the changes, and then the rest.
    let first = gateway.asked(A, &[query(1, 11)]);
    assert_eq!(
        (first.len(), first[0].len(), first[0].last()),
        (1, CHANGES_MAX + 1, Some(&current(1, 11, 12, 48)))
    );
    let rest = [changed(1, &format!("{}/32", address(CHANGES_MAX + 1))), current(1, 12, 13, 1)];
    assert_eq!(gateway.asked(A, &[query(1, 12)]), [rest]);
    (1..=CHANGES_MAX + 1).for_each(|last| gateway.place(1, &address(last), A));
    gateway.tables.set_applied_revision(14);
    (1..=CHANGES_MAX + 1).for_each(|last| gateway.place(1, &address(last), B));
    gateway.tables.set_applied_revision(15);
    let all = [changed(1, "10.1.0.0/26"), current(1, 14, 15, 1)];
    assert_eq!(gateway.asked(A, &[query(1, 14)]), [all]);
}
