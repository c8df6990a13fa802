//! Carries plans out: VPCs are told to move (`crate::moves` drives each move), a few
//! steps at a time. How far a plan is follows from where its VPCs are, so that a
//! controller that starts goes on where another one ended.

use super::picture::Picture;
use super::plans::{Drawn, Step, read};
use crate::core::{Core, count};
use serde_json::json;
use sluice_store::{NewEvent, PlanProgress, PlanState, StoreError, Vpc};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Plans are looked at this often.
const LOOK: Duration = Duration::from_millis(100);
/// While none is carried out.
const IDLE: Duration = Duration::from_millis(500);

/// Where a step is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum StepState {
    /// Its VPCs are where they were when it was drawn.
    Waits,
    /// They are on their way.
    UnderWay,
    /// They have arrived, or are gone.
    Finished,
    /// Somebody else has moved them.
    Overtaken(String),
}

/// Where a step is, from its VPCs that are there still.
fn judge(step: &Step, vpcs: &[Vpc]) -> StepState {
    let mut state = StepState::Finished;
    for vpc in vpcs {
        match vpc.moving.map(|moving| moving.to) {
            None if vpc.cluster == step.to => {}
            Some(to) if to == step.to => state = StepState::UnderWay,
            None if vpc.cluster == step.from => {
                if state == StepState::Finished {
                    state = StepState::Waits;
                }
            }
            other => {
                let at = match other {
                    Some(to) => format!("on its way to {to}"),
                    None => format!("on {}", vpc.cluster),
                };
                return StepState::Overtaken(format!(
                    "{} is {at}, the plan expects it on {}: draw a new plan",
                    vpc.id, step.from
                ));
            }
        }
    }
    state
}

/// What a round comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Round {
    /// Steps behind it, from the first on.
    done: usize,
    /// The step to begin, by number: one a round, so that the next is judged by what that one takes.
    begin: Option<usize>,
    /// Why the plan cannot go on.
    stop: Option<String>,
}

/// What is to be done, where the next `parallel` steps are as `states` says: those of `steps` from `done`
/// on, at least `parallel` of them or all there are. `fits`: whether the new cluster's tables hold a step's
/// VPCs beside all that is there.
fn round(
    steps: &[Step],
    done: usize,
    states: &[StepState],
    parallel: usize,
    fits: impl Fn(&Step) -> Result<(), String>,
) -> Round {
    let finished = states.iter().take_while(|state| **state == StepState::Finished).count();
    let mut round = Round { done: done + finished, begin: None, stop: None };
    let under_way = states.iter().filter(|state| **state == StepState::UnderWay).count();
    let free = parallel.saturating_sub(under_way);
    for (number, state) in (done..).zip(states) {
        match state {
            StepState::Waits if free > 0 => match fits(&steps[number]) {
                Ok(()) => {
                    round.begin = Some(number);
                    break;
                }
                // Steps under way may make room.
                Err(_) if under_way > 0 => break,
                Err(why) => {
                    round.stop = Some(format!("step {}: {why}", number + 1));
                    break;
                }
            },
            StepState::Overtaken(why) => {
                round.stop = Some(format!("step {}: {why}", number + 1));
                break;
            }
            _ => {}
        }
    }
    round
}

/// Whether a step's VPCs fit, `arriving` and leaving ones counted.
fn fits(picture: &Picture, under_way: &[&Step], step: &Step) -> Result<(), String> {
    let Some(cluster) = picture.clusters.iter().find(|cluster| cluster.id == step.to) else {
        return Err(format!("there is no {} any more", step.to));
    };
    // A VPC on its way counts where it goes; until it has arrived, its entries are where it was, too.
    let leaving: u64 = under_way.iter().filter(|other| other.from == step.to).map(|step| step.entries).sum();
    let needed = cluster.entries + leaving + step.entries;
    if needed > cluster.capacity_entries {
        let holds = cluster.capacity_entries;
        return Err(format!("{} would have {needed} entries and holds {holds}", step.to));
    }
    Ok(())
}

