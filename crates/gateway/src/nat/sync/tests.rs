//! Gateways that copy sessions, on virtual time with naive tables, and two threads with sockets.

use super::peer::{Event, SyncPeer};
use super::*;
use crate::nat::naive::{Key, Table, public};
use crate::ownership::{GatewayPlan, Now, PlannedMember, PlannedVip};
use sluice_cluster::{Contacts, VipId};
use sluice_envelope::ClusterKey;
use sluice_nat_sync::{Installed, Record, Source, Unseen};
use sluice_types::{ClusterId, MacAddr};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

const WALL_MS: u64 = 1_700_000_000_000;
const SESSIONS: u16 = 200;

fn id(at: usize) -> GatewayId {
    GatewayId::new(at as u64 + 1)
}

fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

fn vip(last: u8) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, 100 + last).into()
}

fn keys(number: u8) -> KeyRing {
    let secret = std::array::from_fn(|i| i as u8 + number);
    KeyRing::new(vec![ClusterKey::new(number.into(), &secret, 0, u64::MAX).unwrap()]).unwrap()
}

/// A session of the only VPC that has some.
fn session(port: u16) -> Key {
    let inside = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 5), 5000).into();
    Key { vni: vni(1), protocol: 17, inside, remote: SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 9), port) }
}

/// A table with sessions, as their owner has it.
fn filled() -> Table {
    let mut table = Table::new(480);
    let begun = (0..SESSIONS).filter_map(|port| table.begin(session(port), id(0), &[id(0)], 64)).count();
    assert_eq!(begun, usize::from(SESSIONS));
    table
}

/// The cluster as gateway `at` sees it: `owner` has both vIPs.
fn view(at: usize, vteps: &[Vteps], owner: usize) -> ClusterView {
    let member = |at: usize| {
        let Vteps { v4: vtep4, v6: vtep6 } = vteps[at];
        PlannedMember { gateway: id(at), vtep4, vtep6, draining: false }
    };
    let members = (0..vteps.len()).map(member).collect();
    let plan = GatewayPlan {
        cluster: ClusterId::new(1),
        revision: 1,
        vips: Vec::new(),
        members,
        hello_interval_ms: 4,
    };
    let mutual = (0..vteps.len()).filter(|other| *other != at).map(id).collect();
    let contacts = Contacts { mutual, has_heir: true, ..Contacts::default() };
    let owners = BTreeMap::from([1, 2].map(|last| (vip(last), id(owner))));
    ClusterView { plan: Some(plan), owners, contacts, ..ClusterView::default() }
}

/// Two NAT gateways, and one whose vIP has no owner.
fn units() -> NatUnits {
    vec![(vni(1), vip(1)), (vni(2), vip(2)), (vni(3), vip(3))]
}

struct World {
    now_us: u64,
    vteps: Vec<Vteps>,
    peers: Vec<(SyncPeer, Table)>,
}

impl World {
    /// Three gateways, of which the last one has no IPv4 address. They know nothing yet.
    fn new() -> Self {
        let vteps = |at: u8| Vteps {
            v4: (at < 2).then_some(Ipv4Addr::new(192, 0, 2, 1 + at)),
            v6: Some(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1 + u16::from(at))),
        };
        let vteps: Vec<Vteps> = (0..3).map(vteps).collect();
        let now = Now { boot_us: 0, wall_ms: WALL_MS };
        let peer = |at: usize| SyncPeer::new(id(at), vteps[at], BootId::random().unwrap(), now);
        let peers = vec![(peer(0), filled()), (peer(1), Table::new(480)), (peer(2), Table::new(480))];
        Self { now_us: 0, vteps, peers }
    }

    fn feed(&mut self, at: usize, event: Event<'_>) {
        let now = Now { boot_us: self.now_us, wall_ms: WALL_MS + self.now_us / 1_000 };
        let (peer, table) = &mut self.peers[at];
        for (to, packet) in peer.handle(now, event, table) {
            if let Some(to_at) = self.vteps.iter().position(|vteps| vteps.addresses().any(|it| it == to)) {
                self.feed(to_at, Event::Datagram { local: to, packet: &packet });
            }
        }
    }

    fn set_owner(&mut self, owner: usize) {
        (0..3).for_each(|at| self.feed(at, Event::View(Box::new(view(at, &self.vteps, owner)))));
    }

    fn pass_ms(&mut self, millis: u64) {
        for _ in 0..millis / 10 {
            self.now_us += 10_000;
            (0..3).for_each(|at| self.feed(at, Event::Timer));
        }
    }

    fn complete(&self) -> Vec<bool> {
        self.peers.iter().map(|(peer, _)| peer.is_complete()).collect()
    }

    fn sessions(&self) -> Vec<usize> {
        self.peers.iter().map(|(_, table)| table.sessions.len()).collect()
    }
}

