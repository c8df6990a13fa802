//! The thread that keeps this gateway's part in its cluster: sockets, clock, and
//! what the driver wants done. It waits for nothing but its sockets.

use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};
use sluice_agent::underlay::Vteps;
use sluice_cluster::{Incident, MESSAGE_BYTES_MAX};
use sluice_datapath::realtime::{Scheduling, prefer_this_thread};
use sluice_tables::Attendance;

use tokio::sync::{Notify, watch};

use super::Command;
use super::announce::Announce;
use super::driver::{Action, Driver, Event, Now, Owned, To};
use super::plan::Saved;
use super::view::View;
use super::witness::Witness;

/// Datagrams taken from a socket before the others have their turn.
const BURST: usize = 64;
/// Longer ones are no messages.
const DATAGRAM_BYTES: usize = MESSAGE_BYTES_MAX + 128;
/// What is looked after without being asked: addresses that came late, the status.
const CHORES_US: u64 = 500_000;
/// The status is told at most this often.
const STATUS_US: u64 = 50_000;
/// How often the programs are told that this agent is well.
const ATTEND_US: u64 = 100_000;
const _: () = assert!(ATTEND_US * 1_000 * 4 < Attendance::LIMIT_NS);
/// One that is not may be at any moment.
const ATTEND_RETRY_US: u64 = 4_000;
/// A table writer that has no room is tried again after this time.
const WRITER_RETRY_US: u64 = 1_000;
/// Network control (RFC 2474): these few packets before all others.
const TRAFFIC_CLASS: i32 = 48 << 2;

/// Tells the tables what to answer for; false if they cannot take it now.
pub type Tables = Box<dyn FnMut(&Owned) -> bool + Send>;

/// What the thread is given.
pub struct Parts {
    pub driver: Driver,
    pub vteps: Vteps,
    pub port: u16,
    pub announcer: Box<dyn Announce>,
    pub witness: Witness,
    pub tables: Tables,
    pub attendance: Attendance,
    pub commands: Receiver<Command>,
    /// Readable when there are commands; its other end's closing is the end.
    pub waker: UnixStream,
    pub saver: Sender<Saved>,
    pub view: View,
    /// Told where the other gateways are reached.
    pub peers: watch::Sender<Vec<IpAddr>>,
    /// Told when this gateway, which was cut off, is answered again.
    pub reconnected: Arc<Notify>,
}

/// The time.
pub fn now() -> Now {
    // Linux has this clock since 2.6.39, and asking it cannot fail.
    let boot = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default();
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now {
        boot_us: u64::try_from(boot.as_micros()).unwrap_or(u64::MAX),
        wall_ms: u64::try_from(wall.as_millis()).unwrap_or(u64::MAX),
    }
}

/// The sockets between gateways, and the one to the controller.
struct Sockets {
    port: u16,
    own: Vec<IpAddr>,
    peers: Vec<(IpAddr, UdpSocket)>,
    controller: Option<(IpAddr, UdpSocket)>,
    controller_at: Option<SocketAddr>,
    told: bool,
}

impl Sockets {
    fn new(vteps: Vteps, port: u16) -> Self {
        let own = [vteps.v4.map(IpAddr::from), vteps.v6.map(IpAddr::from)].into_iter().flatten().collect();
        Self { port, own, peers: Vec::new(), controller: None, controller_at: None, told: false }
    }

    /// Opens what is not open: an address may come later than the agent.
    fn open(&mut self) {
        for address in &self.own {
            if self.peers.iter().any(|(bound, _)| bound == address) {
                continue;
            }
            match bound(SocketAddr::new(*address, self.port)) {
                Ok(socket) => self.peers.push((*address, socket)),
                Err(error) if !self.told => {
                    self.told = true;
                    tracing::warn!(%address, port = self.port, %error, "cannot listen to the other gateways yet");
                }
                Err(_) => {}
            }
        }
        if self.controller.is_none()
            && let Some(at) = self.controller_at
        {
            match connected(at) {
                Ok(found) => self.controller = Some(found),
                Err(error) => tracing::debug!(%at, %error, "no way to the controller"),
            }
        }
    }

    /// A new socket each time: the route to it may have changed, and with it the own address.
    fn set_controller(&mut self, at: Option<SocketAddr>) {
        (self.controller_at, self.controller) = (at, None);
        self.open();
    }

    fn send(&mut self, to: To, packet: &[u8]) -> io::Result<()> {
        match to {
            To::Controller => match &self.controller {
                Some((_, socket)) => socket.send(packet).map(drop),
                None => Err(ErrorKind::NotConnected.into()),
            },
            To::Gateway(address) => {
                let socket = self.peers.iter().find(|(own, _)| own.is_ipv4() == address.is_ipv4());
                let (_, socket) = socket.ok_or(ErrorKind::AddrNotAvailable)?;
                socket.send_to(packet, (address, self.port)).map(drop)
            }
        }
    }
}

fn bound(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    prepare(&socket, address.is_ipv4())?;
    Ok(socket)
}

