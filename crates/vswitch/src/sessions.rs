//! Looks after the sessions of this host's ports, in a thread of its own: sweeps them, and ends those that the policies
//! do not permit any more. This file changes with when that happens.
//!
//! ```text
//!     a policy, a port or its number was written
//!        --> grace period: no packet is judged by the old ones any more
//!        --> review: each session that another policy has permitted is judged by the policy of its port
//!        --> another change was made meanwhile: again
//!        --> a session depends on the identity of its receiver, which is not known: again, for 60 ms
//! ```
//!
//! The review compares the generations of policies, so it needs not to know what has changed, and a successor of an agent that
//! was killed in between does the same. A port of which the tables have lost the policy keeps its sessions until that is
//! written again.

mod installer;
mod judge;
pub mod list;
mod metrics;
mod receivers;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use sluice_agent::health::FlowMeter;
use sluice_agent::{Error, error_chain};
use sluice_datapath::Datapath;
use sluice_tables::sessions::{
    Family, Reviewed, SessionCounters, SessionReader, SessionShares, SessionUsage, Sessions, Timeouts,
    ticks_now,
};
use sluice_tables::{Membarrier, SharedReader};

use crate::heavy_flows;
use crate::scopes::{Owner, Scopes};
pub use installer::{InstallCounts, SessionInstaller};
use judge::Judge;
pub use receivers::Receivers;

/// Time between two steps of the sweep, and steps of a round. A round takes a second, and a little more if slots are freed.
const STEP: Duration = Duration::from_millis(100);
const ROUND_STEPS: u32 = 10;
/// Time until the next review while sessions wait for the identities of their receivers.
const SOON: Duration = Duration::from_millis(20);
/// Buckets that are reviewed at a time: the writer of the tables may wait for it. About a millisecond.
const CHUNK_BUCKETS: u32 = 512;
/// Interval at which sessions are counted by port and state.
const COUNT_INTERVAL: Duration = Duration::from_secs(10);

const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];

/// What the thread has counted.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// IPv4 and IPv6.
    pub usage: [SessionUsage; 2],
    /// Counters of packets.
    pub counters: SessionCounters,
    /// Number of completed reviews.
    pub reviews: u64,
    /// Sessions that reviews have ended.
    pub revoked: u64,
    /// Time from the beginning of the last review to its end, with the grace period.
    pub review_time: Duration,
    /// Sessions by number of the port and by phase, when they were last counted.
    pub by_port: HashMap<u16, [u64; 3]>,
}

/// The session tables of a host before the thread looks after them.
pub struct OpenSessions {
    sessions: Sessions,
    shares: SessionShares,
}

impl OpenSessions {
    /// Adopts the tables of an earlier agent, or lays out new ones. A session of an earlier agent has these timeouts from its
    /// next packet on.
    ///
    /// # Errors
    /// [`sluice_tables::Error`] if they are of another layout or size, or a timeout is out of bounds.
    pub fn open(datapath: &Datapath, timeouts: &Timeouts) -> Result<Self, OpenError> {
        let regions = datapath.sessions()?;
        let shares = SessionShares::new(datapath.session_shares()?).map_err(OpenError::Tables)?;
        let grace = Membarrier::new().map_err(|error| OpenError::Tables(error.into()))?;
        let mut sessions =
            Sessions::open(&regions, shares.clone(), ticks_now(), grace).map_err(OpenError::Tables)?;
        sessions.set_timeouts(timeouts).map_err(OpenError::Tables)?;
        sessions.doubt_resets();
        Ok(Self { sessions, shares })
    }

    /// The shares of ports.
    pub fn shares(&self) -> SessionShares {
        self.shares.clone()
    }

    /// Reads the sessions.
    pub fn reader(&self) -> SessionReader {
        self.sessions.reader().clone()
    }

    /// Number of sessions of a family for which the tables have room.
    pub fn capacity(&self) -> u64 {
        FAMILIES.map(|family| self.sessions.usage(family).slots * 2 / 3).into_iter().min().unwrap_or(0)
    }
}

/// The session tables could not be opened.
#[derive(Debug)]
pub enum OpenError {
    /// The maps could not be used.
    Datapath(sluice_datapath::Error),
    /// Their content could not be adopted.
    Tables(sluice_tables::Error),
}

impl From<sluice_datapath::Error> for OpenError {
    fn from(error: sluice_datapath::Error) -> Self {
        Self::Datapath(error)
    }
}

/// The running thread. It ends when this is dropped.
pub struct SessionKeeper {
    scopes: Scopes,
    status: Arc<Mutex<Status>>,
    reader: SessionReader,
    installer: SessionInstaller,
    thread: Option<JoinHandle<()>>,
}

impl SessionKeeper {
    /// Starts the thread. It first reviews all sessions: an earlier agent may have been killed before it did.
    ///
    /// # Errors
    /// If the system refuses to start a thread.
    pub fn start(
        open: OpenSessions,
        tables: SharedReader,
        scopes: Scopes,
        receivers: Receivers,
    ) -> Result<Self, Error> {
        let status = Arc::new(Mutex::new(Status::default()));
        let reader = open.sessions.reader().clone();
        let sessions = Arc::new(Mutex::new(open.sessions));
        let installer = SessionInstaller::new(sessions.clone(), tables.clone(), scopes.limit());
        let keeper = Keeper {
            sessions,
            tables,
            scopes: scopes.clone(),
            receivers,
            status: status.clone(),
            counted: None,
        };
        let thread = thread::Builder::new()
            .name("sessions".to_owned())
            .spawn(move || keeper.run())
            .map_err(Error::io("start the thread that looks after sessions"))?;
        Ok(Self { scopes, status, reader, installer, thread: Some(thread) })
    }

