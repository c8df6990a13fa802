//! The scheduler's rounds.

use super::reports::{alarms, homes, reports};
use super::{Decided, SETTINGS_KEY, Settings};
use crate::core::{Core, count};
use crate::hub::now_ms;
use crate::ownership::GatewayState;
use crate::placing;
use crate::placing::picture::clusters;
use serde_json::json;
use sluice_placement::{Action, Decision, Measured, Outcome, Scheduler};
use sluice_store::{ClusterVip, NewEvent, StoreError};
use sluice_types::{ClusterId, GatewayId};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Between two rounds: gateways report once a second.
const ROUND: Duration = Duration::from_secs(1);
/// At least between two, where a gateway's load of the moment asks for one; twice as long after each
/// that it asked for in vain, as nothing can be done about some loads.
const PAUSE: Duration = Duration::from_millis(100);

/// Why a round came to nothing.
#[derive(Debug, thiserror::Error)]
enum RoundError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("reports contradict each other")]
    Report(#[from] sluice_placement::ReportError),
}

/// The algorithm, and what it was made with.
struct Memory {
    settings: Settings,
    scheduler: Scheduler,
}

/// Runs until it is dropped.
pub async fn schedule(core: Arc<Core>) {
    let mut memory = None;
    let mut pause = PAUSE;
    loop {
        tokio::time::sleep(pause).await;
        let alarmed = tokio::select! {
            biased;
            () = core.loads.alarmed() => true,
            () = tokio::time::sleep(ROUND - pause) => false,
        };
        let outcome = round(&core, &mut memory).await;
        let in_vain = alarmed && !outcome.as_ref().is_ok_and(|decided| *decided > 0);
        pause = if in_vain { ROUND.min(pause * 2) } else { PAUSE };
        let error = outcome.err();
        if let Some(error) = &error {
            if matches!(error, RoundError::Store(_)) {
                count(&core.counters.store_errors);
            }
            tracing::warn!(error = error as &dyn std::error::Error, "the scheduler has to wait");
        }
        core.scheduler.change(|status| status.error = error.map(|error| error.to_string()));
    }
}

/// The scheduler's settings; what was never set is as by default.
///
/// # Errors
/// Of the store.
pub async fn settings(core: &Core) -> Result<Settings, StoreError> {
    match core.store.setting(SETTINGS_KEY).await? {
        None => Ok(Settings::default()),
        Some(text) => serde_json::from_str(&text)
            .map_err(|error| StoreError::Corrupt(format!("the settings of the scheduler: {error}"))),
    }
}

/// How much was decided.
async fn round(core: &Core, memory: &mut Option<Memory>) -> Result<usize, RoundError> {
    let settings = settings(core).await?;
    core.caught_up().await?;
    let site = placing::settings(core).await?;
    let loads = placing::loads(core);
    let clock_ms = loads.now_ms;
    let corrects = |vip, measured: &Measured| {
        memory.as_ref().map_or(0.0, |memory| memory.scheduler.corrects(vip, measured))
    };
    let (reports, alarms, homes) = core.ledger(|ledger| {
        let clusters = clusters(ledger, &loads, &site);
        let reports = reports(ledger, &clusters, &loads, &corrects);
        (reports, alarms(&clusters, settings.overload_above), homes(ledger))
    });
    core.loads.set_alarms(&if settings.enabled { alarms } else { BTreeMap::new() });
    let outcome = if settings.enabled {
        // New settings are a new beginning.
        let same = memory.take().filter(|memory| memory.settings == settings);
        let mut now = match same {
            Some(same) => same,
            None => Memory { scheduler: Scheduler::new(settings.limits())?, settings },
        };
        // One that died on its way would otherwise hold up all others for ever.
        let moves: Vec<_> = core.members(|members| {
            members.gateway_moves().iter().map(|(id, going)| (*id, going.cluster)).collect()
        });
        let dead = [GatewayState::Failed, GatewayState::CutOff, GatewayState::Unknown];
        let lives = |(id, cluster)| !dead.contains(&core.ownership.gateway(cluster, id).state);
        now.scheduler.others_move(moves.into_iter().any(lives));
        let outcome = now.scheduler.decide(clock_ms, &reports);
        *memory = Some(now);
        outcome?
    } else {
        *memory = None;
        Outcome::default()
    };
    let time_ms = now_ms();
    core.scheduler.change(|status| {
        status.round_ms = time_ms;
        status.reports = reports;
        status.waits = outcome.waits;
        status.wanted = memory.as_ref().map(|memory| memory.scheduler.wanted()).unwrap_or_default();
    });
    let decided = outcome.decisions.len();
    let mut failed = Ok(());
    for decision in outcome.decisions {
        let done = match carry_out(core, &decision, &homes).await {
            Ok(done) => done,
            Err(error) => {
                // What it takes for done was not: it begins anew with the next reports.
                *memory = None;
                failed = Err(error);
                continue;
            }
        };
        if let (false, Some(memory), Some(gateway)) = (done, memory.as_mut(), given(&decision.action)) {
            memory.scheduler.refuse(gateway, clock_ms);
        }
        // The event is there before the status shows the decision.
        let noted = note(core, &decision, done).await;
        core.scheduler.change(|status| {
            status.transfers += u64::from(done && matches!(decision.action, Action::ReassignGateway { .. }));
            status.moves += u64::from(done && matches!(decision.action, Action::MoveVip { .. }));
            status.requests += u64::from(matches!(decision.action, Action::RequestGateway { .. }));
            status.decisions.push_back(Decided { time_ms, decision, done });
        });
        noted?;
    }
    failed?;
    Ok(decided)
}

