//! The table of sessions in BPF maps, by the packets' code in the test program, against the naive table of `crates/nat-sync`; and the
//! gateway's program. Needs root.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU16;
use std::rc::Rc;

use libbpf_rs::ProgramInput;
use sluice_datapath::{Datapath, ObjectName, Settings, nat_sizes};
use sluice_tables::nat::{Nat, NatRegions, NatSize, default_timeouts};
use sluice_tables::{Immediate, NatAddress, NatGateway, NodeTables, Sizes, Vip, Vrf};
use sluice_tables_testing::nat::{self as testing, nat_test};
use sluice_types::{MacAddr, NatSeed};

use super::*;
use crate::nat::RoleNat;
use crate::nat::naive::{Key, Table, key, public};

const UDP: u8 = 17;
/// Of UDP, in ticks.
const TIMEOUT: u32 = 8 * 300;
const SIZE: NatSize = NatSize { addresses: 2, block_ports: 64 };
const BUCKETS: u32 = 100;

/// Loads programs with the maps of source NAT.
fn load(object: ObjectName) -> Datapath {
    let (groups, cells) = (NatRegions::groups(SIZE).unwrap(), NatRegions::port_cells(SIZE));
    let settings = Settings { object, cells: 1 << 14, pin_dir: None };
    Datapath::load_sized(&settings, &nat_sizes(groups, cells, [BUCKETS; 2]))
        .expect("the programs load (as root)")
}

/// The packets' side of the tables, by the test program, and the time.
#[derive(Clone)]
struct Host {
    program: Rc<Datapath>,
    /// By number.
    addresses: Vec<Ipv4Addr>,
    now: Rc<Cell<u32>>,
}

impl Host {
    fn at(&self) -> u32 {
        self.now.get()
    }

    fn run(&self, mut packet: nat_test) -> nat_test {
        packet.now = self.at();
        let numbers: Vec<u16> = (0..self.addresses.len() as u16).collect();
        packet.pool = testing::pool_of(&numbers);
        let data = testing::to_bytes(&packet);
        let mut out = vec![0; data.len()];
        let input =
            ProgramInput { data_in: Some(&data), data_out: Some(&mut out), ..ProgramInput::default() };
        self.program.program("nat_test").unwrap().test_run(input).unwrap();
        testing::from_bytes(&out)
    }
}

impl Installer for Host {
    fn install_copies(&mut self, copies: &mut [nat_copy]) {
        for copy in copies {
            // As the program nat_copy does.
            let number = self.addresses.iter().position(|address| u32::from(*address) == copy.outside);
            let Some(number) = number else {
                copy.answer = testing::NAT_NO_ADDRESS;
                continue;
            };
            let end = |address: u32, port| SocketAddrV4::new(address.into(), port);
            let [high, low] = copy.inside;
            let inside: IpAddr = if copy.vni & layout::NAT_INSIDE_IPV6 == 0 {
                Ipv4Addr::from(low as u32).into()
            } else {
                Ipv6Addr::from(u128::from(high) << 64 | u128::from(low)).into()
            };
            let ends = (SocketAddr::new(inside, copy.inside_port), end(copy.remote, copy.remote_port));
            let vni = copy.vni & layout::NAT_VNI_MASK;
            let asked = testing::installed(vni, copy.protocol, ends, (number as u32, copy.outside_port));
            let (flags, state) = (copy.flags, copy.state.into());
            let answered = self.run(nat_test { flags, state, idle: copy.idle, since: copy.since, ..asked });
            (copy.answer, copy.bucket, copy.slot) = (answered.answer, answered.bucket, answered.slot);
        }
    }

    fn now(&self) -> u32 {
        self.at()
    }
}

/// Empty tables with the public addresses of the VPCs 1 and 2.
fn copies(program: &Rc<Datapath>) -> (Copies<Host>, Host) {
    let now = Rc::new(Cell::new(0xffff_f000));
    let regions = program.nat().unwrap();
    let mut nat = Nat::create(&regions, SIZE, 5, &default_timeouts(), now.get(), Immediate).unwrap();
    let addresses: Vec<_> = [1, 2].map(|number| public(vni(number))).to_vec();
    for address in &addresses {
        nat.assign(*address).unwrap();
    }
    let host = Host { program: Rc::clone(program), addresses, now };
    (Copies::new(SharedNat::new(nat), host.clone()), host)
}

fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

