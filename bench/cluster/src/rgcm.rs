//! RGCM: how long it takes, and how near it comes to the LP and to the paper's algorithm. It changes with the
//! placement of all VPCs.

use crate::demands::{Cloud, Clusters};
use crate::{Outcome, Settings, paper_rgcm};
use sluice_bench_report::{Better, Measure, median, shell::Failure};
use sluice_placement::{Detail, Placement, Problem, Settings as Rgcm, Solution, rebalance, relax, solve};
use std::time::Instant;

const EXPONENTS: [f64; 3] = [0.8, 1.0, 1.2];
const KINDS: [Clusters; 2] = [Clusters::Alike, Clusters::UnlikeAndTight];

/// The worst of several cases.
#[derive(Default)]
struct Worst {
    /// Rounds of the slowest case.
    seconds: Vec<f64>,
    ratio: f64,
    over_limit: usize,
    rounded_ratio: f64,
    rounded_tenants_over_cluster_limit: usize,
}

pub fn measure(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    let public = cases(settings, outcome, Cloud::PUBLIC)?;
    let large = cases(settings, outcome, Cloud::LARGE)?;
    let less = Better::Less;
    outcome.measures.extend([
        Measure::alone("rgcm_1885_s", "s", &public.seconds),
        Measure::alone("rgcm_10k_tenants_s", "s", &large.seconds),
        Measure::computed_beside(
            "rgcm_max_load_ratio",
            "x LP",
            less,
            public.ratio.max(large.ratio),
            ("rounding_only", public.rounded_ratio.max(large.rounded_ratio)),
        ),
        Measure::computed_beside(
            "rgcm_tenants_over_limit",
            "tenants",
            less,
            (public.over_limit + large.over_limit) as f64,
            (
                "rounding_only",
                (public.rounded_tenants_over_cluster_limit + large.rounded_tenants_over_cluster_limit) as f64,
            ),
        ),
    ]);
    // As it stands, the LP of all 1885 VPCs takes a minute.
    let quarter = Settings { scale: settings.scale * 4, ..settings.clone() };
    let problem = cloud(&quarter, Cloud::PUBLIC, 1.0, Clusters::UnlikeAndTight).draw()?;
    whole_lp(settings, outcome, &problem)?;
    compare_with_paper(settings, outcome, &problem)?;
    few_clusters(settings, outcome)?;
    uncut(settings, outcome)
}

/// Compares with the paper's algorithm: time, maximum load, and tenants above k. Each pair has its own seed.
fn compare_with_paper(settings: &Settings, outcome: &mut Outcome, problem: &Problem) -> Result<(), Failure> {
    let (mut seconds, mut ratios, mut over_limit, mut overfull) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for seed in 1..=settings.rounds as u64 {
        let begin = Instant::now();
        let ours = solve(problem, &Rgcm { seed, ..Rgcm::default() })?;
        let our_seconds = begin.elapsed().as_secs_f64();
        let begin = Instant::now();
        let theirs = paper_rgcm::round(problem, &paper_rgcm::solve_lp(problem)?, seed);
        seconds.push((our_seconds, begin.elapsed().as_secs_f64()));
        let bound = ours.lp_lower_bound;
        ratios.push((ours.max_load / bound, problem.max_load(&theirs)? / bound));
        let over = |placement| problem.tenants_over_cluster_limit(placement);
        over_limit.push((over(&ours.placement)? as f64, over(&theirs)? as f64));
        overfull.push((
            overfull_clusters(problem, &ours.placement) as f64,
            overfull_clusters(problem, &theirs) as f64,
        ));
    }
    for (measure, unit, pairs) in [
        ("rgcm_471_s", "s", seconds),
        ("rgcm_471_max_load_ratio", "x LP", ratios),
        ("rgcm_471_tenants_over_limit", "tenants", over_limit),
        ("rgcm_471_overfull_tables", "clusters", overfull),
    ] {
        outcome.measures.push(Measure::compared(measure, unit, Better::Less, "paper_rgcm", &pairs));
    }
    Ok(())
}

/// Clusters with more entries than their tables hold.
fn overfull_clusters(problem: &Problem, placement: &Placement) -> usize {
    let entries = |cluster| -> u64 {
        let on_it = problem.vpcs().iter().filter(|vpc| placement[&vpc.id] == cluster);
        on_it.map(|vpc| vpc.entries).sum()
    };
    problem.clusters().iter().filter(|cluster| entries(cluster.id) > cluster.capacity_entries).count()
}

fn cloud(settings: &Settings, whole: Cloud, exponent: f64, kind: Clusters) -> Cloud {
    let scaled = |count: usize| (count / settings.scale).max(whole.clusters * 4);
    Cloud { vpcs: scaled(whole.vpcs), tenants: scaled(whole.tenants), exponent, kind, ..whole }
}

fn timed(problem: &Problem, detail: Detail) -> Result<(f64, Solution), Failure> {
    let begin = Instant::now();
    let solution = solve(problem, &Rgcm { detail, ..Rgcm::default() })?;
    Ok((begin.elapsed().as_secs_f64(), solution))
}

