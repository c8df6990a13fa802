//! NAT gateways of a gateway that translates addresses itself, with its NAT tables in anonymous memory.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use sluice_southbound::NatGateway;
use sluice_tables::nat::{Nat, NatRegions, NatSize, default_timeouts};
use sluice_tables::{Grace, GraceError};
use sluice_types::NatSeed;

use super::*;
use crate::nat::SharedNat;

/// Counts how often the NAT tables have waited for packets, and fails if it has to.
#[derive(Clone, Debug, Default)]
struct Waits(Arc<(AtomicU32, AtomicBool)>);

impl Grace for Waits {
    fn wait(&self) -> Result<(), GraceError> {
        self.0.0.fetch_add(1, Ordering::Relaxed);
        match self.0.1.load(Ordering::Relaxed) {
            true => Err(GraceError::Failed("of the test".to_owned())),
            false => Ok(()),
        }
    }
}

impl Waits {
    /// Whether there were some since the last call.
    fn were(&self) -> bool {
        self.0.0.swap(0, Ordering::Relaxed) > 0
    }

    fn fail(&self, fails: bool) {
        self.0.1.store(fails, Ordering::Relaxed);
    }
}

/// NAT tables with room for this many addresses.
fn shared(addresses: u32, waits: &(impl Grace + Clone + 'static)) -> SharedNat {
    let size = NatSize { addresses, block_ports: 4096 };
    let regions = NatRegions::anonymous(size, 16).unwrap();
    SharedNat::new(Nat::create(&regions, size, 1, &default_timeouts(), 0, waits.clone()).unwrap())
}

fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

fn address(low: u8) -> Ipv4Addr {
    Ipv4Addr::new(203, 0, 113, low)
}

fn nat(number: u32, lows: &[u8]) -> NatGateway {
    let addresses = lows.iter().map(|low| address(*low)).collect();
    NatGateway {
        vni: vni(number),
        addresses,
        vip: ip(A),
        sessions: 100,
        blocks: 1,
        any_remote: false,
        shares_ports: false,
        forwards: Vec::new(),
        nat64: None,
    }
}

fn cloud(nat_gateways: &[NatGateway]) -> Update {
    let vrf = |number| Vrf {
        vni: vni(number),
        mtu: 1430,
        router4: None,
        router6: None,
        group: None,
        elephant_kbps: 0,
        internet_meter: None,
    };
    Update { vrfs: vec![vrf(1), vrf(2)], nat_gateways: nat_gateways.to_vec(), ..snapshot() }
}

fn nat_delta(revision: u64, nat_gateways: &[NatGateway]) -> Update {
    Update { nat_gateways: nat_gateways.to_vec(), ..delta(revision) }
}

/// VNIs and addresses of the NAT gateways in the tables.
fn found(tables: &NodeTables) -> Vec<(u32, Vec<u8>)> {
    let lows =
        |nat: &sluice_tables::NatGateway| nat.addresses.iter().map(|it| it.address.octets()[3]).collect();
    tables.nat_gateways().map(|nat| (nat.vni.get(), lows(&nat))).collect()
}

/// Completes two rounds of the sweep.
fn sweep(nat: &SharedNat) {
    for _ in 0..2 {
        while !nat.lock().sweep(1024, 1, &mut |_| ()).unwrap().round_completed {}
    }
}

fn retry(gateway: &mut Gateway) -> Option<Applied> {
    let now = Instant::now();
    gateway.applier.retry(now);
    gateway.applier.retry(now + Duration::from_secs(60))
}

/// Catches an address that waits for ever for the number of the one that it replaces.
#[test]
fn an_address_gets_the_number_of_the_one_that_it_replaces() {
    let nat_tables = shared(2, &Waits::default());
    let mut gateway =
        Gateway::with_nat(Gateway::new().applier.tables, RoleNat::new(Some(nat_tables.clone())));
    assert_eq!(gateway.apply(cloud(&[nat(1, &[1, 2])])), without_failures(10));
    assert_eq!(gateway.apply(nat_delta(11, &[nat(1, &[2, 3])])).unwrap().failed_entries, 1);
    assert_eq!(found(&gateway.applier.tables), [(1, vec![2])]);
    sweep(&nat_tables);
    assert_eq!(retry(&mut gateway), without_failures(11));
    assert_eq!(
        (found(&gateway.applier.tables), gateway.applier.is_complete()),
        (vec![(1, vec![2, 3])], true)
    );
    // All of them, and the vIP is one that the gateway does not have.
    let other = NatGateway { vip: ip("192.0.2.77"), ..nat(1, &[4]) };
    assert_eq!(gateway.apply(nat_delta(12, &[other])).unwrap().failed_entries, 1);
    assert_eq!(found(&gateway.applier.tables), []);
}

/// Catches a NAT gateway that takes the numbers of others although it does not fit itself.
#[test]
fn a_nat_gateway_that_does_not_fit_takes_no_numbers() {
    let nat_tables = shared(2, &Waits::default());
    let mut gateway =
        Gateway::with_nat(Gateway::new().applier.tables, RoleNat::new(Some(nat_tables.clone())));
    let applied = gateway.apply(cloud(&[nat(1, &[1, 2, 3]), nat(2, &[4, 5])])).unwrap();
    assert_eq!((applied.failed_entries, found(&gateway.applier.tables)), (1, vec![(2, vec![4, 5])]));
    assert_eq!(gateway.applier.role.nat_addresses().map(|it| (it.used, it.total)), Some((2, 2)));
}

/// Catches a change of owners that waits for packets though nothing has to end, and sessions that stay: at an address that another
/// VPC has, of another database, or because the first attempt has failed.
#[test]
fn what_is_lost_ends_and_nothing_else() {
    let waits = Waits::default();
    let nat_tables = shared(4, &waits);
    let mut gateway = Gateway::with_nat(Gateway::new().applier.tables, RoleNat::new(Some(nat_tables)));
    gateway.apply(cloud(&[nat(1, &[1])]));
    waits.were();
    gateway.set_owned(&[A]);
    gateway.apply(nat_delta(11, &[nat(2, &[2])]));
    assert!(!waits.were(), "a vIP and an address more");
    gateway.set_owned(&[]);
    assert!(!waits.were(), "the vIP is lost");
    waits.fail(true);
    gateway.apply(nat_delta(12, &[nat(1, &[3]), nat(2, &[2, 1])]));
    assert!(waits.were(), "an address is another VPC's");
    waits.fail(false);
    gateway.applier.retry(Instant::now());
    assert!(waits.were(), "it had failed");
    gateway.applier.retry(Instant::now());
    assert!(!waits.were(), "it has succeeded");
    let other = Update { database_id: DATABASE + 1, ..cloud(&[nat(1, &[1]), nat(2, &[2])]) };
    assert_eq!(gateway.apply(other), without_failures(10));
    assert!(waits.were(), "all of the old database ends");
}

/// Catches a gateway that keeps the secret that it drew itself, and one that gives up when the first attempt has failed.
#[test]
fn the_secret_of_the_plan_is_that_of_the_nat_tables() {
    let waits = Waits::default();
    let nat_tables = shared(1, &waits);
    let has = |seed: u64| !nat_tables.lock().set_seed(seed, 0, &mut |_| ()).unwrap();
    let mut gateway =
        Gateway::with_nat(Gateway::new().applier.tables, RoleNat::new(Some(nat_tables.clone())));
    gateway.apply(Update { cluster: Some(plan(1, 10)), ..cloud(&[nat(1, &[1])]) });
    assert!(has(1), "an earlier controller does not know the secret");
    // The controller is a newer one, and has not changed the plan.
    waits.fail(true);
    gateway.apply(Update {
        cluster: Some(ClusterPlan { nat_seed: NatSeed::new(5), ..plan(1, 10) }),
        ..delta(0)
    });
    waits.fail(false);
    gateway.applier.retry(Instant::now());
    assert!(has(5));
    assert_eq!(found(&gateway.applier.tables), [(1, vec![1])]);
    assert_eq!(nat_tables.lock().addresses().map(|it| it.address).collect::<Vec<_>>(), [address(1)]);
}

/// Catches packets that use numbers of an earlier agent, whose NAT tables are others than those of this one.
#[test]
fn nat_gateways_get_the_numbers_of_the_nat_tables() {
    // An agent without NAT tables.
    let mut gateway = Gateway::new();
    assert_eq!(gateway.apply(cloud(&[nat(1, &[1, 2]), nat(2, &[3])])), without_failures(10));
    let numbers = |gateway: &Gateway| {
        let all = gateway.applier.tables.nat_gateways().flat_map(|nat| nat.addresses);
        all.map(|it| (it.address, it.number)).collect::<Vec<_>>()
    };
    let before = numbers(&gateway);
    let nat_tables = shared(3, &Waits::default());
    // It has room for a third one when this is released.
    nat_tables.lock().assign(address(3)).unwrap();
    let gateway = Gateway::with_nat(gateway.applier.tables, RoleNat::new(Some(nat_tables.clone())));
    let known: Vec<_> = nat_tables.lock().addresses().map(|it| (it.address, it.number)).collect();
    let mut found_numbers = numbers(&gateway);
    assert_ne!(found_numbers, before);
    found_numbers.sort_by_key(|(_, number)| *number);
    assert_eq!(found_numbers, known);
    assert_eq!(gateway.applier.tables.applied_revision(), 10);
    // An agent without them again keeps the numbers, and gives others to further addresses.
    let before = numbers(&gateway);
    let mut gateway = Gateway::with_tables(gateway.applier.tables);
    assert_eq!(gateway.apply(nat_delta(11, &[nat(2, &[3, 4])])), without_failures(11));
    assert_eq!(numbers(&gateway)[..3], before);
    assert!(before.iter().all(|(_, number)| *number != numbers(&gateway)[3].1));
    // One with too few numbers.
    let gateway = Gateway::with_nat(gateway.applier.tables, RoleNat::new(Some(shared(3, &Waits::default()))));
    assert_eq!(found(&gateway.applier.tables), [(1, vec![1, 2])]);
    assert_eq!(gateway.applier.tables.applied_revision(), 0);
}
