//! Following the controller: one stream, for ever, whatever happens to it.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use sluice_datapath::{Datapath, Traffic};
use sluice_southbound::proto::{Heartbeat, Hello, NodeUpdate};
use sluice_southbound::{Connection, EnrolmentBundle, Identity, ReportSender, connect, enrol};
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::apply::chain;
use crate::loads::VniLoads;
use crate::{Applied, Applier, Error, Ports, Writer};

const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(2);
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Messages that are decoded while an earlier one is written.
const DECODED_AHEAD: usize = 4;

/// What is known of the stream, for status and metrics.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StreamStatus {
    /// Whether it is open.
    pub connected: bool,
    /// Streams that were opened since the agent started.
    pub connections: u64,
    /// Why the last one ended, or was not opened.
    pub last_error: Option<String>,
    /// Revision last acknowledged on any of them.
    pub acknowledged_revision: u64,
    /// Steps applied since the agent started.
    pub steps: u64,
    /// Entries that could not be written, since the agent started.
    pub failures: u64,
    /// Those of the last step that had any.
    pub last_failures: Vec<String>,
}

/// The status, shared between the stream and those who ask.
#[derive(Clone, Debug, Default)]
pub struct SharedStatus(Arc<Mutex<StreamStatus>>);

impl SharedStatus {
    /// As it is now.
    #[must_use]
    pub fn get(&self) -> StreamStatus {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut StreamStatus)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// How busy the node is, as the controller is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Share of the forwarding cores' time that packets take, in thousandths.
    pub cpu_permille: u32,
    /// Share of memory that is taken, in thousandths.
    pub memory_permille: u32,
    /// Every flow is offloaded.
    pub offload_all: bool,
}

/// The load, shared between who measures it and who tells it. Zero where nobody does.
#[derive(Clone, Debug, Default)]
pub struct SharedLoad(Arc<Mutex<Load>>);

impl SharedLoad {
    /// As it was measured last.
    #[must_use]
    pub fn get(&self) -> Load {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It was measured.
    pub fn set(&self, load: Load) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = load;
    }
}

/// Waiting times between attempts: doubling from [`FIRST_RETRY`] to [`LAST_RETRY`], half of each at random.
#[derive(Debug)]
struct Backoff(Duration);

impl Backoff {
    const fn new() -> Self {
        Self(FIRST_RETRY)
    }

    fn next(&mut self) -> Duration {
        let bound = self.0;
        self.0 = (bound * 2).min(LAST_RETRY);
        // Each RandomState has its own keys: the digest of nothing is a random number.
        let random = RandomState::new().build_hasher().finish() >> 32;
        bound / 2 + bound.mul_f64(random as f64 / f64::from(u32::MAX) / 2.0)
    }
}

/// That there is what [`identity`] needs.
///
/// # Errors
/// If there is neither a certificate nor an enrolment bundle.
pub fn check_identity(state_dir: &Path, enrolment: Option<&Path>) -> Result<(), Error> {
    match Identity::load(state_dir)? {
        Some(_) => Ok(()),
        None => bundle(state_dir, enrolment).map(drop),
    }
}

fn bundle(state_dir: &Path, enrolment: Option<&Path>) -> Result<EnrolmentBundle, Error> {
    let Some(file) = enrolment else {
        return Err(Error::Config(format!(
            "{} holds no certificate: give --enrolment with the file that the controller issued for this node",
            state_dir.display()
        )));
    };
    Ok(EnrolmentBundle::load(file)?)
}

/// The certificate from an earlier start, or a new one for the enrolment bundle.
/// Waits while the controller cannot be reached.
///
/// # Errors
/// If there is neither, or the controller refuses the token.
pub async fn identity(state_dir: &Path, enrolment: Option<&Path>) -> Result<Identity, Error> {
    if let Some(identity) = Identity::load(state_dir)? {
        return Ok(identity);
    }
    let bundle = bundle(state_dir, enrolment)?;
    let mut backoff = Backoff::new();
    loop {
        match enrol(&bundle, state_dir).await {
            Ok(identity) => {
                tracing::info!(node = bundle.node, controller = bundle.controller, "enrolled");
                return Ok(identity);
            }
            Err(error) if error.is_refusal() => return Err(error.into()),
            Err(error) => {
                let wait = backoff.next();
                tracing::warn!(error = chain(&error), ?wait, "enrolment failed; trying again");
                sleep(wait).await;
            }
        }
    }
}

/// Follows the controller until the table writer is gone.
pub struct Watch<P> {
    /// Who this node is.
    pub identity: Identity,
    /// Where updates go.
    pub writer: Writer<P>,
    /// For the heartbeat's counters.
    pub datapath: Arc<Datapath>,
    /// Told to all who ask.
    pub status: SharedStatus,
    /// Told after every step: [`Applier::topology`].
    pub topology: watch::Sender<u64>,
    /// Told whether this node has been deleted.
    pub deleted: watch::Sender<bool>,
    /// For the heartbeat.
    pub load: SharedLoad,
}

impl<P: Ports> Watch<P> {
    /// Runs for ever.
    ///
    /// # Errors
    /// [`Error::WriterGone`] only: anything else is a reason to connect again.
    pub async fn run(self) -> Result<(), Error> {
        let mut backoff = Backoff::new();
        loop {
            let started = Instant::now();
            let error = match self.stream().await {
                Ok(()) => "the controller ended the stream".to_owned(),
                Err(Error::WriterGone) => return Err(Error::WriterGone),
                Err(error) => {
                    self.note_deletion(&error).await?;
                    chain(&error)
                }
            };
            self.status.change(|status| {
                status.connected = false;
                status.last_error = Some(error.clone());
            });
            if started.elapsed() > LAST_RETRY {
                backoff = Backoff::new();
            }
            let wait = backoff.next();
            tracing::warn!(error, ?wait, "no stream from the controller; connecting again");
            sleep(wait).await;
        }
    }

