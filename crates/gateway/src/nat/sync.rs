//! Copies of the sessions of NAT gateways: this gateway's part in `sluice_nat_sync`, which decides what is sent and what is done
//! with what comes. `peer.rs` has what the state machine needs around it without sockets and clocks, `thread.rs` has these, and
//! `status.rs` shows the copies to operators. This file changes when other tasks need another input or output of the thread.

mod peer;
mod status;
mod thread;

#[cfg(test)]
mod tests;

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use axum::routing::get;
use axum::{Json, Router};
use sluice_agent::Error;
use sluice_agent::underlay::Vteps;
use sluice_envelope::{BootId, KeyRing};
use sluice_nat_sync::SessionTable;
use sluice_types::{GatewayId, Vni};
use tokio::sync::watch;

use super::log::Owners;
use crate::ownership::{ClusterView, SocketUse, Sockets, now};
use peer::SyncPeer;
use sluice_agent::mailbox::{Mailbox, mailbox};
use status::{SyncMetrics, SyncStatus, lock};
use thread::SyncThread;

/// The NAT gateways of the tables: the VNI of the VPC of each, and its vIP.
pub type NatUnits = Vec<(Vni, IpAddr)>;

/// A command to the thread.
#[derive(Debug)]
enum Command {
    Keys(KeyRing),
    View(Box<ClusterView>),
    Units(NatUnits),
}

/// What the thread needs.
pub struct SyncConfig {
    /// This gateway.
    pub own: GatewayId,
    /// Its addresses on the underlay.
    pub vteps: Vteps,
    /// UDP port of the protocol.
    pub port: u16,
    /// The sessions.
    pub table: Box<dyn SessionTable + Send>,
}

/// Handle of the thread, which ends when it is dropped.
pub struct NatSync {
    /// `None` only while this is dropped.
    commands: Option<Mailbox<Command>>,
    status: Arc<Mutex<SyncStatus>>,
    complete: watch::Receiver<bool>,
    thread: Option<JoinHandle<()>>,
}

impl NatSync {
    /// Starts the thread in the current network namespace.
    ///
    /// # Errors
    /// If the system has no sockets, threads or random numbers.
    pub fn start(config: SyncConfig) -> Result<Self, Error> {
        let SyncConfig { own, vteps, port, table } = config;
        let failed = || Error::io("start the thread that copies sessions");
        let boot = BootId::random().ok_or_else(|| io::Error::other("no random bytes")).map_err(failed())?;
        let peer = SyncPeer::new(own, vteps, boot, now());
        let (commands, inbox) = mailbox().map_err(failed())?;
        let status = Arc::<Mutex<SyncStatus>>::default();
        let (complete_sender, complete) = watch::channel(false);
        let thread = SyncThread {
            peer,
            table,
            sockets: Sockets::new(vteps, port, SocketUse::COPIES),
            inbox,
            status: status.clone(),
            complete: complete_sender,
            open_sockets_us: 0,
            status_us: 0,
        };
        let spawned = std::thread::Builder::new().name("nat-sync".to_owned()).spawn(move || thread.run());
        let thread = Some(spawned.map_err(failed())?);
        Ok(Self { commands: Some(commands), status, complete, thread })
    }

    fn send(&self, command: Command) {
        if let Some(commands) = &self.commands {
            commands.send(command);
        }
    }

    /// Sets the cluster's keys.
    pub fn set_keys(&self, keys: KeyRing) {
        self.send(Command::Keys(keys));
    }

    /// Sets members, owners of vIPs and contacts.
    pub fn set_view(&self, view: ClusterView) {
        self.send(Command::View(Box::new(view)));
    }

    /// Sets the NAT gateways of the tables.
    pub fn set_units(&self, units: NatUnits) {
        self.send(Command::Units(units));
    }

    /// Whether this gateway has all sessions of all NAT gateways that others own.
    pub fn complete(&self) -> watch::Receiver<bool> {
        self.complete.clone()
    }

    /// A function that says for which NAT gateways this gateway translates; `None` until that is known.
    pub fn owners(&self) -> impl Fn() -> Option<Arc<Owners>> + Send + 'static {
        let status = self.status.clone();
        move || lock(&status).owners.clone()
    }

    /// The route of the local API that shows the copies: `GET /nat/copies`.
    pub fn routes(&self) -> Router {
        let status = self.status.clone();
        Router::new().route("/nat/copies", get(async move || Json(lock(&status).view())))
    }

    /// The metrics of the copies.
    pub fn metrics(&self) -> SyncMetrics {
        SyncMetrics(self.status.clone())
    }
}

impl Drop for NatSync {
    fn drop(&mut self) {
        drop(self.commands.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that copies sessions has panicked");
        }
    }
}
