//! The rounds of the agent: which ports are used, by looking at all sessions; ports and blocks that are not are freed.
//! `nat_layout.h` explains the order of the steps.

use super::memory::{BlockId, BlockWord, PortWord, Tables, TuplePlace};
use super::{LoggedBy, Nat, NatBlock, NatEvent, Translation};
use crate::error::Error;
use crate::layout::{self, nat_config};
use crate::sessions::{Fate, Session, SessionReader};
use std::mem::offset_of;
use std::net::SocketAddr;

/// Result of a step of the sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NatSwept {
    /// Sessions that were ended because they had expired.
    pub expired: u64,
    /// Slots of the session tables that were freed.
    pub freed: u64,
    /// Sessions that were ended because their port is not mapped to their VM: always 0, unless memory was damaged or
    /// [`Nat::end`] was not completed.
    pub astray: u64,
    /// Ports that were freed.
    pub ports: u64,
    /// Remote endpoints of shared ports whose words were freed.
    pub tuples: u64,
    /// Blocks that were returned.
    pub blocks: u64,
    /// True if the step completed the round. The next step begins another one.
    pub round_completed: bool,
}

/// What the next step of the round does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    #[default]
    Begin,
    /// Notes how many sessions have begun in blocks, from this group on.
    Note(u32),
    /// Looks at sessions, from the bucket on at which the sweep of the session tables is.
    Sessions,
    /// Waits until no packet is translated by a session that ended before.
    Wait,
    /// Frees tuple words, from this bucket on.
    Tuples(u32),
    /// Frees ports, and begins to close blocks that have none left, from this group on.
    Blocks(u32),
    /// Closes blocks, from this one of those that leave on.
    Close(usize),
    /// Frees blocks that are closed, from this one of those that leave on.
    Free(usize),
}

/// Groups of which one step looks at the ports. With 16 blocks of 4096 ports of three protocols each, these have 2^20 words.
const GROUPS: u32 = 4;
/// Blocks of as many groups.
const BLOCKS: usize = (GROUPS * layout::NAT_GROUP_BLOCKS) as usize;
/// Groups of which one step looks at the blocks.
const GROUPS_NOTED: u32 = 1024;

/// Buckets of tuple words that one step looks at: 2^16 words.
const TUPLE_BUCKETS: u32 = 1 << 13;

/// Families of inside addresses.
const FAMILIES: usize = layout::NAT_FAMILIES as usize;

/// What is in use, as a round sees it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Used {
    pub(super) blocks: u64,
    pub(super) ports: u64,
    pub(super) tuples: u64,
}

/// A block in the present round.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// When the round began.
    word: BlockWord,
    begun: u32,
    /// Its sessions.
    live: u32,
}

/// The sessions of a family of inside addresses at a public address in the present round.
#[derive(Clone, Copy, Debug, Default)]
struct SeenAt {
    /// That have begun before the round.
    begun: u32,
    live: u32,
}

/// The position of the sweep, and what it has seen.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pub(super) phase: Phase,
    /// Of this agent's present round.
    round: u32,
    seen: Vec<Seen>,
    /// By number, and by family.
    addresses: Vec<[SeenAt; FAMILIES]>,
    /// Blocks that were closing, closed, or claimed, and their words.
    leaving: Vec<(BlockId, BlockWord)>,
    /// In the last complete round, and in the present one.
    used: Used,
    counting: Used,
}

impl Progress {
    pub(super) fn used(&self) -> Used {
        self.used
    }
}

/// By which protocol a session's ports are mapped.
fn class_of(protocol: u8) -> Option<u32> {
    match protocol {
        6 => Some(layout::NAT_TCP),
        17 => Some(layout::NAT_UDP),
        1 => Some(layout::NAT_ICMP),
        _ => None,
    }
}

/// Where the word of a session's tuple is, by the key that `nat_place_tuple` has (`nat_shared.h`).
fn tuple_of(reader: &SessionReader, translation: &Translation) -> Option<TuplePlace> {
    let remote = translation.remote;
    let who = u64::from(translation.number)
        | u64::from(translation.session.flow.protocol) << layout::SESSION_PROTOCOL_SHIFT
        | u64::from(translation.outside.port()) << layout::SESSION_PORT0_SHIFT
        | u64::from(remote.port()) << layout::SESSION_PORT1_SHIFT;
    Some(reader.place([who, u32::from(*remote.ip()).into()]))
}