/// A session of VM `vm` of a VPC to remote port `to`. Each VM has a block of its own, and every third one an address of IPv6.
fn record(of: u32, vm: u16, to: u16, port: u16) -> Record {
    let remote_began = (vm + to).is_multiple_of(3);
    Record {
        vni: vni(of),
        protocol: UDP,
        inside: if vm % 3 == 2 {
            SocketAddr::new(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, vm + 1).into(), 5000)
        } else {
            SocketAddr::new(Ipv4Addr::new(10, 0, 0, vm as u8 + 1).into(), 5000)
        },
        remote: SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 1), 50 + to),
        outside: SocketAddrV4::new(public(vni(of)), 2048 + 64 * vm + port),
        state: State::new(if remote_began { State::FROM_REMOTE } else { 0 }).unwrap(),
        idle: 0,
    }
}

fn with_bits(record: Record, bits: u8) -> Record {
    Record { state: State::new(record.state.bits() | bits).unwrap(), ..record }
}

fn mark(number: u16, since: u32) -> Mark {
    Mark { number: NonZeroU16::new(number).unwrap(), since }
}

fn read_all(table: &dyn SessionTable) -> BTreeMap<Key, Record> {
    let (mut records, mut part) = (BTreeMap::new(), Some(0));
    while let Some(number) = part {
        let mut read = 0;
        part = table.read(number, &mut |record| {
            read += 1;
            assert!(records.insert(key(&record), record).is_none(), "read twice: {record:?}");
        });
        assert!(read <= PART_SESSIONS_MAX);
    }
    records
}

/// Ends what a pass has shown not to exist, of which the sender owns all NAT gateways.
fn end_all(table: &mut dyn SessionTable, mark: Mark, units: &dyn Fn(Vni) -> bool) {
    end_trusted(table, mark, units, &|_| true);
}

fn end_trusted(
    table: &mut dyn SessionTable,
    mark: Mark,
    units: &dyn Fn(Vni) -> bool,
    trusted: &dyn Fn(Vni) -> bool,
) {
    let mut part = Some(0);
    while let Some(number) = part {
        part = table.end_unseen(number, &Unseen { units, trusted, mark });
    }
}

/// The numbers of splitmix64 from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// A session of a few, with any state and idle time. Times are multiples of 20 ticks, because packets move expiries only by more than
/// a second.
fn any_record(random: &mut Random) -> Record {
    let mut any = |bound| random.below(bound) as u16;
    let record = record(1 + u32::from(any(2)), any(4), any(4), any(2));
    let bits = [0, State::REPLIED, State::REPLIED | State::CONFIRMED, State::FIN, State::FIN_OF_REPLY];
    let record = with_bits(record, bits[usize::from(any(5))]);
    // The ports of half of the VMs are shared, by two inside ports each. These have remote endpoints of their own.
    let record = if record.outside.port() / 64 % 2 == 1 {
        let inside = SocketAddr::new(record.inside.ip(), 5000 + record.remote.port() % 2);
        with_bits(Record { inside, ..record }, State::SHARED)
    } else {
        record
    };
    Record { idle: 20 * random.below(20) as u32, ..record }
}

/// A packet of a session in both tables, from one of its endpoints.
fn touch(host: &Host, table: &mut Table, records: &BTreeMap<Key, Record>, random: &mut Random) {
    let Some(record) = records.values().nth(random.below(40) as usize) else { return };
    let of_remote = random.below(2) == 0;
    let packet = if of_remote {
        let number = host.addresses.iter().position(|address| address == record.outside.ip()).unwrap();
        testing::incoming(record.vni.get(), number as u32, UDP, record.outside, record.remote)
    } else {
        testing::outgoing(record.vni.get(), UDP, record.inside, record.remote)
    };
    assert_eq!(host.run(packet).answer, testing::NAT_TRANSLATED, "{record:?}");
    let state = record.state.bits();
    let is_original = (state & State::FROM_REMOTE != 0) == of_remote;
    let bits = match (is_original, state & State::REPLIED != 0) {
        (false, _) => State::REPLIED,
        (true, true) => State::CONFIRMED,
        (true, false) => 0,
    };
    table.touch(&key(record), bits);
}

