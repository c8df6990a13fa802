//! One gateway, number 1 of three, and what it does about what it hears.

use super::*;
use crate::message::Member;
use crate::order::Candidate;

const MS: u64 = 1_000;

fn id(number: u64) -> GatewayId {
    GatewayId::new(number)
}

fn vip(place: u8) -> VipId {
    VipId::new(place).unwrap()
}

fn set(places: &[u8]) -> VipSet {
    places.iter().map(|&place| vip(place)).collect()
}

/// A gateway and the world around it: its peers say hello when told to.
struct Bench {
    gateway: Gateway,
    now_us: u64,
    seq: u64,
    outputs: Vec<Output>,
}

impl Bench {
    /// vIP n belongs to gateway n + 1; `members` gateways.
    fn new(members: u64) -> Self {
        let claim = |number: u64| (vip(number as u8 - 1), Claim { epoch: 1, owner: id(number) });
        let table = Table::from_claims((1..=members).map(claim));
        let members: Vec<Member> =
            (1..=members).map(|number| Member { id: id(number), draining: false }).collect();
        let config = Config { revision: 1, vips: VipSet::first(members.len()), members, hello_ms: 0 };
        let start_us = 1_000 * MS;
        let gateway = Gateway::new(id(1), ClusterId::new(1), Params::default(), 1, (config, table), start_us);
        let mut bench = Self { gateway, now_us: start_us, seq: 0, outputs: Vec::new() };
        bench.input(Input::Timer);
        bench
    }

    /// One of three that has listened and heard its peers.
    fn settled() -> Self {
        let mut bench = Self::new(3);
        bench.pass(20, &[2, 3]);
        assert_eq!((bench.gateway.standing(), bench.gateway.holds()), (Standing::Fit, set(&[0])));
        bench.outputs.clear();
        bench
    }

    fn input(&mut self, input: Input) {
        self.outputs.extend(self.gateway.handle(self.now_us, input));
    }

    fn message(&mut self, from: Node, body: Body) -> Message {
        self.seq += 1;
        Message { cluster: ClusterId::new(1), from, incarnation: 1, seq: self.seq, body }
    }

    fn hear(&mut self, from: Node, body: Body) {
        let message = self.message(from, body);
        self.input(Input::Received(message));
    }

    fn report(&self, holds: VipSet, hears: &[u64]) -> Report {
        Report {
            config: self.gateway.config().revision,
            digest: self.gateway.table().digest(),
            holds,
            hears: hears.iter().map(|&number| id(number)).collect(),
            standing: Standing::Fit,
        }
    }

    fn hello(&mut self, from: u64, hears: &[u64]) {
        let holds = self.gateway.table().owned_by(id(from), self.gateway.config().vips);
        let report = self.report(holds, hears);
        self.hear(Node::Gateway(id(from)), Body::Hello(report));
    }

    fn claim(&mut self, from: Node, place: u8, epoch: u64, owner: u64) {
        self.hear(from, Body::Claims(vec![(vip(place), Claim { epoch, owner: id(owner) })]));
    }

    /// So many milliseconds in which these peers are heard, and hear each other and this gateway.
    fn pass(&mut self, millis: u64, peers: &[u64]) {
        for _ in 0..millis {
            self.now_us += MS;
            for &peer in peers {
                let others: Vec<u64> = [1].iter().chain(peers).copied().filter(|n| *n != peer).collect();
                self.hello(peer, &others);
            }
            self.input(Input::Timer);
        }
    }

    /// Until it asks whether anybody is there.
    fn pass_until_alone(&mut self) {
        let asked = (0..100).any(|_| {
            self.pass(1, &[]);
            self.last_probe().is_some()
        });
        assert!(asked);
    }

    fn announced(&self) -> Vec<(u8, Reason)> {
        let announced = |output: &Output| match output {
            Output::Announce { vip, reason } => Some((vip.get(), *reason)),
            _ => None,
        };
        self.outputs.iter().filter_map(announced).collect()
    }

    fn took(&self) -> Vec<u8> {
        let taken = |(vip, reason): (u8, Reason)| matches!(reason, Reason::TakenOver { .. }).then_some(vip);
        self.announced().into_iter().filter_map(taken).collect()
    }

