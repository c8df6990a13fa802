//! Tests of one gateway, usually number 1 of three, by the messages that it receives.

mod contested;
mod copies;

use super::*;
use crate::message::Member;
use crate::order::Candidate;

const MS: u64 = 1_000;
/// Revision of the tables of all gateways, unless a test changes it.
const REVISION: u64 = 50;

fn id(number: u64) -> GatewayId {
    GatewayId::new(number)
}

fn vip(slot: u8) -> VipId {
    VipId::new(slot).unwrap()
}

fn set(slots: &[u8]) -> VipSet {
    slots.iter().map(|&slot| vip(slot)).collect()
}

/// A gateway, its clock, and the outputs that it has made. Tests send it the messages of its peers.
struct Fixture {
    gateway: Gateway,
    now_us: u64,
    seq: u64,
    /// What peers report about their tables.
    peer_tables: TableReport,
    outputs: Vec<Output>,
}

impl Fixture {
    /// Makes gateway 1 of `members` gateways. vIP n belongs to gateway n + 1.
    fn new(members: u64) -> Self {
        let claim = |number: u64| (vip(number as u8 - 1), Claim { epoch: 1, owner: id(number) });
        let table = Table::from_claims((1..=members).map(claim));
        let members: Vec<Member> =
            (1..=members).map(|number| Member { id: id(number), draining: false }).collect();
        let config =
            Config { revision: 1, vips: VipSet::first(members.len()), members, hello_interval_ms: 0 };
        let start_us = 1_000 * MS;
        let gateway = Gateway::new(id(1), ClusterId::new(1), Params::default(), 1, (config, table), start_us)
            .with_tables(REVISION)
            .with_copies(true)
            .with_translation(true);
        let mut fixture = Self {
            gateway,
            now_us: start_us,
            seq: 0,
            peer_tables: TableReport { revision: REVISION, behind: false, copies: true, translates: true },
            outputs: Vec::new(),
        };
        fixture.input(Input::Timer);
        fixture
    }

    /// Makes gateway 1 of three that is ready and has received hellos of its peers.
    fn ready() -> Self {
        let mut fixture = Self::new(3);
        fixture.pass(20, &[2, 3]);
        assert_eq!((fixture.gateway.health(), fixture.gateway.holds()), (Health::Ready, set(&[0])));
        fixture.outputs.clear();
        fixture
    }

    fn input(&mut self, input: Input) {
        self.outputs.extend(self.gateway.handle(self.now_us, input));
    }

    fn message(&mut self, from: Node, body: Body) -> Message {
        self.seq += 1;
        Message { cluster: ClusterId::new(1), from, incarnation: 1, seq: self.seq, body }
    }

    fn receive(&mut self, from: Node, body: Body) {
        let message = self.message(from, body);
        self.input(Input::Received(message));
    }

    fn report(&self, holds: VipSet, reachable: &[u64]) -> Report {
        Report {
            config: self.gateway.config().revision,
            digest: self.gateway.table().digest(),
            holds,
            reachable: reachable.iter().map(|&number| id(number)).collect(),
            health: Health::Ready,
            tables: self.peer_tables,
        }
    }

    fn hello(&mut self, from: u64, reachable: &[u64]) {
        let holds = self.gateway.table().owned_by(id(from), self.gateway.config().vips);
        let report = self.report(holds, reachable);
        self.receive(Node::Gateway(id(from)), Body::Hello(report));
    }

    fn claim(&mut self, from: Node, slot: u8, epoch: u64, owner: u64) {
        self.receive(from, Body::Claims(vec![(vip(slot), Claim { epoch, owner: id(owner) })]));
    }

    /// Lets `millis` milliseconds pass, in which only a witness answers.
    fn pass_alone(&mut self, millis: u64) {
        for _ in 0..millis {
            self.now_us += MS;
            self.input(Input::Timer);
            if let Some(token) = self.last_probe() {
                self.input(Input::Witness { token });
            }
        }
    }

    /// Lets `millis` milliseconds pass, in which these peers send hellos and reach each other and this
    /// gateway.
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

