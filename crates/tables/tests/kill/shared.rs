//! What the processes share: the tables' memory, and one page that says how far
//! the writer is and which readers are within a lookup.

use sluice_tables::{Grace, GraceError, Memory};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Cells of the tables.
pub const CELLS: u32 = 1 << 14;
pub const READERS: usize = 2;

const PAGE_BYTES: usize = 4096;
const BYTES: usize = PAGE_BYTES + CELLS as usize * 64;

/// The shared page; each word has one process that stores it.
#[repr(C)]
pub struct Page {
    pub seed: AtomicU64,
    /// Number of the operation that was begun last, and of the one that was finished last.
    pub started: AtomicU64,
    pub finished: AtomicU64,
    /// How far the writer process is: one of `PHASE_*`.
    pub phase: AtomicU64,
    /// Odd while the reader of this number looks up.
    pub epochs: [AtomicU64; READERS],
}

pub const PHASE_NONE: u64 = 0;
pub const PHASE_ADOPTS: u64 = 1;
pub const PHASE_WRITES: u64 = 2;

struct Mapping(NonNull<u8>);

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; it has no interior of its own.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what mmap returned, unmapped once by its last owner.
        unsafe { libc::munmap(self.0.as_ptr().cast(), BYTES) };
    }
}

/// One mapping of the page and the tables behind it.
#[derive(Clone)]
pub struct Shared(Arc<Mapping>);

/// Memory that a process started later can map too: its descriptor is inherited.
pub fn make_memory() -> libc::c_int {
    // SAFETY: the name is a terminated string.
    let fd = unsafe { libc::memfd_create(c"tables".as_ptr(), 0) };
    assert!(fd >= 0, "memfd_create: {}", std::io::Error::last_os_error());
    // SAFETY: sizes a file of ours.
    let sized = unsafe { libc::ftruncate(fd, BYTES as libc::off_t) };
    assert_eq!(sized, 0, "ftruncate: {}", std::io::Error::last_os_error());
    fd
}

impl Shared {
    pub fn map(fd: libc::c_int) -> Self {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new shared mapping, placed by the kernel.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, protection, libc::MAP_SHARED, fd, 0) };
        assert_ne!(base, libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
        Self(Arc::new(Mapping(NonNull::new(base.cast()).expect("mmap never maps address 0 unasked"))))
    }

    pub fn page(&self) -> &Page {
        // SAFETY: the mapping begins with the page, lives as long as self, and
        // is accessed as atomics only.
        unsafe { self.0.0.cast().as_ref() }
    }

    pub fn memory(&self) -> Memory {
        // SAFETY: behind the page there are so many cells, mapped while the
        // mapping is kept; one process writes at a time.
        unsafe { Memory::from_raw(self.0.0.add(PAGE_BYTES), CELLS, self.0.clone()) }
    }

    pub fn grace(&self) -> Epochs {
        Epochs(self.clone())
    }
}

/// A grace period for the readers of another process: waits until each has left
/// the lookup it was in. Readers wait for nothing within one, so it ends.
pub struct Epochs(Shared);

impl Grace for Epochs {
    fn wait(&self) -> Result<(), GraceError> {
        // What was unlinked before is seen by whoever is not seen below.
        fence(Ordering::SeqCst);
        for epoch in &self.0.page().epochs {
            let seen = epoch.load(Ordering::SeqCst);
            while seen % 2 == 1 && epoch.load(Ordering::SeqCst) == seen {
                std::thread::yield_now();
            }
        }
        Ok(())
    }
}

/// A reader within a lookup, until it is dropped.
pub struct Within<'a>(&'a AtomicU64);

impl<'a> Within<'a> {
    pub fn enter(page: &'a Page, reader: usize) -> Self {
        let epoch = &page.epochs[reader];
        epoch.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Self(epoch)
    }
}

impl Drop for Within<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}
