//! Applies plans: starts the moves of VPCs, a few steps at a time; the module `moves` drives each move. The
//! progress of a plan follows from where its VPCs are, so a controller that starts continues where another
//! one ended.
//!
//! States of a step, and what changes them:
//!
//! ```text
//!  Pending ──start_step()──▶ Moving ──all VPCs arrived──▶ Done
//!     │                        │
//!     └──── a VPC is elsewhere or moves elsewhere ────▶ Superseded (the plan stops)
//! ```
//!
//! A step whose VPCs were all deleted is done.

use super::Place;
use super::plans::{ComputedPlan, PlanStep, parse_plan};
use super::usage::Usage;
use serde_json::json;
use sluice_store::{NewEvent, PlanProgress, PlanState, StoreError, Vpc};
use sluice_types::VpcId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Interval between checks while a plan is applied.
const CHECK: Duration = Duration::from_millis(100);
/// Interval while no plan is applied.
const IDLE: Duration = Duration::from_millis(500);

/// State of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
enum StepState {
    /// Its VPCs are where they were when the plan was computed.
    Pending,
    /// Its VPCs are moving.
    Moving,
    /// Its VPCs have arrived, or were deleted.
    Done,
    /// A VPC is on another cluster than the plan expects. Contains the explanation.
    Superseded(String),
}

/// The state of a step, from those of its VPCs that still exist.
fn step_state(step: &PlanStep, vpcs: &[Vpc]) -> StepState {
    let mut state = StepState::Done;
    for vpc in vpcs {
        match vpc.moving.map(|moving| moving.to) {
            None if vpc.cluster == step.to => {}
            Some(to) if to == step.to => state = StepState::Moving,
            None if vpc.cluster == step.from => {
                if state == StepState::Done {
                    state = StepState::Pending;
                }
            }
            other => {
                let at = match other {
                    Some(to) => format!("moving to {to}"),
                    None => format!("on {}", vpc.cluster),
                };
                return StepState::Superseded(format!(
                    "{} is {at}, but the plan expects it on {}: compute a new plan",
                    vpc.id, step.from
                ));
            }
        }
    }
    state
}

/// What a check of the plan leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NextAction {
    /// Number of completed steps, counted from the first.
    done: usize,
    /// Index of the step to start. One at a time, so that the next check counts its entries.
    start: Option<usize>,
    /// Reason why the plan stops.
    stop: Option<String>,
}

/// Decides what to do next. `states` are the states of `steps` from index `done` on, with at least `parallel`
/// steps that are not done, or all steps. `fits` says whether the tables of the new cluster hold the VPCs of
/// a step in addition to what they have.
fn next_action(
    steps: &[PlanStep],
    done: usize,
    states: &[StepState],
    parallel: usize,
    fits: impl Fn(&PlanStep) -> Result<(), String>,
) -> NextAction {
    let finished = states.iter().take_while(|state| **state == StepState::Done).count();
    let mut next = NextAction { done: done + finished, start: None, stop: None };
    let moving = states.iter().filter(|state| **state == StepState::Moving).count();
    let free = parallel.saturating_sub(moving);
    for (number, state) in (done..).zip(states) {
        match state {
            StepState::Pending if free > 0 => match fits(&steps[number]) {
                Ok(()) => {
                    next.start = Some(number);
                    break;
                }
                // Moving steps may free table space.
                Err(_) if moving > 0 => break,
                Err(reason) => {
                    next.stop = Some(format!("step {}: {reason}", number + 1));
                    break;
                }
            },
            StepState::Superseded(reason) => {
                next.stop = Some(format!("step {}: {reason}", number + 1));
                break;
            }
            _ => {}
        }
    }
    next
}

/// Checks that the VPCs of a step, with the entries and peers that they have now, fit into the new cluster's
/// tables.
fn check_space(usage: &Usage, step: &PlanStep) -> Result<(), String> {
    let to = step.to;
    if !usage.clusters.iter().any(|cluster| cluster.id == to) {
        return Err(format!("{to} does not exist any more"));
    }
    let vpcs: Vec<VpcId> = step.vpcs.iter().flat_map(|vpc| usage.unit_of(*vpc)).collect();
    match usage.missing_vpc_space(&vpcs, to) {
        None => Ok(()),
        Some((needed, size)) => {
            Err(format!("{to} would have {needed} entries, but its tables hold only {size}"))
        }
    }
}