    /// Lets time pass without hellos until the gateway probes a witness.
    fn pass_until_probe(&mut self) {
        let probed = (0..100).any(|_| {
            self.pass(1, &[]);
            self.last_probe().is_some()
        });
        assert!(probed);
    }

    fn announced(&self) -> Vec<(u8, AnnounceReason)> {
        let announced = |output: &Output| match output {
            Output::Announce { vip, reason } => Some((vip.get(), *reason)),
            _ => None,
        };
        self.outputs.iter().filter_map(announced).collect()
    }

    fn taken_over(&self) -> Vec<u8> {
        let taken = |(vip, reason): (u8, AnnounceReason)| {
            matches!(reason, AnnounceReason::TakenOver { .. }).then_some(vip)
        };
        self.announced().into_iter().filter_map(taken).collect()
    }

    fn withdrawn(&self) -> Vec<u8> {
        let withdrawn = |output: &Output| match output {
            Output::Withdraw { vip } => Some(vip.get()),
            _ => None,
        };
        self.outputs.iter().filter_map(withdrawn).collect()
    }

    fn contact_incidents(&self) -> Vec<Incident> {
        let incident = |output: &Output| match output {
            Output::Incident(it @ (Incident::Isolated | Incident::Reconnected)) => Some(*it),
            _ => None,
        };
        self.outputs.iter().filter_map(incident).collect()
    }

    fn last_probe(&self) -> Option<u64> {
        self.outputs.iter().rev().find_map(|output| match output {
            Output::ProbeWitness { token, .. } => Some(*token),
            _ => None,
        })
    }
}

#[test]
fn started_gateway_only_listens_at_first() {
    let mut fixture = Fixture::new(3);
    fixture.pass(11, &[2, 3]);
    assert_eq!(fixture.announced(), []);
    fixture.pass(1, &[2, 3]);
    assert_eq!(fixture.announced(), [(0, AnnounceReason::Assigned)]);
    fixture.pass(200, &[2, 3]);
    assert_eq!(fixture.announced()[1..], [(0, AnnounceReason::Repeat); 3]);
    fixture.pass(30_000, &[2, 3]);
    assert_eq!(fixture.announced()[4..], [(0, AnnounceReason::Refresh)]);
}

#[test]
fn vip_of_a_silent_peer_is_taken_over_when_no_gateway_reaches_the_peer() {
    let mut fixture = Fixture::ready();
    // Peer 2 died after its last hello; peer 3 reports for 20 ms that it still reaches it.
    for _ in 0..20 {
        fixture.now_us += MS;
        fixture.hello(3, &[1, 2]);
    }
    assert_eq!(
        (fixture.taken_over(), fixture.gateway.is_reachable(Node::Gateway(id(2)), fixture.now_us)),
        (vec![], false)
    );
    fixture.hello(3, &[1]);
    // Gateways 1 and 3 own one vIP each, so the hash decides which of them is first; the second waits one
    // step.
    let first = fixture.taken_over() == [1];
    fixture.now_us += Params::default().candidate_step_us;
    fixture.hello(3, &[1]);
    assert_eq!(fixture.taken_over(), [1]);
    let tables = fixture.gateway.tables();
    let candidates = [1, 3].map(|number| Candidate { id: id(number), tables, load: 1 });
    assert_eq!(first, crate::order::rank(vip(1), id(1), &candidates) == Some(0));
    assert_eq!(fixture.gateway.table().get(vip(1)), Some(Claim { epoch: 2, owner: id(1) }));
    assert_eq!(fixture.gateway.holds(), set(&[0, 1]));
}