/// The gateway that is to be given to another cluster.
fn given(action: &Action) -> Option<GatewayId> {
    match *action {
        Action::ReleaseGateway { gateway, .. } | Action::ReassignGateway { gateway, .. } => Some(gateway),
        _ => None,
    }
}

/// Whether a gateway is of a cluster, and could be of another: it stays where it is by nobody else's
/// will, and can have each of the other's vIPs and VPCs.
async fn can_go(core: &Core, gateway: GatewayId, from: ClusterId, to: ClusterId) -> Result<bool, StoreError> {
    if placing::picture(core).await?.too_many(gateway, to).is_some() {
        return Ok(false);
    }
    Ok(core.ledger(|ledger| {
        let Some((from, to)) = ledger.clusters.get(&from).zip(ledger.clusters.get(&to)) else { return false };
        let Some(gateway) = from.gateways.iter().find(|it| it.id == gateway) else { return false };
        let can_own = |vip: &ClusterVip| gateway.has_family(vip.address.is_ipv4());
        gateway.moving.is_none() && !gateway.draining && to.cluster.vips.iter().all(can_own)
    }))
}

/// A gateway that was told to go stays, if it has not joined the other cluster yet.
async fn keep(core: &Core, gateway: GatewayId, cluster: ClusterId, why: &str) -> Result<bool, StoreError> {
    let now = core.store.gateway(gateway).await?;
    if now.cluster == cluster && now.leaves() {
        core.store.move_gateway(gateway, cluster, why, Some(now.revision)).await?;
    }
    Ok(true)
}

/// Does what was decided; false if the cloud is no longer as it was reported.
async fn carry_out(
    core: &Core,
    decision: &Decision,
    homes: &BTreeMap<IpAddr, GatewayId>,
) -> Result<bool, StoreError> {
    let why = decision.why.to_string();
    let result = match decision.action {
        // From a gateway that owns it in place of its home, it gets another home.
        Action::MoveVip { vip, cluster, from, to } => {
            let home = homes.get(&vip).copied().unwrap_or(from);
            core.store.move_home(cluster, vip, home, to).await
        }
        // The event and the metric are all: people are asked.
        Action::RequestGateway { .. } => return Ok(true),
        // It is emptied by moves of its vIPs, which come next.
        Action::ReleaseGateway { gateway, from, to } => return can_go(core, gateway, from, to).await,
        Action::ReassignGateway { gateway, from, to } => {
            if !can_go(core, gateway, from, to).await? {
                return Ok(false);
            }
            let why = format!("the scheduler gives it away, and {why}");
            core.store.move_gateway(gateway, to, &why, None).await.map(|_| true)
        }
        Action::KeepGateway { gateway, cluster } => keep(core, gateway, cluster, &why).await,
    };
    match result {
        Ok(done) => {
            core.wake();
            Ok(done)
        }
        Err(StoreError::NotFound { .. } | StoreError::Conflict(_) | StoreError::Stale { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Its kind, and whom it is about.
fn about(action: &Action) -> (&'static str, String) {
    match action {
        Action::MoveVip { cluster, .. } => ("scheduler_vip", cluster.to_string()),
        Action::ReleaseGateway { gateway, .. } => ("scheduler_release", gateway.to_string()),
        Action::ReassignGateway { gateway, .. } => ("scheduler_reassign", gateway.to_string()),
        Action::KeepGateway { gateway, .. } => ("scheduler_keep", gateway.to_string()),
        Action::RequestGateway { cluster } => ("scheduler_gateway_wanted", cluster.to_string()),
    }
}

async fn note(core: &Core, decision: &Decision, done: bool) -> Result<(), StoreError> {
    let (kind, subject) = about(&decision.action);
    let text = if done { decision.to_string() } else { format!("{decision}; it was no longer so") };
    tracing::info!(decision = text, "scheduler");
    let details = json!({"action": decision.action, "why": decision.why, "done": done});
    core.store.add_event(NewEvent { kind: kind.to_owned(), subject, text, details }).await.map(drop)
}
