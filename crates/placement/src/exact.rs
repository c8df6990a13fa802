//! The best placement of a small problem, by trying all of them in an order that rules most of them out
//! early. It changes when the rows of the problem do: each VPC on one cluster, tables, and clusters per
//! tenant.

use crate::problem::Problem;
use crate::state::State;

/// Number of placements up to which all of them are tried.
const PLACEMENTS_MAX: usize = 1 << 15;

/// The placement with the least maximum load of those whose maximum load is below `limit`; `None` if there is
/// no such placement, or if the problem has too many to try.
pub(crate) fn best_below<'a>(problem: &'a Problem, limit: f64) -> Option<(State<'a>, f64)> {
    let vpcs = u32::try_from(problem.vpcs().len()).ok()?;
    problem.clusters().len().checked_pow(vpcs).filter(|placements| *placements <= PLACEMENTS_MAX)?;
    let mut order: Vec<usize> = (0..problem.vpcs().len()).collect();
    // Large VPCs first: they exceed a limit soonest.
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
    /// Maximum load of the best placement so far, or the limit at the start.
    limit: f64,
    best: Option<State<'a>>,
}

impl Search<'_> {
    /// Tries all clusters for the VPC at a depth of the order, and for those behind it.
    fn descend(&mut self, depth: usize) {
        let Some(vpc) = self.order.get(depth).copied() else {
            self.limit = self.state.lambda();
            self.best = Some(self.state.clone());
            return;
        };
        let problem = self.state.problem;
        let (demand, entries) = (problem.vpcs()[vpc].demand_pps, problem.vpcs()[vpc].entries);
        for cluster in self.state.clusters() {
            if self.state.load_with(cluster, demand) < self.limit
                && self.state.has_entries(cluster, entries)
                && self.state.tenant_may(problem.tenant_of(vpc), None, cluster, 1)
            {
                self.state.put(vpc, cluster);
                self.descend(depth + 1);
                self.state.take(vpc);
            }
        }
    }
}