/// Catches a gateway that keeps vIPs without tables, and one without tables that takes vIPs.
#[test]
fn gateway_with_better_tables_takes_over() {
    let mut fixture = Fixture::ready();
    // The peers have lost their tables, so that each has a vIP which this gateway takes.
    fixture.peer_tables.revision = 0;
    fixture.pass(1, &[2, 3]);
    assert_eq!(fixture.taken_over(), [1, 2]);
    // This gateway has lost its own as well: among equals nothing moves.
    let mut fixture = Fixture::ready();
    fixture.input(Input::Tables { revision: 0 });
    fixture.peer_tables.revision = 0;
    fixture.pass(20, &[2, 3]);
    assert_eq!((fixture.taken_over(), fixture.gateway.holds()), (vec![], set(&[0])));
    // A dead peer is replaced nevertheless, if no gateway has tables.
    fixture.pass(200, &[3]);
    let (mine, theirs) = (fixture.taken_over() == [1], fixture.gateway.table().get(vip(1)).unwrap().owner);
    assert!(mine || theirs == id(3), "{theirs}");
}

#[test]
fn gateway_whose_tables_no_longer_change_reports_that_it_is_behind() {
    let mut fixture = Fixture::ready();
    fixture.peer_tables.revision = REVISION + 1;
    fixture.pass(3_000, &[2, 3]);
    assert_eq!(fixture.gateway.tables().readiness(), Readiness::Current);
    fixture.pass(10, &[2, 3]);
    assert_eq!(
        fixture.gateway.tables(),
        TableReport { revision: REVISION, behind: true, copies: true, translates: true }
    );
    // A peer dies. The other one comes first, whatever the hash says, and does not take the vIP in this test.
    let params = Params::default();
    for _ in 0..100 {
        fixture.now_us += MS / 2;
        fixture.hello(3, &[1]);
        if fixture.gateway.vips[1].takeover_us.is_some() {
            break;
        }
    }
    assert_eq!(fixture.taken_over(), [] as [u8; 0]);
    fixture.now_us += params.candidate_step_us;
    fixture.hello(3, &[1]);
    assert_eq!(fixture.taken_over(), [1]);
    // All with newer tables are dead: these tables are the best that there are.
    fixture.pass_alone(300);
    assert_eq!(
        fixture.gateway.tables(),
        TableReport { revision: REVISION, behind: false, copies: true, translates: true }
    );
    assert_eq!(fixture.taken_over(), [1, 2]);
}

#[test]
fn contacts_are_mutual_or_cut_off() {
    let mut fixture = Fixture::ready();
    let contacts = |fixture: &Fixture| {
        let Contacts { mutual, cut_off, .. } = fixture.gateway.contacts(fixture.now_us);
        (mutual, cut_off)
    };
    assert_eq!(contacts(&fixture), (vec![id(2), id(3)], vec![]));
    // Gateway 2 does not receive this one's hellos, and gateway 3 is received by gateway 2 only.
    for _ in 0..40 {
        fixture.now_us += MS;
        fixture.hello(2, &[3]);
    }
    assert_eq!(contacts(&fixture), (vec![], vec![id(2), id(3)]));
    // Gateway 3 is dead.
    fixture.pass(40, &[2]);
    assert_eq!(contacts(&fixture), (vec![id(2)], vec![]));
}

/// Catches a gateway that drops first packets of sessions and is in the ring of others.
#[test]
fn gateways_that_cannot_install_sessions_are_not_in_the_ring() {
    let mut fixture = Fixture::ready();
    let ring = |fixture: &Fixture| fixture.gateway.contacts(fixture.now_us).ring;
    assert_eq!(ring(&fixture), [id(2), id(3)]);
    fixture.peer_tables.copies = false;
    fixture.hello(2, &[1, 3]);
    let good = fixture.peer_tables;
    let bad = [
        TableReport { revision: 0, ..good },
        TableReport { behind: true, ..good },
        TableReport { translates: false, copies: true, ..good },
    ];
    for tables in bad {
        fixture.peer_tables = tables;
        fixture.hello(3, &[1, 2]);
        let contacts = fixture.gateway.contacts(fixture.now_us);
        assert_eq!((&*contacts.mutual, &*contacts.ring), (&[id(2), id(3)][..], &[id(2)][..]), "{tables:?}");
        assert_eq!(contacts.without_nat.contains(&id(3)), !tables.translates);
        assert!(!contacts.has_heir);
    }
    fixture.peer_tables = good;
    fixture.hello(3, &[1, 2]);
    assert_eq!(ring(&fixture), [id(2), id(3)]);
    let mut report = fixture.report(set(&[1]), &[1, 3]);
    report.health = Health::Starting;
    fixture.receive(Node::Gateway(id(2)), Body::Hello(report));
    assert_eq!(ring(&fixture), [id(3)]);
}

