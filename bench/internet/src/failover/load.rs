//! The load under which NAT gateways fail: a client sends datagrams from a network namespace and follows what becomes of each
//! session. It changes with what is asked of sessions.
//!
//! The other end is the program `stamp`, which answers each datagram with the public endpoint that it came from. So a client
//! notices that a session has ended, although its next packet would begin another one: the public endpoint is another one then.

use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{setsockopt, sockopt::RcvBufForce};
use sluice_bench_report::shell::Failure;
use std::fs::File;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The remote addresses: the `/10` that `stamp` answers for.
const REMOTES: u32 = u32::from_be_bytes([100, 64, 0, 0]);
const REMOTES_COUNT: u64 = 1 << 22;
const REMOTE_PORT: u16 = 2000;
/// Sockets of a client, each with a port of its own: sessions differ by port and by remote address.
const SOCKETS: u16 = 8;
/// Payload: number of the session or probe, round, kind, and the public endpoint, which `stamp` writes.
const PAYLOAD_BYTES: usize = 24;
const OF_LIVE: u32 = 1;
const OF_FRESH: u32 = 2;
const OF_PROBE: u32 = 3;
/// Packets a second of a client that opens or checks all its sessions: more fill queues on two cores.
const EXCHANGES_PER_S: f64 = 8_000.0;
/// For how long answers are awaited, and how often a packet is sent. A session whose packets are all lost has ended.
const PATIENCE: Duration = Duration::from_millis(400);
const ATTEMPTS: usize = 5;
/// Longest time of a storm, whatever the one who ends it does.
const STORM_MAX: Duration = Duration::from_secs(60);
const BUFFER_BYTES: usize = 16 << 20;

/// Where a client is.
#[derive(Clone, Debug)]
pub struct Place {
    /// File of its network namespace.
    pub namespace: PathBuf,
    /// Its address, and the first port of its sessions.
    pub from: SocketAddrV4,
}

/// The packets that a client sends while a gateway fails.
#[derive(Clone, Debug)]
pub struct Storm {
    /// Numbered packets of one established session, in a second.
    pub probes_per_s: u32,
    /// New sessions in a second, each one packet and its answer.
    pub fresh_per_s: u32,
    /// Ends it.
    pub end: Arc<AtomicBool>,
}

/// What became of a storm.
#[derive(Clone, Debug, Default)]
pub struct Stormed {
    /// When each probe was sent, and whether it was answered.
    pub probes: Vec<(Instant, bool)>,
    /// New sessions.
    pub fresh: usize,
    /// When those of them began whose first packet was not answered.
    pub half_open: Vec<Instant>,
}

/// What has become of sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Sessions that had been answered before.
    pub sessions: usize,
    /// Those that have another public endpoint now.
    pub moved: usize,
    /// Those that are not answered any more.
    pub silent: usize,
    /// New sessions whose first packet was not answered, and whose repeated packets are not answered either.
    pub never_begun: usize,
}

impl Checked {
    /// Sessions that ended.
    pub fn lost(&self) -> usize {
        self.moved + self.silent
    }
}

enum Order {
    Open(usize),
    Storm(Storm),
    Check,
}

enum Answer {
    Opened,
    Stormed(Stormed),
    Checked(Checked),
}

/// A client, on a thread of its own.
pub struct Client {
    orders: Option<Sender<Order>>,
    answers: Receiver<Result<Answer, String>>,
    thread: Option<JoinHandle<()>>,
}

impl Client {
    /// Starts a client, which sends nothing yet.
    ///
    /// # Errors
    /// If it cannot enter the namespace, or has no sockets there.
    pub fn start(place: &Place) -> Result<Self, Failure> {
        let (orders, ordered) = channel();
        let (answered, answers) = channel();
        let place = place.clone();
        let thread = std::thread::spawn(move || {
            let mut worker = match Worker::new(&place) {
                Ok(worker) => worker,
                // The other side has ended if nothing receives the error.
                Err(error) => return drop(answered.send(Err(format!("client {}: {error}", place.from)))),
            };
            let mut is_open = answered.send(Ok(Answer::Opened)).is_ok();
            while let (true, Ok(order)) = (is_open, ordered.recv()) {
                let answer = worker.follow(order).map_err(|error| format!("client {}: {error}", place.from));
                is_open = answered.send(answer).is_ok();
            }
        });
        let client = Self { orders: Some(orders), answers, thread: Some(thread) };
        client.answer()?;
        Ok(client)
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // If the thread has ended, there is no answer either.
            let _ = orders.send(order);
        }
    }

    fn answer(&self) -> Result<Answer, Failure> {
        Ok(self.answers.recv().map_err(|_| "a client panicked")??)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(thread) = self.thread.take() {
            // A panic was reported as the error of an order.
            let _ = thread.join();
        }
    }
}

