//! Computes plans: moves of VPCs between clusters with reasons and cost, which are stored and shown before any
//! VPC moves. This file changes when plans are computed or stored in another way.

use super::usage::Usage;
use serde::{Deserialize, Serialize};
use sluice_placement::{InputError, PlacementError, PlacementPlan, rebalance, solve};
use sluice_store::StoreError;
use sluice_types::{ClusterId, VpcId};

/// How the moves of a plan are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PlanKind {
    /// Few moves that bring the most loaded cluster near the mean.
    Rebalance,
    /// A new placement of all VPCs (RGCM), with any number of moves.
    Solve,
}

/// One step of a plan. Peered VPCs move together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanStep {
    /// The VPCs that move.
    pub vpcs: Vec<VpcId>,
    /// Their present cluster.
    pub from: ClusterId,
    /// Their new cluster.
    pub to: ClusterId,
    /// Number of entries to write to each gateway of the new cluster.
    pub entries: u64,
    /// Reason, for programs.
    pub reason: serde_json::Value,
    /// Reason, for people.
    pub text: String,
    /// Limits that are exceeded after this step, for people.
    #[serde(default)]
    pub exceeded: Vec<String>,
}

/// A plan as it was computed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComputedPlan {
    /// How the moves were found.
    pub kind: PlanKind,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Database revision of the placement that it starts from.
    pub revision: u64,
    /// Load of the most loaded cluster before the first step. VPCs on clusters without serving gateways do
    /// not count.
    pub max_load_before: f64,
    /// Load of the most loaded cluster after the last step.
    pub max_load: f64,
    /// Lower bound of that load for any placement.
    pub max_load_lower_bound: f64,
    /// Number of tenants on more clusters than the limit, before the first step.
    pub tenants_over_cluster_limit_before: usize,
    /// Number of tenants on more clusters than the limit, after the last step.
    pub tenants_over_cluster_limit: usize,
    /// Steps in the order in which they are made.
    pub steps: Vec<PlanStep>,
}

/// Computes a plan. The same usage, kind, seed and tolerance give the same plan. `tolerance` says how far
/// above the lower bound the most loaded cluster may stay, for [`PlanKind::Rebalance`].
///
/// # Errors
/// Errors of [`solve`] and [`rebalance`].
pub fn compute_plan(
    usage: &Usage,
    kind: PlanKind,
    seed: u64,
    tolerance: f64,
) -> Result<ComputedPlan, PlacementError> {
    let (problem, present) = usage.problem()?;
    let before = usage.balance();
    let (movable, movable_present) = usage.movable_problem()?;
    let (plan, found) = match kind {
        PlanKind::Rebalance => {
            let found = rebalance(&movable, &movable_present, tolerance)?;
            (found.plan, found.placement)
        }
        PlanKind::Solve => {
            let settings = sluice_placement::Settings { seed, ..Default::default() };
            let found = solve(&movable, &settings)?;
            (PlacementPlan::between(&movable, &movable_present, &found.placement)?, found.placement)
        }
    };
    let mut wanted = present;
    wanted.extend(found);
    let serves = |at: &ClusterId| problem.clusters().iter().any(|cluster| cluster.id == *at);
    let all_served = usage.vpcs.iter().all(|vpc| serves(&vpc.cluster));
    wanted.retain(|_, at| serves(at));
    let (mut max_load, mut moves) = (problem.max_load(&wanted)?, plan.moves);
    // The movable part alone may be balanced better while a cluster with VPCs that stay gets more load.
    if kind == PlanKind::Rebalance && all_served && max_load > before.max_load {
        (wanted, max_load) = (usage.problem()?.1, before.max_load);
        moves.clear();
    }
    let steps = moves.into_iter().map(|step| self::step(usage, step));
    Ok(ComputedPlan {
        kind,
        seed,
        revision: usage.revision,
        max_load_before: before.max_load,
        max_load,
        max_load_lower_bound: before.max_load_lower_bound,
        tenants_over_cluster_limit_before: before.tenants_over_cluster_limit,
        tenants_over_cluster_limit: problem.tenants_over_cluster_limit(&wanted)?,
        steps: steps.collect::<Result<_, _>>()?,
    })
}

