//! What replication needs of the memory in which a gateway has its sessions. Packets change the memory meanwhile.

use crate::record::Record;
use sluice_types::Vni;
use std::num::NonZeroU16;

/// Most sessions in a part of a table, which is what one call reads or judges.
pub const PART_SESSIONS_MAX: usize = 128;

/// A pass that a node receives, as the table knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Is stored with the sessions that are in the pass. Differs from that of the passes before.
    pub number: NonZeroU16,
    /// When the pass began, by [`SessionTable::now`]. Activity at or after this time may be newer than what the pass says.
    pub since: u32,
}

/// Who says that a session exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The owner of the NAT gateway's vIP, in this pass.
    Owner(Mark),
    /// Another gateway, which has owned the vIP or believes that it owns it.
    Other,
}

/// What became of a session that another gateway sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installed {
    /// The table has the session, as it was sent or with newer activity.
    Done,
    /// The table cannot have the session now: it does not know the public address yet, or another session must leave first. The
    /// sender sends it again soon.
    Later,
    /// There is no room for the session where it could be, until others end. A few such sessions do not make a copy incomplete.
    Full,
    /// The table will not have the session: its outside port belongs to another inside endpoint, which the sender does not
    /// know about.
    Refused,
}

/// The sessions that a pass has shown not to exist.
pub struct Unseen<'a> {
    /// Of which NAT gateways the pass had all sessions, and all were installed.
    pub units: &'a dyn Fn(Vni) -> bool,
    /// Which NAT gateways the sender has owned during the whole pass.
    pub trusted: &'a dyn Fn(Vni) -> bool,
    /// The pass.
    pub mark: Mark,
}

/// The sessions of all NAT gateways on a node.
///
/// A table never has two inside endpoints for one outside port of a protocol, and at most one session for two endpoints.
pub trait SessionTable {
    /// The present time in ticks of 1/8 s, which wraps.
    fn now(&self) -> u32;

    /// Calls `visit` for each session of a part of the table, at most [`PART_SESSIONS_MAX`], and returns the next part;
    /// `None` after the last one. Part 0 is the first one. A session that exists from the first call to the last one is
    /// visited at least once.
    fn read(&self, part: u64, visit: &mut dyn FnMut(Record)) -> Option<u64>;

    /// Adds a session, or merges it with the one between the same endpoints that the table has.
    ///
    /// What the owner says replaces what the table has, unless that has newer activity, which came after the begin of the
    /// pass. Of what another gateway says, the newer activity wins, with its state and its outside endpoint. If the times
    /// differ by a second or less, they count as equal, because clocks and expiries are not more exact; then the session
    /// stays, and its state gets the bits of both.
    ///
    /// If the outside port belongs to another inside endpoint, that one's sessions end if the source is the owner, which has
    /// given the port away: now, or at the [end](Self::end_unseen) of the pass. Otherwise the session is refused.
    fn install(&mut self, record: &Record, source: Source) -> Installed;

    /// As [`install`](Self::install) for each of these, in their order. A table for which many at once are cheaper does more.
    fn install_all(&mut self, records: &[(Record, Source)]) -> Vec<Installed> {
        records.iter().map(|(record, source)| self.install(record, *source)).collect()
    }

    /// Ends sessions of a part of the table that a pass has shown not to exist, if they had no activity since it began: those without
    /// its mark; and of the NAT gateways that are [trusted](Unseen::trusted), those whose outside port is another inside
    /// endpoint's by the pass. Returns the next part, as [`read`](Self::read).
    fn end_unseen(&mut self, part: u64, unseen: &Unseen) -> Option<u64>;

    /// Whether sessions ended here since the last call that their owner may still have: the node has emptied its table. A table
    /// whose sessions end only by what the other functions say has nothing to tell.
    fn was_emptied(&mut self) -> bool {
        false
    }
}