/// Applies plans until it is dropped.
pub async fn apply_plans(place: Arc<Place>) {
    let mut computed: BTreeMap<u64, ComputedPlan> = BTreeMap::new();
    loop {
        let wait = match check_plans(&place, &mut computed).await {
            Ok(false) => IDLE,
            Ok(true) => CHECK,
            Err(error) => {
                place.db.count_error();
                tracing::warn!(error = &error as &dyn std::error::Error, "cannot continue to apply plans");
                IDLE
            }
        };
        tokio::time::sleep(wait).await;
    }
}

/// Continues the plans that are being applied. Returns false if no plan is being applied.
async fn check_plans(place: &Place, computed: &mut BTreeMap<u64, ComputedPlan>) -> Result<bool, StoreError> {
    let plans = place.db.store.plans().await?;
    let applying: Vec<&PlanProgress> =
        plans.iter().filter(|plan| plan.state == PlanState::Applying).collect();
    computed.retain(|id, _| applying.iter().any(|plan| plan.id == *id));
    for plan in &applying {
        if let std::collections::btree_map::Entry::Vacant(entry) = computed.entry(plan.id) {
            match parse_plan(&place.db.store.plan(plan.id).await?.body) {
                Ok(plan) => drop(entry.insert(plan)),
                Err(error) => {
                    tracing::error!(plan = plan.id, %error, "cannot parse the stored plan");
                    let reason = format!("the stored plan cannot be parsed: {error}");
                    end(place, plan, PlanState::Stopped, plan.done, &reason).await?;
                }
            }
        }
        if let Some(computed) = computed.get(&plan.id) {
            advance(place, plan, &computed.steps).await?;
        }
    }
    Ok(!applying.is_empty())
}

