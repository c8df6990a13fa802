//! Updates that only gateways get, over anonymous memory.

mod meters;
mod nat;

use sluice_southbound::{ELEPHANT_DEFAULT, ELEPHANT_NEVER};
use std::time::Instant;

use sluice_agent::rsp::KeyStore;
use sluice_agent::{Applied, Applier};
use sluice_southbound::{Group, PublicPrefix, Update};
use sluice_tables::{Immediate, Memory, Sizes};
use sluice_types::{ClusterId, MacAddr, Vni};

use super::*;
use crate::public_announcer::owned_vmacs;

const DATABASE: u64 = 7;
const A: &str = "192.0.2.100";
const B: &str = "192.0.2.101";

struct Gateway {
    applier: Applier<GatewayRole>,
    _state_dir: tempfile::TempDir,
}

impl Gateway {
    fn new() -> Self {
        let memory = Memory::anonymous(1 << 14).unwrap();
        Self::with_tables(NodeTables::create(memory, Immediate, Sizes::default()).unwrap())
    }

    fn with_tables(tables: NodeTables) -> Self {
        Self::with_nat(tables, RoleNat::default())
    }

    fn with_nat(tables: NodeTables, nat: RoleNat) -> Self {
        let state_dir = tempfile::tempdir().unwrap();
        let (keys, _) = KeyStore::load(state_dir.path(), GatewayRole::KEY_KIND);
        let mut tables = tables;
        let role = GatewayRole::new(&mut tables, SharedLoad::default(), PublicAddresses::default(), nat);
        Self { applier: Applier::new(tables, role, keys), _state_dir: state_dir }
    }

    fn apply(&mut self, update: Update) -> Option<Applied> {
        self.applier.apply(update.into()).unwrap()
    }

    fn set_owned(&mut self, vips: &[&str]) {
        let owned = vips.iter().map(|vip| ip(vip)).collect();
        self.applier.role.set_owned(&mut self.applier.tables, owned);
    }