/// Catches copies that count as complete although the others have left this gateway out.
#[test]
fn gateway_knows_that_others_leave_it_out_and_how_often() {
    let mut fixture = Fixture::ready();
    let left_out = |fixture: &Fixture| {
        let contacts = fixture.gateway.contacts(fixture.now_us);
        (contacts.is_left_out, contacts.times_left_out)
    };
    assert_eq!(left_out(&fixture), (false, 0));
    fixture.input(Input::Tables { revision: 0 });
    assert_eq!(left_out(&fixture), (true, 1));
    fixture.input(Input::Tables { revision: REVISION });
    assert_eq!(left_out(&fixture), (false, 1));
    // This gateway's agent was paused.
    fixture.now_us += 1_000 * MS;
    fixture.input(Input::Timer);
    assert_eq!((fixture.gateway.health(), left_out(&fixture)), (Health::Starting, (true, 2)));
}

#[test]
fn interruptions_that_are_over_are_counted() {
    let mut fixture = Fixture::ready();
    let interruptions = |fixture: &Fixture| {
        let contacts = fixture.gateway.contacts(fixture.now_us);
        assert_eq!(contacts.mutual, [id(2), id(3)]);
        [2, 3].map(|of| contacts.interruptions[&id(of)])
    };
    assert_eq!(interruptions(&fixture), [0, 0]);
    // Gateway 2 does not receive this one's hellos for a moment.
    fixture.hello(2, &[3]);
    fixture.hello(2, &[1, 3]);
    assert_eq!(interruptions(&fixture), [1, 0]);
    fixture.pass(20, &[2]);
    fixture.pass(20, &[2, 3]);
    assert_eq!(interruptions(&fixture), [1, 1]);
}

#[test]
fn peer_reached_by_another_gateway_is_not_dead() {
    let mut fixture = Fixture::ready();
    for _ in 0..1_000 {
        fixture.now_us += MS;
        fixture.hello(3, &[1, 2]);
    }
    assert_eq!((fixture.taken_over(), fixture.withdrawn()), (vec![], vec![]));
}

#[test]
fn repeated_messages_do_not_keep_a_peer_alive() {
    let mut fixture = Fixture::ready();
    let report = fixture.report(set(&[1]), &[1, 3]);
    let old = fixture.message(Node::Gateway(id(2)), Body::Hello(report));
    fixture.input(Input::Received(old.clone()));
    for _ in 0..20 {
        fixture.now_us += MS;
        fixture.hello(3, &[1]);
        fixture.input(Input::Received(old.clone()));
    }
    assert_eq!(fixture.taken_over(), [1]);
}

#[test]
fn gateway_without_reachable_peers_probes_before_it_takes_over() {
    for (answer_late_us, takes) in [(Some(0), true), (Some(2 * MS), true), (None, false)] {
        let mut fixture = Fixture::ready();
        fixture.pass_until_probe();
        assert_eq!(fixture.taken_over(), []);
        let token = fixture.last_probe().unwrap();
        // An answer to an earlier probe proves nothing.
        fixture.input(Input::Witness { token: token - 1 });
        fixture.input(Input::Timer);
        assert_eq!((fixture.taken_over(), fixture.gateway.health()), (vec![], Health::Ready));
        if let Some(late_us) = answer_late_us {
            fixture.now_us += late_us;
            fixture.input(Input::Witness { token });
            assert_eq!(fixture.taken_over(), [1, 2]);
        }
        fixture.pass(10, &[]);
        assert_eq!(fixture.taken_over().is_empty(), !takes);
        assert_eq!(fixture.gateway.health(), if takes { Health::Ready } else { Health::Isolated });
    }
}