/// Stamps the port of a session, and its tuple if the port is shared. `None`: the port is not mapped to its VM.
fn stamp(tables: &Tables, reader: &SessionReader, session: &Session, round: u32) -> Option<BlockId> {
    let translation = Translation::from(*session);
    let Translation { inside, outside, number, .. } = translation;
    let (class, port) = (class_of(session.flow.protocol)?, outside.port());
    let id = tables.block_of(number, port)?;
    let block = tables.block(id, tables.word(id))?;
    loop {
        let word = tables.port(id.group, class, port);
        let inside_port = if word.is_shared() { inside.port() } else { word.inside_port() };
        if !word.is_settled()
            || block.vni.get() != session.flow.scope
            || inside != SocketAddr::from((block.inside, inside_port))
        {
            return None;
        }
        // A swap fails if a packet has stamped the word with this round, so this ends.
        if word.stamp() == round
            || tables.swap_port((id.group, class, port), word, word.stamped(round)).is_ok()
        {
            let has_tuple =
                || tables.stamp_tuple(tuple_of(reader, &translation)?, inside_port, round).then_some(());
            return if word.is_shared() { has_tuple().map(|()| id) } else { Some(id) };
        }
    }
}

impl Nat {
    /// Makes one step of the sweep: looks at `buckets` buckets of the session tables, or at the ports of some blocks. Ends
    /// sessions that have expired at `now`; frees ports that no session used in this round ([`Nat::hold_ports`] apart); returns blocks that have no such
    /// port. Claims and returns of blocks are told to `log`. Packets never wait. A port or slot is free after one or two rounds,
    /// so a round should be complete within the shortest timeout.
    ///
    /// # Errors
    /// [`Error::Grace`]; nothing was freed then, and the next step tries again.
    pub fn sweep(
        &mut self,
        buckets: u32,
        now: u32,
        log: &mut dyn FnMut(NatEvent),
    ) -> Result<NatSwept, Error> {
        match self.progress.phase {
            Phase::Begin => self.begin_round(),
            Phase::Note(first) => Ok(self.note_blocks(first)),
            Phase::Sessions => self.look_at_sessions(buckets, now),
            Phase::Wait => {
                self.sessions.wait_for_packets()?;
                self.progress.phase = Phase::Tuples(0);
                Ok(NatSwept::default())
            }
            Phase::Tuples(first) => Ok(self.free_tuples(first)),
            Phase::Blocks(first) => Ok(self.look_at_blocks(first, now, log)),
            Phase::Close(first) => self.close_blocks(first),
            Phase::Free(first) => self.free_blocks(first, now, log),
        }
    }

    fn begin_round(&mut self) -> Result<NatSwept, Error> {
        self.drain()?;
        let at = offset_of!(nat_config, round);
        let before = self.config.load32(at);
        let round = if before >= layout::NAT_ROUND_MAX { 1 } else { before + 1 };
        self.config.store32(at, round);
        self.sessions.wait_for_packets()?;
        (self.progress.round, self.progress.counting) = (round, Used::default());
        self.progress.seen.clear();
        self.progress.leaving.clear();
        let see = |address, family| SeenAt { begun: self.tables.begun_at(address, family), live: 0 };
        let see = |address| std::array::from_fn(|family| see(address, family));
        self.progress.addresses = (0..self.tables.addresses()).map(see).collect();
        Ok(self.note_blocks(0))
    }

    fn note_blocks(&mut self, first: u32) -> NatSwept {
        let tables = &self.tables;
        let end = (first + GROUPS_NOTED).min(tables.groups());
        let see = |id| Seen { word: tables.word(id), begun: tables.begun(id), live: 0 };
        self.progress.seen.extend((first..end).flat_map(Tables::blocks_of).map(see));
        self.progress.phase = if end == tables.groups() { Phase::Sessions } else { Phase::Note(end) };
        NatSwept::default()
    }

