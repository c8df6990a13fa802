//! The budget of the gateway's fast path: no stage may grow by a tenth unseen. Needs root.
//!
//! `bench/spine/budget.txt` has the instructions of each stage. Whoever makes a stage larger on purpose changes the file in
//! the same commit: `SLUICE_WRITE_BUDGET=1 cargo test -p sluice-bench-spine --test budget` does.

use sluice_bench_spine::stages::{self, Cost};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const HEADING: &str = "\
# BPF instructions of each stage of the gateway's fast path, and those that the verifier processed, by the kernel below.
# Checked by tests/budget.rs, which also writes this file.
";
/// A stage may grow by less than this part, and by so many instructions in any case: the compiler's choices for a stage of
/// thirty instructions depend on the stages around it.
const GROWTH_PERCENT: u32 = 10;
const GROWTH_LEAST: u32 = 8;

fn budget_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("budget.txt")
}

/// Major and minor version of the kernel.
fn kernel() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("Linux has this file");
    release.split('.').take(2).collect::<Vec<_>>().join(".")
}

fn write_budget(stages: &[(&str, Cost)]) {
    let mut text = format!("{HEADING}kernel {}\n", kernel());
    for (name, cost) in stages {
        writeln!(text, "{name} {} {}", cost.instructions, cost.verified).expect("a String can be written");
    }
    std::fs::write(budget_file(), text).expect("the budget can be written");
}

/// The kernel of the budget, and instructions and verified instructions by stage.
fn read_budget() -> (String, BTreeMap<String, (u32, u32)>) {
    let text = std::fs::read_to_string(budget_file()).expect("the budget can be read");
    let mut of_kernel = String::new();
    let mut stages = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["kernel", version] => version.clone_into(&mut of_kernel),
            [name, instructions, verified] => {
                let number = |text: &str| text.parse().expect("a number of instructions");
                stages.insert(name.to_owned(), (number(instructions), number(verified)));
            }
            _ => panic!("a line of the budget: {line:?}"),
        }
    }
    (of_kernel, stages)
}

fn is_over(now: u32, budget: u32) -> bool {
    now >= budget + (budget * GROWTH_PERCENT).div_ceil(100).max(GROWTH_LEAST)
}

#[test]
fn no_stage_grows_by_a_tenth_unseen() {
    let inside = || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("as root");
        stages::costs().expect("the stages load")
    };
    let stages = std::thread::spawn(inside).join().expect("the thread does not panic");
    if std::env::var_os("SLUICE_WRITE_BUDGET").is_some() {
        return write_budget(&stages);
    }
    let (of_kernel, budget) = read_budget();
    assert_eq!(budget.len(), stages.len(), "stages of the budget");
    for (name, cost) in stages {
        let (instructions, verified) = *budget.get(name).unwrap_or_else(|| panic!("{name} has no budget"));
        println!("{name}: {cost:?}; budget {instructions}, verified {verified}");
        assert!(!is_over(cost.instructions, instructions), "{name}: {cost:?}, the budget is {instructions}");
        // Each kernel's verifier processes another number.
        let is_comparable = of_kernel == kernel();
        assert!(!is_comparable || !is_over(cost.verified, verified), "{name}: {cost:?}, {verified} verified");
    }
}

#[test]
fn a_tenth_more_is_over_the_budget() {
    assert!(!is_over(1099, 1000) && is_over(1100, 1000));
    assert!(!is_over(27, 20) && is_over(28, 20), "small stages");
}
