//! Probes of the hosts that have members of services, by echo requests of ICMP and ICMPv6: a host that does not answer is dead, or
//! cannot be reached. The kernels of hosts answer, so the death of an agent is not that of its host. This file changes with what
//! decides which hosts are probed.
//!
//! A thread with a real-time priority probes ([`thread`]); nothing else that the agent does delays it. The hosts are saved: an agent
//! that starts again continues with its tables, and the controller sends it changes only.

mod echo;
mod saved;
mod thread;

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use sluice_agent::mailbox::{Mailbox, mailbox};
use sluice_agent::underlay::Vteps;
use sluice_agent::{Error, StateReports, random_nonce};
use sluice_southbound::HostState;

use thread::HostThread;

/// The running thread. It ends when this is dropped.
pub struct HostProbes {
    state_dir: PathBuf,
    /// `None` only while this is dropped.
    hosts: Option<Mailbox<Vec<IpAddr>>>,
    reports: StateReports<HostState>,
    thread: Option<JoinHandle<()>>,
}

impl HostProbes {
    /// Starts the thread in the current network namespace. It probes from these addresses, and first the hosts that an earlier
    /// agent has saved.
    ///
    /// # Errors
    /// If the system has no sockets, threads or random numbers.
    pub fn start(vteps: Vteps, state_dir: &Path) -> Result<Self, Error> {
        let failed = || Error::io("start the thread that probes hosts");
        let nonce = random_nonce().ok_or_else(|| io::Error::other("no random bytes")).map_err(failed())?;
        let (hosts, inbox) = mailbox().map_err(failed())?;
        let reports = StateReports::default();
        let thread = HostThread::new(vteps, inbox, reports.clone(), nonce);
        let spawned = std::thread::Builder::new().name("host-probes".to_owned()).spawn(move || thread.run());
        hosts.send(saved::read(state_dir));
        let (state_dir, thread) = (state_dir.to_owned(), Some(spawned.map_err(failed())?));
        Ok(Self { state_dir, hosts: Some(hosts), reports, thread })
    }

    /// What was found.
    pub fn reports(&self) -> StateReports<HostState> {
        self.reports.clone()
    }

    /// Probes these hosts from now on.
    ///
    /// # Errors
    /// If they cannot be saved. They are probed nevertheless.
    pub fn watch(&self, watched: Vec<IpAddr>) -> io::Result<()> {
        let written = saved::write(&self.state_dir, &watched);
        if let Some(hosts) = &self.hosts {
            hosts.send(watched);
        }
        written
    }
}

impl Drop for HostProbes {
    fn drop(&mut self) {
        self.hosts = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that probes hosts has panicked");
        }
    }
}