    fn look_at_sessions(&mut self, buckets: u32, now: u32) -> Result<NatSwept, Error> {
        let Progress { round, seen, addresses, .. } = &mut self.progress;
        let (tables, reader, round) = (&self.tables, self.sessions.reader().clone(), *round);
        let mut decide = |session: &Session| match stamp(tables, &reader, session, round) {
            Some(id) => {
                seen[id.number()].live += 1;
                let family = usize::from(session.flow.source.is_ipv6());
                addresses[tables.address_of(id.group) as usize][family].live += 1;
                Fate::Stays
            }
            None => Fate::Ends,
        };
        let (swept, reviewed) = self.sessions.visit(buckets, now, Some(&mut decide));
        // What follows may fail, and these buckets are not visited twice in a round.
        if reviewed.refreshed > 0 {
            // A session that has not ended may be the last one of a block that is closed, which must not be free before.
            self.restart_round();
        } else if swept.round_completed {
            self.progress.phase = Phase::Wait;
        }
        let freed = self.sessions.free_dying()?;
        Ok(NatSwept { expired: swept.expired, freed, astray: reviewed.ended, ..NatSwept::default() })
    }

    fn free_tuples(&mut self, first: u32) -> NatSwept {
        let end = first.saturating_add(TUPLE_BUCKETS).min(self.tables.tuple_buckets());
        let mut swept = NatSwept::default();
        for bucket in first..end {
            let (freed, used) = self.tables.free_tuples(bucket, self.progress.round);
            swept.tuples += freed;
            self.progress.counting.tuples += used;
        }
        let is_last = end == self.tables.tuple_buckets();
        self.progress.phase = if is_last { Phase::Blocks(0) } else { Phase::Tuples(end) };
        swept
    }

    fn look_at_blocks(&mut self, first: u32, now: u32, log: &mut dyn FnMut(NatEvent)) -> NatSwept {
        let mut swept = NatSwept::default();
        let end = (first + GROUPS).min(self.tables.groups());
        for id in (first..end).flat_map(Tables::blocks_of) {
            let word = self.tables.word(id);
            if word.is_owned() {
                let used = self.look_at_block(id, word, log, &mut swept);
                if used == 0 && self.tables.swap_word(id, word, word.closing()) {
                    self.progress.leaving.push((id, word.closing()));
                } else {
                    self.progress.counting.blocks += 1;
                    self.progress.counting.ports += used;
                }
            } else if word.is_claimed() || word.is_closing() || word.is_closed() {
                self.progress.leaving.push((id, word));
            }
        }
        self.progress.phase = Phase::Blocks(end);
        if end == self.tables.groups() {
            self.progress.phase = Phase::Close(0);
            swept.round_completed = self.progress.leaving.is_empty() && self.complete_round(now);
        }
        swept
    }

    /// Closes blocks that were closing a grace period ago, and of which no packet has claimed a port meanwhile. Frees those that
    /// were claimed and still are, so that their packets were killed.
    fn close_blocks(&mut self, first: usize) -> Result<NatSwept, Error> {
        if first == 0 {
            self.sessions.wait_for_packets()?;
        }
        let end = (first + BLOCKS).min(self.progress.leaving.len());
        for at in first..end {
            let (id, word) = self.progress.leaving[at];
            if word.is_claimed() {
                self.tables.swap_word(id, word, word.returned());
            } else if word.is_closing() {
                if self.ports_of(id).any(|at| self.tables.port(id.group, at.0, at.1).0 != 0) {
                    self.tables.swap_word(id, word, word.owned());
                } else if self.tables.swap_word(id, word, word.closed()) {
                    self.progress.leaving[at].1 = word.closed();
                }
            }
        }
        let is_last = end == self.progress.leaving.len();
        self.progress.phase = if is_last { Phase::Free(0) } else { Phase::Close(end) };
        Ok(NatSwept::default())
    }

