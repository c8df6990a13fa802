//! Who owns which vIP: the controller's part, at run time.
//!
//! `sluice_cluster::Controller` decides, one a cluster. `clusters.rs` is what
//! they need around them without socket and clock, `socket.rs` the socket, on the
//! UDP port of the southbound listener's number; `view.rs` is what the API shows.

mod clusters;
mod keys;
mod socket;
mod view;

#[cfg(test)]
mod tests;

pub use keys::renew_keys;
pub use socket::Socket;
pub use view::GatewayState;

use crate::clock::now_ms;
use crate::compile::{ClusterUpdates, CompiledClusters};
use crate::database::Database;
use clusters::{Action, Clusters, Event, Now};
use serde_json::json;
use sluice_cluster::{Load, MESSAGE_BYTES_MAX};
use sluice_envelope::BootId;
use sluice_store::{NewEvent, StoreError};
use sluice_types::{ClusterId, GatewayId};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use view::Shown;

/// Changed intent is noticed at this pace at least.
const LOOK: Duration = Duration::from_millis(20);
/// What the API shows is at most this old.
const SHOW: Duration = Duration::from_millis(20);
/// Events that wait for the database.
const EVENTS_WAITING: usize = 1_024;
/// Longer datagrams are no messages.
const DATAGRAM_BYTES: usize = MESSAGE_BYTES_MAX + 128;

/// What the database is to do.
enum Wish {
    Note(Event),
    Raise(ClusterId, u64),
}

/// Receives what gateways report of their load in the cluster protocol. Implemented by a layer above.
pub trait PulseObserver: Send + Sync {
    /// A gateway reports its load of this moment.
    fn pulse(&self, gateway: GatewayId, load: &Load);
}

/// The handle of this module: who owns which vIP, as far as this controller knows.
pub struct Ownership {
    db: Arc<Database>,
    compiled: Arc<CompiledClusters>,
    shown: RwLock<Shown>,
}

impl Ownership {
    /// Starts without knowledge of any gateway.
    pub fn new(db: Arc<Database>, compiled: Arc<CompiledClusters>) -> Self {
        Self { db, compiled, shown: RwLock::default() }
    }
}

/// Runs until it is dropped.
pub async fn own(ownership: Arc<Ownership>, loads: Arc<dyn PulseObserver>, socket: Socket, boot: BootId) {
    // The database may take its time, gateways do not wait.
    let (events, happened) = mpsc::channel(EVENTS_WAITING);
    let db = ownership.db.clone();
    let driver = Driver { ownership, loads, socket, events };
    tokio::join!(driver.run(boot), record(&db, happened));
}

/// Connects the clusters' state machines with the socket, the clock and the other modules.
struct Driver {
    ownership: Arc<Ownership>,
    loads: Arc<dyn PulseObserver>,
    socket: Socket,
    events: mpsc::Sender<Wish>,
}

