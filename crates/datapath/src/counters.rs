//! Reads and resets the counters of the packet programs: drops, traffic, lost events.

use std::collections::BTreeMap;
use std::mem::offset_of;

use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};
use sluice_tables::{COST_CLASSES, CounterReset, layout};
use sluice_types::Vni;

use crate::Error;

/// Packets dropped for one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropCount {
    /// VNI of the packets, or `None` for the node's total.
    pub vni: Option<u32>,
    /// Number of the reason, defined in `drops.h`.
    pub reason: u32,
    /// Number of dropped packets.
    pub packets: u64,
}

/// Traffic of a VNI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of packets that were forwarded.
    pub packets: u64,
    /// Number of bytes in these packets.
    pub bytes: u64,
}

/// Packets of the ring of gateways (`nat_ring.h`), by what this gateway did with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NatRingCounts {
    /// As the owner of their NAT gateway's vIP, it has sent them into the ring.
    pub entered: u64,
    /// It has sent them on to the next gateway.
    pub passed: u64,
    /// As the last gateway, it has taken them for the Internet.
    pub left: u64,
    /// It does not have their session: the outside port belongs to another inside endpoint, or the session has another one. It
    /// has sent them on all the same; so also for the next two.
    pub taken: u64,
    /// It does not have their session: its session table is full.
    pub full: u64,
    /// It does not have their session: other packets were changing the same memory for too long.
    pub busy: u64,
    /// It does not have their session, and has sent them on: it does not have the NAT gateway or the public address as the sender
    /// has it.
    pub unknown: u64,
    /// The sender believes that this gateway has another position, so another gateway may not get their session.
    pub astray: u64,
}

fn read_u64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |b| u64::from_ne_bytes(b.try_into().expect("eight bytes")))
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_ne_bytes(b.try_into().expect("four bytes")))
}

fn read_per_cpu(map: &MapHandle, key: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
    let values = map
        .lookup_percpu(key, MapFlags::ANY)
        .map_err(Error::bpf(format!("read the counters {:?}", map.name())))?;
    Ok(values.unwrap_or_default())
}

fn sum(values: &[Vec<u8>], at: usize) -> u64 {
    values.iter().fold(0, |sum: u64, value| sum.wrapping_add(read_u64(value, at)))
}

/// Reads the node's drops by reason. Reasons without drops are left out.
pub(crate) fn drops(map: &MapHandle) -> Result<Vec<DropCount>, Error> {
    let mut counts = Vec::new();
    for reason in 0..map.max_entries() {
        let packets = drops_for(map, reason)?;
        if packets > 0 {
            counts.push(DropCount { vni: None, reason, packets });
        }
    }
    Ok(counts)
}

/// Reads the node's drops for one reason.
pub(crate) fn drops_for(map: &MapHandle, reason: u32) -> Result<u64, Error> {
    Ok(sum(&read_per_cpu(map, &reason.to_ne_bytes())?, 0))
}

/// Reads the drops by VNI and reason.
pub(crate) fn vni_drops(map: &MapHandle) -> Result<Vec<DropCount>, Error> {
    let mut counts = Vec::new();
    for key in map.keys() {
        let packets = sum(&read_per_cpu(map, &key)?, 0);
        counts.push(DropCount { vni: Some(read_u32(&key, 0)), reason: read_u32(&key, 4), packets });
    }
    counts.sort_by_key(|count| (count.vni, count.reason));
    Ok(counts)
}

/// Reads the frames that were dropped because their interface is not a port, by interface index.
pub(crate) fn unknown_ports(map: &MapHandle) -> Result<BTreeMap<u32, u64>, Error> {
    let failed = || Error::bpf(format!("read the counters {:?}", map.name()));
    let mut counts = BTreeMap::new();
    // The iteration begins again when its last key is replaced, so it needs a bound.
    for key in map.keys().take(map.max_entries() as usize) {
        // An entry that was replaced meanwhile has no value.
        if let Some(value) = map.lookup(&key, MapFlags::ANY).map_err(failed())? {
            counts.insert(read_u32(&key, 0), read_u64(&value, 0));
        }
    }
    Ok(counts)
}

/// Reads a number of events that were not posted: all of those that one map counts.
pub(crate) fn events(map: &MapHandle) -> Result<u64, Error> {
    Ok(sum(&read_per_cpu(map, &0_u32.to_ne_bytes())?, 0))
}

/// What packets have cost in the programs of a vSwitch (`bpf/include/vswitch/credit.h`).
#[derive(Debug)]
pub struct PacketTimes(pub(crate) MapHandle);

impl PacketTimes {
    /// The packets that were timed since the programs were loaded for the first time: by class, their number and their time in ns.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn read(&self) -> Result<[(u64, u64); COST_CLASSES], Error> {
        let values = read_per_cpu(&self.0, &0_u32.to_ne_bytes())?;
        let (packets, ns) = (offset_of!(layout::packet_times, packets), offset_of!(layout::packet_times, ns));
        Ok(std::array::from_fn(|class| (sum(&values, packets + class * 8), sum(&values, ns + class * 8))))
    }
}

