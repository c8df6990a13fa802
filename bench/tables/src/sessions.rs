//! Sessions that packets create and look up on two cores at once.

use crate::rig::{Programs, RunInput};
use crate::{Outcome, Settings, report_progress};
use libbpf_rs::{MapCore, MapHandle};
use sluice_bench_report::{Better, Measure, shell::Failure, stay_on};
use sluice_datapath::{Datapath, ObjectName, SESSION_MAPS, Settings as Load};
use sluice_tables::Membarrier;
use sluice_tables::sessions::{Family, Sessions, Timeouts, ticks_now};

/// Cores on which packets arrive.
const CORES: u32 = 2;
/// Sessions that each core creates in a round.
const CREATED: usize = 1 << 17;
/// Live sessions at full size in the comparison with peers.
const LIVE: usize = 10_000_000;
/// Live sessions of the large table, which is measured without peers.
const LARGE: usize = 64_000_000;
/// Share of the table's slots that its sessions fill, in percent.
const LOAD_PERCENT: u64 = 80;
/// Size and slots of `struct session_bucket4`.
const BUCKET_BYTES: u64 = 512;
const SLOTS: u64 = 7;

/// Name and map of each peer. Its programs are MAP_fill and one for each of `STEPS`.
const PEERS: [(&str, &str); 2] = [("lru_hash", "lru"), ("lru_percpu_hash", "lru_percpu")];

/// Measures and their programs: the structures alone, and everything that a packet does to its session.
const STEPS: [(&str, &str); 2] = [("session_ns", "pair"), ("session_packets_ns", "mix")];