#[test]
fn answer_of_the_controller_counts_only_if_it_reaches_no_peer() {
    let mut fixture = Fixture::ready();
    fixture.pass_until_probe();
    let echo = fixture.last_probe().unwrap();
    let digest = fixture.gateway.table().digest();
    let pulse = |echo, reachable| Body::Pulse(Pulse { echo, config: 1, digest, reachable });
    fixture.receive(Node::Controller, pulse(echo - 1, vec![id(1)]));
    fixture.receive(Node::Controller, pulse(echo, vec![id(2)]));
    // The controller reaches this gateway and a peer: one of the two has lost its underlay, and it is unknown
    // which.
    fixture.receive(Node::Controller, pulse(echo, vec![id(1), id(2)]));
    assert_eq!(fixture.taken_over(), []);
    fixture.receive(Node::Controller, pulse(echo, vec![id(1)]));
    assert_eq!(fixture.taken_over(), [1, 2]);
}

#[test]
fn vips_of_an_isolated_peer_are_taken_over_and_an_isolated_gateway_starts_again() {
    let mut fixture = Fixture::ready();
    let mut report = fixture.report(set(&[1]), &[]);
    report.health = Health::Isolated;
    fixture.receive(Node::Gateway(id(2)), Body::Hello(report));
    fixture.now_us += Params::default().candidate_step_us;
    fixture.input(Input::Timer);
    assert_eq!(fixture.taken_over(), [1]);
    // An isolated gateway that is answered again starts again, and announces what it still owns.
    let mut fixture = Fixture::ready();
    fixture.pass(14, &[]);
    fixture.outputs.clear();
    fixture.pass(40, &[]);
    assert_eq!((fixture.gateway.health(), fixture.announced()), (Health::Isolated, vec![]));
    fixture.claim(Node::Gateway(id(2)), 0, 2, 2);
    fixture.hello(2, &[1, 3]);
    assert_eq!((fixture.gateway.health(), fixture.withdrawn()), (Health::Starting, vec![0]));
    fixture.pass(30, &[2, 3]);
    assert_eq!((fixture.gateway.health(), fixture.announced()), (Health::Ready, vec![]));
    assert_eq!(fixture.contact_incidents(), [Incident::Isolated, Incident::Reconnected]);
}

#[test]
fn pause_of_an_isolated_gateway_is_not_a_second_isolation() {
    let mut fixture = Fixture::ready();
    fixture.pass(54, &[]);
    fixture.now_us += 100 * MS;
    fixture.pass(40, &[]);
    assert_eq!(
        (fixture.gateway.health(), fixture.contact_incidents()),
        (Health::Isolated, vec![Incident::Isolated])
    );
    fixture.pass(40, &[2, 3]);
    assert_eq!(fixture.contact_incidents(), [Incident::Isolated, Incident::Reconnected]);
}

#[test]
fn paused_gateway_starts_again_before_it_announces() {
    let mut fixture = Fixture::ready();
    // Repetitions, refresh and the silence limits of all peers are due when it resumes.
    fixture.now_us += 40_000 * MS;
    fixture.input(Input::Timer);
    assert_eq!((fixture.gateway.health(), fixture.announced()), (Health::Starting, vec![]));
    fixture.claim(Node::Gateway(id(3)), 0, 2, 2);
    fixture.hello(2, &[1, 3]);
    assert_eq!((fixture.withdrawn(), fixture.announced()), (vec![0], vec![]));
    fixture.pass(100, &[2, 3]);
    assert_eq!(fixture.announced(), []);
    // If no gateway took its vIP over, it announces the vIP again after the start-up phase.
    let mut fixture = Fixture::ready();
    fixture.now_us += 40_000 * MS;
    fixture.pass(12, &[2, 3]);
    assert_eq!(fixture.announced(), []);
    fixture.pass(1, &[2, 3]);
    assert_eq!(fixture.announced(), [(0, AnnounceReason::Resumed)]);
}

