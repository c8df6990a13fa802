//! The sessions of all NAT gateways, as replication reads and installs them ([`SessionTable`]). Sessions are installed by the packets'
//! code, which the kernel runs ([`NatCopier`]); everything else reads the NAT tables.
//!
//! A session that a pass has shown has the pass's number as its mark. Marks are in this process's memory, by the slot of the session.
//! An agent that starts has none, so its first passes end only what they do not have.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::ops::Range;

use sluice_agent::error_chain;
use sluice_datapath::NatCopier;
use sluice_nat_sync::{Installed, Mark, PART_SESSIONS_MAX, Record, SessionTable, Source, State, Unseen};
use sluice_tables::layout::{self, nat_copy};
use sluice_tables::nat::Translation;
use sluice_tables::sessions::{Family, SessionReader, Timeouts, ticks_now};
use sluice_types::Vni;

use super::SharedNat;

#[cfg(test)]
mod tests;

/// Buckets of a part, which have at most [`PART_SESSIONS_MAX`] sessions.
const PART_BUCKETS: u32 = PART_SESSIONS_MAX as u32 / layout::SESSION_SLOTS;
/// The tables: that of IPv4, and that of NAT64, by the family of the inside addresses.
const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];
/// Most outside ports that are noted as taken. Those of further sessions are noted by a later pass.
const TAKEN_MAX: usize = 1 << 16;

/// What installs sessions, and stores the answers in them.
pub trait Installer {
    /// Installs the sessions in their order. Those of which it cannot say what became of them get the answer `NAT_BUSY`.
    fn install_copies(&mut self, copies: &mut [nat_copy]);

    /// The present time in ticks, as that of the installation.
    fn now(&self) -> u32;
}

impl Installer for NatCopier {
    fn install_copies(&mut self, copies: &mut [nat_copy]) {
        if let Err(error) = self.install(copies) {
            tracing::error!(
                error = error_chain(&error),
                "cannot install sessions of other gateways; retrying later"
            );
            copies.iter_mut().for_each(|copy| copy.answer = layout::nat_answer_NAT_BUSY);
        }
    }

    fn now(&self) -> u32 {
        ticks_now()
    }
}

/// Outside ports that the owner has given to inside endpoints, and that belong to others here: by protocol, and by block.
#[derive(Debug, Default)]
struct Taken {
    /// When the pass began: passes have the same number after a while.
    since: u32,
    /// For a shared port, with the remote endpoint.
    ports: HashMap<(u8, SocketAddrV4, Option<SocketAddrV4>), (Vni, SocketAddr)>,
    /// Those that are shared.
    shared: HashSet<(u8, SocketAddrV4)>,
    blocks: HashMap<(Ipv4Addr, u16), (Vni, IpAddr)>,
}

/// The sessions in the NAT tables.
#[derive(Debug)]
pub struct Copies<I> {
    nat: SharedNat,
    reader: SessionReader,
    timeouts: Timeouts,
    installer: I,
    /// Of IPv4 and of NAT64.
    buckets: [u32; 2],
    block_ports: u16,
    /// By slot, of both tables: the number of the pass that had the session; 0: of no pass.
    marks: [Vec<u16>; 2],
    /// By the number of the pass that says so.
    taken: HashMap<u16, Taken>,
    taken_ports: usize,
    /// How often the tables had been emptied when that was last asked.
    emptied: u64,
}

impl<I: Installer> Copies<I> {
    /// The sessions of these tables, in which `installer` installs others.
    pub fn new(nat: SharedNat, installer: I) -> Self {
        let (reader, emptied) = (nat.reader(), nat.emptied());
        let locked = nat.lock();
        let buckets = FAMILIES.map(|family| locked.sessions().buckets(family));
        let (timeouts, block_ports) = (locked.sessions().timeouts(), locked.block_ports() as u16);
        drop(locked);
        let marks = buckets.map(|buckets| vec![0; buckets as usize * layout::SESSION_SLOTS as usize]);
        Self {
            nat,
            reader,
            timeouts,
            installer,
            buckets,
            block_ports,
            marks,
            taken: HashMap::new(),
            taken_ports: 0,
            emptied,
        }
    }