/// A table of sessions.
struct Table {
    name: &'static str,
    /// Prefix of the names of its programs.
    programs: &'static str,
    maps: Vec<(&'static str, MapHandle)>,
    /// Memory for each session of the capacity.
    bytes: f64,
    ours: Option<Sessions>,
}

/// Runs a program on all cores. Each core has its own thread, and its own programs over the same maps; core
/// `n` works on the `n`th part from `first` on. Returns the mean nanoseconds of a step, and the number of
/// found sessions.
fn on_all_cores(
    maps: &[(&'static str, MapHandle)],
    program: &str,
    first: u32,
    each: u32,
    live: u64,
) -> Result<(f64, u64), Failure> {
    let shared: Vec<(&str, &MapHandle)> = maps.iter().map(|(name, map)| (*name, map)).collect();
    let run = |core: u32| {
        stay_on(core as usize)?;
        let programs = Programs::load_one(program, &shared)?;
        programs.run(
            program,
            RunInput {
                first: first + core * each,
                count: each,
                now: ticks_now(),
                live,
                ..RunInput::default()
            },
        )
    };
    let timings = std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..CORES).map(|core| scope.spawn(move || run(core))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .map(|ended| ended.map_err(|_| "the thread of a core panicked")?)
            .collect::<Result<Vec<_>, Failure>>()
    })?;
    let ns = timings.iter().map(|timing| timing.ns).sum::<f64>() / f64::from(CORES);
    Ok((ns, timings.iter().map(|timing| timing.found).sum()))
}

/// Sluice's table for this many sessions.
fn our_table(capacity: u32) -> Result<Table, Failure> {
    let buckets = (u64::from(capacity) * 100).div_ceil(LOAD_PERCENT * SLOTS);
    let load = Load { object: ObjectName::SessionsTest, cells: 0, pin_dir: None };
    let [ipv4, _] = SESSION_MAPS;
    let datapath = Datapath::load_sized(&load, &[(ipv4, u32::try_from(buckets)?)])?;
    // No session expires during the measurement.
    let timeouts = Timeouts { tcp_new_s: Timeouts::MAX_S, ..Timeouts::default() };
    let sessions = Sessions::create(&datapath.sessions()?, 0x51_u64, &timeouts, Membarrier::new()?)?;
    let maps = ["session_config", ipv4].map(|name| Ok((name, datapath.map(name)?)));
    Ok(Table {
        name: "sluice",
        programs: "sluice",
        maps: maps.into_iter().collect::<Result<_, Failure>>()?,
        bytes: (buckets * BUCKET_BYTES) as f64 / f64::from(capacity),
        ours: Some(sessions),
    })
}

/// A peer's table for this many sessions, so that none is evicted.
fn peers_table((name, map): (&'static str, &'static str), capacity: u32) -> Result<Table, Failure> {
    let handle = Programs::load_maps(&[(map, capacity)])?.map(map)?;
    let bytes = handle.query_fdinfo()?.memlock.unwrap_or(0) as f64 / f64::from(capacity);
    Ok(Table { name, programs: map, maps: vec![(map, handle)], bytes, ours: None })
}

impl Table {
    fn run(&self, what: &str, first: u32, each: u32, live: u64) -> Result<(f64, u64), Failure> {
        on_all_cores(&self.maps, &format!("{}_{what}", self.programs), first, each, live)
    }
}

/// Measures `session_ns` (a creation and a lookup), `session_packets_ns` (the same, with everything else that
/// a packet does), `session_bytes`, and `sessions_64m_*`.
///
/// # Errors
/// Errors of the kernel; live sessions that were not found.
pub fn measure(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    compare_with_peers(settings, outcome)?;
    measure_large_table(settings, outcome)
}

fn compare_with_peers(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    let live = settings.scaled(LIVE) as u32 / CORES * CORES;
    let each = (CREATED / settings.scale).max(1024) as u32;
    report_progress(&format!("sessions: {live} live"));
    // One round more than counts, and the few entries that an LRU map reserves for each core.
    let runs = (settings.rounds as u32 + 1) * STEPS.len() as u32;
    let capacity = live + runs * each * CORES + (1 << 14);
    let mut tables = vec![our_table(capacity)?];
    for peer in PEERS {
        tables.push(peers_table(peer, capacity)?);
    }
    for table in &tables {
        table.run("fill", 0, live / CORES, 0)?;
    }
    let mut times = vec![vec![Vec::new(); tables.len()]; STEPS.len()];
    for run in 0..runs {
        let first = live + run * each * CORES;
        let step = run as usize % STEPS.len();
        // The first run of each step only warms the caches.
        let counts = run as usize >= STEPS.len();
        let (empty, _) = on_all_cores(&[], "sessions_empty", first, each, u64::from(live))?;
        for (table, times) in tables.iter().zip(&mut times[step]) {
            let (ns, found) = table.run(STEPS[step].1, first, each, u64::from(live))?;
            let lost = u64::from(each * CORES) - found;
            if lost > 0 && table.ours.is_some() {
                return Err(format!("{lost} live sessions of Sluice's table were not found").into());
            }
            // An LRU map may evict live sessions, which is not an error of the measurement.
            if lost > 0 && counts {
                outcome.note(format!("sessions: {} evicted {lost} live sessions", table.name));
            }
            if counts {
                times.push(ns - empty);
            }
        }
    }
    for ((name, _), times) in STEPS.iter().zip(times) {
        for (table, theirs) in tables.iter().zip(&times).skip(1) {
            let peer = (table.name, theirs.as_slice());
            outcome.measures.push(Measure::zipped(*name, "ns", Better::Less, &times[0], peer));
        }
    }
    for table in &tables[1..] {
        let (ours, peer) = (tables[0].bytes, (table.name, table.bytes));
        outcome.measures.push(Measure::computed_beside("session_bytes", "B", Better::Less, ours, peer));
    }
    outcome.note(format!(
        "session_ns: a creation and a lookup of one of {live} live sessions, on {CORES} cores at once, the \
         structures alone; session_packets_ns: on both sides also the clock, TCP's state, counters of packets \
         and bytes by direction, and the expiry"
    ));
    Ok(())
}

fn measure_large_table(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    let live = settings.scaled(LARGE) as u32 / CORES * CORES;
    report_progress(&format!("sessions: {live} in Sluice's table"));
    let table = our_table(live)?;
    let (create_ns, created) = table.run("fill", 0, live / CORES, 0)?;
    let each = (CREATED / settings.scale).max(1024) as u32;
    let (mut packet_ns, mut found) = (Vec::new(), 0);
    for round in 0..settings.rounds as u32 {
        // Other sessions in each round, so that none is in the cache.
        let first = round * each * CORES % (live - each * CORES).max(1);
        let (ns, of_round) = table.run("find", first, each, u64::from(live))?;
        packet_ns.push(ns);
        found += of_round;
    }
    let full = table.ours.as_ref().map_or(0, |ours| ours.usage(Family::Ipv4).full_events);
    outcome.measures.extend([
        Measure::alone("sessions_64m_create_ns", "ns", &[create_ns]),
        Measure::alone("sessions_64m_packet_ns", "ns", &packet_ns),
        Measure::computed("sessions_64m_gb", "GB", table.bytes * f64::from(live) / 1e9),
    ]);
    outcome.note(format!(
        "sessions_64m: {created} of {live} sessions were created on {CORES} cores at once at {LOAD_PERCENT}% of \
         the slots, {full} had both buckets full, {found} of {} packets found their session; 100M sessions \
         take {:.1} GB",
        each * CORES * settings.rounds as u32,
        table.bytes * 0.1
    ));
    Ok(())
}
