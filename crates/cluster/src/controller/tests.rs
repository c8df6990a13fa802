//! The controller of three gateways, and what it does about what they say.

use super::*;
use crate::message::Member;

const MS: u64 = 1_000;

fn id(number: u64) -> GatewayId {
    GatewayId::new(number)
}

fn vip(place: u8) -> VipId {
    VipId::new(place).unwrap()
}

struct Bench {
    controller: Controller,
    now_us: u64,
    seq: u64,
    outputs: Vec<ControllerOutput>,
}

impl Bench {
    /// Three gateways with two vIPs each; the gateways have the table already.
    fn new(table: Table) -> Self {
        let members = (1..=3).map(|number| Member { id: id(number), draining: false }).collect();
        let config = Config { revision: 1, vips: VipSet::first(6), members, hello_ms: 0 };
        let homes = (0..6).map(|place| (vip(place), id(u64::from(place) % 3 + 1))).collect();
        let plan = Plan { config, homes };
        let now_us = 1_000 * MS;
        let controller = Controller::new(ClusterId::new(1), Params::default(), 1, (plan, table), now_us);
        let mut bench = Self { controller, now_us, seq: 0, outputs: Vec::new() };
        bench.input(ControllerInput::Timer);
        bench
    }

    fn settled() -> Self {
        let mut bench = Self::new(Table::default());
        bench.pass(200, &[1, 2, 3]);
        assert_eq!(bench.owners(), [1, 2, 3, 1, 2, 3], "at once, where nobody has been there for long");
        bench.pass(2_000, &[1, 2, 3]);
        bench.outputs.clear();
        bench
    }

    fn input(&mut self, input: ControllerInput) {
        self.outputs.extend(self.controller.handle(self.now_us, input));
    }

    fn hear(&mut self, from: u64, body: Body) {
        self.seq += 1;
        let (cluster, from) = (ClusterId::new(1), Node::Gateway(id(from)));
        self.input(ControllerInput::Received(Message { cluster, from, incarnation: 1, seq: self.seq, body }));
    }

    fn heartbeat(&mut self, from: u64, hears: &[u64]) {
        let report = Report {
            config: self.controller.plan.config.revision,
            digest: self.controller.table.digest(),
            holds: self.controller.table.owned_by(id(from), VipSet::first(6)),
            hears: hears.iter().map(|&number| id(number)).collect(),
            standing: Standing::Fit,
        };
        self.hear(from, Body::Heartbeat(report));
    }

    /// So many milliseconds, in which these gateways send heartbeats every 50 and hear each other.
    fn pass(&mut self, millis: u64, gateways: &[u64]) {
        for _ in 0..millis {
            self.now_us += MS;
            if (self.now_us / MS).is_multiple_of(50) {
                for &from in gateways {
                    self.heartbeat(from, gateways);
                }
            }
            self.input(ControllerInput::Timer);
        }
    }

    /// A gateway says that it has taken these vIPs over.
    fn taken(&mut self, by: u64, places: &[u8]) {
        let claim = |place: &u8| {
            let epoch = self.controller.table.get(vip(*place)).unwrap().epoch + 1;
            (vip(*place), Claim { epoch, owner: id(by) })
        };
        let claims = places.iter().map(claim).collect();
        self.hear(by, Body::Claims(claims));
    }

    /// A gateway says that nobody answers it.
    fn cut_off(&mut self, from: u64) {
        let report = Report {
            config: self.controller.plan.config.revision,
            digest: self.controller.table.digest(),
            holds: self.controller.table.owned_by(id(from), VipSet::first(6)),
            hears: Vec::new(),
            standing: Standing::CutOff,
        };
        self.hear(from, Body::Heartbeat(report));
    }

    /// These gateways say so for longer than a moment, while the others are well.
    fn cut_off_for_long(&mut self, cut_off: &[u64]) {
        let others: Vec<u64> = (1..=3).filter(|number| !cut_off.contains(number)).collect();
        for _ in 0..600 {
            self.pass(1, &others);
            if (self.now_us / MS).is_multiple_of(50) {
                cut_off.iter().for_each(|from| self.cut_off(*from));
            }
        }
    }

    fn drain(&mut self, number: usize) {
        let mut plan = self.controller.plan.clone();
        plan.config.revision += 1;
        plan.config.members[number - 1].draining = true;
        self.input(ControllerInput::Plan(plan));
    }

