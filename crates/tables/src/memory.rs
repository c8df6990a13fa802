//! [`Memory`]: a region divided into cells of one cache line, and access to the structures of `cells.h` in
//! it.
//!
//! # Safety
//! All unsafe access to table memory is in this file and in `region.rs`. It relies on these invariants:
//!
//! 1. The bytes of a `Memory` stay mapped, readable and writable while any clone of it lives. The caller of
//!    [`Memory::from_raw`] promises it; [`Memory::anonymous`] owns its mapping.
//! 2. Every access is atomic, or a single load or store of an aligned machine word: by this crate through
//!    [`Region`], by eBPF programs through the macros of `atomic.h`. So there is no data race, whatever
//!    writes.
//! 3. Every access is within the mapping: [`Region`] checks each one.
//! 4. A [`Plain`] type consists of initialized bytes only (no padding) and is valid for all bit patterns.
//!
//! Which words may change while others read them is a matter of correctness, not of memory safety: see
//! "Writers" at [`Memory`].

use crate::layout;
use crate::region::Region;
use std::any::Any;
use std::io;
use std::mem::{offset_of, size_of};
use std::ptr::NonNull;
use std::sync::Arc;

const CELL: usize = layout::CELL_BYTES as usize;

/// A run of cells that a writer and readers share. Clones refer to the same memory.
///
/// Stores release and loads acquire, so that a reader that follows a link finds what was stored before the
/// link. A word is stored in the size that its header gives it. Whole structures are loaded in words of 64
/// bits, some of which hold two words of 32 bits: on x86 such a load returns each of the two as some store
/// left it.
///
/// # Writers
/// One writer at a time ([`NodeTables`](crate::NodeTables), [`Flows`](crate::flows::Flows) or
/// [`Meters`](crate::meters::Meters)) stores to the memory. The only words that others store to are:
///
/// | word | header | stored by |
/// | --- | --- | --- |
/// | `superblock.attended_ns` | `cells.h` | [`AgentHeartbeat`](crate::AgentHeartbeat), one store |
/// | `next_hop.l2`, `next_hop.l2_expires_ns`, `next_hop.used` | `cells.h` | packet programs, one store each |
/// | `flow_entry.owner`, `flow_entry.count` | `flow_layout.h` | packet programs, atomic operations |
/// | `meter.arrival` | `meter_layout.h` | packet programs, atomic operations |
#[derive(Clone)]
pub struct Memory {
    region: Region,
    cells: u32,
}

/// Structures of `cells.h`, `flow_layout.h` and `meter_layout.h` that are stored and loaded as a whole.
///
/// # Safety
/// The type has a multiple of 8 bytes, no padding, and is valid for every bit pattern.
pub(crate) unsafe trait Plain: Copy + Default {}

macro_rules! plain {
    ($($name:ident),*) => {$(
        // SAFETY: the headers declare the structure with integers only and with explicit padding; that it
        // consists of whole words is asserted below.
        unsafe impl Plain for layout::$name {}
        const _: () = assert!(size_of::<layout::$name>() % 8 == 0);
    )*};
}
plain!(
    superblock,
    exact_root,
    exact_bucket,
    exact_conflict,
    vrf,
    next_hop,
    port,
    node_config,
    group,
    service
);
plain!(policy, public_prefix, internet, peering, nat_gateway, nat_addresses, nat_forwards, cell);
plain!(lpm_scan4, lpm_scan6, lpm_narrow, lpm_wide, lpm_long, lpm_skip);
plain!(flow_table, meter_table, meter, meter_name);

impl Memory {
    /// Maps zeroed memory that belongs to this process alone.
    ///
    /// # Errors
    /// If the kernel refuses the mapping.
    pub fn anonymous(cells: u32) -> io::Result<Self> {
        Ok(Self::over(Region::anonymous(cells as usize * CELL)?, cells))
    }

    fn over(region: Region, cells: u32) -> Self {
        Self { region, cells: cells.min(layout::CELL_INDEX_MASK) }
    }

    /// Uses memory that the caller has mapped, such as a BPF array.
    ///
    /// The caller also ensures that there is one writer at a time, and that everything else stores only to
    /// the words listed under "Writers" at [`Memory`].
    ///
    /// # Safety
    /// - `base` is aligned to 64 bytes.
    /// - The `cells * 64` bytes at `base` stay mapped there, readable and writable, until `keep` is dropped.
    /// - Until then, every other access to these bytes, from this process, another one or an eBPF program, is
    ///   an atomic operation or a single load or store of an aligned machine word.
    pub unsafe fn from_raw(base: NonNull<u8>, cells: u32, keep: Arc<dyn Any + Send + Sync>) -> Self {
        // SAFETY: the obligations of `Region::from_raw` are those of this function, for `cells * 64` bytes.
        Self::over(unsafe { Region::from_raw(base, cells as usize * CELL, keep) }, cells)
    }

    /// Capacity in cells.
    pub fn cells(&self) -> u32 {
        self.cells
    }