    /// The table and the buckets of a part, and the part after it. Parts of the second table follow those of the first one.
    fn part(&self, part: u64) -> (usize, Range<u32>, Option<u64>) {
        let parts = self.buckets.map(|buckets| u64::from(buckets.div_ceil(PART_BUCKETS)));
        let table = usize::from(part >= parts[0]);
        let number = if table == 0 { part } else { part - parts[0] };
        let buckets = self.buckets[table];
        let first = u32::try_from(number).unwrap_or(u32::MAX).saturating_mul(PART_BUCKETS).min(buckets);
        let end = first.saturating_add(PART_BUCKETS).min(buckets);
        (table, first..end, (part + 1 < parts[0] + parts[1]).then_some(part + 1))
    }

    /// What became of a session by the answer to it.
    fn judge(&mut self, record: &Record, source: Source, answered: &nat_copy) -> Installed {
        let slot = answered.bucket as usize * layout::SESSION_SLOTS as usize + answered.slot as usize;
        let is_new = answered.answer == layout::nat_answer_NAT_BEGUN;
        match answered.answer {
            layout::nat_answer_NAT_BEGUN
            | layout::nat_answer_NAT_TRANSLATED
            | layout::nat_answer_NAT_ELSEWHERE => {
                if let Some(mark) = self.marks[usize::from(record.inside.is_ipv6())].get_mut(slot) {
                    match source {
                        Source::Owner(Mark { number, .. }) => *mark = number.get(),
                        Source::Other if is_new => *mark = 0,
                        Source::Other => {}
                    }
                }
                Installed::Done
            }
            // It has expired, as a session of the table would have. The owner sends what is alive, and copies live longer, so its timeouts
            // are longer than those here: this gateway is no heir.
            layout::nat_answer_NAT_MISS => match source {
                Source::Owner(_) => Installed::Later,
                Source::Other => Installed::Done,
            },
            layout::nat_answer_NAT_TAKEN => match source {
                Source::Owner(mark) => {
                    self.note_taken(record, mark);
                    Installed::Later
                }
                Source::Other => Installed::Refused,
            },
            layout::nat_answer_NAT_PROTOCOL => Installed::Refused,
            layout::nat_answer_NAT_FULL => Installed::Full,
            _ => Installed::Later,
        }
    }

    /// The owner has given the outside port of this session away: at the end of its pass, the sessions end that others have by it.
    /// A pass that was never completed is forgotten by the next one of its number.
    fn note_taken(&mut self, record: &Record, mark: Mark) {
        if self.taken_ports >= TAKEN_MAX {
            // Those of passes that were never completed are left over.
            (self.taken, self.taken_ports) = (HashMap::new(), 0);
        }
        let block = (*record.outside.ip(), record.outside.port() / self.block_ports);
        let taken = self.taken.entry(mark.number.get()).or_default();
        if taken.since != mark.since {
            self.taken_ports = self.taken_ports.saturating_sub(taken.ports.len());
            *taken = Taken { since: mark.since, ..Taken::default() };
        }
        let before = taken.ports.insert(mapping_of(record), (record.vni, record.inside));
        if record.state.is_shared() {
            taken.shared.insert((record.protocol, record.outside));
        }
        taken.blocks.insert(block, (record.vni, record.inside.ip()));
        self.taken_ports += usize::from(before.is_none());
    }
}

/// What belongs to one inside endpoint: an outside port, or a shared one with the remote endpoint.
fn mapping_of(record: &Record) -> (u8, SocketAddrV4, Option<SocketAddrV4>) {
    (record.protocol, record.outside, record.state.is_shared().then_some(record.remote))
}

impl Taken {
    /// Whether a session must end because its outside port, or its block, is another inside endpoint's, or because only here the port
    /// is shared, or only there.
    fn ends(&self, record: &Record, block_ports: u16) -> bool {
        let block = (*record.outside.ip(), record.outside.port() / block_ports);
        let port = (record.protocol, record.outside);
        let is_of_other_mapping = if record.state.is_shared() {
            self.ports.contains_key(&(port.0, port.1, None))
        } else {
            self.shared.contains(&port)
        };
        let is_other_port =
            self.ports.get(&mapping_of(record)).is_some_and(|of| *of != (record.vni, record.inside));
        let is_other_block =
            self.blocks.get(&block).is_some_and(|of| *of != (record.vni, record.inside.ip()));
        is_of_other_mapping || is_other_port || is_other_block
    }
}

