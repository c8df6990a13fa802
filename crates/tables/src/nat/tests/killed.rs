//! Packets and the agent are killed before each of their accesses to memory in turn, in a round before every seventh. What they
//! leave is found by later rounds.

use super::*;
use crate::interleave::die_after;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The panic by which a packet's work ends.
struct Death;

thread_local!(static ACCESSES_LEFT: Cell<u32> = const { Cell::new(0) });

fn count_down() {
    match ACCESSES_LEFT.get() {
        0 => resume_unwind(Box::new(Death)),
        left => ACCESSES_LEFT.set(left - 1),
    }
}

/// Runs a packet that is killed before access number `accesses`. Returns `None` if it was.
fn killed(tables: &TestNat, packet: &nat_test, accesses: u32) -> Option<nat_test> {
    ACCESSES_LEFT.set(accesses);
    sluice_tables_testing::set_hook(Some(count_down));
    let result = catch_unwind(AssertUnwindSafe(|| tables.run(*packet)));
    sluice_tables_testing::set_hook(None);
    match result {
        Ok(packet) => Some(packet),
        Err(cause) if cause.is::<Death>() => None,
        Err(cause) => resume_unwind(cause),
    }
}

/// Other sessions, which go on whatever happens.
fn others(tables: &TestNat) -> Vec<nat_test> {
    let begin = |port| {
        let out = tables.out(UDP, end([10, 0, 0, 6], port), server(53), NOW);
        assert_eq!(out.answer, testing::NAT_BEGUN);
        out
    };
    (1..4).map(begin).collect()
}

/// Checks that the others' sessions work, that a new session begins, and that nothing is left when all have expired.
fn check_that_nothing_is_left(tables: &TestNat, nat: &mut Nat, others: &[nat_test]) {
    round(nat, NOW);
    for other in others {
        assert_eq!(tables.back(other, 0, NOW).answer, testing::NAT_TRANSLATED);
    }
    let out = tables.out(UDP, vm(7), server(53), NOW);
    assert!([testing::NAT_BEGUN, testing::NAT_TRANSLATED].contains(&out.answer), "{out:?}");
    assert_eq!(testing::inside_of(&tables.back(&out, 0, NOW)), vm(7));
    let sessions: u32 = nat.blocks().map(|block| block.sessions).sum();
    assert!(sessions > others.len() as u32, "{sessions} sessions are counted");
    (0..2).for_each(|_| drop(round(nat, NOW + 8 * 301)));
    assert!(tables.is_empty());
    for bucket in 0..nat.sessions().buckets(Family::Ipv4) {
        let bucket = bucket as usize * SessionRegions::BUCKET4_BYTES;
        for slot in 0..7 {
            let word = tables.regions.sessions.ipv4.load64(bucket + 8 + slot * 8);
            assert_eq!(word & u64::from(layout::SESSION_STATE_MASK), 0, "a slot is in use");
        }
    }
}

fn killed_packets(flags: u8) {
    let mut deaths = 0;
    for accesses in 0.. {
        let (tables, mut nat) = TestNat::new(size(1, 1024), nat_pool { flags, ..limits() });
        let others = others(&tables);
        let mut packet = testing::outgoing(VNI, UDP, vm(7), server(53));
        (packet.now, packet.pool) = (NOW, tables.pool);
        if let Some(packet) = killed(&tables, &packet, accesses) {
            assert_eq!(packet.answer, testing::NAT_BEGUN);
            break;
        }
        deaths += 1;
        check_that_nothing_is_left(&tables, &mut nat, &others);
    }
    assert!(deaths > 200, "{deaths} accesses");
}

#[test]
fn a_packet_that_is_killed_leaves_nothing() {
    killed_packets(0);
}

#[test]
fn a_packet_that_is_killed_while_it_shares_a_port_leaves_nothing() {
    killed_packets(testing::SHARES_PORTS);
}

#[test]
fn an_installed_session_whose_installation_is_killed_leaves_nothing() {
    // A session that is not there, and one that moves to another port, which may be shared.
    for (moves, state) in
        [(false, 0), (true, 0), (false, testing::COPY_OF_SHARED), (true, testing::COPY_OF_SHARED)]
    {
        let mut deaths = 0;
        for accesses in 0.. {
            let (tables, mut nat) = TestNat::new(size(1, 1024), limits());
            let others = others(&tables);
            let ends = (vm(7), server(53));
            let of_port =
                |port| nat_test { now: NOW, state, ..testing::installed(VNI, UDP, ends, (0, port)) };
            if moves {
                let before = tables.run(nat_test { idle: 100, ..of_port(5120) });
                assert_eq!(before.answer, testing::NAT_BEGUN);
            }
            if let Some(copied) = killed(&tables, &of_port(9216), accesses) {
                assert_eq!(copied.answer, testing::NAT_BEGUN);
                assert_eq!(nat.translations().filter(|shown| shown.outside.port() == 9216).count(), 1);
                break;
            }
            deaths += 1;
            check_that_nothing_is_left(&tables, &mut nat, &others);
        }
        assert!(deaths > 60, "{deaths} accesses");
    }
}

#[test]
fn an_agent_that_is_killed_leaves_nothing() {
    killed_agents(0);
}

#[test]
fn an_agent_that_is_killed_while_ports_are_shared_leaves_nothing() {
    killed_agents(testing::SHARES_PORTS);
}

