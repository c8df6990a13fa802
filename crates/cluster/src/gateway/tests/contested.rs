//! Two gateways that believe that they own the same vIP, while the controller reaches both.

use super::*;

#[test]
fn gateway_releases_no_vip_on_the_controllers_report_alone() {
    let mut fixture = Fixture::ready();
    let digest = fixture.gateway.table().digest();
    let mut withdrawn = Vec::new();
    for drained in [false, true] {
        // The peers are on the other side of a split; the controller reaches both sides.
        for step in 0..400_u64 {
            fixture.pass(1, &[]);
            let token = fixture.gateway.seq;
            fixture.input(Input::Witness { token });
            if step % 50 == 0 {
                let reachable = vec![id(1), id(2), id(3)];
                fixture
                    .receive(Node::Controller, Body::Pulse(Pulse { echo: 0, config: 1, digest, reachable }));
            }
            // By now the controller has reported for long enough that they are alive.
            if step == 300 && !drained {
                assert_eq!(fixture.taken_over(), [1, 2]);
                fixture.claim(Node::Controller, 0, 9, 2);
            }
        }
        withdrawn.push(fixture.withdrawn());
        let mut config = fixture.gateway.config().clone();
        config.revision += 1;
        config.members[0].draining = true;
        fixture.input(Input::Config(config));
    }
    assert_eq!(
        withdrawn,
        [vec![], vec![0]],
        "hosts on this side have no other gateway; a draining gateway releases its vIP"
    );
}

/// The messages of the gateways get lost, and nothing else. Catches a loser that goes on to translate for hosts whose answers reach the new owner.
#[test]
fn vip_is_released_to_an_owner_that_answers_a_probe_and_the_controller() {
    for (answers, is_reported) in [(true, true), (true, false), (false, true)] {
        let mut fixture = Fixture::ready();
        let digest = fixture.gateway.table().digest();
        for step in 0..600_u64 {
            fixture.pass_alone(1);
            if step % 50 == 0 {
                let reachable = if is_reported { vec![id(1), id(2), id(3)] } else { vec![id(1)] };
                fixture
                    .receive(Node::Controller, Body::Pulse(Pulse { echo: 0, config: 1, digest, reachable }));
            }
            // By now the controller has reported for long enough that they are alive.
            if step == 300 {
                fixture.outputs.clear();
                fixture.claim(Node::Controller, 0, 9, 2);
            }
            let is_probe =
                |it: &Output| matches!(it, Output::ProbeGateway { gateway, .. } if *gateway == id(2));
            if answers && fixture.outputs.iter().any(is_probe) {
                fixture.input(Input::GatewayAnswered { gateway: id(2) });
            }
        }
        let expected = if answers && is_reported { vec![0] } else { vec![] };
        assert_eq!(fixture.withdrawn(), expected, "answers {answers}, reported {is_reported}");
    }
}

/// Catches an owner that switches do not find while another gateway, which it does not hear, answers for its vIP.
#[test]
fn owner_announces_each_second_while_a_live_peer_is_cut_off() {
    let mut fixture = Fixture::ready();
    let contested = |fixture: &Fixture| {
        fixture.announced().iter().filter(|(_, reason)| *reason == AnnounceReason::Contested).count()
    };
    for _ in 0..4_000 {
        fixture.now_us += MS;
        // Gateway 2 hears gateway 3.
        fixture.hello(2, &[1, 3]);
        fixture.input(Input::Timer);
    }
    assert_eq!(contested(&fixture), 3);
    fixture.outputs.clear();
    fixture.pass(4_000, &[2, 3]);
    assert_eq!(contested(&fixture), 0);
}

/// Catches a gateway that gives out ports of another one, which does not know yet that they are not its own any more.
#[test]
fn members_that_do_not_follow_the_configuration_are_known() {
    let mut fixture = Fixture::ready();
    let all_follow = |fixture: &Fixture| fixture.gateway.contacts(fixture.now_us).all_follow;
    assert!(all_follow(&fixture));
    let mut config = fixture.gateway.config().clone();
    config.revision += 1;
    let before = fixture.report(set(&[1]), &[1, 3]);
    fixture.input(Input::Config(config));
    assert!(!all_follow(&fixture));
    fixture.pass(20, &[3]);
    fixture.receive(Node::Gateway(id(2)), Body::Hello(before));
    assert!(!all_follow(&fixture), "gateway 2 does not follow");
    fixture.pass(60, &[3]);
    assert!(!all_follow(&fixture), "gateway 2 is dead, or seems so");
    fixture.pass(20, &[2, 3]);
    assert!(all_follow(&fixture));
}
