//! NAT tables in BPF maps, with packets by the test program, which does what the gateway's does. Needs root.

use super::list::tests::listed;
use super::*;
use libbpf_rs::ProgramInput;
use sluice_agent::NatAddresses;
use sluice_datapath::{ObjectName, Settings, nat_sizes};
use sluice_tables::nat::{NatRegions, NatSize, default_timeouts};
use sluice_tables::{Immediate, Memory, NatAddress, NatGateway, NodeTables, Sizes, Vip, Vrf};
use sluice_tables_testing::nat::{self as testing, nat_pool, nat_test};
use sluice_types::{MacAddr, Vni};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

const UDP: u8 = 17;
const SIZE: NatSize = NatSize { addresses: 3, block_ports: 1024 };

struct Kernel(Datapath);

impl Kernel {
    fn load() -> Self {
        let settings = Settings { object: ObjectName::NatTest, cells: 0, pin_dir: None };
        let (groups, cells) = (NatRegions::groups(SIZE).unwrap(), NatRegions::port_cells(SIZE));
        let sizes = nat_sizes(groups, cells, [100, 100]);
        Self(Datapath::load_sized(&settings, &sizes).expect("the test program loads (as root)"))
    }

    fn nat(&self) -> SharedNat {
        let regions = self.0.nat().unwrap();
        let nat = Nat::open(&regions, SIZE, &default_timeouts(), ticks_now(), Immediate).unwrap();
        SharedNat::new(nat)
    }

    /// Begins a session of a VM from port 7, at the public address with this number.
    fn begin(&self, vni: Vni, number: u16, remote_port: u16) {
        let remote = SocketAddrV4::new(Ipv4Addr::new(203, 0, 113, 9), remote_port);
        let packet = testing::outgoing(vni.get(), UDP, vm(), remote);
        let pool = nat_pool { sessions_limit: 10, blocks_limit: 1, ..testing::pool_of(&[number]) };
        let data = testing::to_bytes(&nat_test { now: ticks_now(), bytes: 100, pool, ..packet });
        let mut out = vec![0; data.len()];
        let input =
            ProgramInput { data_in: Some(&data), data_out: Some(&mut out), ..ProgramInput::default() };
        self.0.program("nat_test").unwrap().test_run(input).unwrap();
        assert_eq!(testing::from_bytes(&out).answer, testing::NAT_BEGUN);
    }
}

fn vm() -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 5), 7)
}

fn vip(last: u8) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, last).into()
}

fn public(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(198, 51, 100, last)
}

fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

/// The node's tables with two VPCs and two vIPs.
fn tables() -> NodeTables {
    let mut tables =
        NodeTables::create(Memory::anonymous(1 << 14).unwrap(), Immediate, Sizes::default()).unwrap();
    for number in [1, 2] {
        let vrf = Vrf {
            vni: vni(number),
            mtu: 1450,
            router4: None,
            router6: None,
            group: None,
            elephant_bytes: None,
        };
        tables.upsert_vrf(&vrf).unwrap();
    }
    (1..=2).for_each(|last| set_owned(&mut tables, last, true));
    tables
}

fn set_owned(tables: &mut NodeTables, last: u8, owned: bool) {
    tables.upsert_vip(&Vip { address: vip(last), mac: MacAddr::local(last.into()), owned }).unwrap();
}

/// Writes a NAT gateway of one address, as the agent does.
fn put(tables: &mut NodeTables, role: &mut RoleNat, of: Vni, at: u8, address: Ipv4Addr) -> u16 {
    let number = role.numbers(&[address]).unwrap()[0];
    let nat = NatGateway {
        vni: of,
        addresses: vec![NatAddress { address, number }],
        vip: vip(at),
        sessions: 10,
        blocks: 1,
        any_remote: false,
        shares_ports: false,
        forwards: Vec::new(),
        nat64: None,
    };
    tables.upsert_nat_gateway(&nat).unwrap();
    role.settle(tables);
    number
}

#[test]
fn sessions_end_when_their_vpc_loses_the_address() {
    let kernel = Kernel::load();
    let (nat, mut tables) = (kernel.nat(), tables());
    let mut role = RoleNat::new(Some(nat.clone()));
    let one = put(&mut tables, &mut role, vni(1), 1, public(1));
    let two = put(&mut tables, &mut role, vni(2), 2, public(2));
    let of = |number: u32| listed(&nat, &format!("vni={number}")).len();
    let begin = |remote_port| {
        kernel.begin(vni(1), one, remote_port);
        kernel.begin(vni(2), two, remote_port);
        assert_eq!((of(1), of(2)), (1, 1));
    };
    begin(53);
    role.settle(&tables);
    assert_eq!((of(1), of(2)), (1, 1));
    // The same VNIs are of other VPCs.
    role.database_changed();
    role.settle(&tables);
    assert_eq!((of(1), of(2)), (0, 0));
    begin(53);
    // Another gateway owns the vIP, also for an agent that starts: what is here are copies.
    set_owned(&mut tables, 1, false);
    role.settle(&tables);
    RoleNat::new(Some(nat.clone())).settle(&tables);
    assert_eq!((of(1), of(2)), (1, 1));
    // Another vIP has the NAT gateway, which another gateway owns.
    let units = role.units();
    put(&mut tables, &mut role, vni(2), 1, public(2));
    assert_eq!((of(1), of(2)), (1, 1));
    assert_eq!(*units.borrow(), None, "the tables may lack others");
    tables.set_applied_revision(1);
    role.settle(&tables);
    assert_eq!(*units.borrow(), Some(vec![(vni(1), vip(1)), (vni(2), vip(1))]));
    // Another VPC has the address, and an agent was killed before it settled that.
    set_owned(&mut tables, 1, true);
    role.settle(&tables);
    nat.lock().end(|_| true).unwrap();
    begin(55);
    tables.remove_nat_gateway(vni(1)).unwrap();
    put(&mut tables, &mut role, vni(2), 1, public(1));
    assert_eq!((of(1), of(2)), (0, 0));
    let numbers = |nat: &SharedNat| {
        let nat = nat.lock();
        let known: Vec<_> = nat.addresses().map(|it| (it.address, it.number, it.is_released)).collect();
        known
    };
    assert_eq!(numbers(&nat), [(public(1), one, false), (public(2), two, true)]);
    // The released number will be free.
    assert_eq!(role.addresses(), Some(NatAddresses { used: 1, total: 3 }));
    kernel.begin(vni(2), one, 56);
    tables.remove_nat_gateway(vni(2)).unwrap();
    let next = kernel.nat();
    RoleNat::new(Some(next.clone())).settle(&tables);
    assert_eq!(numbers(&next), [(public(1), one, true), (public(2), two, true)]);
    assert!(listed(&next, "").is_empty());
}

