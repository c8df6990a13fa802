//! The thread that probes the VMs of members: sends the frames that are due, and takes the replies. This file changes with the
//! frames, or with the order in which they are handled.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::net::IpAddr;
use std::sync::mpsc::{Sender, TryRecvError};
use std::time::{Duration, Instant};

use sluice_agent::StateReports;
use sluice_agent::health::vms::{self, VmProbe};
use sluice_agent::liveness::{Liveness, LivenessConfig};
use sluice_agent::mailbox::Inbox;
use sluice_southbound::MemberState;
use sluice_sys::{PacketSocket, Scheduling, raise_thread_priority};
use sluice_types::InstanceId;

use super::{Change, Member};

/// Longest wait without a member.
const IDLE: Duration = Duration::from_secs(3600);
/// Shortest mean time between two probes of the host: with more members each of them is probed less often. A probe takes about
/// 15 us of a processor with its reply, so all of them take less than a third of one.
const SPACING_US: u64 = 50;
/// Replies that are read before the next probe of a VM. One that sends more delays its own.
const REPLIES_MAX: usize = 64;
/// Longest part of a reply that is read.
const REPLY_BYTES: usize = 128;

/// The probes of a member.
struct Probed {
    member: Member,
    frames: Vec<VmProbe>,
    /// `None` if nothing can be probed.
    liveness: Option<Liveness>,
}

/// State of the thread.
pub struct ProbeThread {
    inbox: Inbox<Change>,
    /// Takes the sockets that are to be closed.
    closed: Sender<PacketSocket>,
    reports: StateReports<MemberState>,
    seed: u64,
    /// Origin of the clock.
    started: Instant,
    members: BTreeMap<InstanceId, Probed>,
    /// When each member is probed next.
    due: BTreeSet<(u64, InstanceId)>,
    sockets: BTreeMap<u32, PacketSocket>,
}

