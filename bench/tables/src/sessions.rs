//! Sessions: created and looked up by packets, on two cores at once.

use crate::rig::{Ask, Rig};
use crate::{Outcome, Settings, say};
use libbpf_rs::{MapCore, MapHandle};
use sluice_bench_report::{Measure, median, shell::Failure, stay_on};
use sluice_datapath::{Datapath, ObjectName, SESSION_MAPS, Settings as Load};
use sluice_tables::Membarrier;
use sluice_tables::sessions::{Family, Sessions, Timeouts, ticks_now};

/// The cores that packets come in on.
const CORES: u32 = 2;
/// Sessions that each core creates in a round.
const CREATED: usize = 1 << 18;
/// Sessions that live, at full size, beside the peers.
const LIVE: usize = 10_000_000;
/// Sessions that Sluice's table is shown with.
const SHOWN: usize = 64_000_000;
/// The part of its slots, in percent, that they fill.
const LOAD_PERCENT: u64 = 80;
/// `struct session_bucket4`: seven sessions.
const BUCKET_BYTES: u64 = 512;
const SLOTS: u64 = 7;

/// Peers: name, and map; programs are MAP_fill and one for each of `STEPS`.
const PEERS: [(&str, &str); 2] = [("lru_hash", "lru"), ("lru_percpu_hash", "lru_percpu")];

/// What is measured, and the programs: the structures alone, and with all that a packet does to its session.
const STEPS: [(&str, &str); 2] = [("session_ns", "pair"), ("session_packets_ns", "mix")];

/// A table of sessions, filled.
struct Table {
    name: &'static str,
    /// Its programs' names begin so.
    programs: &'static str,
    maps: Vec<(&'static str, MapHandle)>,
    /// For each session that there is room for.
    bytes: f64,
    ours: Option<Sessions>,
}

/// Nanoseconds a step, the mean of all cores: each has its own thread, and its
/// own programs over the same maps. Core `n` works on the `n`th part from `first` on.
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
        let rig = Rig::load(&shared, &[])?;
        rig.run(
            program,
            Ask { first: first + core * each, count: each, now: ticks_now(), live, ..Ask::default() },
        )
    };
    let timings = std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..CORES).map(|core| scope.spawn(move || run(core))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .map(|ended| ended.map_err(|_| "a core's thread ended badly")?)
            .collect::<Result<Vec<_>, Failure>>()
    })?;
    let ns = timings.iter().map(|timing| timing.ns).sum::<f64>() / f64::from(CORES);
    Ok((ns, timings.iter().map(|timing| timing.found).sum()))
}

/// Sluice's table with room for so many.
fn our_table(room: u32) -> Result<Table, Failure> {
    let buckets = (u64::from(room) * 100).div_ceil(LOAD_PERCENT * SLOTS);
    let load = Load { object: ObjectName::SessionsTest, cells: 0, pin_dir: None };
    let [ipv4, _] = SESSION_MAPS;
    let datapath = Datapath::load_sized(&load, &[(ipv4, u32::try_from(buckets)?)])?;
    // Nothing expires while it is measured.
    let timeouts = Timeouts { tcp_new_s: Timeouts::MAX_S, ..Timeouts::default() };
    let sessions = Sessions::create(&datapath.sessions()?, 0x51_u64, &timeouts, Membarrier::new()?)?;
    let maps = ["session_config", ipv4].map(|name| Ok((name, datapath.map(name)?)));
    Ok(Table {
        name: "sluice",
        programs: "sluice",
        maps: maps.into_iter().collect::<Result<_, Failure>>()?,
        bytes: (buckets * BUCKET_BYTES) as f64 / f64::from(room),
        ours: Some(sessions),
    })
}

/// A peer's table with room for so many, so that nothing is evicted.
fn peers_table((name, map): (&'static str, &'static str), room: u32) -> Result<Table, Failure> {
    let handle = Rig::load(&[], &[(map, room)])?.map(map)?;
    let bytes = handle.query_fdinfo()?.memlock.unwrap_or(0) as f64 / f64::from(room);
    Ok(Table { name, programs: map, maps: vec![(map, handle)], bytes, ours: None })
}