/// Parses a stored plan.
///
/// # Errors
/// [`StoreError::Corrupt`].
pub fn parse_plan(text: &str) -> Result<ComputedPlan, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::Corrupt(format!("a plan: {error}")))
}

fn step(usage: &Usage, step: sluice_placement::Move) -> Result<PlanStep, InputError> {
    // Every VPC is on a cluster, so every move leaves one.
    let from = step.from.ok_or(InputError::NotPlaced(step.vpc))?;
    Ok(PlanStep {
        vpcs: usage.units.get(&step.vpc).cloned().unwrap_or_else(|| vec![step.vpc]),
        from,
        to: step.to,
        entries: step.entries,
        text: step.reason.to_string(),
        exceeded: step.excess.iter().map(ToString::to_string).collect(),
        reason: serde_json::to_value(step.reason).unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::ledger::Ledger;
    use super::super::ledger::tests::vpc;
    use super::super::usage::tests::{gateway, loads, topology};
    use super::*;
    use sluice_store::{Change, Eip, EipAttachment, EipTarget, NatGateway, Peering};
    use sluice_types::{
        EipId, InstanceId, IpNet, NatFiltering, NatGatewayId, NatMapping, PeeringId, PlacementSettings,
        PublicPoolId, TenantId,
    };

    /// Three clusters of a gateway each; all VPCs on the first, each of 10 packets a second, 1 and 2 peered.
    fn all_on_the_first_cluster(vpcs: u64, limit: usize) -> Usage {
        with_eips(vpcs, limit, &[])
    }

    /// The same with an EIP attached to each of `eips`.
    fn with_eips(vpcs: u64, limit: usize, eips: &[u64]) -> Usage {
        let gateways = (1..=3).map(|id| gateway(id, id, false)).collect();
        let all = (1..=vpcs).map(|id| vpc(id, id.div_ceil(2), 1, 1)).collect();
        let mut topology = topology(3, gateways, all);
        let (a, b) = (VpcId::new(1), VpcId::new(2));
        topology.peerings = vec![Peering {
            id: PeeringId::new(1),
            name: String::new(),
            a,
            b,
            meters: [None; 2],
            revision: 1,
        }];
        topology.eips = eips.iter().map(|vpc| eip(*vpc)).collect();
        let demands: Vec<(u32, f64)> = (1..=vpcs as u32).map(|vni| (vni, 10.0)).collect();
        let settings = PlacementSettings {
            clusters_per_tenant: limit,
            gateway_capacity_pps: 100,
            ..PlacementSettings::default()
        };
        Usage::new(
            &Ledger::new(&topology, 9, &[]),
            &loads(&[(1, 4096), (2, 4096), (3, 4096)], &demands),
            settings,
        )
    }

    fn eip(vpc: u64) -> Eip {
        let prefix = IpNet::from(std::net::IpAddr::from([198, 51, 100, vpc as u8]));
        let (vpc, target) = (VpcId::new(vpc), EipTarget::Instance(InstanceId::new(vpc)));
        Eip {
            id: EipId::new(vpc.get()),
            name: String::new(),
            tenant: TenantId::new(1),
            pool: PublicPoolId::new(1),
            cluster: ClusterId::new(1),
            prefix,
            nptv6: false,
            attachment: Some(EipAttachment { vpc, target, inside: prefix }),
            meter: None,
            revision: 1,
        }
    }

    /// Catches plans that the store would refuse, and VPCs whose load would not count because they stay.
    #[test]
    fn vpcs_with_eips_stay_with_their_peers() {
        let usage = with_eips(12, 4, &[2, 5]);
        for kind in [PlanKind::Rebalance, PlanKind::Solve] {
            let plan = compute_plan(&usage, kind, 7, 0.0).unwrap();
            let moved: Vec<u64> =
                plan.steps.iter().flat_map(|step| &step.vpcs).map(|vpc| vpc.get()).collect();
            assert!(moved.iter().all(|vpc| ![1, 2, 5].contains(vpc)), "{kind:?}: {moved:?}");
            assert_eq!((plan.max_load_before, plan.max_load_lower_bound), (1.2, 0.4), "{kind:?}");
            assert!(plan.max_load <= 0.5 + 1e-9, "{kind:?}: {}", plan.max_load);
        }
        let all = with_eips(12, 4, &(1..=12).collect::<Vec<_>>());
        for kind in [PlanKind::Rebalance, PlanKind::Solve] {
            let plan = compute_plan(&all, kind, 7, 0.0).unwrap();
            assert_eq!((plan.steps.len(), plan.max_load), (0, 1.2), "{kind:?}");
        }
    }

    fn nat_gateway(vpc: u64, addresses: u8) -> NatGateway {
        NatGateway {
            id: NatGatewayId::new(vpc),
            name: String::new(),
            vpc: VpcId::new(vpc),
            pool: PublicPoolId::new(1),
            cluster: ClusterId::new(1),
            addresses: (1..=addresses).map(|low| [198, 51, 100, low].into()).collect(),
            sessions: 1,
            blocks: 1,
            filtering: NatFiltering::default(),
            mapping: NatMapping::default(),
            nat64_prefix: None,
            revision: 1,
        }
    }

    /// Catches plans that the store would refuse, because they move a VPC with a NAT gateway.
    #[test]
    fn vpcs_with_nat_gateways_stay() {
        let gateways = (1..=2).map(|id| gateway(id, id, false)).collect();
        let mut topology = topology(2, gateways, (1..=6).map(|id| vpc(id, id, 1, 1)).collect());
        topology.nat_gateways = vec![nat_gateway(1, 3)];
        let mut ledger = Ledger::new(&topology, 9, &[]);
        let demands: Vec<(u32, f64)> = (1..=6).map(|vni| (vni, 10.0)).collect();
        let loads = loads(&[(1, 4096), (2, 4096)], &demands);
        let settings = PlacementSettings {
            gateway_capacity_pps: 100,
            clusters_per_tenant: 2,
            ..PlacementSettings::default()
        };
        let stays = |ledger: &Ledger| {
            let usage = Usage::new(ledger, &loads, settings.clone());
            let entries = usage.vpcs[0].entries;
            (usage.pinned.contains(&VpcId::new(1)), entries)
        };
        // Its VRF, and an entry for each address.
        assert_eq!(stays(&ledger), (true, 4));
        for kind in [PlanKind::Rebalance, PlanKind::Solve] {
            let plan = compute_plan(&Usage::new(&ledger, &loads, settings.clone()), kind, 7, 0.0).unwrap();
            assert!(!plan.steps.is_empty());
            assert!(plan.steps.iter().flat_map(|step| &step.vpcs).all(|vpc| vpc.get() != 1), "{kind:?}");
        }
        let fewer = Change::NatGatewayUpserted(nat_gateway(1, 1));
        ledger.apply(10, &[fewer], 0);
        assert_eq!(stays(&ledger), (true, 2));
        ledger.apply(11, &[Change::NatGatewayRemoved(nat_gateway(1, 1))], 0);
        assert_eq!(stays(&ledger), (false, 1));
    }

    /// One VPC with an EIP has 60 of 100 packets a second of its cluster; the other clusters have 30 each, which can move.
    /// Catches a plan that fills the first cluster because its own VPC does not count.
    #[test]
    fn rebalancing_does_not_raise_the_load_of_a_cluster_whose_vpcs_stay() {
        let gateways = (1..=3).map(|id| gateway(id, id, false)).collect();
        let all =
            (1..=13).map(|id| vpc(id, id, [1, 2, 3][(id > 1) as usize + (id > 7) as usize], 1)).collect();
        let mut topology = topology(3, gateways, all);
        topology.eips = vec![eip(1)];
        let demands: Vec<(u32, f64)> = (1..=13).map(|vni| (vni, if vni == 1 { 60.0 } else { 5.0 })).collect();
        let settings = PlacementSettings { gateway_capacity_pps: 100, ..PlacementSettings::default() };
        let loads = loads(&[(1, 4096), (2, 4096), (3, 4096)], &demands);
        let usage = Usage::new(&Ledger::new(&topology, 9, &[]), &loads, settings);
        let plan = compute_plan(&usage, PlanKind::Rebalance, 7, 0.0).unwrap();
        assert_eq!((plan.max_load_before, plan.max_load, plan.steps.len()), (0.6, 0.6, 0));
        // Its VRF, and two entries of the EIP.
        assert_eq!(usage.vpcs[0].entries, 3);
    }

    /// VPCs that stay may need all entries of their cluster; plans for the others are still computed.
    #[test]
    fn a_cluster_that_is_full_of_vpcs_that_stay_prevents_no_plan() {
        let gateways = (1..=2).map(|id| gateway(id, id, false)).collect();
        let mut topology = topology(2, gateways, vec![vpc(1, 1, 1, 1), vpc(2, 2, 2, 1)]);
        topology.eips = vec![eip(1)];
        let loads = loads(&[(1, 3), (2, 4096)], &[(1, 10.0), (2, 10.0)]);
        let settings = PlacementSettings { gateway_capacity_pps: 100, ..PlacementSettings::default() };
        let usage = Usage::new(&Ledger::new(&topology, 9, &[]), &loads, settings);
        assert_eq!(compute_plan(&usage, PlanKind::Rebalance, 7, 0.0).unwrap().steps, []);
    }

    #[test]
    fn both_kinds_bring_the_most_loaded_cluster_to_the_mean() {
        let usage = all_on_the_first_cluster(12, 2);
        for kind in [PlanKind::Rebalance, PlanKind::Solve] {
            let plan = compute_plan(&usage, kind, 7, 0.0).unwrap();
            assert_eq!((plan.max_load_before, plan.max_load_lower_bound), (1.2, 0.4), "{kind:?}");
            assert!((plan.max_load - 0.4).abs() < 1e-9, "{kind:?}: {}", plan.max_load);
            assert_eq!(plan, compute_plan(&usage, kind, 7, 0.0).unwrap(), "the same seed, the same plan");
            for step in &plan.steps {
                assert!(!step.text.is_empty() && step.from == ClusterId::new(1));
                let peered = step.vpcs.iter().filter(|vpc| vpc.get() <= 2).count();
                assert!(peered == 0 && step.vpcs.len() == 1 || peered == 2, "{:?}", step.vpcs);
                assert_eq!(step.entries, step.vpcs.len() as u64);
            }
            let moved: usize = plan.steps.iter().map(|step| step.vpcs.len()).sum();
            assert_eq!(moved, 8, "{kind:?}");
        }
        let text = &compute_plan(&usage, PlanKind::Rebalance, 1, 0.0).unwrap().steps[0].text;
        assert!(
            text.starts_with("its cluster is at 120.0% of its packet rate, the new one at 0.0%"),
            "{text}"
        );
    }

    #[test]
    fn balanced_load_needs_no_move_and_excess_load_is_refused() {
        let usage = all_on_the_first_cluster(2, 4);
        let plan = compute_plan(&usage, PlanKind::Rebalance, 1, 0.1).unwrap();
        assert_eq!((plan.steps.len(), plan.max_load), (0, 0.2), "peered VPCs stay on one cluster");
        let error =
            compute_plan(&all_on_the_first_cluster(40, 4), PlanKind::Solve, 1, 0.1).unwrap_err().to_string();
        assert!(error.contains("the demand is 400 packets/s"), "{error}");
        let error = compute_plan(&usage, PlanKind::Rebalance, 1, -1.0).unwrap_err().to_string();
        assert!(error.contains("tolerance"), "{error}");
    }
}