/// Runs until it is dropped.
pub async fn apply_plans(core: Arc<Core>) {
    let mut read: BTreeMap<u64, Drawn> = BTreeMap::new();
    loop {
        let wait = match look(&core, &mut read).await {
            Ok(false) => IDLE,
            Ok(true) => LOOK,
            Err(error) => {
                count(&core.counters.store_errors);
                tracing::warn!(error = &error as &dyn std::error::Error, "plans of moves have to wait");
                IDLE
            }
        };
        tokio::time::sleep(wait).await;
    }
}

/// One look at the plan that is carried out; false if none is.
async fn look(core: &Core, drawn: &mut BTreeMap<u64, Drawn>) -> Result<bool, StoreError> {
    let plans = core.store.plans().await?;
    let applying: Vec<&PlanProgress> =
        plans.iter().filter(|plan| plan.state == PlanState::Applying).collect();
    drawn.retain(|id, _| applying.iter().any(|plan| plan.id == *id));
    for plan in &applying {
        if let std::collections::btree_map::Entry::Vacant(place) = drawn.entry(plan.id) {
            match read(&core.store.plan(plan.id).await?.body) {
                Ok(drawn) => drop(place.insert(drawn)),
                Err(error) => {
                    let why = format!("the plan cannot be read: {error}");
                    tracing::error!(plan = plan.id, why, "a plan stops");
                    core.store.note_plan(plan.id, PlanState::Stopped, plan.done, &why).await?;
                }
            }
        }
        if let Some(drawn) = drawn.get(&plan.id) {
            advance(core, plan, &drawn.steps).await?;
        }
    }
    Ok(!applying.is_empty())
}