/// The thread of the NAT tables asks for it ten times a second.
#[test]
fn the_map_of_owners_is_the_same_until_they_change() {
    let mut world = World::new();
    let translated = |world: &World| world.peers[0].0.status().owners;
    world.set_owner(0);
    assert_eq!(translated(&world), None, "the NAT gateways are not known");
    world.feed(0, Event::Units(units()));
    let first = translated(&world).expect("it is known");
    assert_eq!(*first, Owners::from([(vni(1), Some(true)), (vni(2), Some(true)), (vni(3), None)]));
    world.set_owner(0);
    world.feed(0, Event::Units(units()));
    world.pass_ms(100);
    assert!(Arc::ptr_eq(&first, &translated(&world).unwrap()), "nothing has changed");
    world.set_owner(1);
    let moved = translated(&world).unwrap();
    assert_eq!(*moved, Owners::from([(vni(1), Some(false)), (vni(2), Some(false)), (vni(3), None)]));
    world.feed(0, Event::Units(units()[..1].to_vec()));
    assert_eq!(*translated(&world).unwrap(), Owners::from([(vni(1), Some(false))]));
}

#[test]
fn gateways_copy_what_the_owner_has_and_say_when_they_have_it() {
    let mut world = World::new();
    (0..2).for_each(|at| world.feed(at, Event::Keys(keys(3))));
    // The last gateway missed a rotation.
    world.feed(2, Event::Keys(keys(9)));
    (0..3).for_each(|at| world.feed(at, Event::Units(units())));
    world.pass_ms(100);
    assert_eq!(world.complete(), [false; 3], "without a plan nobody knows");
    world.set_owner(0);
    assert_eq!(world.complete(), [true, false, false]);
    world.pass_ms(2_000);
    assert_eq!(world.complete(), [true, true, false]);
    assert!(world.peers[2].0.status().counts.refused["unknown_key"] > 0);
    world.feed(2, Event::Keys(keys(3)));
    world.pass_ms(4_000);
    assert_eq!((world.complete(), world.sessions()), (vec![true; 3], vec![usize::from(SESSIONS); 3]));
    assert_eq!(world.peers[2].1.sessions[&session(7)].outside.ip(), &public(vni(1)));
    let [owner, copy, _] = [0, 1, 2].map(|at: usize| world.peers[at].0.status());
    assert!(
        owner.counts.sessions_sent >= 2 * u64::from(SESSIONS)
            && owner.counts.bytes_sent > 26 * owner.counts.sessions_sent
    );
    assert!(copy.sessions.installed >= u64::from(SESSIONS) && copy.sessions.passes_received > 0);
    let shown = copy.copies.iter().map(|it| (it.vni, it.vip, it.owner, it.is_own, it.complete));
    let of = |number: u32, owner, complete| (vni(number), Some(vip(number as u8)), owner, false, complete);
    assert!(shown.eq([of(1, Some(id(0)), true), of(2, Some(id(0)), true), of(3, None, false)]));
    // The owner changes: the new one has everything, and so have the others of it.
    world.set_owner(1);
    assert_eq!(
        world.complete(),
        [false, true, true],
        "the old owner may have missed what the new one begins"
    );
    world.pass_ms(2_000);
    assert_eq!((world.complete(), world.sessions()), (vec![true; 3], vec![usize::from(SESSIONS); 3]));
}

#[test]
fn copies_are_incomplete_from_when_their_table_was_emptied_until_the_next_pass() {
    let mut world = World::new();
    (0..3).for_each(|at| world.feed(at, Event::Keys(keys(3))));
    (0..3).for_each(|at| world.feed(at, Event::Units(units())));
    world.set_owner(0);
    world.pass_ms(4_000);
    assert_eq!(world.complete(), [true; 3]);
    for at in [0, 1] {
        world.peers[at].1.emptied = true;
    }
    world.peers[1].1.sessions.clear();
    let now = Now { boot_us: world.now_us, wall_ms: WALL_MS };
    for at in 0..3 {
        let (peer, table) = &mut world.peers[at];
        // What it sends gets lost.
        peer.handle(now, Event::Timer, table);
    }
    assert_eq!(world.complete(), [true, false, true], "an owner has what it has");
    world.pass_ms(4_000);
    assert_eq!((world.complete(), world.sessions()), (vec![true; 3], vec![usize::from(SESSIONS); 3]));
}