    fn owners(&self) -> Vec<u64> {
        let owner = |place| self.controller.table.get(vip(place)).map_or(0, |claim| claim.owner.get());
        (0..6).map(owner).collect()
    }

    fn has(&self, wanted: &ControllerOutput) -> bool {
        self.outputs.contains(wanted)
    }

    /// When the first two vIPs went to that gateway, within so many milliseconds.
    fn returns(&mut self, to: u64, millis: u64) -> Vec<u64> {
        let mut at_us = Vec::new();
        let from_us = self.now_us;
        for _ in 0..millis {
            if at_us.len() == 2 {
                break;
            }
            let before = self.owners();
            self.pass(1, &[1, 2, 3]);
            let after = self.owners();
            let moved = before.iter().zip(&after).filter(|(before, after)| before != after && **after == to);
            at_us.extend(moved.map(|_| (self.now_us - from_us) / MS));
        }
        at_us
    }
}

#[test]
fn silence_then_a_probe_then_failure() {
    let mut bench = Bench::settled();
    // The last heartbeats are of this moment: all three, then two.
    assert!((bench.now_us / MS).is_multiple_of(50));
    bench.pass(55, &[1, 2]);
    let probes = |bench: &Bench| {
        let probe = |output: &&ControllerOutput| matches!(output, ControllerOutput::Send { to, message } if *to == id(3) && message.body == Body::Probe);
        bench.outputs.iter().filter(probe).count()
    };
    assert_eq!(probes(&bench), 0);
    bench.pass(1, &[1, 2]);
    assert_eq!((probes(&bench), bench.has(&ControllerOutput::Failed(id(3)))), (1, false));
    bench.pass(4, &[1, 2]);
    assert!(!bench.has(&ControllerOutput::Failed(id(3))));
    bench.pass(1, &[1, 2]);
    assert!(bench.has(&ControllerOutput::Failed(id(3))));
    let mut load = bench.owners();
    load.sort_unstable();
    assert_eq!(load, [1, 1, 1, 2, 2, 2]);
}

#[test]
fn who_is_heard_by_its_peers_has_not_failed() {
    let mut bench = Bench::settled();
    for _ in 0..100 {
        bench.now_us += 20 * MS;
        bench.heartbeat(1, &[2, 3]);
        bench.heartbeat(2, &[1, 3]);
    }
    assert_eq!(
        (bench.owners(), bench.has(&ControllerOutput::Failed(id(3)))),
        (vec![1, 2, 3, 1, 2, 3], false)
    );
    // An answer to the probe does as well.
    bench.now_us += 20 * MS;
    bench.heartbeat(1, &[2]);
    bench.heartbeat(2, &[1]);
    assert!(bench.has(&ControllerOutput::Failed(id(3))));
    bench.heartbeat(3, &[]);
    assert!(bench.has(&ControllerOutput::Returned(id(3))));
}

#[test]
fn confirms_what_gateways_took_and_gives_it_back_gently() {
    let mut bench = Bench::settled();
    let mut waits = Vec::new();
    for _ in 0..3 {
        let epoch = |place| bench.controller.table.get(vip(place)).unwrap().epoch + 1;
        let taken = [2, 5].map(|place| (vip(place), Claim { epoch: epoch(place), owner: id(1) }));
        bench.hear(1, Body::Claims(taken.to_vec()));
        assert_eq!(bench.owners(), [1, 2, 1, 1, 2, 1]);
        let moved =
            ControllerOutput::Moved { vip: vip(2), from: Some(id(3)), claim: taken[0].1, decided: false };
        assert!(bench.has(&moved));
        let at = bench.returns(3, 9_000);
        assert_eq!(at.len(), 2, "{at:?}");
        assert!((250..=260).contains(&(at[1] - at[0])), "{at:?}");
        waits.push(at[0] / 1_000);
    }
    // The hold-down doubles while failures follow each other.
    assert_eq!(waits, [2, 4, 8]);
}