/// A session as other gateways know it, with its idle time. `None`: messages cannot express it.
fn record_of(shown: &Translation, timeouts: &Timeouts, now: u32) -> Option<Record> {
    let (protocol, bits) = (shown.session.flow.protocol, shown.session.state & layout::NAT_COPY_STATE);
    let of_remote = if shown.is_of_remote { State::FROM_REMOTE } else { 0 };
    let shared = if shown.is_shared { State::SHARED } else { 0 };
    let active = shown.session.expires_at.wrapping_sub(timeouts.of(protocol, shown.session.state));
    Some(Record {
        vni: Vni::new(shown.session.flow.scope).ok()?,
        protocol,
        inside: shown.inside,
        remote: shown.remote,
        outside: shown.outside,
        state: State::new(bits as u8 & !State::FROM_REMOTE | of_remote | shared)?,
        // A packet may have come since `now` was read.
        idle: now.wrapping_sub(active).cast_signed().max(0).cast_unsigned(),
    })
}

/// A session for the program that installs it.
fn copy_of(record: &Record, source: Source) -> nat_copy {
    let (flags, since) = match source {
        Source::Owner(mark) => (layout::NAT_OF_OWNER, mark.since),
        Source::Other => (0, 0),
    };
    let (family, inside) = match record.inside.ip() {
        IpAddr::V4(inside) => (0, u128::from(u32::from(inside))),
        IpAddr::V6(inside) => (layout::NAT_INSIDE_IPV6, inside.into()),
    };
    nat_copy {
        vni: record.vni.get() | family,
        inside: [(inside >> 64) as u64, inside as u64],
        remote: (*record.remote.ip()).into(),
        outside: (*record.outside.ip()).into(),
        inside_port: record.inside.port(),
        remote_port: record.remote.port(),
        outside_port: record.outside.port(),
        protocol: record.protocol,
        state: record.state.bits(),
        idle: record.idle,
        since,
        flags,
        ..Default::default()
    }
}

impl<I: Installer> SessionTable for Copies<I> {
    fn now(&self) -> u32 {
        self.installer.now()
    }

    fn read(&self, part: u64, visit: &mut dyn FnMut(Record)) -> Option<u64> {
        let (now, (table, buckets, next)) = (self.now(), self.part(part));
        self.reader.visit(FAMILIES[table], buckets, |_, session| {
            let is_live = session.expires_at.wrapping_sub(now).cast_signed() > 0;
            if let Some(record) =
                is_live.then(|| record_of(&Translation::from(*session), &self.timeouts, now)).flatten()
            {
                visit(record);
            }
        });
        next
    }

    fn install(&mut self, record: &Record, source: Source) -> Installed {
        self.install_all(&[(*record, source)]).first().copied().unwrap_or(Installed::Later)
    }

    fn install_all(&mut self, records: &[(Record, Source)]) -> Vec<Installed> {
        let mut copies: Vec<_> = records.iter().map(|(record, source)| copy_of(record, *source)).collect();
        self.installer.install_copies(&mut copies);
        let answered = records.iter().zip(&copies);
        answered.map(|((record, source), copy)| self.judge(record, *source, copy)).collect()
    }

    fn end_unseen(&mut self, part: u64, unseen: &Unseen) -> Option<u64> {
        let (now, (table, buckets, next)) = (self.now(), self.part(part));
        let Self { nat, timeouts, marks, block_ports, .. } = self;
        let Mark { number, since } = unseen.mark;
        let taken = self.taken.get(&number.get()).filter(|taken| taken.since == since);
        let marks = &marks[table];
        nat.lock().end_each(FAMILIES[table], buckets, |slot, shown| {
            let Some(record) = record_of(shown, timeouts, now) else { return false };
            let is_older = now.wrapping_sub(record.idle).wrapping_sub(since).cast_signed() < 0;
            let is_unseen = || (unseen.units)(record.vni) && marks.get(slot) != Some(&number.get());
            let is_taken = || {
                (unseen.trusted)(record.vni) && taken.is_some_and(|taken| taken.ends(&record, *block_ports))
            };
            is_older && (is_unseen() || is_taken())
        });
        if next.is_none()
            && let Some(taken) = self.taken.remove(&number.get())
        {
            self.taken_ports = self.taken_ports.saturating_sub(taken.ports.len());
        }
        next
    }

    fn was_emptied(&mut self) -> bool {
        let emptied = self.nat.emptied();
        if std::mem::replace(&mut self.emptied, emptied) == emptied {
            return false;
        }
        self.marks.iter_mut().for_each(|marks| marks.fill(0));
        (self.taken, self.taken_ports) = (HashMap::new(), 0);
        true
    }
}