    /// True if node tables have been laid out here. They are then adopted instead of created.
    pub fn is_laid_out(&self) -> bool {
        self.cells > 0 && self.load64(0, offset_of!(layout::superblock, magic)) == layout::TABLES_MAGIC
    }

    /// True if a run of cells lies within the memory.
    pub(crate) fn contains(&self, cell: u32, cells: u32) -> bool {
        u64::from(cell) + u64::from(cells) <= u64::from(self.cells)
    }

    /// Offset of a word in the region.
    #[inline]
    fn byte(cell: u32, offset: usize) -> usize {
        cell as usize * CELL + offset
    }

    #[inline]
    pub(crate) fn load64(&self, cell: u32, offset: usize) -> u64 {
        self.region.load64(Self::byte(cell, offset))
    }

    #[inline]
    pub(crate) fn store64(&self, cell: u32, offset: usize, value: u64) {
        self.region.store64(Self::byte(cell, offset), value);
    }

    /// As [`Region::compare_and_swap64`], for words that packets change as well.
    #[inline]
    pub(crate) fn compare_and_swap64(
        &self,
        cell: u32,
        offset: usize,
        expected: u64,
        new: u64,
    ) -> Result<(), u64> {
        self.region.compare_and_swap64(Self::byte(cell, offset), expected, new)
    }

    #[inline]
    pub(crate) fn load32(&self, cell: u32, offset: usize) -> u32 {
        self.region.load32(Self::byte(cell, offset))
    }

    #[inline]
    pub(crate) fn store32(&self, cell: u32, offset: usize, value: u32) {
        self.region.store32(Self::byte(cell, offset), value);
    }

    /// Hints to the processor that a cell will be read; it has no effect on results.
    #[inline]
    pub(crate) fn prefetch(&self, cell: u32) {
        self.region.prefetch(Self::byte(cell, 0));
    }

    /// Stores a whole structure, word by word.
    pub(crate) fn write<T: Plain>(&self, cell: u32, value: &T) {
        for (i, word) in words(value).enumerate() {
            self.store64(cell, i * 8, word);
        }
    }

    /// Stores those words of a structure that differ, and returns whether there were any. Readers see the
    /// change word by word.
    pub(crate) fn update<T: Plain>(&self, cell: u32, value: &T) -> bool {
        let mut changed = false;
        for (i, word) in words(value).enumerate() {
            if self.load64(cell, i * 8) != word {
                self.store64(cell, i * 8, word);
                changed = true;
            }
        }
        changed
    }

    /// Loads a whole structure, word by word.
    pub(crate) fn read<T: Plain>(&self, cell: u32) -> T {
        let mut value = T::default();
        let to: *mut T = &mut value;
        for i in 0..size_of::<T>() / 8 {
            let word = self.load64(cell, i * 8);
            // SAFETY: `to` points to `size_of::<T>()` bytes of a local variable, and `i * 8 + 8` is at most
            // that. Every bit pattern is valid for a `Plain` type, and the write needs no alignment.
            unsafe { to.cast::<u8>().add(i * 8).cast::<u64>().write_unaligned(word) };
        }
        value
    }

    /// Sets a run of cells to zero. No reader may be able to reach it: it was never linked, or it was
    /// unlinked and a grace period has passed.
    pub(crate) fn zero(&self, cell: u32, cells: u32) {
        self.region.zero(Self::byte(cell, 0), cells as usize * CELL);
    }
}

fn words<T: Plain>(value: &T) -> impl Iterator<Item = u64> {
    let from: *const T = value;
    (0..size_of::<T>() / 8).map(move |i| {
        // SAFETY: the word is within the borrowed value, whose bytes are all initialized because a `Plain`
        // type has no padding; the read needs no alignment.
        unsafe { from.cast::<u8>().add(i * 8).cast::<u64>().read_unaligned() }
    })
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").field("cells", &self.cells).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_round_trip_and_update_reports_changes() {
        let memory = Memory::anonymous(8).unwrap();
        let mut vrf = layout::vrf { vni: 7, mtu: 1430, router6: [9; 16], ..Default::default() };
        memory.write(5, &vrf);
        assert_eq!(memory.read::<layout::vrf>(5), vrf);
        assert!(!memory.update(5, &vrf));
        vrf.mtu = 1500;
        assert!(memory.update(5, &vrf));
        assert_eq!(memory.read::<layout::vrf>(5), vrf);
        memory.zero(5, 1);
        assert_eq!(memory.read::<layout::vrf>(5), layout::vrf::default());
    }

    #[test]
    #[should_panic(expected = "outside shared memory")]
    fn load_behind_the_end_panics() {
        Memory::anonymous(8).unwrap().load64(8, 0);
    }

    #[test]
    fn clones_keep_the_mapping() {
        let memory = Memory::anonymous(8).unwrap();
        let other = memory.clone();
        memory.store32(7, 4, 42);
        drop(memory);
        assert_eq!(other.load32(7, 4), 42);
        assert!(!other.is_laid_out());
    }
}
