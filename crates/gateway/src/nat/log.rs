//! The log of source NAT, by which the holder of a public endpoint at some time is found later (RFC 6888 REQ-12, RFC 7422): lines, and
//! IPFIX messages if there is a collector. The gateway logs what it owns, and the end of what it has logged, unless another one
//! owns that now. Until that is known, it logs all blocks.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use sluice_tables::layout;
use sluice_tables::nat::{LoggedBy, NatBlock, NatEvent};
use sluice_tables::sessions::ticks_now;
use sluice_types::Vni;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::ipfix::{Change, ExportCounts, Exporter};
use super::sessions::LoggedSession;

/// What lines about blocks and sessions can be chosen by.
const BLOCKS_TARGET: &str = "sluice::nat_log";
const SESSIONS_TARGET: &str = "sluice::nat_session_log";

/// Number of events since the agent began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogCounts {
    /// Blocks that were claimed and returned.
    pub blocks: [u64; 2],
    /// Sessions that began and ended.
    pub sessions: [u64; 2],
    /// IPFIX records of both.
    pub export: ExportCounts,
}

/// The VPCs with a NAT gateway: whether this gateway has its vIP, or another one; `None`: no gateway is known to have it.
pub type Owners = HashMap<Vni, Option<bool>>;

/// Which gateway logs what a VPC has.
pub fn logged_by(owners: &Owners, vni: Vni) -> LoggedBy {
    match owners.get(&vni) {
        Some(Some(true)) => LoggedBy::This,
        Some(Some(false)) => LoggedBy::Another,
        Some(None) | None => LoggedBy::Unknown,
    }
}

#[derive(Debug, Default)]
struct State {
    /// The VPCs with a NAT gateway, and whether this gateway has its vIP; `None`: it is not known yet.
    owners: Option<Arc<Owners>>,
    exporter: Option<Exporter>,
    counts: LogCounts,
}

/// The log, which the threads of source NAT share.
#[derive(Debug, Default)]
pub struct NatLog(Mutex<State>);

impl NatLog {
    /// A log, with a collector of IPFIX messages.
    pub fn new(collector: Option<SocketAddr>) -> Self {
        Self(Mutex::new(State { exporter: collector.map(Exporter::new), ..State::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets for which NAT gateways this gateway translates.
    pub fn set_owners(&self, owners: Arc<Owners>) {
        self.lock().owners = Some(owners);
    }

    /// For which NAT gateways this gateway translates, if that is known.
    pub fn owners(&self) -> Option<Arc<Owners>> {
        self.lock().owners.clone()
    }

    /// Which gateway logs what a VPC has.
    pub fn logged_by(&self, vni: Vni) -> LoggedBy {
        self.lock().owners.as_ref().map_or(LoggedBy::This, |owners| logged_by(owners, vni))
    }

    /// Number of events.
    pub fn counts(&self) -> LogCounts {
        let state = self.lock();
        let export = state.exporter.as_ref().map(Exporter::counts).unwrap_or_default();
        LogCounts { export, ..state.counts }
    }

    /// Sends the IPFIX records that there are.
    pub fn flush(&self) {
        if let Some(exporter) = &mut self.lock().exporter {
            exporter.flush();
        }
    }

    /// Logs which instance has, or had, which ports at what time. The time of a claim is before that of the line.
    pub fn block(&self, event: &NatEvent) {
        let (NatEvent::Claimed(block) | NatEvent::Returned(block, _)) = event;
        let NatBlock { vni, inside, outside, ports, claimed_at, .. } = block;
        let ports = format_args!("{}-{}", ports.start(), ports.end());
        let since = text(time_of(*claimed_at));
        let mut state = self.lock();
        let (change, at) = match event {
            NatEvent::Claimed(_) => {
                tracing::info!(
                    target: BLOCKS_TARGET, at = since, %vni, %inside, %outside, %ports,
                    "ports of a public address were given to a VM"
                );
                (Change::Begin, *claimed_at)
            }
            NatEvent::Returned(_, at) => {
                tracing::info!(
                    target: BLOCKS_TARGET, at = text(time_of(*at)), since, %vni, %inside, %outside, %ports,
                    "ports of a public address were returned by a VM"
                );
                (Change::End, *at)
            }
        };
        state.counts.blocks[change as usize] += 1;
        if let Some(exporter) = &mut state.exporter {
            exporter.block(change, millis(time_of(at)), block);
        }
    }

    /// Logs that a session has begun, at the time at which it did, or ended, at the present time.
    pub fn session(&self, change: Change, session: &LoggedSession) {
        let LoggedSession { vni, protocol, inside, outside, remote, created_at, .. } = session;
        let begun = time_of(*created_at);
        let since = text(begun);
        let mut state = self.lock();
        let at = match change {
            Change::Begin => {
                tracing::info!(
                    target: SESSIONS_TARGET, at = since, vni, protocol, %inside, %outside, %remote,
                    "a session of source NAT began"
                );
                begun
            }
            Change::End => {
                let now = SystemTime::now();
                tracing::info!(
                    target: SESSIONS_TARGET, at = text(now), since, vni, protocol, %inside, %outside, %remote,
                    "a session of source NAT ended"
                );
                now
            }
        };
        state.counts.sessions[change as usize] += 1;
        if let Some(exporter) = &mut state.exporter {
            exporter.session(change, millis(at), session);
        }
    }
}

/// The time of a tick of the past.
fn time_of(tick: u32) -> SystemTime {
    let ticks = u64::from(ticks_now().wrapping_sub(tick));
    SystemTime::now() - Duration::from_millis(ticks * 1000 / u64::from(layout::SESSION_TICKS_PER_SECOND))
}

/// Milliseconds since 1970.
fn millis(time: SystemTime) -> u64 {
    let since_1970 = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX)
}

/// In UTC, to the second.
fn text(time: SystemTime) -> String {
    let time = OffsetDateTime::from(time).replace_nanosecond(0);
    time.ok().and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_default()
}
