//! Numbers of public addresses, and pools that change.

use super::*;
use std::collections::BTreeSet;

/// A packet of a VM of this VPC, with this pool, to a remote endpoint for each size of the pool.
fn ask(tables: &TestNat, vni: u32, inside: SocketAddrV4, numbers: &[u16]) -> nat_test {
    let nat_pool { addresses, address, .. } = testing::pool_of(numbers);
    let pool = nat_pool { addresses, address, ..limits() };
    tables.run(nat_test {
        now: NOW,
        pool,
        ..testing::outgoing(vni, UDP, inside, server(numbers.len() as u16))
    })
}

fn known(nat: &Nat) -> Vec<(u16, Ipv4Addr, bool)> {
    nat.addresses().map(|known| (known.number, known.address, known.is_released)).collect()
}

#[test]
fn a_number_is_free_after_the_sessions_of_its_address() {
    let (tables, mut nat) = TestNat::new(size(2, 1024), limits());
    assert_eq!((nat.assign(public(1)), nat.usage().blocks_total), (Ok(1), 126));
    let full = |released| Err(Error::NoNatNumber { address: public(2), total: 2, released });
    assert_eq!(nat.assign(public(2)), full(0));
    let [gone, stays] = [0, 1].map(|number| ask(&tables, VNI, vm(7 + number), &[number]));
    assert_eq!((gone.answer, stays.answer), (testing::NAT_BEGUN, testing::NAT_BEGUN));
    assert_eq!((nat.release(&[public(0)]), nat.release(&[public(0)])), (Ok(1), Ok(0)));
    // Its session has ended, and packets that still have it in their pool get nothing.
    assert_eq!(tables.back(&gone, 0, NOW).answer, testing::NAT_MISS);
    assert_eq!(ask(&tables, VNI, vm(7), &[0]).answer, testing::NAT_EXHAUSTED);
    assert_eq!(known(&nat), [(0, public(0), true), (1, public(1), false)]);
    assert_eq!(nat.assign(public(2)), full(1));
    let mut nat = Nat::adopt(&tables.regions, tables.size, NOW, Immediate).unwrap();
    assert_eq!(known(&nat), [(0, public(0), true), (1, public(1), false)]);
    let (_, events) = round(&mut nat, NOW);
    let returned =
        |event: &NatEvent| matches!(event, NatEvent::Returned(block, NOW) if block.outside == public(0));
    assert_eq!(events.iter().filter(|event| returned(event)).count(), 1);
    assert_eq!(known(&nat), [(1, public(1), false)]);
    assert_eq!(nat.assign(public(2)), Ok(0));
    assert_eq!(testing::outside_of(&ask(&tables, VNI, vm(7), &[0])).ip(), &public(2));
    assert_eq!(tables.back(&stays, 0, NOW).answer, testing::NAT_TRANSLATED);
    for refused in [Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, Ipv4Addr::new(224, 0, 0, 1)] {
        assert_eq!(nat.assign(refused), Err(Error::Invalid(format!("{refused} cannot be a public address"))));
    }
}

#[test]
fn an_address_that_another_vpc_gets_keeps_its_number_and_no_session() {
    let (tables, mut nat) = TestNat::new(size(1, 1024), limits());
    let before = ask(&tables, VNI, vm(7), &[0]);
    assert_eq!((nat.release(&[public(0)]), nat.assign(public(0))), (Ok(1), Ok(0)));
    assert_eq!(known(&nat), [(0, public(0), false)]);
    assert_eq!(tables.back(&before, 0, NOW).answer, testing::NAT_MISS);
    assert_eq!(ask(&tables, VNI + 1, vm(7), &[0]).answer, testing::NAT_BEGUN);
    assert!(nat.translations().all(|shown| shown.session.flow.scope == VNI + 1));
    // All blocks of the address are used again.
    round(&mut nat, NOW);
    let free = nat.tables.all_blocks().filter(|&id| nat.tables.word(id).is_free()).count();
    assert_eq!(free as u64, nat.usage().blocks_total - 1);
}

