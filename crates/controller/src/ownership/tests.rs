//! The controller's state machines of two clusters, and gateways that exchange messages with them.

use super::clusters::{Action, AddressPair, Clusters, Event, Now};
use super::view::{GatewayState, PublishedViews};
use super::*;
use sluice_cluster::{
    Body, Claim, Health, Load, Message, MessageCodec, Node, Report, Table, TableReport, VipId, VipSet,
};
use sluice_envelope::{ClusterKey, KeyRing};
use sluice_southbound::{ClusterKeys, ClusterPlan, Key, Member, PlannedVip, PreferredOwner, Update};
use sluice_types::{ClusterId, GatewayId, MacAddr, Secret};
use std::net::{IpAddr, Ipv4Addr};

/// What all gateways report about their forwarding tables.
const TABLES: TableReport = TableReport { revision: 9, behind: false, copies: true, translates: true };
const WALL_MS: u64 = 1_700_000_000_000;
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1));

fn secret(cluster: u64) -> [u8; 32] {
    std::array::from_fn(|i| i as u8 ^ cluster as u8)
}

fn vip(slot: u8) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, 101 + slot).into()
}

/// Gateways 1 and 2 of cluster 1, or 11 and 12 of the other; two vIPs, one preferred by each.
fn update_of(cluster: u64, draining: bool, revision: u64) -> Update {
    let gateways = [1, 2].map(|number| GatewayId::new(number + (cluster - 1) * 10));
    let member = |gateway| Member {
        gateway,
        vtep4: Some(Ipv4Addr::new(192, 0, 2, 11)),
        vtep6: None,
        draining: draining && gateway == gateways[1],
    };
    let planned = |slot: u8| PlannedVip { slot, address: vip(slot), mac: MacAddr::local(slot.into()) };
    let plan = ClusterPlan {
        hello_interval_ms: 4,
        nat_seed: None,
        cluster: ClusterId::new(cluster),
        revision,
        vips: vec![planned(0), planned(1)],
        members: gateways.map(member).into(),
        preferred_owners: vec![
            PreferredOwner { slot: 0, gateway: gateways[0] },
            PreferredOwner { slot: 1, gateway: gateways[1] },
        ],
    };
    let secret = Secret::new(secret(cluster));
    let key = Key { id: cluster as u32, secret, not_before_ms: 0, not_after_ms: u64::MAX };
    let keys = ClusterKeys { cluster: cluster as u32, keys: vec![key] };
    Update { keys: vec![keys], cluster: Some(plan), ..Update::default() }
}

fn ring(cluster: u64) -> KeyRing {
    let key = ClusterKey::new(cluster as u32, &secret(cluster), 0, u64::MAX).unwrap();
    KeyRing::new(vec![key]).unwrap()
}

struct Bench {
    clusters: Clusters,
    now_us: u64,
    gateways: Vec<(GatewayId, MessageCodec, u64)>,
    table: Table,
    config: u64,
    sent: Vec<(AddressPair, Vec<u8>)>,
    events: Vec<Event>,
    loads: Vec<(GatewayId, Load)>,
    reissued: Vec<(ClusterId, u64)>,
}

impl Bench {
    fn new() -> Self {
        let now = Now { mono_us: 0, wall_ms: WALL_MS };
        let boot = || BootId::random().unwrap();
        let codec = |number| {
            let id = GatewayId::new(number);
            (id, MessageCodec::new(Node::Gateway(id), boot(), WALL_MS), 0)
        };
        let mut bench = Self {
            clusters: Clusters::new(boot(), now),
            now_us: 0,
            gateways: [1, 2, 11, 12].map(codec).into(),
            table: Table::default(),
            config: 0,
            sent: Vec::new(),
            events: Vec::new(),
            loads: Vec::new(),
            reissued: Vec::new(),
        };
        bench.apply_updates([(1, update_of(1, false, 1)), (2, update_of(2, false, 1))]);
        bench
    }

    fn now(&self) -> Now {
        Now { mono_us: self.now_us, wall_ms: WALL_MS + self.now_us / 1_000 }
    }

