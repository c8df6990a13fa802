//! Kills the writer at any instruction, 300 times in `make test` and 2,400 times in `make soak`.
//!
//! A writer process changes tables in shared memory until it is killed. The history of changes is a pure
//! function of a seed and a number, so that the next writer can adopt the tables and continue the history.
//! Meanwhile readers in the parent process compare every answer with a model. After most kills the parent
//! adopts the tables before the next writer does, and compares all of their content with the model.
//!
//! `SLUICE_KILLS` sets how many writers are killed.

mod history;
mod model;
#[path = "../support/policies.rs"]
mod policies;
mod shared;

use history::Random;
use model::{Content, Model};
use shared::{LookupGuard, PHASE_ADOPTING, PHASE_NONE, PHASE_WRITING, READERS, Shared};
use sluice_tables::{Lookup, NodeTables, Reader, Role, Sizes, layout};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const KILLS_DEFAULT: u64 = 300;
/// Kills before a new history begins in new tables.
const KILLS_PER_ROUND: u64 = 60;
/// Environment variable of the writer: the descriptor of the memory.
const WRITER: &str = "SLUICE_KILL_WRITER";
/// Digest masks: all bits, and so few that many digests conflict.
const MASKS: [u64; 3] = [u64::MAX, 0xffff_0000_0000_0007, 0xffff_0000_0000_003f];

fn main() {
    if let Ok(fd) = std::env::var(WRITER) {
        write(&Shared::map(fd.parse().expect("a descriptor")));
    }
    if !is_selected(std::env::args().skip(1)) {
        return;
    }
    let kills = std::env::var("SLUICE_KILLS").map_or(KILLS_DEFAULT, |text| text.parse().expect("a number"));
    run(kills);
    println!("test result: ok. 1 passed; 0 failed");
}

/// True if the arguments of `cargo test -- ...` select a test that is named `kill`.
fn is_selected(mut arguments: impl Iterator<Item = String>) -> bool {
    let matches = |filter: &str| "kill".contains(filter);
    let (mut filters, mut matching) = (0, 0);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--list" => return false,
            "--skip" if arguments.next().is_some_and(|name| matches(&name)) => return false,
            "--skip" => {}
            "--test-threads" => drop(arguments.next()),
            option if option.starts_with('-') => {}
            filter => {
                filters += 1;
                matching += usize::from(matches(filter));
            }
        }
    }
    filters == 0 || matching > 0
}

/// The writer process: adopts the tables, and changes them until it is killed.
fn write(shared: &Shared) -> ! {
    // SAFETY: makes the kernel kill this process when its parent ends; no memory is accessed.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let page = shared.page();
    page.phase.store(PHASE_ADOPTING, Ordering::SeqCst);
    let mut tables = NodeTables::adopt(shared.memory(), shared.grace())
        .expect("the tables of a killed writer can be adopted");
    page.phase.store(PHASE_WRITING, Ordering::SeqCst);
    loop {
        step(shared, &mut tables);
    }
}

/// Applies the next operation of the history.
fn step(shared: &Shared, tables: &mut NodeTables) {
    let page = shared.page();
    let number = page.finished.load(Ordering::SeqCst) + 1;
    let op = history::op(page.seed.load(Ordering::SeqCst), number);
    page.started.store(number, Ordering::SeqCst);
    history::apply(tables, op).unwrap_or_else(|error| panic!("operation {number}, {op:?}: {error}"));
    page.finished.store(number, Ordering::SeqCst);
}

#[derive(Default, Debug)]
struct Totals {
    killed_adopting: u64,
    killed_writing: u64,
    killed_within_an_operation: u64,
    /// Kills within an operation that was nevertheless complete in the tables.
    carried_out: u64,
    /// Share of used slots in the fullest table that was adopted.
    fullest_percent: u64,
    operations: u64,
    answers: u64,
    busy: u64,
}

