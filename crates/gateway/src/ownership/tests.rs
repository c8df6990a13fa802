//! Local members and their controller on virtual time, over datagrams that arrive a tenth of a millisecond
//! later.

use super::local_member::{Action, Event, Now, Receiver};
use super::*;
use sluice_cluster::{
    AnnounceReason, Controller, ControllerInput, ControllerOutput, MessageCodec, Node, Params, Table, VipId,
    assign_preferred_owners,
};
use sluice_envelope::ClusterKey;
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
    // The last gateway has no IPv4 address.
    let v4 = (at < 2).then_some(Ipv4Addr::new(192, 0, 2, last));
    Vteps { v4, v6: Some(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last.into())) }
}

fn plan(revision: u64, vips: u8) -> GatewayPlan {
    let vip = |slot: u8| PlannedVip {
        slot: VipId::new(slot).unwrap(),
        address: Ipv4Addr::new(192, 0, 2, 101 + slot).into(),
        mac: MacAddr::local(u64::from(slot) + 1),
    };
    let member = |at: usize| {
        let Vteps { v4: vtep4, v6: vtep6 } = vteps(at);
        PlannedMember { gateway: id(at), vtep4, vtep6, draining: false }
    };
    GatewayPlan {
        hello_interval_ms: 4,
        cluster: ClusterId::new(1),
        revision,
        vips: (0..vips).map(vip).collect(),
        members: (0..3).map(member).collect(),
    }
}

struct World {
    now_us: u64,
    members: Vec<Option<LocalMember>>,
    controller: Controller,
    codec: MessageCodec,
    /// Source addresses of the gateways' datagrams to the controller.
    gateway_addresses: BTreeMap<GatewayId, IpAddr>,
    /// Datagrams on their way: arrival time, source, destination, payload.
    wire: VecDeque<(u64, IpAddr, IpAddr, Vec<u8>)>,
    owned: Vec<OwnedVips>,
    saved: Vec<Option<SavedState>>,
    announced: Vec<(usize, IpAddr, AnnounceReason)>,
}

impl World {
    /// Three gateways and a controller, all with the plan.
    fn new(vips: u8) -> Self {
        let plan = plan(1, vips);
        let ids: Vec<GatewayId> = (0..3).map(id).collect();
        let preferred_owners =
            assign_preferred_owners(plan.config().vips.iter(), &ids, &[], |_| None).into_iter().collect();
        let intent = sluice_cluster::OwnershipPlan { config: plan.config(), preferred_owners };
        let start_us = 5_000_000;
        let boot = BootId::random().unwrap();
        let mut world = Self {
            now_us: start_us,
            members: vec![None, None, None],
            controller: Controller::new(
                plan.cluster,
                Params::default(),
                1,
                (intent, Table::default()),
                start_us,
            ),
            codec: MessageCodec::new(Node::Controller, boot, WALL_MS),
            gateway_addresses: BTreeMap::new(),
            wire: VecDeque::new(),
            owned: vec![OwnedVips::new(); 3],
            saved: vec![None, None, None],
            announced: Vec::new(),
        };
        for at in 0..3 {
            world.start(at);
            world.feed(at, Event::Plan(plan.clone()));
        }
        world
    }

    /// A world that has run until every vIP is at its preferred owner.
    fn settled(vips: u8) -> Self {
        let mut world = Self::new(vips);
        world.pass_ms(500);
        assert_eq!(world.owners(), world.preferred_owners());
        world.announced.clear();
        world
    }

    fn now(&self) -> Now {
        Now { boot_us: self.now_us, wall_ms: WALL_MS + self.now_us / 1_000 }
    }

    fn start(&mut self, at: usize) {
        let boot = BootId::random().unwrap();
        let (saved, owned) = (self.saved[at].clone(), self.owned[at].clone());
        let tables = AdoptedTables { owned, revision: 1, translates: true };
        self.members[at] = Some(LocalMember::new(id(at), vteps(at), boot, saved, tables, self.now()));
        self.feed(at, Event::Keys(keys()));
        self.feed(at, Event::Controller(Some(CONTROLLER)));
        self.feed(at, Event::Copies(true));
    }

    fn address(at: usize) -> IpAddr {
        vteps(at).v6.unwrap().into()
    }

    fn feed(&mut self, at: usize, event: Event<'_>) {
        let now = self.now();
        let Some(member) = &mut self.members[at] else { return };
        for action in member.handle(now, event) {
            match action {
                Action::Send(to, packet) => {
                    let to = match to {
                        Receiver::Controller => CONTROLLER,
                        Receiver::Gateway(address) => address,
                    };
                    self.wire.push_back((self.now_us + LATENCY_US, Self::address(at), to, packet));
                }
                Action::Announce(vip, _, reason) => self.announced.push((at, vip, reason)),
                Action::SetOwned(owned) => self.owned[at] = owned,
                Action::Save(saved) => self.saved[at] = Some(*saved),
                Action::Withdraw(..)
                | Action::ProbeWitness(..)
                | Action::ProbeGateway(..)
                | Action::Report(_) => {}
            }
        }
    }

