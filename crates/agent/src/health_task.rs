//! Runs the health checks of a node: reads counters, sends probes and receives their answers, answers the probes of other
//! nodes, and publishes what the monitor finds. This file changes when something is measured in another way.

use std::collections::BTreeSet;
use std::future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sluice_envelope::BootId;
use sluice_sys::PacketSocket;
use tokio::task::{JoinError, JoinHandle, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval, sleep_until};

use crate::health::echo::{self, ECHO_BYTES_MAX, Echo, Nonce, Responder};
use crate::health::sample::Counters;
use crate::health::vms::{self, VmProbe, VmReply};
use crate::health::{
    FlowMeter, HeavyFlow, InterfaceState, Limits, Monitor, MonitorConfig, MonitorFigures, NodeView,
};
use crate::netlink::Netlink;
use crate::rsp::socket::Socket;
use crate::rsp::wall_clock_ms;
use crate::underlay::Vteps;
use crate::{Applier, Error, Node, Role, error_chain};

/// Interval of samples of the device, which rules count.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest time between the beginnings of two measurements of flows, each of which reads all of them twice.
const FLOWS_INTERVAL: Duration = Duration::from_secs(2);
/// Interval at which the tables are read: they may have many nodes.
const VIEW_INTERVAL: Duration = Duration::from_secs(2);
/// Datagrams that are received from a socket before other inputs get their turn.
const RECEIVE_BUDGET: usize = 64;
/// A delay of this task from which on its measurements say nothing about the way to other nodes.
const LATE_US: u64 = 50_000;
/// How long VMs may take to answer, all together, and each that did not answer again.
const VM_WAIT: Duration = Duration::from_millis(200);
/// Probes that are sent to VMs before their replies are received.
const VM_BATCH: usize = 16;
/// Length of the replies that are read: an advertisement has 86 bytes.
const REPLY_BYTES: usize = 128;
/// The MTU that is assumed of a node without an interface to the underlay.
const MTU_MIN: u32 = 1280;
/// Bytes of the headers of a datagram, over IPv4 and over IPv6.
const HEADERS: (u32, u32) = (28, 48);

/// The options of health checks.
#[derive(Clone, Debug)]
pub struct HealthConfig {
    /// Addresses of this node.
    pub vteps: Vteps,
    /// Interfaces to the underlay, and of a gateway to the Internet.
    pub underlay: Vec<String>,
    /// Whether this node is a gateway.
    pub is_gateway: bool,
    /// UDP port of the echo.
    pub port: u16,
    /// Average interval of the probes of another node.
    pub link_period: Duration,
    /// Average interval of the probes of VMs.
    pub vm_period: Duration,
    /// Thresholds that an operator may change.
    pub limits: Limits,
}

/// The frames to VMs that this round decides about, by interface and address, and the replies.
type VmRound = (BTreeSet<(u32, IpAddr)>, BTreeSet<VmReply>);

/// Name, MTU and carrier of an interface.
type LinkState = (String, u32, bool);

/// What is measured each second. The tables are read less often.
struct Measured {
    /// What is to be watched, and the interfaces.
    view: Option<(NodeView, Vec<LinkState>)>,
    counters: Counters,
}

async fn measure<R: Role>(
    node: Arc<Node<R>>,
    netlink: Netlink,
    view: Option<fn(&Applier<R>) -> NodeView>,
) -> Result<Measured, Error> {
    let view = match view {
        Some(read) => {
            let view = node.writer.run(move |applier| read(applier)).await?;
            Some((view, netlink.link_states().await?))
        }
        None => None,
    };
    let failed = || Error::io("read the counters of this machine");
    let read = spawn_blocking(|| Counters::read(Path::new("/proc"))).await;
    let counters = read.map_err(|error| failed()(io::Error::other(error)))?.map_err(failed())?;
    Ok(Measured { view, counters })
}

struct HealthTask<R: Role> {
    node: Arc<Node<R>>,
    view: fn(&Applier<R>) -> NodeView,
    netlink: Netlink,
    monitor: Monitor,
    responder: Responder,
    sockets: Vec<Socket>,
    port: u16,
    /// Rounds of probes of VMs so far.
    vm_rounds: usize,
    buffer: Vec<u8>,
    /// Origin of the monitor's clock.
    started: Instant,
    viewed: Option<Instant>,
    /// Whether the last measurement failed, so that each failure is logged once.
    is_failing: bool,
    /// Measures flows, unless it is measuring; absent on nodes that do not count them.
    flow_meter: Option<FlowMeter>,
    flows_begun: Option<Instant>,
}

