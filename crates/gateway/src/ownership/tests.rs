//! Gateways and their controller over datagrams that arrive a tenth of a
//! millisecond later, on virtual time.

use super::driver::{Action, Event, Now, To};
use super::*;
use sluice_cluster::{
    Controller, ControllerInput, ControllerOutput, Courier, Node, Params, Reason, Table, VipId, mend,
};
use sluice_rsp::ClusterKey;
use sluice_types::{ClusterId, MacAddr};
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const WALL_MS: u64 = 1_700_000_000_000;
const LATENCY_US: u64 = 100;
const STEP_US: u64 = 500;
const CONTROLLER: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1));

fn id(at: usize) -> GatewayId {
    GatewayId::new(at as u64 + 1)
}

fn keys() -> KeyRing {
    let secret = std::array::from_fn(|i| i as u8);
    KeyRing::new(vec![ClusterKey::new(3, &secret, 0, u64::MAX).unwrap()]).unwrap()
}

fn vteps(at: usize) -> Vteps {
    let last = at as u8 + 11;
    // The last one has no IPv4.
    let v4 = (at < 2).then_some(Ipv4Addr::new(192, 0, 2, last));
    Vteps { v4, v6: Some(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last.into())) }
}

fn plan(revision: u64, vips: u8) -> Plan {
    let vip = |place: u8| PlannedVip {
        place: VipId::new(place).unwrap(),
        address: Ipv4Addr::new(192, 0, 2, 101 + place).into(),
        mac: MacAddr::local(u64::from(place) + 1),
    };
    let member = |at: usize| {
        let Vteps { v4: vtep4, v6: vtep6 } = vteps(at);
        PlannedMember { gateway: id(at), vtep4, vtep6, draining: false }
    };
    Plan {
        hello_ms: 4,
        cluster: ClusterId::new(1),
        revision,
        vips: (0..vips).map(vip).collect(),
        members: (0..3).map(member).collect(),
    }
}

struct World {
    now_us: u64,
    drivers: Vec<Option<Driver>>,
    controller: Controller,
    courier: Courier,
    seen_at: BTreeMap<GatewayId, IpAddr>,
    /// When, from and to where, what.
    wire: VecDeque<(u64, IpAddr, IpAddr, Vec<u8>)>,
    owned: Vec<Owned>,
    saved: Vec<Option<Saved>>,
    announced: Vec<(usize, IpAddr, Reason)>,
}

impl World {
    /// Three gateways that know the plan, and a controller with it.
    fn new(vips: u8) -> Self {
        let plan = plan(1, vips);
        let ids: Vec<GatewayId> = (0..3).map(id).collect();
        let homes = mend(plan.config().vips.iter(), &ids, &[], |_| None).into_iter().collect();
        let intent = sluice_cluster::Plan { config: plan.config(), homes };
        let start_us = 5_000_000;
        let boot = BootId::random().unwrap();
        let mut world = Self {
            now_us: start_us,
            drivers: vec![None, None, None],
            controller: Controller::new(
                plan.cluster,
                Params::default(),
                1,
                (intent, Table::default()),
                start_us,
            ),
            courier: Courier::new(Node::Controller, boot, WALL_MS),
            seen_at: BTreeMap::new(),
            wire: VecDeque::new(),
            owned: vec![Owned::new(); 3],
            saved: vec![None, None, None],
            announced: Vec::new(),
        };
        for at in 0..3 {
            world.start(at);
            world.feed(at, Event::Plan(plan.clone()));
        }
        world
    }

    /// One that has run until every vIP has an owner.
    fn settled(vips: u8) -> Self {
        let mut world = Self::new(vips);
        world.pass_ms(500);
        assert_eq!(world.owners(), world.homes());
        world.announced.clear();
        world
    }

    fn now(&self) -> Now {
        Now { boot_us: self.now_us, wall_ms: WALL_MS + self.now_us / 1_000 }
    }

