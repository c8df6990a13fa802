//! The task of the scheduler: runs the rounds and carries out the decisions. This file changes when a decision
//! gets another effect.

use super::reports::{alarms, preferred_owners, reports};
use super::{DecisionRecord, SETTINGS_KEY};
use crate::clock::now_ms;
use crate::ownership::GatewayState;
use crate::place::Place;
use crate::place::ledger::Ledger;
use crate::place::usage::clusters;
use serde_json::json;
use sluice_placement::{Action, Decision, MeasurementTime, Outcome, Scheduler};
use sluice_store::{ClusterVip, NewEvent, StoreError};
use sluice_types::{ClusterId, GatewayId, SchedulerSettings};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Interval between two rounds: gateways report once a second.
const ROUND: Duration = Duration::from_secs(1);
/// Shortest interval between two rounds, when a gateway's load wakes the scheduler early. It doubles after
/// each early round without a decision, because nothing can be done about some loads.
const PAUSE: Duration = Duration::from_millis(100);

/// Reason why a round failed.
#[derive(Debug, thiserror::Error)]
enum RoundError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("gateway reports contradict each other")]
    Report(#[from] sluice_placement::ReportError),
}

/// The algorithm, and the settings that it was created with.
struct Memory {
    settings: SchedulerSettings,
    scheduler: Scheduler,
}

/// Runs the scheduler until it is dropped.
pub async fn schedule(place: Arc<Place>) {
    let mut memory = None;
    let mut pause = PAUSE;
    loop {
        tokio::time::sleep(pause).await;
        let alarmed = tokio::select! {
            biased;
            () = place.loads.alarmed() => true,
            () = tokio::time::sleep(ROUND - pause) => false,
        };
        let outcome = round(&place, &mut memory).await;
        let is_unneeded = alarmed && !outcome.as_ref().is_ok_and(|decisions| *decisions > 0);
        pause = if is_unneeded { ROUND.min(pause * 2) } else { PAUSE };
        let error = outcome.err();
        if let Some(error) = &error {
            if matches!(error, RoundError::Store(_)) {
                place.db.count_error();
            }
            tracing::warn!(error = error as &dyn std::error::Error, "the scheduler cannot decide");
        }
        place.scheduler.change(|status| status.error = error.map(|error| error.to_string()));
    }
}

impl Place {
    /// The settings of the scheduler.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn scheduler_settings(&self) -> Result<SchedulerSettings, StoreError> {
        self.db.settings(SETTINGS_KEY).await
    }
}

/// Runs one round. Returns the number of decisions: none before the placement is known.
async fn round(place: &Place, memory: &mut Option<Memory>) -> Result<usize, RoundError> {
    let settings = place.scheduler_settings().await?;
    if !place.catch_up().await? {
        return Ok(0);
    }
    let site = place.settings().await?;
    let loads = place.load_snapshot();
    let clock_ms = loads.now_ms;
    let correction = |vip, measured: &MeasurementTime| {
        memory.as_ref().map_or(0.0, |memory| memory.scheduler.correction(vip, measured))
    };
    let (reports, alarms, preferred) = place.ledger(|ledger| {
        let clusters = clusters(ledger, &loads, &site);
        let reports = reports(ledger, &clusters, &loads, &correction);
        (reports, alarms(&clusters, settings.overload_threshold), preferred_owners(ledger))
    });
    place.loads.set_alarms(&if settings.enabled { alarms } else { BTreeMap::new() });
    let outcome = if settings.enabled {
        // With new settings, the scheduler starts without memory.
        let same = memory.take().filter(|memory| memory.settings == settings);
        let mut current = match same {
            Some(same) => same,
            None => Memory { scheduler: Scheduler::new(settings.clone())?, settings },
        };
        // A gateway that dies during its move must not block all others forever.
        let moves = place.ledger(Ledger::moving_gateways);
        let dead = [GatewayState::Failed, GatewayState::Isolated, GatewayState::Unknown];
        let is_alive = |(id, cluster)| !dead.contains(&place.ownership.gateway(cluster, id).state);
        current.scheduler.set_operator_move(moves.into_iter().any(is_alive));
        let outcome = current.scheduler.decide(clock_ms, &reports);
        *memory = Some(current);
        outcome?
    } else {
        *memory = None;
        Outcome::default()
    };
    let time_ms = now_ms();
    place.scheduler.change(|status| {
        status.round_ms = Some(time_ms);
        status.reports = reports;
        status.waits = outcome.waits;
        status.overloaded_clusters =
            memory.as_ref().map(|memory| memory.scheduler.requested_clusters()).unwrap_or_default();
    });
    let decisions = outcome.decisions.len();
    let mut failed = Ok(());
    for decision in outcome.decisions {
        let done = match carry_out(place, &decision, &preferred).await {
            Ok(done) => done,
            Err(error) => {
                // The scheduler assumes that the action was carried out. Its memory is wrong and is discarded.
                *memory = None;
                failed = Err(error);
                continue;
            }
        };
        if let (false, Some(memory), Some(gateway)) =
            (done, memory.as_mut(), reassigned_gateway(&decision.action))
        {
            memory.scheduler.refuse(gateway, clock_ms);
        }
        // The event must exist before the status shows the decision.
        let noted = add_event(place, &decision, done).await;
        place.scheduler.change(|status| {
            status.gateways_reassigned +=
                u64::from(done && matches!(decision.action, Action::ReassignGateway { .. }));
            status.moves += u64::from(done && matches!(decision.action, Action::MoveVip { .. }));
            status.gateways_requested += u64::from(matches!(decision.action, Action::RequestGateway { .. }));
            status.decisions.push_back(DecisionRecord { time_ms, decision, done });
        });
        // The scheduler has recorded all decisions as done, so a lost event does not prevent the others.
        if let Err(error) = noted {
            failed = Err(error);
        }
    }
    failed?;
    Ok(decisions)
}

