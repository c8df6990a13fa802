//! Which vIPs this gateway answers for: its part in the cluster, at run time.
//!
//! `sluice_cluster::Gateway` decides. `driver.rs` is what it needs around it
//! without sockets and clocks: authentication, addresses, what to save.
//! `thread.rs` has those, on a thread of its own that is run before others: a
//! gateway that is late by 13 ms, at the usual hello interval, is dead to its
//! cluster. `announce.rs` tells the underlay, `witness.rs` asks it whether it is
//! there.

mod announce;
mod driver;
mod plan;
mod thread;
mod view;
mod witness;

#[cfg(test)]
mod tests;

use std::fs;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use sluice_agent::Error;
use sluice_agent::underlay::Vteps;
use sluice_cluster::Load;
use sluice_rsp::{BootId, KeyRing};
use sluice_tables::Attendance;
use sluice_types::GatewayId;
use tokio::sync::{Notify, watch};

pub use announce::{Announce, Layer2, Links};
pub use driver::{Owned, Status};
pub use plan::{Plan, PlannedMember, PlannedVip};
pub use thread::Tables;
pub use view::View;
pub use witness::Neighbour;

use driver::Driver;
use plan::Saved;
use thread::{Parts, now, run, save};
use witness::Witness;

/// In the state directory.
const FILE: &str = "cluster.json";

/// What the thread is told.
#[derive(Debug)]
enum Command {
    Plan(Plan),
    Resign,
    Keys(KeyRing),
    Controller(Option<SocketAddr>),
    Neighbours(Vec<Neighbour>),
    Load(Load),
}

/// What is needed to take part.
pub struct Setup {
    /// Which gateway this is.
    pub own: GatewayId,
    /// Its addresses on the underlay.
    pub vteps: Vteps,
    /// UDP port between gateways.
    pub port: u16,
    /// Where it remembers who owns what.
    pub state_dir: PathBuf,
    /// What the tables answer for, from an earlier life.
    pub owned: Owned,
    /// Tells them what to answer for.
    pub tables: Tables,
    /// Tells the packet programs that the agent runs.
    pub attendance: Attendance,
    /// Tells the underlay.
    pub announcer: Box<dyn Announce>,
}

/// The thread that takes part in the cluster; it ends when this is dropped.
#[derive(Debug)]
pub struct Ownership {
    commands: Sender<Command>,
    waker: UnixStream,
    view: View,
    peers: watch::Receiver<Vec<IpAddr>>,
    reconnected: Arc<Notify>,
}

impl Ownership {
    /// Starts it, in the current network namespace.
    ///
    /// # Errors
    /// If the system has no sockets, threads or random numbers to give.
    pub fn start(setup: Setup) -> Result<Self, Error> {
        let Setup { own, vteps, port, state_dir, owned, tables, attendance, announcer } = setup;
        let path = state_dir.join(FILE);
        let no_random = || Error::io("draw a random number")(io::Error::other("the system has none"));
        let boot = BootId::random().ok_or_else(no_random)?;
        let driver = Driver::new(own, vteps, boot, read(&path)?, owned, now());
        let failed = || Error::io("start to take part in the cluster");
        let (waker, woken) = UnixStream::pair().map_err(failed())?;
        for end in [&waker, &woken] {
            end.set_nonblocking(true).map_err(failed())?;
        }
        let (commands, received) = channel();
        let (saver, saved) = channel();
        let view = View::default();
        let (told, peers) = watch::channel(Vec::new());
        let reconnected = Arc::new(Notify::new());
        let parts = Parts {
            driver,
            vteps,
            port,
            announcer,
            witness: Witness::new(vteps)?,
            tables,
            attendance,
            commands: received,
            waker: woken,
            saver,
            view: view.clone(),
            peers: told,
            reconnected: reconnected.clone(),
        };
        let spawn = |name: &str| std::thread::Builder::new().name(name.to_owned());
        spawn("cluster-save").spawn(move || save(path, saved)).map_err(failed())?;
        spawn("cluster").spawn(move || run(parts)).map_err(failed())?;
        Ok(Self { commands, waker, view, peers, reconnected })
    }

    fn tell(&self, command: Command) {
        // Both can only fail when the thread has ended, which it does not before this.
        let _ = self.commands.send(command);
        let _ = (&self.waker).write(&[1]);
    }

    /// The controller's plan.
    pub fn set_plan(&self, plan: Plan) {
        self.tell(Command::Plan(plan));
    }

    /// This gateway is of no cluster any more, until there is another plan: it answers for no vIP.
    pub fn resign(&self) {
        self.tell(Command::Resign);
    }

    /// The cluster's keys.
    pub fn set_keys(&self, keys: KeyRing) {
        self.tell(Command::Keys(keys));
    }

    /// Where the controller listens.
    pub fn set_controller(&self, at: Option<SocketAddr>) {
        self.tell(Command::Controller(at));
    }

    /// Neighbours on the underlay that can say that it is there; those that are gateways are not asked.
    pub fn set_neighbours(&self, neighbours: Vec<Neighbour>) {
        self.tell(Command::Neighbours(neighbours));
    }

    /// What there is to do here, for the controller.
    pub fn set_load(&self, load: Load) {
        self.tell(Command::Load(load));
    }

    /// Where the other gateways of the cluster are reached.
    #[must_use]
    pub fn peers(&self) -> watch::Receiver<Vec<IpAddr>> {
        self.peers.clone()
    }

    /// Wakes one who waits when this gateway, which was cut off, is answered again.
    #[must_use]
    pub fn reconnected(&self) -> Arc<Notify> {
        self.reconnected.clone()
    }

    /// For the operator.
    #[must_use]
    pub fn view(&self) -> View {
        self.view.clone()
    }
}

/// Whether an earlier life left what it takes to go on without the controller.
#[must_use]
pub fn is_remembered(state_dir: &Path) -> bool {
    read(&state_dir.join(FILE)).is_ok_and(|saved| saved.is_some())
}

/// What an earlier life saved. What cannot be understood is as good as nothing: the others know.
fn read(path: &Path) -> Result<Option<Saved>, Error> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(format!("read {}", path.display()))(error)),
    };
    match serde_json::from_slice(&text) {
        Ok(saved) => Ok(Some(saved)),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "who owns what is not remembered");
            Ok(None)
        }
    }
}

/// Replaces the file in one step. It is not forced to the disk: what a power failure takes, the other
/// gateways and the controller know.
fn write(path: &Path, saved: &Saved) -> io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, serde_json::to_vec(saved)?)?;
    fs::rename(&new, path)
}
