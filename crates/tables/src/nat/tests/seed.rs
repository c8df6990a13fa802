//! The secret of the tables: what ends when it changes, and that tables with the same one agree.

use super::*;
use crate::grace::GraceError;
use crate::interleave::die_after;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const SEED: u64 = 6;

fn set(nat: &mut Nat, seed: u64) -> (Result<bool, Error>, Vec<NatEvent>) {
    let mut events = Vec::new();
    let result = nat.set_seed(seed, NOW + 8, &mut |event| events.push(event));
    (result, events)
}

fn known(nat: &Nat) -> Vec<(u16, Ipv4Addr)> {
    nat.addresses().map(|known| (known.number, known.address)).collect()
}

#[test]
fn another_secret_ends_all_sessions_and_keeps_the_numbers_of_addresses() {
    let (tables, mut nat) = TestNat::new(size(3, 1024), limits());
    nat.limit_vpcs(NonZeroU32::new(2).unwrap(), NonZeroU32::MIN);
    let reader = nat.sessions().reader().clone();
    let begun: Vec<_> =
        (1..3).map(|last| tables.out(UDP, end([10, 0, 0, last], 7), server(53), NOW)).collect();
    assert!(begun.iter().all(|out| out.answer == testing::NAT_BEGUN));
    assert_eq!(nat.release(&[public(1)]), Ok(1));
    let blocks: Vec<_> = nat.blocks().collect();
    let (set_once, events) = set(&mut nat, SEED);
    assert_eq!((set_once, known(&nat)), (Ok(true), vec![(0, public(0)), (2, public(2))]));
    for block in blocks {
        assert!(events.contains(&NatEvent::Claimed(block.clone())));
        assert!(events.contains(&NatEvent::Returned(block, NOW + 8)));
    }
    assert_eq!((nat.translations().count(), nat.blocks().count()), (0, 0));
    assert!(tables.is_empty());
    assert!(begun.iter().all(|out| tables.back(out, 0, NOW).answer == testing::NAT_MISS));
    assert_eq!(
        nat.usage(),
        NatUsage {
            sessions: nat.usage().sessions,
            sessions64: nat.usage().sessions64,
            blocks_total: 126,
            addresses: 2,
            addresses_total: 3,
            ..NatUsage::default()
        }
    );
    assert_eq!(nat.usage().sessions.live, 0);
    // Packets, the agent and readers that exist find what begins now, and the limit of a VPC is as before.
    let answers: Vec<_> =
        (1..4).map(|last| tables.out(UDP, end([10, 0, 0, last], 7), server(53), NOW).answer).collect();
    assert_eq!(answers, [testing::NAT_BEGUN, testing::NAT_BEGUN, testing::NAT_VPC_SESSIONS]);
    let flow = Flow { source: end([10, 0, 0, 2], 7).into(), ..flow(7, 53) };
    assert!(reader.lookup(&flow, NOW).is_some());
    // The same secret changes nothing, also for the next agent.
    let mut next = Nat::adopt(&tables.regions, tables.size, NOW, Immediate).unwrap();
    assert_eq!(set(&mut next, SEED), (Ok(false), vec![]));
    assert_eq!(next.translations().count(), 2);
    assert!(next.remove(&flow, NOW));
    let (swept, _) = round(&mut next, NOW);
    assert_eq!((swept.astray, next.translations().count()), (0, 1));
    assert_eq!(tables.out(UDP, end([10, 0, 0, 1], 7), server(53), NOW).answer, testing::NAT_TRANSLATED);
}

