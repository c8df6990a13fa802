//! The naive model of a session table: a map, and the outside ports that its sessions use.

use sluice_nat_sync::{
    Installed, PART_SESSIONS_MAX, Record, SessionTable, Source, State, Unseen, block_share,
};
use sluice_types::{GatewayId, Vni};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::num::NonZeroU16;

/// Parts of the table. A session is always in the same one.
const PARTS: u64 = 16;
/// Ports of a block.
const BLOCK_PORTS: u16 = 64;
/// Times of activity that differ by so many ticks count as equal.
const SLACK: i32 = 8;

/// What a table has at most one session for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub vni: Vni,
    pub protocol: u8,
    pub inside: SocketAddr,
    pub remote: SocketAddrV4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    pub outside: SocketAddrV4,
    pub state: State,
    /// When the last packet came, in ticks.
    pub active: u32,
    mark: Option<NonZeroU16>,
}

#[derive(Clone, Debug, Default)]
pub struct Table {
    /// The time, in ticks.
    pub now: u32,
    /// Sessions end when they were idle for so many ticks.
    pub timeout: u32,
    /// The next sessions that cannot be installed.
    pub refusals: u32,
    /// The node has emptied the table, and replication does not know it yet.
    pub emptied: bool,
    pub sessions: BTreeMap<Key, Session>,
    next_port: u16,
    /// The inside endpoint of each outside port in use, with the remote endpoint if the port is shared, and the number of
    /// its sessions.
    ports: BTreeMap<Mapping, (Vni, SocketAddr, usize)>,
}

type Mapping = (u8, SocketAddrV4, Option<SocketAddrV4>);

/// Whether sessions of a NAT gateway that packets begin share ports.
pub fn shares_ports(vni: Vni) -> bool {
    vni.get().is_multiple_of(2)
}

fn mapping(key: &Key, outside: SocketAddrV4, state: State) -> Mapping {
    (key.protocol, outside, state.is_shared().then_some(key.remote))
}

/// The state, and whether the outside port is shared as with the other state.
fn like(state: State, other: State) -> State {
    let bits = state.bits() & !State::SHARED | other.bits() & State::SHARED;
    State::new(bits).expect("all bits have a meaning")
}

pub fn key(record: &Record) -> Key {
    let Record { vni, protocol, inside, remote, .. } = *record;
    Key { vni, protocol, inside, remote }
}

fn part_of(key: &Key) -> u64 {
    (u64::from(key.remote.port()) * 31 + u64::from(u32::from(*key.remote.ip()))) % PARTS
}

/// The public address of a NAT gateway.
pub fn public(vni: Vni) -> Ipv4Addr {
    Ipv4Addr::from(0xcb00_7100 + vni.get())
}

impl Table {
    pub fn new(timeout: u32) -> Self {
        Self { timeout, ..Self::default() }
    }

    fn insert(&mut self, key: Key, session: Session) {
        self.remove(&key);
        let at = mapping(&key, session.outside, session.state);
        assert!(!self.has_other_mapping(&at), "an outside port is shared and not shared");
        let port = self.ports.entry(at).or_insert((key.vni, key.inside, 0));
        assert_eq!((port.0, port.1), (key.vni, key.inside), "an outside port has two inside endpoints");
        port.2 += 1;
        self.sessions.insert(key, session);
    }

    /// Whether the outside port is in use as one that is shared and this is not, or the reverse.
    fn has_other_mapping(&self, at: &Mapping) -> bool {
        self.ports.keys().any(|it| (it.0, it.1) == (at.0, at.1) && it.2.is_some() != at.2.is_some())
    }

    pub fn remove(&mut self, key: &Key) -> Option<Session> {
        let session = self.sessions.remove(key)?;
        let at = mapping(key, session.outside, session.state);
        let port = self.ports.get_mut(&at).expect("a session has a port");
        port.2 -= 1;
        if port.2 == 0 {
            self.ports.remove(&at);
        }
        Some(session)
    }

    /// Ends sessions that were idle for too long.
    pub fn expire(&mut self) {
        let idle = |session: &Session| self.now.wrapping_sub(session.active) as i32;
        let over: Vec<Key> = self
            .sessions
            .iter()
            .filter(|(_, session)| idle(session) >= self.timeout as i32)
            .map(|(key, _)| *key)
            .collect();
        for key in over {
            self.remove(&key);
        }
    }

    /// Begins a session as a packet of a VM does: by the outside port that the inside endpoint has, or by a new one of the
    /// gateway's share. Returns the session as a packet would carry it to other gateways.
    pub fn begin(&mut self, key: Key, own: GatewayId, members: &[GatewayId], ports: u16) -> Option<Record> {
        let shared = if shares_ports(key.vni) { State::SHARED } else { 0 };
        let state = State::new(shared).expect("all bits have a meaning");
        let mapped = self.ports.iter().find(|((protocol, _, remote), (vni, inside, _))| {
            *protocol == key.protocol
                && (*vni, *inside) == (key.vni, key.inside)
                && remote.is_none()
                && !state.is_shared()
        });
        let free = || {
            // A port that was used lately comes last.
            let numbers = (0..ports).map(|number| 1024 + (self.next_port + number) % ports);
            let mut candidates =
                numbers.map(|port| SocketAddrV4::new(public(key.vni), port)).filter(|outside| {
                    let block = outside.port() / BLOCK_PORTS;
                    block_share(members, *outside.ip(), block) == Some(own)
                        && !self.ports.contains_key(&mapping(&key, *outside, state))
                        && !self.has_other_mapping(&mapping(&key, *outside, state))
                });
            candidates.next()
        };
        let outside = mapped.map(|((_, outside, _), _)| *outside).or_else(free)?;
        if mapped.is_none() {
            self.next_port = outside.port() - 1024 + 1;
        }
        let session = Session { outside, state, active: self.now, mark: None };
        self.insert(key, session);
        self.record(&key)
    }

