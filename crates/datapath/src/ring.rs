//! Taking what packet programs post into a ring buffer (`BPF_MAP_TYPE_RINGBUF`).
//!
//! The ring's first page holds the consumer's position, its second the
//! producers', and behind them lies the data, twice, so that every record is in
//! one piece. A successor goes on where a predecessor stopped.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libbpf_rs::{MapCore, MapHandle};

use crate::Error;
use crate::maps::{self, Mapping};

/// In the first word of a record's header: it is still being written; it was given up.
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
const HEADER_BYTES: u64 = 8;

/// The consuming end. There must be one of a ring at a time.
#[derive(Debug)]
pub(crate) struct Ring {
    map: MapHandle,
    consumer: Mapping,
    producer: Mapping,
    page: usize,
    /// Of the data, a power of two.
    bytes: u64,
}

impl Ring {
    pub(crate) fn new(map: MapHandle) -> Result<Self, Error> {
        // SAFETY: sysconf takes a number and touches no memory of ours.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page = usize::try_from(page).expect("the page's size is known");
        let bytes = map.max_entries() as usize;
        let handle = || MapHandle::try_from(&map).map_err(Error::bpf(format!("use {:?}", map.name())));
        let consumer = maps::map_part(handle()?, 0, page, libc::PROT_READ | libc::PROT_WRITE)?;
        let producer = maps::map_part(handle()?, page, page + 2 * bytes, libc::PROT_READ)?;
        Ok(Self { map, consumer, producer, page, bytes: bytes as u64 })
    }

    /// Gives every record that is there to `each`, until there is none.
    pub(crate) fn drain(&mut self, mut each: impl FnMut(&[u8])) -> Result<(), Error> {
        let mut position = self.consumed().load(Ordering::Acquire);
        while position < self.produced().load(Ordering::Acquire) {
            let Some(length) = self.record_length(position)? else { break };
            if length & DISCARDED == 0 {
                let at = self.page + (position & (self.bytes - 1)) as usize + HEADER_BYTES as usize;
                // SAFETY: record_length() checked that the record lies within the data, which is mapped
                // twice in a row; it is whole, and the kernel reuses it only behind the position.
                each(unsafe { slice::from_raw_parts(self.producer.base.as_ptr().add(at), length as usize) });
            }
            position += (HEADER_BYTES + u64::from(length & !DISCARDED)).next_multiple_of(8);
            // Whole before the next record is looked at: a producer that ends one later, and finds
            // this position behind it, does not wake us.
            self.consumed().store(position, Ordering::SeqCst);
        }
        Ok(())
    }

    /// The record's length and whether it is discarded; `None` while it is written.
    fn record_length(&self, position: u64) -> Result<Option<u32>, Error> {
        let at = self.page + (position & (self.bytes - 1)) as usize;
        // SAFETY: within the data, at a multiple of 8, mapped as long as `self` lives; the kernel
        // writes the word by an atomic exchange.
        let word = unsafe { &*self.producer.base.as_ptr().add(at).cast::<AtomicU32>() };
        let length = word.load(Ordering::SeqCst);
        if length & BUSY != 0 {
            return Ok(None);
        }
        if HEADER_BYTES + u64::from(length & !DISCARDED) > self.bytes {
            let error = io::Error::new(io::ErrorKind::InvalidData, "a record is longer than the ring");
            return Err(Error::system(format!("read {:?}", self.map.name()))(error));
        }
        Ok(Some(length))
    }

    fn consumed(&self) -> &AtomicU64 {
        // SAFETY: the first word of a page that is mapped read-write as long as `self` lives, and that
        // the kernel accesses as one word.
        unsafe { &*self.consumer.base.as_ptr().cast() }
    }

    fn produced(&self) -> &AtomicU64 {
        // SAFETY: as above, mapped for reading, and only loaded from.
        unsafe { &*self.producer.base.as_ptr().cast() }
    }
}

impl AsFd for Ring {
    /// Readable while there are records.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}