#[test]
fn tables_with_the_same_secret_map_an_endpoint_to_the_same_one() {
    const VMS: u32 = 100;
    let (one, mut nat) = TestNat::new(size(4, 64), limits());
    let (mut two, mut other) = TestNat::new(size(5, 64), limits());
    // The other gateway has these addresses by other numbers, and in another order.
    let numbers = [4, 3, 2, 1].map(|last| other.assign(public(last)).unwrap());
    other.release(&[public(0)]).unwrap();
    let numbered = [1, 2, 3].map(|last| nat.assign(public(last)).unwrap());
    let nat_pool { addresses, address, .. } = testing::pool_of(&numbers[1..]);
    (two.pool.addresses, two.pool.address) = (addresses, address);
    let pool = testing::pool_of(&numbered);
    let outside = |tables: &TestNat, number: u32, pool: nat_pool| {
        let inside = SocketAddrV4::new(Ipv4Addr::from(0x0a00_0000 + number), 4000 + number as u16);
        let pool = nat_pool { addresses: pool.addresses, address: pool.address, ..limits() };
        let out = tables.run(nat_test { now: NOW, pool, ..testing::outgoing(VNI, UDP, inside, server(53)) });
        assert_eq!(out.answer, testing::NAT_BEGUN);
        testing::outside_of(&out)
    };
    let same = |nat: &mut Nat, other: &mut Nat, seeds: [u64; 2]| {
        assert_eq!([set(nat, seeds[0]).0, set(other, seeds[1]).0], [Ok(true), Ok(true)]);
        (0..VMS).filter(|&vm| outside(&one, vm, pool) == outside(&two, vm, two.pool)).count()
    };
    let different = same(&mut nat, &mut other, [SEED, SEED + 1]);
    assert!(different < 10, "{different} of {VMS} have the same endpoint by chance");
    // VMs ask both gateways in the same order, so they find the same blocks free.
    assert_eq!(same(&mut nat, &mut other, [SEED + 2, SEED + 2]), VMS as usize);
}

/// Fails when it is told to.
#[derive(Clone, Default)]
struct Failing(Arc<AtomicBool>);

impl Grace for Failing {
    fn wait(&self) -> Result<(), GraceError> {
        if self.0.load(Ordering::Relaxed) {
            Err(GraceError::Failed("by the test".to_owned()))
        } else {
            Ok(())
        }
    }
}

#[test]
fn nothing_changes_if_packets_cannot_be_waited_for() {
    let fails = Failing::default();
    let (tables, mut nat) = TestNat::with_grace(size(1, 1024), limits(), 300, fails.clone());
    let out = tables.out(UDP, vm(7), server(53), NOW);
    fails.0.store(true, Ordering::Relaxed);
    assert!(matches!(set(&mut nat, SEED), (Err(Error::Grace(_)), events) if events.is_empty()));
    assert_eq!(tables.back(&out, 0, NOW).answer, testing::NAT_TRANSLATED);
    fails.0.store(false, Ordering::Relaxed);
    assert_eq!(set(&mut nat, SEED).0, Ok(true));
    assert_eq!(tables.back(&out, 0, NOW).answer, testing::NAT_MISS);
}

#[test]
fn no_packet_is_translated_while_the_secret_changes() {
    let meanwhile = Arc::default();
    let (tables, mut nat) =
        TestNat::with_grace(size(1, 1024), limits(), 300, ActsMeanwhile(Arc::clone(&meanwhile)));
    let out = tables.out(UDP, vm(7), server(53), NOW);
    let tables = Arc::new(tables);
    let packets = Arc::clone(&tables);
    *meanwhile.lock().unwrap() = Some(Box::new(move || {
        assert_eq!(packets.back(&out, 0, NOW).answer, testing::NAT_PROTOCOL);
        assert_eq!(packets.out(UDP, vm(8), server(53), NOW).answer, testing::NAT_PROTOCOL);
    }));
    assert_eq!(set(&mut nat, SEED).0, Ok(true));
    assert!(meanwhile.lock().unwrap().is_none());
}

#[test]
fn an_agent_that_is_killed_while_it_changes_the_secret_leaves_tables_or_none() {
    let mut deaths = [0, 0];
    for accesses in 0.. {
        let (tables, mut nat) = TestNat::with_grace(size(1, 1024), limits(), 8, Immediate);
        tables.out(UDP, vm(7), server(53), NOW);
        let is_complete = die_after(accesses, || set(&mut nat, SEED).0.unwrap()).is_some();
        drop(nat);
        let was_closed = !tables.regions.is_laid_out();
        let mut nat = Nat::open(&tables.regions, tables.size, &default_timeouts(), NOW, Immediate).unwrap();
        deaths[usize::from(was_closed)] += 1;
        assert_eq!(known(&nat), if was_closed { vec![] } else { vec![(0, public(0))] });
        // As an agent does that begins.
        assert_eq!(nat.assign(public(0)), Ok(0));
        assert_eq!(set(&mut nat, SEED).0, Ok(!is_complete));
        assert_eq!(nat.translations().count(), 0);
        let out = tables.out(UDP, vm(7), server(53), NOW);
        assert_eq!(tables.back(&out, 0, NOW).answer, testing::NAT_TRANSLATED);
        if is_complete {
            break;
        }
    }
    assert!(deaths[0] >= 1 && deaths[1] > 100, "{deaths:?}");
}
