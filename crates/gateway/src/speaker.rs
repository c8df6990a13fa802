//! The gateway's end of RSP: elephants become notifications, questions are
//! answered.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_agent::Error;
use sluice_agent::rsp::{Edge, Events, Keys, Received};
use sluice_datapath::FlowEvent;
use sluice_rsp::Message;
use sluice_tables::SharedReader;
use tokio::sync::watch;
use tokio::time::sleep_until;

use crate::offload::{Notifier, OffloadStats, answer};

/// Datagrams that are taken before anything else has its turn.
const BUDGET: usize = 64;
/// Lookups within one hold of the tables: some hundred microseconds.
const LOOKUPS: usize = 256;

/// One task has it.
pub struct Speaker<E> {
    edge: Edge,
    elephants: E,
    reader: SharedReader,
    keys: watch::Receiver<Arc<Keys>>,
    notifier: Notifier,
    stats: Arc<OffloadStats>,
    began: Instant,
}

impl<E: Events<FlowEvent>> Speaker<E> {
    /// Over an open edge.
    pub fn new(
        edge: Edge,
        elephants: E,
        reader: SharedReader,
        keys: watch::Receiver<Arc<Keys>>,
        stats: Arc<OffloadStats>,
    ) -> Self {
        let began = Instant::now();
        Self { edge, elephants, reader, keys, notifier: Notifier::new(), stats, began }
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Runs for ever.
    ///
    /// # Errors
    /// If elephants cannot be read.
    pub async fn run(mut self) -> Result<(), Error> {
        let mut seen = Vec::new();
        loop {
            let due = self.notifier.due_us().map(|due_us| self.began + Duration::from_micros(due_us));
            tokio::select! {
                () = self.edge.ready() => {}
                ready = self.elephants.ready() => ready?,
                () = sleep_until(due.unwrap_or(self.began).into()), if due.is_some() => {}
            }
            self.edge.flush();
            seen.clear();
            self.elephants.drain(&mut seen)?;
            self.note(&seen);
            if self.notifier.due_us().is_some_and(|due_us| due_us <= self.now_us()) {
                self.tell();
            }
            for Received { from, message, .. } in self.edge.receive(BUDGET) {
                self.hear(from, &message);
            }
        }
    }

    /// A gateway is of one cluster. Without its key the edge says what is wrong.
    fn cluster(&self) -> u32 {
        self.keys.borrow().first().unwrap_or(0)
    }

    fn note(&mut self, seen: &[FlowEvent]) {
        let now_us = self.now_us();
        for some in seen.chunks(LOOKUPS) {
            self.reader.read(|reader| {
                // Before the lookups: what they find is of this revision or a later one.
                let revision = reader.applied_revision();
                for elephant in some {
                    self.notifier.note(now_us, reader, revision, elephant, &self.stats);
                }
            });
        }
    }

    fn tell(&mut self) {
        let cluster = self.cluster();
        for (host, message) in self.notifier.take(self.now_us()) {
            self.edge.send(cluster, host, &message);
        }
    }

    fn hear(&mut self, from: SocketAddr, message: &Message) {
        let Message::Request { id, asks } = message else {
            self.stats.note_unexpected();
            return;
        };
        let mut answers = Vec::with_capacity(asks.len());
        for some in asks.chunks(LOOKUPS) {
            self.reader.read(|reader| {
                let revision = reader.applied_revision();
                answers.extend(answer(reader, revision, from.ip(), some, &self.stats));
            });
        }
        let cluster = self.cluster();
        self.edge.send_to(cluster, from, &Message::Reply { id: *id, answers });
    }
}

#[cfg(test)]
#[path = "speaker_tests.rs"]
mod tests;
