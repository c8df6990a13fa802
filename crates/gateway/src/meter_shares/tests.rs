//! Gateways that report their meters, on virtual time; and two threads with sockets.

use super::peer::Shares;
use super::*;
use crate::ownership::{GatewayPlan, Now, PlannedMember};
use sluice_cluster::Contacts;
use sluice_cluster::meters::Sample;
use sluice_datapath::MeterBytes;
use sluice_envelope::ClusterKey;
use sluice_tables::FoundMeter;
use sluice_types::{ClusterId, METER_WHOLE};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use thread::SharedMeters;

const WALL_MS: u64 = 1_700_000_000_000;

fn id(at: usize) -> GatewayId {
    GatewayId::new(at as u64 + 1)
}

fn keys(number: u8) -> KeyRing {
    let secret = std::array::from_fn(|i| i as u8 + number);
    KeyRing::new(vec![ClusterKey::new(number.into(), &secret, 0, u64::MAX).unwrap()]).unwrap()
}

/// The cluster as gateway `at` sees it. It does not reach the dead ones.
fn view(at: usize, vteps: &[Vteps], dead: &[usize]) -> ClusterView {
    let member = |at: usize| {
        let Vteps { v4: vtep4, v6: vtep6 } = vteps[at];
        PlannedMember { gateway: id(at), vtep4, vtep6, draining: false }
    };
    let plan = GatewayPlan {
        cluster: ClusterId::new(1),
        revision: 1,
        vips: Vec::new(),
        members: (0..vteps.len()).map(member).collect(),
        hello_interval_ms: 4,
    };
    let mutual = (0..vteps.len()).filter(|other| *other != at && !dead.contains(other)).map(id).collect();
    let contacts = Contacts { mutual, ..Contacts::default() };
    ClusterView { plan: Some(plan), contacts, ..ClusterView::default() }
}

/// Three gateways with one meter, of which the last one has no IPv4 address.
struct World {
    now_us: u64,
    vteps: Vec<Vteps>,
    peers: Vec<(SharePeer, Sample)>,
}

impl World {
    fn new() -> Self {
        let vteps = |at: u8| Vteps {
            v4: (at < 2).then_some(Ipv4Addr::new(192, 0, 2, 1 + at)),
            v6: Some(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1 + u16::from(at))),
        };
        let vteps: Vec<Vteps> = (0..3).map(vteps).collect();
        let sample = Sample { id: 7, rates: [0, 1_000_000], shares: [METER_WHOLE; 2], offered: [0; 2] };
        let now = Now { boot_us: 0, wall_ms: WALL_MS };
        let peer = |at: usize| (SharePeer::new(id(at), vteps[at], BootId::random().unwrap(), now), sample);
        let peers = (0..3).map(peer).collect();
        let mut this = Self { now_us: 0, vteps, peers };
        for at in 0..3 {
            this.peers[at].0.set_keys(keys(3));
            this.see(at, &[]);
        }
        this
    }

    fn now(&self) -> Now {
        Now { boot_us: self.now_us, wall_ms: WALL_MS + self.now_us / 1_000 }
    }

    fn see(&mut self, at: usize, dead: &[usize]) {
        let (now, view) = (self.now(), view(at, &self.vteps, dead));
        self.peers[at].0.set_view(now, view);
    }

    /// Lets intervals pass in which each gateway is offered four times the rate.
    fn pass(&mut self, ticks: usize) {
        for _ in 0..ticks {
            self.now_us += sluice_cluster::meters::TICK_US;
            for at in 0..3 {
                let now = self.now();
                let (peer, sample) = &mut self.peers[at];
                sample.offered[1] += 400_000;
                let (datagrams, shares) = peer.tick(now, &[*sample]);
                shares.into_iter().for_each(|(_, shares)| sample.shares = shares);
                for (to, packet) in datagrams {
                    let receiver = self.vteps.iter().position(|vteps| vteps.addresses().any(|it| it == to));
                    self.peers[receiver.unwrap()].0.receive(now, to, &packet);
                }
            }
        }
    }

    fn shares(&self) -> Vec<u32> {
        self.peers.iter().map(|(_, sample)| sample.shares[1]).collect()
    }

    fn refused(&self, at: usize) -> Vec<(&'static str, u64)> {
        self.peers[at].0.counts().refused.iter().map(|(reason, number)| (*reason, *number)).collect()
    }
}

#[test]
fn gateways_share_a_rate_until_one_dies() {
    let mut world = World::new();
    world.pass(20);
    assert_eq!(world.shares(), [333_333; 3]);
    let counts = world.peers[0].0.counts().clone();
    assert_eq!((counts.shared_meters, counts.unreachable, counts.send_no_key), (1, 0, 0));
    // Those that notice the death take its share at once.
    world.see(0, &[2]);
    world.peers[2].0.set_keys(KeyRing::default());
    world.pass(1);
    assert_eq!(world.shares()[..2], [500_000, 333_333]);
    world.pass(20);
    assert_eq!(world.shares()[..2], [500_000; 2], "its reports have expired");
    assert!(world.peers[2].0.counts().send_no_key > 0);
}