async fn read_step_state(place: &Place, step: &PlanStep) -> Result<StepState, StoreError> {
    let mut vpcs = Vec::new();
    for id in &step.vpcs {
        match place.db.store.vpc(*id).await {
            Ok(vpc) => vpcs.push(vpc),
            Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(step_state(step, &vpcs))
}

async fn advance(place: &Place, plan: &PlanProgress, steps: &[PlanStep]) -> Result<(), StoreError> {
    let (done, parallel) = (plan.done as usize, plan.parallel.max(1) as usize);
    let mut states = Vec::new();
    let mut open = 0;
    for step in steps.iter().skip(done) {
        let state = read_step_state(place, step).await?;
        open += usize::from(state != StepState::Done);
        states.push(state);
        if open >= parallel {
            break;
        }
    }
    if !place.catch_up().await? {
        return Ok(());
    }
    let usage = place.usage().await?;
    let mut next = next_action(steps, done, &states, parallel, |step| check_space(&usage, step));
    if let Some(number) = next.start {
        // The operator may have stopped it in the meantime.
        if !is_applying(place, plan.id).await? {
            return Ok(());
        }
        if let Err(error) = start_step(place, plan.id, number, &steps[number]).await {
            let StoreError::Conflict(conflict) = &error else { return Err(error) };
            next.stop = Some(format!("step {}: {conflict}", number + 1));
        }
    }
    let now_done = next.done as u64;
    match next.stop {
        Some(reason) => end(place, plan, PlanState::Stopped, now_done, &reason).await,
        None if next.done == steps.len() => end(place, plan, PlanState::Done, now_done, "").await,
        None if next.done == done => Ok(()),
        None => {
            let store = &place.db.store;
            store.update_plan_progress(plan.id, PlanState::Applying, now_done, "").await.map(drop)
        }
    }
}

async fn is_applying(place: &Place, plan: u64) -> Result<bool, StoreError> {
    let plans = place.db.store.plans().await?;
    Ok(plans.iter().any(|other| other.id == plan && other.state == PlanState::Applying))
}

/// Ends a plan that is still being applied.
async fn end(
    place: &Place,
    plan: &PlanProgress,
    state: PlanState,
    done: u64,
    reason: &str,
) -> Result<(), StoreError> {
    if !place.db.store.update_plan_progress(plan.id, state, done, reason).await? {
        return Ok(());
    }
    let text = match state {
        PlanState::Done => format!("plan {} is done: {} steps", plan.id, plan.steps),
        _ => format!("plan {} stopped: {reason}", plan.id),
    };
    record_end(place, plan.id, state, text).await
}

async fn record_end(place: &Place, plan: u64, state: PlanState, text: String) -> Result<(), StoreError> {
    tracing::info!("{text}");
    note(place, "plan_ended", format!("plan-{plan}"), text, json!({"state": state.text()})).await
}

/// Stops a plan for the operator: no more steps start, and steps that have started are finished.
///
/// # Errors
/// Errors of the store, such as a conflict if the plan is not being applied.
pub async fn stop_plan(place: &Place, plan: u64) -> Result<PlanProgress, StoreError> {
    let stopped = place.db.store.stop_plan(plan, "stopped by the operator").await?;
    let text = format!("plan {plan} was stopped by the operator");
    record_end(place, plan, PlanState::Stopped, text).await?;
    Ok(stopped)
}

async fn start_step(place: &Place, plan: u64, number: usize, step: &PlanStep) -> Result<(), StoreError> {
    let mut first = None;
    // A VPC takes its peers along. Each is requested anyway, because they may not be peered any more.
    for vpc in &step.vpcs {
        match place.db.store.move_vpc(*vpc, step.to, None).await {
            Ok(_) => {
                first.get_or_insert(*vpc);
            }
            Err(StoreError::NotFound { kind: "VPC", .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let Some(vpc) = first else { return Ok(()) };
    place.db.notify_commit();
    let PlanStep { from, to, text, .. } = step;
    let text = format!("step {} of plan {plan} moves {vpc} from {from} to {to}: {text}", number + 1);
    let details = json!({
        "plan": plan, "step": number + 1, "from": step.from, "to": step.to, "vpcs": step.vpcs,
        "entries": step.entries, "reason": step.reason,
    });
    note(place, "plan_step", vpc.to_string(), text, details).await
}

async fn note(
    place: &Place,
    kind: &str,
    subject: String,
    text: String,
    details: serde_json::Value,
) -> Result<(), StoreError> {
    place.db.store.add_event(NewEvent { kind: kind.to_owned(), subject, text, details }).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::super::ledger::Ledger;
    use super::super::ledger::tests::{ipv4, vpc};
    use super::super::tests::{follow, place};
    use super::super::usage::tests::{gateway, loads, topology};
    use super::*;
    use sluice_store::{Conflict, Move, NewGateway, NewVpc, Topology};
    use sluice_types::{ClusterId, PlacementSettings};
    use std::net::IpAddr;

    fn step(vpcs: &[u64]) -> PlanStep {
        PlanStep {
            vpcs: vpcs.iter().map(|id| VpcId::new(*id)).collect(),
            from: ClusterId::new(1),
            to: ClusterId::new(2),
            entries: 5,
            reason: json!({}),
            text: "reason".into(),
            exceeded: Vec::new(),
        }
    }

    fn at(id: u64, cluster: u64, to: Option<u64>) -> Vpc {
        let moving = to.map(|to| Move { id: 9, to: ClusterId::new(to), switched: false });
        Vpc { moving, ..vpc(id, 1, cluster, 1) }
    }

    #[test]
    fn state_of_a_step_follows_from_its_vpcs() {
        let step = step(&[1, 2]);
        assert_eq!(step_state(&step, &[at(1, 1, None), at(2, 1, None)]), StepState::Pending);
        assert_eq!(step_state(&step, &[at(1, 1, Some(2)), at(2, 1, Some(2))]), StepState::Moving);
        assert_eq!(step_state(&step, &[at(1, 2, None), at(2, 2, None)]), StepState::Done);
        assert_eq!(step_state(&step, &[]), StepState::Done, "all deleted");
        assert_eq!(
            step_state(&step, &[at(1, 2, None), at(2, 1, None)]),
            StepState::Pending,
            "no longer peered"
        );
        for elsewhere in [at(1, 3, None), at(1, 1, Some(3)), at(1, 2, Some(1))] {
            let state = step_state(&step, &[elsewhere]);
            let StepState::Superseded(text) = state else { panic!("{state:?}") };
            assert!(text.contains("vpc-1") && text.ends_with("compute a new plan"), "{text}");
        }
    }

    #[test]
    fn steps_start_in_order_up_to_the_limit() {
        use StepState::*;
        let steps: Vec<PlanStep> = (1..=5).map(|id| step(&[id])).collect();
        let fits = |_: &PlanStep| Ok(());
        let next = |done, start| NextAction { done, start, stop: None };
        assert_eq!(next_action(&steps, 0, &[Pending], 1, fits), next(0, Some(0)));
        assert_eq!(next_action(&steps, 0, &[Moving], 1, fits), next(0, None));
        assert_eq!(next_action(&steps, 0, &[Done, Done, Pending], 1, fits), next(2, Some(2)));
        assert_eq!(next_action(&steps, 1, &[Moving, Done, Pending, Pending], 3, fits), next(1, Some(3)));
        assert_eq!(next_action(&steps, 3, &[Done, Done], 3, fits), next(5, None));
        let full = |_: &PlanStep| Err("full".to_owned());
        assert_eq!(
            next_action(&steps, 0, &[Moving, Pending], 2, full),
            next(0, None),
            "a moving step may free space"
        );
        let stopped = next_action(&steps, 1, &[Done, Pending], 2, full);
        assert_eq!((stopped.done, stopped.stop.as_deref()), (2, Some("step 3: full")));
        let superseded = next_action(&steps, 0, &[Superseded("gone".into()), Pending], 2, fits);
        assert_eq!((superseded.start, superseded.stop.as_deref()), (None, Some("step 1: gone")));
    }

    #[test]
    fn vpc_that_has_grown_since_the_plan_must_fit() {
        let gateways = vec![gateway(1, 1, false), gateway(2, 2, false)];
        let topology = topology(2, gateways, vec![vpc(1, 1, 1, 1)]);
        let usage = |addresses| {
            let ledger = Ledger::new(&topology, 9, &[(VpcId::new(1), ipv4(addresses))]);
            Usage::new(&ledger, &loads(&[(2, 10)], &[]), PlacementSettings::default())
        };
        assert_eq!(check_space(&usage(9), &step(&[1])), Ok(()));
        let error = check_space(&usage(10), &step(&[1])).unwrap_err();
        assert_eq!(error, "cluster-2 would have 11 entries, but its tables hold only 10");
        let gone = PlanStep { to: ClusterId::new(9), ..step(&[1]) };
        assert_eq!(check_space(&usage(9), &gone).unwrap_err(), "cluster-9 does not exist any more");
    }

    /// A plan that is being applied, whose only step moves a VPC from one cluster to another.
    struct Site {
        place: Place,
        topology: Topology,
        vpc: VpcId,
        plan: PlanProgress,
        steps: Vec<PlanStep>,
    }

    impl Site {
        async fn new() -> Self {
            let place = place().await;
            let store = &place.db.store;
            let tenant = store.create_tenant("t").await.unwrap().into_inner().id;
            let mut topology = Topology::default();
            for number in 1..=2_u8 {
                let vips: [IpAddr; 1] = [[192, 0, 2, number].into()];
                let cluster = store.create_cluster(&format!("c{number}"), &vips, None).await.unwrap();
                let cluster = cluster.into_inner();
                let (name, vtep4) = (format!("g{number}"), Some([198, 51, 100, number].into()));
                let new = NewGateway { name, cluster: cluster.id, vtep4, vtep6: None };
                topology.gateways.push(store.create_gateway(new).await.unwrap().into_inner());
                topology.clusters.push(cluster);
            }
            let (from, to) = (topology.clusters[0].id, topology.clusters[1].id);
            let name = "v".to_owned();
            let new = NewVpc {
                name,
                tenant,
                vni: None,
                cluster: from,
                mtu: 1430,
                offload_kbps: None,
                internet_meter: None,
            };
            let vpc = store.create_vpc(new).await.unwrap().into_inner();
            let steps = vec![PlanStep { vpcs: vec![vpc.id], from, to, ..step(&[]) }];
            let id = store.add_plan(0, 1, "not read").await.unwrap();
            let plan = store.apply_plan(id, 1).await.unwrap();
            let id = vpc.id;
            topology.vpcs.push(vpc);
            Self { place, topology, vpc: id, plan, steps }
        }

        /// Advances the plan as it was when it was applied. Returns its state, and whether the VPC moves.
        async fn advance(&self) -> (PlanState, bool) {
            advance(&self.place, &self.plan, &self.steps).await.unwrap();
            let store = &self.place.db.store;
            let state = store.plan(self.plan.id).await.unwrap().progress.state;
            (state, store.vpc(self.vpc).await.unwrap().moving.is_some())
        }
    }

    #[tokio::test]
    async fn plan_waits_until_the_placement_is_known() {
        let site = Site::new().await;
        assert_eq!(site.advance().await, (PlanState::Applying, false));
        follow(&site.place, site.topology.clone()).await;
        assert_eq!(site.advance().await, (PlanState::Applying, true));
    }

    #[tokio::test]
    async fn plan_that_is_stopped_starts_no_step() {
        let site = Site::new().await;
        follow(&site.place, site.topology.clone()).await;
        let (place, id) = (&site.place, site.plan.id);
        assert_eq!(stop_plan(place, id).await.unwrap().state, PlanState::Stopped);
        assert_eq!(site.advance().await, (PlanState::Stopped, false));
        let again = stop_plan(place, id).await;
        assert!(matches!(again, Err(StoreError::Conflict(Conflict::PlanNotApplying { .. }))), "{again:?}");
        let events = place.db.store.events(Some(&format!("plan-{id}")), None, 10).await.unwrap();
        let events: Vec<_> = events.iter().map(|event| (event.kind.as_str(), event.text.as_str())).collect();
        assert_eq!(events, [("plan_ended", "plan 1 was stopped by the operator")]);
    }
}