#[test]
fn who_is_held_down_relieves_who_is_too() {
    let mut bench = Bench::settled();
    for round in 0..2 {
        bench.taken(2, &[0, 2]);
        assert_eq!(bench.owners(), [2, 2, 2, 1, 2, 3], "1 and 3 have failed");
        if round == 0 {
            bench.pass(2_500, &[1, 2, 3]);
            assert_eq!(bench.owners(), [1, 2, 3, 1, 2, 3]);
        }
    }
    let mut plan = bench.controller.plan.clone();
    plan.homes.extend([(vip(3), id(3)), (vip(4), id(3))]);
    bench.input(ControllerInput::Plan(plan));
    bench.pass(1_990, &[1, 2, 3]);
    assert_eq!(bench.owners(), [2, 2, 2, 1, 2, 3], "for two seconds nobody is relieved");
    bench.pass(1_990, &[1, 2, 3]);
    assert_eq!(bench.owners(), [2, 2, 2, 3, 2, 3], "2 is better than either");
    bench.pass(1_200, &[1, 2, 3]);
    assert_eq!(bench.owners(), [1, 2, 3, 3, 3, 3]);
}

#[test]
fn what_was_taken_from_a_gateway_does_not_go_straight_back() {
    let mut bench = Bench::settled();
    bench.taken(1, &[1]);
    bench.taken(2, &[2]);
    assert_eq!(bench.owners(), [1, 1, 2, 1, 2, 3], "2, who has 3's, is held down itself");
}

#[test]
fn who_comes_back_settles_before_it_is_given_anything() {
    let mut bench = Bench::settled();
    // Longer than any hold-down: that alone would give it everything when it is heard again.
    bench.pass(10_000, &[1, 2]);
    assert!(!bench.owners().contains(&3));
    let at = bench.returns(3, 9_000);
    assert!(at.len() == 2 && (2_000..=2_060).contains(&at[0]), "{at:?}");
    // Nor is it given what another must lose, after it said that it was cut off.
    bench.pass(1_000, &[1, 2, 3]);
    bench.cut_off_for_long(&[3]);
    bench.pass(60, &[1, 2, 3]);
    bench.drain(2);
    assert_eq!(bench.owners(), [1, 1, 3, 1, 1, 3]);
}

#[test]
fn a_drain_waits_for_one_that_has_settled() {
    let mut bench = Bench::settled();
    bench.cut_off_for_long(&[1, 3]);
    bench.pass(60, &[1, 2, 3]);
    bench.drain(2);
    bench.pass(1_900, &[1, 2, 3]);
    assert_eq!(bench.owners(), [1, 2, 3, 1, 2, 3]);
    bench.pass(100, &[1, 2, 3]);
    assert!(!bench.owners().contains(&2));
}

#[test]
fn a_moment_changes_nothing() {
    let mut bench = Bench::settled();
    for _ in 0..20 {
        bench.cut_off(1);
        bench.cut_off(3);
        bench.pass(100, &[1, 2, 3]);
    }
    bench.drain(2);
    assert!(!bench.owners().contains(&2));
}

#[test]
fn who_is_not_reached_by_the_others_does_not_settle() {
    let mut bench = Bench::settled();
    bench.pass(10_000, &[1, 2]);
    // The controller hears it, and it thinks itself fit, long before the others hear it.
    for _ in 0..5_000 {
        bench.pass(1, &[1, 2]);
        if (bench.now_us / MS).is_multiple_of(50) {
            bench.heartbeat(3, &[]);
        }
    }
    assert!(!bench.owners().contains(&3));
    let at = bench.returns(3, 9_000);
    assert!(at.len() == 2 && (2_000..=2_060).contains(&at[0]), "{at:?}");
}

#[test]
fn a_controller_that_was_away_for_long_trusts_nobody_yet() {
    let mut bench = Bench::settled();
    let mut plan = bench.controller.plan.clone();
    plan.homes.insert(vip(0), id(3));
    bench.now_us += 10_000 * MS;
    bench.input(ControllerInput::Plan(plan));
    let at = bench.returns(3, 2_500);
    assert!(at.len() == 1 && (2_000..=2_060).contains(&at[0]), "{at:?}");
}

#[test]
fn a_draining_gateway_is_relieved_at_once_and_told_when_it_is_free() {
    let mut bench = Bench::settled();
    bench.drain(2);
    let mut load = bench.owners();
    load.sort_unstable();
    assert_eq!((load, bench.has(&ControllerOutput::Drained(id(2)))), (vec![1, 1, 1, 3, 3, 3], false));
    bench.pass(50, &[1, 2, 3]);
    assert!(bench.has(&ControllerOutput::Drained(id(2))));
    bench.pass(5_000, &[1, 2, 3]);
    assert!(!bench.owners().contains(&2));
}

