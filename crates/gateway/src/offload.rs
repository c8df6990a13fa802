//! Which direct paths a gateway sends to hosts: notifications about elephant flows (Zeta section IV-C), answers to
//! requests, and redirections from hosts that instances have left. Pure: reads the tables, and returns messages with their receivers. This file changes
//! with the rules for when a direct path exists.

use std::collections::BTreeMap;
use std::net::IpAddr;

use sluice_agent::rsp::{Admission, Batcher};
use sluice_datapath::FlowEvent;
use sluice_rsp::{
    AnswerEntry, Destination, Message, Path, PermitEntry, Query, Reception, RedirectEntry, StrayEntry,
};
use sluice_tables::{InstanceLocation, Journal, Location, Lookup, NextHop, Reader, Role};

use crate::offload_metrics::{OffloadStats, Outcome};
use crate::permits::{Permit, PermitState, Permits};

/// How long a host may use a path that no gateway confirms.
const LIFETIME_MS: u32 = 60_000;
/// A host is notified of the same destination at most once in this time.
const QUIET_US: u64 = 100_000;
/// Notifications within this time are sent together.
const GATHER_US: u64 = 1_000;
/// Notifications that are remembered, to suppress repetitions.
const REMEMBERED_MAX: usize = 65_536;

/// Result of the search for a direct path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PathLookup {
    /// The host can send to the destination's host, which must have confirmed the permit, if there is one.
    Direct(Path, Option<Permit>),
    /// The host must send to a gateway.
    ViaGateway,
    /// The tables cannot answer at present.
    Busy,
}

/// Looks for a direct path from the host at `from` to a destination. `revision` must have been read from the
/// tables before, so that the path is of this revision or a later one.
fn find_path(
    (reader, journal): (&Reader, &Journal),
    revision: u64,
    from: IpAddr,
    destination: &Destination,
) -> PathLookup {
    // During a snapshot the tables are of no revision: they may lack entries, and have entries that were removed.
    if revision == 0 {
        return PathLookup::Busy;
    }
    let location = match reader.locate(destination.vni, destination.address) {
        Location::Found(location) => location,
        // Hosts of a mount's network know the members of its service. Others send to a gateway, which chooses for each flow.
        Location::Mount(_) | Location::NotFound => return PathLookup::ViaGateway,
        Location::Busy => return PathLookup::Busy,
    };
    let InstanceLocation { vni, mac, host, mtu, network, metered, by_network, by_peer } = location;
    // A network that does not offload flows, and a peering with meters, also withdraw the paths that hosts still have.
    if !network.is_offloaded || metered {
        return PathLookup::ViaGateway;
    }
    // Hosts do not know the MTUs of other networks: only gateways report packets that are too large for a
    // peered one.
    let fits = network.mtu <= mtu;
    if host.is_ipv4() != from.is_ipv4() || host == from || !fits {
        return PathLookup::ViaGateway;
    }
    let Ok(role) = reader.role(host) else { return PathLookup::Busy };
    // A host without a vSwitch knows no permits, and accepts the packets of all hosts.
    let permit = Permit { receiver: host, entry: PermitEntry { vni, host: from } };
    let permit = (role != Some(Role::ForeignHost)).then_some(permit);
    // After the lookup: a route that came meanwhile may not be in the journal yet, and one that went is a change.
    let by_network =
        by_network || by_peer && journal.tells_of_peer(destination.vni, vni, destination.address);
    // What the destination's host can receive is known with the permit.
    let reception = Reception::default();
    let lifetime_ms = LIFETIME_MS;
    PathLookup::Direct(Path { host, mac, vni, lifetime_ms, revision, by_network, reception }, permit)
}

/// Decides which paths hosts get, and batches the messages about them.
#[derive(Debug)]
pub struct Notifier {
    batcher: Batcher<IpAddr, Destination, AnswerEntry>,
    permits: Permits,
    /// What is told by network.
    journal: Journal,
}

impl Notifier {
    /// A notifier without waiting notifications and permits. The journal is that of the tables.
    pub fn new(journal: Journal) -> Self {
        Self { batcher: Batcher::new(QUIET_US, GATHER_US, REMEMBERED_MAX), permits: Permits::new(), journal }
    }

    /// Notes a flow event. `now_us` is of a monotonic clock; `revision` was read from the tables before.
    pub fn note(
        &mut self,
        now_us: u64,
        reader: &Reader,
        revision: u64,
        event: &FlowEvent,
        stats: &OffloadStats,
    ) -> Outcome {
        let outcome = self.admit(now_us, reader, revision, event);
        stats.note(outcome);
        outcome
    }

    fn admit(&mut self, now_us: u64, reader: &Reader, revision: u64, event: &FlowEvent) -> Outcome {
        // The sender's host is looked up by the source address. The packet may have come from a host that the
        // destination has left, which encapsulates with the destination's VNI.
        let (vni, host) = match reader.locate(event.vni, event.source) {
            Location::Found(sender) => (sender.vni, sender.host),
            // Members of a service send from the addresses of its mounts.
            Location::Mount(mount) => match reader.is_sender(mount.vni, event.sender) {
                Ok(true) => (mount.vni, event.sender),
                Ok(false) => return Outcome::NoSource,
                Err(_) => return Outcome::Busy,
            },
            Location::NotFound => return Outcome::NoSource,
            Location::Busy => return Outcome::Busy,
        };
        let destination = Destination { vni, address: event.destination };
        let (path, permit) = match find_path((reader, &self.journal), revision, host, &destination) {
            PathLookup::Direct(path, permit) => (path, permit),
            PathLookup::ViaGateway => return Outcome::NoPath,
            PathLookup::Busy => return Outcome::Busy,
        };
        match self.check_permit(now_us, permit, destination) {
            PermitState::Confirmed => {
                self.notify(now_us, host, destination, self.with_reception(path, permit))
            }
            PermitState::Waiting => Outcome::Waiting,
            PermitState::Unconfirmed => Outcome::Unpermitted,
        }
    }