    fn withdrew(&self) -> Vec<u8> {
        let withdrew = |output: &Output| match output {
            Output::Withdraw { vip } => Some(vip.get()),
            _ => None,
        };
        self.outputs.iter().filter_map(withdrew).collect()
    }

    fn contact_told(&self) -> Vec<Incident> {
        let told = |output: &Output| match output {
            Output::Happened(it @ (Incident::CutOff | Incident::Reconnected)) => Some(*it),
            _ => None,
        };
        self.outputs.iter().filter_map(told).collect()
    }

    fn last_probe(&self) -> Option<u64> {
        self.outputs.iter().rev().find_map(|output| match output {
            Output::ProbeWitness { token, .. } => Some(*token),
            _ => None,
        })
    }
}

#[test]
fn listens_before_it_announces() {
    let mut bench = Bench::new(3);
    bench.pass(11, &[2, 3]);
    assert_eq!(bench.announced(), []);
    bench.pass(1, &[2, 3]);
    assert_eq!(bench.announced(), [(0, Reason::Assigned)]);
    bench.pass(200, &[2, 3]);
    assert_eq!(bench.announced()[1..], [(0, Reason::Repeat); 3]);
    bench.pass(30_000, &[2, 3]);
    assert_eq!(bench.announced()[4..], [(0, Reason::Refresh)]);
}

#[test]
fn takes_what_a_silent_peer_owned_once_nobody_hears_it() {
    let mut bench = Bench::settled();
    // It died after its last hello; the other says for 20 ms that it still hears it.
    for _ in 0..20 {
        bench.now_us += MS;
        bench.hello(3, &[1, 2]);
    }
    assert_eq!((bench.took(), bench.gateway.hears(Node::Gateway(id(2)), bench.now_us)), (vec![], false));
    bench.hello(3, &[1]);
    // Both have one vIP, so the order for this one decides, and the second waits a step.
    let first = bench.took() == [1];
    bench.now_us += Params::default().step_us;
    bench.hello(3, &[1]);
    assert_eq!(bench.took(), [1]);
    let candidates = [1, 3].map(|number| Candidate { id: id(number), load: 1 });
    assert_eq!(first, crate::order::rank(vip(1), id(1), &candidates) == Some(0));
    assert_eq!(bench.gateway.table().get(vip(1)), Some(Claim { epoch: 2, owner: id(1) }));
    assert_eq!(bench.gateway.holds(), set(&[0, 1]));
}

#[test]
fn one_dead_link_is_no_dead_peer() {
    let mut bench = Bench::settled();
    for _ in 0..1_000 {
        bench.now_us += MS;
        bench.hello(3, &[1, 2]);
    }
    assert_eq!((bench.took(), bench.withdrew()), (vec![], vec![]));
}

#[test]
fn old_messages_keep_nobody_alive() {
    let mut bench = Bench::settled();
    let report = bench.report(set(&[1]), &[1, 3]);
    let old = bench.message(Node::Gateway(id(2)), Body::Hello(report));
    bench.input(Input::Received(old.clone()));
    for _ in 0..20 {
        bench.now_us += MS;
        bench.hello(3, &[1]);
        bench.input(Input::Received(old.clone()));
    }
    assert_eq!(bench.took(), [1]);
}

#[test]
fn who_hears_nobody_asks_before_it_takes() {
    for (answer_late_us, takes) in [(Some(0), true), (Some(2 * MS), true), (None, false)] {
        let mut bench = Bench::settled();
        bench.pass_until_alone();
        assert_eq!(bench.took(), []);
        let token = bench.last_probe().unwrap();
        // What was asked before it was alone proves nothing.
        bench.input(Input::Witness { token: token - 1 });
        bench.input(Input::Timer);
        assert_eq!((bench.took(), bench.gateway.standing()), (vec![], Standing::Fit));
        if let Some(late_us) = answer_late_us {
            bench.now_us += late_us;
            bench.input(Input::Witness { token });
            assert_eq!(bench.took(), [1, 2]);
        }
        bench.pass(10, &[]);
        assert_eq!(bench.took().is_empty(), !takes);
        assert_eq!(bench.gateway.standing(), if takes { Standing::Fit } else { Standing::CutOff });
    }
}

