//! The receiving side, for one other gateway.
//!
//! ```text
//!            Begin                all datagrams are here           what was not seen has ended
//!   no pass ------> RECEIVING ----------------------------> ENDING ---------------------------> DONE
//! ```
//!
//! A newer pass replaces an older one in each state.

use crate::message::{Ack, Data, PassId, Progress, Role, WINDOW};
use crate::record::Record;
use crate::table::{Installed, Mark, SessionTable, Source, Unseen};
use sluice_types::Vni;
use std::collections::{BTreeMap, BTreeSet};

/// Most NAT gateways that one sender may speak for. Each takes about 50 bytes here during a pass.
const UNITS_MAX: usize = 1 << 16;

/// A pass is complete if there was room for all but one in so many sessions. The owner's table and this one place sessions in
/// another order, so at the same load some have room in one table only. Without them, this node is a better heir than none.
const FULL_RATIO: u64 = 1000;

#[derive(Debug)]
pub(crate) struct Receiver {
    /// Ticks by which copies count as less idle than the owner said. The owner may have seen a packet since, and the copy
    /// must not expire before the next pass says so.
    grace: u32,
    pass: Option<Pass>,
}

#[derive(Debug)]
struct Pass {
    id: PassId,
    mark: Mark,
    next: u32,
    seen: u64,
    last: Option<u32>,
    /// NAT gateways that the sender has owned since the pass began, as far as this node knows.
    trusted: BTreeSet<Vni>,
    /// Those of which the pass has all sessions.
    units: BTreeMap<Vni, Role>,
    /// Those of which a session could not be installed.
    late: BTreeSet<Vni>,
    /// Sessions that came, and those for which there was no room, of these NAT gateways.
    all: u64,
    full: u64,
    lacking: BTreeSet<Vni>,
    /// There were more of one of the three than are remembered.
    too_many: bool,
    /// It had sessions of which the sender is not the owner.
    has_others: bool,
    stage: Stage,
    heard_us: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Receiving,
    /// The next part of the table to judge.
    Ending(u64),
    Done(Progress),
}

/// A pass of which everything was received, and whose end is done.
pub(crate) struct Ended<'a> {
    /// What the pass had all sessions of.
    pub units: &'a BTreeMap<Vni, Role>,
    trusted: &'a BTreeSet<Vni>,
    late: &'a BTreeSet<Vni>,
    too_many: bool,
    /// It had sessions of which the sender is not the owner.
    pub has_others: bool,
}

impl Ended<'_> {
    /// Whether all sessions of a NAT gateway were installed.
    pub fn is_installed(&self, vni: Vni) -> bool {
        !self.too_many && !self.late.contains(&vni)
    }

    /// Whether this node now has what the sender owns, and nothing else.
    pub fn is_copied(&self, vni: Vni) -> bool {
        self.is_installed(vni) && self.trusted.contains(&vni) && self.units.get(&vni) == Some(&Role::Owner)
    }
}

/// Numbers of sessions that came, and of passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// They are in the table.
    pub installed: u64,
    /// They could not be installed at that time.
    pub later: u64,
    /// The table had no room for them.
    pub full: u64,
    /// Their outside port belonged to another inside endpoint.
    pub refused: u64,
    /// Passes to another gateway that are over.
    pub passes_sent: u64,
    /// Passes of other gateways that are over.
    pub passes_received: u64,
}

impl Receiver {
    pub fn new(grace: u32) -> Self {
        Self { grace, pass: None }
    }

    /// Whether a pass is under way, and the sender was heard after `since_us`.
    pub fn is_receiving(&self, since_us: u64) -> bool {
        let is_under_way = |pass: &Pass| !matches!(pass.stage, Stage::Done(_)) && pass.heard_us >= since_us;
        self.pass.as_ref().is_some_and(is_under_way)
    }