#[test]
fn a_new_controller_learns_before_it_decides() {
    let claims: Vec<(VipId, Claim)> =
        (0..6).map(|place| (vip(place), Claim { epoch: 9, owner: id(2) })).collect();
    let mut bench = Bench::new(Table::default());
    bench.heartbeat(1, &[2, 3]);
    bench.hear(2, Body::Claims(claims));
    bench.pass(109, &[1, 2, 3]);
    assert_eq!(bench.owners(), [2; 6]);
    bench.pass(5_000, &[1, 2, 3]);
    assert_eq!(bench.owners(), [1, 2, 3, 1, 2, 3]);
}

#[test]
fn a_paused_controller_does_not_take_its_own_silence_for_theirs() {
    let mut bench = Bench::settled();
    bench.now_us += 10_000 * MS;
    bench.input(ControllerInput::Timer);
    bench.pass(60, &[1, 2, 3]);
    assert!([1, 2, 3].iter().all(|&number| !bench.has(&ControllerOutput::Failed(id(number)))));
    assert_eq!(bench.owners(), [1, 2, 3, 1, 2, 3]);
}

#[test]
fn a_controller_that_hears_nobody_changes_nothing() {
    let mut bench = Bench::settled();
    bench.pass(1_000, &[]);
    assert_eq!(bench.owners(), [1, 2, 3, 1, 2, 3]);
    // At first it is more likely that it is deaf, later that they are gone.
    let failed = |bench: &Bench| bench.has(&ControllerOutput::Failed(id(1)));
    assert!(!failed(&bench));
    bench.pass(1_500, &[]);
    assert!(failed(&bench));
}

#[test]
fn a_pause_of_the_controller_brings_nobody_back() {
    let mut bench = Bench::settled();
    bench.pass(100, &[1, 2]);
    assert!(bench.has(&ControllerOutput::Failed(id(3))));
    bench.outputs.clear();
    bench.now_us += 10_000 * MS;
    bench.input(ControllerInput::Timer);
    bench.pass(300, &[1, 2]);
    assert!(!bench.has(&ControllerOutput::Returned(id(3))) && !bench.has(&ControllerOutput::Failed(id(3))));
    bench.pass(100, &[1, 2, 3]);
    assert!(bench.has(&ControllerOutput::Returned(id(3))));
}

#[test]
fn who_is_cut_off_is_vouched_for_to_nobody_but_itself() {
    let mut bench = Bench::settled();
    bench.cut_off(2);
    bench.heartbeat(3, &[1]);
    let hears = |bench: &Bench, whom: u64| {
        let pulse = |output: &ControllerOutput| match output {
            ControllerOutput::Send { to, message } if *to == id(whom) => match &message.body {
                Body::Pulse(pulse) => Some(pulse.hears.clone()),
                _ => None,
            },
            _ => None,
        };
        bench.outputs.iter().rev().find_map(pulse).unwrap()
    };
    assert_eq!(hears(&bench, 2), [1, 2, 3].map(id));
    assert_eq!(hears(&bench, 3), [1, 3].map(id));
}

#[test]
fn another_hello_interval_makes_nobody_fail() {
    let mut bench = Bench::settled();
    let plan = |revision: u64, hello_ms: u16| Plan {
        config: Config { revision, hello_ms, ..bench.controller.plan().config.clone() },
        homes: bench.controller.plan().homes.clone(),
    };
    let (slowly, fast) = (plan(2, 40), plan(3, 4));
    bench.input(ControllerInput::Plan(slowly));
    // Ten times as long as usual without a heartbeat of the third: 500 ms, and 550 until a probe.
    let failed = |bench: &Bench| bench.outputs.iter().any(|it| matches!(it, ControllerOutput::Failed(_)));
    for _ in 0..4 {
        bench.pass(450, &[1, 2]);
        bench.pass(51, &[1, 2, 3]);
    }
    assert!(!failed(&bench));
    // It takes them a while to learn that they shall be heard more often again.
    bench.input(ControllerInput::Plan(fast));
    bench.pass(450, &[1, 2]);
    bench.pass(51, &[1, 2, 3]);
    bench.pass(450, &[1, 2]);
    assert!(!failed(&bench));
    bench.pass(1_000, &[1, 2, 3]);
    bench.pass(100, &[1, 2]);
    assert!(bench.has(&ControllerOutput::Failed(id(3))));
}