fn strange() -> Failure {
    "a client answered another order".into()
}

/// Lets each client open so many sessions that stay.
///
/// # Errors
/// If some are not answered.
pub fn open(clients: &[Client], sessions: usize) -> Result<(), Failure> {
    clients.iter().for_each(|client| client.order(Order::Open(sessions)));
    clients.iter().try_for_each(|client| client.answer().map(drop))
}

/// Lets all clients begin a storm, until its end. [`stormed`] returns what became of it.
pub fn storm(clients: &[Client], storm: &Storm) {
    clients.iter().for_each(|client| client.order(Order::Storm(storm.clone())));
}

/// What became of the storm at each client, which has ended.
///
/// # Errors
/// Errors of the sockets.
pub fn stormed(clients: &[Client]) -> Result<Vec<Stormed>, Failure> {
    let stormed = |client: &Client| match client.answer()? {
        Answer::Stormed(stormed) => Ok(stormed),
        _ => Err(strange()),
    };
    clients.iter().map(stormed).collect()
}

/// What has become of all sessions that were answered once. Each that was lost counts once.
///
/// # Errors
/// Errors of the sockets.
pub fn check(clients: &[Client]) -> Result<Checked, Failure> {
    clients.iter().for_each(|client| client.order(Order::Check));
    let mut sum = Checked::default();
    for client in clients {
        let Answer::Checked(checked) = client.answer()? else { return Err(strange()) };
        sum.sessions += checked.sessions;
        sum.moved += checked.moved;
        sum.silent += checked.silent;
        sum.never_begun += checked.never_begun;
    }
    Ok(sum)
}

/// The longest time without a probe that is answered, among those sent from `since` on: from the sending of the first one that is
/// lost to that of the next one that is not. Zero if none is lost.
///
/// # Errors
/// If no probe is answered after it.
pub fn longest_gap(probes: &[(Instant, bool)], since: Instant) -> Result<Duration, Failure> {
    let (mut longest, mut first) = (Duration::ZERO, None);
    for (sent, answered) in probes.iter().filter(|(sent, _)| *sent >= since) {
        match (answered, first) {
            (false, None) => first = Some(*sent),
            (true, Some(lost)) => {
                longest = longest.max(*sent - lost);
                first = None;
            }
            _ => {}
        }
    }
    match (first, probes.last()) {
        (Some(lost), Some((last, _))) if *last - lost > PATIENCE => {
            Err(format!("no probe was answered in the last {:?}: nothing took over", *last - lost).into())
        }
        _ => Ok(longest),
    }
}

/// A session as its client knows it.
#[derive(Clone, Copy, Debug, Default)]
struct Session {
    /// The public endpoint of its last answer, address and port. 0: it was never answered.
    outside: u64,
    /// Round of the last answer.
    round: u32,
    /// It had another public endpoint before.
    moved: bool,
}

impl Session {
    fn is_answered(self) -> bool {
        self.outside != 0
    }
}

struct Worker {
    /// The last one is that of the probes.
    sockets: Vec<UdpSocket>,
    live: Vec<Session>,
    /// Sessions of the last storm, the first of which has this number.
    fresh: Vec<Session>,
    fresh_from: u64,
    /// When each of them began.
    fresh_begun: Vec<Instant>,
    probes: Vec<(Instant, bool)>,
    round: u32,
}

/// When the packet with a number is due, if so many are sent in a second.
fn due(number: usize, per_s: f64) -> Duration {
    Duration::from_secs_f64(number as f64 / per_s)
}