    fn command(&mut self, input: ControllerInput) {
        for output in self.controller.handle(self.now_us, input) {
            let ControllerOutput::Send { to, message } = output else { continue };
            let Some(&at) = self.gateway_addresses.get(&to) else { continue };
            let packet = self.codec.seal(&keys(), WALL_MS + self.now_us / 1_000, at, &message).unwrap();
            self.wire.push_back((self.now_us + LATENCY_US, CONTROLLER, at, packet));
        }
    }

    fn deliver(&mut self, from: IpAddr, to: IpAddr, packet: &[u8]) {
        if to == CONTROLLER {
            let wall_ms = WALL_MS + self.now_us / 1_000;
            let (message, _) = self.codec.open(&keys(), wall_ms, to, packet).unwrap();
            if let Node::Gateway(id) = message.from {
                self.gateway_addresses.insert(id, from);
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
                if self.members[at].as_ref().is_some_and(|member| member.due_us() <= self.now_us) {
                    self.feed(at, Event::Timer);
                }
            }
            self.command(ControllerInput::Timer);
        }
    }

    /// The gateway that answers for each vIP. There must be exactly one.
    fn owners(&self) -> Vec<usize> {
        let vips = self.controller.plan().config.vips.iter();
        vips.map(|slot| {
            let address = plan(1, 128).vip(slot).unwrap().address;
            let owners: Vec<usize> = (0..3)
                .filter(|&at| self.members[at].is_some() && self.owned[at].contains_key(&address))
                .collect();
            assert_eq!(owners.len(), 1, "{address} is at {owners:?}");
            owners[0]
        })
        .collect()
    }

    fn preferred_owners(&self) -> Vec<usize> {
        self.controller.plan().preferred_owners.values().map(|owner| owner.get() as usize - 1).collect()
    }
}

#[test]
fn new_cluster_distributes_its_vips() {
    let world = World::settled(7);
    let status = world.members[2].as_ref().unwrap().status(world.now());
    assert_eq!((status.cluster, status.revision, status.health), (Some(ClusterId::new(1)), 1, Some("ready")));
    assert_eq!(status.peers, BTreeMap::from([(id(0), true), (id(1), true)]));
    assert!(status.controller && status.counts.received > 0 && status.counts.refused.is_empty());
    let own: Vec<IpAddr> =
        (0..7).filter(|at| world.owners()[*at] == 2).map(|at| plan(1, 7).vips[at].address).collect();
    assert_eq!(status.vips, own);
}

#[test]
fn vips_of_a_dead_gateway_are_taken_over_and_return() {
    let mut world = World::settled(6);
    world.members[1] = None;
    world.pass_ms(30);
    assert!(!world.owners().contains(&1));
    let taken: Vec<IpAddr> = world
        .announced
        .iter()
        .filter(|(_, _, reason)| *reason == AnnounceReason::TakenOver { from: id(1) })
        .map(|(_, vip, _)| *vip)
        .collect();
    assert_eq!(taken.len(), 2, "{:?}", world.announced);
    // It starts again with the saved plan, and gets its vIPs back.
    world.owned[1].clear();
    world.start(1);
    world.pass_ms(5_000);
    assert_eq!(world.owners(), world.preferred_owners());
}

#[test]
fn restarted_agent_keeps_the_vips_of_its_tables() {
    let mut world = World::settled(6);
    let before = world.owned[0].clone();
    world.start(0);
    world.pass_ms(100);
    assert_eq!((&world.owned[0], world.owners()), (&before, world.preferred_owners()));
    let again: Vec<_> = world
        .announced
        .iter()
        .filter(|(at, _, reason)| *at == 0 && *reason == AnnounceReason::Resumed)
        .collect();
    assert_eq!(again.len(), before.len());
    // When it is down for longer, the others take over its vIPs; its tables give them up only when it runs
    // again.
    world.members[0] = None;
    world.pass_ms(30);
    assert_eq!(world.owned[0], before);
    world.start(0);
    assert_eq!(world.owned[0], before);
    world.pass_ms(30);
    assert_eq!(world.owned[0], OwnedVips::new());
    assert!(!world.owners().contains(&0));
}

#[test]
fn without_keys_nothing_is_sent_or_accepted() {
    let mut world = World::settled(3);
    let before = world.owned[1].clone();
    world.feed(1, Event::Keys(KeyRing::default()));
    let sent = world.members[1].as_ref().unwrap().status(world.now()).counts.sent;
    world.pass_ms(40);
    let counts = world.members[1].as_ref().unwrap().status(world.now()).counts;
    assert!(counts.send_no_key > 0 && counts.refused["unknown_key"] > 0, "{counts:?}");
    assert_eq!(counts.sent, sent);
    // The others took over its vIPs. It still answers for them, because it cannot receive that.
    assert_eq!(world.owned[0].len() + world.owned[2].len(), 3);
    assert_eq!(world.owned[1], before);
    world.feed(1, Event::Keys(keys()));
    world.pass_ms(30);
    assert!(!world.owners().contains(&1));
}