    fn start(&mut self, at: usize) {
        let boot = BootId::random().unwrap();
        let (saved, owned) = (self.saved[at].clone(), self.owned[at].clone());
        self.drivers[at] = Some(Driver::new(id(at), vteps(at), boot, saved, owned, self.now()));
        self.feed(at, Event::Keys(keys()));
        self.feed(at, Event::Controller(Some(CONTROLLER)));
    }

    fn address(at: usize) -> IpAddr {
        vteps(at).v6.unwrap().into()
    }

    fn feed(&mut self, at: usize, event: Event<'_>) {
        let now = self.now();
        let Some(driver) = &mut self.drivers[at] else { return };
        for action in driver.handle(now, event) {
            match action {
                Action::Send(to, packet) => {
                    let to = match to {
                        To::Controller => CONTROLLER,
                        To::Gateway(address) => address,
                    };
                    self.wire.push_back((self.now_us + LATENCY_US, Self::address(at), to, packet));
                }
                Action::Announce(vip, _, reason) => self.announced.push((at, vip, reason)),
                Action::Own(owned) => self.owned[at] = owned,
                Action::Save(saved) => self.saved[at] = Some(*saved),
                Action::Withdraw(..) | Action::Ask(..) | Action::Say(_) => {}
            }
        }
    }

    fn command(&mut self, input: ControllerInput) {
        for output in self.controller.handle(self.now_us, input) {
            let ControllerOutput::Send { to, message } = output else { continue };
            let Some(&at) = self.seen_at.get(&to) else { continue };
            let packet = self.courier.seal(&keys(), WALL_MS + self.now_us / 1_000, at, &message).unwrap();
            self.wire.push_back((self.now_us + LATENCY_US, CONTROLLER, at, packet));
        }
    }

    fn deliver(&mut self, from: IpAddr, to: IpAddr, packet: &[u8]) {
        if to == CONTROLLER {
            let wall_ms = WALL_MS + self.now_us / 1_000;
            let (message, _) = self.courier.open(&keys(), wall_ms, to, packet).unwrap();
            if let Node::Gateway(id) = message.from {
                self.seen_at.insert(id, from);
            }
            self.command(ControllerInput::Received(message));
            return;
        }
        let is_at = |at: &usize| {
            let Vteps { v4, v6 } = vteps(*at);
            [v4.map(IpAddr::from), v6.map(IpAddr::from)].contains(&Some(to))
        };
        if let Some(at) = (0..3).find(is_at) {
            self.feed(at, Event::Datagram { local: to, from, packet });
        }
    }

    fn pass_ms(&mut self, millis: u64) {
        let until_us = self.now_us + millis * 1_000;
        while self.now_us < until_us {
            self.now_us += STEP_US;
            while self.wire.front().is_some_and(|(at_us, ..)| *at_us <= self.now_us) {
                let (_, from, to, packet) = self.wire.pop_front().unwrap();
                self.deliver(from, to, &packet);
            }
            for at in 0..3 {
                if self.drivers[at].as_ref().is_some_and(|driver| driver.due_us() <= self.now_us) {
                    self.feed(at, Event::Timer);
                }
            }
            self.command(ControllerInput::Timer);
        }
    }

    /// Who answers for each vIP; nobody else may.
    fn owners(&self) -> Vec<usize> {
        let vips = self.controller.plan().config.vips.iter();
        vips.map(|place| {
            let address = plan(1, 128).vip(place).unwrap().address;
            let who: Vec<usize> = (0..3)
                .filter(|&at| self.drivers[at].is_some() && self.owned[at].contains_key(&address))
                .collect();
            assert_eq!(who.len(), 1, "{address} is at {who:?}");
            who[0]
        })
        .collect()
    }

    fn homes(&self) -> Vec<usize> {
        self.controller.plan().homes.values().map(|home| home.get() as usize - 1).collect()
    }
}

