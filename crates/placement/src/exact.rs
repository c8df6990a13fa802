//! Finds the best placement of a small problem by trying all of them, in an order that excludes most of them
//! early. This file changes when the rows of the problem do: one cluster for each VPC, table sizes, clusters
//! per tenant.

use crate::problem::Problem;
use crate::state::State;

/// Number of placements up to which all of them are tried.
const PLACEMENTS_MAX: usize = 1 << 15;

/// The placement with the lowest maximum load, if that is below `limit`. `None` if there is no such
/// placement, or if the problem has too many placements to try.
pub(crate) fn best_below<'a>(problem: &'a Problem, limit: f64) -> Option<(State<'a>, f64)> {
    let vpcs = u32::try_from(problem.vpcs().len()).ok()?;
    problem.clusters().len().checked_pow(vpcs).filter(|placements| *placements <= PLACEMENTS_MAX)?;
    let mut order: Vec<usize> = (0..problem.vpcs().len()).collect();
    // Large VPCs first, because they exceed the limit earliest.
    order.sort_by_key(|vpc| {
        std::cmp::Reverse((problem.vpcs()[*vpc].demand_pps, problem.vpcs()[*vpc].entries))
    });
    let mut search = Search { state: State::new(problem, vec![None; order.len()]), order, limit, best: None };
    search.descend(0);
    search.best.map(|state| (state, search.limit))
}

struct Search<'a> {
    state: State<'a>,
    order: Vec<usize>,
    /// Maximum load of the best placement so far; at the start, the limit.
    limit: f64,
    best: Option<State<'a>>,
}

impl Search<'_> {
    /// Tries all clusters for the VPC at this depth of the order, and recursively for the VPCs after it.
    fn descend(&mut self, depth: usize) {
        let Some(vpc) = self.order.get(depth).copied() else {
            self.limit = self.state.max_load();
            self.best = Some(self.state.clone());
            return;
        };
        let problem = self.state.problem;
        let (demand, entries) = (problem.vpcs()[vpc].demand_pps, problem.vpcs()[vpc].entries);
        for cluster in self.state.clusters() {
            if self.state.load_with(cluster, demand) < self.limit
                && self.state.has_entries(cluster, entries)
                && self.state.is_open_to_tenant(problem.tenant_of(vpc), None, cluster, 1)
            {
                self.state.assign(vpc, cluster);
                self.descend(depth + 1);
                self.state.take(vpc);
            }
        }
    }
}
