//! Source NAT on this gateway: the numbers of public addresses, and a thread that makes rounds, by which ports and blocks are free
//! again. This file changes with when something ends.
//!
//! ```text
//!     the NAT gateways of the tables have changed
//!        --> what VPCs have at addresses that other VPCs have now is ended
//!        --> addresses that no NAT gateway has are released
//! ```
//!
//! The sessions of NAT gateways whose vIPs other gateways own are here as well (`sync.rs`); rounds look after all of them. Both
//! steps above compare the NAT tables with the node's tables, so a successor of an agent that was killed in between does the same.

mod args;
pub mod copies;
mod ipfix;
pub mod list;
mod log;
mod metrics;
#[cfg(test)]
#[path = "../../nat-sync/tests/simulation/table.rs"]
#[allow(dead_code, reason = "the simulation uses more of it")]
mod naive;
mod numbers;
mod sessions;
pub mod sync;
#[cfg(test)]
mod tests;

use std::net::Ipv4Addr;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use sluice_agent::{Error, adoption_error, error_chain};
use sluice_datapath::Datapath;
use sluice_tables::Membarrier;
use sluice_tables::nat::{Nat, NatUsage};
use sluice_tables::sessions::{Family, SessionReader, ticks_now};

pub use args::{LoggedEvents, NatArgs};
pub use numbers::RoleNat;

use log::{NatLog, Owners};
use sessions::SessionLog;

/// Time between two turns of the thread, and for how long one works. So it takes at most about a tenth of a processor.
const TURN: Duration = Duration::from_millis(100);
const WORK: Duration = Duration::from_millis(10);
/// Shortest time from the beginning of a round to that of the next.
const ROUND: Duration = Duration::from_secs(1);
/// Rounds for which this gateway holds ports that it gives out, if other gateways have copies of their sessions: the pass that ends the copies
/// begins up to 20 s after the session has ended (`sluice_nat_sync::Params::interval_us`) and takes some seconds, and two rounds of the other gateway
/// free the port there.
const HELD_ROUNDS: u32 = 30;
/// Buckets of sessions of one step. The writer of the node's tables waits for a step, so it takes about a millisecond.
const STEP_BUCKETS: u32 = 1024;
/// Shortest time from the beginning of a pass of the log of sessions to that of the next.
const PASS: Duration = Duration::from_secs(1);

/// What was counted in the NAT tables since the agent began.
#[derive(Clone, Debug, Default)]
struct Status {
    usage: NatUsage,
    /// Rounds that were completed, and how long the last one took.
    rounds: u64,
    round_time: Duration,
    /// Sessions that were ended because their port was not theirs ([`sluice_tables::nat::NatSwept::astray`]).
    astray: u64,
}

/// The NAT tables, which the thread and the writer of the node's tables change.
#[derive(Clone, Debug)]
pub struct SharedNat {
    nat: Arc<Mutex<Nat>>,
    status: Arc<Mutex<Status>>,
    log: Arc<NatLog>,
    reader: SessionReader,
    /// Numbers that there are for public addresses.
    addresses_total: u32,
    /// How often this agent has ended all sessions.
    emptied: Arc<AtomicU64>,
}

impl SharedNat {
    /// Adopts the tables of an earlier agent, or lays out new ones.
    ///
    /// # Errors
    /// If they are of another layout or size, or the kernel refuses to map them.
    pub fn open(datapath: &Datapath, args: &NatArgs, pin_dir: &Path) -> Result<Self, Error> {
        let grace = Membarrier::new().map_err(sluice_tables::Error::from)?;
        let nat = Nat::open(&datapath.nat()?, args.size(), &args.timeouts(), ticks_now(), grace);
        let mut nat = nat.map_err(|error| adoption_error(error, pin_dir))?;
        let [sessions, sessions64] = args.vpc_sessions();
        nat.limit_vpcs(sessions, sessions64);
        nat.limit_passing(NonZeroU32::new(args.nat_pass_pps));
        // Until it is known whether there are others, what an earlier agent held is not given away.
        nat.hold_ports(HELD_ROUNDS);
        Ok(Self::with_log(nat, NatLog::new(args.nat_ipfix)))
    }

    /// The tables of `nat`, to which nothing else writes, without a collector of the log.
    #[must_use]
    pub fn new(nat: Nat) -> Self {
        Self::with_log(nat, NatLog::default())
    }

    fn with_log(mut nat: Nat, log: NatLog) -> Self {
        let log = Arc::new(log);
        nat.log_blocks_of({
            let log = log.clone();
            move |vni| log.logged_by(vni)
        });
        let (reader, usage) = (nat.sessions().reader().clone(), nat.usage());
        let status = Arc::new(Mutex::new(Status { usage, ..Status::default() }));
        Self {
            nat: Arc::new(Mutex::new(nat)),
            status,
            log,
            reader,
            addresses_total: usage.addresses_total,
            emptied: Arc::default(),
        }
    }

