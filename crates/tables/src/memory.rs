//! The memory that tables live in: cells, and atomic access to their words.

use crate::layout;
use crate::region::Region;
use std::any::Any;
use std::io;
use std::mem::{offset_of, size_of};
use std::ptr::NonNull;
use std::sync::Arc;

const CELL: usize = layout::CELL_BYTES as usize;

/// A run of cells that a writer and readers share. Clones name the same memory.
///
/// All access is by atomic words: stores release, loads acquire, so that a word
/// seen leads only to what was stored before it. A word is always accessed in
/// the size that `cells.h` gives it while anybody else may read it.
#[derive(Clone)]
pub struct Memory {
    region: Region,
    cells: u32,
}

/// Structures of `cells.h`: plain words of a multiple of 8 bytes, without
/// padding, valid for every bit pattern.
///
/// # Safety
/// The type must be just that.
pub(crate) unsafe trait Plain: Copy + Default {}

macro_rules! plain {
    ($($name:ident),*) => {$(
        // SAFETY: declared in cells.h with explicit padding, integers only; the
        // size is asserted to be whole words.
        unsafe impl Plain for layout::$name {}
        const _: () = assert!(size_of::<layout::$name>() % 8 == 0);
    )*};
}
plain!(superblock, exact_root, exact_bucket, exact_conflict, vrf, next_hop, port, node_config, group, cell);
plain!(lpm_scan4, lpm_scan6, lpm_narrow, lpm_wide, lpm_long, lpm_skip);
plain!(flow_table, meter_table, meter);

#[cfg(test)]
use crate::interleave;

#[cfg(not(test))]
mod interleave {
    #[inline(always)]
    pub(super) fn point() {}
}

impl Memory {
    /// Fresh zeroed memory of this process.
    ///
    /// # Errors
    /// When the kernel refuses the mapping.
    pub fn anonymous(cells: u32) -> io::Result<Self> {
        Ok(Self::over(Region::anonymous(cells as usize * CELL)?, cells))
    }

    fn over(region: Region, cells: u32) -> Self {
        Self { region, cells: cells.min(layout::CELL_INDEX_MASK) }
    }

    /// Memory that somebody else mapped, like a BPF array's.
    ///
    /// # Safety
    /// `base` must be aligned to 64 bytes and lead to `cells` times 64 bytes
    /// that stay mapped for reading and writing while `keep` lives. Nobody may
    /// access them but one writer, one [`Attendance`](crate::Attendance) and those
    /// who read the tables; these two store nothing but the words that `cells.h`
    /// calls theirs, namely `superblock.attended_ns`, and `next_hop.l2` and
    /// `next_hop.l2_expires_ns`, each by one store.
    pub unsafe fn from_raw(base: NonNull<u8>, cells: u32, keep: Arc<dyn Any + Send + Sync>) -> Self {
        // SAFETY: as the caller of this promises.
        Self::over(unsafe { Region::from_raw(base, cells as usize * CELL, keep) }, cells)
    }

    /// Capacity in cells.
    pub fn cells(&self) -> u32 {
        self.cells
    }

    /// True when tables have been laid out here: adopt them; else create them.
    pub fn is_laid_out(&self) -> bool {
        self.cells > 0 && self.load64(0, offset_of!(layout::superblock, magic)) == layout::TABLES_MAGIC
    }

    /// True when a run lies wholly within the memory.
    pub(crate) fn contains(&self, cell: u32, cells: u32) -> bool {
        u64::from(cell) + u64::from(cells) <= u64::from(self.cells)
    }

    /// The first byte of a word.
    #[inline]
    fn at(&self, cell: u32, offset: usize) -> usize {
        interleave::point();
        cell as usize * CELL + offset
    }

    #[inline]
    pub(crate) fn load64(&self, cell: u32, offset: usize) -> u64 {
        self.region.load64(self.at(cell, offset))
    }

    #[inline]
    pub(crate) fn store64(&self, cell: u32, offset: usize, value: u64) {
        self.region.store64(self.at(cell, offset), value);
    }

    /// As [`Region::swap64`], for words that packets change as well.
    #[inline]
    pub(crate) fn swap64(&self, cell: u32, offset: usize, from: u64, to: u64) -> Result<(), u64> {
        self.region.swap64(self.at(cell, offset), from, to)
    }

    #[inline]
    pub(crate) fn load32(&self, cell: u32, offset: usize) -> u32 {
        self.region.load32(self.at(cell, offset))
    }

    #[inline]
    pub(crate) fn store32(&self, cell: u32, offset: usize, value: u32) {
        self.region.store32(self.at(cell, offset), value);
    }

    /// Asks the processor to fetch a cell; a hint without effect on results.
    #[inline]
    pub(crate) fn prefetch(&self, cell: u32) {
        self.region.prefetch(cell as usize * CELL);
    }

    /// Stores a whole structure, word by word.
    pub(crate) fn write<T: Plain>(&self, cell: u32, value: &T) {
        for (i, word) in words(value).enumerate() {
            self.store64(cell, i * 8, word);
        }
    }

    /// Stores those words of a structure that differ. Readers see the change word by word.
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
            // SAFETY: `to` has size_of::<T>() bytes and every pattern is valid
            // for a Plain type; the write is unaligned-safe.
            unsafe { to.cast::<u8>().add(i * 8).cast::<u64>().write_unaligned(word) };
        }
        value
    }

    /// Makes a run zero that no reader can reach: unlinked, and a grace period has passed.
    pub(crate) fn zero(&self, cell: u32, cells: u32) {
        self.region.zero(cell as usize * CELL, cells as usize * CELL);
    }
}

fn words<T: Plain>(value: &T) -> impl Iterator<Item = u64> {
    let from: *const T = value;
    (0..size_of::<T>() / 8).map(move |i| {
        // SAFETY: within the borrowed value, whose bytes are all initialised
        // (Plain: no padding); the read is unaligned-safe.
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
    fn structures_round_trip_and_update_says_what_changed() {
        let memory = Memory::anonymous(8).unwrap();
        let mut vrf = layout::vrf { vni: 7, mtu: 1430, router6: [9; 16], ..Default::default() };
        memory.write(5, &vrf);
        assert_eq!(memory.read::<layout::vrf>(5), vrf);
        assert!(!memory.update(5, &vrf));
        vrf.mtu = 1500;
        assert!(memory.update(5, &vrf));
        assert_eq!(memory.read::<layout::vrf>(5).mtu, 1500);
        memory.zero(5, 1);
        assert_eq!(memory.read::<layout::vrf>(5), layout::vrf::default());
    }

    #[test]
    #[should_panic(expected = "outside shared memory")]
    fn access_behind_the_end_is_refused() {
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
