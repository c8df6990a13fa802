//! Tests of the controller of three gateways, by the messages that it receives.

use super::*;
use crate::message::Member;
use crate::readiness::TableReport;

const MS: u64 = 1_000;

fn id(number: u64) -> GatewayId {
    GatewayId::new(number)
}

fn vip(slot: u8) -> VipId {
    VipId::new(slot).unwrap()
}

/// A controller, its clock, and the outputs that it has made. Tests send it the messages of the gateways.
struct Fixture {
    controller: Controller,
    now_us: u64,
    seq: u64,
    /// Gateways whose tables are behind.
    behind: Vec<u64>,
    /// Gateways without copies of all sessions.
    without_copies: Vec<u64>,
    outputs: Vec<ControllerOutput>,
}

impl Fixture {
    /// Makes a controller of three gateways, each of which is the preferred owner of two vIPs.
    fn new(table: Table) -> Self {
        let members = (1..=3).map(|number| Member { id: id(number), draining: false }).collect();
        let config = Config { revision: 1, vips: VipSet::first(6), members, hello_interval_ms: 0 };
        let preferred_owners = (0..6).map(|slot| (vip(slot), id(u64::from(slot) % 3 + 1))).collect();
        let plan = OwnershipPlan { config, preferred_owners };
        let now_us = 1_000 * MS;
        let controller = Controller::new(ClusterId::new(1), Params::default(), 1, (plan, table), now_us);
        let (behind, without_copies, outputs) = (Vec::new(), Vec::new(), Vec::new());
        let mut fixture = Self { controller, now_us, seq: 0, behind, without_copies, outputs };
        fixture.input(ControllerInput::Timer);
        fixture
    }

    /// Makes a controller whose gateways are settled and own their vIPs.
    fn settled() -> Self {
        let mut fixture = Self::new(Table::default());
        fixture.pass(200, &[1, 2, 3]);
        assert_eq!(fixture.owners(), [1, 2, 3, 1, 2, 3], "assigned at once, because no gateway is settled");
        fixture.pass(2_000, &[1, 2, 3]);
        fixture.outputs.clear();
        fixture
    }

    fn input(&mut self, input: ControllerInput) {
        self.outputs.extend(self.controller.handle(self.now_us, input));
    }

    fn receive(&mut self, from: u64, body: Body) {
        self.seq += 1;
        let (cluster, from) = (ClusterId::new(1), Node::Gateway(id(from)));
        self.input(ControllerInput::Received(Message { cluster, from, incarnation: 1, seq: self.seq, body }));
    }

    fn tables(&self, of: u64) -> TableReport {
        let copies = !self.without_copies.contains(&of);
        TableReport { revision: 50, behind: self.behind.contains(&of), copies, translates: true }
    }

    fn heartbeat(&mut self, from: u64, reachable: &[u64]) {
        let report = Report {
            config: self.controller.plan.config.revision,
            digest: self.controller.table.digest(),
            holds: self.controller.table.owned_by(id(from), VipSet::first(6)),
            reachable: reachable.iter().map(|&number| id(number)).collect(),
            health: Health::Ready,
            tables: self.tables(from),
        };
        self.receive(from, Body::Heartbeat(report));
    }

    /// Lets `millis` milliseconds pass, in which these gateways send heartbeats every 50 ms and reach each
    /// other.
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

    /// Gateway `by` claims that it has taken these vIPs over.
    fn taken_over(&mut self, by: u64, slots: &[u8]) {
        let claim = |slot: &u8| {
            let epoch = self.controller.table.get(vip(*slot)).unwrap().epoch + 1;
            (vip(*slot), Claim { epoch, owner: id(by) })
        };
        let claims = slots.iter().map(claim).collect();
        self.receive(by, Body::Claims(claims));
    }

    /// A gateway reports itself isolated.
    fn isolated(&mut self, from: u64) {
        let report = Report {
            config: self.controller.plan.config.revision,
            digest: self.controller.table.digest(),
            holds: self.controller.table.owned_by(id(from), VipSet::first(6)),
            reachable: Vec::new(),
            health: Health::Isolated,
            tables: self.tables(from),
        };
        self.receive(from, Body::Heartbeat(report));
    }

