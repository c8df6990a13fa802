//! Plans: moves of VPCs between clusters, with reasons and cost, before anything is
//! done.

use super::picture::Picture;
use serde::{Deserialize, Serialize};
use sluice_placement::{InputError, PlacementError, Plan, rebalance, solve};
use sluice_store::StoreError;
use sluice_types::{ClusterId, VpcId};

/// How moves are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = PlanKind)]
pub enum Kind {
    /// Few moves that bring the fullest cluster near the mean.
    Rebalance,
    /// All VPCs placed anew (RGCM), whatever it moves.
    Solve,
}

/// One step: VPCs that are peered go together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Which.
    pub vpcs: Vec<VpcId>,
    /// Where they are.
    pub from: ClusterId,
    /// Where they go.
    pub to: ClusterId,
    /// Entries to write in each gateway of the new cluster.
    pub entries: u64,
    /// Why, for programs.
    pub reason: serde_json::Value,
    /// Why, for people; and what is exceeded behind this step, if anything is.
    pub text: String,
}

/// A plan as it was drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drawn {
    /// How.
    pub kind: Kind,
    /// Of the random numbers.
    pub seed: u64,
    /// Of the database, that it was drawn from.
    pub revision: u64,
    /// Load of the fullest cluster before the first move; what is on clusters that shall carry
    /// nothing is not counted.
    pub lambda_before: f64,
    /// The same behind the last.
    pub lambda: f64,
    /// What it is at least, whatever is moved.
    pub lambda_at_least: f64,
    /// Tenants on more clusters than they may be, before.
    pub tenants_over_k_before: usize,
    /// The same behind the last move.
    pub tenants_over_k: usize,
    /// In the order in which they are to be made.
    pub steps: Vec<Step>,
}

/// Finds moves. The same picture, kind, seed and tolerance give the same plan. `tolerance`: how far above
/// the best the fullest cluster may stay, for [`Kind::Rebalance`].
///
/// # Errors
/// As [`solve`] and [`rebalance`].
pub fn draw(picture: &Picture, kind: Kind, seed: u64, tolerance: f64) -> Result<Drawn, PlacementError> {
    let (problem, present) = picture.problem()?;
    let before = picture.balance();
    let (plan, wanted) = match kind {
        Kind::Rebalance => {
            let found = rebalance(&problem, &present, tolerance)?;
            (found.plan, found.placement)
        }
        Kind::Solve => {
            let settings = sluice_placement::Settings { seed, ..Default::default() };
            let found = solve(&problem, &settings)?;
            (Plan::between(&problem, &present, &found.placement)?, found.placement)
        }
    };
    let steps = plan.moves.into_iter().map(|step| self::step(picture, step));
    Ok(Drawn {
        kind,
        seed,
        revision: picture.revision,
        lambda_before: before.lambda,
        lambda: problem.lambda(&wanted)?,
        lambda_at_least: before.lambda_at_least,
        tenants_over_k_before: before.tenants_over_k,
        tenants_over_k: problem.tenants_over_k(&wanted)?,
        steps: steps.collect::<Result<_, _>>()?,
    })
}

/// A plan as it was stored.
///
/// # Errors
/// [`StoreError::Corrupt`].
pub fn read(text: &str) -> Result<Drawn, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::Corrupt(format!("a plan: {error}")))
}

fn step(picture: &Picture, step: sluice_placement::Move) -> Result<Step, InputError> {
    // Every VPC is on a cluster, so every move leaves one.
    let from = step.from.ok_or(InputError::NotPlaced(step.vpc))?;
    let excess = step.excess.iter().map(|excess| format!("; {excess}"));
    let text = std::iter::once(step.reason.to_string()).chain(excess).collect();
    Ok(Step {
        vpcs: picture.units.get(&step.vpc).cloned().unwrap_or_else(|| vec![step.vpc]),
        from,
        to: step.to,
        entries: step.entries,
        reason: serde_json::to_value(step.reason).unwrap_or_default(),
        text,
    })
}

#[cfg(test)]
mod tests {
    use super::super::Settings;
    use super::super::picture::tests::{gateway, loads, topology};
    use super::*;
    use crate::ledger::Ledger;
    use crate::ledger::tests::vpc;
    use sluice_store::Peering;
    use sluice_types::PeeringId;

    /// Three clusters of a gateway each; all VPCs on the first, each of 10 packets a second, 1 and 2 peered.
    fn crowded(vpcs: u64, k: usize) -> Picture {
        let gateways = (1..=3).map(|id| gateway(id, id, false)).collect();
        let all = (1..=vpcs).map(|id| vpc(id, id.div_ceil(2), 1, 1)).collect();
        let mut topology = topology(3, gateways, all);
        let (a, b) = (VpcId::new(1), VpcId::new(2));
        topology.peerings = vec![Peering { id: PeeringId::new(1), name: String::new(), a, b, revision: 1 }];
        let demands: Vec<(u32, f64)> = (1..=vpcs as u32).map(|vni| (vni, 10.0)).collect();
        let settings = Settings { clusters_per_tenant: k, gateway_capacity_pps: 100, ..Settings::default() };
        Picture::new(
            &Ledger::new(&topology, 9, &[]),
            &loads(&[(1, 4096), (2, 4096), (3, 4096)], &demands),
            settings,
        )
    }

    #[test]
    fn both_kinds_bring_the_fullest_cluster_to_the_mean() {
        let picture = crowded(12, 2);
        for kind in [Kind::Rebalance, Kind::Solve] {
            let drawn = draw(&picture, kind, 7, 0.0).unwrap();
            assert_eq!((drawn.lambda_before, drawn.lambda_at_least), (1.2, 0.4), "{kind:?}");
            assert!((drawn.lambda - 0.4).abs() < 1e-9, "{kind:?}: {}", drawn.lambda);
            assert_eq!(drawn, draw(&picture, kind, 7, 0.0).unwrap(), "the same seed, the same plan");
            for step in &drawn.steps {
                assert!(!step.text.is_empty() && step.from == ClusterId::new(1));
                let peered = step.vpcs.iter().filter(|vpc| vpc.get() <= 2).count();
                assert!(peered == 0 && step.vpcs.len() == 1 || peered == 2, "{:?}", step.vpcs);
                assert_eq!(step.entries, step.vpcs.len() as u64);
            }
            let moved: usize = drawn.steps.iter().map(|step| step.vpcs.len()).sum();
            assert_eq!(moved, 8, "{kind:?}");
        }
        let text = &draw(&picture, Kind::Rebalance, 1, 0.0).unwrap().steps[0].text;
        assert!(text.starts_with("its cluster is at 120.0% of its packet rate, the other at 0.0%"), "{text}");
    }

    #[test]
    fn nothing_moves_without_need_and_what_does_not_fit_is_refused() {
        let picture = crowded(2, 4);
        let drawn = draw(&picture, Kind::Rebalance, 1, 0.1).unwrap();
        assert_eq!((drawn.steps.len(), drawn.lambda), (0, 0.2), "peered VPCs cannot part");
        let error = draw(&crowded(40, 4), Kind::Solve, 1, 0.1).unwrap_err().to_string();
        assert!(error.contains("400 packets/s are needed"), "{error}");
        let error = draw(&picture, Kind::Rebalance, 1, -1.0).unwrap_err().to_string();
        assert!(error.contains("tolerance"), "{error}");
    }
}