    /// Whether [`advance`](Self::advance) has something to do.
    pub fn is_ending(&self) -> bool {
        self.pass.as_ref().is_some_and(|pass| matches!(pass.stage, Stage::Ending(_)))
    }

    /// Forgets the present pass. The sender begins another one.
    pub fn stop(&mut self) {
        self.pass = None;
    }

    /// The present pass makes no copy complete: sessions may have begun without this node after they were read.
    pub fn distrust(&mut self) {
        if let Some(pass) = &mut self.pass {
            pass.trusted.clear();
        }
    }

    /// The owner of a NAT gateway has changed.
    pub fn forget(&mut self, vni: Vni) {
        if let Some(pass) = &mut self.pass {
            pass.trusted.remove(&vni);
        }
    }

    /// Handles the begin of a pass, or a question about it. `trusted` are the NAT gateways that the sender owns.
    pub fn begin(
        &mut self,
        now_us: u64,
        id: PassId,
        mark: impl FnOnce() -> Mark,
        trusted: impl FnOnce() -> BTreeSet<Vni>,
    ) -> Option<Ack> {
        match &mut self.pass {
            Some(pass) if pass.id == id => pass.heard_us = now_us,
            // Was overtaken.
            Some(pass) if pass.id.boot == id.boot && pass.id.number > id.number => return None,
            _ => {
                self.pass = Some(Pass {
                    id,
                    mark: mark(),
                    next: 0,
                    seen: 0,
                    last: None,
                    trusted: trusted(),
                    units: BTreeMap::new(),
                    late: BTreeSet::new(),
                    all: 0,
                    full: 0,
                    lacking: BTreeSet::new(),
                    too_many: false,
                    has_others: false,
                    stage: Stage::Receiving,
                    heard_us: now_us,
                });
            }
        }
        self.pass.as_ref().map(Pass::ack)
    }

    /// Handles a part of a pass.
    pub fn receive(
        &mut self,
        now_us: u64,
        data: Data,
        table: &mut dyn SessionTable,
        counters: &mut Counters,
    ) -> Option<Ack> {
        match &mut self.pass {
            Some(pass) if pass.id == data.pass => {
                pass.heard_us = now_us;
                pass.receive(data, self.grace, table, counters);
                Some(pass.ack())
            }
            Some(pass) if pass.id.boot == data.pass.boot && pass.id.number > data.pass.number => None,
            _ => Some(Ack { pass: data.pass, progress: Progress::Unknown, next: 0, seen: 0 }),
        }
    }

    /// Ends sessions that were not in the pass, in as many parts of the table as `budget` says. `ended` judges a pass whose
    /// end is done.
    pub fn advance(
        &mut self,
        budget: &mut u32,
        table: &mut dyn SessionTable,
        ended: impl FnOnce(&Ended) -> Progress,
    ) -> Option<Ack> {
        let pass = self.pass.as_mut()?;
        let Stage::Ending(mut part) = pass.stage else { return None };
        loop {
            let next = if pass.too_many || pass.trusted.is_empty() {
                None
            } else if *budget == 0 {
                pass.stage = Stage::Ending(part);
                return None;
            } else {
                *budget -= 1;
                // A session that could not be installed may be in the table without the mark.
                let is_whole = |vni| {
                    pass.trusted.contains(&vni)
                        && pass.units.get(&vni) == Some(&Role::Owner)
                        && !pass.late.contains(&vni)
                };
                let trusted = |vni| pass.trusted.contains(&vni);
                table.end_unseen(part, &Unseen { units: &is_whole, trusted: &trusted, mark: pass.mark })
            };
            let Some(next) = next else { break };
            part = next;
        }
        let Pass { units, trusted, late, too_many, has_others, .. } = &*pass;
        pass.stage =
            Stage::Done(ended(&Ended { units, trusted, late, too_many: *too_many, has_others: *has_others }));
        Some(pass.ack())
    }
}