impl Worker {
    fn new(place: &Place) -> Result<Self, Failure> {
        setns(File::open(&place.namespace)?, CloneFlags::CLONE_NEWNET)?;
        let mut sockets = Vec::new();
        for number in 0..=SOCKETS {
            let socket = UdpSocket::bind((*place.from.ip(), place.from.port() + number))?;
            socket.set_nonblocking(true)?;
            setsockopt(&socket, RcvBufForce, &BUFFER_BYTES)?;
            sockets.push(socket);
        }
        Ok(Self {
            sockets,
            live: Vec::new(),
            fresh: Vec::new(),
            fresh_from: 0,
            fresh_begun: Vec::new(),
            probes: Vec::new(),
            round: 0,
        })
    }

    fn follow(&mut self, order: Order) -> Result<Answer, Failure> {
        match order {
            Order::Open(sessions) => self.open(sessions).map(|()| Answer::Opened),
            Order::Storm(storm) => self.storm(&storm).map(Answer::Stormed),
            Order::Check => self.check().map(Answer::Checked),
        }
    }

    fn send(&self, kind: u32, number: u64) -> Result<(), Failure> {
        let mut payload = [0; PAYLOAD_BYTES];
        payload[..8].copy_from_slice(&number.to_ne_bytes());
        payload[8..12].copy_from_slice(&self.round.to_ne_bytes());
        payload[12..16].copy_from_slice(&kind.to_ne_bytes());
        let (socket, remote) = match kind {
            OF_PROBE => (usize::from(SOCKETS), 0),
            // Behind those that stay.
            OF_FRESH => {
                let number = number + self.live.len() as u64;
                ((number % u64::from(SOCKETS)) as usize, number / u64::from(SOCKETS) % REMOTES_COUNT)
            }
            _ => ((number % u64::from(SOCKETS)) as usize, number / u64::from(SOCKETS)),
        };
        let to = SocketAddrV4::new(Ipv4Addr::from(REMOTES + remote as u32), REMOTE_PORT);
        match self.sockets[socket].send_to(&payload, to) {
            // The queue is full: the packet is lost, as in a switch.
            Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::OutOfMemory) => {
                Err(format!("cannot send to {to}: {error}").into())
            }
            _ => Ok(()),
        }
    }

    /// Takes all answers that have come.
    fn drain(&mut self) -> Result<(), Failure> {
        let mut payload = [0; PAYLOAD_BYTES];
        for socket in &self.sockets {
            loop {
                match socket.recv(&mut payload) {
                    Ok(PAYLOAD_BYTES) => {}
                    Ok(_) => continue,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error.into()),
                }
                let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| payload[at + byte]));
                let (number, round) = (word(0), word(8) as u32);
                let (kind, outside) = ((word(8) >> 32) as u32, word(16) & ((1 << 48) - 1));
                let session = match kind {
                    OF_PROBE => {
                        if let Some(probe) = self.probes.get_mut(number as usize) {
                            probe.1 = true;
                        }
                        continue;
                    }
                    OF_FRESH => self.fresh.get_mut(number.wrapping_sub(self.fresh_from) as usize),
                    _ => self.live.get_mut(number as usize),
                };
                if let Some(session) = session {
                    session.moved |= session.is_answered() && session.outside != outside;
                    (session.outside, session.round) = (outside, round);
                }
            }
        }
        Ok(())
    }

    /// Waits for answers.
    fn wait(&mut self) -> Result<(), Failure> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            self.drain()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Sends a packet of each session, and repeats those that are not answered.
    fn exchange(&mut self) -> Result<(), Failure> {
        self.round += 1;
        for _ in 0..ATTEMPTS {
            let missing = |sessions: &[Session], kind: u32, from: u64| -> Vec<(u32, u64)> {
                let all = (from..).zip(sessions);
                all.filter(|(_, session)| session.round != self.round)
                    .map(|(number, _)| (kind, number))
                    .collect()
            };
            let mut packets = missing(&self.live, OF_LIVE, 0);
            packets.extend(missing(&self.fresh, OF_FRESH, self.fresh_from));
            if packets.is_empty() {
                break;
            }
            let begun = Instant::now();
            for (at, (kind, number)) in packets.into_iter().enumerate() {
                while begun.elapsed() < due(at, EXCHANGES_PER_S) {
                    self.drain()?;
                    std::thread::sleep(Duration::from_millis(1));
                }
                self.send(kind, number)?;
            }
            self.wait()?;
        }
        Ok(())
    }

    /// The second packet of each session, after an answer, makes it an established one.
    fn open(&mut self, sessions: usize) -> Result<(), Failure> {
        self.live = vec![Session::default(); sessions];
        self.exchange()?;
        self.exchange()?;
        let silent = self.live.iter().filter(|session| session.round != self.round).count();
        if silent > 0 {
            return Err(format!("{silent} of {sessions} sessions are not answered").into());
        }
        Ok(())
    }

    fn storm(&mut self, storm: &Storm) -> Result<Stormed, Failure> {
        self.fresh_from += self.fresh.len() as u64;
        (self.fresh, self.fresh_begun, self.probes) = (Vec::new(), Vec::new(), Vec::new());
        self.round += 1;
        let begun = Instant::now();
        while !storm.end.load(Ordering::Relaxed) && begun.elapsed() < STORM_MAX {
            while storm.probes_per_s > 0
                && begun.elapsed() >= due(self.probes.len(), storm.probes_per_s.into())
            {
                self.send(OF_PROBE, self.probes.len() as u64)?;
                self.probes.push((Instant::now(), false));
            }
            // In bursts of at most a millisecond, so that probes are sent in between.
            let burst = storm.fresh_per_s.div_ceil(1_000) as usize;
            for _ in 0..burst {
                if begun.elapsed() >= due(self.fresh.len(), storm.fresh_per_s.into()) {
                    self.fresh.push(Session::default());
                    self.fresh_begun.push(Instant::now());
                    self.send(OF_FRESH, self.fresh_from + self.fresh.len() as u64 - 1)?;
                }
            }
            self.drain()?;
            std::thread::sleep(Duration::from_micros(50));
        }
        self.wait()?;
        let fresh = self.fresh.iter().zip(&self.fresh_begun);
        let half_open =
            fresh.filter(|(session, _)| !session.is_answered()).map(|(_, begun)| *begun).collect();
        Ok(Stormed { probes: std::mem::take(&mut self.probes), fresh: self.fresh.len(), half_open })
    }

    fn check(&mut self) -> Result<Checked, Failure> {
        let never = |sessions: &[Session]| sessions.iter().filter(|session| !session.is_answered()).count();
        let known: Vec<bool> =
            self.live.iter().chain(&self.fresh).map(|session| session.is_answered()).collect();
        self.exchange()?;
        let mut checked = Checked { never_begun: never(&self.fresh), ..Checked::default() };
        for (session, known) in self.live.iter_mut().chain(&mut self.fresh).zip(known) {
            if known {
                let silent = session.round != self.round;
                checked.sessions += 1;
                checked.silent += usize::from(silent);
                checked.moved += usize::from(session.moved && !silent);
            }
            session.moved = false;
        }
        Ok(checked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probes(lost: impl Fn(u64) -> bool) -> (Instant, Vec<(Instant, bool)>) {
        let begun = Instant::now();
        let at = |number| begun + Duration::from_millis(number);
        (begun, (0..1_000).map(|number| (at(number), !lost(number))).collect())
    }

    #[test]
    fn gap_is_the_longest_run_of_lost_probes_after_the_kill() {
        let (begun, probes) =
            probes(|number| (10..90).contains(&number) || (200..212).contains(&number) || number == 300);
        let since = |ms| longest_gap(&probes, begun + Duration::from_millis(ms)).unwrap();
        assert_eq!(since(100), Duration::from_millis(12));
        assert_eq!(since(250), Duration::from_millis(1));
        assert_eq!(since(400), Duration::ZERO);
    }

    #[test]
    fn probes_that_are_not_answered_any_more_are_an_error() {
        let (begun, probes) = probes(|number| number >= 500);
        assert!(longest_gap(&probes, begun).is_err());
    }
}