#[test]
fn vip_is_handed_over_only_when_the_new_owner_answers_for_it() {
    let mut fixture = Fixture::ready();
    fixture.claim(Node::Controller, 0, 2, 2);
    let report = fixture.report(set(&[1]), &[1, 3]);
    fixture.receive(Node::Gateway(id(2)), Body::Hello(report));
    assert_eq!(fixture.withdrawn(), []);
    let report = fixture.report(set(&[0, 1]), &[1, 3]);
    fixture.receive(Node::Gateway(id(2)), Body::Hello(report));
    assert_eq!((fixture.withdrawn(), fixture.gateway.holds()), (vec![0], VipSet::EMPTY));
}

#[test]
fn owner_announces_again_when_another_gateway_stops_answering() {
    let mut fixture = Fixture::ready();
    let both = fixture.report(set(&[0, 1]), &[1, 3]);
    fixture.receive(Node::Gateway(id(2)), Body::Hello(both));
    assert_eq!(fixture.announced(), []);
    fixture.hello(2, &[1, 3]);
    assert_eq!(fixture.announced(), [(0, AnnounceReason::RivalStopped)]);
}

#[test]
fn silence_limit_doubles_with_each_false_alarm() {
    let mut fixture = Fixture::ready();
    let silent_until_taken_over = |fixture: &mut Fixture| {
        // The vIP returns to gateway 2, as if the controller had moved it back.
        let epoch = fixture.gateway.table().get(vip(1)).unwrap().epoch;
        fixture.claim(Node::Controller, 1, epoch + 1, 2);
        fixture.pass(50, &[2, 3]);
        fixture.outputs.clear();
        let from_us = fixture.now_us;
        while fixture.taken_over().is_empty() && fixture.now_us - from_us < 1_000 * MS {
            fixture.now_us += MS;
            fixture.hello(3, &[1]);
        }
        fixture.now_us - from_us
    };
    let first_us = silent_until_taken_over(&mut fixture);
    let second_us = silent_until_taken_over(&mut fixture);
    let third_us = silent_until_taken_over(&mut fixture);
    let step_us = Params::default().candidate_step_us;
    assert!((14 * MS..=14 * MS + step_us).contains(&first_us), "{first_us}");
    assert!((27 * MS..=27 * MS + step_us).contains(&second_us), "{second_us}");
    assert!((53 * MS..=53 * MS + step_us).contains(&third_us), "{third_us}");
}

#[test]
fn peer_that_missed_claims_or_configuration_is_sent_them() {
    let mut fixture = Fixture::ready();
    let mut report = fixture.report(set(&[1]), &[1, 3]);
    (report.digest, report.config) = (report.digest ^ 1, 0);
    fixture.receive(Node::Gateway(id(2)), Body::Hello(report));
    let sent: Vec<&Body> = fixture
        .outputs
        .iter()
        .filter_map(|output| match output {
            Output::Send { to, message } if *to == Node::Gateway(id(2)) => Some(&message.body),
            _ => None,
        })
        .collect();
    assert!(sent.contains(&&Body::Config(fixture.gateway.config().clone())), "{sent:?}");
    assert!(sent.contains(&&Body::Claims(fixture.gateway.table().iter().collect())), "{sent:?}");
}

#[test]
fn draining_gateway_takes_nothing_over_and_reports_when_it_is_drained() {
    let mut fixture = Fixture::ready();
    let mut config = fixture.gateway.config().clone();
    (config.revision, config.members[0].draining) = (2, true);
    fixture.input(Input::Config(config));
    for _ in 0..30 {
        fixture.now_us += MS;
        fixture.hello(3, &[1]);
    }
    assert_eq!(
        (fixture.taken_over(), fixture.outputs.contains(&Output::Incident(Incident::Drained))),
        (vec![], false)
    );
    fixture.claim(Node::Controller, 0, 2, 3);
    fixture.hello(3, &[1]);
    assert_eq!(fixture.withdrawn(), [0]);
    assert!(fixture.outputs.contains(&Output::Incident(Incident::Drained)));
    // It takes vIPs over only if there is no other gateway.
    fixture.pass_alone(30);
    assert_eq!(fixture.gateway.holds(), set(&[0, 1, 2]));
}

