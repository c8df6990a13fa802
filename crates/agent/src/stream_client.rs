//! The node's end of the controller's update stream: connects, applies and acknowledges updates, sends
//! heartbeats, and reconnects whenever the stream ends. This file changes with the order of these, or when the
//! stream carries something else.
//!
//! ```text
//!                      connected: Hello with the applied revision
//!     start ---> CONNECTING ---------------------------> STREAMING --+  update: apply, acknowledge;
//!                 ^      |                               |     ^     |  every second: heartbeat
//!      delay over |      | refused, or unreachable       |     +-----+
//!                 |      v                               | stream ended or broke,
//!                 +-- WAITING <--------------------------+ or cannot be applied
//!
//!     delay: 50 ms, doubling to 2 s; 50 ms again after a stream of more than 2 s
//!     any state, table writer has ended: the client ends with an error
//! ```
//!
//! A controller that refuses this node because it was deleted sets [`StreamClient::deleted`]; the client goes
//! on retrying.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use sluice_datapath::Datapath;
use sluice_southbound::proto::ending_sessions::OfPort;
use sluice_southbound::proto::{EndingSessions, EndingSessionsRequest, Heartbeat, NodeUpdate};
use sluice_southbound::{Connection, Identity, ReportSender, connect};
use sluice_types::{Digests, InstanceId};
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::backoff::{Backoff, LONGEST_DELAY};
use crate::health::HealthReports;
use crate::heartbeat::{self, Counters, TableFigures};
use crate::hello::hello;
use crate::scans::Scans;
use crate::vni_traffic::VniTrafficReport;
use crate::{Applied, Applier, Error, Repaired, Role, TableWriter, error_chain};

const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of the digests of the tables. With the time until the controller has compared them, damage is known within
/// 5 s.
const DIGEST_INTERVAL: Duration = Duration::from_secs(3);
/// The pause after digests is at least this many times as long as computing them, so that they take at most a hundredth
/// of a processor: for more than one or two million entries the interval is longer.
const DIGEST_PAUSE: u32 = 100;
/// Longest time between two reports of the digests of a role that reports them only after a change.
pub const DIGEST_REPEAT: Duration = Duration::from_secs(30);
/// After a change, such a role reports its digests for this time, because the controller does not compare those that it
/// gets during a change.
const DIGEST_SETTLING: Duration = Duration::from_secs(10);
/// Messages that are decoded while an earlier one is written.
const DECODED_AHEAD: usize = 4;

/// State of the stream, for the local API and metrics.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StreamStatus {
    /// Whether a stream is open.
    pub connected: bool,
    /// Number of streams opened since the agent started.
    pub connections: u64,
    /// Reason why the last stream ended or was not opened.
    pub last_error: Option<String>,
    /// Revision that was acknowledged last, on any stream.
    pub acknowledged_revision: u64,
    /// Number of steps applied since the agent started.
    pub steps: u64,
    /// Number of entries in updates since the agent started.
    pub entries: u64,
    /// Number of entries that could not be written since the agent started.
    pub failures: u64,
    /// Failures of the last step that had any, as far as they are known to remain.
    pub last_failures: Vec<String>,
    /// How often the digests of the tables were computed since the agent started.
    pub digests: u64,
    /// Time that this took, in seconds.
    pub digest_seconds: f64,
    /// Entries that differed from what the controller compiled, and were repaired.
    pub repaired: u64,
    /// The last of them.
    pub last_repaired: Vec<String>,
}

/// The stream's state, shared between the client and its readers.
#[derive(Clone, Debug, Default)]
pub struct SharedStreamStatus(Arc<Mutex<StreamStatus>>);

