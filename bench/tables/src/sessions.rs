//! Sessions: created and looked up by packets, on two cores at once.

use crate::rig::{Ask, Rig};
use crate::updates::stay_on;
use crate::{Outcome, Settings, say};
use libbpf_rs::{MapCore, MapHandle};
use sluice_bench_report::{Measure, median, shell::Failure};

/// The cores that packets come in on.
const CORES: u32 = 2;
/// Sessions that each core creates in a round.
const CREATED: usize = 1 << 18;
/// Sessions that live, at full size.
const LIVE: usize = 10_000_000;

/// Who keeps sessions: the map, and the programs NAME_fill and NAME_mix.
struct Contender {
    name: &'static str,
    map: &'static str,
}

/// In the order of their turns.
///
/// Sluice's session table is to be the first, named [`OURS`], with programs of
/// its own in `tables_bench.bpf.c`. Without it nothing can be compared, so the
/// peers' figures are noted and no measure is reported.
const CONTENDERS: [Contender; 2] =
    [Contender { name: "lru_hash", map: "lru" }, Contender { name: "lru_percpu_hash", map: "lru_percpu" }];
const OURS: &str = "sluice";

/// A contender's map, filled.
struct Table {
    contender: &'static Contender,
    map: MapHandle,
    bytes: f64,
}

/// Nanoseconds a step, the mean of all cores: each has its own thread, and its
/// own programs over the same map. Core `n` works on the `n`th part from `first` on.
fn on_all_cores(
    map: Option<(&str, &MapHandle)>,
    program: &str,
    first: u32,
    each: u32,
    live: u64,
) -> Result<(f64, u64), Failure> {
    let run = |core: u32| {
        stay_on(core as usize)?;
        let rig = Rig::load(map.as_slice(), &[])?;
        rig.run(program, Ask { first: first + core * each, count: each, live, ..Ask::default() })
    };
    let timings = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CORES).map(|core| scope.spawn(move || run(core))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .map(|ended| ended.map_err(|_| "a core's thread ended badly")?)
            .collect::<Result<Vec<_>, Failure>>()
    })?;
    let ns = timings.iter().map(|timing| timing.ns).sum::<f64>() / f64::from(CORES);
    Ok((ns, timings.iter().map(|timing| timing.found).sum()))
}

/// With room for all that the rounds create, so that nothing is evicted.
fn filled(contender: &'static Contender, live: u32, room: u32) -> Result<Table, Failure> {
    let map = Rig::load(&[], &[(contender.map, room)])?.map(contender.map)?;
    let program = format!("{}_fill", contender.map);
    on_all_cores(Some((contender.map, &map)), &program, 0, live / CORES, 0)?;
    let bytes = map.query_fdinfo()?.memlock.unwrap_or(0) as f64 / f64::from(room);
    Ok(Table { contender, map, bytes })
}

/// `session_ns`, a pair of one creation and one lookup, and `session_bytes`.
///
/// # Errors
/// The kernel's, and where live sessions were not found.
pub fn measure(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    let live = settings.scaled(LIVE) as u32 / CORES * CORES;
    let each = (CREATED / settings.scale).max(1024) as u32;
    say(&format!("sessions: {live} live"));
    // One round more than counts, and the few that each core of an LRU map keeps aside.
    let room = live + (settings.rounds as u32 + 1) * each * CORES + (1 << 14);
    let tables = CONTENDERS.iter().map(|contender| filled(contender, live, room));
    let tables = tables.collect::<Result<Vec<_>, _>>()?;
    let mut times = vec![Vec::new(); tables.len()];
    for round in 0..=settings.rounds as u32 {
        let first = live + round * each * CORES;
        let (empty, _) = on_all_cores(None, "sessions_empty", first, each, u64::from(live))?;
        for (table, times) in tables.iter().zip(&mut times) {
            let map = table.contender.map;
            let (ns, found) =
                on_all_cores(Some((map, &table.map)), &format!("{map}_mix"), first, each, u64::from(live))?;
            let lost = u64::from(each * CORES) - found;
            // An LRU map may evict what is live; that is the peer's loss, not an error of the measurement.
            if lost > 0 && round > 0 {
                outcome.note(format!("sessions: {} had lost {lost} live sessions", table.contender.name));
            }
            if round > 0 {
                times.push(ns - empty);
            }
        }
    }
    let medians: Vec<f64> = times.into_iter().map(median).collect();
    report(outcome, &tables, &medians, live);
    Ok(())
}

fn report(outcome: &mut Outcome, tables: &[Table], medians: &[f64], live: u32) {
    let ours = tables.iter().zip(medians).find(|(table, _)| table.contender.name == OURS);
    for (table, &ns) in tables.iter().zip(medians).filter(|(table, _)| table.contender.name != OURS) {
        let name = table.contender.name;
        match ours {
            Some((own, &own_ns)) => outcome.measures.extend([
                Measure::beside_less("session_ns", "ns", own_ns, name, Some(ns)),
                Measure::beside_less("session_bytes", "B", own.bytes, name, Some(table.bytes)),
            ]),
            None => outcome.note(format!(
                "sessions: {name} {ns:.1} ns for a creation and a lookup at {live} live on {CORES} cores, \
                 {:.0} B each as the kernel counts; Sluice's own table is not there yet",
                table.bytes
            )),
        }
    }
}
