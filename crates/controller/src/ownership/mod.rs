//! Who owns which vIP: the controller's part, at run time.
//!
//! `sluice_cluster::Controller` decides, one a cluster. `clusters.rs` is what
//! they need around them without socket and clock, `socket.rs` the socket, on the
//! UDP port of the southbound listener's number; `view.rs` is what the API shows.

mod clusters;
mod socket;
mod view;

#[cfg(test)]
mod tests;

pub use socket::Socket;
pub use view::{GatewayState, Ownership};

use crate::core::{Core, Standings, count};
use crate::hub::now_ms;
use clusters::{Action, Clusters, Event, Now};
use serde_json::json;
use sluice_cluster::MESSAGE_BYTES_MAX;
use sluice_rsp::BootId;
use sluice_store::{NewEvent, StoreError};
use sluice_types::{ClusterId, GatewayId};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

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

/// Runs until it is dropped.
pub async fn own(core: Arc<Core>, socket: Socket, boot: BootId) {
    // The database may take its time, gateways do not wait.
    let (events, happened) = mpsc::channel(EVENTS_WAITING);
    tokio::join!(decide(&core, socket, boot, events), record(&core, happened));
}

async fn decide(core: &Core, socket: Socket, boot: BootId, events: mpsc::Sender<Wish>) {
    let began = Instant::now();
    let now =
        || Now { mono_us: u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX), wall_ms: now_ms() };
    let mut clusters = Clusters::new(boot, now());
    let mut followed: Arc<Standings> = Arc::default();
    let mut shown = Instant::now();
    let mut buffer = [0; DATAGRAM_BYTES];
    loop {
        let due_us = clusters.due_us().unwrap_or(u64::MAX);
        let wait = Duration::from_micros(due_us.saturating_sub(now().mono_us)).min(LOOK);
        let actions = tokio::select! {
            received = socket.receive(&mut buffer) => match received {
                Ok((bytes, way)) => clusters.receive(now(), way, &buffer[..bytes]),
                // Of an earlier datagram: a gateway does not listen any more.
                Err(_) => Vec::new(),
            },
            () = tokio::time::sleep(wait) => clusters.tick(now()),
        };
        let mut noted = obey(core, &socket, &events, actions);
        let standings = core.standings();
        if !Arc::ptr_eq(&standings, &followed) {
            let actions = clusters.follow(now(), &standings);
            noted |= obey(core, &socket, &events, actions);
            followed = standings;
        }
        if noted || shown.elapsed() >= SHOW {
            core.ownership.show(clusters.views(now()), clusters.refused().clone());
            shown = Instant::now();
        }
    }
}

/// True if something happened that the API shows.
fn obey(core: &Core, socket: &Socket, events: &mpsc::Sender<Wish>, actions: Vec<Action>) -> bool {
    let mut noted = false;
    for action in actions {
        match action {
            Action::Send(way, packet) => {
                if let Err(error) = socket.send(way, &packet) {
                    tracing::debug!(to = %way.remote, %error, "cannot send to a gateway");
                }
            }
            Action::Load(gateway, load) => core.loads.pulse(gateway, &load),
            Action::Note(event) => {
                noted = true;
                match event {
                    Event::Failed(_, gateway) => core.change_zones(|zones| zones.note(gateway, true)),
                    Event::Returned(_, gateway) => core.change_zones(|zones| zones.note(gateway, false)),
                    Event::Moved { .. } | Event::Drained(..) => {}
                }
                if let Err(error) = events.try_send(Wish::Note(event)) {
                    tracing::warn!(%error, "an event is not written down");
                }
            }
            // If there is no room, it is asked for again.
            Action::Raise(cluster, known) => drop(events.try_send(Wish::Raise(cluster, known))),
        }
    }
    noted
}

/// Writes events down, in order, each once if the database can, and lets plans be newer than those that gateways
/// have.
async fn record(core: &Core, mut wishes: mpsc::Receiver<Wish>) {
    while let Some(wish) = wishes.recv().await {
        let result = match wish {
            Wish::Note(event) => {
                let event = told(&event);
                tracing::info!(kind = event.kind, subject = event.subject, "{}", event.text);
                core.store.add_event(event).await.map(drop)
            }
            Wish::Raise(cluster, known) => raise(core, cluster, known).await,
        };
        if let Err(error) = result {
            count(&core.counters.store_errors);
            tracing::warn!(error = &error as &dyn std::error::Error, "what happened is not written down");
        }
    }
}

async fn raise(core: &Core, cluster: ClusterId, known: u64) -> Result<(), StoreError> {
    match core.store.raise_plan(cluster, known).await {
        Ok(raised) => {
            if raised {
                tracing::warn!(%cluster, known, "gateways had a newer plan: was the database restored?");
                core.wake();
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
            let was = from.map_or_else(|| "nobody".to_owned(), |from| from.to_string());
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