    fn take(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send(pair, packet) => self.sent.push((pair, packet)),
                Action::Event(event) => self.events.push(event),
                Action::Load(gateway, load) => self.loads.push((gateway, load)),
                Action::Serves(..) => {}
                Action::ReissuePlan(cluster, known) => self.reissued.push((cluster, known)),
            }
        }
    }

    fn apply_updates<const N: usize>(&mut self, updates: [(u64, Update); N]) {
        let updates = updates.map(|(id, update)| (ClusterId::new(id), update)).into();
        let actions = self.clusters.apply_updates(self.now(), &updates);
        self.take(actions);
    }

    fn pair(id: GatewayId) -> AddressPair {
        AddressPair { remote: ([198, 51, 100, id.get() as u8], 4000).into(), local: HERE }
    }

    fn send(&mut self, number: u64, cluster: u64, keys: &KeyRing, body: Body) {
        let now = self.now();
        let at = self.gateways.iter().position(|(id, ..)| id.get() == number).unwrap();
        let (id, codec, seq) = &mut self.gateways[at];
        *seq += 1;
        let (cluster, from) = (ClusterId::new(cluster), Node::Gateway(*id));
        let message = Message { cluster, from, incarnation: 1, seq: *seq, body };
        let packet = codec.seal(keys, now.wall_ms, HERE, &message).unwrap();
        let pair = Self::pair(*id);
        let actions = self.clusters.receive(now, pair, &packet);
        self.take(actions);
    }

    /// A heartbeat in cluster 1: the gateway has the controller's latest plan, and answers for what it owns.
    fn heartbeat(&mut self, number: u64) {
        let id = GatewayId::new(number);
        let report = Report {
            config: self.config,
            digest: self.table.digest(),
            holds: self.table.owned_by(id, VipSet::first(2)),
            reachable: [1, 2].into_iter().filter(|other| *other != number).map(GatewayId::new).collect(),
            health: Health::Ready,
            tables: TABLES,
        };
        self.send(number, 1, &ring(1), Body::Heartbeat(report));
    }

    /// Receives the controller's messages as gateways do.
    fn receive_sent(&mut self) {
        let now = self.now();
        for (pair, packet) in std::mem::take(&mut self.sent) {
            let it = self.gateways.iter_mut().find(|(id, ..)| Self::pair(*id) == pair);
            let (_, codec, _) = it.expect("a gateway's pair");
            let (message, _) = codec.open(&ring(1), now.wall_ms, pair.remote.ip(), &packet).unwrap();
            assert_eq!((message.from, message.cluster), (Node::Controller, ClusterId::new(1)));
            match message.body {
                Body::Claims(claims) => {
                    for (vip, claim) in claims {
                        self.table.merge(vip, claim);
                    }
                }
                Body::Config(config) => self.config = config.revision,
                _ => {}
            }
        }
    }

    fn pass(&mut self, millis: u64, heard: &[u64]) {
        for _ in 0..millis {
            self.now_us += 1_000;
            if (self.now_us / 1_000).is_multiple_of(50) {
                for number in heard {
                    self.heartbeat(*number);
                }
            }
            if self.clusters.due_us().is_some_and(|at_us| at_us <= self.now_us) {
                let actions = self.clusters.tick(self.now());
                self.take(actions);
            }
            self.receive_sent();
        }
    }

    fn state(&self, number: u64) -> GatewayState {
        let views = self.clusters.views(self.now());
        views[&ClusterId::new(1)].gateways.get(&GatewayId::new(number)).cloned().unwrap_or_default().state
    }
}

#[test]
fn api_shows_owners_of_vips() {
    let mut bench = Bench::new();
    assert_eq!((bench.clusters.due_us(), bench.state(1)), (None, GatewayState::Unknown));
    bench.pass(400, &[1, 2]);
    let owners = bench.clusters.views(bench.now())[&ClusterId::new(1)].owners.clone();
    assert_eq!(owners, [(vip(0), GatewayId::new(1)), (vip(1), GatewayId::new(2))].into());
    let moved = |slot, to| Event::Moved {
        cluster: ClusterId::new(1),
        vip: vip(slot),
        from: None,
        to: GatewayId::new(to),
        decided: true,
    };
    assert_eq!(bench.events, [moved(0, 1), moved(1, 2)]);
    assert_eq!((bench.state(1), bench.config), (GatewayState::Ready, 1));
    // No gateway of the other cluster has sent a message: its state is unknown and not reported.
    assert!(bench.clusters.views(bench.now())[&ClusterId::new(2)].gateways.is_empty());
}

#[test]
fn failure_return_and_drain_are_events() {
    let mut bench = Bench::new();
    bench.pass(400, &[1, 2]);
    bench.events.clear();
    // The other gateway reports that it receives no hellos from it.
    for _ in 0..5 {
        bench.now_us += 20_000;
        let report = Report {
            config: 1,
            digest: bench.table.digest(),
            holds: VipSet::first(1),
            reachable: Vec::new(),
            health: Health::Ready,
            tables: TABLES,
        };
        bench.send(1, 1, &ring(1), Body::Heartbeat(report));
    }
    let cluster = ClusterId::new(1);
    assert!(bench.events.contains(&Event::Failed(cluster, GatewayId::new(2))), "{:?}", bench.events);
    assert_eq!(bench.state(2), GatewayState::Failed);
    let down = |bench: &Bench| {
        let shown = PublishedViews::new(bench.clusters.views(bench.now()), Default::default());
        shown.down().into_iter().map(GatewayId::get).collect::<Vec<_>>()
    };
    assert_eq!(down(&bench), [2]);
    bench.pass(100, &[1, 2]);
    assert!(down(&bench).is_empty());
    assert!(bench.events.contains(&Event::Returned(cluster, GatewayId::new(2))));
    bench.pass(3_000, &[1, 2]);
    bench.events.clear();
    bench.apply_updates([(1, update_of(1, true, 2)), (2, update_of(2, false, 1))]);
    bench.pass(200, &[1, 2]);
    assert!(bench.events.contains(&Event::Drained(cluster, GatewayId::new(2))), "{:?}", bench.events);
    assert_eq!((bench.state(2), bench.config), (GatewayState::Drained, 2));
}