fn run(kills: u64) {
    let begin = Instant::now();
    let fd = shared::create_memory();
    let shared = Shared::map(fd);
    let mut totals = Totals::default();
    for round in 0..kills.div_ceil(KILLS_PER_ROUND) {
        let kills = KILLS_PER_ROUND.min(kills - round * KILLS_PER_ROUND);
        let mask = MASKS[round as usize % MASKS.len()];
        run_round(&shared, fd, 0x5eed_0000 + round, mask, kills, &mut totals);
    }
    println!("{kills} writers killed in {:.1} s: {totals:?}", begin.elapsed().as_secs_f64());
    assert_eq!(totals.killed_adopting + totals.killed_writing, kills);
    assert!(totals.killed_writing > kills / 4 && totals.operations > kills, "writers hardly wrote");
    // Most writers are killed within an operation. Some of these operations must have been published and some
    // not; otherwise the test would not notice half-done changes.
    let (within, carried_out) = (totals.killed_within_an_operation, totals.carried_out);
    assert!(kills < 100 || within > kills / 4, "{within} of {kills} writers were killed within an operation");
    assert!(kills < 100 || (carried_out > 0 && carried_out < within), "{carried_out} of {within} operations");
    assert!(totals.answers > kills, "readers hardly read");
    assert!(totals.busy * 1000 <= totals.answers, "lookups were busy too often");
}

fn run_round(shared: &Shared, fd: libc::c_int, seed: u64, mask: u64, kills: u64, totals: &mut Totals) {
    let page = shared.page();
    page.seed.store(seed, Ordering::SeqCst);
    page.started.store(0, Ordering::SeqCst);
    page.finished.store(0, Ordering::SeqCst);
    drop(create(shared, mask));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = &stop;
        let spawn = |number| scope.spawn(move || read(shared, number, seed, stop));
        let readers: Vec<_> = (0..READERS).map(spawn).collect();
        let mut parent = Parent { shared, fd, model: Model::new(seed), random: Random::new(seed, 1) };
        // The readers also stop if the parent panics, so that the scope ends.
        let _stop = StopAtEnd(stop);
        for kill in 0..kills {
            if readers.iter().any(|reader| reader.is_finished()) {
                break;
            }
            parent.kill_a_writer(totals);
            if kill % 4 != 0 || kill + 1 == kills {
                parent.adopt_and_check(totals);
            }
        }
        stop.store(true, Ordering::SeqCst);
        for reader in readers {
            let (answers, busy) = reader.join().expect("the reader's panic is shown above");
            totals.answers += answers;
            totals.busy += busy;
        }
        parent.check_emptied_tables();
        totals.operations += page.finished.load(Ordering::SeqCst);
    });
}

struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Creates tables in which no absent address is mistaken for an entry. The seed is random, and narrow digests
/// make equal digests much more likely than in production.
fn create(shared: &Shared, mask: u64) -> NodeTables {
    loop {
        let sizes = Sizes { endpoints: 1 };
        let mut tables =
            NodeTables::create_with_digest_mask(shared.memory(), shared.grace(), sizes, mask).unwrap();
        if mask == u64::MAX || !has_equal_digests(&mut tables) {
            return tables;
        }
    }
}

/// True if two addresses of the history have equal digests with the tables' seed.
fn has_equal_digests(tables: &mut NodeTables) -> bool {
    tables.upsert_vtep(history::host(0), Role::Host).unwrap();
    let reader = tables.reader();
    let addresses: Vec<_> =
        (0..history::ENDPOINTS + history::DIRECT_PATHS).map(history::address_of).collect();
    let found = |(vni, address): (sluice_types::Vni, std::net::IpAddr)| {
        !matches!(reader.find(vni.get(), address), Lookup::Miss)
    };
    let mut found_equal = false;
    for (i, &(vni, address)) in addresses.iter().enumerate().filter(|(_, one)| one.1.is_ipv6()) {
        let mac = sluice_types::MacAddr::local(1);
        let host = history::host(0);
        tables.upsert_endpoint(&sluice_tables::Endpoint { vni, address, mac, host }).unwrap();
        found_equal |= addresses[i + 1..].iter().any(|&other| found(other));
        tables.remove_endpoint(vni, address).unwrap();
    }
    tables.remove_vtep(history::host(0)).unwrap();
    found_equal
}

/// Asks random questions until `stop` is set, and checks every answer. Returns the numbers of answers and of
/// busy answers.
fn read(shared: &Shared, number: usize, seed: u64, stop: &AtomicBool) -> (u64, u64) {
    let page = shared.page();
    let reader = Reader::new(shared.memory());
    let mut model = Model::new(seed);
    let mut random = Random::new(seed, 2 + number as u64);
    let (mut answers, mut busy) = (0, 0);
    while !stop.load(Ordering::SeqCst) {
        let question = model.random_question(&mut random);
        let from = page.finished.load(Ordering::SeqCst);
        let guard = LookupGuard::enter(page, number);
        let answer = model.ask(&reader, question);
        drop(guard);
        let to = page.started.load(Ordering::SeqCst);
        model.advance(to, from);
        assert!(
            model.allows(question, answer, from, to),
            "seed {seed:#x}, operations {from} to {to}: {question:?} was answered {answer:?}"
        );
        answers += 1;
        busy += u64::from(answer == model::Answer::Busy);
    }
    (answers, busy)
}

