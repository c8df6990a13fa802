//! RGCM: how long it takes, and how near it comes to the LP.

use crate::demands::{Cloud, Clusters};
use crate::{Outcome, Settings};
use sluice_bench_report::{Measure, median, shell::Failure};
use sluice_placement::{Detail, Problem, Settings as Rgcm, Solution, rebalance, relax, solve};
use std::time::Instant;

const EXPONENTS: [f64; 3] = [0.8, 1.0, 1.2];
const KINDS: [Clusters; 2] = [Clusters::Alike, Clusters::UnlikeAndTight];

/// The worst of several cases.
#[derive(Default)]
struct Worst {
    seconds: f64,
    ratio: f64,
    over_k: usize,
    rounded_ratio: f64,
    rounded_tenants_over_cluster_limit: usize,
}

pub fn measure(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    let public = cases(settings, outcome, Cloud::PUBLIC)?;
    let large = cases(settings, outcome, Cloud::LARGE)?;
    outcome.measures.extend([
        Measure::alone("rgcm_1885_s", "s", public.seconds),
        Measure::alone("rgcm_10k_tenants_s", "s", large.seconds),
        Measure::beside_less(
            "rgcm_lambda_ratio",
            "x LP",
            public.ratio.max(large.ratio),
            "rounding_only",
            Some(public.rounded_ratio.max(large.rounded_ratio)),
        ),
        Measure::beside_less(
            "rgcm_tenants_over_k",
            "tenants",
            (public.over_k + large.over_k) as f64,
            "rounding_only",
            Some(
                (public.rounded_tenants_over_cluster_limit + large.rounded_tenants_over_cluster_limit) as f64,
            ),
        ),
    ]);
    whole_lp(settings, outcome)?;
    few_clusters(settings, outcome)?;
    uncut(settings, outcome)
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
            let mut seconds = Vec::new();
            for _ in 0..settings.rounds {
                seconds.push(timed(&problem, Detail::Auto)?.0);
            }
            let seconds = median(seconds);
            let over_k = problem.tenants_over_cluster_limit(&solution.placement)?;
            outcome.note(format!(
                "{} VPCs of {} tenants on {} clusters ({kind:?}), s = {exponent}: lambda {:.5}, LP {:.5} to \
                 {:.5}, {:.3} s, {} groups, {} roundings; rounding alone: lambda {:.3}, {} tenants over k",
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
            worst.seconds = worst.seconds.max(seconds);
            worst.ratio = worst.ratio.max(solution.max_load / solution.lp_lower_bound);
            worst.over_k += over_k;
            worst.rounded_ratio =
                worst.rounded_ratio.max(solution.rounded_max_load / solution.lp_lower_bound);
            worst.rounded_tenants_over_cluster_limit += solution.rounded_tenants_over_cluster_limit;
        }
    }
    Ok(worst)
}

/// LP-GCM as it stands beside the aggregated one: time, that both mean the same optimum, and what the
/// paper's algorithm makes of it.
fn whole_lp(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    // As it stands, the LP of all 1885 VPCs takes a minute.
    let scaled = Settings { scale: settings.scale * 4, ..settings.clone() };
    let problem = cloud(&scaled, Cloud::PUBLIC, 1.0, Clusters::UnlikeAndTight).draw()?;
    let begin = Instant::now();
    let classes = relax(&problem, Detail::Classes)?;
    let ours = begin.elapsed().as_secs_f64();
    let begin = Instant::now();
    let whole = relax(&problem, Detail::Full)?;
    let theirs = begin.elapsed().as_secs_f64();
    if classes.lower_bound() > whole.upper_bound() * (1.0 + 1e-6) {
        let (bound, optimum) = (classes.lower_bound(), whole.upper_bound());
        return Err(format!("the classes' bound {bound} is above the whole LP's optimum {optimum}").into());
    }
    let (_, solution) = timed(&problem, Detail::Full)?;
    outcome.note(format!(
        "LP-GCM of {} VPCs as it stands: optimum {:.6} to {:.6}; in classes: {:.6} to {:.6}. The paper's \
         algorithm, one rounding of the former: lambda {:.3}, {} tenants over k",
        problem.vpcs().len(),
        whole.lower_bound(),
        whole.upper_bound(),
        classes.lower_bound(),
        classes.upper_bound(),
        solution.rounded_max_load,
        solution.rounded_tenants_over_cluster_limit
    ));
    outcome.measures.push(Measure::beside_less("rgcm_lp_471_s", "s", ours, "whole_lp", Some(theirs)));
    Ok(())
}

/// k of 1 and 2, where tenants hardly divide; and what rebalancing moves when demands have changed.
fn few_clusters(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    for k in [1, 2] {
        let cloud = Cloud { k, ..cloud(settings, Cloud::LARGE, 1.0, Clusters::Alike) };
        let problem = cloud.draw()?;
        match timed(&problem, Detail::Auto) {
            Ok((seconds, solution)) => outcome.note(format!(
                "k = {k}: lambda {:.4}, {:.3} times the LP's bound, {:.3} times that of whole VPCs and \
                 tenants, {seconds:.3} s, {} tenants over k",
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
        "all demands drawn again: lambda {:.4}, brought to {:.4} (5% above the bound: {:.4}) by {} moves of {} \
         entries, no way has less than {}, in {:.3} s with the order of moves",
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

/// Zipf's law as it is: the largest VPC may be more than a cluster's share.
fn uncut(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    for (whole, needed) in [(Cloud::PUBLIC, "1885"), (Cloud::LARGE, "33,000")] {
        let cloud = Cloud { largest: None, ..cloud(settings, whole, 0.8, Clusters::Alike) };
        match timed(&cloud.draw()?, Detail::Auto) {
            Ok((seconds, solution)) => outcome.note(format!(
                "{needed} VPCs, s = 0.8, not cut off: lambda {:.4}, {:.4} times the LP's bound, {:.4} times that \
                 of whole VPCs, {seconds:.3} s",
                solution.max_load,
                solution.max_load / solution.lp_lower_bound,
                solution.max_load / solution.bound
            )),
            Err(error) => outcome.note(format!("{needed} VPCs, s = 0.8, not cut off: {error}")),
        }
    }
    Ok(())
}