#[test]
fn the_controllers_answer_counts_as_well() {
    let mut bench = Bench::settled();
    bench.pass_until_alone();
    let echo = bench.last_probe().unwrap();
    let digest = bench.gateway.table().digest();
    let pulse = |echo, hears| Body::Pulse(Pulse { echo, config: 1, digest, hears });
    bench.hear(Node::Controller, pulse(echo - 1, vec![id(1)]));
    bench.hear(Node::Controller, pulse(echo, vec![id(2)]));
    // It hears us and another: one of both has no underlay, and nobody knows which.
    bench.hear(Node::Controller, pulse(echo, vec![id(1), id(2)]));
    assert_eq!(bench.took(), []);
    bench.hear(Node::Controller, pulse(echo, vec![id(1)]));
    assert_eq!(bench.took(), [1, 2]);
}

#[test]
fn a_cut_off_peer_is_relieved_and_returns_by_listening() {
    let mut bench = Bench::settled();
    let mut report = bench.report(set(&[1]), &[]);
    report.standing = Standing::CutOff;
    bench.hear(Node::Gateway(id(2)), Body::Hello(report));
    bench.now_us += Params::default().step_us;
    bench.input(Input::Timer);
    assert_eq!(bench.took(), [1]);
    // And this one itself: cut off, then answered again, it announces what is still its own.
    let mut bench = Bench::settled();
    bench.pass(14, &[]);
    bench.outputs.clear();
    bench.pass(40, &[]);
    assert_eq!((bench.gateway.standing(), bench.announced()), (Standing::CutOff, vec![]));
    bench.claim(Node::Gateway(id(2)), 0, 2, 2);
    bench.hello(2, &[1, 3]);
    assert_eq!((bench.gateway.standing(), bench.withdrew()), (Standing::Listening, vec![0]));
    bench.pass(30, &[2, 3]);
    assert_eq!((bench.gateway.standing(), bench.announced()), (Standing::Fit, vec![]));
    assert_eq!(bench.contact_told(), [Incident::CutOff, Incident::Reconnected]);
}

#[test]
fn that_it_was_cut_off_outlasts_a_pause() {
    let mut bench = Bench::settled();
    bench.pass(54, &[]);
    bench.now_us += 100 * MS;
    bench.pass(40, &[]);
    assert_eq!((bench.gateway.standing(), bench.contact_told()), (Standing::CutOff, vec![Incident::CutOff]));
    bench.pass(40, &[2, 3]);
    assert_eq!(bench.contact_told(), [Incident::CutOff, Incident::Reconnected]);
}

#[test]
fn who_was_paused_listens_first() {
    let mut bench = Bench::settled();
    // Repetitions, refresh and the silence of all peers are due when it wakes up.
    bench.now_us += 40_000 * MS;
    bench.input(Input::Timer);
    assert_eq!((bench.gateway.standing(), bench.announced()), (Standing::Listening, vec![]));
    bench.claim(Node::Gateway(id(3)), 0, 2, 2);
    bench.hello(2, &[1, 3]);
    assert_eq!((bench.withdrew(), bench.announced()), (vec![0], vec![]));
    bench.pass(100, &[2, 3]);
    assert_eq!(bench.announced(), []);
    // Nobody took it: then it says so again, once it has listened.
    let mut bench = Bench::settled();
    bench.now_us += 40_000 * MS;
    bench.pass(12, &[2, 3]);
    assert_eq!(bench.announced(), []);
    bench.pass(1, &[2, 3]);
    assert_eq!(bench.announced(), [(0, Reason::Resumed)]);
}

#[test]
fn gives_way_only_to_who_answers() {
    let mut bench = Bench::settled();
    bench.claim(Node::Controller, 0, 2, 2);
    let report = bench.report(set(&[1]), &[1, 3]);
    bench.hear(Node::Gateway(id(2)), Body::Hello(report));
    assert_eq!(bench.withdrew(), []);
    let report = bench.report(set(&[0, 1]), &[1, 3]);
    bench.hear(Node::Gateway(id(2)), Body::Hello(report));
    assert_eq!((bench.withdrew(), bench.gateway.holds()), (vec![0], VipSet::EMPTY));
}