impl Driver {
    async fn run(self, boot: BootId) {
        let began = Instant::now();
        let now = || Now {
            mono_us: u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX),
            wall_ms: now_ms(),
        };
        let mut clusters = Clusters::new(boot, now());
        let mut followed: Arc<ClusterUpdates> = Arc::default();
        let mut shown = Instant::now();
        let mut buffer = [0; DATAGRAM_BYTES];
        loop {
            let due_us = clusters.due_us().unwrap_or(u64::MAX);
            let wait = Duration::from_micros(due_us.saturating_sub(now().mono_us)).min(LOOK);
            let actions = tokio::select! {
                received = self.socket.receive(&mut buffer) => match received {
                    Ok((bytes, way)) => clusters.receive(now(), way, &buffer[..bytes]),
                    // Of an earlier datagram: a gateway does not listen any more.
                    Err(_) => Vec::new(),
                },
                () = tokio::time::sleep(wait) => clusters.tick(now()),
            };
            let mut noted = self.carry_out(actions);
            let updates = self.ownership.compiled.updates();
            if !Arc::ptr_eq(&updates, &followed) {
                let actions = clusters.follow(now(), &updates);
                noted |= self.carry_out(actions);
                followed = updates;
            }
            if noted || shown.elapsed() >= SHOW {
                self.ownership.show(clusters.views(now()), clusters.refused().clone());
                shown = Instant::now();
            }
        }
    }

    /// Returns true if something happened that the API shows.
    fn carry_out(&self, actions: Vec<Action>) -> bool {
        let mut noted = false;
        for action in actions {
            match action {
                Action::Send(way, packet) => {
                    if let Err(error) = self.socket.send(way, &packet) {
                        tracing::debug!(to = %way.remote, %error, "cannot send to a gateway");
                    }
                }
                Action::Load(gateway, load) => self.loads.pulse(gateway, &load),
                Action::Note(event) => {
                    noted = true;
                    let compiled = &self.ownership.compiled;
                    match event {
                        Event::Failed(_, gateway) => compiled.set_gateway_failed(gateway, true),
                        Event::Returned(_, gateway) => compiled.set_gateway_failed(gateway, false),
                        Event::Moved { .. } | Event::Drained(..) => {}
                    }
                    if let Err(error) = self.events.try_send(Wish::Note(event)) {
                        tracing::warn!(%error, "an event is not written down");
                    }
                }
                // If the queue is full, it is requested again.
                Action::Raise(cluster, known) => drop(self.events.try_send(Wish::Raise(cluster, known))),
            }
        }
        noted
    }
}

/// Writes events down, in order, each once if the database can, and lets plans be newer than those that gateways
/// have.
async fn record(db: &Database, mut wishes: mpsc::Receiver<Wish>) {
    while let Some(wish) = wishes.recv().await {
        let result = match wish {
            Wish::Note(event) => {
                let event = told(&event);
                tracing::info!(kind = event.kind, subject = event.subject, "{}", event.text);
                db.store.add_event(event).await.map(drop)
            }
            Wish::Raise(cluster, known) => raise(db, cluster, known).await,
        };
        if let Err(error) = result {
            db.count_error();
            tracing::warn!(error = &error as &dyn std::error::Error, "what happened is not written down");
        }
    }
}

async fn raise(db: &Database, cluster: ClusterId, known: u64) -> Result<(), StoreError> {
    match db.store.raise_plan(cluster, known).await {
        Ok(raised) => {
            if raised {
                tracing::warn!(%cluster, known, "gateways had a newer plan: was the database restored?");
                db.notify_commit();
            }
            Ok(())
        }
        Err(StoreError::NotFound { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// As the event log has it.
fn told(event: &Event) -> NewEvent {
    let new = |kind: &str, subject: String, text: String, details| NewEvent {
        kind: kind.to_owned(),
        subject,
        text,
        details,
    };
    let of = |kind, cluster: &ClusterId, gateway: &GatewayId, what: &str| {
        let text = format!("{gateway} of {cluster} {what}");
        new(kind, gateway.to_string(), text, json!({ "cluster": cluster }))
    };
    match event {
        Event::Moved { cluster, vip, from, to, decided } => {
            let why = match (decided, from) {
                (_, None) => "it had no owner",
                (true, _) => "the controller decided",
                (false, _) => "gateways took it over",
            };
            let was = from.map_or_else(|| "no gateway".to_owned(), |from| from.to_string());
            let text = format!("vIP {vip} of {cluster} moved from {was} to {to}: {why}");
            let details = json!({ "vip": vip, "from": from, "to": to, "decided": decided });
            new("vip_moved", cluster.to_string(), text, details)
        }
        Event::Failed(cluster, gateway) => of(
            "gateway_failed",
            cluster,
            gateway,
            "is heard neither by the controller nor by another gateway",
        ),
        Event::Returned(cluster, gateway) => of("gateway_returned", cluster, gateway, "is heard again"),
        Event::Drained(cluster, gateway) => {
            of("gateway_drained", cluster, gateway, "owns no vIP any more and may be stopped")
        }
    }
}
