//! Changes to meters, and which entries lead to them.
//!
//! Packets find a meter by its number, which a public prefix (`meter` of struct public_prefix), the Internet side of a VPC
//! (`meter` of struct internet) or a route to a peer (`out_meter` and `in_meter` of struct peering) has. A meter has its limits and its name before an entry gets the number. When it is removed,
//! first no entry has the number any more, then the name is taken away, and another meter gets the number after a grace period.

use super::NodeTables;
use super::public::{internet_of, set_internet};
use crate::encoding::kind_of;
use crate::entries::{Meter, MeteredPeer};
use crate::error::Error;
use crate::layout::{self, internet, peering, public_prefix, vrf};
use crate::meters::Level;
use crate::named_meters::NamedMeters;
use sluice_types::{EntryHash, EntryKey, METER_WHOLE, Vni};
use std::collections::HashSet;
use std::mem::offset_of;

/// The meters, and numbers that wait for a grace period.
#[derive(Debug)]
pub(super) struct MeterTable {
    named: NamedMeters,
    retired: Vec<u32>,
}

impl NodeTables {
    /// Sets the meters of these tables. Entries whose meter has no name, because the meters are new, take from none.
    pub fn set_meters(&mut self, named: NamedMeters) {
        let mut lost = HashSet::new();
        for (cell, offset) in self.metered() {
            let number = self.memory().load32(cell, offset);
            if number != 0 && named.id_of(number).is_none() {
                self.memory().store32(cell, offset, 0);
                lost.insert(number);
            }
        }
        // A predecessor may have ended between the meter of an Internet side and the flag for it.
        for &vrf_cell in self.vrfs.values() {
            if let Some(internet) = internet_of(self.memory(), vrf_cell) {
                set_internet(self.memory(), vrf_cell, internet);
            }
        }
        let mut meters = MeterTable { named, retired: Vec::new() };
        if !lost.is_empty() {
            meters.retired = meters.named.take_free(&lost);
        }
        self.meters = Some(meters);
    }

    /// Adds or changes a meter; `now_ns` is `CLOCK_MONOTONIC`. A change keeps what packets have taken.
    ///
    /// # Errors
    /// [`Error::NoMeterNumber`], also on a node without meters; [`Error::Invalid`] for limits out of bounds, or the identifier 0;
    /// [`Error::Grace`]. Nothing has changed then.
    pub fn upsert_meter(&mut self, meter: &Meter, now_ns: u64) -> Result<bool, Error> {
        let id = meter.id;
        if id == 0 {
            return Err(Error::Invalid("a meter cannot have the identifier 0".to_owned()));
        }
        let Some(meters) = &mut self.meters else { return Err(Error::NoMeterNumber { id, total: 0 }) };
        let is_new = meters.named.number(id).is_none();
        if is_new && !meters.named.has_free() && !meters.retired.is_empty() {
            self.pool.flush()?;
            meters.named.give_back(std::mem::take(&mut meters.retired));
        }
        let changed = meters.named.upsert(meter, now_ns)?;
        if is_new
            && let Some(number) = meters.named.number(id)
            && let Some(reset) = &mut self.counter_reset
        {
            reset.reset_meter(number);
        }
        Ok(changed)
    }

    /// Sets the shares that this gateway has of meters' rates and bursts: identifiers with the shares inward and outward, in
    /// millionths; `now_ns` is `CLOCK_MONOTONIC`. Meters that do not exist are ignored.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a share that is not 1 to [`METER_WHOLE`](sluice_types::METER_WHOLE). Those before it are set then.
    pub fn share_meters(&mut self, shares: &[(u32, [u32; 2])], now_ns: u64) -> Result<(), Error> {
        let Some(meters) = &mut self.meters else { return Ok(()) };
        shares.iter().try_for_each(|(id, shares)| meters.named.share(*id, *shares, now_ns).map(drop))
    }

    /// The shares of the meter with this number, inward and outward, in millionths.
    #[must_use]
    pub fn meter_shares(&self, number: u32) -> [u32; 2] {
        self.meters.as_ref().map_or([METER_WHOLE; 2], |meters| meters.named.shares(number))
    }

    /// Removes meters. Entries that have one of them take from none. Returns whether there was one.
    pub fn remove_meters(&mut self, ids: &[u32]) -> bool {
        let numbers: HashSet<u32> = ids.iter().filter_map(|id| self.meter_number(*id)).collect();
        if numbers.is_empty() {
            return false;
        }
        for (cell, offset) in self.metered() {
            if numbers.contains(&self.memory().load32(cell, offset)) {
                self.memory().store32(cell, offset, 0);
            }
        }
        if let Some(meters) = &mut self.meters {
            let removed: Vec<u32> = ids.iter().filter_map(|id| meters.named.remove(*id)).collect();
            meters.retired.extend(removed);
        }
        true
    }

    /// The number of a meter, for [`PublicPrefix::meter`](crate::PublicPrefix::meter) and [`NodeTables::set_internet_meter`].
    #[must_use]
    pub fn meter_number(&self, id: u32) -> Option<u32> {
        self.meters.as_ref()?.named.number(id)
    }

    /// The identifier of the meter with this number; 0 for the number 0. `None`: no meter has it.
    #[must_use]
    pub fn meter_id(&self, number: u32) -> Option<u32> {
        if number == 0 { Some(0) } else { self.meters.as_ref()?.named.id_of(number) }
    }