impl SharedStreamStatus {
    /// The current state.
    #[must_use]
    pub fn get(&self) -> StreamStatus {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut StreamStatus)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Follows the controller until the table writer has ended.
pub struct StreamClient<R> {
    /// This node's certificate, and the controller's address.
    pub identity: Identity,
    /// Applies the updates.
    pub writer: TableWriter<R>,
    /// Has the counters that heartbeats report.
    pub datapath: Arc<Datapath>,
    /// Shows the state of the stream.
    pub status: SharedStreamStatus,
    /// Set after every step to [`Applier::topology_changes`].
    pub topology: watch::Sender<u64>,
    /// Whether the controller reports that this node was deleted.
    pub deleted: watch::Sender<bool>,
    /// Answers to questions about sessions.
    pub scans: Scans,
    /// What health checks have found.
    pub health: HealthReports,
}

impl<R: Role> StreamClient<R> {
    /// Runs until the table writer has ended.
    ///
    /// # Errors
    /// Only [`Error::WriterGone`]: after any other error the client connects again.
    pub async fn run(self) -> Result<(), Error> {
        let mut backoff = Backoff::new();
        loop {
            let mut connected: Option<Instant> = None;
            let error = match self.stream(&mut connected).await {
                Ok(()) => "the controller ended the stream".to_owned(),
                Err(Error::WriterGone) => return Err(Error::WriterGone),
                Err(error) => {
                    self.note_deletion(&error).await?;
                    error_chain(&error)
                }
            };
            self.status.change(|status| {
                status.connected = false;
                status.last_error = Some(error.clone());
            });
            if connected.is_some_and(|at| at.elapsed() > LONGEST_DELAY) {
                backoff = Backoff::new();
            }
            let delay = backoff.next_delay();
            tracing::warn!(error, ?delay, "no stream from the controller; connecting again");
            sleep(delay).await;
        }
    }

    /// Only the database of the tables may declare this node deleted: a new or another database never had
    /// this node.
    async fn note_deletion(&self, error: &Error) -> Result<(), Error> {
        let Error::Southbound(error) = error else { return Ok(()) };
        let Some(database) = error.deleted_from() else { return Ok(()) };
        let ours = self.writer.run(|applier| applier.tables.database_id()).await?;
        if database == ours && !self.deleted.send_replace(true) {
            tracing::warn!("the controller reports that this node was deleted");
        }
        Ok(())
    }

    /// Opens a stream and follows it to its end. Notes in `connected` when it was open.
    async fn stream(&self, connected: &mut Option<Instant>) -> Result<(), Error> {
        let (hello, claims, migrations, (members, hosts)) = self
            .writer
            .run(|applier| {
                applier.begin_stream();
                let role = &applier.role;
                let states = (role.members(), role.hosts());
                (hello(&applier.tables, role), role.claims(), role.migrations(), states)
            })
            .await?;
        let revision = hello.applied_revision;
        let Connection { reports, mut updates } =
            connect(&self.identity, &self.identity.controller, hello).await?;
        self.deleted.send_replace(false);
        *connected = Some(Instant::now());
        tracing::info!(controller = self.identity.controller, revision, "connected");
        self.status.change(|status| {
            status.connected = true;
            status.connections += 1;
            status.last_error = None;
        });
        let (sender, decoded) = mpsc::channel(DECODED_AHEAD);
        let read = async {
            while let Some(update) = updates.next().await? {
                if sender.send(update).await.is_err() {
                    break;
                }
            }
            Ok(())
        };
        // The first of them that ends also ends the stream; none of them waits for another.
        tokio::select! {
            result = read => result,
            result = self.apply_updates(decoded, &reports) => result,
            result = self.send_heartbeats(&reports) => result,
            result = self.send_digests(&reports) => result,
            result = claims.send(&reports) => result,
            result = migrations.send(&reports) => result,
            result = self.health.send(&reports) => result,
            result = members.send(|states| reports.members(states)) => result,
            result = hosts.send(|states| reports.hosts(states)) => result,
        }
    }