#[test]
fn the_winner_announces_again_when_its_rival_stops() {
    let mut bench = Bench::settled();
    let both = bench.report(set(&[0, 1]), &[1, 3]);
    bench.hear(Node::Gateway(id(2)), Body::Hello(both));
    assert_eq!(bench.announced(), []);
    bench.hello(2, &[1, 3]);
    assert_eq!(bench.announced(), [(0, Reason::RivalGone)]);
}

#[test]
fn who_cried_wolf_is_given_longer() {
    let mut bench = Bench::settled();
    let silent_until_taken = |bench: &mut Bench| {
        // Its own again, as if the controller had moved it back.
        let epoch = bench.gateway.table().get(vip(1)).unwrap().epoch;
        bench.claim(Node::Controller, 1, epoch + 1, 2);
        bench.pass(50, &[2, 3]);
        bench.outputs.clear();
        let from_us = bench.now_us;
        while bench.took().is_empty() && bench.now_us - from_us < 1_000 * MS {
            bench.now_us += MS;
            bench.hello(3, &[1]);
        }
        bench.now_us - from_us
    };
    let first_us = silent_until_taken(&mut bench);
    let second_us = silent_until_taken(&mut bench);
    let third_us = silent_until_taken(&mut bench);
    let step_us = Params::default().step_us;
    assert!((14 * MS..=14 * MS + step_us).contains(&first_us), "{first_us}");
    assert!((27 * MS..=27 * MS + step_us).contains(&second_us), "{second_us}");
    assert!((53 * MS..=53 * MS + step_us).contains(&third_us), "{third_us}");
}

#[test]
fn a_missed_claim_or_configuration_is_handed_on() {
    let mut bench = Bench::settled();
    let mut report = bench.report(set(&[1]), &[1, 3]);
    (report.digest, report.config) = (report.digest ^ 1, 0);
    bench.hear(Node::Gateway(id(2)), Body::Hello(report));
    let sent: Vec<&Body> = bench
        .outputs
        .iter()
        .filter_map(|output| match output {
            Output::Send { to, message } if *to == Node::Gateway(id(2)) => Some(&message.body),
            _ => None,
        })
        .collect();
    assert!(sent.contains(&&Body::Config(bench.gateway.config().clone())), "{sent:?}");
    assert!(sent.contains(&&Body::Claims(bench.gateway.table().iter().collect())), "{sent:?}");
}

#[test]
fn a_draining_gateway_takes_nothing_and_says_when_it_is_free() {
    let mut bench = Bench::settled();
    let mut config = bench.gateway.config().clone();
    (config.revision, config.members[0].draining) = (2, true);
    bench.input(Input::Config(config));
    for _ in 0..30 {
        bench.now_us += MS;
        bench.hello(3, &[1]);
    }
    assert_eq!((bench.took(), bench.outputs.contains(&Output::Happened(Incident::Drained))), (vec![], false));
    bench.claim(Node::Controller, 0, 2, 3);
    bench.hello(3, &[1]);
    assert_eq!(bench.withdrew(), [0]);
    assert!(bench.outputs.contains(&Output::Happened(Incident::Drained)));
    // Unless there is nobody else.
    for _ in 0..30 {
        bench.pass(1, &[]);
        if let Some(token) = bench.last_probe() {
            bench.input(Input::Witness { token });
        }
    }
    assert_eq!(bench.gateway.holds(), set(&[0, 1, 2]));
}

#[test]
fn who_is_no_member_any_more_lets_go() {
    let mut bench = Bench::settled();
    let mut config = bench.gateway.config().clone();
    config.revision = 2;
    config.members.remove(0);
    bench.input(Input::Config(config));
    bench.claim(Node::Controller, 0, 2, 3);
    bench.pass(25, &[]);
    assert_eq!((bench.withdrew(), bench.took()), (vec![0], vec![]));
}

