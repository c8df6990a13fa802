//! Reading what the programs count.

use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};
use sluice_tables::{VniCounts, layout};
use sluice_types::Vni;

use crate::Error;

/// Packets that a reason took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropCount {
    /// The VNI, or none for the node's total.
    pub vni: Option<u32>,
    /// A number of drops.h.
    pub reason: u32,
    /// How many.
    pub packets: u64,
}

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

fn word64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |b| u64::from_ne_bytes(b.try_into().expect("eight bytes")))
}

fn word32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_ne_bytes(b.try_into().expect("four bytes")))
}

fn per_cpu(map: &MapHandle, key: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
    let values = map
        .lookup_percpu(key, MapFlags::ANY)
        .map_err(Error::bpf(format!("read the counters {:?}", map.name())))?;
    Ok(values.unwrap_or_default())
}

fn sum(values: &[Vec<u8>], at: usize) -> u64 {
    values.iter().fold(0, |sum: u64, value| sum.wrapping_add(word64(value, at)))
}

/// Drops of the node by reason, without those that never happened.
pub(crate) fn drops(map: &MapHandle) -> Result<Vec<DropCount>, Error> {
    let mut counts = Vec::new();
    for reason in 0..map.max_entries() {
        let packets = sum(&per_cpu(map, &reason.to_ne_bytes())?, 0);
        if packets > 0 {
            counts.push(DropCount { vni: None, reason, packets });
        }
    }
    Ok(counts)
}

/// Drops by VNI and reason.
pub(crate) fn vni_drops(map: &MapHandle) -> Result<Vec<DropCount>, Error> {
    let mut counts = Vec::new();
    for key in map.keys() {
        let packets = sum(&per_cpu(map, &key)?, 0);
        counts.push(DropCount { vni: Some(word32(&key, 0)), reason: word32(&key, 4), packets });
    }
    counts.sort_by_key(|count| (count.vni, count.reason));
    Ok(counts)
}

/// Events for which there was no room.
pub(crate) fn events_lost(map: &MapHandle) -> Result<u64, Error> {
    Ok(sum(&per_cpu(map, &0_u32.to_ne_bytes())?, 0))
}

/// Traffic of one counter index.
pub(crate) fn traffic(map: &MapHandle, index: u32) -> Result<Traffic, Error> {
    let values = per_cpu(map, &index.to_ne_bytes())?;
    Ok(Traffic { packets: sum(&values, 0), bytes: sum(&values, 8) })
}

/// What programs count by VNI, for the writer of the tables to begin and end.
#[derive(Debug)]
pub struct VniCounters {
    /// By the index of a VRF's counters: traffic, and the budget of ICMP errors.
    pub(crate) by_index: [MapHandle; 2],
    /// By VNI and reason.
    pub(crate) drops: MapHandle,
}

impl VniCounters {
    /// Forgets the drops of VNIs that are not `known`: those that a predecessor
    /// was killed over.
    ///
    /// # Errors
    /// If an entry cannot be removed.
    pub fn forget_unknown(&self, known: impl Fn(u32) -> bool) -> Result<(), Error> {
        let keys: Vec<Vec<u8>> = self.drops.keys().filter(|key| !known(word32(key, 0))).collect();
        keys.iter().try_for_each(|key| self.remove(key))
    }

    fn remove(&self, key: &[u8]) -> Result<(), Error> {
        match self.drops.delete(key) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Error::bpf(format!("remove from the counters {:?}", self.drops.name()))(error))
            }
            _ => Ok(()),
        }
    }

    fn zero(map: &MapHandle, index: u32) -> Result<(), Error> {
        let failed = || Error::bpf(format!("reset the counters {:?}", map.name()));
        let cpus = libbpf_rs::num_possible_cpus().map_err(failed())?;
        let zero = vec![vec![0; map.value_size() as usize]; cpus];
        map.update_percpu(&index.to_ne_bytes(), &zero, MapFlags::ANY).map_err(failed())
    }
}

impl VniCounts for VniCounters {
    fn begin(&mut self, index: u32) -> bool {
        let zeroed = self.by_index.iter().try_for_each(|map| Self::zero(map, index));
        if let Err(error) = &zeroed {
            tracing::warn!(%error, index, "a VNI has no counters of its own");
        }
        zeroed.is_ok()
    }

    fn end(&mut self, vni: Vni) {
        let keys = (0..layout::DROP_REASONS_MAX)
            .map(|reason| [vni.get().to_ne_bytes(), reason.to_ne_bytes()].concat());
        for key in keys {
            if let Err(error) = self.remove(&key) {
                tracing::warn!(%error, %vni, "drops of a VNI that is gone stay");
                return;
            }
        }
    }
}