/// Reads what happened to packets of the ring of gateways.
pub(crate) fn nat_ring(map: &MapHandle) -> Result<NatRingCounts, Error> {
    let count = |what: layout::nat_ring_count| Ok(sum(&read_per_cpu(map, &what.to_ne_bytes())?, 0));
    Ok(NatRingCounts {
        entered: count(layout::nat_ring_count_NAT_RING_ENTERED)?,
        passed: count(layout::nat_ring_count_NAT_RING_PASSED)?,
        left: count(layout::nat_ring_count_NAT_RING_LEFT)?,
        taken: count(layout::nat_ring_count_NAT_RING_TAKEN)?,
        full: count(layout::nat_ring_count_NAT_RING_FULL)?,
        busy: count(layout::nat_ring_count_NAT_RING_BUSY)?,
        unknown: count(layout::nat_ring_count_NAT_RING_UNKNOWN)?,
        astray: count(layout::nat_ring_count_NAT_RING_ASTRAY)?,
    })
}

/// Reads the traffic of one counter index.
pub(crate) fn traffic(map: &MapHandle, index: u32) -> Result<Traffic, Error> {
    let values = read_per_cpu(map, &index.to_ne_bytes())?;
    Ok(Traffic { packets: sum(&values, 0), bytes: sum(&values, 8) })
}

/// Bytes of IP packets that a meter was offered, inward and outward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeterBytes {
    /// Bytes of packets that conformed.
    pub passed: [u64; 2],
    /// Bytes of packets that were dropped.
    pub dropped: [u64; 2],
}

/// Counters of a gateway's meters, by number.
#[derive(Debug)]
pub struct MeterCounters(pub(crate) MapHandle);

impl MeterCounters {
    /// What the meter with this number was offered since it has the number. Nothing if the map has no room for the number, as that of
    /// an agent with fewer meters.
    ///
    /// # Errors
    /// If the counters cannot be read.
    pub fn read(&self, number: u32) -> Result<MeterBytes, Error> {
        if number >= self.0.max_entries() {
            return Ok(MeterBytes::default());
        }
        let values = read_per_cpu(&self.0, &number.to_ne_bytes())?;
        let both = |at: usize| [0, 1].map(|direction| sum(&values, at + direction * size_of::<u64>()));
        Ok(MeterBytes {
            passed: both(offset_of!(layout::meter_count, passed)),
            dropped: both(offset_of!(layout::meter_count, dropped)),
        })
    }
}

/// Counters by VNI, and on a gateway by meter. The writer of the tables resets the counters of a VNI or meter that it adds, and removes
/// those of a VNI that it deletes.
#[derive(Debug)]
pub struct VniCounters {
    /// Maps indexed by a VRF's counter index: traffic, and the budget of ICMP errors.
    pub(crate) by_index: [MapHandle; 2],
    /// Map of drops, by VNI and reason.
    pub(crate) drops: MapHandle,
    /// Map of what meters pass and drop, of a gateway.
    pub(crate) meters: Option<MapHandle>,
}

impl VniCounters {
    /// Removes the drop counters of all VNIs for which `known` is false. An agent
    /// that was killed while it deleted a VNI leaves such counters.
    ///
    /// # Errors
    /// If an entry cannot be removed.
    pub fn remove_unknown(&self, known: impl Fn(u32) -> bool) -> Result<(), Error> {
        let keys: Vec<Vec<u8>> = self.drops.keys().filter(|key| !known(read_u32(key, 0))).collect();
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

impl CounterReset for VniCounters {
    fn reset_index(&mut self, index: u32) -> bool {
        let zeroed = self.by_index.iter().try_for_each(|map| Self::zero(map, index));
        if let Err(error) = &zeroed {
            tracing::warn!(%error, index, "cannot reset a VNI's counters; it shares those at index 0");
        }
        zeroed.is_ok()
    }

    fn forget_vni(&mut self, vni: Vni) {
        let keys = (0..layout::DROP_REASONS_MAX)
            .map(|reason| [vni.get().to_ne_bytes(), reason.to_ne_bytes()].concat());
        for key in keys {
            if let Err(error) = self.remove(&key) {
                tracing::warn!(%error, %vni, "cannot remove the drop counters of a deleted VNI");
                return;
            }
        }
    }

    fn reset_meter(&mut self, number: u32) {
        if let Some(map) = self.meters.as_ref().filter(|map| number < map.max_entries())
            && let Err(error) = Self::zero(map, number)
        {
            tracing::warn!(%error, number, "cannot reset the counters of a meter, which has those of an earlier one");
        }
    }
}