    /// These gateways report themselves isolated for longer than a brief failure, while the others are ready.
    fn isolated_for_long(&mut self, isolated: &[u64]) {
        let others: Vec<u64> = (1..=3).filter(|number| !isolated.contains(number)).collect();
        for _ in 0..600 {
            self.pass(1, &others);
            if (self.now_us / MS).is_multiple_of(50) {
                isolated.iter().for_each(|from| self.isolated(*from));
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
        let owner = |slot| self.controller.table.get(vip(slot)).map_or(0, |claim| claim.owner.get());
        (0..6).map(owner).collect()
    }

    fn has(&self, wanted: &ControllerOutput) -> bool {
        self.outputs.contains(wanted)
    }

    /// Lets up to `millis` milliseconds pass until two vIPs have moved to gateway `to`. Returns the times of
    /// the moves.
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
fn silent_gateway_is_probed_and_then_declared_failed() {
    let mut fixture = Fixture::settled();
    // The last heartbeat of gateway 3 was sent at this moment.
    assert!((fixture.now_us / MS).is_multiple_of(50));
    fixture.pass(55, &[1, 2]);
    let probes = |fixture: &Fixture| {
        let probe = |output: &&ControllerOutput| match output {
            ControllerOutput::Send { to, message } => *to == id(3) && message.body == Body::Probe,
            _ => false,
        };
        fixture.outputs.iter().filter(probe).count()
    };
    assert_eq!(probes(&fixture), 0);
    fixture.pass(1, &[1, 2]);
    assert_eq!((probes(&fixture), fixture.has(&ControllerOutput::Failed(id(3)))), (1, false));
    fixture.pass(4, &[1, 2]);
    assert!(!fixture.has(&ControllerOutput::Failed(id(3))));
    fixture.pass(1, &[1, 2]);
    assert!(fixture.has(&ControllerOutput::Failed(id(3))));
    let mut load = fixture.owners();
    load.sort_unstable();
    assert_eq!(load, [1, 1, 1, 2, 2, 2]);
}

#[test]
fn gateway_reached_by_its_peers_has_not_failed() {
    let mut fixture = Fixture::settled();
    for _ in 0..100 {
        fixture.now_us += 20 * MS;
        fixture.heartbeat(1, &[2, 3]);
        fixture.heartbeat(2, &[1, 3]);
    }
    assert_eq!(
        (fixture.owners(), fixture.has(&ControllerOutput::Failed(id(3)))),
        (vec![1, 2, 3, 1, 2, 3], false)
    );
    // Without its peers it has failed; a heartbeat brings it back.
    fixture.now_us += 20 * MS;
    fixture.heartbeat(1, &[2]);
    fixture.heartbeat(2, &[1]);
    assert!(fixture.has(&ControllerOutput::Failed(id(3))));
    fixture.heartbeat(3, &[]);
    assert!(fixture.has(&ControllerOutput::Returned(id(3))));
}

#[test]
fn takeovers_are_confirmed_and_vips_are_returned_after_the_hold_down() {
    let mut fixture = Fixture::settled();
    let mut waits = Vec::new();
    for _ in 0..3 {
        let epoch = |slot| fixture.controller.table.get(vip(slot)).unwrap().epoch + 1;
        let taken = [2, 5].map(|slot| (vip(slot), Claim { epoch: epoch(slot), owner: id(1) }));
        fixture.receive(1, Body::Claims(taken.to_vec()));
        assert_eq!(fixture.owners(), [1, 2, 1, 1, 2, 1]);
        let moved =
            ControllerOutput::Moved { vip: vip(2), from: Some(id(3)), claim: taken[0].1, decided: false };
        assert!(fixture.has(&moved));
        let at = fixture.returns(3, 9_000);
        assert_eq!(at.len(), 2, "{at:?}");
        assert!((250..=260).contains(&(at[1] - at[0])), "{at:?}");
        waits.push(at[0] / 1_000);
    }
    // The hold-down doubles with each failure.
    assert_eq!(waits, [2, 4, 8]);
}

#[test]
fn hold_down_is_waived_if_the_owner_is_held_down_too() {
    let mut fixture = Fixture::settled();
    for round in 0..2 {
        fixture.taken_over(2, &[0, 2]);
        assert_eq!(fixture.owners(), [2, 2, 2, 1, 2, 3], "1 and 3 have failed");
        if round == 0 {
            fixture.pass(2_500, &[1, 2, 3]);
            assert_eq!(fixture.owners(), [1, 2, 3, 1, 2, 3]);
        }
    }
    let mut plan = fixture.controller.plan.clone();
    plan.preferred_owners.extend([(vip(3), id(3)), (vip(4), id(3))]);
    fixture.input(ControllerInput::Plan(plan));
    fixture.pass(1_990, &[1, 2, 3]);
    assert_eq!(fixture.owners(), [2, 2, 2, 1, 2, 3], "no hold-down is waived for two seconds");
    fixture.pass(1_990, &[1, 2, 3]);
    assert_eq!(
        fixture.owners(),
        [2, 2, 2, 3, 2, 3],
        "gateway 2 has not failed, so the hold-down of the others counts"
    );
    fixture.pass(1_200, &[1, 2, 3]);
    assert_eq!(fixture.owners(), [1, 2, 3, 3, 3, 3]);
}

#[test]
fn vip_is_not_returned_right_after_a_takeover() {
    let mut fixture = Fixture::settled();
    fixture.taken_over(1, &[1]);
    fixture.taken_over(2, &[2]);
    assert_eq!(
        fixture.owners(),
        [1, 1, 2, 1, 2, 3],
        "gateway 2, which took the vIP of gateway 3, is held down itself"
    );
}

#[test]
fn returned_gateway_gets_vips_only_after_the_preempt_delay() {
    let mut fixture = Fixture::settled();
    // Longer than any hold-down: without the preempt delay, it would get its vIPs as soon as it is reachable.
    fixture.pass(10_000, &[1, 2]);
    assert!(!fixture.owners().contains(&3));
    let at = fixture.returns(3, 9_000);
    assert!(at.len() == 2 && (2_000..=2_060).contains(&at[0]), "{at:?}");
    // After an isolation it does not get the vIPs of a draining gateway either.
    fixture.pass(1_000, &[1, 2, 3]);
    fixture.isolated_for_long(&[3]);
    fixture.pass(60, &[1, 2, 3]);
    fixture.drain(2);
    assert_eq!(fixture.owners(), [1, 1, 3, 1, 1, 3]);
}

#[test]
fn drain_waits_for_a_settled_gateway() {
    let mut fixture = Fixture::settled();
    fixture.isolated_for_long(&[1, 3]);
    fixture.pass(60, &[1, 2, 3]);
    fixture.drain(2);
    fixture.pass(1_900, &[1, 2, 3]);
    assert_eq!(fixture.owners(), [1, 2, 3, 1, 2, 3]);
    fixture.pass(100, &[1, 2, 3]);
    assert!(!fixture.owners().contains(&2));
}

/// Catches hosts that are directed to a gateway before it has resolved its next hops.
#[test]
fn failed_gateway_serves_again_when_it_is_settled() {
    let mut fixture = Fixture::settled();
    fixture.pass(800, &[2, 3]);
    assert!(fixture.has(&ControllerOutput::Serves(id(1), false)));
    fixture.pass(1_900, &[1, 2, 3]);
    assert!(!fixture.has(&ControllerOutput::Serves(id(1), true)));
    fixture.pass(200, &[1, 2, 3]);
    assert!(fixture.has(&ControllerOutput::Serves(id(1), true)));
    assert!(!fixture.has(&ControllerOutput::Serves(id(2), false)));
}

/// Catches vIPs that return to a gateway, or leave a draining one, for a gateway without current tables.
#[test]
fn vips_go_to_gateways_with_current_tables() {
    let mut fixture = Fixture::settled();
    fixture.behind = vec![1];
    fixture.taken_over(2, &[0, 3]);
    fixture.pass(10_000, &[1, 2, 3]);
    assert_eq!(fixture.owners(), [2, 2, 3, 2, 2, 3]);
    fixture.drain(2);
    assert_eq!(fixture.owners(), [3, 3, 3, 3, 3, 3]);
    fixture.drain(3);
    fixture.pass(3_000, &[1, 2, 3]);
    assert_eq!(fixture.owners(), [3, 3, 3, 3, 3, 3], "only gateway 1 is not draining, and it is behind");
    fixture.behind.clear();
    fixture.pass(100, &[1, 2, 3]);
    assert_eq!(fixture.owners(), [1, 1, 1, 1, 1, 1]);
}

/// Catches vIPs that go to a gateway without copies of their sessions while the owner is alive.
#[test]
fn vips_go_to_gateways_with_copies() {
    let mut fixture = Fixture::settled();
    fixture.without_copies = vec![1];
    fixture.taken_over(2, &[0, 3]);
    fixture.pass(10_000, &[1, 2, 3]);
    assert_eq!(fixture.owners(), [2, 2, 3, 2, 2, 3]);
    // The owner lacks copies of what others own, and gateway 3 has them.
    fixture.without_copies = vec![1, 2];
    fixture.pass(3_000, &[1, 2, 3]);
    assert_eq!(fixture.owners(), [2, 2, 3, 2, 2, 3]);
    fixture.drain(3);
    fixture.pass(3_000, &[1, 2, 3]);
    assert_eq!(fixture.owners(), [2, 2, 3, 2, 2, 3], "no other gateway has the sessions of gateway 3");
    fixture.without_copies = vec![1];
    fixture.pass(3_000, &[1, 2, 3]);
    assert_eq!(fixture.owners(), [2; 6]);
    // The owner has its own sessions, also if no gateway has all of the others.
    fixture.without_copies = vec![1, 2, 3];
    fixture.pass(3_000, &[1, 2, 3]);
    assert_eq!(fixture.owners(), [2; 6]);
    fixture.drain(2);
    fixture.pass(3_000, &[1, 2, 3]);
    assert_eq!(fixture.owners(), [2; 6]);
}

#[test]
fn brief_isolation_does_not_restart_the_preempt_delay() {
    let mut fixture = Fixture::settled();
    for _ in 0..20 {
        fixture.isolated(1);
        fixture.isolated(3);
        fixture.pass(100, &[1, 2, 3]);
    }
    fixture.drain(2);
    assert!(!fixture.owners().contains(&2));
}

#[test]
fn gateway_that_the_others_do_not_reach_does_not_settle() {
    let mut fixture = Fixture::settled();
    fixture.pass(10_000, &[1, 2]);
    // The controller reaches it, and it reports itself ready, long before the other gateways reach it.
    for _ in 0..5_000 {
        fixture.pass(1, &[1, 2]);
        if (fixture.now_us / MS).is_multiple_of(50) {
            fixture.heartbeat(3, &[]);
        }
    }
    assert!(!fixture.owners().contains(&3));
    let at = fixture.returns(3, 9_000);
    assert!(at.len() == 2 && (2_000..=2_060).contains(&at[0]), "{at:?}");
}

#[test]
fn controller_paused_for_long_waits_for_the_preempt_delay() {
    let mut fixture = Fixture::settled();
    let mut plan = fixture.controller.plan.clone();
    plan.preferred_owners.insert(vip(0), id(3));
    fixture.now_us += 10_000 * MS;
    fixture.input(ControllerInput::Plan(plan));
    let at = fixture.returns(3, 2_500);
    assert!(at.len() == 1 && (2_000..=2_060).contains(&at[0]), "{at:?}");
}

#[test]
fn draining_gateway_loses_its_vips_at_once_and_is_reported_drained() {
    let mut fixture = Fixture::settled();
    fixture.drain(2);
    let mut load = fixture.owners();
    load.sort_unstable();
    assert_eq!((load, fixture.has(&ControllerOutput::Drained(id(2)))), (vec![1, 1, 1, 3, 3, 3], false));
    fixture.pass(50, &[1, 2, 3]);
    assert!(fixture.has(&ControllerOutput::Drained(id(2))));
    fixture.pass(5_000, &[1, 2, 3]);
    assert!(!fixture.owners().contains(&2));
}

#[test]
fn new_controller_learns_the_owners_before_it_decides() {
    let claims: Vec<(VipId, Claim)> =
        (0..6).map(|slot| (vip(slot), Claim { epoch: 9, owner: id(2) })).collect();
    let mut fixture = Fixture::new(Table::default());
    fixture.heartbeat(1, &[2, 3]);
    fixture.receive(2, Body::Claims(claims));
    fixture.pass(109, &[1, 2, 3]);
    assert_eq!(fixture.owners(), [2; 6]);
    fixture.pass(5_000, &[1, 2, 3]);
    assert_eq!(fixture.owners(), [1, 2, 3, 1, 2, 3]);
}

#[test]
fn pause_of_the_controller_does_not_make_gateways_fail() {
    let mut fixture = Fixture::settled();
    fixture.now_us += 10_000 * MS;
    fixture.input(ControllerInput::Timer);
    fixture.pass(60, &[1, 2, 3]);
    assert!([1, 2, 3].iter().all(|&number| !fixture.has(&ControllerOutput::Failed(id(number)))));
    assert_eq!(fixture.owners(), [1, 2, 3, 1, 2, 3]);
}

#[test]
fn controller_that_reaches_no_gateway_changes_nothing_at_first() {
    let mut fixture = Fixture::settled();
    fixture.pass(1_000, &[]);
    assert_eq!(fixture.owners(), [1, 2, 3, 1, 2, 3]);
    // At first the controller is probably disconnected; later the gateways have probably failed.
    let failed = |fixture: &Fixture| fixture.has(&ControllerOutput::Failed(id(1)));
    assert!(!failed(&fixture));
    fixture.pass(1_500, &[]);
    assert!(failed(&fixture));
}

#[test]
fn pause_of_the_controller_does_not_bring_failed_gateways_back() {
    let mut fixture = Fixture::settled();
    fixture.pass(100, &[1, 2]);
    assert!(fixture.has(&ControllerOutput::Failed(id(3))));
    fixture.outputs.clear();
    fixture.now_us += 10_000 * MS;
    fixture.input(ControllerInput::Timer);
    fixture.pass(300, &[1, 2]);
    assert!(
        !fixture.has(&ControllerOutput::Returned(id(3))) && !fixture.has(&ControllerOutput::Failed(id(3)))
    );
    fixture.pass(100, &[1, 2, 3]);
    assert!(fixture.has(&ControllerOutput::Returned(id(3))));
}

#[test]
fn isolated_gateway_is_reported_reachable_only_to_itself() {
    let mut fixture = Fixture::settled();
    fixture.isolated(2);
    fixture.heartbeat(3, &[1]);
    let reachable = |fixture: &Fixture, receiver: u64| {
        let pulse = |output: &ControllerOutput| match output {
            ControllerOutput::Send { to, message } if *to == id(receiver) => match &message.body {
                Body::Pulse(pulse) => Some(pulse.reachable.clone()),
                _ => None,
            },
            _ => None,
        };
        fixture.outputs.iter().rev().find_map(pulse).unwrap()
    };
    assert_eq!(reachable(&fixture, 2), [1, 2, 3].map(id));
    assert_eq!(reachable(&fixture, 3), [1, 3].map(id));
}

#[test]
fn change_of_the_hello_interval_makes_no_gateway_fail() {
    let mut fixture = Fixture::settled();
    let plan = |revision: u64, hello_interval_ms: u16| OwnershipPlan {
        config: Config { revision, hello_interval_ms, ..fixture.controller.plan().config.clone() },
        preferred_owners: fixture.controller.plan().preferred_owners.clone(),
    };
    let (slow, fast) = (plan(2, 40), plan(3, 4));
    fixture.input(ControllerInput::Plan(slow));
    // Gateway 3 sends heartbeats ten times less often: every 500 ms; the controller would probe it after 550
    // ms.
    let failed =
        |fixture: &Fixture| fixture.outputs.iter().any(|it| matches!(it, ControllerOutput::Failed(_)));
    for _ in 0..4 {
        fixture.pass(450, &[1, 2]);
        fixture.pass(51, &[1, 2, 3]);
    }
    assert!(!failed(&fixture));
    // Gateways take a while to learn that the interval is short again.
    fixture.input(ControllerInput::Plan(fast));
    fixture.pass(450, &[1, 2]);
    fixture.pass(51, &[1, 2, 3]);
    fixture.pass(450, &[1, 2]);
    assert!(!failed(&fixture));
    fixture.pass(1_000, &[1, 2, 3]);
    fixture.pass(100, &[1, 2]);
    assert!(fixture.has(&ControllerOutput::Failed(id(3))));
}

/// Catches a controller that counts the time before a gateway was a member as its silence.
#[test]
fn new_member_is_not_failed_at_once() {
    let mut fixture = Fixture::settled();
    let mut plan = fixture.controller.plan.clone();
    plan.config.revision += 1;
    plan.config.members.push(Member { id: id(4), draining: false });
    fixture.input(ControllerInput::Plan(plan));
    fixture.pass(10, &[1, 2, 3]);
    assert!(!fixture.has(&ControllerOutput::Failed(id(4))));
    fixture.pass(300, &[1, 2, 3]);
    assert!(fixture.has(&ControllerOutput::Failed(id(4))), "it has never been reached");
}