fn run(program: &Rc<Datapath>, seed: u64) -> [usize; 3] {
    let mut random = Random(seed);
    let (mut copies, host) = copies(program);
    let mut table = Table::new(TIMEOUT);
    let mut pass = None;
    let mut counts = [0; 3];
    for step in 0..300 {
        table.now = host.at();
        let present = read_all(&copies);
        match (random.below(12), pass) {
            (0, None) => pass = Some(mark(step + 1, host.at())),
            (0, Some(mark)) => {
                let only = vni(1 + random.below(2) as u32);
                end_all(&mut copies, mark, &|unit| unit == only);
                end_all(&mut table, mark, &|unit| unit == only);
                counts[0] += present.len() - read_all(&copies).len();
                pass = None;
            }
            (1, _) => {
                host.now.set(host.at().wrapping_add(20 * random.below(20) as u32));
                table.now = host.at();
                table.expire();
            }
            (2..5, _) => touch(&host, &mut table, &present, &mut random),
            _ => {
                let record = any_record(&mut random);
                let source = pass.map_or(Source::Other, Source::Owner);
                assert_eq!(copies.install(&record, source), Installed::Done, "{record:?}");
                assert_eq!(table.install(&record, source), Installed::Done);
                let before = present.get(&key(&record));
                counts[1] += usize::from(before.is_some_and(|before| before.outside != record.outside));
                counts[2] += usize::from(before.is_none());
            }
        }
        let expected: BTreeMap<_, _> =
            table.sessions.keys().map(|key| (*key, table.record(key).unwrap())).collect();
        assert_eq!(read_all(&copies), expected, "seed {seed}, step {step}");
    }
    counts
}

#[test]
fn nat_tables_do_as_the_naive_table() {
    let program = Rc::new(load(ObjectName::NatTest));
    let sum = (0..60)
        .map(|seed| run(&program, seed))
        .fold([0; 3], |sum, counts| [0, 1, 2].map(|at| sum[at] + counts[at]));
    assert!(sum.iter().all(|count| *count > 300), "{sum:?} ended, moved, added");
}

#[test]
fn a_port_that_the_owner_has_given_away_ends_the_sessions_of_others() {
    let (mut copies, host) = copies(&Rc::new(load(ObjectName::NatTest)));
    let first = record(1, 0, 0, 0);
    let other_port = Record { outside: record(1, 0, 0, 1).outside, ..record(1, 0, 1, 0) };
    let elsewhere = record(1, 1, 0, 0);
    for kept in [first, other_port, elsewhere] {
        assert_eq!(copies.install(&kept, Source::Other), Installed::Done);
    }
    // Another port of the same VM, and another VM: only the owner may give a port or a block away.
    let same_vm = Record { inside: SocketAddr::new(first.inside.ip(), 6000), ..first };
    let other_vm = Record { inside: record(1, 2, 0, 0).inside, ..first };
    for (taker, left) in [(same_vm, vec![other_port, elsewhere]), (other_vm, vec![elsewhere])] {
        // The sessions are older than the pass.
        host.now.set(host.at().wrapping_add(20));
        assert_eq!(copies.install(&taker, Source::Other), Installed::Refused);
        let number = taker.inside.port();
        // An earlier pass of the same number was never completed.
        copies.install(
            &Record { outside: elsewhere.outside, ..taker },
            Source::Owner(mark(number, host.at() - 1)),
        );
        assert_eq!(copies.taken_ports, 1);
        assert_eq!(copies.install(&taker, Source::Owner(mark(number, host.at()))), Installed::Later);
        // What is noted is ended by the pass that says so.
        end_all(&mut copies, mark(number + 1, host.at()), &|_| false);
        let before = read_all(&copies).len();
        // A second session at the same port is no second port. The sender has lost the NAT gateway meanwhile.
        let to_other = Record { remote: elsewhere.remote, ..taker };
        for _ in 0..2 {
            copies.install(&to_other, Source::Owner(mark(number, host.at())));
            assert_eq!((copies.taken_ports, copies.taken.len()), (1, 1));
        }
        end_trusted(&mut copies, mark(number, host.at()), &|_| false, &|unit| unit == vni(2));
        assert_eq!(read_all(&copies).len(), before);
        assert!(copies.taken.is_empty() && copies.taken_ports == 0);
        copies.install(&taker, Source::Owner(mark(number, host.at())));
        end_all(&mut copies, mark(number, host.at()), &|_| false);
        assert!(before > left.len());
        let found = read_all(&copies).into_values().map(|record| Record { idle: 0, ..record });
        assert_eq!(found.collect::<Vec<_>>(), left);
        assert!(copies.taken.is_empty() && copies.taken_ports == 0);
        // A round frees the port, or the block.
        let mut rounds = 0;
        while rounds < 2 {
            rounds += u32::from(copies.nat.lock().sweep(64, host.at(), &mut drop).unwrap().round_completed);
        }
        let installed = copies.install(&taker, Source::Owner(mark(9, host.at())));
        assert_eq!(installed, Installed::Done);
        copies.nat.lock().end(|block| block.inside == taker.inside.ip()).unwrap();
        (0..2).for_each(
            |_| while !copies.nat.lock().sweep(64, host.at(), &mut drop).unwrap().round_completed {},
        );
        copies.install(&first, Source::Other);
        copies.install(&other_port, Source::Other);
    }
}