fn connected(to: SocketAddr) -> io::Result<(IpAddr, UdpSocket)> {
    let any: SocketAddr = if to.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.connect(to)?;
    prepare(&socket, to.is_ipv4())?;
    Ok((socket.local_addr()?.ip(), socket))
}

fn prepare(socket: &UdpSocket, ipv4: bool) -> io::Result<()> {
    use nix::sys::socket::{setsockopt, sockopt};
    socket.set_nonblocking(true)?;
    let marked = if ipv4 {
        setsockopt(socket, sockopt::Ipv4Tos, &TRAFFIC_CLASS)
    } else {
        setsockopt(socket, sockopt::Ipv6TClass, &TRAFFIC_CLASS)
    };
    // Only a wish: without it packets go with the others.
    if let Err(error) = marked {
        tracing::debug!(%error, "cannot mark packets as network control");
    }
    Ok(())
}

struct Runner {
    driver: Driver,
    sockets: Sockets,
    announcer: Box<dyn Announce>,
    witness: Witness,
    tables: Tables,
    attendance: Attendance,
    commands: Receiver<Command>,
    waker: UnixStream,
    saver: Sender<Saved>,
    view: View,
    peers: watch::Sender<Vec<IpAddr>>,
    reconnected: Arc<Notify>,
    /// What the tables have not been told yet.
    untold: Option<Owned>,
    chores_us: u64,
    attend_us: u64,
    status_us: u64,
}

/// Runs until the waker's other end is closed.
pub fn run(parts: Parts) {
    match prefer_this_thread() {
        Scheduling::RealTime => {}
        lesser => tracing::warn!(
            ?lesser,
            "no real-time priority (CAP_SYS_NICE): a busy machine may seem dead to its cluster"
        ),
    }
    let mut runner = Runner {
        driver: parts.driver,
        sockets: Sockets::new(parts.vteps, parts.port),
        announcer: parts.announcer,
        witness: parts.witness,
        tables: parts.tables,
        attendance: parts.attendance,
        commands: parts.commands,
        waker: parts.waker,
        saver: parts.saver,
        view: parts.view,
        peers: parts.peers,
        reconnected: parts.reconnected,
        untold: None,
        chores_us: 0,
        attend_us: 0,
        status_us: 0,
    };
    runner.tell_peers();
    while runner.turn() {}
}