#[test]
fn a_new_cluster_shares_out_its_vips() {
    let world = World::settled(7);
    let status = world.drivers[2].as_ref().unwrap().status(world.now());
    assert_eq!((status.cluster, status.revision, status.standing), (Some(ClusterId::new(1)), 1, Some("fit")));
    assert_eq!(status.peers, BTreeMap::from([(id(0), true), (id(1), true)]));
    assert!(status.controller && status.counts.received > 0 && status.counts.refused.is_empty());
    let own: Vec<IpAddr> =
        (0..7).filter(|at| world.owners()[*at] == 2).map(|at| plan(1, 7).vips[at].address).collect();
    assert_eq!(status.vips, own);
}

#[test]
fn the_vips_of_a_dead_gateway_are_taken_over_and_come_back() {
    let mut world = World::settled(6);
    world.drivers[1] = None;
    world.pass_ms(30);
    assert!(!world.owners().contains(&1));
    let taken: Vec<IpAddr> = world
        .announced
        .iter()
        .filter(|(_, _, reason)| *reason == Reason::TakenOver { from: id(1) })
        .map(|(_, vip, _)| *vip)
        .collect();
    assert_eq!(taken.len(), 2, "{:?}", world.announced);
    // It comes back as a new life that knows the old one's plan, and gets its own again.
    world.owned[1].clear();
    world.start(1);
    world.pass_ms(5_000);
    assert_eq!(world.owners(), world.homes());
}

#[test]
fn an_agent_that_restarts_keeps_what_its_tables_answer_for() {
    let mut world = World::settled(6);
    let before = world.owned[0].clone();
    world.start(0);
    world.pass_ms(100);
    assert_eq!((&world.owned[0], world.owners()), (&before, world.homes()));
    let again: Vec<_> =
        world.announced.iter().filter(|(at, _, why)| *at == 0 && *why == Reason::Resumed).collect();
    assert_eq!(again.len(), before.len());
    // Away for longer, its vIPs are taken; it gives them up when it is back, and not before.
    world.drivers[0] = None;
    world.pass_ms(30);
    assert_eq!(world.owned[0], before);
    world.start(0);
    assert_eq!(world.owned[0], before);
    world.pass_ms(30);
    assert_eq!(world.owned[0], Owned::new());
    assert!(!world.owners().contains(&0));
}

#[test]
fn without_keys_nothing_is_said_and_nothing_understood() {
    let mut world = World::settled(3);
    let before = world.owned[1].clone();
    world.feed(1, Event::Keys(KeyRing::default()));
    let sent = world.drivers[1].as_ref().unwrap().status(world.now()).counts.sent;
    world.pass_ms(40);
    let counts = world.drivers[1].as_ref().unwrap().status(world.now()).counts;
    assert!(counts.unsealed > 0 && counts.refused["unknown_key"] > 0, "{counts:?}");
    assert_eq!(counts.sent, sent);
    // The others have what it owned; it keeps it, silently, for nobody told it.
    assert_eq!(world.owned[0].len() + world.owned[2].len(), 3);
    assert_eq!(world.owned[1], before);
    world.feed(1, Event::Keys(keys()));
    world.pass_ms(30);
    assert!(!world.owners().contains(&1));
}

#[test]
fn a_place_without_an_address_is_announced_once_it_has_one() {
    let mut world = World::settled(3);
    // The controller's plan has one more vIP; only gateway 1 hears of its address now.
    let mut intent = world.controller.plan().clone();
    intent.config = plan(2, 4).config();
    intent.homes.insert(VipId::new(3).unwrap(), id(0));
    world.feed(1, Event::Plan(plan(2, 4)));
    world.command(ControllerInput::Plan(intent));
    world.pass_ms(50);
    let new = plan(2, 4).vips[3].address;
    assert!(!world.owned[0].contains_key(&new));
    world.feed(0, Event::Plan(plan(2, 4)));
    assert!(world.owned[0].contains_key(&new));
    assert!(world.announced.contains(&(0, new, Reason::Assigned)));
    // A vIP that the cluster has no more is nobody's.
    let mut intent = world.controller.plan().clone();
    intent.config = plan(3, 2).config();
    intent.homes.retain(|place, _| place.get() < 2);
    world.command(ControllerInput::Plan(intent));
    (0..3).for_each(|at| world.feed(at, Event::Plan(plan(3, 2))));
    world.pass_ms(50);
    assert_eq!(world.owned.iter().map(Owned::len).sum::<usize>(), 2);
    assert_eq!(world.owners(), world.homes());
}