/// The gateway that an action moves to another cluster.
fn reassigned_gateway(action: &Action) -> Option<GatewayId> {
    match *action {
        Action::ReleaseGateway { gateway, .. } | Action::ReassignGateway { gateway, .. } => Some(gateway),
        _ => None,
    }
}

/// Whether a gateway can move from one cluster to another: it is in the first, nothing else moves or drains
/// it, and it can own each vIP of the other and hold the entries of both.
async fn can_reassign(
    place: &Place,
    gateway: GatewayId,
    from: ClusterId,
    to: ClusterId,
) -> Result<bool, StoreError> {
    if place.usage().await?.missing_table_space(gateway, to).is_some() {
        return Ok(false);
    }
    Ok(place.ledger(|ledger| {
        let Some((from, to)) = ledger.clusters.get(&from).zip(ledger.clusters.get(&to)) else { return false };
        let Some(gateway) = from.gateways.iter().find(|it| it.id == gateway) else { return false };
        let can_own = |vip: &ClusterVip| gateway.has_family(vip.address.is_ipv4());
        gateway.moving.is_none() && !gateway.draining && to.cluster.vips.iter().all(can_own)
    }))
}

/// Cancels the move of a gateway that has not joined the other cluster yet.
async fn keep(
    place: &Place,
    gateway: GatewayId,
    cluster: ClusterId,
    reason: &str,
) -> Result<bool, StoreError> {
    let now = place.db.store.gateway(gateway).await?;
    if now.cluster == cluster && now.is_leaving() {
        place.db.store.move_gateway(gateway, cluster, reason, Some(now.revision)).await?;
    }
    Ok(true)
}

/// Carries out a decision. Returns false if the cloud has changed since it was reported.
async fn carry_out(
    place: &Place,
    decision: &Decision,
    preferred: &BTreeMap<IpAddr, GatewayId>,
) -> Result<bool, StoreError> {
    let reason = decision.reason.to_string();
    let result = match decision.action {
        // The present owner may own the vIP only in place of its preferred owner.
        Action::MoveVip { vip, cluster, from, to } => {
            let from = preferred.get(&vip).copied().unwrap_or(from);
            place.db.store.set_preferred_owner(cluster, vip, from, to).await
        }
        // Operators learn of it from the event and the metric.
        Action::RequestGateway { .. } => return Ok(true),
        // Moves of its vIPs, which come next, empty it.
        Action::ReleaseGateway { gateway, from, to } => return can_reassign(place, gateway, from, to).await,
        Action::ReassignGateway { gateway, from, to } => {
            if !can_reassign(place, gateway, from, to).await? {
                return Ok(false);
            }
            let reason = format!("the scheduler reassigns it: {reason}");
            place.db.store.move_gateway(gateway, to, &reason, None).await.map(|_| true)
        }
        Action::KeepGateway { gateway, cluster } => keep(place, gateway, cluster, &reason).await,
    };
    match result {
        Ok(done) => {
            place.db.notify_commit();
            Ok(done)
        }
        Err(StoreError::NotFound { .. } | StoreError::Conflict(_) | StoreError::Stale { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The kind and the subject of an action's event.
fn event_of(action: &Action) -> (&'static str, String) {
    match action {
        Action::MoveVip { cluster, .. } => ("scheduler_vip", cluster.to_string()),
        Action::ReleaseGateway { gateway, .. } => ("scheduler_release", gateway.to_string()),
        Action::ReassignGateway { gateway, .. } => ("scheduler_reassign", gateway.to_string()),
        Action::KeepGateway { gateway, .. } => ("scheduler_keep", gateway.to_string()),
        Action::RequestGateway { cluster } => ("scheduler_gateway_requested", cluster.to_string()),
    }
}

async fn add_event(place: &Place, decision: &Decision, done: bool) -> Result<(), StoreError> {
    let (kind, subject) = event_of(&decision.action);
    let text = if done {
        decision.to_string()
    } else {
        format!("{decision}; not done, because the cloud had changed")
    };
    tracing::info!(decision = text, "scheduler");
    let details = json!({"action": decision.action, "reason": decision.reason, "done": done});
    place.db.store.add_event(NewEvent { kind: kind.to_owned(), subject, text, details }).await.map(drop)
}
