//! Which sessions of source NAT have begun and ended, for the log. This file changes with how that is found out.
//!
//! Packets tell nothing. A pass looks at all slots of the session table and compares each with what the pass before saw there. A
//! session lives for its timeout at least, which is longer than a pass, so that none is missed.

use std::net::{SocketAddr, SocketAddrV4};

use sluice_tables::layout;
use sluice_tables::nat::{LoggedBy, Translation};
use sluice_tables::sessions::{Family, Session, SessionReader};
use sluice_types::Vni;

use super::ipfix::Change;
use super::log::{Owners, logged_by};

/// A session as it is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedSession {
    /// The VPC.
    pub vni: u32,
    /// The protocol. For ICMP, the ports of inside and outside are identifiers, and that of the remote is the type of the query.
    pub protocol: u8,
    /// The remote endpoint began it.
    pub is_of_remote: bool,
    /// The endpoint of the instance. NAT64: of IPv6.
    pub inside: SocketAddr,
    /// The public endpoint.
    pub outside: SocketAddrV4,
    /// The other end.
    pub remote: SocketAddrV4,
    /// In ticks.
    pub created_at: u32,
    /// Which session of its slot it is.
    pub(super) generation: u16,
}

impl LoggedSession {
    fn new(session: &Session) -> Self {
        let Translation { session, inside, outside, remote, is_of_remote, .. } = Translation::from(*session);
        Self {
            vni: session.flow.scope,
            protocol: session.flow.protocol,
            is_of_remote,
            inside,
            outside,
            remote,
            created_at: session.created_at,
            generation: session.generation,
        }
    }
}

/// What was logged: 64 bytes for each slot of the session table of a family.
#[derive(Debug)]
pub struct SessionLog {
    reader: SessionReader,
    family: Family,
    buckets: u32,
    /// The bucket at which the pass is.
    next: u32,
    logged: Vec<Option<LoggedSession>>,
}

impl SessionLog {
    /// Nothing is logged yet, so the first pass finds that all sessions have begun: those that an agent before this one has
    /// logged come again.
    pub fn new(reader: SessionReader, family: Family, buckets: u32) -> Self {
        let slots = buckets as usize * layout::SESSION_SLOTS as usize;
        Self { reader, family, buckets, next: 0, logged: vec![None; slots] }
    }

    /// Looks at the next buckets. What other gateways own is logged by these; what has no owner any more only ends. Returns true at the
    /// end of the pass.
    pub fn step(
        &mut self,
        buckets: u32,
        owners: &Owners,
        log: &mut dyn FnMut(Change, &LoggedSession),
    ) -> bool {
        let end = self.next.saturating_add(buckets).min(self.buckets);
        let slots = [self.next, end].map(|bucket| bucket as usize * layout::SESSION_SLOTS as usize);
        let logged_by = |session: &LoggedSession| {
            Vni::new(session.vni).map_or(LoggedBy::Another, |vni| logged_by(owners, vni))
        };
        let mut present = vec![None; slots[1] - slots[0]];
        self.reader.visit(self.family, self.next..end, |slot, session| {
            present[slot - slots[0]] = Some(LoggedSession::new(session));
        });
        for (logged, present) in self.logged[slots[0]..slots[1]].iter_mut().zip(present) {
            if logged.as_ref().is_some_and(|known| logged_by(known) == LoggedBy::Another) {
                *logged = None;
            }
            if *logged == present {
                continue;
            }
            if let Some(ended) = logged.take() {
                log(Change::End, &ended);
            }
            if let Some(begun) = present.filter(|begun| logged_by(begun) == LoggedBy::This) {
                log(Change::Begin, &begun);
                *logged = Some(begun);
            }
        }
        self.next = if end == self.buckets { 0 } else { end };
        self.next == 0
    }
}
