//! Memory that the processes share: the tables, and one page with the progress of the writer and the state of
//! the readers.

use sluice_tables::{Grace, GraceError, Memory};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Cells of the tables.
pub const CELLS: u32 = 1 << 14;
pub const READERS: usize = 2;

const PAGE_BYTES: usize = 4096;
const BYTES: usize = PAGE_BYTES + CELLS as usize * 64;

/// The shared page. Each word is stored by one process at a time.
#[repr(C)]
pub struct Page {
    /// Seed of the history.
    pub seed: AtomicU64,
    /// Numbers of the operations that were started last and finished last.
    pub started: AtomicU64,
    pub finished: AtomicU64,
    /// What the writer process does: one of `PHASE_*`.
    pub phase: AtomicU64,
    /// By reader: odd while it looks up.
    pub epochs: [AtomicU64; READERS],
}

pub const PHASE_NONE: u64 = 0;
pub const PHASE_ADOPTING: u64 = 1;
pub const PHASE_WRITING: u64 = 2;

struct Mapping(NonNull<u8>);

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}
// SAFETY: as for Send; `Mapping` itself never accesses the memory.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the address and length are what mmap returned. `Mapping` is dropped once, by its last
        // owner.
        unsafe { libc::munmap(self.0.as_ptr().cast(), BYTES) };
    }
}

/// A mapping of the page and of the tables behind it.
#[derive(Clone)]
pub struct Shared(Arc<Mapping>);

/// Creates memory that child processes can map as well: they inherit its descriptor.
pub fn create_memory() -> libc::c_int {
    // SAFETY: the name is a string that ends with a zero byte.
    let fd = unsafe { libc::memfd_create(c"tables".as_ptr(), 0) };
    assert!(fd >= 0, "memfd_create: {}", std::io::Error::last_os_error());
    // SAFETY: changes the size of a file that this process has just created.
    let sized = unsafe { libc::ftruncate(fd, BYTES as libc::off_t) };
    assert_eq!(sized, 0, "ftruncate: {}", std::io::Error::last_os_error());
    fd
}

impl Shared {
    pub fn map(fd: libc::c_int) -> Self {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: requests a new mapping at an address of the kernel's choice, so no memory is replaced.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, protection, libc::MAP_SHARED, fd, 0) };
        assert_ne!(base, libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
        Self(Arc::new(Mapping(NonNull::new(base.cast()).expect("mmap returns address 0 only on request"))))
    }

    pub fn page(&self) -> &Page {
        // SAFETY: the mapping begins with the page, which is page aligned and lives as long as `self`. It is
        // valid for all bit patterns, and all processes access it by atomic operations only.
        unsafe { self.0.0.cast().as_ref() }
    }

    pub fn memory(&self) -> Memory {
        // SAFETY: there are `CELLS` cells behind the page, aligned to a page, readable, writable and mapped
        // until the mapping is dropped. All processes access them by `Memory` only.
        unsafe { Memory::from_raw(self.0.0.add(PAGE_BYTES), CELLS, self.0.clone()) }
    }

    pub fn grace(&self) -> ReaderEpochs {
        ReaderEpochs(self.clone())
    }
}

/// A grace period for readers in another process: waits until each has finished the lookup that it was in. It
/// ends because readers do not wait during a lookup.
pub struct ReaderEpochs(Shared);

impl Grace for ReaderEpochs {
    fn wait(&self) -> Result<(), GraceError> {
        // A reader that is not seen below sees everything that was stored before.
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

/// Marks a lookup of a reader, until it is dropped.
pub struct LookupGuard<'a>(&'a AtomicU64);

impl<'a> LookupGuard<'a> {
    pub fn enter(page: &'a Page, reader: usize) -> Self {
        let epoch = &page.epochs[reader];
        epoch.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Self(epoch)
    }
}

impl Drop for LookupGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}
