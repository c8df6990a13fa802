//! Which sessions of source NAT have begun and ended, for the log. This file changes with how that is found out.
//!
//! Packets tell nothing. A pass looks at all slots of the session table and compares each with what the pass before saw there. A
//! session lives for its timeout at least, which is longer than a pass, so that none is missed.

use std::collections::HashSet;
use std::net::{SocketAddr, SocketAddrV4};

use sluice_tables::layout;
use sluice_tables::nat::Translation;
use sluice_tables::sessions::{Family, Session, SessionReader};
use sluice_types::Vni;

use super::ipfix::Change;

/// A session as it is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedSession {
    /// The VPC.
    pub vni: u32,
    /// The protocol. For ICMP, the ports of inside and outside are identifiers, and that of the remote is the type of the query.
    pub protocol: u8,
    /// The remote endpoint began it.
    pub is_of_remote: bool,
    /// The endpoint of the instance.
    pub inside: SocketAddrV4,
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
    fn new(session: &Session) -> Option<Self> {
        let Translation { session, inside, outside, remote, is_of_remote, .. } = Translation::from(*session);
        let (SocketAddr::V4(inside), SocketAddr::V4(remote)) = (inside, remote) else { return None };
        Some(Self {
            vni: session.flow.scope,
            protocol: session.flow.protocol,
            is_of_remote,
            inside,
            outside,
            remote,
            created_at: session.created_at,
            generation: session.generation,
        })
    }
}

/// What was logged: 40 bytes for each slot of the session table.
#[derive(Debug)]
pub struct SessionLog {
    reader: SessionReader,
    buckets: u32,
    /// The bucket at which the pass is.
    next: u32,
    logged: Vec<Option<LoggedSession>>,
}

impl SessionLog {
    /// Nothing is logged yet, so the first pass finds that all sessions have begun: those that an agent before this one has
    /// logged come again.
    pub fn new(reader: SessionReader, buckets: u32) -> Self {
        let slots = buckets as usize * layout::SESSION_SLOTS as usize;
        Self { reader, buckets, next: 0, logged: vec![None; slots] }
    }

    /// Looks at the next buckets for sessions of these VPCs; what others have is logged by their gateways. Returns true at the end of the
    /// pass.
    pub fn step(
        &mut self,
        buckets: u32,
        owned: &HashSet<Vni>,
        log: &mut dyn FnMut(Change, &LoggedSession),
    ) -> bool {
        let end = self.next.saturating_add(buckets).min(self.buckets);
        let slots = [self.next, end].map(|bucket| bucket as usize * layout::SESSION_SLOTS as usize);
        let is_owned = |vni: u32| Vni::new(vni).is_ok_and(|vni| owned.contains(&vni));
        let mut present = vec![None; slots[1] - slots[0]];
        self.reader.visit(Family::Ipv4, self.next..end, |slot, session| {
            present[slot - slots[0]] = LoggedSession::new(session).filter(|session| is_owned(session.vni));
        });
        for (logged, present) in self.logged[slots[0]..slots[1]].iter_mut().zip(present) {
            if *logged == present {
                continue;
            }
            // Another gateway logs the end of what it owns now.
            if let Some(ended) = logged.as_ref().filter(|ended| is_owned(ended.vni)) {
                log(Change::End, ended);
            }
            if let Some(begun) = &present {
                log(Change::Begin, begun);
            }
            *logged = present;
        }
        self.next = if end == self.buckets { 0 } else { end };
        self.next == 0
    }
}