#[test]
fn a_pool_that_changes_moves_only_those_who_must() {
    const VMS: u32 = 600;
    let (tables, _nat) = TestNat::new(size(5, 1024), limits());
    let chosen = |numbers: &[u16]| -> Vec<u32> {
        let vm = |number| SocketAddrV4::new(Ipv4Addr::from(0x0a00_0000 + number), 9);
        (0..VMS).map(|number| ask(&tables, VNI, vm(number), numbers).address).collect()
    };
    // Choosing needs no free block, so it does not matter how many VMs have one.
    let [four, five] = [&[0, 1, 2, 3][..], &[3, 0, 4, 2, 1]].map(chosen);
    let moved = four.iter().zip(&five).filter(|(before, after)| before != after);
    let moved: Vec<_> = moved.map(|(_, after)| *after).collect();
    // A fifth of them, all to the new address. The bounds are five standard deviations.
    assert!(moved.iter().all(|after| *after == 4) && (70..=170).contains(&moved.len()), "{moved:?}");
    for address in 0..4 {
        let has = four.iter().filter(|chosen| **chosen == address).count();
        assert!((97..=203).contains(&has), "{has} of {VMS} have the address {address}");
    }
}

#[test]
fn two_gateways_give_a_vm_the_same_outside_endpoint() {
    const NUMBERS: u32 = 4;
    let [(one, _nat), (other, mut nat)] = [(); 2].map(|()| TestNat::new(size(NUMBERS, 64), limits()));
    let addresses: Vec<_> = (0..NUMBERS).map(public).collect();
    assert_eq!(nat.release(&addresses), Ok(NUMBERS as usize));
    round(&mut nat, NOW);
    for (number, address) in (0..).zip(addresses.iter().rev()) {
        assert_eq!(nat.assign(*address), Ok(number));
    }
    let mut chosen = std::collections::HashSet::new();
    for last in 0..40 {
        let inside = end([10, 0, 0, last], 7);
        let [first, second] = [&one, &other].map(|tables| tables.out(UDP, inside, server(53), NOW));
        assert_eq!((first.answer, second.answer), (testing::NAT_BEGUN, testing::NAT_BEGUN));
        assert_eq!(testing::outside_of(&first), testing::outside_of(&second));
        chosen.insert(first.address);
    }
    assert_eq!(chosen.len(), NUMBERS as usize);
}

