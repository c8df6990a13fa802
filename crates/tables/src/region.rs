//! Memory that this process shares with eBPF programs and other processes, accessed by atomic words.
//!
//! This is the lowest layer: [`crate::Memory`] divides a region into cells, the session tables divide theirs
//! into buckets. It changes only with the way in which memory is mapped or accessed.

#[cfg(test)]
use crate::interleave::before_access;
use std::any::Any;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Outside of this crate's tests nothing happens between two accesses.
#[cfg(not(test))]
#[inline(always)]
fn before_access() {}

/// A run of bytes that packet programs and agents share. Clones refer to the same memory.
///
/// Every access is an atomic load or store of an aligned word of 4 or 8 bytes: stores release, loads acquire,
/// and compare-and-swap, for words that several parties change, is sequentially consistent.
#[derive(Clone)]
pub struct Region {
    base: NonNull<u8>,
    bytes: usize,
    /// Keeps the memory mapped.
    _keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the mapping lives as long as `_keep`, is valid in every thread of the process, and is accessed
// only by atomic operations.
unsafe impl Send for Region {}
// SAFETY: as for Send: shared access is by atomic operations only.
unsafe impl Sync for Region {}

/// An anonymous mapping of this process, unmapped when it is dropped.
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}
// SAFETY: as for Send; `Mapping` itself never accesses the memory.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `base` and `bytes` are what mmap returned. `Mapping` is dropped once, with the last
        // `Region` that holds it, so that nothing refers to the memory any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

impl Region {
    /// Maps zeroed memory that belongs to this process alone.
    ///
    /// # Errors
    /// If the kernel refuses the mapping.
    pub fn anonymous(bytes: usize) -> io::Result<Self> {
        // SAFETY: requests a new mapping at an address of the kernel's choice, so no memory is replaced.
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
        let base = NonNull::new(base.cast()).expect("mmap returns address 0 only on request");
        // SAFETY: `base` is page aligned, readable and writable for `bytes`, stays mapped as long as
        // `Mapping` lives, and is known only to this region.
        Ok(unsafe { Self::from_raw(base, bytes, Arc::new(Mapping { base, bytes })) })
    }

    /// Uses memory that the caller has mapped, such as a BPF array.
    ///
    /// # Safety
    /// - `base` is aligned to 64 bytes.
    /// - The `bytes` bytes at `base` stay mapped there, readable and writable, until `keep` is dropped.
    /// - Until then, every other access to these bytes, from this process, another one or an eBPF program, is
    ///   an atomic operation or a single load or store of an aligned machine word.
    pub unsafe fn from_raw(base: NonNull<u8>, bytes: usize, keep: Arc<dyn Any + Send + Sync>) -> Self {
        assert!((base.as_ptr() as usize).is_multiple_of(64), "shared memory is aligned to a cache line");
        Self { base, bytes, _keep: keep }
    }

    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Address of the first byte, for C code that accesses the same memory. Accesses through it must follow
    /// the rules of [`Region::from_raw`].
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Address of a word of `size` bytes at offset `byte`.
    ///
    /// # Panics
    /// If the word is not within the region or not aligned to its size.
    #[inline]
    fn at(&self, byte: usize, size: usize) -> NonNull<u8> {
        before_access();
        assert!(byte + size <= self.bytes && byte.is_multiple_of(size), "outside shared memory");
        // SAFETY: the offset is within the mapping, as just checked.
        unsafe { self.base.add(byte) }
    }

    #[inline]
    fn word64(&self, byte: usize) -> &AtomicU64 {
        // SAFETY: `at` checked that the word is within the mapping and aligned (`base` is aligned to 64
        // bytes). The mapping outlives `self`, and all other accesses are atomic or of single words.
        unsafe { self.at(byte, 8).cast().as_ref() }
    }

    #[inline]
    fn word32(&self, byte: usize) -> &AtomicU32 {
        // SAFETY: as in `word64`, for 4 bytes.
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

    /// Replaces `expected` by `new`. Returns the word that was found if it was not `expected`.
    #[inline]
    pub(crate) fn compare_and_swap64(&self, byte: usize, expected: u64, new: u64) -> Result<(), u64> {
        self.word64(byte).compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst).map(drop)
    }

    /// As [`Region::compare_and_swap64`], of a word of 4 bytes.
    #[inline]
    pub(crate) fn compare_and_swap32(&self, byte: usize, expected: u32, new: u32) -> Result<(), u32> {
        self.word32(byte).compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst).map(drop)
    }

    /// Stores one byte of a word of which others are stored at the same time.
    #[inline]
    pub(crate) fn store8(&self, byte: usize, value: u8) {
        // SAFETY: as in `word64`, for a byte.
        let at: &AtomicU8 = unsafe { self.at(byte, 1).cast().as_ref() };
        at.store(value, Ordering::Release);
    }

    /// Adds to a word to which others add at the same time. It wraps.
    #[inline]
    pub(crate) fn add32(&self, byte: usize, by: u32) {
        self.word32(byte).fetch_add(by, Ordering::AcqRel);
    }

    /// Sets bytes to zero, word by word. Both numbers are multiples of 8.
    pub(crate) fn zero(&self, byte: usize, bytes: usize) {
        assert!(byte <= self.bytes && bytes <= self.bytes - byte, "outside shared memory");
        assert!(byte.is_multiple_of(8) && bytes.is_multiple_of(8), "whole words are set to zero");
        // SAFETY: the words are within the mapping and aligned, as checked; the mapping outlives `self`, and
        // all other accesses are atomic or of single words.
        let words = unsafe {
            std::slice::from_raw_parts(self.base.add(byte).cast::<AtomicU64>().as_ptr(), bytes / 8)
        };
        for word in words {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Hints to the processor that a cache line will be read; it has no effect on results.
    #[inline]
    pub(crate) fn prefetch(&self, byte: usize) {
        #[cfg(target_arch = "x86_64")]
        if byte < self.bytes {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: the address is within the mapping, as just checked, and a prefetch neither reads nor
            // writes memory as far as the program can observe.
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
    fn words_are_stored_and_swapped_only_from_the_expected_value() {
        let region = Region::anonymous(128).unwrap();
        let other = region.clone();
        region.store64(64, 7);
        region.store32(124, 9);
        drop(region);
        assert_eq!((other.load64(64), other.load32(124)), (7, 9));
        assert_eq!(other.compare_and_swap64(64, 7, 8), Ok(()));
        assert_eq!(other.compare_and_swap64(64, 7, 9), Err(8));
        assert_eq!(other.load64(64), 8, "a failed swap stored its value");
    }

    #[test]
    fn zero_clears_exactly_the_given_bytes() {
        let region = Region::anonymous(192).unwrap();
        (0..24).for_each(|word| region.store64(word * 8, u64::MAX));
        region.zero(64, 64);
        let words: Vec<u64> = (0..24).map(|word| region.load64(word * 8)).collect();
        assert_eq!(words[..8], [u64::MAX; 8]);
        assert_eq!(words[8..16], [0; 8]);
        assert_eq!(words[16..], [u64::MAX; 8]);
    }

    #[test]
    #[should_panic(expected = "outside shared memory")]
    fn load_behind_the_end_panics() {
        Region::anonymous(128).unwrap().load64(128);
    }

    #[test]
    #[should_panic(expected = "outside shared memory")]
    fn zero_behind_the_end_panics() {
        Region::anonymous(128).unwrap().zero(64, 128);
    }
}
