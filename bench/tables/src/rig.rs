//! Loads the timed eBPF programs over maps of given sizes, and runs them.

use crate::data::Key;
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder, ProgramInput};
use sluice_bench_report::shell::Failure;
use std::os::fd::AsFd;
use std::time::Duration;

/// Bytes with the alignment that an ELF parser requires.
#[repr(C, align(8))]
struct Aligned<Bytes: ?Sized>(Bytes);
static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/tables_bench.bpf.o")));

/// Steps of one run. The kernel reports the duration of a run in 32 bits of nanoseconds.
const STEPS_PER_RUN: u32 = 1 << 17;
/// Size of `struct run` of the programs.
const RUN_BYTES: usize = 64;
/// Entries of one system call, for maps that support batches.
const BATCH: usize = 1 << 16;

/// The kernel has freed its slabs if they shrink by less than this in a step.
const SETTLED_KIB: u64 = 1024;
const SETTLE_STEP: Duration = Duration::from_millis(200);
const SETTLE_LOOKS: usize = 300;

/// Input of a program.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunInput {
    /// Index of the first key or session.
    pub first: u32,
    /// Number of keys or sessions.
    pub count: u32,
    /// VNI of all lookups.
    pub vni: u32,
    /// For sessions: the time in ticks.
    pub now: u32,
    /// Number of live sessions.
    pub live: u64,
}

/// Result of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timing {
    /// Duration of a step in nanoseconds.
    pub ns: f64,
    /// Sum of all answers, each multiplied by the number of its key, counted from 1.
    pub sum: u64,
    /// Number of answers other than "not found".
    pub found: u64,
}

/// Loaded programs.
pub struct Programs {
    object: Object,
}

impl Programs {
    /// Loads the programs over `shared` maps and over new maps of these sizes. All other maps have one entry.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn load(shared: &[(&str, &MapHandle)], sizes: &[(&str, u32)]) -> Result<Self, Failure> {
        Self::load_if(shared, sizes, |_| true)
    }

    /// Loads only one program, which saves the verification of all others.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn load_one(program: &str, shared: &[(&str, &MapHandle)]) -> Result<Self, Failure> {
        Self::load_if(shared, &[], |name| name == program)
    }

    /// Creates only the maps, of these sizes.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn load_maps(sizes: &[(&str, u32)]) -> Result<Self, Failure> {
        Self::load_if(&[], sizes, |_| false)
    }

    fn load_if(
        shared: &[(&str, &MapHandle)],
        sizes: &[(&str, u32)],
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Self, Failure> {
        let mut open = ObjectBuilder::default().name("tables_bench")?.open_memory(&OBJECT.0)?;
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if let Some((_, handle)) = shared.iter().find(|(shared, _)| *shared == name) {
                map.reuse_fd(handle.as_fd())?;
            } else if let Some((_, entries)) = sizes.iter().find(|(sized, _)| *sized == name) {
                map.set_max_entries(*entries)?;
            }
        }
        for mut program in open.progs_mut() {
            let wanted = is_wanted(&program.name().to_string_lossy());
            program.set_autoload(wanted);
        }
        Ok(Self { object: open.load()? })
    }

    /// A map by name.
    ///
    /// # Errors
    /// If there is no such map.
    pub fn map(&self, name: &str) -> Result<MapHandle, Failure> {
        let found = self.object.maps().find(|map| map.name() == name);
        Ok(MapHandle::try_from(&found.ok_or_else(|| format!("the programs have no map {name}"))?)?)
    }

    /// Writes the keys of the programs, at most as many as their map has entries.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn set_keys(&self, keys: &[Key]) -> Result<(), Failure> {
        let mut batch = Batch::new(4, 16, keys.len());
        for (i, key) in keys.iter().enumerate() {
            let mut value = [0; 16];
            value[..8].copy_from_slice(&key.high.to_ne_bytes());
            value[8..].copy_from_slice(&key.low.to_ne_bytes());
            batch.push(&(i as u32).to_ne_bytes(), &value);
        }
        batch.write_many(&self.map("keys")?, BATCH)
    }

    /// Runs a program over all keys or sessions of its input, in several runs if these are many.
    ///
    /// # Errors
    /// Errors of the kernel; a program that stopped early.
    pub fn run(&self, program: &str, input: RunInput) -> Result<Timing, Failure> {
        let found = self.object.progs_mut().find(|known| known.name() == program);
        let program = found.ok_or_else(|| format!("there is no program {program}"))?;
        let (mut total, mut nanoseconds, mut at) = (Timing::default(), 0_u128, 0);
        while at < input.count {
            let count = STEPS_PER_RUN.min(input.count - at);
            let mut data = [0; RUN_BYTES];
            let words = [input.first + at, count, input.vni, input.now].map(u32::to_ne_bytes);
            data[..16].copy_from_slice(words.as_flattened());
            data[16..24].copy_from_slice(&input.live.to_ne_bytes());
            let mut out = [0; RUN_BYTES];
            let input = ProgramInput {
                data_in: Some(&data),
                data_out: Some(&mut out),
                repeat: 1,
                ..ProgramInput::default()
            };
            nanoseconds += program.test_run(input)?.duration.as_nanos();
            let word = |at: usize| out[at..at + 8].try_into().map(u64::from_ne_bytes);
            if word(40)? != u64::from(count) {
                return Err(
                    format!("{:?} stopped after {} of {count} steps", program.name(), word(40)?).into()
                );
            }
            total.sum = total.sum.wrapping_add(word(24)?);
            total.found += word(32)?;
            at += count;
        }
        total.ns = nanoseconds as f64 / f64::from(input.count.max(1));
        Ok(total)
    }
}

