//! vIP ownership at run time: this gateway's part in its cluster. This file changes when other tasks need
//! another input or output of the ownership thread.
//!
//! `sluice_cluster::Gateway` decides which vIPs this gateway owns. `local_member.rs` has what that state
//! machine needs around it without sockets and clocks: authentication, addresses, what to save.
//! `io_thread.rs` has sockets and clock, on a thread with real-time priority: at the default hello interval,
//! a gateway that is silent for 13 ms counts as dead. `announce.rs` announces vIPs to the underlay, `witness.rs`
//! probes whether the underlay is reachable, and `status.rs` shows the state to operators.

mod announce;
mod handover;
mod io_thread;
mod local_member;
mod plan;
mod saved_state;
mod sockets;
mod status;
mod view;
mod witness;

#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;

use sluice_agent::Error;
use sluice_agent::underlay::Vteps;
use sluice_cluster::Load;
use sluice_envelope::{BootId, KeyRing};
use sluice_tables::AgentHeartbeat;
use sluice_types::GatewayId;
use tokio::sync::{Notify, watch};

pub use announce::{Layer2Announcer, VipAnnouncer};
pub use handover::Written;
use handover::{Announcements, TableVips};
use io_thread::SetOwned;
pub(crate) use io_thread::now;
pub use local_member::OwnedVips;
pub(crate) use local_member::{Now, Receiver};
pub use plan::{GatewayPlan, PlannedMember, PlannedVip};
pub use saved_state::has_saved_state;
pub(crate) use sockets::{SocketUse, Sockets};
pub use status::{OwnershipCounts, OwnershipStatus, SharedOwnershipStatus};
pub use view::ClusterView;
pub use witness::WitnessNeighbor;

use io_thread::{IoThread, save_states};
use local_member::{AdoptedTables, LocalMember};
use saved_state::SavedState;
use sluice_agent::mailbox::{Mailbox, mailbox};
use witness::Witness;

/// A command to the ownership thread.
#[derive(Debug)]
enum Command {
    Plan(GatewayPlan),
    LeaveCluster,
    Keys(KeyRing),
    Controller(Option<SocketAddr>),
    Neighbors(Vec<WitnessNeighbor>),
    Load(Load),
    Tables(u64),
    Copies(bool),
}

/// What the ownership thread needs.
pub struct OwnershipConfig {
    /// This gateway.
    pub own: GatewayId,
    /// Its addresses on the underlay.
    pub vteps: Vteps,
    /// UDP port of the cluster protocol between gateways.
    pub port: u16,
    /// Directory for the saved state.
    pub state_dir: PathBuf,
    /// vIPs that the tables answer for since an earlier agent ran.
    pub owned: OwnedVips,
    /// Newest revision that the tables contain completely; 0 if entries may be missing.
    pub tables: u64,
    /// This gateway translates for NAT gateways.
    pub translates: bool,
    /// Makes the tables answer for other vIPs.
    pub set_owned: SetOwned,
    /// Heartbeat of the agent, which the packet programs check.
    pub heartbeat: AgentHeartbeat,
    /// Announces vIPs.
    pub announcer: Box<dyn VipAnnouncer>,
}

/// Handle of the ownership thread, which ends when the handle is dropped.
#[derive(Debug)]
pub struct Ownership {
    commands: Mailbox<Command>,
    status: SharedOwnershipStatus,
    peers: watch::Receiver<Vec<IpAddr>>,
    view: watch::Receiver<ClusterView>,
    reconnected: Arc<Notify>,
}

