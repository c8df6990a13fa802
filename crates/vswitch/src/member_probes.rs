//! Probes of the VMs of members of services, by ARP and neighbor discovery, each on its own interface. This file changes with what
//! decides which VMs are probed.
//!
//! A thread with a real-time priority probes ([`thread`]); nothing else that the agent does delays it. The task here tells it
//! which VMs there are, and opens the sockets, because to open or close one waits until no processor uses it.
//!
//! A VM is judged by what comes from its interface alone, which has a socket of its own: no other VM can answer for it, or
//! fill the socket. Replies are absorbed by the packet program, as those to health checks are.

mod thread;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use sluice_agent::health::WatchedPort;
use sluice_agent::mailbox::{Mailbox, mailbox};
use sluice_agent::{Error, Node, StateReports, error_chain, random_nonce};
use sluice_southbound::{MemberProbe, MemberState};
use sluice_sys::PacketSocket;
use sluice_types::InstanceId;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use crate::health::watched_port;
use crate::port_registry::PortRegistry;
use crate::role::HostRole;
use thread::ProbeThread;

/// Interval at which attachments are read, besides the changes of instances.
const REVIEW_INTERVAL: Duration = Duration::from_millis(500);

/// An instance that is a member of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Member {
    instance: InstanceId,
    probe: MemberProbe,
    /// `None` without an interface.
    port: Option<WatchedPort>,
}

/// The members of this host from now on, and the sockets of interfaces that had none.
#[derive(Debug)]
struct Change {
    members: Vec<Member>,
    sockets: Vec<(u32, PacketSocket)>,
}

/// The instances that are members, with their interfaces.
fn members(registry: &PortRegistry) -> Vec<Member> {
    let mut members: Vec<Member> = registry
        .instances()
        .filter_map(|port| Some(Member { instance: port.instance, probe: port.options.member?, port: None }))
        .collect();
    if members.is_empty() {
        return members;
    }
    let attached: BTreeMap<InstanceId, _> =
        registry.attachments().iter().map(|it| (it.1.instance, it)).collect();
    for member in &mut members {
        let port = registry.instance(member.instance).filter(|port| registry.is_open(port));
        let found = port.zip(attached.get(&member.instance));
        member.port = found.map(|(port, (ifname, attachment))| watched_port(ifname, attachment, port));
    }
    members
}

/// The running thread, and what tells it which VMs there are. The thread ends when this is dropped.
pub struct MemberProbes {
    node: Arc<Node<HostRole>>,
    /// Changes of the instances.
    instances: watch::Receiver<u64>,
    /// `None` only while this is dropped.
    changes: Option<Mailbox<Change>>,
    threads: Vec<JoinHandle<()>>,
    /// The members that the thread knows.
    known: Vec<Member>,
    /// Interfaces whose sockets the thread has.
    opened: BTreeSet<u32>,
}

impl MemberProbes {
    /// Starts the thread, which publishes the states in `reports`. `instances` notifies changes of the instances of the host.
    ///
    /// # Errors
    /// If the system has no sockets, threads or random numbers.
    pub fn start(
        reports: StateReports<MemberState>,
        node: Arc<Node<HostRole>>,
        instances: watch::Receiver<u64>,
    ) -> Result<Self, Error> {
        let failed = || Error::io("start the thread that probes members of services");
        let nonce = random_nonce().ok_or_else(|| io::Error::other("no random bytes")).map_err(failed())?;
        let (changes, inbox) = mailbox().map_err(failed())?;
        let (closed, to_close) = std::sync::mpsc::channel::<PacketSocket>();
        let spawn = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let seed = nonce.iter().fold(0, |seed: u64, byte| seed << 4 ^ u64::from(*byte));
        let probing = ProbeThread::new(inbox, closed, reports, seed);
        let probing = spawn("member-probes").spawn(move || probing.run()).map_err(failed())?;
        // To close a socket takes as long as to open one.
        let closing = spawn("member-sockets").spawn(move || to_close.into_iter().for_each(drop));
        let threads = vec![probing, closing.map_err(failed())?];
        let (known, opened) = (Vec::new(), BTreeSet::new());
        Ok(Self { node, instances, changes: Some(changes), threads, known, opened })
    }