#[test]
fn a_restarted_agent_keeps_what_its_programs_answer_for() {
    let settled = Bench::settled().gateway;
    let restart = |saved: (Config, Table)| {
        let start_us = 2_000 * MS;
        let gateway = Gateway::new(id(1), ClusterId::new(1), Params::default(), 2, saved, start_us);
        let gateway = gateway.holding(set(&[0, 1]));
        let mut bench = Bench { gateway, now_us: start_us, seq: 100, outputs: Vec::new() };
        bench.input(Input::Timer);
        bench
    };
    // vIP 1 went to its new owner meanwhile, which answers for it; vIP 0 is its own.
    let mut bench = restart((settled.config().clone(), settled.table().clone()));
    assert_eq!(bench.gateway.holds(), set(&[0, 1]));
    bench.pass(20, &[2, 3]);
    assert_eq!((bench.withdrew(), bench.announced()), (vec![1], vec![(0, Reason::Resumed)]));
    // Without a disk it waits until it is told, and changes nothing before.
    let mut bench = restart(Default::default());
    bench.pass(50, &[]);
    assert_eq!((bench.withdrew(), bench.announced()), (vec![], vec![]));
    bench.input(Input::Config(settled.config().clone()));
    bench.hear(Node::Gateway(id(2)), Body::Claims(settled.table().iter().collect()));
    bench.pass(20, &[2, 3]);
    assert_eq!((bench.withdrew(), bench.gateway.holds()), (vec![1], set(&[0])));
}

#[test]
fn who_was_removed_is_told_by_those_who_stay() {
    let mut bench = Bench::settled();
    let mut config = bench.gateway.config().clone();
    config.revision = 2;
    config.members.retain(|member| member.id != id(2));
    bench.input(Input::Config(config.clone()));
    bench.outputs.clear();
    let mut report = bench.report(set(&[1]), &[1, 3]);
    (report.config, report.digest) = (1, 0);
    bench.hear(Node::Gateway(id(2)), Body::Hello(report));
    let told: Vec<&Body> = bench
        .outputs
        .iter()
        .filter_map(|output| match output {
            Output::Send { to, message } if *to == Node::Gateway(id(2)) => Some(&message.body),
            _ => None,
        })
        .collect();
    assert_eq!(told[0], &Body::Config(config));
    assert!(matches!(told[1], Body::Claims(_)), "{told:?}");
    // Who knows is not told again.
    bench.outputs.clear();
    let report = bench.report(VipSet::EMPTY, &[]);
    bench.hear(Node::Gateway(id(2)), Body::Hello(report));
    let to_it = |output: &Output| matches!(output, Output::Send { to, .. } if *to == Node::Gateway(id(2)));
    assert!(!bench.outputs.iter().any(to_it));
}

#[test]
fn a_lone_survivor_takes_over_however_late_its_witnesses_answer() {
    let mut bench = Bench::settled();
    bench.pass_until_alone();
    // Each answer comes 6 ms after its question: later than it waits before it says that it is cut off.
    let mut asked: Vec<(u64, u64)> = Vec::new();
    for _ in 0..100 {
        bench.pass(1, &[]);
        if let Some(token) = bench.last_probe() {
            asked.push((bench.now_us + 6 * MS, token));
            bench.outputs.retain(|output| !matches!(output, Output::ProbeWitness { .. }));
        }
        for (_, token) in asked.extract_if(.., |(due_us, _)| *due_us <= bench.now_us).collect::<Vec<_>>() {
            bench.input(Input::Witness { token });
        }
    }
    assert_eq!((bench.took(), bench.gateway.standing()), (vec![1, 2], Standing::Fit));
}

#[test]
fn who_cannot_read_what_the_others_say_takes_nothing() {
    let mut bench = Bench::settled();
    for _ in 0..60 {
        bench.pass(1, &[]);
        bench.input(Input::Unreadable);
        let token = bench.gateway.seq;
        bench.input(Input::Witness { token });
    }
    assert_eq!((bench.took(), bench.gateway.standing()), (vec![], Standing::CutOff));
    // When the others are silent as well, they are gone.
    for _ in 0..60 {
        bench.pass(1, &[]);
        let token = bench.gateway.seq;
        bench.input(Input::Witness { token });
    }
    assert_eq!(bench.took(), [1, 2]);
}