struct Parent<'a> {
    shared: &'a Shared,
    fd: libc::c_int,
    model: Model,
    random: Random,
}

impl Parent<'_> {
    /// Starts a writer, and kills it while it adopts the tables or, more often, while it changes them.
    fn kill_a_writer(&mut self, totals: &mut Totals) {
        let page = self.shared.page();
        page.phase.store(PHASE_NONE, Ordering::SeqCst);
        let program = std::env::current_exe().expect("this program has a path");
        let mut child = Command::new(program).env(WRITER, self.fd.to_string()).spawn().expect("starts");
        let (phase, life_us) = match self.random.below(8) {
            0 | 1 => (PHASE_ADOPTING, self.random.below(100)),
            2 => (PHASE_WRITING, self.random.below(6000)),
            _ => (PHASE_WRITING, self.random.below(700)),
        };
        while page.phase.load(Ordering::SeqCst) < phase {
            assert_eq!(
                child.try_wait().expect("the writer is a child of this process"),
                None,
                "the writer ended by itself"
            );
            std::thread::yield_now();
        }
        wait(Duration::from_micros(life_us.into()));
        kill(&mut child);
        match page.phase.load(Ordering::SeqCst) {
            PHASE_WRITING => totals.killed_writing += 1,
            _ => totals.killed_adopting += 1,
        }
    }

    /// Adopts the tables of a killed writer, and compares their content with the model.
    fn adopt_and_check(&mut self, totals: &mut Totals) {
        let page = self.shared.page();
        let (finished, started) = (page.finished.load(Ordering::SeqCst), page.started.load(Ordering::SeqCst));
        let mut tables = self.adopt();
        self.model.advance(started, finished);
        let content = Content::of(&tables);
        let (before, after) = (self.model.content(finished), self.model.content(started));
        let state = if content == after { started } else { finished };
        assert!(
            content == before || content == after,
            "the writer was killed after operation {finished}, within operation {started}, {:?}: {}",
            history::op(page.seed.load(Ordering::SeqCst), started.max(1)),
            differences(&content, &before)
        );
        if started != finished {
            totals.killed_within_an_operation += 1;
            totals.carried_out += u64::from(before != after && content == after);
        }
        self.check_answers(&tables, state);
        let fill = tables.usage();
        totals.fullest_percent =
            totals.fullest_percent.max((fill.entries - fill.conflicts) * 100 / fill.entry_slots);
        let used = used_cells(&mut tables);
        self.check_used(&mut tables, used, "adopted twice");
        // After more changes the next writer must find the same cells in use, from the tables alone.
        for _ in 0..1 + self.random.below(40) {
            step(self.shared, &mut tables);
        }
        let number = page.finished.load(Ordering::SeqCst);
        self.model.advance(number, number);
        let (content, model) = (Content::of(&tables), self.model.content(number));
        assert!(content == model, "after operation {number}: {}", differences(&content, &model));
        let used = used_cells(&mut tables);
        self.check_used(&mut tables, used, "adopted after changes");
    }

    fn adopt(&self) -> NodeTables {
        NodeTables::adopt(self.shared.memory(), self.shared.grace())
            .expect("the tables of a killed writer can be adopted")
    }

    /// Checks that every question has the answer of the state after operation `state`.
    fn check_answers(&self, tables: &NodeTables, state: u64) {
        let reader = tables.reader();
        for question in self.model.questions() {
            let answer = self.model.ask(&reader, question);
            assert!(answer != model::Answer::Busy, "{question:?} is busy without a writer");
            assert!(
                self.model.allows(question, answer, state, state),
                "after operation {state}: {question:?} is answered {answer:?}"
            );
        }
    }

    /// Checks that another adoption finds the same cells in use and the same content, so that no cell leaked.
    fn check_used(&self, tables: &mut NodeTables, used: u64, when: &str) {
        let (fill, content) = (tables.usage(), Content::of(tables));
        *tables = self.adopt();
        let again = Content::of(tables);
        assert!(again == content, "{when}: {}", differences(&again, &content));
        assert_eq!(used_cells(tables), used, "cells leaked or were used twice, {when}");
        let again = tables.usage();
        let counts = |fill: &sluice_tables::TableUsage| {
            [
                fill.entries,
                fill.conflicts,
                fill.endpoints,
                fill.direct_paths,
                fill.routes,
                fill.vrfs,
                fill.vteps,
                fill.policies,
                fill.public_prefixes,
                fill.vips,
                fill.counters_used,
            ]
        };
        assert_eq!(counts(&again), counts(&fill), "{when}");
        let outside = u64::from(has_outside(tables));
        let nodes = fill.vteps + fill.vips;
        let entries =
            fill.endpoints + fill.senders + fill.direct_paths + fill.vrfs + nodes + fill.policies + outside;
        let of_services = content.services.len() + content.service_addresses.len();
        assert_eq!(fill.entries, entries + of_services as u64, "{when}");
    }

    /// Removes all entries, and checks that only the runs of the exact match are then in use.
    fn check_emptied_tables(&self) {
        let mut tables = self.adopt();
        tables.retain_endpoints(|_| false).unwrap();
        for service in tables.services().collect::<Vec<_>>() {
            tables.remove_service(service.id).unwrap();
        }
        for vrf in tables.vrfs().collect::<Vec<_>>() {
            tables.remove_vrf(vrf.vrf.vni).unwrap();
        }
        for vtep in tables.vteps().collect::<Vec<_>>() {
            tables.remove_vtep(vtep).unwrap();
        }
        for policy in tables.policies().collect::<Vec<_>>() {
            tables.remove_policy(policy.id).unwrap();
        }
        for vip in tables.vips().collect::<Vec<_>>() {
            tables.remove_vip(vip.address).unwrap();
        }
        assert_eq!(tables.public_prefixes().count(), 0, "they are removed with their VRFs");
        let used = used_cells(&mut tables) - u64::from(has_outside(&tables));
        let fill = tables.usage();
        let addresses = (fill.entry_slots * 16).div_ceil(u64::from(layout::CELL_BYTES));
        let buckets = fill.entry_slots / u64::from(layout::EXACT_SLOTS);
        assert_eq!(used, u64::from(layout::CELL_FIRST_FREE) + buckets + addresses + fill.conflict_slots);
    }
}