/// Runs the health checks of a node, of which `view` reads what is to be watched. `flow_meter` measures flows, if the node counts them.
///
/// # Errors
/// If the port is in use, or [`Error::WriterGone`].
pub async fn watch_health<R: Role>(
    node: Arc<Node<R>>,
    config: HealthConfig,
    view: fn(&Applier<R>) -> NodeView,
    flow_meter: Option<FlowMeter>,
) -> Result<(), Error> {
    let HealthConfig { vteps, underlay, is_gateway, port, link_period, vm_period, limits } = config;
    let open = |local: IpAddr| {
        let what = format!("open UDP port {port} of {local} for health checks");
        Socket::bind(local, port).map_err(Error::io(what))
    };
    let own: Vec<IpAddr> = vteps.addresses().collect();
    let sockets = own.iter().map(|local| open(*local)).collect::<Result<Vec<_>, _>>()?;
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let monitor = MonitorConfig {
        own,
        underlay,
        is_gateway,
        link_period_ms: milliseconds(link_period),
        vm_period_ms: milliseconds(vm_period),
        limits,
        // Nodes that start in the same millisecond draw different numbers.
        seed: BootId::random().map_or_else(wall_clock_ms, |boot| boot.number()),
    };
    node.add_metrics(Arc::new(node.health.clone()));
    let task = HealthTask {
        node,
        view,
        netlink: Netlink::open()?,
        monitor: Monitor::new(monitor, 0),
        responder: Responder::new(port),
        sockets,
        port,
        vm_rounds: 0,
        // One byte more than the longest datagram, so that longer ones are recognized.
        buffer: vec![0; ECHO_BYTES_MAX + 1],
        started: Instant::now(),
        viewed: None,
        is_failing: false,
        flow_meter,
        flows_begun: None,
    };
    task.run().await
}

/// Waits until a socket has a datagram; without one forever.
async fn readable(socket: Option<&Socket>) -> io::Result<()> {
    match socket {
        Some(socket) => socket.readable().await,
        None => future::pending().await,
    }
}

/// Waits until a task has ended; without one forever.
async fn ended<T>(task: &mut Option<JoinHandle<T>>) -> Result<T, JoinError> {
    match task {
        Some(handle) => handle.await,
        None => future::pending().await,
    }
}

/// 128 unpredictable bits; `None` if the operating system supplies none.
#[must_use]
pub fn random_nonce() -> Option<Nonce> {
    let numbers = [BootId::random()?.number(), BootId::random()?.number()];
    let mut nonce = Nonce::default();
    nonce[..8].copy_from_slice(&numbers[0].to_be_bytes());
    nonce[8..].copy_from_slice(&numbers[1].to_be_bytes());
    Some(nonce)
}