impl ProbeThread {
    /// For changes from `inbox`. Sockets that are not needed go to `closed`. `seed` spreads the probes over time.
    pub fn new(
        inbox: Inbox<Change>,
        closed: Sender<PacketSocket>,
        reports: StateReports<MemberState>,
        seed: u64,
    ) -> Self {
        Self {
            inbox,
            closed,
            reports,
            seed,
            started: Instant::now(),
            members: BTreeMap::new(),
            due: BTreeSet::new(),
            sockets: BTreeMap::new(),
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
                "no real-time priority (CAP_SYS_NICE): while this machine is busy, VMs of members of services \
                 are found silent later"
            ),
        }
        loop {
            let now_us = self.now_us();
            let wait =
                self.due.first().map_or(IDLE, |(due, _)| Duration::from_micros(due.saturating_sub(now_us)));
            // Replies do not wake the thread: they are read before the next probe, so a VM that floods its socket takes no time.
            if !self.inbox.wait(iter::empty(), wait) {
                return;
            }
            loop {
                match self.inbox.take() {
                    Ok(change) => self.change(change),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            if self.probe_due(self.now_us()) {
                self.publish();
            }
        }
    }

    fn change(&mut self, Change { members, sockets }: Change) {
        self.sockets.extend(sockets);
        let now_us = self.now_us();
        let spacing_us = members.len() as u64 * SPACING_US;
        let interval_us = |member: &Member| (u64::from(member.probe.interval_ms) * 1000).max(spacing_us);
        let mut before = std::mem::take(&mut self.members);
        for member in members {
            let instance = member.instance;
            let known = before.remove(&instance).filter(|known| known.member == member);
            let mut probed = known.unwrap_or_else(|| {
                let frames = vms::probes(member.port.as_slice());
                let config =
                    LivenessConfig { interval_us: interval_us(&member), failures: member.probe.failures };
                let seed = self.seed ^ instance.get().wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let liveness = (!frames.is_empty()).then(|| Liveness::new(config, now_us, seed));
                Probed { member, frames, liveness }
            });
            // The limit holds for members that were added one by one as well.
            if let Some(liveness) = &mut probed.liveness {
                liveness.set_interval(interval_us(&probed.member));
            }
            self.members.insert(instance, probed);
        }
        let due = |(instance, probed): (&InstanceId, &Probed)| {
            Some((probed.liveness.as_ref()?.due_us(), *instance))
        };
        self.due = self.members.iter().filter_map(due).collect();
        let used: BTreeSet<u32> =
            self.members.values().flat_map(|probed| &probed.frames).map(|frame| frame.ifindex).collect();
        for (_, socket) in self.sockets.extract_if(.., |ifindex, _| !used.contains(ifindex)) {
            // Otherwise it is closed here.
            let _ = self.closed.send(socket);
        }
        self.publish();
    }

    /// Probes the members for which it is time. Returns whether one of them has changed its state.
    fn probe_due(&mut self, now_us: u64) -> bool {
        let mut has_changed = false;
        // By one time, so the loop ends.
        while let Some(&(due_us, instance)) = self.due.first() {
            if due_us > now_us {
                break;
            }
            self.due.pop_first();
            let Some(probed) = self.members.get_mut(&instance) else { continue };
            let Some(liveness) = &mut probed.liveness else { continue };
            let before = liveness.verdict().map(|verdict| verdict.up);
            if let Some(port) = &probed.member.port
                && let Some(socket) = self.sockets.get(&port.ifindex)
            {
                let addresses: BTreeSet<IpAddr> = probed.frames.iter().map(|frame| frame.address).collect();
                let is_answered = |frame: &[u8]| {
                    let reply = vms::reply(port.ifindex, frame);
                    reply.is_some_and(|reply| reply.mac == port.mac && addresses.contains(&reply.address))
                };
                if take_replies(socket, is_answered) {
                    liveness.answer_last(now_us);
                }
                liveness.probe(now_us);
                for frame in &probed.frames {
                    // One that cannot be sent counts as not answered: the interface is down, or gone.
                    if let Err(error) = socket.send(frame.ifindex, &frame.frame) {
                        tracing::trace!(%instance, %error, "cannot probe the VM of a member");
                    }
                }
            } else {
                liveness.probe(now_us);
            }
            has_changed |= before != liveness.verdict().map(|verdict| verdict.up);
            self.due.insert((liveness.due_us(), instance));
        }
        has_changed
    }

    /// Publishes the states of all members. One that was probed too seldom yet has none.
    fn publish(&self) {
        let state = |(instance, probed): (&InstanceId, &Probed)| {
            let (up, evidence) = match (&probed.liveness, &probed.member.port) {
                (_, None) => (false, "no interface".to_owned()),
                (None, Some(_)) => (false, "no address that can be probed".to_owned()),
                (Some(_), Some(port)) if !self.sockets.contains_key(&port.ifindex) => {
                    (false, "its interface cannot be probed".to_owned())
                }
                (Some(liveness), Some(_)) => liveness.verdict().map(|it| (it.up, it.evidence.clone()))?,
            };
            Some(MemberState { instance: *instance, up, evidence })
        };
        self.reports.set(self.members.iter().filter_map(state).collect());
    }
}

/// Reads the replies that wait in a socket. Returns whether `is_answer` is true for one of them.
fn take_replies(socket: &PacketSocket, is_answer: impl Fn(&[u8]) -> bool) -> bool {
    let mut buffer = [0; REPLY_BYTES];
    let mut found = false;
    for _ in 0..REPLIES_MAX {
        match socket.receive(&mut buffer) {
            Ok(Some((_, frame))) => found |= is_answer(frame),
            Ok(None) => break,
            // An interface went down; the socket stays usable.
            Err(error) => tracing::trace!(%error, "cannot receive a reply of a VM"),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_agent::health::WatchedPort;
    use sluice_agent::mailbox::mailbox;
    use sluice_southbound::MemberProbe;
    use sluice_types::MacAddr;

    const INTERVAL_MS: u32 = 10;

    fn member(number: u8) -> Member {
        let instance = InstanceId::new(number.into());
        let port = WatchedPort {
            ifindex: 50 + u32::from(number),
            ifname: format!("tap{number}"),
            instance,
            mac: MacAddr::local(number.into()),
            ipv4: Some(([10, 0, 0, number].into(), [10, 0, 0, 254].into())),
            ipv6: None,
        };
        let probe = MemberProbe { interval_ms: INTERVAL_MS, failures: 3, epoch: 7 };
        Member { instance, probe, port: Some(port) }
    }

    fn thread(reports: StateReports<MemberState>) -> ProbeThread {
        let (_changes, inbox) = mailbox().unwrap();
        ProbeThread::new(inbox, std::sync::mpsc::channel().0, reports, 7)
    }

    /// Catches members that are added one by one and keep the interval of few members, which would take the whole processor.
    #[test]
    fn members_that_are_added_singly_are_probed_as_seldom_as_all_at_once() {
        let mut thread = thread(StateReports::default());
        for number in 1..=250 {
            thread.change(Change { members: (1..=number).map(member).collect(), sockets: Vec::new() });
        }
        let least_us = 250 * SPACING_US;
        assert!(least_us > u64::from(INTERVAL_MS) * 1000);
        for probed in thread.members.values_mut() {
            let liveness = probed.liveness.as_mut().unwrap();
            let now_us = liveness.due_us();
            liveness.probe(now_us);
            assert!(liveness.due_us() - now_us >= least_us * 3 / 4);
        }
    }

    /// Catches a member that is said to have no interface, or a silent VM, while its interface has no socket.
    #[test]
    fn a_member_without_a_socket_says_why_it_is_down() {
        let reports = StateReports::default();
        let mut thread = thread(reports.clone());
        let evidence =
            || reports.get().into_iter().map(|state| (state.up, state.evidence)).collect::<Vec<_>>();
        thread.change(Change { members: vec![member(1)], sockets: Vec::new() });
        let because = "its interface cannot be probed".to_owned();
        assert_eq!(evidence(), [(false, because.clone())]);
        for _ in 0..5 {
            let (due_us, _) = *thread.due.first().unwrap();
            thread.probe_due(due_us);
        }
        thread.publish();
        assert_eq!(evidence(), [(false, because)]);
        thread.change(Change { members: vec![Member { port: None, ..member(1) }], sockets: Vec::new() });
        assert_eq!(evidence(), [(false, "no interface".to_owned())]);
    }
}
