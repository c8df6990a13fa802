//! Two clusters' controllers, and gateways that speak to them.

use super::clusters::{Action, Clusters, Event, Now, Way};
use super::view::{GatewayState, Shown};
use super::*;
use sluice_cluster::{Body, Claim, Health, Load, Message, MessageCodec, Node, Report, Table, VipId, VipSet};
use sluice_envelope::{ClusterKey, KeyRing};
use sluice_southbound::{ClusterKeys, ClusterPlan, Home, Key, Member, PlannedVip, Update};
use sluice_types::{ClusterId, GatewayId, MacAddr, Secret};
use std::net::{IpAddr, Ipv4Addr};

const WALL_MS: u64 = 1_700_000_000_000;
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1));

fn secret(cluster: u64) -> [u8; 32] {
    std::array::from_fn(|i| i as u8 ^ cluster as u8)
}

fn vip(place: u8) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, 101 + place).into()
}

/// Gateways 1 and 2 of cluster 1, or 11 and 12 of the other; two vIPs, one at home on each.
fn update_of(cluster: u64, draining: bool, revision: u64) -> Update {
    let gateways = [1, 2].map(|number| GatewayId::new(number + (cluster - 1) * 10));
    let member = |gateway| Member {
        gateway,
        vtep4: Some(Ipv4Addr::new(192, 0, 2, 11)),
        vtep6: None,
        draining: draining && gateway == gateways[1],
    };
    let planned = |place: u8| PlannedVip { place, address: vip(place), mac: MacAddr::local(place.into()) };
    let plan = ClusterPlan {
        hello_ms: 4,
        cluster: ClusterId::new(cluster),
        revision,
        vips: vec![planned(0), planned(1)],
        members: gateways.map(member).into(),
        homes: vec![Home { place: 0, gateway: gateways[0] }, Home { place: 1, gateway: gateways[1] }],
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
    sent: Vec<(Way, Vec<u8>)>,
    events: Vec<Event>,
    loads: Vec<(GatewayId, Load)>,
    raised: Vec<(ClusterId, u64)>,
}

impl Bench {
    fn new() -> Self {
        let now = Now { mono_us: 0, wall_ms: WALL_MS };
        let boot = || BootId::random().unwrap();
        let courier = |number| {
            let id = GatewayId::new(number);
            (id, MessageCodec::new(Node::Gateway(id), boot(), WALL_MS), 0)
        };
        let mut bench = Self {
            clusters: Clusters::new(boot(), now),
            now_us: 0,
            gateways: [1, 2, 11, 12].map(courier).into(),
            table: Table::default(),
            config: 0,
            sent: Vec::new(),
            events: Vec::new(),
            loads: Vec::new(),
            raised: Vec::new(),
        };
        bench.follow([(1, update_of(1, false, 1)), (2, update_of(2, false, 1))]);
        bench
    }

    fn now(&self) -> Now {
        Now { mono_us: self.now_us, wall_ms: WALL_MS + self.now_us / 1_000 }
    }

    fn take(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send(way, packet) => self.sent.push((way, packet)),
                Action::Note(event) => self.events.push(event),
                Action::Load(gateway, load) => self.loads.push((gateway, load)),
                Action::Raise(cluster, known) => self.raised.push((cluster, known)),
            }
        }
    }

    fn follow<const N: usize>(&mut self, updates: [(u64, Update); N]) {
        let updates = updates.map(|(id, update)| (ClusterId::new(id), update)).into();
        let actions = self.clusters.follow(self.now(), &updates);
        self.take(actions);
    }

    fn way(id: GatewayId) -> Way {
        Way { remote: ([198, 51, 100, id.get() as u8], 4000).into(), local: HERE }
    }

    fn say(&mut self, number: u64, cluster: u64, keys: &KeyRing, body: Body) {
        let now = self.now();
        let at = self.gateways.iter().position(|(id, ..)| id.get() == number).unwrap();
        let (id, courier, seq) = &mut self.gateways[at];
        *seq += 1;
        let (cluster, from) = (ClusterId::new(cluster), Node::Gateway(*id));
        let message = Message { cluster, from, incarnation: 1, seq: *seq, body };
        let packet = courier.seal(keys, now.wall_ms, HERE, &message).unwrap();
        let way = Self::way(*id);
        let actions = self.clusters.receive(now, way, &packet);
        self.take(actions);
    }

    /// Of cluster 1: it has what the controller last told, and answers for what it owns.
    fn heartbeat(&mut self, number: u64) {
        let id = GatewayId::new(number);
        let report = Report {
            config: self.config,
            digest: self.table.digest(),
            holds: self.table.owned_by(id, VipSet::first(2)),
            reachable: [1, 2].into_iter().filter(|other| *other != number).map(GatewayId::new).collect(),
            health: Health::Ready,
        };
        self.say(number, 1, &ring(1), Body::Heartbeat(report));
    }

    /// Reads what gateways were sent, as they would.
    fn learn(&mut self) {
        let now = self.now();
        for (way, packet) in std::mem::take(&mut self.sent) {
            let it = self.gateways.iter_mut().find(|(id, ..)| Self::way(*id) == way);
            let (_, courier, _) = it.expect("a gateway's way");
            let (message, _) = courier.open(&ring(1), now.wall_ms, way.remote.ip(), &packet).unwrap();
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
            self.learn();
        }
    }

    fn state(&self, number: u64) -> GatewayState {
        let views = self.clusters.views(self.now());
        views[&ClusterId::new(1)].gateways.get(&GatewayId::new(number)).cloned().unwrap_or_default().state
    }
}