/// Adds a NAT gateway to those that are remembered. False if there are too many.
fn insert_bounded(set: &mut BTreeSet<Vni>, vni: Vni) -> bool {
    let has_room = set.len() < UNITS_MAX || set.contains(&vni);
    if has_room {
        set.insert(vni);
    }
    has_room
}

impl Pass {
    fn ack(&self) -> Ack {
        let progress = match self.stage {
            Stage::Receiving | Stage::Ending(_) => Progress::Receiving,
            Stage::Done(progress) => progress,
        };
        Ack { pass: self.id, progress, next: self.next, seen: self.seen }
    }

    fn receive(&mut self, data: Data, grace: u32, table: &mut dyn SessionTable, counters: &mut Counters) {
        let Some(bit) = data.seq.checked_sub(self.next).filter(|bit| *bit < WINDOW) else { return };
        // A sender uses no number above that of the last datagram, and 2^32 datagrams are more than it has.
        let is_possible = self.last.is_none_or(|last| data.seq < last) && data.seq < u32::MAX - WINDOW;
        if self.seen >> bit & 1 != 0 || self.stage != Stage::Receiving || !is_possible {
            return;
        }
        self.install(&data, grace, table, counters);
        for (vni, role) in data.units {
            if self.units.len() < UNITS_MAX {
                self.units.insert(vni, role);
            } else {
                self.too_many = true;
            }
        }
        if data.last {
            self.last = Some(data.seq);
        }
        self.seen |= 1 << bit;
        let received = self.seen.trailing_ones();
        self.next += received;
        self.seen = self.seen.checked_shr(received).unwrap_or(0);
        if self.last.is_some_and(|last| self.next > last) {
            if self.full > self.all / FULL_RATIO {
                self.late.append(&mut self.lacking);
            }
            self.stage = Stage::Ending(0);
        }
    }