#[test]
fn removed_gateway_withdraws_its_vips() {
    let mut fixture = Fixture::ready();
    let mut config = fixture.gateway.config().clone();
    config.revision = 2;
    config.members.remove(0);
    fixture.input(Input::Config(config));
    fixture.claim(Node::Controller, 0, 2, 3);
    fixture.pass(25, &[]);
    assert_eq!((fixture.withdrawn(), fixture.taken_over()), (vec![0], vec![]));
}

#[test]
fn restarted_agent_keeps_the_vips_that_its_programs_answer_for() {
    let ready = Fixture::ready().gateway;
    let restart = |saved: (Config, Table)| {
        let start_us = 2_000 * MS;
        let gateway = Gateway::new(id(1), ClusterId::new(1), Params::default(), 2, saved, start_us);
        let gateway = gateway.with_held_vips(set(&[0, 1])).with_tables(REVISION);
        let peer_tables = ready.tables();
        let mut fixture = Fixture { gateway, now_us: start_us, seq: 100, peer_tables, outputs: Vec::new() };
        fixture.input(Input::Timer);
        fixture
    };
    // vIP 1 has a new owner, which answers for it; vIP 0 still belongs to this gateway.
    let mut fixture = restart((ready.config().clone(), ready.table().clone()));
    assert_eq!(fixture.gateway.holds(), set(&[0, 1]));
    fixture.pass(20, &[2, 3]);
    assert_eq!((fixture.withdrawn(), fixture.announced()), (vec![1], vec![(0, AnnounceReason::Resumed)]));
    // Without saved state it changes nothing until it receives a configuration and claims.
    let mut fixture = restart(Default::default());
    fixture.pass(50, &[]);
    assert_eq!((fixture.withdrawn(), fixture.announced()), (vec![], vec![]));
    fixture.input(Input::Config(ready.config().clone()));
    fixture.receive(Node::Gateway(id(2)), Body::Claims(ready.table().iter().collect()));
    fixture.pass(20, &[2, 3]);
    assert_eq!((fixture.withdrawn(), fixture.gateway.holds()), (vec![1], set(&[0])));
}

#[test]
fn removed_gateway_is_sent_the_configuration_by_the_members() {
    let mut fixture = Fixture::ready();
    let mut config = fixture.gateway.config().clone();
    config.revision = 2;
    config.members.retain(|member| member.id != id(2));
    fixture.input(Input::Config(config.clone()));
    fixture.outputs.clear();
    let mut report = fixture.report(set(&[1]), &[1, 3]);
    (report.config, report.digest) = (1, 0);
    fixture.receive(Node::Gateway(id(2)), Body::Hello(report));
    let sent: Vec<&Body> = fixture
        .outputs
        .iter()
        .filter_map(|output| match output {
            Output::Send { to, message } if *to == Node::Gateway(id(2)) => Some(&message.body),
            _ => None,
        })
        .collect();
    assert_eq!(sent[0], &Body::Config(config));
    assert!(matches!(sent[1], Body::Claims(_)), "{sent:?}");
    // A gateway that knows the configuration is not sent it again.
    fixture.outputs.clear();
    let report = fixture.report(VipSet::EMPTY, &[]);
    fixture.receive(Node::Gateway(id(2)), Body::Hello(report));
    let to_it = |output: &Output| matches!(output, Output::Send { to, .. } if *to == Node::Gateway(id(2)));
    assert!(!fixture.outputs.iter().any(to_it));
}

#[test]
fn last_gateway_takes_over_although_its_witnesses_answer_late() {
    let mut fixture = Fixture::ready();
    fixture.pass_until_probe();
    // Each answer arrives 6 ms after its probe: later than `contact_us`, after which the gateway is isolated.
    let mut probes: Vec<(u64, u64)> = Vec::new();
    for _ in 0..100 {
        fixture.pass(1, &[]);
        if let Some(token) = fixture.last_probe() {
            probes.push((fixture.now_us + 6 * MS, token));
            fixture.outputs.retain(|output| !matches!(output, Output::ProbeWitness { .. }));
        }
        for (_, token) in probes.extract_if(.., |(due_us, _)| *due_us <= fixture.now_us).collect::<Vec<_>>() {
            fixture.input(Input::Witness { token });
        }
    }
    assert_eq!((fixture.taken_over(), fixture.gateway.health()), (vec![1, 2], Health::Ready));
}

