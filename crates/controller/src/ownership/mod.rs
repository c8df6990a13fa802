//! Which gateway owns which vIP: the controller's part at run time.
//!
//! `sluice_cluster::Controller` is the state machine of one cluster. `clusters.rs` runs those of all
//! clusters, without socket and clock; `socket.rs` is their UDP socket, on the port number of the southbound
//! listener; `view.rs` is what the API shows.

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
use view::PublishedViews;

/// Longest delay until a change of configuration is noticed.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Highest age of what the API shows.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(20);
/// Most events that wait for the database. Beyond, events are dropped and logged.
const EVENTS_WAITING: usize = 1_024;
/// Size of the receive buffer. Longer datagrams are truncated and then rejected.
const DATAGRAM_BYTES: usize = MESSAGE_BYTES_MAX + 128;

/// A write to the database.
enum DatabaseWrite {
    Event(Event),
    ReissuePlan(ClusterId, u64),
}

/// Receives the loads that gateways report in the cluster protocol. Implemented by an upper layer.
pub trait ClusterLoadObserver: Send + Sync {
    /// A gateway reported its current load.
    fn cluster_load(&self, gateway: GatewayId, load: &Load);
}

/// The handle of this module: owners of vIPs and states of gateways, as far as this controller knows.
pub struct Ownership {
    db: Arc<Database>,
    compiled: Arc<CompiledClusters>,
    published: RwLock<PublishedViews>,
}

impl Ownership {
    /// Starts without information about any gateway.
    pub fn new(db: Arc<Database>, compiled: Arc<CompiledClusters>) -> Self {
        Self { db, compiled, published: RwLock::default() }
    }
}

/// Runs all clusters until the future is dropped.
pub async fn own(
    ownership: Arc<Ownership>,
    loads: Arc<dyn ClusterLoadObserver>,
    socket: Socket,
    boot: BootId,
) {
    // Writes to the database may take long and must not delay gateways.
    let (events, writes) = mpsc::channel(EVENTS_WAITING);
    let db = ownership.db.clone();
    let driver = Driver { ownership, loads, socket, events };
    tokio::join!(driver.run(boot), record(&db, writes));
}

/// Connects the clusters' state machines to the socket, the clock and the other modules.
struct Driver {
    ownership: Arc<Ownership>,
    loads: Arc<dyn ClusterLoadObserver>,
    socket: Socket,
    events: mpsc::Sender<DatabaseWrite>,
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
        let mut published = Instant::now();
        let mut buffer = [0; DATAGRAM_BYTES];
        loop {
            let due_us = clusters.due_us().unwrap_or(u64::MAX);
            let wait = Duration::from_micros(due_us.saturating_sub(now().mono_us)).min(CHECK_INTERVAL);
            let actions = tokio::select! {
                received = self.socket.receive(&mut buffer) => match received {
                    Ok((bytes, path)) => clusters.receive(now(), path, &buffer[..bytes]),
                    // A datagram without addresses: nothing could be answered.
                    Err(_) => Vec::new(),
                },
                () = tokio::time::sleep(wait) => clusters.tick(now()),
            };
            let mut changed = self.carry_out(actions);
            // Also after a datagram: while they arrive without a pause, the sleep never ends.
            changed |= self.carry_out(clusters.tick(now()));
            let updates = self.ownership.compiled.updates();
            if !Arc::ptr_eq(&updates, &followed) {
                let actions = clusters.apply_updates(now(), &updates);
                changed |= self.carry_out(actions);
                followed = updates;
            }
            if changed || published.elapsed() >= PUBLISH_INTERVAL {
                self.ownership.publish(clusters.views(now()), clusters.refused().clone());
                published = Instant::now();
            }
        }
    }

    /// Returns true if an event writes that the API shows.
    fn carry_out(&self, actions: Vec<Action>) -> bool {
        let mut changed = false;
        for action in actions {
            match action {
                Action::Send(path, packet) => {
                    if let Err(error) = self.socket.send(path, &packet) {
                        tracing::debug!(to = %path.remote, %error, "cannot send to a gateway");
                    }
                }
                Action::Serves(gateway, serves) => self.ownership.compiled.set_gateway_away(gateway, !serves),
                Action::Load(gateway, load) => self.loads.cluster_load(gateway, &load),
                Action::Event(event) => {
                    changed = true;
                    if let Err(error) = self.events.try_send(DatabaseWrite::Event(event)) {
                        tracing::warn!(%error, "an event was dropped: too many wait for the database");
                    }
                }
                // If the queue is full, it is requested again.
                Action::ReissuePlan(cluster, known) => {
                    drop(self.events.try_send(DatabaseWrite::ReissuePlan(cluster, known)))
                }
            }
        }
        changed
    }
}

/// Writes events to the database in order, each once if the database can, and reissues plans.
async fn record(db: &Database, mut writes: mpsc::Receiver<DatabaseWrite>) {
    while let Some(write) = writes.recv().await {
        let result = match write {
            DatabaseWrite::Event(event) => {
                let event = event_record(&event);
                tracing::info!(kind = event.kind, subject = event.subject, "{}", event.text);
                db.store.add_event(event).await.map(drop)
            }
            DatabaseWrite::ReissuePlan(cluster, known) => reissue_assignment(db, cluster, known).await,
        };
        if let Err(error) = result {
            db.count_error();
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "cannot write an event or plan to the database"
            );
        }
    }
}

async fn reissue_assignment(db: &Database, cluster: ClusterId, known: u64) -> Result<(), StoreError> {
    match db.store.reissue_assignment(cluster, known).await {
        Ok(reissued) => {
            if reissued {
                tracing::warn!(
                    %cluster,
                    known,
                    "gateways have a newer plan than the database: was it restored from a backup? \
                     The plan is reissued"
                );
                db.notify_commit();
            }
            Ok(())
        }
        Err(StoreError::NotFound { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The record of an event for the event log.
fn event_record(event: &Event) -> NewEvent {
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
            "is reachable neither from the controller nor from another gateway",
        ),
        Event::Returned(cluster, gateway) => of("gateway_returned", cluster, gateway, "is reachable again"),
        Event::Drained(cluster, gateway) => {
            of("gateway_drained", cluster, gateway, "owns no vIP any more and may be stopped")
        }
    }
}