#[test]
fn gateway_that_owns_nat_gateways_without_an_heir_is_unprotected() {
    let mut world = World::new();
    let mut alone = view(0, &world.vteps, 0);
    alone.contacts.has_heir = false;
    world.feed(0, Event::Units(units()));
    world.feed(0, Event::View(Box::new(alone)));
    assert!(world.peers[0].0.status().is_unprotected());
    world.feed(0, Event::View(Box::new(view(0, &world.vteps, 0))));
    assert!(!world.peers[0].0.status().is_unprotected());
}

#[test]
fn owner_that_does_not_translate_is_not_waited_for() {
    let mut world = World::new();
    world.feed(1, Event::Units(units()));
    let mut seen = view(1, &world.vteps, 0);
    world.feed(1, Event::View(Box::new(seen.clone())));
    assert!(!world.peers[1].0.is_complete());
    seen.contacts.without_nat = vec![id(0)];
    world.feed(1, Event::View(Box::new(seen)));
    assert!(world.peers[1].0.is_complete());
}

/// Catches copies that count as complete before it is known who owns the vIPs.
#[test]
fn owner_that_is_not_known_may_have_sessions() {
    let mut world = World::new();
    world.feed(1, Event::Units(units()));
    let mut seen = ClusterView { owners: BTreeMap::new(), ..view(1, &world.vteps, 0) };
    world.feed(1, Event::View(Box::new(seen.clone())));
    assert!(world.peers[1].0.is_complete(), "no vIP of the cluster is known");
    let planned = PlannedVip { slot: VipId::new(0).unwrap(), address: vip(1), mac: MacAddr::local(1) };
    seen.plan.as_mut().unwrap().vips.push(planned);
    world.feed(1, Event::View(Box::new(seen)));
    assert!(!world.peers[1].0.is_complete());
}

/// A table that the test sees as well.
#[derive(Clone)]
struct Shared(Arc<Mutex<Table>>);

impl Shared {
    fn with<T>(&self, action: impl FnOnce(&mut Table) -> T) -> T {
        action(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl SessionTable for Shared {
    fn now(&self) -> u32 {
        self.with(|table| table.now())
    }

    fn read(&self, part: u64, visit: &mut dyn FnMut(Record)) -> Option<u64> {
        self.with(|table| table.read(part, visit))
    }

    fn install(&mut self, record: &Record, source: Source) -> Installed {
        self.with(|table| table.install(record, source))
    }

    fn end_unseen(&mut self, part: u64, unseen: &Unseen) -> Option<u64> {
        self.with(|table| table.end_unseen(part, unseen))
    }
}

/// Needs root, for a network namespace with the addresses.
#[test]
fn two_threads_copy_over_their_sockets() {
    let run = || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        let addresses = ["192.0.2.1/32", "192.0.2.2/32", "2001:db8::1/128 nodad", "2001:db8::2/128 nodad"];
        let added = addresses.map(|address| format!("address add {address} dev lo"));
        for arguments in ["link set lo up"].into_iter().chain(added.iter().map(String::as_str)) {
            let done = std::process::Command::new("ip").args(arguments.split(' ')).status().unwrap();
            assert!(done.success(), "ip {arguments}");
        }
        copy_over_sockets([1, 2].map(|last| Vteps { v4: Some(Ipv4Addr::new(192, 0, 2, last)), v6: None }));
        let v6 = |last| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last);
        copy_over_sockets([1, 2].map(|last| Vteps { v4: None, v6: Some(v6(last)) }));
    };
    std::thread::spawn(run).join().unwrap();
}

fn copy_over_sockets(vteps: [Vteps; 2]) {
    let tables = [filled(), Table::new(480)].map(|table| Shared(Arc::new(Mutex::new(table))));
    let start = |at: usize| {
        let table = Box::new(tables[at].clone());
        let sync = NatSync::start(SyncConfig { own: id(at), vteps: vteps[at], port: 4799, table }).unwrap();
        sync.set_keys(keys(3));
        sync.set_units(units());
        sync.set_view(view(at, &vteps, 0));
        sync
    };
    let threads = [0, 1].map(start);
    // A minute is more than enough on any machine.
    let deadline = Instant::now() + Duration::from_secs(60);
    while !threads.iter().all(|thread| *thread.complete().borrow()) {
        assert!(Instant::now() < deadline, "{:?}", threads.each_ref().map(|it| lock(&it.status).clone()));
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(threads);
    assert_eq!(tables[1].with(|table| table.sessions.len()), usize::from(SESSIONS));
}
