//! The gateway's end of RSP: notifies hosts of direct paths for elephant flows, answers their requests, and passes
//! questions for identities on.
//! This file changes when a gateway handles another message or event.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_agent::Error;
use sluice_agent::event_source::EventSource;
use sluice_agent::rsp::{Keys, Received, RspTransport};
use sluice_datapath::FlowEvent;
use sluice_rsp::{
    AnswerEntry, Capabilities, Destination, IdentityEntry, Message, NetworkQuery, PermitEntry, Query,
    Reception, StrayEntry,
};
use sluice_tables::{Journal, Reader, SharedReader};
use tokio::sync::watch;
use tokio::time::sleep_until;

use crate::identities::{Asked, Holder, Identities, holder};
use crate::offload::{Notifier, redirects};
use crate::offload_metrics::OffloadStats;
use crate::reconcile;

/// Datagrams that are received before other inputs get their turn.
const RECEIVE_BUDGET: usize = 64;
/// Most lookups in one read of the tables. The table writer cannot complete a grace period meanwhile; these
/// lookups take some hundred microseconds.
const LOOKUPS_MAX: usize = 256;
/// Most permits in one read: for each, at most 16 paths wait, of which few have any.
const CONFIRMED_MAX: usize = LOOKUPS_MAX / 16;

/// Lets the table writer accept targets of migrations, which the host with this address has named.
pub type AcceptTargets = Box<dyn Fn(IpAddr, Vec<PermitEntry>) + Send>;

/// The gateway's end of RSP. A single task runs it.
pub struct RspResponder<E> {
    transport: RspTransport,
    flow_events: E,
    reader: SharedReader,
    journal: Journal,
    keys: watch::Receiver<Arc<Keys>>,
    notifier: Notifier,
    identities: Identities,
    stats: Arc<OffloadStats>,
    accept_targets: AcceptTargets,
    /// Origin of the clock of `notifier` and `identities`.
    started: Instant,
}