    /// Applies the decoded messages and acknowledges each step.
    async fn apply_updates(
        &self,
        mut decoded: mpsc::Receiver<NodeUpdate>,
        reports: &ReportSender,
    ) -> Result<(), Error> {
        while let Some(update) = decoded.recv().await {
            if let Some(request) = update.ending_sessions {
                self.answer(request, reports.clone()).await?;
                continue;
            }
            let started = Instant::now();
            let job = move |applier: &mut Applier<R>| {
                let applied = applier.apply(update);
                let has_ended = matches!(applied, Ok(Some(_)));
                let missing = if has_ended { applier.take_missing() } else { None };
                let counts = (applier.topology_changes(), applier.entries());
                (applied, missing, applier.is_complete(), counts)
            };
            let (applied, missing, is_complete, (changes, entries)) = self.writer.run(job).await?;
            let applied = applied?;
            self.note_topology(changes);
            self.status.change(|status| status.entries = entries);
            if let Some(Applied { revision, failures, failed_entries, repaired }) = applied {
                if let Some(Repaired { differences, named }) = repaired {
                    tracing::warn!(revision, differences, ?named, "repaired the tables");
                    self.status.change(|status| {
                        status.repaired += differences;
                        status.last_repaired.clone_from(&named);
                    });
                    reports.repair(revision, differences, named).await?;
                }
                tracing::debug!(revision, took = ?started.elapsed(), failures = failed_entries, "applied");
                self.note_step(revision, &failures, failed_entries);
                if let Some(missing) = missing {
                    reports.missing(missing).await?;
                }
                reports.ack(revision, failures, is_complete).await?;
            }
        }
        Ok(())
    }

    /// Answers a question about sessions, beside the stream; at once if too many wait.
    async fn answer(&self, request: EndingSessionsRequest, reports: ReportSender) -> Result<(), Error> {
        let EndingSessionsRequest { id, rules } = request;
        let place = match self.scans.place() {
            Ok(place) => place,
            Err(problem) => {
                reports.ending_sessions(EndingSessions { id, problem, ..EndingSessions::default() }).await?;
                return Ok(());
            }
        };
        let writer = self.writer.clone();
        tokio::spawn(async move {
            let prepare =
                move |applier: &mut Applier<R>| applier.role.find_ending_sessions(&applier.tables, &rules);
            let prepare = async { writer.run(prepare).await.map_err(|error| error_chain(&error)) };
            let found = tokio::select! {
                found = place.run(prepare) => found,
                // The controller asks no more.
                () = reports.ended() => return,
            };
            let (found, problem) =
                found.map_or_else(|problem| (BTreeMap::new(), problem), |it| (it, String::new()));
            let of_port = |(instance, sessions): (&InstanceId, &u64)| OfPort {
                instance: instance.get(),
                sessions: *sessions,
            };
            let (sessions, ports) = (found.values().sum(), found.iter().map(of_port).collect());
            // It fails if the stream has ended.
            let _ = reports.ending_sessions(EndingSessions { id, sessions, ports, problem }).await;
        });
        Ok(())
    }

    fn note_topology(&self, changes: u64) {
        self.topology.send_if_modified(|seen| std::mem::replace(seen, changes) != changes);
    }

    fn note_step(&self, revision: u64, failures: &[String], failed_entries: u64) {
        self.status.change(|status| {
            status.steps += 1;
            status.acknowledged_revision = revision;
            if !failures.is_empty() {
                status.failures += failed_entries;
                status.last_failures = failures.to_vec();
            }
        });
    }