    /// Only the database that the tables are of may say so: another one, or a new one, never knew this node.
    async fn note_deletion(&self, error: &Error) -> Result<(), Error> {
        let Error::Southbound(error) = error else { return Ok(()) };
        let Some(database) = error.deleted_from() else { return Ok(()) };
        let ours = self.writer.run(|applier| applier.tables.database_id()).await?;
        if database == ours && !self.deleted.send_replace(true) {
            tracing::warn!("this node was deleted");
        }
        Ok(())
    }

    async fn stream(&self) -> Result<(), Error> {
        let hello = self
            .writer
            .run(|applier| {
                applier.begin_stream();
                Hello {
                    applied_revision: applier.tables.applied_revision(),
                    database_id: applier.tables.database_id(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                }
            })
            .await?;
        let revision = hello.applied_revision;
        let Connection { reports, mut updates } =
            connect(&self.identity, &self.identity.controller, hello).await?;
        self.deleted.send_replace(false);
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
        // Whichever ends first ends the stream; none of them waits for another.
        tokio::select! {
            result = read => result,
            result = self.write(decoded, &reports) => result,
            result = self.beat(&reports) => result,
        }
    }

    /// Applies what was decoded and acknowledges each step.
    async fn write(
        &self,
        mut decoded: mpsc::Receiver<NodeUpdate>,
        reports: &ReportSender,
    ) -> Result<(), Error> {
        while let Some(update) = decoded.recv().await {
            let started = Instant::now();
            let job = move |applier: &mut Applier<P>| (applier.apply(update), applier.topology());
            let (applied, topology) = self.writer.run(job).await?;
            let applied = applied.map_err(|error| Error::Config(error.to_string()))?;
            self.topology.send_if_modified(|seen| std::mem::replace(seen, topology) != topology);
            if let Some(Applied { revision, failures }) = applied {
                tracing::debug!(revision, took = ?started.elapsed(), failures = failures.len(), "applied");
                self.note_step(revision, &failures);
                reports.ack(revision, failures).await?;
            }
        }
        Ok(())
    }

    fn note_step(&self, revision: u64, failures: &[String]) {
        self.status.change(|status| {
            status.steps += 1;
            status.acknowledged_revision = revision;
            if !failures.is_empty() {
                status.failures += failures.len() as u64;
                status.last_failures = failures.to_vec();
            }
        });
    }

    async fn beat(&self, reports: &ReportSender) -> Result<(), Error> {
        let mut ticks = interval(HEARTBEAT);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut loads = VniLoads::default();
        loop {
            ticks.tick().await;
            reports.heartbeat(self.heartbeat(&mut loads).await?).await?;
        }
    }

    async fn heartbeat(&self, loads: &mut VniLoads) -> Result<Heartbeat, Error> {
        let (fill, vrfs) = self
            .writer
            .run(|applier| {
                let vrfs: Vec<(u32, u32)> =
                    applier.tables.vrfs().map(|entry| (entry.vrf.vni.get(), entry.counters)).collect();
                (applier.tables.fill(), vrfs)
            })
            .await?;
        let datapath = self.datapath.clone();
        let count = move || {
            let mut indices: Vec<u32> = vrfs.iter().map(|(_, counters)| *counters).collect();
            // Index 0 is shared by the VNIs that found no counters of their own: it counts once.
            indices.sort_unstable();
            indices.dedup();
            let by_index: HashMap<u32, Traffic> =
                indices.iter().copied().zip(datapath.vni_traffic(&indices)?).collect();
            let drops = datapath.drops()?.iter().map(|count| count.packets).sum();
            Ok::<(_, _, u64), sluice_datapath::Error>((vrfs, by_index, drops))
        };
        let (vrfs, by_index, drops) =
            tokio::task::spawn_blocking(count).await.map_err(|_| Error::WriterGone)??;
        let packets = by_index.values().map(|traffic| traffic.packets).sum();
        let bytes = by_index.values().map(|traffic| traffic.bytes).sum();
        let Load { cpu_permille, memory_permille, offload_all } = self.load.get();
        let gateway = matches!(self.identity.node(), Ok(sluice_southbound::Node::Gateway(_)));
        let vnis_told = gateway && loads.is_due();
        let own = vrfs.iter().filter(|(_, counters)| *counters != 0);
        let own = own.filter_map(|(vni, counters)| Some((*vni, *by_index.get(counters)?)));
        let vnis = if vnis_told { loads.changed(own) } else { Vec::new() };
        Ok(Heartbeat {
            cells_used: fill.cells_live(),
            cells_total: fill.cells_total,
            packets,
            drops,
            cpu_permille,
            memory_permille,
            offload_all,
            tx_bytes: bytes,
            tx_packets: packets,
            vnis,
            vnis_told,
            ..Heartbeat::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_fast_at_first_and_bounded() {
        let mut backoff = Backoff::new();
        let first = backoff.next();
        assert!(first >= FIRST_RETRY / 2 && first <= FIRST_RETRY, "{first:?}");
        let waits: Vec<_> = (0..20).map(|_| backoff.next()).collect();
        assert!(waits.iter().all(|wait| *wait <= LAST_RETRY));
        assert!(waits[10..].iter().all(|wait| *wait >= LAST_RETRY / 2));
        let distinct: std::collections::HashSet<_> = waits[10..].iter().collect();
        assert!(distinct.len() > 1, "no jitter");
    }
}