impl<E: EventSource<FlowEvent>> RspResponder<E> {
    /// A responder that uses `transport`, and reads events of elephant flows from `flow_events`. The journal is that of the tables.
    pub fn new(
        transport: RspTransport,
        flow_events: E,
        (reader, journal): (SharedReader, Journal),
        keys: watch::Receiver<Arc<Keys>>,
        stats: Arc<OffloadStats>,
        accept_targets: AcceptTargets,
    ) -> Self {
        let started = Instant::now();
        Self {
            transport,
            flow_events,
            reader,
            keys,
            notifier: Notifier::new(journal.clone()),
            journal,
            identities: Identities::new(),
            stats,
            accept_targets,
            started,
        }
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Time at which [`RspResponder::send_waiting`] is due; `None` if no message waits.
    fn due_us(&self) -> Option<u64> {
        self.notifier.due_us().into_iter().chain(self.identities.due_us()).min()
    }

    /// Runs until it fails.
    ///
    /// # Errors
    /// If the events of elephant flows cannot be read.
    pub async fn run(mut self) -> Result<(), Error> {
        let mut events = Vec::new();
        loop {
            let due = self.due_us().map(|due_us| self.started + Duration::from_micros(due_us));
            tokio::select! {
                () = self.transport.ready() => {}
                ready = self.flow_events.ready() => ready?,
                () = sleep_until(due.unwrap_or(self.started).into()), if due.is_some() => {}
            }
            self.transport.flush();
            events.clear();
            self.flow_events.drain(&mut events)?;
            self.note_flow_events(&events);
            if self.due_us().is_some_and(|due_us| due_us <= self.now_us()) {
                self.send_waiting();
            }
            for Received { from, message, .. } in self.transport.receive(RECEIVE_BUDGET) {
                self.handle_message(from, &message);
            }
        }
    }

    /// This gateway's cluster, with whose key it seals; `None` before it has keys.
    fn cluster(&self) -> Option<u32> {
        self.keys.borrow().own_cluster()
    }

    fn note_flow_events(&mut self, events: &[FlowEvent]) {
        let now_us = self.now_us();
        for chunk in events.chunks(LOOKUPS_MAX) {
            self.reader.read(|reader| {
                // Read before the lookups, so that their results are of this revision or a later one.
                let revision = reader.applied_revision();
                for event in chunk {
                    self.notifier.note(now_us, reader, revision, event, &self.stats);
                }
            });
        }
    }

    /// Sends the notifications, permits and questions that wait.
    fn send_waiting(&mut self) {
        let (cluster, now_us) = (self.cluster(), self.now_us());
        for (host, message) in self.notifier.take(now_us).chain(self.identities.take(now_us)) {
            self.transport.send(cluster, host, &message);
        }
    }

    fn handle_message(&mut self, from: SocketAddr, message: &Message) {
        match message {
            Message::Request { id, capabilities, queries } => self.answer(from, *id, *capabilities, queries),
            Message::Reconcile { queries } => self.reconcile(from, queries),
            Message::Stray { entries } => self.redirect(from.ip(), entries),
            Message::Permitted { reception, entries } => self.confirm(from.ip(), *reception, entries),
            Message::Identify { entries } => self.identify(from.ip(), entries),
            Message::Identity { entries } => self.note_identities(from.ip(), entries),
            Message::Permit { entries } => (self.accept_targets)(from.ip(), entries.clone()),
            Message::Reply { .. }
            | Message::Notify { .. }
            | Message::Redirect { .. }
            | Message::Reconciled { .. } => self.stats.note_unexpected(),
        }
    }

    fn answer(&mut self, from: SocketAddr, id: u32, capabilities: Capabilities, queries: &[Query]) {
        let now_us = self.now_us();
        self.stats.note_requested(queries.len());
        let mut answers = Vec::with_capacity(queries.len());
        for chunk in queries.chunks(LOOKUPS_MAX) {
            self.reader.read(|reader| {
                let revision = reader.applied_revision();
                let notifier = &mut self.notifier;
                let answer = |query: &Query| notifier.answer(now_us, reader, revision, from.ip(), query);
                answers.extend(chunk.iter().filter_map(answer));
            });
        }
        answers.iter_mut().for_each(|answer: &mut AnswerEntry| answer.restrict(capabilities));
        self.stats.set_permits(self.notifier.permits());
        let cluster = self.cluster();
        self.transport.send_to(cluster, from, &Message::Reply { id, answers });
    }

    /// Says which paths of networks have changed.
    fn reconcile(&mut self, from: SocketAddr, queries: &[NetworkQuery]) {
        let cluster = self.cluster();
        self.stats.set_changes(self.journal.len());
        for chunk in queries.chunks(LOOKUPS_MAX) {
            let answers =
                |reader: &Reader| reconcile::answers(reader, &self.journal, from.ip(), chunk, &self.stats);
            for answers in self.reader.read(answers) {
                self.transport.send_to(cluster, from, &Message::Reconciled { answers });
            }
        }
    }

    /// The host at `from` accepts packets of other hosts now.
    fn confirm(&mut self, from: IpAddr, reception: Reception, entries: &[PermitEntry]) {
        let now_us = self.now_us();
        for chunk in entries.chunks(CONFIRMED_MAX) {
            self.reader.read(|reader| {
                let revision = reader.applied_revision();
                self.notifier.confirm(now_us, reader, revision, (from, reception), chunk);
            });
        }
        // The hosts that wait for it have waited long enough.
        self.send_waiting();
    }

    /// Answers what is known, and asks the hosts of the other destinations.
    fn identify(&mut self, asker: IpAddr, destinations: &[Destination]) {
        let now_us = self.now_us();
        let mut entries = Vec::new();
        for chunk in destinations.chunks(LOOKUPS_MAX) {
            self.reader.read(|reader| {
                let revision = reader.applied_revision();
                for destination in chunk {
                    let asked = match holder(reader, revision, asker, destination) {
                        Holder::Host(host) => self.identities.ask(now_us, asker, *destination, host),
                        Holder::NoHost => Asked::Known(0),
                        Holder::Unknown => Asked::Ignored,
                    };
                    self.stats.note_identity_query(asked);
                    if let Asked::Known(identity) = asked {
                        entries.push(IdentityEntry { destination: *destination, identity });
                    }
                }
            });
        }
        self.stats.set_identity_records(self.identities.len());
        if !entries.is_empty() {
            self.transport.send(self.cluster(), asker, &Message::Identity { entries });
        }
    }

    /// Passes the identities of instances of the host at `from` to the hosts that have asked for them.
    fn note_identities(&mut self, from: IpAddr, entries: &[IdentityEntry]) {
        let cluster = self.cluster();
        for (asker, entries) in self.identities.answer(self.now_us(), from, entries) {
            self.transport.send(cluster, asker, &Message::Identity { entries });
        }
    }

    /// Redirects the senders of packets that the host at `from` received for instances that it does not have.
    fn redirect(&mut self, from: IpAddr, strays: &[StrayEntry]) {
        let cluster = self.cluster();
        for chunk in strays.chunks(LOOKUPS_MAX) {
            let own = |to| self.transport.own_address(to);
            let messages = self.reader.read(|reader| redirects(reader, from, own, chunk));
            for (to, entries) in messages {
                self.transport.send(cluster, to, &Message::Redirect { entries });
            }
        }
    }
}

#[cfg(test)]
#[path = "rsp_responder_tests.rs"]
mod tests;