#[test]
fn vips_get_owners_that_the_api_shows() {
    let mut bench = Bench::new();
    assert_eq!((bench.clusters.due_us(), bench.state(1)), (None, GatewayState::Unknown));
    bench.pass(400, &[1, 2]);
    let owners = bench.clusters.views(bench.now())[&ClusterId::new(1)].owners.clone();
    assert_eq!(owners, [(vip(0), GatewayId::new(1)), (vip(1), GatewayId::new(2))].into());
    let moved = |place, to| Event::Moved {
        cluster: ClusterId::new(1),
        vip: vip(place),
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
fn failures_returns_and_drains_are_noted() {
    let mut bench = Bench::new();
    bench.pass(400, &[1, 2]);
    bench.events.clear();
    // The other says that it hears it no more.
    for _ in 0..5 {
        bench.now_us += 20_000;
        let report = Report {
            config: 1,
            digest: bench.table.digest(),
            holds: VipSet::first(1),
            reachable: Vec::new(),
            health: Health::Ready,
        };
        bench.say(1, 1, &ring(1), Body::Heartbeat(report));
    }
    let cluster = ClusterId::new(1);
    assert!(bench.events.contains(&Event::Failed(cluster, GatewayId::new(2))), "{:?}", bench.events);
    assert_eq!(bench.state(2), GatewayState::Failed);
    let down = |bench: &Bench| {
        let shown = Shown::new(bench.clusters.views(bench.now()), Default::default());
        shown.down().into_iter().map(GatewayId::get).collect::<Vec<_>>()
    };
    assert_eq!(down(&bench), [2]);
    bench.pass(100, &[1, 2]);
    assert!(down(&bench).is_empty());
    assert!(bench.events.contains(&Event::Returned(cluster, GatewayId::new(2))));
    bench.pass(3_000, &[1, 2]);
    bench.events.clear();
    bench.follow([(1, update_of(1, true, 2)), (2, update_of(2, false, 1))]);
    bench.pass(200, &[1, 2]);
    assert!(bench.events.contains(&Event::Drained(cluster, GatewayId::new(2))), "{:?}", bench.events);
    assert_eq!((bench.state(2), bench.config), (GatewayState::Drained, 2));
}

/// The database was restored from a backup: gateways know a later plan, and take nothing older.
#[test]
fn a_plan_that_gateways_are_ahead_of_is_raised() {
    let mut bench = Bench::new();
    bench.follow([(1, update_of(1, false, 7)), (2, update_of(2, false, 1))]);
    bench.pass(400, &[1, 2]);
    assert_eq!((bench.config, bench.raised.len()), (7, 0));
    bench.config = 40;
    bench.pass(900, &[1, 2]);
    assert_eq!(bench.raised, [(ClusterId::new(1), 40)], "once in a while");
    bench.pass(300, &[1, 2]);
    assert_eq!(bench.raised.len(), 2, "and again until it is so");
    bench.raised.clear();
    bench.follow([(1, update_of(1, false, 41)), (2, update_of(2, false, 1))]);
    bench.pass(2_000, &[1, 2]);
    assert_eq!((bench.config, bench.raised.len()), (41, 0));
}

/// Who looks at the state knows no sooner than who reads the events.
#[test]
fn drained_is_shown_when_it_is_so() {
    let mut bench = Bench::new();
    bench.pass(3_000, &[1, 2]);
    // It says that it answers for nothing, as one that comes back does, and owns a vIP all the same.
    let nothing = |bench: &Bench| Report {
        config: bench.config,
        digest: bench.table.digest(),
        holds: VipSet::EMPTY,
        reachable: vec![GatewayId::new(1)],
        health: Health::Ready,
    };
    let report = nothing(&bench);
    bench.say(2, 1, &ring(1), Body::Heartbeat(report));
    bench.events.clear();
    bench.follow([(1, update_of(1, true, 2)), (2, update_of(2, false, 1))]);
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
fn a_cluster_has_no_say_in_another() {
    let mut bench = Bench::new();
    bench.pass(400, &[1, 2]);
    let before = bench.clusters.views(bench.now());
    let claim = Claim { epoch: 99, owner: GatewayId::new(11) };
    let claims = Body::Claims(vec![(VipId::new(0).unwrap(), claim)]);
    bench.say(11, 1, &ring(2), claims.clone());
    bench.say(11, 3, &ring(2), claims.clone());
    bench.say(11, 2, &ring(1), claims.clone());
    assert_eq!(bench.clusters.views(bench.now())[&ClusterId::new(1)], before[&ClusterId::new(1)]);
    assert_eq!(*bench.clusters.refused(), [("foreign_key", 2), ("unknown_cluster", 1)].into());
    // A cluster that is no more is forgotten.
    bench.follow([(2, update_of(2, false, 1))]);
    bench.say(1, 1, &ring(1), claims);
    assert_eq!(bench.clusters.refused()["unknown_key"], 1);
    assert_eq!(bench.clusters.views(bench.now()).len(), 1);
}

#[test]
fn loads_are_believed_of_those_who_have_the_key() {
    let mut bench = Bench::new();
    let load = Load { busy_permille: 900, packets: Some(7) };
    bench.say(1, 1, &ring(1), Body::Load(load));
    bench.say(2, 1, &ring(2), Body::Load(load));
    bench.say(11, 1, &ring(1), Body::Load(load));
    assert_eq!(bench.loads, [(GatewayId::new(1), load)], "a foreign key, and no member");
}
