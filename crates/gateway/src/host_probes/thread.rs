//! The thread that probes hosts: sends the requests that are due, and takes the replies. This file changes with the order in
//! which these are handled.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use sluice_agent::health::echo::Nonce;
use sluice_agent::liveness::{Liveness, LivenessConfig, seed_of};
use sluice_agent::mailbox::Inbox;
use sluice_agent::underlay::Vteps;
use sluice_agent::{StateReports, error_chain, random_nonce};
use sluice_southbound::{HostState, MAX_WATCHED_HOSTS};
use sluice_sys::{EchoSocket, Scheduling, raise_thread_priority};

use super::echo::{self, ECHO_BYTES};

/// Mean time between two probes of a host.
const INTERVAL_US: u64 = 10_000;
/// Requests in a row without a reply after which a host is unreachable.
const FAILURES: u32 = 3;
/// Shortest mean time between two probes of the gateway: with more hosts each of them is probed less often. A probe takes about 10 us of
/// a processor with its reply, so all of them take less than a third of one.
const SPACING_US: u64 = 33;
/// Longest wait without a host.
const IDLE: Duration = Duration::from_secs(3600);
/// Replies that are read from a socket before requests are sent again: one of each host, because the hosts are judged then.
const REPLIES_MAX: usize = MAX_WATCHED_HOSTS;
/// Longest part of a reply that is read: an IPv4 header with options, and one byte more than a reply has.
const REPLY_BYTES: usize = 60 + ECHO_BYTES + 1;
/// Interval at which sockets are opened that could not be opened before.
const OPEN_US: u64 = 500_000;

/// The probes of a host.
struct Watched {
    liveness: Liveness,
    /// Nonces and numbers of the last probes that have no reply.
    recent: VecDeque<(Nonce, u64)>,
}

impl Watched {
    /// Whether a reply has come that counts.
    fn take_reply(&mut self, now_us: u64, nonce: &Nonce) -> bool {
        let Some(at) = self.recent.iter().position(|(known, _)| known == nonce) else { return false };
        // A reply that comes twice counts once.
        if let Some((_, number)) = self.recent.remove(at) {
            self.liveness.answer(now_us, number);
        }
        true
    }

    /// Notes the next probe, with this nonce.
    fn probe(&mut self, now_us: u64, nonce: Nonce) {
        let number = self.liveness.probe(now_us);
        if self.recent.len() >= FAILURES as usize {
            self.recent.pop_front();
        }
        self.recent.push_back((nonce, number));
    }

    fn is_up(&self) -> Option<bool> {
        self.liveness.verdict().map(|verdict| verdict.up)
    }
}

/// State of the thread.
pub struct HostThread {
    vteps: Vteps,
    inbox: Inbox<Vec<IpAddr>>,
    reports: StateReports<HostState>,
    identifier: u16,
    seed: u64,
    /// Origin of the clock.
    started: Instant,
    sockets: Vec<(IpAddr, EchoSocket)>,
    open_us: u64,
    hosts: BTreeMap<IpAddr, Watched>,
    /// The state of a host has changed.
    has_changed: bool,
    /// When each host is probed next.
    due: BTreeSet<(u64, IpAddr)>,
}

