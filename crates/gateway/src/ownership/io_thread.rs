//! The ownership thread: feeds datagrams, commands and the clock to the local member, and performs its
//! actions. It waits for nothing but its sockets. This file changes when an action is performed differently.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};
use sluice_cluster::{AnnounceReason, Incident, MESSAGE_BYTES_MAX, Readiness};
use sluice_sys::{Scheduling, raise_thread_priority};
use sluice_tables::AgentHeartbeat;

use tokio::sync::{Notify, watch};

use super::Command;
use super::announce::VipAnnouncer;
use super::handover::{Announcements, TableVips, Written};
use super::local_member::{Action, Event, LocalMember, Now, OwnedVips};
use super::saved_state::SavedState;
use super::sockets::Sockets;
use super::status::SharedOwnershipStatus;
use super::view::ClusterView;
use super::witness::{Witness, WitnessNeighbor};
use sluice_agent::mailbox::Inbox;

/// Datagrams received from a socket before the other sockets get their turn.
const BURST: usize = 64;
/// Size of the receive buffer. Longer datagrams are not messages.
const DATAGRAM_BYTES: usize = MESSAGE_BYTES_MAX + 128;
/// Interval at which sockets are opened that could not be opened before.
const OPEN_SOCKETS_US: u64 = 500_000;
/// Shortest time between two updates of the shared status.
const STATUS_US: u64 = 50_000;
/// Time after which a state that could not be written is written again.
const SAVE_RETRY: Duration = Duration::from_secs(5);
/// Interval of the heartbeats by which the packet programs know that this agent is healthy.
const BEAT_US: u64 = 100_000;
const _: () = assert!(BEAT_US * 1_000 * 4 < AgentHeartbeat::TIMEOUT_NS);
/// Interval at which an agent that is not healthy checks whether it is again.
const BEAT_RETRY_US: u64 = 4_000;
/// Time after which a full queue of the table writer is tried again.
const WRITER_RETRY_US: u64 = 1_000;

/// Makes the tables answer for these vIPs, and says when they do. Returns false if the table writer's queue is full.
pub type SetOwned = Box<dyn FnMut(&OwnedVips, Written) -> bool + Send>;

/// The current time.
pub fn now() -> Now {
    // Linux has this clock since 2.6.39, and reading it cannot fail.
    let boot = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default();
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now {
        boot_us: u64::try_from(boot.as_micros()).unwrap_or(u64::MAX),
        wall_ms: u64::try_from(wall.as_millis()).unwrap_or(u64::MAX),
    }
}

/// State of the thread.
pub struct IoThread {
    pub member: LocalMember,
    pub sockets: Sockets,
    pub announcer: Box<dyn VipAnnouncer>,
    pub witness: Witness,
    pub set_owned: SetOwned,
    pub heartbeat: AgentHeartbeat,
    /// Commands. The thread ends when the other end is dropped.
    pub inbox: Inbox<Command>,
    pub saver: Sender<SavedState>,
    pub status: SharedOwnershipStatus,
    /// Addresses of the other gateways.
    pub peers: watch::Sender<Vec<IpAddr>>,
    /// What others need to know about the cluster.
    pub view: watch::Sender<ClusterView>,
    /// Notified when this gateway was isolated and is answered again.
    pub reconnected: Arc<Notify>,
    /// The vIPs for which the tables answer, and those that the table writer has not taken yet.
    pub vips: TableVips,
    pub unset: Option<OwnedVips>,
    pub announcements: Announcements,
    /// Times at which sockets, heartbeat and status are due.
    pub open_sockets_us: u64,
    pub beat_us: u64,
    pub status_us: u64,
}

impl IoThread {
    /// Runs until the other end of the inbox is dropped.
    pub fn run(mut self) {
        match raise_thread_priority() {
            Scheduling::RealTime => {}
            scheduling => tracing::warn!(
                ?scheduling,
                "no real-time priority (CAP_SYS_NICE): while this machine is busy, the other gateways may \
                 believe that this one has failed"
            ),
        }
        self.update_peers();
        while self.turn() {}
    }

    /// Waits for an input and handles all inputs. Returns false when the thread must end.
    fn turn(&mut self) -> bool {
        if !self.wait() {
            return false;
        }
        self.receive();
        let replies = self.witness.receive(now().boot_us);
        if let Some(token) = replies.token {
            self.handle(Event::WitnessReply(token));
        }
        for address in replies.gateways {
            self.handle(Event::GatewayReply(address));
        }
        let continues = self.handle_commands();
        if now().boot_us >= self.member.due_us() {
            self.handle(Event::Timer);
        }
        self.view.send_if_modified(|known| self.member.update_view(now(), known));
        self.do_periodic_work();
        continues
    }

