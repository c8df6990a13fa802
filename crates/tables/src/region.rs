//! Memory that packets and agents share: mapped BPF arrays, as words of bytes.
//! [`crate::Memory`] cuts it into cells; sessions have arrays of their own elements.

use std::any::Any;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A run of bytes that packets and agents share. Clones name the same memory.
///
/// All access is by atomic words at multiples of their size: stores release,
/// loads acquire, and what changes a word that others may change too is
/// sequentially consistent.
#[derive(Clone)]
pub struct Region {
    base: NonNull<u8>,
    bytes: usize,
    _keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the mapping lives as long as `_keep`, is not bound to a thread, and
// all access to it is by atomics.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; it has no interior of its own.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what mmap returned, unmapped once, when the last
        // Region that refers to it is gone.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// In this crate's tests, a function that is called before each access.
#[cfg(test)]
pub(crate) mod schedule {
    use std::cell::Cell;

    thread_local!(static POINT: Cell<Option<fn()>> = const { Cell::new(None) });

    /// From now on, in this thread.
    pub(crate) fn set_point(point: Option<fn()>) {
        POINT.set(point);
    }

    pub(super) fn point() {
        if let Some(point) = POINT.get() {
            point();
        }
    }
}

#[cfg(not(test))]
mod schedule {
    #[inline(always)]
    pub(super) fn point() {}
}

impl Region {
    /// Fresh zeroed memory of this process.
    ///
    /// # Errors
    /// When the kernel refuses the mapping.
    pub fn anonymous(bytes: usize) -> io::Result<Self> {
        // SAFETY: a new anonymous mapping, placed by the kernel.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).expect("mmap never maps address 0 unasked");
        // SAFETY: just mapped, of that size, and unmapped only by `Mapping`.
        Ok(unsafe { Self::from_raw(base, bytes, Arc::new(Mapping { base, bytes })) })
    }

    /// Memory that somebody else mapped, like a BPF array's.
    ///
    /// # Safety
    /// `base` must be aligned to 64 bytes and lead to `bytes` that stay mapped
    /// for reading and writing while `keep` lives, and all others must access
    /// them by atomic words too, or as single machine words.
    pub unsafe fn from_raw(base: NonNull<u8>, bytes: usize, keep: Arc<dyn Any + Send + Sync>) -> Self {
        assert!((base.as_ptr() as usize).is_multiple_of(64), "shared memory is aligned to a cache line");
        Self { base, bytes, _keep: keep }
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where it is mapped, for those who read it by other means.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    #[inline]
    fn at(&self, byte: usize, size: usize) -> NonNull<u8> {
        schedule::point();
        assert!(byte + size <= self.bytes && byte.is_multiple_of(size), "outside shared memory");
        // SAFETY: within the mapping, as just checked.
        unsafe { self.base.add(byte) }
    }

    #[inline]
    fn word64(&self, byte: usize) -> &AtomicU64 {
        // SAFETY: `at` checked bounds and alignment; the mapping outlives self,
        // and shared access is by atomics only.
        unsafe { self.at(byte, 8).cast().as_ref() }
    }

    #[inline]
    fn word32(&self, byte: usize) -> &AtomicU32 {
        // SAFETY: as in `word64`.
        unsafe { self.at(byte, 4).cast().as_ref() }
    }

    #[inline]
    pub(crate) fn load64(&self, byte: usize) -> u64 {
        self.word64(byte).load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn store64(&self, byte: usize, value: u64) {
        self.word64(byte).store(value, Ordering::Release);
    }

    #[inline]
    pub(crate) fn load32(&self, byte: usize) -> u32 {
        self.word32(byte).load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn store32(&self, byte: usize, value: u32) {
        self.word32(byte).store(value, Ordering::Release);
    }

    /// Swaps if the word is `from`; the word as it was otherwise.
    #[inline]
    pub(crate) fn swap64(&self, byte: usize, from: u64, to: u64) -> Result<(), u64> {
        self.word64(byte).compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).map(drop)
    }

    /// Makes bytes zero that nobody else can reach.
    pub(crate) fn zero(&self, byte: usize, bytes: usize) {
        assert!(byte <= self.bytes && bytes <= self.bytes - byte, "outside shared memory");
        // SAFETY: in bounds as checked, and the caller is alone with them.
        unsafe { ptr::write_bytes(self.base.add(byte).as_ptr(), 0, bytes) };
    }

    /// Asks the processor to fetch a line; a hint without effect on results.
    #[inline]
    pub(crate) fn prefetch(&self, byte: usize) {
        #[cfg(target_arch = "x86_64")]
        if byte < self.bytes {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: prefetching has no architectural effect; the address is ours.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.base.add(byte).as_ptr().cast()) };
        }
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_kept_and_swapped_only_from_what_they_were() {
        let region = Region::anonymous(128).unwrap();
        let other = region.clone();
        region.store64(64, 7);
        region.store32(124, 9);
        drop(region);
        assert_eq!((other.load64(64), other.load32(124)), (7, 9));
        assert_eq!(other.swap64(64, 7, 8), Ok(()));
        assert_eq!(other.swap64(64, 7, 9), Err(8));
    }

    #[test]
    #[should_panic(expected = "outside shared memory")]
    fn access_behind_the_end_is_refused() {
        Region::anonymous(128).unwrap().load64(128);
    }
}