    /// All meters, in the order of their identifiers, with their numbers. Those whose memory is damaged are left out.
    pub fn meters(&self) -> impl Iterator<Item = (u32, Meter)> + '_ {
        let named = self.meters.iter().map(|meters| &meters.named);
        named.flat_map(|named| named.numbers().filter_map(|(_, number)| Some((number, named.meter(number)?))))
    }

    /// The identifiers of all meters, in ascending order.
    pub fn meter_ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.meters.iter().flat_map(|meters| meters.named.numbers()).map(|(id, _)| id)
    }

    /// What is left in the buckets of the meter with this number at `now_ns` (`CLOCK_MONOTONIC`).
    #[must_use]
    pub fn meter_level(&self, number: u32, now_ns: u64) -> Level {
        self.meters.as_ref().map_or(Level::default(), |meters| meters.named.level(number, now_ns))
    }

    /// Whether there is no room for another meter. Not on a node without meters, which is not sent any.
    #[must_use]
    pub fn meters_are_full(&self) -> bool {
        let meters = self.meters.as_ref();
        meters.is_some_and(|meters| !meters.named.has_free() && meters.retired.is_empty())
    }

    /// Meters for which there is room.
    #[must_use]
    pub fn meters_total(&self) -> u32 {
        self.meters.as_ref().map_or(0, |meters| meters.named.total())
    }

    /// Sets the meter of a VPC's Internet traffic by its number; 0: it takes from none.
    ///
    /// # Errors
    /// [`Error::UnknownVni`]; [`Error::Full`]; [`Error::Invalid`] for a VRF with a group.
    pub fn set_internet_meter(&mut self, vni: Vni, number: u32) -> Result<bool, Error> {
        let &vrf_cell = self.vrfs.get(&vni.get()).ok_or(Error::UnknownVni(vni))?;
        if self.stored_internet_meter(vrf_cell) == number && self.internet_meter(vni) == number {
            return Ok(false);
        }
        self.check_is_gateway(vni, vrf_cell, EntryKey::Vrf(vni))?;
        let cell = self.make_internet(vni, vrf_cell)?;
        self.memory().store32(cell, offset_of!(internet, meter), number);
        set_internet(self.memory(), vrf_cell, cell);
        self.drop_empty_internet(vrf_cell);
        Ok(true)
    }

    /// The number of the meter that packets find for a VPC's Internet traffic; 0: none.
    #[must_use]
    pub fn internet_meter(&self, vni: Vni) -> u32 {
        self.vrfs.get(&vni.get()).map_or(0, |cell| self.internet_meter_at(*cell))
    }

    /// The routes to peers through meters, in no order.
    pub fn metered_peers(&self) -> impl Iterator<Item = MeteredPeer> + '_ {
        self.peerings.iter().map(|cell| {
            let peering { vni, peer, out_meter, in_meter, .. } = self.memory().read(*cell);
            MeteredPeer { vni, peer, out_meter, in_meter }
        })
    }

    /// What digests count as the meter of an entry with this number: its identifier, or nothing. `None`: no meter has the number.
    pub(super) fn counted_meter(&self, number: u32) -> Option<Option<u32>> {
        self.meter_id(number).map(|id| (id != 0).then_some(id))
    }

    /// The meters as digests count them.
    pub(super) fn visit_meters(&self, call: &mut impl FnMut(EntryKey, EntryHash)) {
        for (id, number) in self.meters.iter().flat_map(|meters| meters.named.numbers()) {
            let key = EntryKey::Meter(id);
            let known = self.meters.as_ref().and_then(|meters| meters.named.meter(number));
            let hash = known.filter(|meter| meter.id == id).map_or(EntryHash::unreadable(key), |meter| {
                EntryHash::meter(id, [meter.inward, meter.outward])
            });
            call(key, hash);
        }
    }

    /// The same as [`NodeTables::internet_meter`], by the cell of the VRF.
    pub(super) fn internet_meter_at(&self, vrf_cell: u32) -> u32 {
        let flags = u32::from(self.memory().read::<vrf>(vrf_cell).flags);
        if flags & layout::VRF_METERED == 0 { 0 } else { self.stored_internet_meter(vrf_cell) }
    }

    fn stored_internet_meter(&self, vrf_cell: u32) -> u32 {
        let internet = internet_of(self.memory(), vrf_cell);
        internet.map_or(0, |cell| self.memory().load32(cell, offset_of!(internet, meter)))
    }

    /// Where entries have numbers of meters: cell and offset.
    fn metered(&self) -> Vec<(u32, usize)> {
        let memory = self.memory();
        // A source that leads to another cell is an orphan, whose packets are dropped.
        let is_prefix = |cell: &u32| kind_of(memory, *cell) == layout::NEXT_HOP_PUBLIC;
        let prefixes = self.outside_cells().map(|(_, cell)| cell).filter(is_prefix);
        let internets = self.vrfs.values().filter_map(|cell| internet_of(memory, *cell));
        let peerings = self.peerings.iter().flat_map(|cell| {
            [offset_of!(peering, out_meter), offset_of!(peering, in_meter)].map(|offset| (*cell, offset))
        });
        prefixes
            .map(|cell| (cell, offset_of!(public_prefix, meter)))
            .chain(internets.map(|cell| (cell, offset_of!(internet, meter))))
            .chain(peerings)
            .collect()
    }
}