    /// Follows the instances and their interfaces until the table writer has ended.
    pub async fn run(mut self) -> Result<(), Error> {
        let mut ticks = interval(REVIEW_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                Ok(()) = self.instances.changed() => {}
            }
            let members = self.node.writer.run(|applier| members(&applier.role.ports)).await?;
            self.follow(members).await;
        }
    }

    /// Tells the thread about other members.
    async fn follow(&mut self, members: Vec<Member>) {
        let interfaces: BTreeSet<u32> =
            members.iter().filter_map(|member| Some(member.port.as_ref()?.ifindex)).collect();
        let missing: Vec<u32> = interfaces.difference(&self.opened).copied().collect();
        if missing.is_empty() && members == self.known {
            return;
        }
        let open = move || missing.into_iter().map(|ifindex| (ifindex, PacketSocket::tap_port(ifindex)));
        let opened = spawn_blocking(move || open().collect::<Vec<_>>()).await.unwrap_or_default();
        let mut sockets = Vec::new();
        for (ifindex, socket) in opened {
            match socket {
                Ok(socket) => sockets.push((ifindex, socket)),
                // It may have been removed a moment ago. The next review tries it again.
                Err(error) => {
                    tracing::debug!(
                        ifindex,
                        error = error_chain(&error),
                        "cannot probe a member's interface"
                    );
                }
            }
        }
        self.opened.extend(sockets.iter().map(|(ifindex, _)| *ifindex));
        self.opened.retain(|ifindex| interfaces.contains(ifindex));
        if members == self.known && sockets.is_empty() {
            return;
        }
        self.known.clone_from(&members);
        if let Some(changes) = &self.changes {
            changes.send(Change { members, sockets });
        }
    }
}

impl Drop for MemberProbes {
    fn drop(&mut self) {
        // The thread that probes ends, and then the one that closes its sockets.
        self.changes = None;
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread that probes members of services has panicked");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port_registry::Attachment;
    use crate::scopes::{Scopes, port_maps};
    use sluice_southbound::{Port, PortOptions};
    use sluice_tables::sessions::SessionShares;
    use sluice_tables::{Immediate, Memory, NodeTables, Sizes, Vrf};
    use sluice_types::{MacAddr, Vni};

    const PROBE: MemberProbe = MemberProbe { interval_ms: 10, failures: 3, epoch: 7 };

    fn port(number: u64, member: Option<MemberProbe>) -> Port {
        Port {
            instance: InstanceId::new(number),
            name: format!("svc/fw-{number}"),
            vni: Vni::new(1).unwrap(),
            mac: MacAddr::local(number),
            ipv4: Some(format!("10.0.0.{number}/24").parse().unwrap()),
            router4: Some("10.0.0.1".parse().unwrap()),
            ipv6: None,
            ipv6_dhcp: false,
            mtu: 1430,
            dns4: Vec::new(),
            identity: 0,
            options: PortOptions { member, ..PortOptions::default() },
            migration: None,
        }
    }

    /// Catches an instance that is no member and is probed, and a member without an interface that is not reported.
    #[test]
    fn members_are_probed_on_their_own_interfaces() {
        let directory = tempfile::tempdir().unwrap();
        let scopes = Scopes::new(SessionShares::anonymous().unwrap(), port_maps(), 100);
        let (mut registry, _) = PortRegistry::load(directory.path(), scopes, 0).unwrap();
        let memory = Memory::anonymous(1 << 14).unwrap();
        let mut tables = NodeTables::create(memory, Immediate, Sizes::default()).unwrap();
        let vni = Vni::new(1).unwrap();
        let vrf = Vrf { vni, mtu: 1430, router4: None, router6: None, group: None, elephant_bytes: None };
        tables.upsert_vrf(&vrf).unwrap();
        assert_eq!(members(&registry), []);
        for port in [port(2, Some(PROBE)), port(3, None), port(4, Some(PROBE))] {
            registry.upsert_instance(&mut tables, port).unwrap();
        }
        for (ifindex, number) in [(50, 2), (51, 3)] {
            let instance = InstanceId::new(number);
            let attachment = Attachment { ifindex, instance, peer_redirect: false, scope: 0 };
            registry.attach(&mut tables, &format!("tap{ifindex}"), attachment).unwrap();
        }
        let found = members(&registry);
        assert_eq!(found.iter().map(|it| it.instance.get()).collect::<Vec<_>>(), [2, 4]);
        assert!(found.iter().all(|member| member.probe == PROBE));
        let interfaces = found.iter().map(|it| it.port.as_ref().map(|port| (port.ifindex, port.mac)));
        assert_eq!(interfaces.collect::<Vec<_>>(), [Some((50, MacAddr::local(2))), None]);
    }
}