    /// Frees blocks that were closed a grace period ago, so that no packet uses them. Ports that they still have are of sessions
    /// that have ended ([`Nat::end`]).
    fn free_blocks(
        &mut self,
        first: usize,
        now: u32,
        log: &mut dyn FnMut(NatEvent),
    ) -> Result<NatSwept, Error> {
        if first == 0 {
            self.sessions.wait_for_packets()?;
        }
        let mut swept = NatSwept::default();
        let end = (first + BLOCKS).min(self.progress.leaving.len());
        for &(id, word) in self.progress.leaving[first..end].iter().filter(|(_, word)| word.is_closed()) {
            for (class, port) in self.ports_of(id) {
                let at = (id.group, class, port);
                let word = self.tables.port(id.group, class, port);
                swept.ports += u64::from(word.0 != 0 && self.tables.swap_port(at, word, PortWord(0)).is_ok());
            }
            if let Some(block) = self.log_claim(id, word, log) {
                log(NatEvent::Returned(block, now));
            }
            let is_released = self.tables.is_draining(self.tables.address_of(id.group));
            let returned = if is_released { word.returned().withheld() } else { word.returned() };
            swept.blocks += u64::from(self.tables.swap_word(id, word, returned));
        }
        self.progress.phase = Phase::Free(end);
        swept.round_completed = end == self.progress.leaving.len() && self.complete_round(now);
        Ok(swept)
    }

    fn complete_round(&mut self, now: u32) -> bool {
        self.free_numbers();
        for (address, families) in (0..).zip(&self.progress.addresses) {
            for (family, seen) in families.iter().enumerate() {
                self.tables.set_ended_at(address, family, seen.begun.wrapping_sub(seen.live));
            }
        }
        self.progress.used = self.progress.counting;
        self.progress.phase = Phase::Begin;
        self.config.store32(offset_of!(nat_config, round_at), now);
        true
    }

    /// Frees the ports of a block that were not used in this round, nor in those before for which they are held. Returns the number of
    /// the others.
    fn look_at_block(
        &self,
        id: BlockId,
        word: BlockWord,
        log: &mut dyn FnMut(NatEvent),
        swept: &mut NatSwept,
    ) -> u64 {
        let mut used = 0;
        let held = if self.tables.is_own_block(id) { self.held_rounds } else { 0 };
        for (class, port) in self.ports_of(id) {
            let word = self.tables.port(id.group, class, port);
            let is_in_use = word.0 != 0
                && (word.is_held_in(self.progress.round, held)
                    // The swap fails if a packet has stamped the word in between.
                    || self.tables.swap_port((id.group, class, port), word, PortWord(0)).is_err());
            used += u64::from(is_in_use);
            swept.ports += u64::from(word.0 != 0 && !is_in_use);
        }
        self.log_claim(id, word, log);
        let seen = &self.progress.seen[id.number()];
        if seen.word.is_same_life(word) && seen.word.has_owner() {
            self.tables.set_ended(id, seen.begun.wrapping_sub(seen.live));
        }
        used
    }

    fn ports_of(&self, id: BlockId) -> impl Iterator<Item = (u32, u16)> + use<> {
        let ports = self.tables.port_range(id);
        (0..layout::NAT_CLASSES).flat_map(move |class| ports.clone().map(move |port| (class, port)))
    }

    /// Logs that all blocks are returned which inside addresses have, and their claims, unless this was done. No packet uses the
    /// tables meanwhile.
    pub(super) fn log_returns(&self, now: u32, log: &mut dyn FnMut(NatEvent)) {
        for id in self.tables.all_blocks() {
            let word = self.tables.word(id);
            if (word.has_owner() || word.is_closed())
                && let Some(block) = self.log_claim(id, word, log)
            {
                log(NatEvent::Returned(block, now));
            }
        }
    }

    /// Logs the claim of a block, unless this was done. Returns the block, if it is one that is logged.
    fn log_claim(&self, id: BlockId, word: BlockWord, log: &mut dyn FnMut(NatEvent)) -> Option<NatBlock> {
        let block = self.tables.content(id, word)?;
        let is_logged = self.tables.is_logged(id);
        match self.logs.as_ref().map_or(LoggedBy::This, |logged_by| logged_by(block.vni)) {
            LoggedBy::This if !is_logged => {
                log(NatEvent::Claimed(block.clone()));
                self.tables.set_logged(id);
                Some(block)
            }
            LoggedBy::This => Some(block),
            LoggedBy::Unknown => is_logged.then_some(block),
            LoggedBy::Another => None,
        }
    }
}