#[test]
fn gateway_that_cannot_open_its_peers_messages_takes_nothing_over() {
    let mut fixture = Fixture::ready();
    for _ in 0..60 {
        fixture.pass(1, &[]);
        fixture.input(Input::Unreadable);
        let token = fixture.gateway.seq;
        fixture.input(Input::Witness { token });
    }
    assert_eq!((fixture.taken_over(), fixture.gateway.health()), (vec![], Health::Isolated));
    // When no unreadable messages arrive either, the peers are dead.
    for _ in 0..60 {
        fixture.pass(1, &[]);
        let token = fixture.gateway.seq;
        fixture.input(Input::Witness { token });
    }
    assert_eq!(fixture.taken_over(), [1, 2]);
}

#[test]
fn member_cannot_exhaust_revisions_or_epochs() {
    let mut fixture = Fixture::ready();
    let last = Config { revision: u64::MAX, ..fixture.gateway.config().clone() };
    fixture.receive(Node::Gateway(id(2)), Body::Config(last));
    assert_eq!(fixture.gateway.config().revision, 1);
    fixture.claim(Node::Gateway(id(2)), 1, u64::MAX, 3);
    assert_eq!(fixture.gateway.table().get(vip(1)), Some(Claim { epoch: 1, owner: id(2) }));
}

/// Returns the intervals between hellos of the gateway, in milliseconds, while its peers send a hello every
/// `peers_ms`.
fn hello_intervals(fixture: &mut Fixture, millis: u64, peers_ms: u64) -> Vec<u64> {
    let mut sent = Vec::new();
    for at_ms in 1..=millis {
        fixture.outputs.clear();
        fixture.pass(1, if at_ms % peers_ms == 0 { &[2, 3] } else { &[] });
        let hello = |output: &Output| match output {
            Output::Send { message, .. } => matches!(message.body, Body::Hello(_)),
            _ => false,
        };
        if fixture.outputs.iter().any(hello) {
            sent.push(at_ms);
        }
    }
    sent.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

#[test]
fn change_of_the_hello_interval_makes_no_peer_seem_dead() {
    let mut fixture = Fixture::ready();
    let slow = Config { revision: 2, hello_interval_ms: 40, ..fixture.gateway.config().clone() };
    fixture.input(Input::Config(slow.clone()));
    // Its peers may still expect a hello every 4 ms, while they send theirs every 40 ms already.
    let gaps = hello_intervals(&mut fixture, 1_000, 40);
    assert!(gaps.iter().all(|gap| *gap <= 4), "{gaps:?}");
    // After 1.4 s no peer expects that any more.
    hello_intervals(&mut fixture, 400, 40);
    let gaps = hello_intervals(&mut fixture, 400, 40);
    assert!(gaps.len() > 5 && gaps.iter().all(|gap| *gap == 40), "{gaps:?}");
    assert_eq!((fixture.gateway.health(), fixture.gateway.holds()), (Health::Ready, set(&[0])));
    // Back again: it sends fast at once, and peers that still send slowly are not believed dead.
    fixture.input(Input::Config(Config { revision: 3, hello_interval_ms: 4, ..slow }));
    let gaps = hello_intervals(&mut fixture, 1_000, 40);
    assert!(gaps.len() > 200 && gaps.iter().all(|gap| *gap <= 4), "{gaps:?}");
    assert!(fixture.gateway.peers.iter().all(|peer| peer.false_alarms == 0 && !peer.dead));
    hello_intervals(&mut fixture, 500, 4);
    assert_eq!((fixture.gateway.health(), fixture.gateway.holds()), (Health::Ready, set(&[0])));
    // A peer that dies now is detected as fast as before.
    fixture.pass(12, &[2]);
    let is_dead = |fixture: &Fixture| fixture.gateway.peers.iter().any(|peer| peer.id == id(3) && peer.dead);
    assert!(!is_dead(&fixture));
    fixture.pass(2, &[2]);
    assert!(is_dead(&fixture));
}