    /// Reads the sessions.
    pub fn reader(&self) -> SessionReader {
        self.reader.clone()
    }

    /// Measures which flows have the most packets.
    pub fn flow_meter(&self) -> FlowMeter {
        heavy_flows::meter(self.reader(), self.scopes.clone())
    }

    /// Installs sessions that another host had.
    pub fn installer(&self) -> SessionInstaller {
        self.installer.clone()
    }

    /// The metrics of sessions.
    pub fn metrics(&self) -> metrics::SessionMetrics {
        metrics::SessionMetrics { status: self.status.clone(), scopes: self.scopes.clone() }
    }
}

impl Drop for SessionKeeper {
    fn drop(&mut self) {
        self.scopes.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that looks after sessions has panicked");
        }
    }
}

/// The work of the thread.
struct Keeper {
    /// Locked for each step: the installer may come in between.
    sessions: Arc<Mutex<Sessions>>,
    tables: SharedReader,
    scopes: Scopes,
    receivers: Receivers,
    status: Arc<Mutex<Status>>,
    counted: Option<Instant>,
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Keeper {
    fn run(mut self) {
        let mut reviewed = None;
        // The change that the last review has tried to reach. Another attempt waits for the next step.
        let mut tried = None;
        while let Some(changes) =
            self.scopes.wait(tried, if self.receivers.is_waiting() { SOON } else { STEP })
        {
            if Some(changes) != reviewed {
                tried = Some(changes);
                match self.review() {
                    Ok(Some(done)) => reviewed = Some(done),
                    Ok(None) => {}
                    Err(error) => {
                        tracing::error!(
                            error = error_chain(&error),
                            "cannot review sessions; retrying later"
                        );
                    }
                }
            }
            let map = self.scopes.map();
            // One that is not written yet may get the sessions that the instance has at another host.
            let has_sessions = |(number, owner): (&u16, &Owner)| {
                (owner.is_filtered || owner.ifindex == 0).then_some(*number)
            };
            let ports: Vec<u16> = map.given.iter().filter_map(has_sessions).collect();
            let swept = {
                let mut sessions = lock(&self.sessions);
                sessions.share_out(&ports, &map.retired, self.scopes.limit());
                let total: u32 = FAMILIES.iter().map(|family| sessions.buckets(*family)).sum();
                sessions.sweep(total.div_ceil(ROUND_STEPS), ticks_now())
            };
            match swept {
                Ok(swept) if swept.round_completed => self.end_round(reviewed),
                Ok(_) => {}
                Err(error) => {
                    tracing::error!(error = error_chain(&error), "cannot sweep sessions; retrying later")
                }
            }
        }
    }

    /// Judges all sessions. Returns the change up to which that was done; `None` if it must be repeated.
    fn review(&mut self) -> Result<Option<u64>, sluice_tables::Error> {
        let begun = Instant::now();
        let map = self.scopes.map();
        lock(&self.sessions).wait_for_packets()?;
        let (mut total, mut is_complete) = (Reviewed::default(), true);
        let mut unknown = BTreeSet::new();
        for family in FAMILIES {
            let buckets = lock(&self.sessions).buckets(family);
            for first in (0..buckets).step_by(CHUNK_BUCKETS as usize) {
                let chunk = first..buckets.min(first.saturating_add(CHUNK_BUCKETS));
                let mut sessions = lock(&self.sessions);
                let identity_of = |receiver| self.receivers.identity_of(receiver);
                let may_wait = |receiver| self.receivers.may_wait(receiver);
                let (reviewed, is_certain, of_chunk) = self.tables.read(|reader| {
                    let mut judge = Judge::new(reader, &map, &identity_of, &may_wait);
                    let reviewed = sessions.review(family, chunk, |session| judge.decide(session));
                    (reviewed, judge.is_certain(), judge.into_unknown())
                });
                unknown.extend(of_chunk);
                total.sessions += reviewed.sessions;
                total.changed += reviewed.changed;
                total.ended += reviewed.ended;
                is_complete &= is_certain && reviewed.refreshed == 0;
            }
        }
        lock(&self.sessions).end_revoked(ticks_now())?;
        is_complete &= unknown.is_empty();
        self.receivers.ask(&unknown);
        let time = begun.elapsed();
        let Reviewed { sessions, changed, ended, .. } = total;
        tracing::debug!(sessions, changed, ended, ?time, is_complete, "reviewed the sessions of all ports");
        let mut status = lock(&self.status);
        status.reviews += u64::from(is_complete);
        status.revoked += ended;
        status.review_time = time;
        if is_complete {
            self.scopes.reviewed(map.changes, Instant::now());
        }
        Ok(is_complete.then_some(map.changes))
    }

    /// A round of the sweep is complete.
    fn end_round(&mut self, reviewed: Option<u64>) {
        if let Some(changes) = reviewed {
            self.scopes.reviewed(changes, Instant::now());
        }
        let is_due = self.counted.is_none_or(|counted| counted.elapsed() >= COUNT_INTERVAL);
        let by_port = is_due.then(|| {
            self.counted = Some(Instant::now());
            let mut by_port: HashMap<u16, [u64; 3]> = HashMap::new();
            let reader = lock(&self.sessions).reader().clone();
            for session in &reader {
                let Ok(number) = u16::try_from(session.flow.scope) else { continue };
                by_port.entry(number).or_default()[session.phase() as usize] += 1;
            }
            by_port
        });
        let (usage, counters) = {
            let sessions = lock(&self.sessions);
            (FAMILIES.map(|family| sessions.usage(family)), sessions.counters())
        };
        let mut status = lock(&self.status);
        (status.usage, status.counters) = (usage, counters);
        if let Some(by_port) = by_port {
            status.by_port = by_port;
        }
    }
}