impl Runner {
    /// Waits for something and does what there is to do; false at the end.
    fn turn(&mut self) -> bool {
        if !self.wait() {
            return false;
        }
        let mut packet = [0; DATAGRAM_BYTES];
        for at in 0..self.sockets.peers.len() {
            for _ in 0..BURST {
                let (local, socket) = &self.sockets.peers[at];
                let local = *local;
                match socket.recv_from(&mut packet) {
                    Ok((bytes, from)) => self.datagram(local, from.ip(), &packet[..bytes]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    // An ICMP error about an earlier datagram.
                    Err(_) => {}
                }
            }
        }
        for _ in 0..BURST {
            let Some((local, socket)) = &self.sockets.controller else { break };
            let (local, from) = (*local, self.sockets.controller_at.map_or(*local, |at| at.ip()));
            match socket.recv(&mut packet) {
                Ok(bytes) => self.datagram(local, from, &packet[..bytes]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {}
            }
        }
        if let Some(token) = self.witness.receive(now().boot_us) {
            self.handle(Event::Witness(token));
        }
        let lives = self.obey_commands();
        if now().boot_us >= self.driver.due_us() {
            self.handle(Event::Timer);
        }
        self.chores();
        lives
    }

    fn datagram(&mut self, local: IpAddr, from: IpAddr, packet: &[u8]) {
        self.handle(Event::Datagram { local, from, packet });
    }

    /// False if there will be nothing more to wait for.
    fn wait(&mut self) -> bool {
        let now_us = now().boot_us;
        let mut due_us = self.driver.due_us().min(self.chores_us).min(self.attend_us);
        if self.untold.is_some() {
            due_us = due_us.min(now_us + WRITER_RETRY_US);
        }
        let wait = Duration::from_micros(due_us.saturating_sub(now_us));
        let mut polled: Vec<PollFd<'_>> = Vec::with_capacity(8);
        let readable = |socket| PollFd::new(socket, PollFlags::POLLIN);
        polled.push(readable(self.waker.as_fd()));
        polled.extend(self.sockets.peers.iter().map(|(_, socket)| readable(socket.as_fd())));
        polled.extend(self.sockets.controller.iter().map(|(_, socket)| readable(socket.as_fd())));
        polled.extend(self.witness.descriptors().map(readable));
        match ppoll(&mut polled, Some(TimeSpec::from(wait)), None) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => {
                // Out of memory, perhaps for a moment: rather late than never.
                tracing::error!(%error, "cannot wait for the other gateways");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let mut woken = [0; 64];
        !matches!(self.waker.read(&mut woken), Ok(0))
    }

    fn obey_commands(&mut self) -> bool {
        loop {
            let event = match self.commands.try_recv() {
                Ok(Command::Plan(plan)) => {
                    self.handle(Event::Plan(plan));
                    self.tell_peers();
                    continue;
                }
                Ok(Command::Resign) => {
                    self.handle(Event::Resign);
                    self.tell_peers();
                    continue;
                }
                Ok(Command::Keys(keys)) => Event::Keys(keys),
                Ok(Command::Controller(at)) => {
                    self.sockets.set_controller(at);
                    Event::Controller(at.map(|at| at.ip()))
                }
                Ok(Command::Load(load)) => Event::Load(load),
                Ok(Command::Neighbours(mut neighbours)) => {
                    let plan = self.driver.plan();
                    let is_gateway = |address| plan.is_some_and(|plan| plan.is_member(address));
                    neighbours.retain(|neighbour| !is_gateway(neighbour.address));
                    self.witness.set_neighbours(neighbours);
                    continue;
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            };
            self.handle(event);
        }
    }

    fn handle(&mut self, event: Event<'_>) {
        let actions = self.driver.handle(now(), event);
        // What others wait for first, the log last.
        let (mut told, mut incidents) = (Vec::new(), Vec::new());
        for action in actions {
            match action {
                Action::Send(to, packet) => {
                    if let Err(error) = self.sockets.send(to, &packet)
                        && error.kind() != ErrorKind::WouldBlock
                    {
                        tracing::trace!(?to, %error, "cannot send");
                    }
                }
                Action::Announce(address, mac, reason) => {
                    self.announcer.announce(address, mac);
                    told.push((address, Some(reason)));
                }
                Action::Withdraw(address, mac) => {
                    self.announcer.withdraw(address, mac);
                    told.push((address, None));
                }
                Action::Ask(token, until_us) => self.witness.ask(token, until_us),
                Action::Own(owned) => self.untold = Some(owned),
                // Who saves has ended only if this ends as well.
                Action::Save(saved) => drop(self.saver.send(*saved)),
                Action::Say(incident) => incidents.push(incident),
            }
        }
        self.tell_tables();
        for (vip, reason) in told {
            say(vip, reason);
        }
        if incidents.contains(&Incident::Reconnected) {
            self.reconnected.notify_one();
        }
        incidents.into_iter().for_each(tell);
    }

    fn tell_peers(&self) {
        let now = self.driver.peers();
        self.peers.send_if_modified(|known| std::mem::replace(known, now.clone()) != now);
    }

    fn tell_tables(&mut self) {
        if let Some(owned) = &self.untold
            && (self.tables)(owned)
        {
            self.untold = None;
            // What the operator sees follows at once.
            self.status_us = 0;
        }
    }

    /// Tells the programs that this agent is well; false if it is not, and others may have its vIPs.
    fn attend(&self) -> bool {
        if !self.driver.is_fit() {
            return false;
        }
        if self.driver.peers().is_empty() {
            self.attendance.waive();
        } else {
            // Linux has this clock, too.
            let clock = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
            self.attendance.note(u64::try_from(clock.as_nanos()).unwrap_or(u64::MAX));
        }
        true
    }

    fn chores(&mut self) {
        self.tell_tables();
        let now = now();
        if now.boot_us >= self.chores_us {
            self.chores_us = now.boot_us + CHORES_US;
            self.sockets.open();
        }
        if now.boot_us >= self.attend_us {
            self.attend_us = now.boot_us + if self.attend() { ATTEND_US } else { ATTEND_RETRY_US };
        }
        if now.boot_us >= self.status_us && self.view.offer(|| self.driver.status(now)) {
            self.status_us = now.boot_us + STATUS_US;
        }
    }
}

fn say(vip: IpAddr, reason: Option<sluice_cluster::Reason>) {
    use sluice_cluster::Reason;
    match reason {
        Some(Reason::TakenOver { from }) => tracing::warn!(%vip, %from, "taken over"),
        Some(Reason::Repeat | Reason::Refresh) => {}
        Some(reason) => tracing::info!(%vip, ?reason, "announced"),
        None => tracing::info!(%vip, "given up"),
    }
}

fn tell(incident: Incident) {
    match incident {
        Incident::Drained => tracing::info!("drained: this gateway answers for no vIP any more"),
        Incident::FalseAlarm { peer, silence_us } => {
            tracing::warn!(%peer, silence_us, "was believed dead and is not; it is given longer from now on");
        }
        Incident::Paused { for_us } => tracing::warn!(for_us, "this agent was not run in time"),
        Incident::CutOff => tracing::warn!("cut off: neither a gateway nor a witness answers"),
        Incident::Reconnected => tracing::info!("answered again, after having been cut off"),
    }
}

/// Writes what is to be remembered, the newest of what waits, until the sender is gone.
pub fn save(path: PathBuf, saved: Receiver<Saved>) {
    while let Ok(mut newest) = saved.recv() {
        while let Ok(newer) = saved.try_recv() {
            newest = newer;
        }
        if let Err(error) = super::write(&path, &newest) {
            tracing::error!(path = %path.display(), %error, "cannot remember who owns what");
        }
    }
}