async fn state_of(core: &Core, step: &Step) -> Result<StepState, StoreError> {
    let mut vpcs = Vec::new();
    for id in &step.vpcs {
        match core.store.vpc(*id).await {
            Ok(vpc) => vpcs.push(vpc),
            Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(judge(step, &vpcs))
}

async fn advance(core: &Core, plan: &PlanProgress, steps: &[Step]) -> Result<(), StoreError> {
    let (done, parallel) = (plan.done as usize, plan.parallel.max(1) as usize);
    let mut states = Vec::new();
    let mut open = 0;
    for step in steps.iter().skip(done) {
        let state = state_of(core, step).await?;
        open += usize::from(state != StepState::Finished);
        states.push(state);
        if open >= parallel {
            break;
        }
    }
    core.caught_up().await?;
    let picture = super::picture(core).await?;
    let next = steps.iter().skip(done).zip(&states);
    let under_way: Vec<&Step> =
        next.filter(|(_, state)| **state == StepState::UnderWay).map(|(step, _)| step).collect();
    let mut round = round(steps, done, &states, parallel, |step| fits(&picture, &under_way, step));
    if let Some(number) = round.begin
        && let Err(error) = begin(core, plan.id, number, &steps[number]).await
    {
        let StoreError::Conflict(conflict) = &error else { return Err(error) };
        round.stop = Some(format!("step {}: {conflict}", number + 1));
    }
    let state = match &round.stop {
        Some(_) => PlanState::Stopped,
        None if round.done == steps.len() => PlanState::Done,
        None => PlanState::Applying,
    };
    if state == PlanState::Applying && round.done == done {
        return Ok(());
    }
    let why = round.stop.unwrap_or_default();
    if core.store.note_plan(plan.id, state, round.done as u64, &why).await? && state != PlanState::Applying {
        let text = match state {
            PlanState::Done => format!("plan {} is done: {} steps", plan.id, steps.len()),
            _ => format!("plan {} stops: {why}", plan.id),
        };
        tracing::info!("{text}");
        note(core, "plan_ended", format!("plan-{}", plan.id), text, json!({"state": state.text()})).await?;
    }
    Ok(())
}

async fn begin(core: &Core, plan: u64, number: usize, step: &Step) -> Result<(), StoreError> {
    let mut begun = None;
    // Those that a VPC is peered with go with it; each is asked for all the same, as they may be peered no more.
    for vpc in &step.vpcs {
        match core.store.move_vpc(*vpc, step.to, None).await {
            Ok(_) => {
                begun.get_or_insert(*vpc);
            }
            Err(StoreError::NotFound { kind: "VPC", .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let Some(vpc) = begun else { return Ok(()) };
    core.wake();
    let Step { from, to, text, .. } = step;
    let text = format!("step {} of plan {plan} moves {vpc} from {from} to {to}: {text}", number + 1);
    let details = json!({
        "plan": plan, "step": number + 1, "from": step.from, "to": step.to, "vpcs": step.vpcs,
        "entries": step.entries, "reason": step.reason,
    });
    note(core, "plan_step", vpc.to_string(), text, details).await
}

async fn note(
    core: &Core,
    kind: &str,
    subject: String,
    text: String,
    details: serde_json::Value,
) -> Result<(), StoreError> {
    core.store.add_event(NewEvent { kind: kind.to_owned(), subject, text, details }).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::tests::vpc;
    use sluice_store::Move;
    use sluice_types::{ClusterId, VpcId};

    fn step(vpcs: &[u64]) -> Step {
        Step {
            vpcs: vpcs.iter().map(|id| VpcId::new(*id)).collect(),
            from: ClusterId::new(1),
            to: ClusterId::new(2),
            entries: 5,
            reason: json!({}),
            text: "why".into(),
        }
    }

    fn at(id: u64, cluster: u64, to: Option<u64>) -> Vpc {
        let moving = to.map(|to| Move { id: 9, to: ClusterId::new(to), switched: false });
        Vpc { moving, ..vpc(id, 1, cluster, 1) }
    }

    #[test]
    fn where_a_step_is_follows_from_its_vpcs() {
        let step = step(&[1, 2]);
        assert_eq!(judge(&step, &[at(1, 1, None), at(2, 1, None)]), StepState::Waits);
        assert_eq!(judge(&step, &[at(1, 1, Some(2)), at(2, 1, Some(2))]), StepState::UnderWay);
        assert_eq!(judge(&step, &[at(1, 2, None), at(2, 2, None)]), StepState::Finished);
        assert_eq!(judge(&step, &[]), StepState::Finished, "all deleted");
        assert_eq!(judge(&step, &[at(1, 2, None), at(2, 1, None)]), StepState::Waits, "no longer peered");
        for elsewhere in [at(1, 3, None), at(1, 1, Some(3)), at(1, 2, Some(1))] {
            let state = judge(&step, &[elsewhere]);
            let StepState::Overtaken(text) = state else { panic!("{state:?}") };
            assert!(text.contains("vpc-1") && text.ends_with("draw a new plan"), "{text}");
        }
    }

    #[test]
    fn so_many_steps_at_a_time_in_order() {
        use StepState::*;
        let steps: Vec<Step> = (1..=5).map(|id| step(&[id])).collect();
        let room = |_: &Step| Ok(());
        let did = |done, begin| Round { done, begin, stop: None };
        assert_eq!(round(&steps, 0, &[Waits], 1, room), did(0, Some(0)));
        assert_eq!(round(&steps, 0, &[UnderWay], 1, room), did(0, None));
        assert_eq!(round(&steps, 0, &[Finished, Finished, Waits], 1, room), did(2, Some(2)));
        assert_eq!(round(&steps, 1, &[UnderWay, Finished, Waits, Waits], 3, room), did(1, Some(3)));
        assert_eq!(round(&steps, 3, &[Finished, Finished], 3, room), did(5, None));
        let full = |_: &Step| Err("full".to_owned());
        assert_eq!(round(&steps, 0, &[UnderWay, Waits], 2, full), did(0, None), "there may be room later");
        let stopped = round(&steps, 1, &[Finished, Waits], 2, full);
        assert_eq!((stopped.done, stopped.stop.as_deref()), (2, Some("step 3: full")));
        let overtaken = round(&steps, 0, &[Overtaken("gone".into()), Waits], 2, room);
        assert_eq!((overtaken.begin, overtaken.stop.as_deref()), (None, Some("step 1: gone")));
    }
}