impl Table {
    fn run(&self, what: &str, first: u32, each: u32, live: u64) -> Result<(f64, u64), Failure> {
        on_all_cores(&self.maps, &format!("{}_{what}", self.programs), first, each, live)
    }
}

/// `session_ns`, a pair of one creation and one lookup, `session_packets_ns`, the same
/// with what else a packet does, `session_bytes`, and `sessions_64m_*`.
///
/// # Errors
/// The kernel's, and where live sessions were not found.
pub fn measure(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    beside_peers(settings, outcome)?;
    show_many(settings, outcome)
}

fn beside_peers(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    let live = settings.scaled(LIVE) as u32 / CORES * CORES;
    let each = (CREATED / settings.scale).max(1024) as u32;
    say(&format!("sessions: {live} live"));
    // One round more than counts, and the few that each core of an LRU map keeps aside.
    let runs = (settings.rounds as u32 + 1) * STEPS.len() as u32;
    let room = live + runs * each * CORES + (1 << 14);
    let mut tables = vec![our_table(room)?];
    for peer in PEERS {
        tables.push(peers_table(peer, room)?);
    }
    for table in &tables {
        table.run("fill", 0, live / CORES, 0)?;
    }
    let mut times = vec![vec![Vec::new(); tables.len()]; STEPS.len()];
    for run in 0..runs {
        let first = live + run * each * CORES;
        let step = run as usize % STEPS.len();
        // The first of each is for the caches.
        let counts = run as usize >= STEPS.len();
        let (empty, _) = on_all_cores(&[], "sessions_empty", first, each, u64::from(live))?;
        for (table, times) in tables.iter().zip(&mut times[step]) {
            let (ns, found) = table.run(STEPS[step].1, first, each, u64::from(live))?;
            let lost = u64::from(each * CORES) - found;
            if lost > 0 && table.ours.is_some() {
                return Err(format!("{lost} of our live sessions were not found").into());
            }
            // An LRU map may evict what is live; that is the peer's loss, not an error of the measurement.
            if lost > 0 && counts {
                outcome.note(format!("sessions: {} had lost {lost} live sessions", table.name));
            }
            if counts {
                times.push(ns - empty);
            }
        }
    }
    for ((name, _), times) in STEPS.iter().zip(times) {
        let medians: Vec<f64> = times.into_iter().map(median).collect();
        for (table, &ns) in tables.iter().zip(&medians).skip(1) {
            outcome.measures.push(Measure::beside_less(*name, "ns", medians[0], table.name, Some(ns)));
        }
    }
    for table in &tables[1..] {
        let bytes = Some(table.bytes);
        outcome.measures.push(Measure::beside_less("session_bytes", "B", tables[0].bytes, table.name, bytes));
    }
    outcome.note(format!(
        "session_ns: a creation and a lookup of one of {live} live sessions, on {CORES} cores at once, the structures \
         alone; session_packets_ns: on both sides with the clock, TCP's state, counters of packets and bytes by \
         direction, and the expiry"
    ));
    Ok(())
}

fn show_many(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    let live = settings.scaled(SHOWN) as u32 / CORES * CORES;
    say(&format!("sessions: {live} in Sluice's table"));
    let table = our_table(live)?;
    let (create_ns, created) = table.run("fill", 0, live / CORES, 0)?;
    let each = (CREATED / settings.scale).max(1024) as u32;
    let (find_ns, found) = table.run("find", 0, each, u64::from(live))?;
    let full = table.ours.as_ref().map_or(0, |ours| ours.fill(Family::Ipv4).full_events);
    outcome.measures.extend([
        Measure::alone("sessions_64m_create_ns", "ns", create_ns),
        Measure::alone("sessions_64m_packet_ns", "ns", find_ns),
        Measure::alone("sessions_64m_gb", "GB", table.bytes * f64::from(live) / 1e9),
    ]);
    outcome.note(format!(
        "sessions_64m: {created} of {live} created on {CORES} cores at once at {LOAD_PERCENT}% of the slots, {full} \
         found both their buckets full, {found} of {} packets found theirs; 100M take {:.1} GB",
        each * CORES,
        table.bytes * 0.1
    ));
    Ok(())
}