impl<R: Role> HealthTask<R> {
    fn now_us(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn at_us(&self, us: u64) -> tokio::time::Instant {
        (self.started + Duration::from_micros(us)).into()
    }

    /// Runs until the table writer has ended.
    async fn run(mut self) -> Result<(), Error> {
        let mut ticks = interval(SAMPLE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut measurement = None;
        let mut round = None;
        let mut flows = None;
        loop {
            let links_due = self.monitor.links.due_us();
            let links_at = self.at_us(links_due.unwrap_or(0));
            let vms_at = self.at_us(self.monitor.next_vms_ms().saturating_mul(1000));
            tokio::select! {
                _ = ticks.tick(), if measurement.is_none() => measurement = Some(self.begin_measurement()),
                result = ended(&mut measurement) => {
                    measurement = None;
                    self.end_measurement(result)?;
                    if flows.is_none() {
                        flows = self.begin_flows();
                    }
                }
                result = ended(&mut flows) => {
                    flows = None;
                    self.end_flows(result);
                }
                // An error is seen again when the socket is used.
                _ = readable(self.sockets.first()) => self.receive(),
                _ = readable(self.sockets.get(1)) => self.receive(),
                () = sleep_until(links_at), if links_due.is_some() => self.probe_links(),
                () = sleep_until(vms_at), if round.is_none() => round = self.begin_vms(),
                result = ended(&mut round) => {
                    round = None;
                    self.end_vms(result);
                }
            }
        }
    }

    /// Begins to measure, beside the probes: the table writer may be busy for long.
    fn begin_measurement(&mut self) -> JoinHandle<Result<Measured, Error>> {
        let is_due = self.viewed.is_none_or(|at| at.elapsed() >= VIEW_INTERVAL);
        if is_due {
            self.viewed = Some(Instant::now());
        }
        tokio::spawn(measure(self.node.clone(), self.netlink.clone(), is_due.then_some(self.view)))
    }

    /// Takes what was measured, and publishes what is found.
    fn end_measurement(&mut self, result: Result<Result<Measured, Error>, JoinError>) -> Result<(), Error> {
        match result {
            Ok(Ok(Measured { view, counters })) => {
                let now_ms = self.now_us() / 1000;
                if let Some((view, states)) = view {
                    let known: BTreeSet<IpAddr> = view.peers.iter().map(|(address, _)| *address).collect();
                    self.responder.set_known(&known);
                    let state = |(name, mtu, has_carrier)| (name, InterfaceState { mtu, has_carrier });
                    self.monitor.set_view(now_ms, view, states.into_iter().map(state).collect());
                }
                self.monitor.sample(now_ms, wall_clock_ms(), counters);
                self.is_failing = false;
            }
            Ok(Err(Error::WriterGone)) => return Err(Error::WriterGone),
            Ok(Err(error)) => self.note_failure(&error),
            Err(error) => self.note_failure(&error),
        }
        let figures = MonitorFigures {
            lost: self.monitor.links.lost(),
            echoes_refused: self.responder.refused(),
            symptoms_refused: self.monitor.refused(),
        };
        let report = self.monitor.report();
        let findings = report.findings.len();
        if self.node.health.publish(report, figures) {
            tracing::info!(findings, "the findings of the health checks have changed");
        }
        Ok(())
    }

    fn note_failure(&mut self, error: &dyn std::error::Error) {
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::warn!(error = error_chain(error), "cannot measure the health of this node; retrying");
        }
    }

    /// Receives answers, and answers requests.
    fn receive(&mut self) {
        for index in 0..self.sockets.len() {
            for _ in 0..RECEIVE_BUDGET {
                match self.sockets[index].receive(&mut self.buffer) {
                    Ok(datagram) => self.handle(index, datagram.from, datagram.length),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // The error is about a datagram that was sent; the next call returns the next datagram.
                    Err(error) => tracing::debug!(%error, "socket of health checks"),
                }
            }
        }
    }

    /// Handles the datagram in the buffer.
    fn handle(&mut self, index: usize, from: SocketAddr, length: usize) {
        let now_us = self.now_us();
        let datagram = &mut self.buffer[..length];
        match echo::parse(datagram) {
            Some(Echo::Answer(nonce)) => self.monitor.links.answer(now_us, from.ip(), &nonce),
            Some(Echo::Request) if self.responder.admits(now_us / 1000, from) => {
                echo::make_answer(datagram);
                if let Err(error) = self.sockets[index].send(from, datagram) {
                    tracing::debug!(%from, %error, "cannot answer a probe");
                }
            }
            Some(Echo::Request) | None => tracing::debug!(%from, length, "datagram refused"),
        }
    }

    /// Sends the probes that are due, and takes those as lost that were not answered in time. What waits in the sockets
    /// is received first: a delay of this task is no delay of the answers.
    fn probe_links(&mut self) {
        let now_us = self.now_us();
        let late_us = self.monitor.links.due_us().map_or(0, |due_us| now_us.saturating_sub(due_us));
        self.receive();
        let mtu = self.monitor.underlay_mtu().unwrap_or(MTU_MIN);
        let long = |headers: u32| mtu.saturating_sub(headers) as usize;
        let probes =
            self.monitor.links.take_due(self.now_us(), (long(HEADERS.0), long(HEADERS.1)), random_nonce);
        if late_us >= LATE_US {
            self.monitor.links.discard();
        }
        for probe in probes {
            let to = SocketAddr::new(probe.to, self.port);
            let socket = self.sockets.iter().find(|socket| socket.local.is_ipv4() == to.is_ipv4());
            let Some(socket) = socket else { continue };
            // A probe that cannot be sent counts as lost, for example because it exceeds the MTU.
            if let Err(error) = socket.send(to, &echo::request(&probe.nonce, probe.bytes)) {
                tracing::debug!(%to, %error, "cannot send a probe");
            }
        }
    }

    /// Begins to measure which flows are the heaviest, if that is to be known.
    fn begin_flows(&mut self) -> Option<JoinHandle<(FlowMeter, Vec<HeavyFlow>)>> {
        let is_due = self.flows_begun.is_none_or(|begun| begun.elapsed() >= FLOWS_INTERVAL);
        if !is_due || !self.monitor.wants_flows() {
            return None;
        }
        let mut meter = self.flow_meter.take()?;
        self.flows_begun = Some(Instant::now());
        Some(spawn_blocking(move || {
            let flows = meter();
            (meter, flows)
        }))
    }

    fn end_flows(&mut self, result: Result<(FlowMeter, Vec<HeavyFlow>), JoinError>) {
        match result {
            Ok((meter, flows)) => {
                self.flow_meter = Some(meter);
                self.monitor.set_flows(flows);
            }
            Err(error) => self.note_failure(&error),
        }
    }

    fn begin_vms(&mut self) -> Option<JoinHandle<Result<VmRound, sluice_sys::Error>>> {
        let probes = self.monitor.begin_vms(self.now_us() / 1000);
        if probes.is_empty() {
            // What was found of VMs that are not here any more ends.
            self.monitor.end_vms(wall_clock_ms(), &BTreeSet::new(), &BTreeSet::new());
            return None;
        }
        let number = self.vm_rounds;
        self.vm_rounds = number.wrapping_add(1);
        Some(spawn_blocking(move || probe_vms(&probes, number)))
    }

    fn end_vms(&mut self, result: Result<Result<VmRound, sluice_sys::Error>, JoinError>) {
        match result {
            Ok(Ok((asked, replies))) => self.monitor.end_vms(wall_clock_ms(), &asked, &replies),
            Ok(Err(error)) => self.note_failure(&error),
            Err(error) => self.note_failure(&error),
        }
    }
}

/// Sends probes to VMs and collects their replies. It blocks: closing a socket waits until no processor uses it. `number`
/// counts the rounds.
fn probe_vms(probes: &[VmProbe], number: usize) -> Result<VmRound, sluice_sys::Error> {
    let mut replies = BTreeSet::new();
    ask(0, probes, &mut replies)?;
    let answered: BTreeSet<_> = replies.iter().map(|reply| (reply.ifindex, reply.address)).collect();
    let silent = probes.iter().filter(|probe| !answered.contains(&(probe.ifindex, probe.address)));
    let (again, mut undecided) = vms::retries(silent.map(|probe| probe.ifindex).collect(), number);
    for ifindex in again {
        let of_port: Vec<_> = probes.iter().filter(|probe| probe.ifindex == ifindex).cloned().collect();
        // The interface may have been removed meanwhile.
        if let Err(error) = ask(ifindex, &of_port, &mut replies) {
            tracing::debug!(ifindex, error = error_chain(&error), "cannot probe a VM again");
            undecided.insert(ifindex);
        }
    }
    let decided = probes.iter().filter(|probe| !undecided.contains(&probe.ifindex));
    Ok((decided.map(|probe| (probe.ifindex, probe.address)).collect(), replies))
}

/// Sends probes, and adds the replies that an interface receives until all are there or [`VM_WAIT`] is over. Index 0: all
/// interfaces.
fn ask(ifindex: u32, probes: &[VmProbe], replies: &mut BTreeSet<VmReply>) -> Result<(), sluice_sys::Error> {
    let socket = PacketSocket::tap(ifindex)?;
    let asked: BTreeSet<(u32, IpAddr)> = probes.iter().map(|probe| (probe.ifindex, probe.address)).collect();
    let mut waiting: BTreeSet<(u32, IpAddr)> = BTreeSet::new();
    for batch in probes.chunks(VM_BATCH) {
        for probe in batch {
            match socket.send(probe.ifindex, &probe.frame) {
                Ok(()) => {
                    waiting.insert((probe.ifindex, probe.address));
                }
                Err(error) => {
                    tracing::debug!(
                        ifindex = probe.ifindex,
                        error = error_chain(&error),
                        "cannot send a probe to a VM"
                    );
                }
            }
        }
        // The replies of many VMs would not fit in the socket.
        for _ in 0..RECEIVE_BUDGET {
            if !receive_reply(&socket, &asked, &mut waiting, replies) {
                break;
            }
        }
    }
    let deadline = Instant::now() + VM_WAIT;
    while !waiting.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        if !receive_reply(&socket, &asked, &mut waiting, replies) {
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
            // If it fails, the next turn finds out whether there is a frame.
            let _ = poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], timeout);
        }
    }
    Ok(())
}

/// Receives a frame, and adds it to the replies if it answers what was asked. Returns whether the socket may have more.
fn receive_reply(
    socket: &PacketSocket,
    asked: &BTreeSet<(u32, IpAddr)>,
    waiting: &mut BTreeSet<(u32, IpAddr)>,
    replies: &mut BTreeSet<VmReply>,
) -> bool {
    let mut buffer = [0; REPLY_BYTES];
    match socket.receive(&mut buffer) {
        Ok(Some((from, frame))) => {
            if let Some(reply) = vms::reply(from, frame).filter(|it| asked.contains(&(from, it.address))) {
                waiting.remove(&(from, reply.address));
                replies.insert(reply);
            }
        }
        Ok(None) => return false,
        // An interface went down; the socket stays usable.
        Err(error) => tracing::debug!(error = error_chain(&error), "cannot receive a reply of a VM"),
    }
    true
}