/// Entries of a map in the form of the batch system calls.
pub struct Batch {
    keys: Vec<u8>,
    values: Vec<u8>,
    key_bytes: usize,
    value_bytes: usize,
}

impl Batch {
    /// An empty batch with entries of these sizes.
    pub fn new(key_bytes: usize, value_bytes: usize, entries: usize) -> Self {
        Self {
            keys: Vec::with_capacity(entries * key_bytes),
            values: Vec::with_capacity(entries * value_bytes),
            key_bytes,
            value_bytes,
        }
    }

    /// Appends an entry.
    ///
    /// # Panics
    /// If the key or value does not have the size of the batch.
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        assert!(key.len() == self.key_bytes && value.len() == self.value_bytes);
        self.keys.extend_from_slice(key);
        self.values.extend_from_slice(value);
    }

    /// Number of entries.
    fn entries(&self) -> usize {
        self.keys.len() / self.key_bytes
    }

    /// Key and value of an entry.
    pub fn entry(&self, at: usize) -> (&[u8], &[u8]) {
        (
            &self.keys[at * self.key_bytes..][..self.key_bytes],
            &self.values[at * self.value_bytes..][..self.value_bytes],
        )
    }

    /// Writes all entries to a map, with one system call for `per_call` entries.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn write_many(&self, map: &MapHandle, per_call: usize) -> Result<(), Failure> {
        for first in (0..self.entries()).step_by(per_call) {
            self.write_range(map, first, per_call.min(self.entries() - first))?;
        }
        Ok(())
    }

    /// Writes a range of entries to a map by one system call.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn write_range(&self, map: &MapHandle, first: usize, count: usize) -> Result<(), Failure> {
        let keys = &self.keys[first * self.key_bytes..][..count * self.key_bytes];
        let values = &self.values[first * self.value_bytes..][..count * self.value_bytes];
        Ok(map.update_batch(keys, values, count as u32, MapFlags::ANY, MapFlags::ANY)?)
    }

    /// Writes all entries to a map with the fewest system calls that the kernel offers for it.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn write(&self, map: &MapHandle) -> Result<(), Failure> {
        if self.write_many(map, BATCH).is_ok() {
            return Ok(());
        }
        for at in 0..self.entries() {
            let (key, value) = self.entry(at);
            map.update(key, value, MapFlags::ANY)?;
        }
        Ok(())
    }
}

/// Waits until the kernel has freed the entries of maps that were closed. It does so later, on a core on
/// which is measured.
///
/// # Errors
/// If the kernel does not report the size of its slabs.
pub fn settle() -> Result<(), Failure> {
    let slab_kib = || -> Result<u64, Failure> {
        let text = std::fs::read_to_string("/proc/meminfo")?;
        let line = text.lines().find_map(|line| line.strip_prefix("Slab:"));
        let word = line.and_then(|line| line.split_whitespace().next());
        Ok(word.ok_or("/proc/meminfo has no line Slab")?.parse()?)
    };
    let mut before = slab_kib()?;
    for _ in 0..SETTLE_LOOKS {
        std::thread::sleep(SETTLE_STEP);
        let now = slab_kib()?;
        if now + SETTLED_KIB >= before {
            break;
        }
        before = now;
    }
    Ok(())
}