impl HostThread {
    /// For hosts from `inbox`. `nonce` gives the identifier of the requests, and spreads them over time.
    pub fn new(
        vteps: Vteps,
        inbox: Inbox<Vec<IpAddr>>,
        reports: StateReports<HostState>,
        nonce: Nonce,
    ) -> Self {
        Self {
            vteps,
            inbox,
            reports,
            identifier: u16::from_be_bytes([nonce[0], nonce[1]]),
            seed: nonce.iter().fold(0, |seed: u64, byte| seed << 4 ^ u64::from(*byte)),
            started: Instant::now(),
            sockets: Vec::new(),
            open_us: 0,
            hosts: BTreeMap::new(),
            has_changed: false,
            due: BTreeSet::new(),
        }
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Runs until the other end of the inbox is dropped.
    pub fn run(mut self) {
        match raise_thread_priority() {
            Scheduling::RealTime => {}
            scheduling => tracing::warn!(
                ?scheduling,
                "no real-time priority (CAP_SYS_NICE): while this machine is busy, dead hosts are found later"
            ),
        }
        while self.turn() {}
    }

    /// Waits until something is due, and does it. Returns false when the thread must end.
    fn turn(&mut self) -> bool {
        let now_us = self.now_us();
        let wait =
            self.due.first().map_or(IDLE, |(due, _)| Duration::from_micros(due.saturating_sub(now_us)));
        // Replies are read before the next probe, so they need not end the wait.
        if !self.inbox.wait(std::iter::empty(), wait) {
            return false;
        }
        loop {
            match self.inbox.take() {
                Ok(hosts) => self.watch(hosts),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
        if !self.hosts.is_empty() {
            self.open_sockets();
            // The hosts are judged by one time, which is before the replies are read: a reply that has come until then counts, even
            // if this thread was delayed.
            let now_us = self.now_us();
            self.receive(now_us);
            self.probe_due(now_us);
            if std::mem::take(&mut self.has_changed) {
                self.publish();
            }
        }
        true
    }

    /// Probes these hosts from now on. What is known of those before stays.
    fn watch(&mut self, mut hosts: Vec<IpAddr>) {
        if hosts.len() > MAX_WATCHED_HOSTS {
            tracing::error!(hosts = hosts.len(), "too many hosts to probe: the others are left out");
            hosts.truncate(MAX_WATCHED_HOSTS);
        }
        let (now_us, mut before) = (self.now_us(), std::mem::take(&mut self.hosts));
        let interval_us = INTERVAL_US.max(hosts.len() as u64 * SPACING_US);
        for host in hosts {
            let mut watched = before.remove(&host).unwrap_or_else(|| {
                let config = LivenessConfig { interval_us, failures: FAILURES };
                Watched {
                    liveness: Liveness::new(config, now_us, seed_of(host, self.seed)),
                    recent: VecDeque::new(),
                }
            });
            // The limit holds for hosts that were added one by one as well.
            watched.liveness.set_interval(interval_us);
            self.hosts.insert(host, watched);
        }
        self.due = self.hosts.iter().map(|(host, watched)| (watched.liveness.due_us(), *host)).collect();
        self.publish();
    }

    /// Opens the sockets that are not open: an address may come later than the agent.
    fn open_sockets(&mut self) {
        let now_us = self.now_us();
        if now_us < self.open_us {
            return;
        }
        self.open_us = now_us + OPEN_US;
        for local in self.vteps.addresses() {
            if self.sockets.iter().any(|(known, _)| *known == local) {
                continue;
            }
            match EchoSocket::open(local) {
                Ok(socket) => self.sockets.push((local, socket)),
                Err(error) => {
                    tracing::debug!(%local, error = error_chain(&error), "cannot open a socket to probe hosts");
                }
            }
        }
    }

    /// Takes the replies that have come.
    fn receive(&mut self, now_us: u64) {
        let mut buffer = [0; REPLY_BYTES];
        for (local, socket) in &self.sockets {
            for _ in 0..REPLIES_MAX {
                match socket.receive(&mut buffer) {
                    Ok(Some((from, message))) => {
                        let nonce = echo::reply(local.is_ipv4(), self.identifier, message);
                        if let Some((watched, nonce)) = self.hosts.get_mut(&from).zip(nonce) {
                            let before = watched.is_up();
                            watched.take_reply(now_us, &nonce);
                            self.has_changed |= watched.is_up() != before;
                        }
                    }
                    Ok(None) => break,
                    Err(error) => tracing::trace!(%error, "socket of probes of hosts"),
                }
            }
        }
    }

    /// Probes the hosts for which it is time.
    fn probe_due(&mut self, now_us: u64) {
        while let Some(&(due_us, host)) = self.due.first() {
            if due_us > now_us {
                break;
            }
            self.due.pop_first();
            let Some(watched) = self.hosts.get_mut(&host) else { continue };
            let socket = self.sockets.iter().find(|(local, _)| local.is_ipv4() == host.is_ipv4());
            // What this gateway cannot send says nothing of the host.
            let Some(((_, socket), nonce)) = socket.zip(random_nonce()) else {
                self.due.insert((now_us + OPEN_US, host));
                continue;
            };
            let sequence = u16::from_be_bytes([nonce[0], nonce[1]]);
            let request = echo::request(host.is_ipv4(), self.identifier, sequence, &nonce);
            if let Err(error) = socket.send(host, &request) {
                tracing::trace!(%host, %error, "cannot probe a host");
                if is_full(&error.source) {
                    self.due.insert((now_us + INTERVAL_US, host));
                    continue;
                }
                // There is no route, or no neighbor: that is as no reply.
            }
            let before = watched.is_up();
            watched.probe(now_us, nonce);
            self.has_changed |= watched.is_up() != before;
            self.due.insert((watched.liveness.due_us(), host));
        }
    }

    /// Publishes the states of all hosts. One that was probed too seldom yet has none.
    fn publish(&self) {
        let state = |(host, watched): (&IpAddr, &Watched)| {
            let verdict = watched.liveness.verdict()?;
            Some(HostState { host: *host, reachable: verdict.up, evidence: verdict.evidence.clone() })
        };
        self.reports.set(self.hosts.iter().filter_map(state).collect());
    }
}

/// Whether the system has no space for another request at the moment.
fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(Errno::ENOBUFS as i32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_agent::mailbox::mailbox;

    const NO_VTEPS: Vteps = Vteps { v4: None, v6: None };

    fn host(number: u16) -> IpAddr {
        let [high, low] = number.to_be_bytes();
        [192, 0, high, low].into()
    }

    /// Catches hosts that are added one by one and keep the interval of few hosts, which would take the whole processor.
    #[test]
    fn hosts_that_are_added_singly_are_probed_as_seldom_as_all_at_once() {
        let (_hosts, inbox) = mailbox().unwrap();
        let mut thread = HostThread::new(NO_VTEPS, inbox, StateReports::default(), [7; 16]);
        for number in 1..=1000 {
            thread.watch((0..number).map(host).collect());
        }
        let intervals = thread.hosts.values_mut().map(|watched| {
            let now_us = watched.liveness.due_us();
            watched.probe(now_us, [1; 16]);
            watched.liveness.due_us() - now_us
        });
        assert!(intervals.min().unwrap() >= 1000 * SPACING_US * 3 / 4);
        thread.watch(vec![host(1)]);
        let watched = thread.hosts.get_mut(&host(1)).unwrap();
        let now_us = watched.liveness.due_us();
        watched.probe(now_us, [2; 16]);
        assert!(watched.liveness.due_us() - now_us <= INTERVAL_US * 5 / 4);
    }

    /// Catches a gateway that takes all hosts of a family out because it has no address of this family, and a loop without an end.
    #[test]
    fn a_host_that_cannot_be_probed_is_not_judged() {
        let (_hosts, inbox) = mailbox().unwrap();
        let reports = StateReports::default();
        let mut thread = HostThread::new(NO_VTEPS, inbox, reports.clone(), [7; 16]);
        thread.watch(vec![host(1)]);
        for _ in 0..10 {
            let (due_us, _) = *thread.due.first().unwrap();
            thread.probe_due(due_us);
            assert_eq!(thread.due.first(), Some(&(due_us + OPEN_US, host(1))));
        }
        thread.publish();
        assert_eq!(reports.get(), []);
        assert!(is_full(&io::Error::from_raw_os_error(Errno::ENOBUFS as i32)));
        assert!(!is_full(&io::Error::from_raw_os_error(Errno::ENETUNREACH as i32)));
    }

    fn watched() -> Watched {
        let config = LivenessConfig { interval_us: INTERVAL_US, failures: FAILURES };
        Watched { liveness: Liveness::new(config, 0, 1), recent: VecDeque::new() }
    }

    /// Catches a reply that counts several times, one that was guessed, and one of a probe that is long over.
    #[test]
    fn only_replies_to_the_last_probes_count_and_once() {
        let mut host = watched();
        let nonce = |number: u8| [number; 16];
        for number in 1..=3 {
            let now_us = host.liveness.due_us();
            host.probe(now_us, nonce(number));
            assert!(!host.take_reply(now_us, &nonce(99)));
            assert!(host.take_reply(now_us + 100, &nonce(number)));
            assert!(!host.take_reply(now_us + 200, &nonce(number)), "the same reply again");
        }
        assert_eq!(host.is_up(), Some(true));
        for number in 11..=15 {
            let now_us = host.liveness.due_us();
            host.probe(now_us, nonce(number));
        }
        assert_eq!(host.is_up(), Some(false));
        assert_eq!(host.recent.len(), FAILURES as usize);
        assert!(!host.take_reply(host.liveness.due_us(), &nonce(12)), "of a probe that is long over");
        assert!(host.take_reply(host.liveness.due_us(), &nonce(13)));
    }
}