#[test]
fn packets_claim_ports_only_in_the_share() {
    // Blocks of 1024 ports: an inside address has candidates in all four groups together.
    let (tables, mut nat) = TestNat::new(size(2, 1024), nat_pool { blocks_limit: 1, ..limits() });
    let block_of = |out: &nat_test| (*testing::outside_of(out).ip(), out.outside_port / 1024);
    let is_own = |address: Ipv4Addr, block: u16| (block + u16::from(address == public(1))).is_multiple_of(3);
    let before = tables.out(UDP, vm(7), server(53), NOW);
    let (address, block) = block_of(&before);
    // The block that the VM has is not in the share: its mapping is used, and no other port of it is claimed.
    nat.set_shares(move |of, number| is_own(of, number) && (of, number) != (address, block));
    let again = tables.out(UDP, vm(7), server(54), NOW);
    assert_eq!((again.answer, again.outside_port), (testing::NAT_BEGUN, before.outside_port));
    let other = tables.out(UDP, vm(8), server(53), NOW);
    // It does not count for the limit of blocks.
    assert_eq!((other.answer, nat.blocks().count()), (testing::NAT_BEGUN, 2));
    assert!(is_own(block_of(&other).0, block_of(&other).1) && block_of(&other) != (address, block));
    let begun: Vec<_> =
        (20..90).map(|last| tables.out(UDP, end([10, 0, 0, last], 7), server(53), NOW)).collect();
    let begun: Vec<_> = begun.iter().filter(|out| out.answer == testing::NAT_BEGUN).map(block_of).collect();
    assert!(begun.len() > 20 && begun.iter().all(|(of, number)| is_own(*of, *number)), "{begun:?}");
    // Sessions of other gateways have ports of all blocks.
    let foreign =
        (2..63).find(|number| !is_own(public(0), *number) && (public(0), *number) != (address, block));
    let ends = (end([10, 0, 0, 200], 7), server(53));
    let copied = testing::installed(VNI, UDP, ends, (0, foreign.unwrap() * 1024));
    assert_eq!(tables.run(nat_test { now: NOW, ..copied }).answer, testing::NAT_BEGUN);
    // An address that gets a number later has the share as well, and the next agent finds it.
    nat.release(&[public(0), public(1)]).unwrap();
    round(&mut nat, NOW);
    let others = |nat: &Nat| -> Vec<u32> {
        let at =
            |group: u32| group as usize * NatRegions::GROUP_BYTES + offset_of!(layout::nat_group, others);
        nat.tables.groups_of(0).map(|group| tables.regions.groups.load32(at(group))).collect()
    };
    nat.assign(public(9)).unwrap();
    assert_eq!(others(&nat), [0x6db6, 0xb6db, 0xdb6d, 0x6db6]);
    let mut nat = Nat::adopt(&tables.regions, tables.size, NOW, Immediate).unwrap();
    nat.assign(public(9)).unwrap();
    assert_ne!(others(&nat), [0; 4]);
    nat.assign(public(1)).unwrap();
    nat.set_shares(|_, _| true);
    assert_eq!(others(&nat), [0; 4]);
}

/// Other gateways have copies of the sessions of this one's blocks, and end them later.
#[test]
fn ports_of_the_share_are_held_for_some_rounds() {
    let (tables, mut nat) = TestNat::new(size(1, 1024), limits());
    // Numbers of rounds begin again meanwhile.
    nat.config.store32(offset_of!(nat_config, round), layout::NAT_ROUND_MAX - 2);
    nat.hold_ports(3);
    let own = tables.out(UDP, vm(7), server(53), NOW);
    let foreign = (2..63).find(|number| *number != own.outside_port / 1024).unwrap();
    nat.set_shares(move |_, block| block != foreign);
    let copied = testing::installed(VNI, UDP, (end([10, 0, 0, 200], 7), server(53)), (0, foreign * 1024));
    assert_eq!(tables.run(nat_test { now: NOW, ..copied }).answer, testing::NAT_BEGUN);
    assert_eq!(round(&mut nat, NOW).0.ports, 0);
    let later = NOW.wrapping_add(8 * 301);
    let mut freed = |rounds: usize| (0..rounds).map(|_| round(&mut nat, later).0.ports).collect::<Vec<_>>();
    // The copy's port is free at once, and the other one is held.
    assert_eq!(freed(2), [1, 0]);
    let again = tables.out(UDP, vm(7), server(54), later);
    assert_eq!((again.answer, again.outside_port), (testing::NAT_BEGUN, own.outside_port));
    assert_eq!(freed(1), [0]);
    let mut freed = |rounds: usize| {
        (0..rounds).map(|_| round(&mut nat, later.wrapping_add(8 * 301)).0.ports).collect::<Vec<_>>()
    };
    assert_eq!(freed(5), [0, 0, 0, 1, 0]);
    assert!(tables.is_empty());
}