    /// A packet of a session.
    pub fn touch(&mut self, key: &Key, bits: u8) {
        if let Some(session) = self.sessions.get_mut(key) {
            session.active = self.now;
            session.state = State::new(session.state.bits() | bits).expect("all bits have a meaning");
        }
    }

    pub fn record(&self, key: &Key) -> Option<Record> {
        let session = self.sessions.get(key)?;
        let Key { vni, protocol, inside, remote } = *key;
        let idle = self.now.wrapping_sub(session.active);
        Some(Record { vni, protocol, inside, remote, outside: session.outside, state: session.state, idle })
    }

    /// Checks that ports and sessions belong to each other.
    pub fn check(&self) {
        let mut counted: BTreeMap<_, usize> = BTreeMap::new();
        for (key, session) in &self.sessions {
            let at = mapping(key, session.outside, session.state);
            *counted.entry(at).or_default() += 1;
            assert!(!self.has_other_mapping(&at), "an outside port is shared and not shared");
            let (vni, inside, _) = self.ports[&at];
            assert_eq!((vni, inside), (key.vni, key.inside), "an outside port has two inside endpoints");
        }
        assert!(self.ports.iter().all(|(port, of)| counted.get(port) == Some(&of.2)));
    }
}

impl SessionTable for Table {
    fn now(&self) -> u32 {
        self.now
    }

    fn read(&self, part: u64, visit: &mut dyn FnMut(Record)) -> Option<u64> {
        let keys = self.sessions.keys().filter(|key| part_of(key) == part);
        let records: Vec<Record> = keys.filter_map(|key| self.record(key)).collect();
        assert!(records.len() <= PART_SESSIONS_MAX, "the model has too few parts");
        records.into_iter().for_each(visit);
        Some(part + 1).filter(|next| *next < PARTS)
    }

    fn install(&mut self, record: &Record, source: Source) -> Installed {
        if self.refusals > 0 {
            self.refusals -= 1;
            return Installed::Later;
        }
        let key = key(record);
        let active = self.now.wrapping_sub(record.idle);
        let mark = match source {
            Source::Owner(mark) => Some(mark.number),
            Source::Other => None,
        };
        let mut session = Session { outside: record.outside, state: record.state, active, mark };
        if let Some(present) = self.sessions.get_mut(&key) {
            let newer_by = present.active.wrapping_sub(active) as i32;
            match source {
                Source::Owner(mark) => {
                    let came_after = present.active.wrapping_sub(mark.since) as i32 >= 0;
                    if came_after && newer_by > 0 {
                        present.mark = Some(mark.number);
                        return Installed::Done;
                    }
                }
                Source::Other if newer_by > SLACK => return Installed::Done,
                Source::Other if newer_by >= -SLACK => {
                    let bits = present.state.bits() | session.state.bits();
                    let both = State::new(bits).expect("all bits have a meaning");
                    present.state = like(both, present.state);
                    return Installed::Done;
                }
                Source::Other => {}
            }
            if present.outside == session.outside {
                session.state = like(session.state, present.state);
            }
        }
        let at = mapping(&key, session.outside, session.state);
        let is_other = self.ports.get(&at).is_some_and(|port| (port.0, port.1) != (key.vni, key.inside));
        if is_other || self.has_other_mapping(&at) {
            if source == Source::Other {
                return Installed::Refused;
            }
            let stale = |(other, session): (&Key, &Session)| {
                let its = mapping(other, session.outside, session.state);
                let is_same_port = (its.0, its.1) == (at.0, at.1);
                (its == at || is_same_port && its.2.is_some() != at.2.is_some()).then_some(*other)
            };
            let stale: Vec<Key> = self.sessions.iter().filter_map(stale).collect();
            for key in stale {
                self.remove(&key);
            }
        }
        self.insert(key, session);
        Installed::Done
    }

    fn end_unseen(&mut self, part: u64, unseen: &Unseen) -> Option<u64> {
        let is_older = |session: &Session| (session.active.wrapping_sub(unseen.mark.since) as i32) < 0;
        let over: Vec<Key> = self
            .sessions
            .iter()
            .filter(|(key, session)| {
                part_of(key) == part
                    && (unseen.units)(key.vni)
                    && session.mark != Some(unseen.mark.number)
                    && is_older(session)
            })
            .map(|(key, _)| *key)
            .collect();
        for key in over {
            self.remove(&key);
        }
        Some(part + 1).filter(|next| *next < PARTS)
    }

    fn was_emptied(&mut self) -> bool {
        std::mem::take(&mut self.emptied)
    }
}
