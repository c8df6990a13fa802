//! When a copy is complete: two gateways, whose messages all arrive, and what they are told about a third one.

#[path = "simulation/table.rs"]
#[allow(dead_code)]
mod table;

use sluice_nat_sync::{Input, Output, Params, Replicator};
use sluice_types::{GatewayId, Vni};
use std::collections::BTreeMap;
use table::Table;

const OWNER: GatewayId = GatewayId::new(1);
const COPY: GatewayId = GatewayId::new(2);
const THIRD: GatewayId = GatewayId::new(3);

struct Pair {
    now_us: u64,
    /// What the second gateway is told.
    interruptions: BTreeMap<GatewayId, u64>,
    replicators: [Replicator; 2],
    tables: [Table; 2],
}

fn unit() -> Vni {
    Vni::new(1).unwrap()
}

impl Pair {
    /// Two gateways of three, of which the first one owns a NAT gateway.
    fn new() -> Self {
        let new = |own: GatewayId| Replicator::new(own, own.get(), 0, Params::default());
        let mut pair = Self {
            now_us: 0,
            interruptions: BTreeMap::new(),
            replicators: [OWNER, COPY].map(new),
            tables: [480, 480].map(Table::new),
        };
        for at in [0, 1] {
            pair.input(at, Input::Members(vec![OWNER, COPY, THIRD]));
            pair.input(at, Input::Owners(vec![(unit(), Some(OWNER))]));
        }
        pair.pass_ms(2_000);
        assert!(pair.is_complete());
        pair
    }

    fn input(&mut self, at: usize, input: Input) {
        let outputs = self.replicators[at].handle(self.now_us, input, &mut self.tables[at]);
        for output in outputs {
            let other = 1 - at;
            if let Output::Send { to, message } = output
                && to == [OWNER, COPY][other]
            {
                let from = [OWNER, COPY][at];
                self.input(other, Input::Received { from, message });
            }
        }
    }

    fn pass_ms(&mut self, millis: u64) {
        for _ in 0..millis / 10 {
            self.now_us += 10_000;
            (0..2).for_each(|at| self.input(at, Input::Timer));
        }
    }

    /// What the second gateway learns of the others.
    fn reachable(&mut self, mutual: &[GatewayId], cut_off: &[GatewayId]) {
        let (mutual, cut_off) = (mutual.to_vec(), cut_off.to_vec());
        let interruptions = self.interruptions.clone();
        self.input(1, Input::Reachable { mutual, cut_off, interruptions });
    }

    fn is_complete(&self) -> bool {
        self.replicators[1].copies().eq([(unit(), Some(OWNER), true)])
    }
}

#[test]
fn copy_is_incomplete_after_the_shortest_interruption_until_the_next_pass() {
    let mut pair = Pair::new();
    pair.reachable(&[THIRD], &[OWNER]);
    assert!(pair.is_complete(), "the owner may have died, then this is its heir");
    pair.reachable(&[OWNER, THIRD], &[]);
    assert!(!pair.is_complete());
    pair.pass_ms(2_000);
    assert!(pair.is_complete());
}

#[test]
fn copy_is_incomplete_while_the_ring_leaves_this_gateway_out() {
    let mut pair = Pair::new();
    // The third gateway is alive, and passes the first packets of sessions of the owner on to no gateway.
    pair.reachable(&[OWNER], &[THIRD]);
    pair.pass_ms(500);
    assert!(pair.is_complete());
    pair.pass_ms(600);
    assert!(!pair.is_complete());
    // It dies: the next pass has what was missed.
    pair.reachable(&[OWNER], &[]);
    pair.pass_ms(2_000);
    assert!(pair.is_complete());
    // It comes back, and is reached from everywhere. It was dead, so nothing was missed.
    pair.reachable(&[OWNER, THIRD], &[]);
    assert!(pair.is_complete());
    // The same for a moment in which it lives.
    pair.reachable(&[OWNER], &[THIRD]);
    pair.reachable(&[OWNER, THIRD], &[]);
    assert!(!pair.is_complete());
}

#[test]
fn interruption_that_begins_and_ends_between_two_lists_counts() {
    for of in [OWNER, THIRD] {
        let mut pair = Pair::new();
        pair.interruptions.insert(of, 1);
        pair.reachable(&[OWNER, THIRD], &[]);
        assert!(!pair.is_complete(), "{of}");
        pair.pass_ms(2_000);
        pair.reachable(&[OWNER, THIRD], &[]);
        assert!(pair.is_complete(), "{of}: it counts once");
    }
    // The third gateway dies and comes back, which was seen.
    let mut pair = Pair::new();
    pair.reachable(&[OWNER], &[]);
    pair.interruptions.insert(THIRD, 1);
    pair.reachable(&[OWNER, THIRD], &[]);
    assert!(pair.is_complete());
}

#[test]
fn gateway_that_leaves_itself_out_has_incomplete_copies_until_a_pass_after_its_return() {
    let mut pair = Pair::new();
    pair.input(1, Input::LeftOut { now: true, times: 1 });
    assert!(!pair.is_complete());
    pair.pass_ms(60_000);
    assert!(!pair.is_complete(), "three passes");
    pair.input(1, Input::LeftOut { now: false, times: 1 });
    // The owner may not know yet that this gateway is back.
    pair.pass_ms(900);
    assert!(!pair.is_complete());
    pair.pass_ms(2_000);
    assert!(pair.is_complete());
    // It returns before the next report.
    pair.input(1, Input::LeftOut { now: false, times: 2 });
    assert!(!pair.is_complete());
    pair.pass_ms(3_000);
    pair.input(1, Input::LeftOut { now: false, times: 2 });
    assert!(pair.is_complete());
}

#[test]
fn gateway_returns_only_what_an_earlier_run_may_have_owned() {
    let mut pair = Pair::new();
    let passes = |pair: &Pair| pair.replicators[1].counters().passes_sent;
    assert_eq!(passes(&pair), 1, "what was there at the start was returned");
    let created = vec![(unit(), Some(OWNER)), (Vni::new(2).unwrap(), Some(OWNER))];
    for at in [1, 0] {
        pair.input(at, Input::Owners(created.clone()));
    }
    pair.pass_ms(25_000);
    assert_eq!(passes(&pair), 1);
    assert!(pair.replicators[1].copies().all(|(_, _, complete)| complete));
}