impl Ownership {
    /// Starts the thread in the current network namespace.
    ///
    /// # Errors
    /// If the system has no sockets, threads or random numbers, or the saved state cannot be read.
    pub fn start(config: OwnershipConfig) -> Result<Self, Error> {
        let OwnershipConfig { own, vteps, port, state_dir, owned, tables, translates, .. } = config;
        let OwnershipConfig { set_owned, heartbeat, announcer, .. } = config;
        let no_random = || {
            Error::io("create a boot id")(io::Error::other("the operating system returns no random bytes"))
        };
        let boot = BootId::random().ok_or_else(no_random)?;
        let saved = SavedState::read(&state_dir)?;
        let vips = TableVips::new(owned.clone());
        let adopted = AdoptedTables { owned, revision: tables, translates };
        let member = LocalMember::new(own, vteps, boot, saved, adopted, now());
        let failed = || Error::io("start the ownership thread");
        let (commands, inbox) = mailbox().map_err(failed())?;
        let (saver, states) = channel();
        let status = SharedOwnershipStatus::default();
        let (peers_sender, peers) = watch::channel(Vec::new());
        let (view_sender, view) = watch::channel(ClusterView::default());
        let reconnected = Arc::new(Notify::new());
        let thread = IoThread {
            member,
            sockets: Sockets::new(vteps, port, SocketUse::CLUSTER),
            announcer,
            witness: Witness::new(vteps)?,
            set_owned,
            heartbeat,
            inbox,
            saver,
            status: status.clone(),
            peers: peers_sender,
            view: view_sender,
            reconnected: reconnected.clone(),
            vips,
            unset: None,
            announcements: Announcements::default(),
            open_sockets_us: 0,
            beat_us: 0,
            status_us: 0,
        };
        let spawn = |name: &str| std::thread::Builder::new().name(name.to_owned());
        spawn("cluster-save").spawn(move || save_states(&state_dir, &states)).map_err(failed())?;
        spawn("cluster").spawn(move || thread.run()).map_err(failed())?;
        Ok(Self { commands, status, peers, view, reconnected })
    }

    fn send(&self, command: Command) {
        self.commands.send(command);
    }

    /// Sets the controller's plan.
    pub fn set_plan(&self, plan: GatewayPlan) {
        self.send(Command::Plan(plan));
    }

    /// Makes this gateway answer for no vIP until there is another plan, because it was deleted.
    pub fn leave_cluster(&self) {
        self.send(Command::LeaveCluster);
    }

    /// Sets the cluster's keys.
    pub fn set_keys(&self, keys: KeyRing) {
        self.send(Command::Keys(keys));
    }

    /// Sets the controller's address.
    pub fn set_controller(&self, address: Option<SocketAddr>) {
        self.send(Command::Controller(address));
    }

    /// Sets the neighbors on the underlay that may be probed as witnesses. Gateways among them are not
    /// probed.
    pub fn set_neighbors(&self, neighbors: Vec<WitnessNeighbor>) {
        self.send(Command::Neighbors(neighbors));
    }

    /// Sets the load that is reported to the controller.
    pub fn set_load(&self, load: Load) {
        self.send(Command::Load(load));
    }

    /// Sets the newest revision that the forwarding tables contain completely; 0 if entries may be missing.
    pub fn set_tables(&self, revision: u64) {
        self.send(Command::Tables(revision));
    }

    /// Sets whether this gateway has copies of all sessions of NAT gateways that others own.
    pub fn set_copies(&self, complete: bool) {
        self.send(Command::Copies(complete));
    }

    /// Members of the cluster, which of them this gateway reaches, and which one owns which vIP.
    #[must_use]
    pub fn view(&self) -> watch::Receiver<ClusterView> {
        self.view.clone()
    }

    /// Addresses of the other gateways of the cluster.
    #[must_use]
    pub fn peers(&self) -> watch::Receiver<Vec<IpAddr>> {
        self.peers.clone()
    }

    /// Notified when this gateway was isolated and is answered again.
    #[must_use]
    pub fn reconnected(&self) -> Arc<Notify> {
        self.reconnected.clone()
    }

    /// The status for the local API and metrics.
    #[must_use]
    pub fn status(&self) -> SharedOwnershipStatus {
        self.status.clone()
    }
}