/// Whether there is a VRF of VNI 0. It stays after the first public prefix.
fn has_outside(tables: &NodeTables) -> bool {
    matches!(tables.reader().find_index(0, 0), Lookup::Hit(_))
}

fn used_cells(tables: &mut NodeTables) -> u64 {
    tables.flush().expect("readers finish their lookups");
    tables.usage().cells_used
}

/// Waits more exactly than by sleep alone, which takes much longer than a short time.
fn wait(time: Duration) {
    const SPIN: Duration = Duration::from_micros(150);
    let begin = Instant::now();
    if time > SPIN {
        std::thread::sleep(time - SPIN);
    }
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}

fn kill(child: &mut Child) {
    child.kill().expect("the writer is running");
    let status = child.wait().expect("the writer is a child of this process");
    assert_eq!(status.signal(), Some(libc::SIGKILL), "the writer ended by itself: {status}");
}

/// The entries that only one of the two contents has.
fn differences(one: &Content, other: &Content) -> String {
    fn difference<T: PartialEq + std::fmt::Debug>(one: &[T], other: &[T]) -> String {
        let only =
            |a: &[T], b: &[T]| format!("{:?}", a.iter().filter(|x| !b.contains(x)).collect::<Vec<_>>());
        format!("{} instead of {}", only(one, other), only(other, one))
    }
    format!(
        "endpoints {}; direct paths {}; routes {}; VRFs {}; VTEPs {}; policies {}; public prefixes {}; vIPs {}",
        difference(&one.endpoints, &other.endpoints),
        difference(&one.direct_paths, &other.direct_paths),
        difference(&one.routes, &other.routes),
        difference(&one.vrfs, &other.vrfs),
        difference(&one.vteps, &other.vteps),
        difference(&one.policies, &other.policies),
        difference(&one.public_prefixes, &other.public_prefixes),
        difference(&one.vips, &other.vips)
    )
}