#[test]
fn what_is_not_a_report_of_a_member_is_counted() {
    let mut world = World::new();
    let (now, to) = (world.now(), IpAddr::from(world.vteps[0].v4.unwrap()));
    let seal = |sender: usize, ring: u8, body: u32| {
        let mut codec =
            sluice_cluster::meters::ReportCodec::new(id(sender), BootId::random().unwrap(), WALL_MS);
        let demands = vec![sluice_cluster::meters::Demand { id: body, bytes_per_s: [0, 1] }];
        let report = sluice_cluster::meters::MeterReport { demands };
        codec.seal(&keys(ring), now.wall_ms, to, &report).unwrap()
    };
    let datagrams = [seal(9, 3, 7), seal(1, 4, 7), seal(1, 3, 0), vec![1, 2, 3]];
    for datagram in &datagrams {
        world.peers[0].0.receive(now, to, datagram);
    }
    assert_eq!(world.refused(0), [("message", 1), ("not_a_member", 1), ("short", 1), ("unknown_key", 1)]);
    assert_eq!(world.peers[0].0.counts().received, 0);
}

/// A meter whose demand is the same each time that it is read.
struct Source {
    shares: Arc<Mutex<Shares>>,
    read: AtomicU64,
}

impl MeterSource for Source {
    fn total(&self) -> u32 {
        3
    }

    fn find(&self, number: u32) -> Option<FoundMeter> {
        let shares = self.shares.lock().unwrap().last().map_or([METER_WHOLE; 2], |it| it.1);
        (number == 2).then_some(FoundMeter { id: 70, rates_kbps: [8_000, 0], shares })
    }

    fn read(&self, number: u32) -> Result<MeterBytes, sluice_datapath::Error> {
        assert_eq!(number, 2);
        let times = self.read.fetch_add(1, Ordering::Relaxed);
        Ok(MeterBytes { passed: [100_000 * times, 0], dropped: [300_000 * times, 0] })
    }
}

#[test]
fn samples_are_what_passed_and_what_was_dropped() {
    let source = Source { shares: Arc::default(), read: AtomicU64::new(1) };
    let sample = Sample { id: 70, rates: [1_000_000, 0], shares: [METER_WHOLE; 2], offered: [400_000, 0] };
    assert_eq!(SharedMeters::new(Box::new(source)).samples(), [sample]);
}

/// Needs root, for a network namespace with the addresses.
#[test]
fn two_threads_share_by_their_sockets() {
    let run = || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        let addresses = ["192.0.2.1/32", "192.0.2.2/32", "2001:db8::1/128 nodad", "2001:db8::2/128 nodad"];
        let added = addresses.map(|address| format!("address add {address} dev lo"));
        for arguments in ["link set lo up"].into_iter().chain(added.iter().map(String::as_str)) {
            let done = std::process::Command::new("ip").args(arguments.split(' ')).status().unwrap();
            assert!(done.success(), "ip {arguments}");
        }
        share_by_sockets([1, 2].map(|last| Vteps { v4: Some(Ipv4Addr::new(192, 0, 2, last)), v6: None }));
        let v6 = |last| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last);
        share_by_sockets([1, 2].map(|last| Vteps { v4: None, v6: Some(v6(last)) }));
    };
    std::thread::spawn(run).join().unwrap();
}

fn share_by_sockets(vteps: [Vteps; 2]) {
    let shares: [Arc<Mutex<Shares>>; 2] = Default::default();
    let threads = [0, 1].map(|at| {
        let (set, source) =
            (shares[at].clone(), Source { shares: shares[at].clone(), read: AtomicU64::new(0) });
        let set_shares = move |new: Shares| set.lock().unwrap_or_else(PoisonError::into_inner).extend(new);
        let config = ShareConfig {
            own: id(at),
            vteps: vteps[at],
            port: 4800,
            source: Box::new(source),
            set_shares: Box::new(set_shares),
        };
        let started = MeterShares::start(config).unwrap();
        started.send(Command::Keys(keys(3)));
        started.send(Command::View(Box::new(view(at, &vteps, &[]))));
        started
    });
    // A minute is more than enough on any machine.
    let deadline = Instant::now() + Duration::from_secs(60);
    // Both have the same demand, give or take what the scheduler does.
    let is_half = |shares: &Shares| shares.last().is_some_and(|it| (400_000..600_000).contains(&it.1[0]));
    while !shares.iter().all(|shares| is_half(&shares.lock().unwrap())) {
        assert!(Instant::now() < deadline, "{shares:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(threads);
}