    /// Makes packets give out ports only of the blocks for which `is_own` is true, by public address and number of the block. They are held if
    /// other gateways have copies.
    pub(crate) fn share_ports(
        &self,
        are_copied: bool,
        is_own: impl Fn(Ipv4Addr, u16) -> bool + Send + 'static,
    ) {
        let mut nat = self.lock();
        nat.hold_ports(if are_copied { HELD_ROUNDS } else { 0 });
        nat.set_shares(is_own);
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Nat> {
        self.nat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often this agent has ended all sessions.
    pub(crate) fn emptied(&self) -> u64 {
        self.emptied.load(Ordering::Relaxed)
    }

    /// All sessions have ended. Those who copy them find out by [`SharedNat::emptied`].
    fn note_emptied(&self) {
        self.emptied.fetch_add(1, Ordering::Relaxed);
    }

    /// Reads the sessions.
    pub fn reader(&self) -> SessionReader {
        self.reader.clone()
    }
}

/// The running thread. It ends when this is dropped.
pub struct NatKeeper {
    reader: SessionReader,
    status: Arc<Mutex<Status>>,
    log: Arc<NatLog>,
    /// Ends the thread when it is dropped.
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl NatKeeper {
    /// Starts the thread. `owners` says for which NAT gateways this gateway translates, if that is known.
    ///
    /// # Errors
    /// If the system refuses to start a thread.
    pub fn start(
        nat: SharedNat,
        logged: LoggedEvents,
        owners: impl Fn() -> Option<Arc<Owners>> + Send + 'static,
    ) -> Result<Self, Error> {
        let (reader, status, log) = (nat.reader(), nat.status.clone(), nat.log.clone());
        let (stop, stopped) = mpsc::channel();
        let sessions = (logged == LoggedEvents::Sessions).then(|| {
            [Family::Ipv4, Family::Ipv6].map(|family| {
                let buckets = nat.lock().sessions().buckets(family);
                SessionLog::new(reader.clone(), family, buckets)
            })
        });
        let now = Instant::now();
        let owners = Box::new(owners);
        let mut keeper =
            Keeper { nat, round_began: now, sessions, is_ipv4_logged: false, pass_began: now, owners };
        let run = move || {
            let mut wait = Duration::ZERO;
            while stopped.recv_timeout(wait) == Err(mpsc::RecvTimeoutError::Timeout) {
                wait = keeper.take_turn();
            }
        };
        let thread = thread::Builder::new()
            .name("nat".to_owned())
            .spawn(run)
            .map_err(Error::io("start the thread that looks after source NAT"))?;
        Ok(Self { reader, status, log, stop: Some(stop), thread: Some(thread) })
    }

    /// The routes of the local API that show sessions.
    pub fn routes(&self) -> axum::Router {
        list::routes(self.reader.clone())
    }

    /// The metrics of source NAT.
    pub fn metrics(&self, datapath: &Arc<Datapath>) -> metrics::NatMetrics {
        metrics::NatMetrics { status: self.status.clone(), log: self.log.clone(), datapath: datapath.clone() }
    }
}

impl Drop for NatKeeper {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that looks after source NAT has panicked");
        }
    }
}

/// The work of the thread.
struct Keeper {
    nat: SharedNat,
    round_began: Instant,
    /// Of both session tables; `None`: sessions are not logged.
    sessions: Option<[SessionLog; 2]>,
    /// The present pass has looked at the table of IPv4.
    is_ipv4_logged: bool,
    pass_began: Instant,
    owners: Box<dyn Fn() -> Option<Arc<Owners>> + Send>,
}

fn lock(status: &Mutex<Status>) -> MutexGuard<'_, Status> {
    status.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Keeper {
    /// Makes steps of the round and of the log. Returns the time until the next turn.
    fn take_turn(&mut self) -> Duration {
        if let Some(owners) = (self.owners)() {
            self.nat.log.set_owners(owners);
        }
        let wait = self.make_round();
        self.log_sessions();
        self.nat.log.flush();
        if self.sessions.is_some() { TURN } else { wait }
    }

    fn make_round(&mut self) -> Duration {
        if self.sessions.is_some() && Instant::now() < self.round_began {
            return TURN;
        }
        let began = Instant::now();
        while began.elapsed() < WORK {
            // The sweep notes that an event was logged when `log` has returned. A line that is written later could be lost.
            let log = &mut |event| self.nat.log.block(&event);
            let swept = self.nat.lock().sweep(STEP_BUCKETS, ticks_now(), log);
            match swept {
                Ok(swept) => {
                    lock(&self.nat.status).astray += swept.astray;
                    if swept.round_completed {
                        return self.end_round();
                    }
                }
                Err(error) => {
                    tracing::error!(
                        error = error_chain(&error),
                        "cannot make a round of source NAT; retrying later"
                    );
                    break;
                }
            }
        }
        TURN
    }

    fn end_round(&mut self) -> Duration {
        let round_time = self.round_began.elapsed();
        let wait = ROUND.saturating_sub(round_time).max(TURN);
        self.round_began = Instant::now() + wait;
        let usage = self.nat.lock().usage();
        let mut status = lock(&self.nat.status);
        status.usage = usage;
        status.rounds += 1;
        status.round_time = round_time;
        wait
    }

    fn log_sessions(&mut self) {
        let Some(sessions) = &mut self.sessions else { return };
        let began = Instant::now();
        if began < self.pass_began {
            return;
        }
        // Until it is known who owns what, sessions wait for the log.
        let Some(owners) = self.nat.log.owners() else { return };
        let log = &mut |change, session: &_| self.nat.log.session(change, session);
        while began.elapsed() < WORK {
            let [ipv4, ipv6] = sessions;
            if !self.is_ipv4_logged {
                self.is_ipv4_logged = ipv4.step(STEP_BUCKETS, &owners, log);
            } else if ipv6.step(STEP_BUCKETS, &owners, log) {
                self.is_ipv4_logged = false;
                self.pass_began = Instant::now() + PASS;
                return;
            }
        }
    }
}