    fn install(&mut self, data: &Data, grace: u32, table: &mut dyn SessionTable, counters: &mut Counters) {
        let sourced = |record: &Record| {
            let is_of_owner = self.trusted.contains(&record.vni);
            let (source, grace) =
                if is_of_owner { (Source::Owner(self.mark), grace) } else { (Source::Other, 0) };
            let idle = record.idle.saturating_add(u32::from(data.age)).saturating_sub(grace);
            (Record { idle, ..*record }, source)
        };
        let records: Vec<_> = data.records.iter().map(sourced).collect();
        self.has_others |= records.iter().any(|(_, source)| *source == Source::Other);
        for ((record, _), installed) in records.iter().zip(table.install_all(&records)) {
            match installed {
                Installed::Done => counters.installed += 1,
                Installed::Refused => counters.refused += 1,
                Installed::Full => {
                    counters.full += 1;
                    self.full += 1;
                    self.too_many |= !insert_bounded(&mut self.lacking, record.vni);
                }
                Installed::Later => {
                    counters.later += 1;
                    self.too_many |= !insert_bounded(&mut self.late, record.vni);
                }
            }
            self.all += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::State;

    /// Notes what it is asked to do.
    struct Notes {
        answer: Installed,
        installed: Vec<(Vni, u32)>,
        ended: Vec<Vni>,
        trusted: Vec<Vni>,
    }

    impl SessionTable for Notes {
        fn now(&self) -> u32 {
            0
        }

        fn read(&self, _: u64, _: &mut dyn FnMut(Record)) -> Option<u64> {
            None
        }

        fn install(&mut self, record: &Record, _: Source) -> Installed {
            self.installed.push((record.vni, record.idle));
            self.answer
        }

        fn end_unseen(&mut self, _: u64, unseen: &Unseen) -> Option<u64> {
            self.ended.extend([1, 2].map(vni).into_iter().filter(|vni| (unseen.units)(*vni)));
            self.trusted.extend([1, 2].map(vni).into_iter().filter(|vni| (unseen.trusted)(*vni)));
            None
        }
    }

    fn vni(number: u32) -> Vni {
        Vni::new(number).unwrap()
    }

    fn session(number: u32) -> Record {
        Record {
            vni: vni(number),
            protocol: 17,
            inside: "10.0.0.1:5000".parse().unwrap(),
            remote: "198.51.100.1:53".parse().unwrap(),
            outside: "203.0.113.1:2000".parse().unwrap(),
            state: State::default(),
            idle: 400,
        }
    }

    /// A pass with a session of each of two NAT gateways, of which the receiver trusts the sender with the first one.
    fn receive(answer: Installed) -> Notes {
        let mut table = Notes { answer, installed: Vec::new(), ended: Vec::new(), trusted: Vec::new() };
        let mut receiver = Receiver::new(320);
        let pass = PassId { boot: 1, number: 1 };
        let mark = || Mark { number: std::num::NonZeroU16::MIN, since: 0 };
        receiver.begin(0, pass, mark, || BTreeSet::from([vni(1)]));
        let (records, units) =
            ([1, 2].map(session).to_vec(), [1, 2].map(|unit| (vni(unit), Role::Owner)).to_vec());
        let data = Data { pass, seq: 0, last: true, age: 5, records, units };
        receiver.receive(0, data, &mut table, &mut Counters::default());
        receiver.advance(&mut 9, &mut table, |_| Progress::Done { copied: true, returned: true });
        table
    }

    /// Receives a pass with so many sessions of NAT gateway 1, for every `nth` of which there is no room. Whether it is complete.
    fn is_complete_with(sessions: u32, nth: u32) -> bool {
        struct Crowded(u32, u32);
        impl SessionTable for Crowded {
            fn now(&self) -> u32 {
                0
            }
            fn read(&self, _: u64, _: &mut dyn FnMut(Record)) -> Option<u64> {
                None
            }
            fn install(&mut self, _: &Record, _: Source) -> Installed {
                self.0 += 1;
                if self.0.is_multiple_of(self.1) { Installed::Full } else { Installed::Done }
            }
            fn end_unseen(&mut self, _: u64, _: &Unseen) -> Option<u64> {
                None
            }
        }
        let mut table = Crowded(0, nth);
        let mut receiver = Receiver::new(320);
        let pass = PassId { boot: 1, number: 1 };
        let mark = || Mark { number: std::num::NonZeroU16::MIN, since: 0 };
        receiver.begin(0, pass, mark, || BTreeSet::from([vni(1)]));
        let units = vec![(vni(1), Role::Owner)];
        for seq in 0..sessions / 10 {
            let (records, last) = (vec![session(1); 10], seq == sessions / 10 - 1);
            let units = if last { units.clone() } else { Vec::new() };
            let data = Data { pass, seq, last, age: 5, records, units };
            receiver.receive(0, data, &mut table, &mut Counters::default());
        }
        let mut is_copied = false;
        receiver.advance(&mut 9, &mut table, |ended| {
            is_copied = ended.is_copied(vni(1));
            Progress::Done { copied: is_copied, returned: true }
        });
        is_copied
    }

    /// Catches a gateway that is no heir because of a few sessions, and one that is an heir without many.
    #[test]
    fn a_copy_may_lack_one_in_a_thousand_sessions_for_which_there_is_no_room() {
        assert!(is_complete_with(5000, 5001) && is_complete_with(5000, 1000));
        assert!(!is_complete_with(5000, 800) && !is_complete_with(990, 990));
    }

    #[test]
    fn copies_of_what_the_sender_owns_count_as_less_idle() {
        assert_eq!(receive(Installed::Done).installed, [(vni(1), 85), (vni(2), 405)]);
    }

    #[test]
    fn a_pass_ends_only_what_the_sender_owns_and_could_install_completely() {
        assert_eq!(receive(Installed::Done).ended, [vni(1)]);
        let later = receive(Installed::Later);
        // Of a port that is another's, a session is late and the others of the NAT gateway are not.
        assert_eq!((later.ended, later.trusted), (vec![], vec![vni(1)]));
    }
}
