//! Shares of meters: this gateway's part in `sluice_cluster::meters`, by which the gateways of a cluster enforce one rate together.
//! `peer.rs` has what the state machine needs around it without sockets and clocks, `thread.rs` has these and reads the meters, and
//! `status.rs` has the metrics. This file changes when other tasks need another input or output of the thread.

mod peer;
mod status;
mod thread;

#[cfg(test)]
mod tests;

use std::io;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use sluice_agent::Error;
use sluice_agent::rsp::Keys;
use sluice_agent::underlay::Vteps;
use sluice_envelope::{BootId, KeyRing};
use sluice_types::GatewayId;
use tokio::sync::watch;

use crate::ownership::{ClusterView, Ownership, SocketUse, Sockets, now};
use peer::SharePeer;
use sluice_agent::mailbox::{Mailbox, mailbox};
use thread::{ShareThread, SharedMeters};

pub use status::ShareMetrics;
pub use thread::{MeterSource, SetShares};

/// A command to the thread.
#[derive(Debug)]
enum Command {
    Keys(KeyRing),
    View(Box<ClusterView>),
}

/// What the thread needs.
pub struct ShareConfig {
    /// This gateway.
    pub own: GatewayId,
    /// Its addresses on the underlay.
    pub vteps: Vteps,
    /// UDP port of the protocol.
    pub port: u16,
    /// The meters, and what they were offered.
    pub source: Box<dyn MeterSource>,
    /// Writes shares into the tables.
    pub set_shares: SetShares,
}

/// Handle of the thread, which ends when it is dropped.
pub struct MeterShares {
    /// `None` only while this is dropped.
    commands: Option<Mailbox<Command>>,
    metrics: ShareMetrics,
    thread: Option<JoinHandle<()>>,
}

impl MeterShares {
    /// Starts the thread in the current network namespace.
    ///
    /// # Errors
    /// If the system has no sockets, threads or random numbers.
    pub fn start(config: ShareConfig) -> Result<Self, Error> {
        let ShareConfig { own, vteps, port, source, set_shares } = config;
        let failed = || Error::io("start the thread that shares meters");
        let boot = BootId::random().ok_or_else(|| io::Error::other("no random bytes")).map_err(failed())?;
        let peer = SharePeer::new(own, vteps, boot, now());
        let (commands, inbox) = mailbox().map_err(failed())?;
        let metrics = ShareMetrics(Arc::<Mutex<_>>::default());
        let thread = ShareThread {
            peer,
            meters: SharedMeters::new(source),
            set_shares,
            sockets: Sockets::new(vteps, port, SocketUse::REPORTS),
            inbox,
            metrics: metrics.clone(),
            open_sockets_us: 0,
            tick_us: 0,
        };
        let spawned = std::thread::Builder::new().name("meter-shares".to_owned()).spawn(move || thread.run());
        Ok(Self { commands: Some(commands), metrics, thread: Some(spawned.map_err(failed())?) })
    }

    fn send(&self, command: Command) {
        if let Some(commands) = &self.commands {
            commands.send(command);
        }
    }

    /// The metrics of the reports.
    #[must_use]
    pub fn metrics(&self) -> ShareMetrics {
        self.metrics.clone()
    }

    /// Passes on the keys and the members of the cluster, as long as it can.
    ///
    /// # Errors
    /// [`Error::WriterGone`] when one of their senders was dropped, as they are when the agent ends.
    pub async fn follow(
        &self,
        ownership: &Ownership,
        mut keys: watch::Receiver<Arc<Keys>>,
    ) -> Result<(), Error> {
        let mut view = ownership.view();
        keys.mark_changed();
        view.mark_changed();
        loop {
            let changed = tokio::select! {
                changed = keys.changed() => {
                    self.send(Command::Keys(keys.borrow_and_update().cluster_protocol().clone()));
                    changed
                }
                changed = view.changed() => {
                    self.send(Command::View(Box::new(view.borrow_and_update().clone())));
                    changed
                }
            };
            changed.map_err(|_| Error::WriterGone)?;
        }
    }
}

impl Drop for MeterShares {
    fn drop(&mut self) {
        drop(self.commands.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that shares meters has panicked");
        }
    }
}