#[test]
fn another_clusters_plan_begins_anew() {
    let mut world = World::settled(3);
    let other = Plan { cluster: ClusterId::new(2), ..plan(1, 3) };
    world.feed(1, Event::Plan(other));
    world.pass_ms(100);
    // Its claims are nobody's there, and the others do not listen to it.
    let status = world.drivers[1].as_ref().unwrap().status(world.now());
    assert_eq!((status.cluster, status.peers.values().any(|heard| *heard)), (Some(ClusterId::new(2)), false));
    assert!(world.owned[0].len() + world.owned[2].len() == 3);
}

#[test]
fn a_deleted_gateway_gives_up_its_vips_also_in_its_next_life() {
    let mut world = World::settled(6);
    assert_eq!(world.owned[1].len(), 2);
    world.feed(1, Event::Resign);
    assert_eq!(world.owned[1].len(), 0);
    let announced = world.announced.len();
    let status = |world: &World| world.drivers[1].as_ref().unwrap().status(world.now());
    assert!(status(&world).peers.is_empty() && status(&world).vips.is_empty());
    world.start(1);
    world.pass_ms(100);
    assert_eq!(world.owned[1].len(), 0);
    assert!(world.announced[announced..].iter().all(|(at, ..)| *at != 1), "{:?}", world.announced);
    // The others have a plan without it.
    let without = Plan {
        members: plan(9, 6).members.into_iter().filter(|it| it.gateway != id(1)).collect(),
        ..plan(9, 6)
    };
    [0, 2].into_iter().for_each(|at| world.feed(at, Event::Plan(without.clone())));
    world.pass_ms(100);
    assert_eq!(world.owned[0].len() + world.owned[2].len(), 6);
    // It was a mistake.
    (0..3).for_each(|at| world.feed(at, Event::Plan(plan(10, 6))));
    world.pass_ms(100);
    assert_eq!(status(&world).peers.values().filter(|heard| **heard).count(), 2);
}

#[test]
fn a_strange_file_is_no_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    assert_eq!(read(&path).unwrap(), None);
    fs::write(&path, b"{").unwrap();
    assert_eq!(read(&path).unwrap(), None);
    let saved = Saved::new(plan(4, 2), &plan(4, 2).config(), &Table::default());
    write(&path, &saved).unwrap();
    assert_eq!(read(&path).unwrap(), Some(saved));
}

#[test]
fn an_older_plan_changes_nothing() {
    let mut world = World::settled(6);
    let status = |world: &World| world.drivers[0].as_ref().unwrap().status(world.now());
    world.feed(0, Event::Plan(plan(9, 6)));
    assert_eq!(status(&world).revision, 9);
    let known = world.drivers[0].as_ref().unwrap().plan().cloned();
    world.feed(0, Event::Plan(plan(8, 2)));
    assert_eq!(world.drivers[0].as_ref().unwrap().plan().cloned(), known);
    assert_eq!(
        (status(&world).revision, status(&world).vips.len()),
        (9, 2),
        "it answers for its share still"
    );
    // Nor is it forgotten what a predecessor knew.
    world.start(0);
    world.feed(0, Event::Plan(plan(8, 2)));
    assert_eq!(world.drivers[0].as_ref().unwrap().plan().cloned(), known);
    world.feed(0, Event::Plan(plan(10, 6)));
    assert_eq!(world.drivers[0].as_ref().unwrap().plan().map(|plan| plan.revision), Some(10));
}