    /// The vIPs that the tables mark as owned, in order.
    fn owned(&self) -> Vec<String> {
        let owned = self.applier.tables.vips().filter(|vip| vip.owned);
        let mut owned: Vec<_> = owned.map(|vip| vip.address.to_string()).collect();
        owned.sort();
        owned
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn vips() -> Vec<Vip> {
    [A, B].map(|address| Vip { address: ip(address), mac: MacAddr::local(1) }).to_vec()
}

fn delta(revision: u64) -> Update {
    Update { revision, database_id: DATABASE, ..Update::default() }
}

fn snapshot() -> Update {
    Update { snapshot: true, vips: vips(), ..delta(10) }
}

fn without_failures(revision: u64) -> Option<Applied> {
    Some(Applied { revision, failures: Vec::new(), failed_entries: 0, repaired: None })
}

fn plan(cluster: u64, revision: u64) -> ClusterPlan {
    ClusterPlan {
        cluster: ClusterId::new(cluster),
        revision,
        vips: Vec::new(),
        members: Vec::new(),
        preferred_owners: Vec::new(),
        hello_interval_ms: 4,
        nat_seed: None,
    }
}

/// Catches updates of the controller that change which vIPs this gateway answers for: the cluster protocol
/// decides that.
#[test]
fn owned_vips_are_not_changed_by_the_controller() {
    let mut gateway = Gateway::new();
    // The ownership of a vIP may be known before the vIP is in the tables.
    gateway.set_owned(&[B]);
    assert_eq!(gateway.apply(snapshot()), without_failures(10));
    assert_eq!(gateway.owned(), [B]);
    gateway.set_owned(&[A]);
    assert_eq!(gateway.owned(), [A]);
    assert_eq!(gateway.apply(Update { vips: vips(), ..delta(11) }), without_failures(11));
    assert_eq!(gateway.owned(), [A]);
    assert_eq!(gateway.apply(Update { removed_vips: vec![ip(A)], ..delta(12) }), without_failures(12));
    assert_eq!(gateway.apply(Update { vips: vips(), ..delta(13) }), without_failures(13));
    assert_eq!(gateway.owned(), [A], "a vIP that returns is still owned");
    // The next agent continues with what the tables say.
    let mut next = Gateway::with_tables(gateway.applier.tables);
    assert_eq!(next.apply(Update { vips: vips(), ..delta(14) }), without_failures(14));
    assert_eq!(next.owned(), [A]);
}

#[test]
fn only_newer_plans_of_the_same_cluster_are_taken() {
    let mut gateway = Gateway::new();
    let mut plans = gateway.applier.role.plan();
    gateway.apply(Update { cluster: Some(plan(1, 10)), ..snapshot() });
    assert_eq!(*plans.borrow_and_update(), Some(plan(1, 10)));
    gateway.apply(delta(11));
    assert!(!plans.has_changed().unwrap(), "a step without a plan");
    // A stream that continues begins with the newest plan; older ones come with the steps that follow.
    gateway.apply(Update { cluster: Some(plan(1, 20)), ..delta(0) });
    assert_eq!(*plans.borrow_and_update(), Some(plan(1, 20)));
    for old in [13, 20] {
        gateway.apply(Update { cluster: Some(plan(1, old)), ..delta(old) });
        assert!(!plans.has_changed().unwrap(), "plan {old}");
    }
    gateway.apply(Update { cluster: Some(plan(77, 3)), ..delta(21) });
    assert_eq!(*plans.borrow_and_update(), Some(plan(77, 3)), "revisions of clusters are not related");
}

/// Catches a gateway that refuses public prefixes, and one that applies them before what they need.
#[test]
fn public_prefixes_come_with_their_vrf_and_vip() {
    let mut gateway = Gateway::new();
    let vni = Vni::new(5).unwrap();
    let vrf = Vrf {
        vni,
        mtu: 1430,
        router4: None,
        router6: None,
        group: None,
        elephant_kbps: 0,
        internet_meter: None,
    };
    let (outside, inside) = ("198.51.100.1/32".parse().unwrap(), "10.0.0.2/32".parse().unwrap());
    let public_prefixes = vec![PublicPrefix { outside, vni, inside, vip: ip(B), meter: None, nptv6: false }];
    let update = Update { vrfs: vec![vrf], public_prefixes, ..snapshot() };
    assert_eq!(gateway.apply(update), without_failures(10));
    let found = gateway.applier.tables.public_prefix(outside).unwrap();
    assert_eq!((found.inside, found.vip), (inside, ip(B)));
    // A snapshot without the network and the vIP.
    let update = Update { vips: vips()[..1].to_vec(), revision: 11, ..snapshot() };
    assert_eq!(gateway.apply(update), without_failures(11));
    assert_eq!(gateway.applier.tables.public_prefixes().count(), 0);
}

/// Catches packets to the gateway itself that a tenant gets.
#[test]
fn public_prefixes_with_addresses_of_the_gateway_are_not_written() {
    let mut gateway = Gateway::new();
    let set_own = |gateway: &mut Gateway, own: &[&str]| {
        let own = own.iter().map(|own| ip(own)).collect();
        gateway.applier.role.set_own_addresses(&mut gateway.applier.tables, own);
    };
    let count = |gateway: &Gateway| gateway.applier.tables.public_prefixes().count();
    let vni = Vni::new(5).unwrap();
    let vrf = Vrf {
        vni,
        mtu: 1430,
        router4: None,
        router6: None,
        group: None,
        elephant_kbps: 0,
        internet_meter: None,
    };
    let public = |outside: &str| {
        let net: IpNet = outside.parse().unwrap();
        PublicPrefix { outside: net, vni, inside: net, vip: ip(A), meter: None, nptv6: false }
    };
    let public_prefixes = vec![public("198.51.100.0/24"), public("2001:db8::/64")];
    let update = Update { vrfs: vec![vrf], public_prefixes, ..snapshot() };
    set_own(&mut gateway, &["192.0.2.1", "198.51.100.7"]);
    let applied = gateway.apply(update).unwrap();
    assert_eq!(applied.failures, ["public prefix 198.51.100.0/24: this gateway itself has 198.51.100.7"]);
    assert_eq!((count(&gateway), gateway.applier.is_complete()), (1, false));
    // An address goes, and another one comes.
    set_own(&mut gateway, &["192.0.2.1", "2001:db8::7"]);
    assert_eq!(count(&gateway), 0);
    assert_eq!(gateway.applier.retry(Instant::now()), without_failures(10));
    assert_eq!(count(&gateway), 1);
}

#[test]
fn thresholds_of_elephants_are_bytes_per_second() {
    let mut gateway = Gateway::new();
    let vni = |number| Vni::new(number).unwrap();
    let vrf = |number, elephant_kbps| Vrf {
        vni: vni(number),
        mtu: 1430,
        router4: None,
        router6: None,
        group: None,
        elephant_kbps,
        internet_meter: None,
    };
    let never = sluice_tables::Vrf::NEVER_ELEPHANTS;
    let cases = [
        (1, ELEPHANT_DEFAULT, None),
        (2, ELEPHANT_NEVER, Some(never)),
        (3, 8, Some(1000)),
        // A threshold beyond 32 bits is the largest one that is not "never".
        (4, ELEPHANT_NEVER - 1, Some(never - 1)),
    ];
    let vrfs = cases.iter().map(|(number, kbps, _)| vrf(*number, *kbps)).collect();
    assert_eq!(gateway.apply(Update { vrfs, ..snapshot() }), without_failures(10));
    for (number, _, bytes) in cases {
        assert_eq!(
            gateway.applier.tables.vrf(vni(number)).unwrap().vrf.elephant_bytes,
            bytes,
            "VNI {number}"
        );
    }
}

/// Catches: an address without an announcement, and one of another gateway's vIP, of a prefix, or of no change.
#[test]
fn new_public_addresses_of_owned_vips_are_announced() {
    let mut gateway = Gateway::new();
    let vni = Vni::new(1).unwrap();
    let vrf = Vrf {
        vni,
        mtu: 1430,
        router4: None,
        router6: None,
        group: None,
        elephant_kbps: 0,
        internet_meter: None,
    };
    let public = |outside: &str, inside: &str, vip: &str| {
        let [outside, inside] = [outside, inside].map(|text| text.parse().unwrap());
        PublicPrefix { outside, vni, inside, vip: ip(vip), meter: None, nptv6: false }
    };
    let [a, b] = [MacAddr::local(1), MacAddr::local(2)];
    let vips = [(A, a), (B, b)].map(|(address, mac)| Vip { address: ip(address), mac });
    let mut update = Update { vips: vips.into(), vrfs: vec![vrf], snapshot: true, ..delta(1) };
    gateway.apply(update.clone());
    gateway.set_owned(&[A]);
    update.public_prefixes = vec![
        public("203.0.113.1/32", "10.0.0.1/32", A),
        public("203.0.113.2/32", "10.0.0.2/32", B),
        public("2001:db8:1::1/128", "fd00::1/128", A),
        public("2001:db8:2::/64", "fd00:2::/64", A),
    ];
    gateway.apply(update.clone());
    // Time stands still: nothing is repeated.
    let now = Instant::now();
    let announced = |gateway: &Gateway| {
        let batch = gateway.applier.role.public.take_batch(now);
        let batch = owned_vmacs(&gateway.applier.tables, &batch);
        batch.iter().map(|(address, mac)| format!("{address} {mac}")).collect::<Vec<_>>()
    };
    assert_eq!(announced(&gateway), [format!("203.0.113.1 {a}"), format!("2001:db8:1::1 {a}")]);
    gateway.apply(update.clone());
    assert_eq!(announced(&gateway), Vec::<String>::new());
    gateway.set_owned(&[A, B]);
    update.public_prefixes[0].vip = ip(B);
    gateway.apply(update.clone());
    // The second address has been without an announcement until the owner of its vIP was known.
    assert_eq!(announced(&gateway), [format!("203.0.113.1 {b}"), format!("203.0.113.2 {b}")]);

    // The update comes first, as it mostly does: with a new vIP, and then with another MAC address for it.
    let c = MacAddr::local(3);
    update.vips.push(Vip { address: ip("192.0.2.102"), mac: c });
    update.public_prefixes[0].vip = ip("192.0.2.102");
    gateway.apply(update.clone());
    assert_eq!(announced(&gateway), Vec::<String>::new());
    gateway.set_owned(&[A, "192.0.2.102"]);
    assert_eq!(announced(&gateway), [format!("203.0.113.1 {c}")]);
    update.vips[2].mac = b;
    gateway.apply(update.clone());
    assert_eq!(announced(&gateway), [format!("203.0.113.1 {b}")]);
    // An address that another gateway has got, and one that no gateway has any more, before it was their turn.
    gateway.set_owned(&[A, B, "192.0.2.102"]);
    update.public_prefixes[1].vip = ip(A);
    update.public_prefixes.remove(0);
    gateway.apply(update);
    gateway.set_owned(&[B]);
    assert_eq!(announced(&gateway), Vec::<String>::new());
}

#[test]
fn group_is_reported_as_a_failure() {
    let mut gateway = Gateway::new();
    gateway.apply(snapshot());
    let group = Group { id: 1, vips: vec![ip(A)], detect_after_ms: None };
    let applied = gateway.apply(Update { groups: vec![group], ..delta(11) }).unwrap();
    assert_eq!(applied.failures, ["group 1: a node of this role has no such entries"]);
}