/// The database was restored from a backup: gateways have a newer plan and do not accept an older one.
#[test]
fn plan_older_than_that_of_gateways_is_reissued() {
    let mut bench = Bench::new();
    bench.apply_updates([(1, update_of(1, false, 7)), (2, update_of(2, false, 1))]);
    bench.pass(400, &[1, 2]);
    assert_eq!((bench.config, bench.reissued.len()), (7, 0));
    bench.config = 40;
    bench.pass(900, &[1, 2]);
    assert_eq!(bench.reissued, [(ClusterId::new(1), 40)], "requested once per interval");
    bench.pass(300, &[1, 2]);
    assert_eq!(bench.reissued.len(), 2, "and again until the plan is reissued");
    bench.reissued.clear();
    bench.apply_updates([(1, update_of(1, false, 41)), (2, update_of(2, false, 1))]);
    bench.pass(2_000, &[1, 2]);
    assert_eq!((bench.config, bench.reissued.len()), (41, 0));
}

/// The state and the event log must agree at any time.
#[test]
fn drained_state_is_shown_together_with_its_event() {
    let mut bench = Bench::new();
    bench.pass(3_000, &[1, 2]);
    // Like a gateway that returns, it reports that it answers for no vIP although it owns one.
    let nothing = |bench: &Bench| Report {
        config: bench.config,
        digest: bench.table.digest(),
        holds: VipSet::EMPTY,
        reachable: vec![GatewayId::new(1)],
        health: Health::Ready,
        tables: TABLES,
    };
    let report = nothing(&bench);
    bench.send(2, 1, &ring(1), Body::Heartbeat(report));
    bench.events.clear();
    bench.apply_updates([(1, update_of(1, true, 2)), (2, update_of(2, false, 1))]);
    let drained = Event::Drained(ClusterId::new(1), GatewayId::new(2));
    let mut shown = 0;
    for _ in 0..400 {
        assert_eq!(
            bench.state(2) == GatewayState::Drained,
            bench.events.contains(&drained),
            "{:?}",
            bench.events
        );
        shown += usize::from(bench.state(2) == GatewayState::Drained);
        bench.pass(1, &[1, 2]);
    }
    assert!(shown > 0);
    let owners = bench.clusters.views(bench.now())[&ClusterId::new(1)].owners.clone();
    assert!(owners.values().all(|owner| owner.get() == 1), "{owners:?}");
}

#[test]
fn key_authenticates_its_own_cluster_only() {
    let mut bench = Bench::new();
    bench.pass(400, &[1, 2]);
    let before = bench.clusters.views(bench.now());
    let claim = Claim { epoch: 99, owner: GatewayId::new(11) };
    let claims = Body::Claims(vec![(VipId::new(0).unwrap(), claim)]);
    bench.send(11, 1, &ring(2), claims.clone());
    bench.send(11, 3, &ring(2), claims.clone());
    bench.send(11, 2, &ring(1), claims.clone());
    assert_eq!(bench.clusters.views(bench.now())[&ClusterId::new(1)], before[&ClusterId::new(1)]);
    assert_eq!(*bench.clusters.refused(), [("foreign_key", 2), ("unknown_cluster", 1)].into());
    // A deleted cluster is forgotten.
    bench.apply_updates([(2, update_of(2, false, 1))]);
    bench.send(1, 1, &ring(1), claims);
    assert_eq!(bench.clusters.refused()["unknown_key"], 1);
    assert_eq!(bench.clusters.views(bench.now()).len(), 1);
}

#[test]
fn loads_are_accepted_from_authenticated_members_only() {
    let mut bench = Bench::new();
    let load = Load { busy_permille: 900, packets: Some(7) };
    bench.send(1, 1, &ring(1), Body::Load(load));
    bench.send(2, 1, &ring(2), Body::Load(load));
    bench.send(11, 1, &ring(1), Body::Load(load));
    assert_eq!(
        bench.loads,
        [(GatewayId::new(1), load)],
        "not with another cluster's key, and not from a gateway that is no member"
    );
}