#[test]
fn vip_is_announced_when_its_address_becomes_known() {
    let mut world = World::settled(3);
    // The controller's plan has one more vIP; at first only gateway 1 gets its address.
    let mut intent = world.controller.plan().clone();
    intent.config = plan(2, 4).config();
    intent.preferred_owners.insert(VipId::new(3).unwrap(), id(0));
    world.feed(1, Event::Plan(plan(2, 4)));
    world.command(ControllerInput::Plan(intent));
    world.pass_ms(50);
    let new = plan(2, 4).vips[3].address;
    assert!(!world.owned[0].contains_key(&new));
    world.feed(0, Event::Plan(plan(2, 4)));
    assert!(world.owned[0].contains_key(&new));
    assert!(world.announced.contains(&(0, new, AnnounceReason::Assigned)));
    // vIPs that are removed from the cluster have no owner.
    let mut intent = world.controller.plan().clone();
    intent.config = plan(3, 2).config();
    intent.preferred_owners.retain(|slot, _| slot.get() < 2);
    world.command(ControllerInput::Plan(intent));
    (0..3).for_each(|at| world.feed(at, Event::Plan(plan(3, 2))));
    world.pass_ms(50);
    assert_eq!(world.owned.iter().map(OwnedVips::len).sum::<usize>(), 2);
    assert_eq!(world.owners(), world.preferred_owners());
}

/// Catches a moved gateway whose next agent starts as a member of the old cluster.
#[test]
fn move_to_another_cluster_is_saved() {
    let mut world = World::new(1);
    let cluster = |world: &World| world.saved[0].as_ref().unwrap().plan.cluster;
    assert_eq!(cluster(&world), ClusterId::new(1));
    // Nothing but the cluster differs.
    world.feed(0, Event::Plan(GatewayPlan { cluster: ClusterId::new(9), ..plan(1, 1) }));
    assert_eq!(cluster(&world), ClusterId::new(9));
}

#[test]
fn plan_of_another_cluster_starts_with_empty_tables() {
    let mut world = World::settled(3);
    let other = GatewayPlan { cluster: ClusterId::new(2), ..plan(1, 3) };
    world.feed(1, Event::Plan(other));
    world.pass_ms(100);
    // Its claims do not count there, and the old members ignore it.
    let status = world.members[1].as_ref().unwrap().status(world.now());
    assert_eq!(
        (status.cluster, status.peers.values().any(|reachable| *reachable)),
        (Some(ClusterId::new(2)), false)
    );
    assert!(world.owned[0].len() + world.owned[2].len() == 3);
}

#[test]
fn deleted_gateway_gives_up_its_vips_also_after_a_restart() {
    let mut world = World::settled(6);
    assert_eq!(world.owned[1].len(), 2);
    world.feed(1, Event::Deleted);
    assert_eq!(world.owned[1].len(), 0);
    let announced = world.announced.len();
    let status = |world: &World| world.members[1].as_ref().unwrap().status(world.now());
    assert!(status(&world).peers.is_empty() && status(&world).vips.is_empty());
    world.start(1);
    world.pass_ms(100);
    assert_eq!(world.owned[1].len(), 0);
    assert!(world.announced[announced..].iter().all(|(at, ..)| *at != 1), "{:?}", world.announced);
    // The others get a plan without it.
    let without = GatewayPlan {
        members: plan(9, 6).members.into_iter().filter(|it| it.gateway != id(1)).collect(),
        ..plan(9, 6)
    };
    [0, 2].into_iter().for_each(|at| world.feed(at, Event::Plan(without.clone())));
    world.pass_ms(100);
    assert_eq!(world.owned[0].len() + world.owned[2].len(), 6);
    // It is added again.
    (0..3).for_each(|at| world.feed(at, Event::Plan(plan(10, 6))));
    world.pass_ms(100);
    assert_eq!(status(&world).peers.values().filter(|reachable| **reachable).count(), 2);
}

#[test]
fn older_plan_is_ignored() {
    let mut world = World::settled(6);
    let status = |world: &World| world.members[0].as_ref().unwrap().status(world.now());
    world.feed(0, Event::Plan(plan(9, 6)));
    assert_eq!(status(&world).revision, 9);
    let known = world.members[0].as_ref().unwrap().plan().cloned();
    world.feed(0, Event::Plan(plan(8, 2)));
    assert_eq!(world.members[0].as_ref().unwrap().plan().cloned(), known);
    assert_eq!(
        (status(&world).revision, status(&world).vips.len()),
        (9, 2),
        "it still answers for its share"
    );
    // A restarted agent also ignores plans that are older than the saved one.
    world.start(0);
    world.feed(0, Event::Plan(plan(8, 2)));
    assert_eq!(world.members[0].as_ref().unwrap().plan().cloned(), known);
    world.feed(0, Event::Plan(plan(10, 6)));
    assert_eq!(world.members[0].as_ref().unwrap().plan().map(|plan| plan.revision), Some(10));
}