fn killed_agents(flags: u8) {
    let mut deaths = 0;
    // A round has thousands of accesses, most of which read port words. Every seventh is tried.
    for accesses in (0..).step_by(7) {
        let (tables, mut nat) =
            TestNat::with_grace(size(1, 256), nat_pool { flags, ..limits() }, 8, Immediate);
        let others = others(&tables);
        tables.out(UDP, vm(7), server(53), NOW);
        tables.out(TCP, end([10, 0, 0, 8], 7), server(53), NOW);
        assert!(nat.remove(&flow(7, 53), NOW));
        if die_after(accesses, || drop(round(&mut nat, NOW))).is_some() {
            break;
        }
        deaths += 1;
        drop(nat);
        let mut nat = Nat::adopt(&tables.regions, tables.size, NOW, Immediate).unwrap();
        check_that_nothing_is_left(&tables, &mut nat, &others);
    }
    assert!(deaths > 200, "{deaths} accesses");
}

#[test]
fn an_agent_that_is_killed_while_it_ends_blocks_leaves_nothing() {
    let mut deaths = 0;
    for accesses in 0.. {
        let (tables, mut nat) = TestNat::with_grace(size(1, 1024), limits(), 8, Immediate);
        let others = others(&tables);
        let ended = tables.out(UDP, vm(7), server(53), NOW);
        let is_complete =
            die_after(accesses, || nat.end(|block| block.inside == *vm(7).ip()).unwrap()).is_some();
        drop(nat);
        let mut nat = Nat::adopt(&tables.regions, tables.size, NOW, Immediate).unwrap();
        // The next agent ends what is left of the blocks, and its round what is left of the sessions.
        nat.end(|block| block.inside == *vm(7).ip()).unwrap();
        assert_eq!(tables.back(&ended, 0, NOW).answer, testing::NAT_MISS);
        round(&mut nat, NOW);
        assert_eq!(nat.translations().count(), others.len());
        check_that_nothing_is_left(&tables, &mut nat, &others);
        if is_complete {
            break;
        }
        deaths += 1;
    }
    assert!(deaths > 100, "{deaths} accesses");
}

/// After an agent or a packet was killed while the address of number 0 was taken out of use: its number is free after two rounds,
/// and that of the other address is not.
fn check_that_the_number_is_free(tables: &TestNat, nat: &mut Nat, others: &[nat_test]) {
    nat.release(&[public(0)]).unwrap();
    (0..2).for_each(|_| drop(round(nat, NOW)));
    let known: Vec<_> = nat.addresses().map(|known| (known.number, known.address)).collect();
    assert_eq!(known, [(1, public(1))]);
    for other in others {
        assert_eq!(tables.back(other, 0, NOW).answer, testing::NAT_TRANSLATED);
    }
    assert_eq!(nat.translations().count(), others.len());
    assert_eq!(nat.assign(public(2)), Ok(0));
    let pool = nat_pool { addresses: 1, ..tables.pool };
    let packet = nat_test { pool, now: NOW, ..testing::outgoing(VNI, UDP, vm(9), server(53)) };
    let out = tables.run(packet);
    assert_eq!((out.answer, *testing::outside_of(&out).ip()), (testing::NAT_BEGUN, public(2)));
    (0..2).for_each(|_| drop(round(nat, NOW + 8 * 301)));
    assert!(tables.is_empty());
}

/// Tables of two addresses, and what has sessions at the second one. All packets have only the first one in their pool then.
fn with_two_addresses() -> (TestNat, Nat, Vec<nat_test>) {
    let (mut tables, nat) = TestNat::with_grace(size(2, 1024), limits(), 8, Immediate);
    (tables.pool.addresses, tables.pool.address[0]) = (1, 1);
    let others = others(&tables);
    tables.pool.address[0] = 0;
    (tables, nat, others)
}

#[test]
fn an_agent_that_is_killed_while_it_releases_an_address_leaves_nothing() {
    let mut deaths = 0;
    for accesses in 0.. {
        let (tables, mut nat, others) = with_two_addresses();
        assert_eq!(tables.out(UDP, vm(7), server(53), NOW).answer, testing::NAT_BEGUN);
        let ends = |nat: &mut Nat| {
            nat.release(&[public(0)]).unwrap();
            nat.free_numbers();
            // The next address begins to get its number, or the same one gets it back.
            nat.assign(public(if accesses % 2 == 0 { 2 } else { 0 })).ok();
        };
        let is_complete = die_after(accesses, || ends(&mut nat)).is_some();
        drop(nat);
        let mut nat = Nat::adopt(&tables.regions, tables.size, NOW, Immediate).unwrap();
        check_that_the_number_is_free(&tables, &mut nat, &others);
        if is_complete {
            break;
        }
        deaths += 1;
    }
    assert!(deaths > 200, "{deaths} accesses");
}

#[test]
fn an_agent_that_is_killed_while_a_number_becomes_free_leaves_nothing() {
    let mut deaths = 0;
    for accesses in 0.. {
        let (tables, mut nat, others) = with_two_addresses();
        nat.release(&[public(0)]).unwrap();
        let mut changes = || {
            nat.free_numbers();
            nat.assign(public(3)).unwrap();
        };
        let is_complete = die_after(accesses, &mut changes).is_some();
        drop(nat);
        let mut nat = Nat::adopt(&tables.regions, tables.size, NOW, Immediate).unwrap();
        // The next agent is told which addresses are in use.
        nat.release(&[public(3)]).unwrap();
        check_that_the_number_is_free(&tables, &mut nat, &others);
        if is_complete {
            break;
        }
        deaths += 1;
    }
    assert!(deaths > 100, "{deaths} accesses");
}

#[test]
fn a_packet_that_is_killed_before_its_address_is_released_leaves_nothing() {
    for accesses in 0.. {
        let (tables, mut nat, others) = with_two_addresses();
        let packet = testing::outgoing(VNI, UDP, vm(7), server(53));
        let is_complete =
            killed(&tables, &nat_test { now: NOW, pool: tables.pool, ..packet }, accesses).is_some();
        check_that_the_number_is_free(&tables, &mut nat, &others);
        if is_complete {
            break;
        }
    }
}
