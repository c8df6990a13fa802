//! Repairs the results of rounding: tenants on too many clusters, tables that are too full, clusters whose load
//! is too high. Each step improves the placement, so the steps end. This file changes when the problem gets
//! another limit.
//!
//! A step moves a single VPC, or a *block*: all VPCs of a tenant on one cluster. A block can move where a
//! single VPC cannot, because the tenant leaves one cluster for another.

use crate::state::State;

/// Smallest improvement that counts, as a fraction of the load.
const IMPROVEMENT_MIN: f64 = 1e-9;
/// Most steps of a repair, in case that each improves next to nothing.
const STEPS_MAX: usize = 50_000;
/// Number of candidates for a swap that are tried on each side of the best difference.
const CANDIDATES: usize = 4;

/// VPCs that move together, and their sums.
#[derive(Clone, Debug)]
struct Item {
    vpcs: Vec<usize>,
    tenant: usize,
    demand: u64,
    entries: u64,
}

/// The clusters on which a tenant stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// Those where it has the most demand, so that loads change least.
    Demand,
    /// Those where it has the most VPCs, so that the fewest move.
    Count,
}

/// Brings every tenant within its cluster limit: its VPCs move from the clusters where it has least to those
/// where it has most.
pub(crate) fn tenants(state: &mut State<'_>, keep: Keep) {
    let k = state.problem.clusters_per_tenant();
    for tenant in 0..state.problem.tenants() {
        if !state.exceeds_cluster_limit(tenant) {
            continue;
        }
        let vpcs = state.problem.vpcs_of(tenant);
        let mut sums: Vec<(usize, u64)> = state.presence(tenant).iter().map(|(at, _)| (*at, 0)).collect();
        for vpc in vpcs {
            for (cluster, sum) in &mut sums {
                let worth = if keep == Keep::Count { 1 } else { state.problem.vpcs()[*vpc].demand_pps };
                *sum += worth * u64::from(state.at(*vpc) == Some(*cluster));
            }
        }
        sums.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        let kept: Vec<usize> = sums.iter().take(k).map(|(cluster, _)| *cluster).collect();
        let mut unplaced: Vec<usize> = vpcs
            .iter()
            .copied()
            .filter(|vpc| state.at(*vpc).is_some_and(|cluster| !kept.contains(&cluster)))
            .collect();
        unplaced.sort_by_key(|vpc| (std::cmp::Reverse(state.problem.vpcs()[*vpc].demand_pps), *vpc));
        for vpc in unplaced {
            let (demand, entries) = (state.problem.vpcs()[vpc].demand_pps, state.problem.vpcs()[vpc].entries);
            let best = kept.iter().copied().min_by(|a, b| {
                let room = |cluster: usize| !state.has_entries(cluster, entries);
                let load = |cluster: usize| state.load_with(cluster, demand);
                room(*a).cmp(&room(*b)).then(load(*a).total_cmp(&load(*b)))
            });
            if let Some(best) = best {
                state.reassign(vpc, best);
            }
        }
    }
}

/// Empties tables that are too full. Returns true if all entries fit in the end.
pub(crate) fn entries(state: &mut State<'_>) -> bool {
    for _ in 0..STEPS_MAX {
        let over =
            state.clusters().max_by_key(|cluster| (state.entries_over(*cluster), usize::MAX - cluster));
        let Some(from) = over.filter(|cluster| state.entries_over(*cluster) > 0) else { return true };
        if !(relieve(state, from) || exchange(state, from)) {
            return false;
        }
    }
    false
}

/// Moves the item that has the most entries for the least demand, so that loads change little.
fn relieve(state: &mut State<'_>, from: usize) -> bool {
    let over = state.entries_over(from);
    let mut best: Option<((bool, usize, f64), usize, Item)> = None;
    for item in items(state, from).into_iter().filter(|item| item.entries > 0) {
        // An item that is large enough comes first, then the one with the fewest VPCs, then the one that adds
        // the least load.
        let short = item.entries < over;
        let target = state
            .clusters()
            .filter(|to| {
                *to != from && state.has_entries(*to, item.entries) && is_open(state, &item, from, *to)
            })
            .min_by(|a, b| state.load_with(*a, item.demand).total_cmp(&state.load_with(*b, item.demand)));
        let Some(to) = target else { continue };
        let cost = if short {
            (item.demand + 1) as f64 / item.entries as f64
        } else {
            state.load_with(to, item.demand) + item.entries as f64 * f64::EPSILON
        };
        let key = (short, if short { 0 } else { item.vpcs.len() }, cost);
        if best.as_ref().is_none_or(|best| key < best.0) {
            best = Some((key, to, item));
        }
    }
    let Some((_, to, item)) = best else { return false };
    reassign(state, &item, to);
    true
}

/// If nothing can move alone: a large item moves out and a smaller one moves in, so that the excess of all
/// tables together shrinks.
fn exchange(state: &mut State<'_>, from: usize) -> bool {
    let leaving = items(state, from);
    for to in state.clusters().filter(|to| *to != from && state.entries_over(*to) == 0) {
        let free = state.problem.clusters()[to].capacity_entries - state.entries(to);
        let mut coming = items(state, to);
        coming.sort_by_key(|item| item.entries);
        let mut best: Option<(u64, &Item, &Item)> = None;
        for out in &leaving {
            // The smallest number of entries that must move in for `out` to fit; it gains most.
            let least = out.entries.saturating_sub(free);
            let first = coming.partition_point(|item| item.entries < least);
            for back in coming[first..].iter().take(CANDIDATES) {
                let gain = out.entries.saturating_sub(back.entries);
                if best.as_ref().is_none_or(|best| gain > best.0)
                    && gain > 0
                    && swaps(state, out, from, back, to)
                {
                    best = Some((gain, out, back));
                }
            }
        }
        if let Some((_, out, back)) = best {
            let (out, back) = (out.clone(), back.clone());
            reassign(state, &out, to);
            reassign(state, &back, from);
            return true;
        }
    }
    false
}