    async fn send_heartbeats(&self, reports: &ReportSender) -> Result<(), Error> {
        let mut ticks = interval(HEARTBEAT_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut unconfirmed = 0;
        let mut vni_traffic = R::REPORTS_VNI_TRAFFIC.then(VniTrafficReport::default);
        loop {
            ticks.tick().await;
            self.retry(reports).await?;
            reports.heartbeat(self.heartbeat(vni_traffic.as_mut(), &mut unconfirmed).await?).await?;
        }
    }

    /// Sends digests of the tables, which the controller compares with what it compiled.
    async fn send_digests(&self, reports: &ReportSender) -> Result<(), Error> {
        let mut pause = DIGEST_INTERVAL;
        let mut schedule = DigestSchedule::default();
        loop {
            sleep(pause).await;
            let read = |applier: &mut Applier<R>| {
                let began = Instant::now();
                let repaired = applier.tables.repair_senders();
                (repaired, applier.digests(), began.elapsed())
            };
            let (repaired, digests, took) = self.writer.run(read).await?;
            match repaired {
                Ok(0) => {}
                Ok(senders) => {
                    tracing::warn!(senders, "repaired entries of senders");
                    self.status.change(|status| status.repaired += senders);
                }
                Err(error) => {
                    tracing::warn!(error = error_chain(&error), "cannot repair entries of senders")
                }
            }
            let Some((revision, digests)) = digests else { continue };
            self.status.change(|status| {
                status.digests += 1;
                status.digest_seconds += took.as_secs_f64();
            });
            if schedule.is_due((revision, digests), Instant::now()) || !R::DIGESTS_ARE_RARE {
                reports.digests(revision, &digests).await?;
            }
            pause = DIGEST_INTERVAL.max(took * DIGEST_PAUSE);
        }
    }

    /// Tries again what could not be written, and reports progress.
    async fn retry(&self, reports: &ReportSender) -> Result<(), Error> {
        let job = |applier: &mut Applier<R>| {
            let applied = applier.retry(Instant::now());
            // A new stream has not reported meters without room, which need no snapshot.
            let missing = if applier.is_in_step() { None } else { applier.take_missing() };
            (applied, missing, applier.is_complete(), applier.topology_changes())
        };
        let (applied, missing, is_complete, changes) = self.writer.run(job).await?;
        self.note_topology(changes);
        if let Some(missing) = missing {
            reports.missing(missing).await?;
        }
        let Some(Applied { revision, failures, .. }) = applied else { return Ok(()) };
        self.status.change(|status| status.last_failures.clone_from(&failures));
        Ok(reports.ack(revision, failures, is_complete).await?)
    }

    /// `reported` is the number of changes of the unconfirmed entries that this stream has reported.
    async fn heartbeat(
        &self,
        vni_traffic: Option<&mut VniTrafficReport>,
        reported: &mut u64,
    ) -> Result<Heartbeat, Error> {
        let before = *reported;
        let read = move |applier: &mut Applier<R>| {
            applier.tables.forget_removed_vnis();
            let unconfirmed = applier.unconfirmed();
            let report =
                (unconfirmed.changes() != before).then(|| unconfirmed.report(&applier.tables, &applier.role));
            let changes = unconfirmed.changes();
            let figures = TableFigures::read(&applier.tables, applier.role.nat_addresses());
            (figures, applier.role.load(), report, changes)
        };
        let (tables, load, unconfirmed, changes) = self.writer.run(read).await?;
        *reported = changes;
        let datapath = self.datapath.clone();
        let count = move || Counters::read(&datapath, &tables).map(|counters| (tables, counters));
        let (tables, counters) = tokio::task::spawn_blocking(count).await.map_err(Error::counters)??;
        Ok(Heartbeat { unconfirmed, ..heartbeat::build(&tables, counters, load, vni_traffic) })
    }
}

/// When a role reports digests that seldom change.
#[derive(Debug, Default)]
struct DigestSchedule {
    /// The last digests and their revision, when they were first seen, and when they were last reported.
    last: Option<((u64, Digests), Instant, Instant)>,
}

impl DigestSchedule {
    /// Whether to report these digests at `now`.
    fn is_due(&mut self, digests: (u64, Digests), now: Instant) -> bool {
        let first = match self.last {
            Some((known, first, reported)) if known == digests => {
                if now - first > DIGEST_SETTLING && now - reported < DIGEST_REPEAT {
                    return false;
                }
                first
            }
            _ => now,
        };
        self.last = Some((digests, first, now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_reported_after_a_change_and_then_seldom() {
        let (mut schedule, begin) = (DigestSchedule::default(), Instant::now());
        let mut reported = |seconds: std::ops::Range<u64>, revision| -> Vec<u64> {
            let is_due = |second: &u64| {
                schedule.is_due((revision, Digests::default()), begin + Duration::from_secs(*second))
            };
            seconds.step_by(3).filter(is_due).collect()
        };
        assert_eq!(reported(0..80, 5), [0, 3, 6, 9, 39, 69]);
        assert_eq!(reported(81..130, 6), [81, 84, 87, 90, 120]);
    }
}
