//! Judges sessions by the policies of their ports, in the direction in which they began. Pure.

use std::collections::{BTreeSet, HashMap};

use sluice_rsp::Destination;
use sluice_tables::sessions::{Fate, Session};
use sluice_tables::{Busy, Direction, Reader, Verdict};
use sluice_types::Vni;

use crate::scopes::ScopeMap;

/// What becomes of a session that the policy of this generation does not permit. It keeps its rule.
fn revoked(session: &Session, generation: u32) -> Fate {
    Fate::Revoked(session.permitted_by(generation, session.rule()))
}

/// By what the sessions of a port are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Basis {
    /// They go on: what the port has now is not known, or another review follows.
    Nothing,
    /// They end: no port has them, or one that is not filtered.
    Ended,
    /// By the policy in a cell, of a port in a network.
    Policy { cell: u32, generation: u32, vni: u32 },
}

/// Judges while the tables do not change under it.
pub(super) struct Judge<'a> {
    reader: &'a Reader,
    map: &'a ScopeMap,
    identity_of: &'a dyn Fn(Destination) -> Option<u16>,
    may_wait: &'a dyn Fn(Destination) -> bool,
    known: HashMap<u16, Basis>,
    is_certain: bool,
    unknown: BTreeSet<Destination>,
}

impl<'a> Judge<'a> {
    /// `identity_of`: the identity of an instance on another host, if this host knows it. `may_wait`: whether a session
    /// that depends on one that it does not know goes on; otherwise it ends.
    pub fn new(
        reader: &'a Reader,
        map: &'a ScopeMap,
        identity_of: &'a dyn Fn(Destination) -> Option<u16>,
        may_wait: &'a dyn Fn(Destination) -> bool,
    ) -> Self {
        let (known, unknown) = (HashMap::new(), BTreeSet::new());
        Self { reader, map, identity_of, may_wait, known, is_certain: true, unknown }
    }

    /// Receivers whose identity must be known before the sessions to them are judged again.
    pub fn into_unknown(self) -> BTreeSet<Destination> {
        self.unknown
    }

    /// False: the tables were too busy to find a port, and its sessions must be judged again.
    pub fn is_certain(&self) -> bool {
        self.is_certain
    }

    /// What becomes of a session.
    pub fn decide(&mut self, session: &Session) -> Fate {
        let Ok(number) = u16::try_from(session.flow.scope) else { return Fate::Stays };
        let known = self.known.get(&number).copied();
        let basis = known.unwrap_or_else(|| self.find(number));
        let mut fate = self.judge(session, basis);
        if matches!(fate, Fate::Ends | Fate::Revoked(_)) && known.is_some() {
            // The session may have begun after that was found, under another policy.
            let basis = self.find(number);
            fate = self.judge(session, basis);
        }
        fate
    }

    fn judge(&mut self, session: &Session, basis: Basis) -> Fate {
        match basis {
            Basis::Nothing => Fate::Stays,
            Basis::Ended => Fate::Ends,
            // It ends by itself, and lets no packet pass.
            Basis::Policy { .. } if session.is_reset() => Fate::Stays,
            Basis::Policy { generation, .. } if session.policy_generation() == generation => Fate::Stays,
            Basis::Policy { cell, generation, vni } => {
                let packet = session.first_packet();
                match self.reader.evaluate(cell, &packet) {
                    // The next packet begins another one.
                    Verdict::Permitted(_) if session.is_revoked() => Fate::Ends,
                    Verdict::Permitted(rule) => Fate::Changes(session.permitted_by(generation, rule)),
                    Verdict::Denied if packet.direction == Direction::Egress => {
                        self.judge_by_receiver(session, (cell, generation), vni)
                    }
                    Verdict::Denied | Verdict::Unrestricted => revoked(session, generation),
                }
            }
        }
    }

    /// A rule with a prefix may have permitted the session, so the identity of its receiver was not needed, or is another one by
    /// now. A rule that names a group may still permit it.
    fn judge_by_receiver(&mut self, session: &Session, (cell, generation): (u32, u32), vni: u32) -> Fate {
        let mut packet = session.first_packet();
        let Some(vni) = Vni::new(vni).ok().filter(|_| self.reader.names_receivers(cell)) else {
            return revoked(session, generation);
        };
        let receiver = Destination { vni, address: packet.remote };
        let Some(identity) = (self.identity_of)(receiver) else {
            let waits = (self.may_wait)(receiver);
            self.unknown.extend(waits.then_some(receiver));
            return if waits { Fate::Stays } else { revoked(session, generation) };
        };
        packet.identity = identity;
        match self.reader.evaluate(cell, &packet) {
            Verdict::Permitted(_) if session.is_revoked() => Fate::Ends,
            Verdict::Permitted(rule) => Fate::Identified(session.permitted_by(generation, rule), identity),
            Verdict::Denied | Verdict::Unrestricted => revoked(session, generation),
        }
    }

    /// What the sessions of a port are judged by now.
    fn find(&mut self, number: u16) -> Basis {
        let basis = self.look_up(number);
        self.known.insert(number, basis);
        basis
    }

    fn look_up(&mut self, number: u16) -> Basis {
        if self.map.retired.binary_search(&number).is_ok() {
            return Basis::Ended;
        }
        let Some(owner) = self.map.given.get(&number) else { return Basis::Nothing };
        match self.reader.port_filter(owner.ifindex) {
            Err(Busy) => {
                self.is_certain = false;
                Basis::Nothing
            }
            Ok(Some(port)) if port.scope == number && port.policy_cell == 0 => Basis::Ended,
            Ok(Some(port)) if port.scope == number => {
                let cell = port.policy_cell;
                let generation = self.reader.policy_generation(cell);
                generation.map_or(Basis::Nothing, |generation| Basis::Policy {
                    cell,
                    generation,
                    vni: port.vni,
                })
            }
            // The port is about to be written, or has another number, and then this one is about to be retired.
            Ok(_) => Basis::Nothing,
        }
    }
}