/// A tuple belongs to one inside endpoint, and a port is shared for all sessions or for none.
#[test]
fn a_tuple_that_the_owner_has_given_away_ends_the_session_that_has_it() {
    let (mut copies, host) = copies(&Rc::new(load(ObjectName::NatTest)));
    let shared = |record: Record| with_bits(record, State::SHARED);
    let of_port =
        |record: Record, port| Record { inside: SocketAddr::new(record.inside.ip(), port), ..record };
    let [first, beside] = [shared(record(1, 0, 0, 0)), shared(of_port(record(1, 0, 1, 0), 6000))];
    let alone = record(1, 0, 3, 1);
    for kept in [first, beside, alone] {
        assert_eq!(copies.install(&kept, Source::Other), Installed::Done);
    }
    let same = |found: BTreeMap<Key, Record>| -> Vec<_> {
        found.into_values().map(|record| Record { idle: 0, ..record }).collect()
    };
    let all = same(read_all(&copies));
    assert_eq!(all.len(), 3);
    let other_tuple = of_port(first, 7000);
    let not_shared = Record { state: State::default(), ..of_port(record(1, 0, 5, 0), 7000) };
    let now_shared = shared(of_port(record(1, 0, 5, 1), 7000));
    for (taker, left) in
        [(other_tuple, vec![alone, beside]), (not_shared, vec![alone]), (now_shared, vec![first, beside])]
    {
        host.now.set(host.at().wrapping_add(20));
        assert_eq!(copies.install(&taker, Source::Other), Installed::Refused);
        assert_eq!(copies.install(&taker, Source::Owner(mark(1, host.at()))), Installed::Later);
        end_all(&mut copies, mark(1, host.at()), &|_| false);
        assert_eq!(same(read_all(&copies)), left, "{taker:?}");
        // A round frees what the next pass needs.
        while !copies.nat.lock().sweep(64, host.at(), &mut drop).unwrap().round_completed {}
        while !copies.nat.lock().sweep(64, host.at(), &mut drop).unwrap().round_completed {}
        assert_eq!(copies.install(&taker, Source::Owner(mark(2, host.at()))), Installed::Done);
        copies.nat.lock().end(|_| true).unwrap();
        (0..2).for_each(
            |_| while !copies.nat.lock().sweep(64, host.at(), &mut drop).unwrap().round_completed {},
        );
        for kept in [first, beside, alone] {
            assert_eq!(copies.install(&kept, Source::Other), Installed::Done);
        }
        assert_eq!(same(read_all(&copies)), all);
    }
}

#[test]
fn a_port_that_was_given_away_does_not_end_what_had_packets_since_the_pass_began() {
    let (mut copies, host) = copies(&Rc::new(load(ObjectName::NatTest)));
    let since = host.at();
    host.now.set(since.wrapping_add(20));
    let present = record(1, 0, 0, 0);
    assert_eq!(copies.install(&present, Source::Other), Installed::Done);
    let taker = Record { inside: record(1, 2, 0, 0).inside, ..present };
    for (since, left) in [(since, 1), (host.at().wrapping_add(20), 0)] {
        assert_eq!(copies.install(&taker, Source::Owner(mark(1, since))), Installed::Later);
        end_all(&mut copies, mark(1, since), &|_| false);
        assert_eq!(read_all(&copies).len(), left);
    }
}