#[test]
fn packets_claim_no_port_of_a_block_with_a_forwarded_one() {
    // Four groups of 16 blocks, so an inside address has candidates in half of them.
    let (tables, mut nat) = TestNat::new(size(1, 1024), nat_pool { blocks_limit: 1, ..limits() });
    let before = tables.out(UDP, vm(7), server(53), NOW);
    let block = before.outside_port / 1024;
    nat.set_forwarded([(public(0), block * 1024 + 1023), (public(1), 2048)]);
    let again = tables.out(UDP, vm(7), server(54), NOW);
    assert_eq!((again.answer, again.outside_port), (testing::NAT_BEGUN, before.outside_port));
    let other = tables.out(UDP, vm(8), server(53), NOW);
    assert_eq!(other.answer, testing::NAT_BEGUN);
    assert_ne!(other.outside_port / 1024, block);
    // Another agent, before and after it knows the shares, keeps it as well.
    let others = |nat: &Nat| (0..64).filter(|block| !nat.tables.is_own(0, *block)).collect::<Vec<_>>();
    assert_eq!(others(&nat), [block]);
    nat.set_shares(|_, block| block != 5);
    assert_eq!(others(&nat), BTreeSet::from([5, block]).into_iter().collect::<Vec<_>>());
    let mut nat = Nat::adopt(&tables.regions, tables.size, NOW, Immediate).unwrap();
    nat.set_forwarded([(public(0), 9 * 1024)]);
    assert_eq!(others(&nat), BTreeSet::from([5, 9, block]).into_iter().collect::<Vec<_>>());
    nat.set_shares(|_, block| block != 5);
    assert_eq!(others(&nat), [5, 9]);
    nat.set_forwarded([]);
    assert_eq!(others(&nat), [5]);
}

/// For a moment, packets from the Internet come with the VPC that gets an address, and the one that had it has its blocks.
#[test]
fn packets_to_the_address_of_another_vpc_change_none_of_its_sessions() {
    let (tables, nat) = TestNat::new(size(1, 1024), limits());
    let out = ask(&tables, VNI, vm(7), &[0]);
    let before: Vec<_> = nat.translations().collect();
    let pool = nat_pool { flags: testing::ANY_REMOTE, ..tables.pool };
    for remote_port in [out.remote_port, 99] {
        let other = nat_test { vni: VNI + 1, remote_port, pool, ..out };
        assert_eq!(tables.back(&other, 0, NOW + 80).answer, testing::NAT_MISS);
    }
    assert_eq!(nat.translations().collect::<Vec<_>>(), before);
}

/// Counts how often the agent waits for packets.
#[derive(Clone, Default)]
struct Waits(std::sync::Arc<std::sync::atomic::AtomicU32>);

impl Grace for Waits {
    fn wait(&self) -> Result<(), crate::grace::GraceError> {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }
}

#[test]
fn several_addresses_are_released_at_once_and_without_blocks_no_session_is_looked_at() {
    let waits = Waits::default();
    let (tables, mut nat) = TestNat::with_grace(size(4, 1024), limits(), 300, waits.clone());
    let mut counted = 0;
    let mut waited = || {
        let before = std::mem::replace(&mut counted, waits.0.load(std::sync::atomic::Ordering::Relaxed));
        counted - before
    };
    let begun = [0, 1, 2].map(|number| ask(&tables, VNI, vm(7 + number), &[number]));
    waited();
    // An address without blocks, and one without a number.
    assert_eq!(nat.release(&[public(3), public(9)]), Ok(1));
    assert_eq!((nat.release(&[public(3)]), waited()), (Ok(0), 1));
    assert_eq!((nat.release(&[public(0), public(1)]), waited()), (Ok(2), 2));
    assert_eq!(nat.translations().map(|shown| *shown.outside.ip()).collect::<Vec<_>>(), [public(2)]);
    assert_eq!(tables.back(&begun[2], 0, NOW).answer, testing::NAT_TRANSLATED);
    assert_eq!((nat.end(|block| block.outside == public(0)), waited()), (Ok(0), 1));
    assert_eq!((nat.end(|block| block.outside == public(2)), waited()), (Ok(1), 2));
    assert_eq!(nat.translations().count(), 0);
    round(&mut nat, NOW);
    assert_eq!(nat.addresses().count(), 1);
    assert!(tables.is_empty());
}