#[test]
fn a_gateway_without_nat_tables_gives_each_address_a_number() {
    let (mut role, mut tables) = (RoleNat::default(), tables());
    let one = put(&mut tables, &mut role, vni(1), 1, public(1));
    let two = put(&mut tables, &mut role, vni(2), 1, public(2));
    assert!(one != two && role.numbers(&[public(1)]) == Ok(vec![one]));
    tables.remove_nat_gateway(vni(1)).unwrap();
    role.settle(&tables);
    assert_eq!(role.numbers(&[public(3)]), Ok(vec![one]));
}

/// A minute is more than enough on any machine.
fn reach(what: &str, is_reached: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_reached() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_thread_makes_rounds_and_logs_what_this_gateway_owns() {
    let kernel = Kernel::load();
    let nat = kernel.nat();
    for number in [1, 2] {
        let at = nat.lock().assign(public(number)).unwrap();
        kernel.begin(vni(number.into()), at, 53);
    }
    let owners_of = |owned: &[u32], others: &[u32]| -> Option<Arc<Owners>> {
        let all = owned.iter().map(|of| (*of, true)).chain(others.iter().map(|of| (*of, false)));
        Some(Arc::new(all.map(|(of, is_own)| (vni(of), Some(is_own))).collect()))
    };
    let owners = Arc::new(Mutex::new(owners_of(&[1], &[2])));
    let keeper = NatKeeper::start(nat.clone(), LoggedEvents::Sessions, {
        let owners = owners.clone();
        move || owners.lock().unwrap().clone()
    })
    .unwrap();
    let reach = |what: &str, blocks: [u64; 2], sessions: [u64; 2], left: u64| {
        let rounds = lock(&keeper.status).rounds;
        reach(what, || {
            let (status, counts) = (lock(&keeper.status).clone(), nat.log.counts());
            status.rounds > rounds + 1
                && (counts.blocks, counts.sessions) == (blocks, sessions)
                && status.usage.blocks == left
        });
    };
    reach("the owned one is logged", [1, 0], [1, 0], 2);
    // The vIP of the other NAT gateway is taken over.
    *owners.lock().unwrap() = owners_of(&[1, 2], &[]);
    reach("the other one is logged", [2, 0], [2, 0], 2);
    // Another gateway has one of them, and the other one is deleted.
    *owners.lock().unwrap() = owners_of(&[], &[1]);
    reach("both are there", [2, 0], [2, 0], 2);
    nat.lock().end(|_| true).unwrap();
    reach("the end is logged of what no other gateway has", [2, 1], [2, 1], 0);
}

#[test]
fn passes_log_each_session_once() {
    let kernel = Kernel::load();
    let nat = kernel.nat();
    let number = nat.lock().assign(public(1)).unwrap();
    let buckets = nat.lock().sessions().buckets(Family::Ipv4);
    let mut log = SessionLog::new(nat.reader(), Family::Ipv4, buckets);
    let mut pass = |owned: &[Vni]| {
        let (mut events, mut owners) = (Vec::new(), Owners::from([(vni(1), Some(false))]));
        owners.extend(owned.iter().map(|vni| (*vni, Some(true))));
        while !log.step(7, &owners, &mut |change, session| events.push((change, session.remote.port()))) {}
        events.sort_by_key(|(change, port)| (*change as u8, *port));
        events
    };
    use super::ipfix::Change::{Begin, End};
    assert_eq!(pass(&[vni(1)]), []);
    kernel.begin(vni(1), number, 53);
    kernel.begin(vni(1), number, 54);
    assert_eq!(pass(&[vni(1)]), [(Begin, 53), (Begin, 54)]);
    assert_eq!(pass(&[vni(1)]), []);
    // Another session in the place of an ended one: of the same endpoints, but a later one.
    nat.lock().end(|_| true).unwrap();
    while !nat.lock().sweep(64, ticks_now(), &mut drop).unwrap().round_completed {}
    kernel.begin(vni(1), number, 54);
    assert_eq!(pass(&[vni(1)]), [(Begin, 54), (End, 53), (End, 54)]);
    // What another gateway owns now ends in its log.
    assert_eq!(pass(&[]), []);
    assert_eq!(pass(&[vni(1)]), [(Begin, 54)]);
    assert_eq!(pass(&[vni(2)]), []);
}