#[test]
fn another_secret_forgets_copies_and_marks() {
    let (mut copies, host) = copies(&Rc::new(load(ObjectName::NatTest)));
    assert!(!copies.was_emptied());
    let session = record(1, 0, 0, 0);
    assert_eq!(copies.install(&session, Source::Owner(mark(1, host.at()))), Installed::Done);
    assert_eq!(copies.marks.iter().flatten().filter(|mark| **mark == 1).count(), 1);
    let taker = Record { inside: record(1, 2, 0, 0).inside, ..session };
    copies.install(&taker, Source::Owner(mark(1, host.at())));
    let mut role = RoleNat::new(Some(copies.nat.clone()));
    // The same secret as before changes nothing.
    for (seed, is_new) in [(5, false), (6, true), (6, false)] {
        role.set_seed(NatSeed::new(seed).unwrap());
        assert_eq!(copies.was_emptied(), is_new, "{seed}");
    }
    assert!(copies.marks.iter().flatten().all(|mark| *mark == 0));
    assert!(copies.taken.is_empty() && copies.taken_ports == 0);
    assert!(read_all(&copies).is_empty());
}

#[test]
fn what_cannot_be_installed_says_why() {
    let (mut copies, host) = copies(&Rc::new(load(ObjectName::NatTest)));
    let record = record(1, 0, 0, 0);
    let unknown = SocketAddrV4::new(Ipv4Addr::new(203, 0, 113, 200), 2048);
    let expired = Record { idle: TIMEOUT, remote: unknown, ..record };
    let answers = copies.install_all(&[
        (record, Source::Other),
        (Record { outside: unknown, ..record }, Source::Other),
        (Record { protocol: 132, ..record }, Source::Other),
        (expired, Source::Other),
        // The owner has it still, so this gateway has not all copies.
        (expired, Source::Owner(mark(1, host.at()))),
    ]);
    assert_eq!(
        answers,
        [Installed::Done, Installed::Later, Installed::Refused, Installed::Done, Installed::Later]
    );
    assert_eq!(read_all(&copies).into_values().collect::<Vec<_>>(), [record]);
}

/// The gateway's program finds the number of an address by the node's tables.
#[test]
fn the_program_of_the_gateway_installs_sessions_of_nat_gateways() {
    let datapath = load(ObjectName::Gateway);
    let regions = datapath.nat().unwrap();
    let mut nat = Nat::create(&regions, SIZE, 5, &default_timeouts(), ticks_now(), Immediate).unwrap();
    let mut tables = NodeTables::create(datapath.memory().unwrap(), Immediate, Sizes::default()).unwrap();
    let vip: IpAddr = Ipv4Addr::new(192, 0, 2, 1).into();
    tables.upsert_vip(&Vip { address: vip, mac: MacAddr::local(1), owned: false }).unwrap();
    for number in [2, 1] {
        let vrf = Vrf {
            vni: vni(number),
            mtu: 1450,
            router4: None,
            router6: None,
            group: None,
            elephant_bytes: None,
        };
        tables.upsert_vrf(&vrf).unwrap();
        let address = public(vni(number));
        let addresses = vec![NatAddress { address, number: nat.assign(address).unwrap() }];
        let of = vni(number);
        let gateway = NatGateway {
            vni: of,
            addresses,
            vip,
            sessions: 10,
            blocks: 1,
            any_remote: false,
            shares_ports: false,
            forwards: Vec::new(),
            nat64: None,
        };
        tables.upsert_nat_gateway(&gateway).unwrap();
    }
    let mut copies = Copies::new(SharedNat::new(nat), datapath.nat_copier().unwrap());
    // More than the program takes at once. Another VPC has the address of the last but one, and no VPC that of the last one.
    let mut records: Vec<_> =
        (0..40).map(|number| Record { idle: 80, ..record(1 + number % 2, 0, number as u16, 0) }).collect();
    records[38].outside.set_ip(public(vni(2)));
    records[39].outside.set_ip(public(vni(3)));
    let asked: Vec<_> = records.iter().map(|record| (*record, Source::Owner(mark(1, ticks_now())))).collect();
    let answers = copies.install_all(&asked);
    assert_eq!(answers[..38], [Installed::Done; 38]);
    assert_eq!(answers[38..], [Installed::Later; 2]);
    let found = read_all(&copies);
    assert_eq!(found.len(), 38);
    for record in &records[..38] {
        let found = found[&key(record)];
        assert!((80..800).contains(&found.idle), "{found:?}");
        assert_eq!(Record { idle: 80, ..found }, *record);
    }
    // They have the mark of the pass, and those of the VPC that another pass has not ends.
    end_all(&mut copies, mark(1, ticks_now()), &|_| true);
    assert_eq!(read_all(&copies).len(), 38);
    end_all(&mut copies, mark(2, ticks_now()), &|unit| unit == vni(2));
    assert_eq!(read_all(&copies).len(), 19);
}