    /// Waits until an input arrives or something is due. Returns false when the thread must end.
    fn wait(&mut self) -> bool {
        let now_us = now().boot_us;
        let mut due_us = self.member.due_us().min(self.open_sockets_us).min(self.beat_us);
        if self.unset.is_some() {
            due_us = due_us.min(now_us + WRITER_RETRY_US);
        }
        due_us = due_us.min(self.vips.due_us().unwrap_or(u64::MAX));
        due_us = due_us.min(self.announcements.due_us(now_us).unwrap_or(u64::MAX));
        let wait = Duration::from_micros(due_us.saturating_sub(now_us));
        self.inbox.wait(self.sockets.descriptors().chain(self.witness.descriptors()), wait)
    }

    fn receive(&mut self) {
        let mut packet = [0; DATAGRAM_BYTES];
        for index in 0..self.sockets.gateway_sockets() {
            for _ in 0..BURST {
                match self.sockets.receive_from_gateway(index, &mut packet) {
                    Ok((local, from, bytes)) => {
                        self.handle(Event::Datagram { local, from, packet: &packet[..bytes] });
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    // An ICMP error about an earlier datagram.
                    Err(_) => {}
                }
            }
        }
        for _ in 0..BURST {
            match self.sockets.receive_from_controller(&mut packet) {
                Ok((local, from, bytes)) => {
                    self.handle(Event::Datagram { local, from, packet: &packet[..bytes] });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {}
            }
        }
    }

    /// Handles all commands. Returns false if their sender was dropped.
    fn handle_commands(&mut self) -> bool {
        loop {
            let event = match self.inbox.take() {
                Ok(Command::Plan(plan)) => {
                    self.handle(Event::Plan(plan));
                    self.update_peers();
                    continue;
                }
                Ok(Command::LeaveCluster) => {
                    self.handle(Event::Deleted);
                    self.update_peers();
                    continue;
                }
                Ok(Command::Keys(keys)) => Event::Keys(keys),
                Ok(Command::Controller(address)) => {
                    self.sockets.set_controller(address);
                    Event::Controller(address.map(|address| address.ip()))
                }
                Ok(Command::Load(load)) => Event::Load(load),
                Ok(Command::Tables(revision)) => Event::Tables(revision),
                Ok(Command::Copies(complete)) => Event::Copies(complete),
                Ok(Command::Neighbors(neighbors)) => {
                    let plan = self.member.plan();
                    let is_gateway =
                        |it: &WitnessNeighbor| plan.is_some_and(|plan| plan.is_member(it.address));
                    let (gateways, witnesses) = neighbors.into_iter().partition(is_gateway);
                    self.witness.set_neighbors(witnesses, gateways);
                    continue;
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            };
            self.handle(event);
        }
    }

    /// Handles an event: does first what other nodes wait for, then updates the tables, then writes the log.
    fn handle(&mut self, event: Event<'_>) {
        let actions = self.member.handle(now(), event);
        let (mut changes, mut incidents) = (Vec::new(), Vec::new());
        for action in actions {
            match action {
                Action::Send(receiver, packet) => {
                    if let Err(error) = self.sockets.send(receiver, &packet)
                        && error.kind() != ErrorKind::WouldBlock
                    {
                        tracing::trace!(?receiver, %error, "cannot send a datagram");
                    }
                }
                Action::Announce(address, mac, reason) => {
                    match reason {
                        AnnounceReason::TakenOver { .. } => self.announcer.announce(address, mac),
                        _ => self.announcements.add(now().boot_us, address, mac),
                    }
                    changes.push((address, Some(reason)));
                }
                Action::Withdraw(address, mac) => {
                    self.announcements.cancel(address);
                    self.announcer.withdraw(address, mac);
                    changes.push((address, None));
                }
                Action::ProbeWitness(token, until_us) => self.witness.probe(token, until_us),
                Action::ProbeGateway(address, until_us) => self.witness.probe_gateway(address, until_us),
                Action::SetOwned(owned) => self.unset = Some(self.vips.set(now().boot_us, owned)),
                // The saving thread ends only after this one.
                Action::Save(saved) => drop(self.saver.send(*saved)),
                Action::Report(incident) => incidents.push(incident),
            }
        }
        self.update_tables();
        self.announce_waiting();
        for (vip, reason) in changes {
            log_change(vip, reason);
        }
        if incidents.contains(&Incident::Reconnected) {
            self.reconnected.notify_one();
        }
        incidents.into_iter().for_each(log_incident);
    }

    fn update_peers(&self) {
        let now = self.member.peers();
        self.peers.send_if_modified(|known| std::mem::replace(known, now.clone()) != now);
    }

    fn update_tables(&mut self) {
        if let Some(owned) = &self.unset
            && (self.set_owned)(owned, self.announcements.order())
        {
            self.unset = None;
            // The shared status follows at once.
            self.status_us = 0;
        }
    }

    fn announce_waiting(&mut self) {
        for (vip, mac) in self.announcements.take(now().boot_us) {
            self.announcer.announce(vip, mac);
        }
    }

    /// Sends the packet programs a heartbeat if this agent is healthy. Returns false if it is not, so that
    /// other gateways may have its vIPs.
    fn beat(&self) -> bool {
        if !self.member.is_ready() {
            return false;
        }
        if self.member.peers().is_empty() {
            self.heartbeat.disable();
        } else {
            // Reading this clock cannot fail either.
            let clock = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
            self.heartbeat.beat(u64::try_from(clock.as_nanos()).unwrap_or(u64::MAX));
        }
        true
    }

    fn do_periodic_work(&mut self) {
        let now = now();
        if let Some(vips) = self.vips.expire(now.boot_us) {
            self.unset = Some(vips);
        }
        self.update_tables();
        self.announce_waiting();
        if now.boot_us >= self.open_sockets_us {
            self.open_sockets_us = now.boot_us + OPEN_SOCKETS_US;
            self.sockets.open();
        }
        if now.boot_us >= self.beat_us {
            self.beat_us = now.boot_us + if self.beat() { BEAT_US } else { BEAT_RETRY_US };
        }
        if now.boot_us >= self.status_us && self.status.try_set(|| self.member.status(now)) {
            self.status_us = now.boot_us + STATUS_US;
        }
    }
}

/// Logs an announcement, or, without a reason, a withdrawal.
fn log_change(vip: IpAddr, announced: Option<AnnounceReason>) {
    match announced {
        Some(AnnounceReason::TakenOver { from }) => tracing::warn!(%vip, %from, "vIP taken over"),
        Some(AnnounceReason::Repeat | AnnounceReason::Refresh | AnnounceReason::Contested) => {}
        Some(reason) => tracing::info!(%vip, ?reason, "vIP announced"),
        None => tracing::info!(%vip, "vIP given up"),
    }
}

fn log_incident(incident: Incident) {
    match incident {
        Incident::Drained => tracing::info!("drained: this gateway answers for no vIP any more"),
        Incident::FalseAlarm { peer, silence_us } => {
            tracing::warn!(
                %peer, silence_us,
                "gateway was believed dead and is not; its timeout is longer from now on"
            );
        }
        Incident::Paused { for_us } => tracing::warn!(for_us, "this agent did not run when it was due"),
        Incident::Tables(Readiness::Current) => tracing::info!("the forwarding tables are current"),
        Incident::Tables(Readiness::Behind) => tracing::warn!(
            "the forwarding tables do not receive changes that other gateways have: these take over vIPs"
        ),
        Incident::Tables(Readiness::Partial) => {
            tracing::warn!(
                "the forwarding tables are incomplete: gateways that have all entries take over vIPs"
            );
        }
        Incident::Isolated => tracing::warn!("isolated: no gateway, no witness and no controller answers"),
        Incident::Reconnected => tracing::info!("not isolated any more"),
    }
}

/// Writes the newest of the states that wait, until their sender is dropped. A state that could not be written is
/// written again after a while.
pub fn save_states(state_dir: &Path, states: &Receiver<SavedState>) {
    let mut unwritten: Option<SavedState> = None;
    loop {
        let received = match unwritten {
            None => states.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(_) => states.recv_timeout(SAVE_RETRY),
        };
        let mut newest = match (received, unwritten.take()) {
            (Ok(state), _) | (Err(RecvTimeoutError::Timeout), Some(state)) => state,
            (Err(_), _) => return,
        };
        while let Ok(newer) = states.try_recv() {
            newest = newer;
        }
        if let Err(error) = newest.write(state_dir) {
            tracing::error!(state_dir = %state_dir.display(), %error, "cannot save the owners of vIPs");
            unwritten = Some(newest);
        }
    }
}