/// Lowers the maximum load to `target`, or as far as single moves and swaps can.
pub(crate) fn balance(state: &mut State<'_>, target: f64) {
    for _ in 0..STEPS_MAX {
        let from = state.fullest();
        if state.load(from) <= target || !(best_move(state, from) || best_swap(state, from)) {
            return;
        }
    }
}

/// Makes the move after which the higher load of both clusters is lowest.
fn best_move(state: &mut State<'_>, from: usize) -> bool {
    let now = state.load(from);
    let mut best: Option<(f64, usize, Item)> = None;
    for item in items(state, from).into_iter().filter(|item| item.demand > 0) {
        let left = state.load_without(from, item.demand);
        let limit = best.as_ref().map_or(now * (1.0 - IMPROVEMENT_MIN), |best| best.0);
        if left >= limit {
            continue;
        }
        for to in state.clusters().filter(|to| *to != from) {
            let fuller = left.max(state.load_with(to, item.demand));
            if fuller < best.as_ref().map_or(limit, |best| best.0)
                && state.has_entries(to, item.entries)
                && is_open(state, &item, from, to)
            {
                best = Some((fuller, to, item.clone()));
            }
        }
    }
    let Some((_, to, item)) = best else { return false };
    reassign(state, &item, to);
    true
}

/// Makes the swap after which the higher load of both clusters is lowest. Tries the least loaded partner first.
fn best_swap(state: &mut State<'_>, from: usize) -> bool {
    let now = state.load(from);
    let leaving: Vec<Item> = items(state, from).into_iter().filter(|item| item.demand > 0).collect();
    let mut partners: Vec<usize> = state.clusters().filter(|to| *to != from).collect();
    partners.sort_by(|a, b| state.load(*a).total_cmp(&state.load(*b)));
    for to in partners {
        let capacity = |cluster: usize| state.problem.clusters()[cluster].capacity_pps as f64;
        // Packets per second that must move from one to the other to make both loads equal.
        let ideal = (now - state.load(to)) / (1.0 / capacity(from) + 1.0 / capacity(to));
        let mut coming = items(state, to);
        coming.sort_by_key(|item| item.demand);
        let mut best: Option<(f64, &Item, &Item)> = None;
        for out in &leaving {
            let wanted = (out.demand as f64 - ideal).max(0.0) as u64;
            let middle = coming.partition_point(|item| item.demand < wanted);
            let near = middle.saturating_sub(CANDIDATES)..coming.len().min(middle + CANDIDATES);
            for back in coming[near].iter().filter(|back| back.demand < out.demand) {
                let difference = out.demand - back.demand;
                let fuller = state.load_without(from, difference).max(state.load_with(to, difference));
                if fuller < best.as_ref().map_or(now * (1.0 - IMPROVEMENT_MIN), |best| best.0)
                    && swaps(state, out, from, back, to)
                {
                    best = Some((fuller, out, back));
                }
            }
        }
        if let Some((_, out, back)) = best {
            let (out, back) = (out.clone(), back.clone());
            reassign(state, &out, to);
            reassign(state, &back, from);
            return true;
        }
    }
    false
}

/// The single VPCs of a cluster, and its blocks of several VPCs.
fn items(state: &State<'_>, cluster: usize) -> Vec<Item> {
    let item = |vpcs: &[usize]| Item {
        vpcs: vpcs.to_vec(),
        tenant: state.problem.tenant_of(vpcs[0]),
        demand: vpcs.iter().map(|vpc| state.problem.vpcs()[*vpc].demand_pps).sum(),
        entries: vpcs.iter().map(|vpc| state.problem.vpcs()[*vpc].entries).sum(),
    };
    let mut members = state.members(cluster).to_vec();
    // Sorted by tenant, and independent of the order of earlier moves.
    members.sort_by_key(|vpc| (state.problem.tenant_of(*vpc), *vpc));
    let mut items: Vec<Item> = members.iter().map(|vpc| item(&[*vpc])).collect();
    let blocks = members.chunk_by(|a, b| state.problem.tenant_of(*a) == state.problem.tenant_of(*b));
    items.extend(blocks.filter(|block| block.len() > 1).map(item));
    items
}

fn is_open(state: &State<'_>, item: &Item, from: usize, to: usize) -> bool {
    state.is_open_to_tenant(item.tenant, Some(from), to, item.vpcs.len())
}

/// Whether both may change clusters: each tenant stays within its limit, and each table either holds its
/// entries or was too full and gets emptier.
fn swaps(state: &State<'_>, out: &Item, from: usize, back: &Item, to: usize) -> bool {
    let tables = |cluster: usize, minus: u64, plus: u64| {
        let capacity = state.problem.clusters()[cluster].capacity_entries;
        let after = state.entries(cluster) - minus + plus;
        after <= capacity || after < state.entries(cluster)
    };
    if !tables(from, out.entries, back.entries) || !tables(to, back.entries, out.entries) {
        return false;
    }
    if out.tenant == back.tenant {
        // The tenant stays on both clusters, or its whole block changes clusters.
        return true;
    }
    is_open(state, out, from, to) && is_open(state, back, to, from)
}

fn reassign(state: &mut State<'_>, item: &Item, to: usize) {
    for vpc in &item.vpcs {
        state.reassign(*vpc, to);
    }
}