#[test]
fn the_controllers_word_ends_no_service_of_a_split_side() {
    let mut bench = Bench::settled();
    let digest = bench.gateway.table().digest();
    let mut draining = Vec::new();
    for drained in [false, true] {
        // The others are on the other side of a split, of which the controller hears both.
        for step in 0..400_u64 {
            bench.pass(1, &[]);
            let token = bench.gateway.seq;
            bench.input(Input::Witness { token });
            if step % 50 == 0 {
                let hears = vec![id(1), id(2), id(3)];
                bench.hear(Node::Controller, Body::Pulse(Pulse { echo: 0, config: 1, digest, hears }));
            }
            // By now it believes the controller that they live.
            if step == 300 && !drained {
                assert_eq!(bench.took(), [1, 2]);
                bench.claim(Node::Controller, 0, 9, 2);
            }
        }
        draining.push(bench.withdrew());
        let mut config = bench.gateway.config().clone();
        config.revision += 1;
        config.members[0].draining = true;
        bench.input(Input::Config(config));
    }
    assert_eq!(
        draining,
        [vec![], vec![0]],
        "hosts of its side have nobody else; one that is drained lets go"
    );
}

#[test]
fn no_member_can_end_the_clusters_configuration_or_a_vips_moves() {
    let mut bench = Bench::settled();
    let last = Config { revision: u64::MAX, ..bench.gateway.config().clone() };
    bench.hear(Node::Gateway(id(2)), Body::Config(last));
    assert_eq!(bench.gateway.config().revision, 1);
    bench.claim(Node::Gateway(id(2)), 1, u64::MAX, 3);
    assert_eq!(bench.gateway.table().get(vip(1)), Some(Claim { epoch: 1, owner: id(2) }));
}

/// Milliseconds from one hello to the next, over so long, while peers are heard every `peers_ms`.
fn hellos(bench: &mut Bench, millis: u64, peers_ms: u64) -> Vec<u64> {
    let mut said = Vec::new();
    for at_ms in 1..=millis {
        bench.outputs.clear();
        bench.pass(1, if at_ms % peers_ms == 0 { &[2, 3] } else { &[] });
        let hello = |output: &Output| matches!(output, Output::Send { message, .. } if matches!(message.body, Body::Hello(_)));
        if bench.outputs.iter().any(hello) {
            said.push(at_ms);
        }
    }
    said.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

#[test]
fn another_hello_interval_makes_nobody_seem_dead() {
    let mut bench = Bench::settled();
    let slowly = Config { revision: 2, hello_ms: 40, ..bench.gateway.config().clone() };
    bench.input(Input::Config(slowly.clone()));
    // Its peers may still expect a hello every 4 ms, while they say theirs every 40 already.
    let gaps = hellos(&mut bench, 1_000, 40);
    assert!(gaps.iter().all(|gap| *gap <= 4), "{gaps:?}");
    // 1.4 s later nobody does.
    hellos(&mut bench, 400, 40);
    let gaps = hellos(&mut bench, 400, 40);
    assert!(gaps.len() > 5 && gaps.iter().all(|gap| *gap == 40), "{gaps:?}");
    assert_eq!((bench.gateway.standing(), bench.gateway.holds()), (Standing::Fit, set(&[0])));
    // Back again: it speaks fast at once, and those who still speak slowly live.
    bench.input(Input::Config(Config { revision: 3, hello_ms: 4, ..slowly }));
    let gaps = hellos(&mut bench, 1_000, 40);
    assert!(gaps.len() > 200 && gaps.iter().all(|gap| *gap <= 4), "{gaps:?}");
    assert!(bench.gateway.peers.iter().all(|peer| peer.alarms == 0 && !peer.dead));
    hellos(&mut bench, 500, 4);
    assert_eq!((bench.gateway.standing(), bench.gateway.holds()), (Standing::Fit, set(&[0])));
    // Who dies now is found dead as fast as ever.
    bench.pass(12, &[2]);
    let is_dead = |bench: &Bench| bench.gateway.peers.iter().any(|peer| peer.id == id(3) && peer.dead);
    assert!(!is_dead(&bench));
    bench.pass(2, &[2]);
    assert!(is_dead(&bench));
}