    /// Whether a path that needs this permit may be given now. If the destination's host was asked, `destination` waits.
    fn check_permit(&mut self, now_us: u64, permit: Option<Permit>, destination: Destination) -> PermitState {
        let Some(permit) = permit else { return PermitState::Confirmed };
        let state = self.permits.check(now_us, permit);
        if state == PermitState::Waiting {
            self.permits.keep(&permit, destination);
        }
        state
    }

    /// The path with what its host can receive, as far as that was asked.
    fn with_reception(&self, path: Path, permit: Option<Permit>) -> Path {
        let reception = permit.map(|permit| self.permits.reception(&permit)).unwrap_or_default();
        Path { reception, ..path }
    }

    /// Notifies a host of a path, unless it was notified a moment ago.
    fn notify(&mut self, now_us: u64, host: IpAddr, destination: Destination, path: Path) -> Outcome {
        match self.batcher.admit(now_us, host, destination) {
            Admission::New => {
                self.batcher.push(host, AnswerEntry { destination, answer: sluice_rsp::Answer::Path(path) });
                Outcome::Notified
            }
            Admission::Repeated => Outcome::Repeated,
            Admission::Full => Outcome::Full,
        }
    }

    /// Answers a query of the host at `from`. `None` if the tables or the destination's host cannot answer at
    /// present: the host requests the path again, or is notified of it.
    pub fn answer(
        &mut self,
        now_us: u64,
        reader: &Reader,
        revision: u64,
        from: IpAddr,
        query: &Query,
    ) -> Option<AnswerEntry> {
        // A host learns nothing about networks of which it has no instance.
        if !reader.is_sender(query.destination.vni, from).ok()? {
            return Some(query.answer(None, revision));
        }
        let (path, permit) = match find_path((reader, &self.journal), revision, from, &query.destination) {
            PathLookup::Direct(path, permit) => (path, permit),
            PathLookup::ViaGateway => return Some(query.answer(None, revision)),
            PathLookup::Busy => return None,
        };
        match self.check_permit(now_us, permit, query.destination) {
            PermitState::Confirmed => {
                let path = self.with_reception(path, permit);
                // The tables do not have what hosts can receive, so no revision says that it has changed.
                let has_changed = permit.is_some_and(|permit| self.permits.has_changed(now_us, &permit));
                let query = if has_changed { Query { revision: 0, ..*query } } else { *query };
                Some(query.answer(Some(&path), revision))
            }
            PermitState::Waiting => None,
            PermitState::Unconfirmed => Some(query.answer(None, revision)),
        }
    }

    /// Notes that the host at `from` accepts packets of other hosts, and what it can receive; they are notified of the paths that waited for it, if the
    /// tables still have them. `revision` was read from the tables before.
    pub fn confirm(
        &mut self,
        now_us: u64,
        reader: &Reader,
        revision: u64,
        (from, reception): (IpAddr, Reception),
        entries: &[PermitEntry],
    ) {
        for entry in entries {
            let permit = Permit { receiver: from, entry: *entry };
            for destination in self.permits.confirm(now_us, &permit, reception) {
                let found = find_path((reader, &self.journal), revision, entry.host, &destination);
                if let PathLookup::Direct(path, needed) = found
                    && needed == Some(permit)
                {
                    self.notify(now_us, entry.host, destination, Path { reception, ..path });
                }
            }
        }
    }

    /// Number of permits that are remembered.
    pub fn permits(&self) -> usize {
        self.permits.len()
    }

    /// Time at which [`Notifier::take`] is due; `None` if no message waits.
    pub fn due_us(&self) -> Option<u64> {
        self.batcher.due_us().into_iter().chain(self.permits.due_us()).min()
    }

    /// Takes the waiting messages, with the VTEPs of the hosts to send them to.
    pub fn take(&mut self, now_us: u64) -> impl Iterator<Item = (IpAddr, Message)> + use<> {
        let notify = |(host, answers)| (host, Message::Notify { answers });
        let permits = self.permits.take(now_us);
        permits.into_iter().chain(self.batcher.take(now_us).into_iter().map(notify))
    }
}

/// Redirections of hosts that send packets for instances that the host at `from` does not have, by the VTEP to
/// send them to. A host can redirect others only from itself. `own` is this gateway's address of the family of
/// another one. Whether the instance has left is not checked, because these tables may not have it yet: a
/// redirected host requests the path again.
pub fn redirects(
    reader: &Reader,
    from: IpAddr,
    own: impl Fn(IpAddr) -> Option<IpAddr>,
    strays: &[StrayEntry],
) -> BTreeMap<IpAddr, Vec<RedirectEntry>> {
    let mut messages: BTreeMap<IpAddr, Vec<RedirectEntry>> = BTreeMap::new();
    for StrayEntry { destination, host } in strays {
        // A gateway sends nothing to an address that a host made up.
        let is_node = *host != from
            && matches!(reader.find(0, *host), Lookup::Hit(hit)
                if matches!(reader.next_hop(hit.cell), Some(NextHop::Vtep(_))));
        if let Some(gateway) = own(*host).filter(|_| is_node) {
            let entry = RedirectEntry { destination: *destination, host: from, gateway };
            messages.entry(*host).or_default().push(entry);
        }
    }
    messages
}

#[cfg(test)]
#[path = "offload_tests.rs"]
mod tests;