/// All exponents and kinds of clusters at one size.
fn cases(settings: &Settings, outcome: &mut Outcome, whole: Cloud) -> Result<Worst, Failure> {
    let mut worst = Worst::default();
    for exponent in EXPONENTS {
        for kind in KINDS {
            let cloud = cloud(settings, whole, exponent, kind);
            let problem = cloud.draw()?;
            let (_, solution) = timed(&problem, Detail::Auto)?;
            let mut all_seconds = Vec::new();
            for _ in 0..settings.rounds {
                all_seconds.push(timed(&problem, Detail::Auto)?.0);
            }
            let seconds = median(all_seconds.clone());
            let over_limit = problem.tenants_over_cluster_limit(&solution.placement)?;
            outcome.note(format!(
                "{} VPCs of {} tenants on {} clusters ({kind:?}), s = {exponent}: maximum load {:.5}, LP {:.5} \
                 to {:.5}, {:.3} s, {} groups, {} roundings; rounding alone: maximum load {:.3}, {} tenants over \
                 their limit",
                cloud.vpcs,
                cloud.tenants,
                cloud.clusters,
                solution.max_load,
                solution.lp_lower_bound,
                solution.lp_upper_bound,
                seconds,
                solution.groups,
                solution.attempts,
                solution.rounded_max_load,
                solution.rounded_tenants_over_cluster_limit
            ));
            if seconds >= median(worst.seconds.clone()) {
                worst.seconds = all_seconds;
            }
            worst.ratio = worst.ratio.max(solution.max_load / solution.lp_lower_bound);
            worst.over_limit += over_limit;
            worst.rounded_ratio =
                worst.rounded_ratio.max(solution.rounded_max_load / solution.lp_lower_bound);
            worst.rounded_tenants_over_cluster_limit += solution.rounded_tenants_over_cluster_limit;
        }
    }
    Ok(worst)
}

/// Compares LP-GCM in classes with LP-GCM as it stands: the time, and that both have the same optimum.
fn whole_lp(settings: &Settings, outcome: &mut Outcome, problem: &Problem) -> Result<(), Failure> {
    let mut pairs = Vec::new();
    for round in 0..settings.rounds {
        let begin = Instant::now();
        let classes = relax(problem, Detail::Classes)?;
        let ours = begin.elapsed().as_secs_f64();
        let begin = Instant::now();
        let whole = relax(problem, Detail::Full)?;
        pairs.push((ours, begin.elapsed().as_secs_f64()));
        let (bound, optimum) = (classes.lower_bound(), whole.upper_bound());
        if bound > optimum * (1.0 + 1e-6) {
            return Err(
                format!("the classes' bound {bound} is above the whole LP's optimum {optimum}").into()
            );
        }
        if round == 0 {
            outcome.note(format!(
                "LP-GCM of {} VPCs as it stands: optimum {:.6} to {:.6}; in classes: {:.6} to {:.6}",
                problem.vpcs().len(),
                whole.lower_bound(),
                whole.upper_bound(),
                classes.lower_bound(),
                classes.upper_bound()
            ));
        }
    }
    outcome.measures.push(Measure::compared("rgcm_lp_471_s", "s", Better::Less, "whole_lp", &pairs));
    Ok(())
}

/// Notes the results for k of 1 and 2, where tenants can hardly be divided, and what is moved when demands have
/// changed.
fn few_clusters(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    for k in [1, 2] {
        let cloud = Cloud { k, ..cloud(settings, Cloud::LARGE, 1.0, Clusters::Alike) };
        let problem = cloud.draw()?;
        match timed(&problem, Detail::Auto) {
            Ok((seconds, solution)) => outcome.note(format!(
                "k = {k}: maximum load {:.4}, {:.3} times the LP's bound, {:.3} times that of whole VPCs and \
                 tenants, {seconds:.3} s, {} tenants over their limit",
                solution.max_load,
                solution.max_load / solution.lp_lower_bound,
                solution.max_load / solution.bound,
                problem.tenants_over_cluster_limit(&solution.placement)?
            )),
            Err(error) => outcome.note(format!("k = {k}: {error}")),
        }
    }
    let before = cloud(settings, Cloud::LARGE, 1.0, Clusters::Alike);
    let placed = solve(&before.draw()?, &Rgcm::default())?;
    // The same VPCs of the same tenants, but all ranks of demand drawn again.
    let after = before.draw_again(7)?;
    let begin = Instant::now();
    let moved = rebalance(&after, &placed.placement, 0.05)?;
    outcome.note(format!(
        "all demands drawn again: maximum load {:.4}, brought to {:.4} (5% above the bound: {:.4}) by {} \
         moves of {} entries (every plan needs {} moves or more), in {:.3} s with the order of moves",
        moved.max_load_before,
        moved.max_load,
        moved.target,
        moved.plan.moves.len(),
        moved.plan.entries(),
        moved.moves_lower_bound,
        begin.elapsed().as_secs_f64()
    ));
    Ok(())
}

/// Notes the results for Zipf's law that is not cut off, where the largest VPC may need more than a cluster has.
fn uncut(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    for (whole, needed) in [(Cloud::PUBLIC, "1885"), (Cloud::LARGE, "33,000")] {
        let cloud = Cloud { largest: None, ..cloud(settings, whole, 0.8, Clusters::Alike) };
        match timed(&cloud.draw()?, Detail::Auto) {
            Ok((seconds, solution)) => outcome.note(format!(
                "{needed} VPCs, s = 0.8, not cut off: maximum load {:.4}, {:.4} times the LP's bound, {:.4} times \
                 that of whole VPCs, {seconds:.3} s",
                solution.max_load,
                solution.max_load / solution.lp_lower_bound,
                solution.max_load / solution.bound
            )),
            Err(error) => outcome.note(format!("{needed} VPCs, s = 0.8, not cut off: {error}")),
        }
    }
    Ok(())
}
