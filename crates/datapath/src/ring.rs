//! The consumer of a BPF ring buffer (`BPF_MAP_TYPE_RINGBUF`), to which packet programs post records.
//!
//! The first page of the ring holds the consumer's position, the second page
//! the producers' position. The data follows, mapped twice in a row, so that
//! every record is contiguous. The positions are in the map: a new agent
//! continues where the last one stopped.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libbpf_rs::{MapCore, MapHandle};

use crate::Error;
use crate::maps::{self, Mapping};

/// Flag in the first word of a record's header: the producer is still writing the record.
const BUSY: u32 = 1 << 31;
/// Flag in the first word of a record's header: the producer discarded the record.
const DISCARDED: u32 = 1 << 30;
const HEADER_BYTES: u64 = 8;

/// The consumer of a ring. A ring must have one consumer at a time.
#[derive(Debug)]
pub(crate) struct Ring {
    map: MapHandle,
    consumer: Mapping,
    producer: Mapping,
    page: usize,
    /// Size of the data in bytes, a power of two.
    bytes: u64,
}

impl Ring {
    pub(crate) fn new(map: MapHandle) -> Result<Self, Error> {
        // SAFETY: sysconf takes a number and accesses no memory of this process.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page = usize::try_from(page).expect("the system knows its page size");
        let bytes = map.max_entries() as usize;
        let handle = || MapHandle::try_from(&map).map_err(Error::bpf(format!("use {:?}", map.name())));
        let consumer = maps::map_part(handle()?, 0, page, libc::PROT_READ | libc::PROT_WRITE)?;
        let producer = maps::map_part(handle()?, page, page + 2 * bytes, libc::PROT_READ)?;
        Ok(Self { map, consumer, producer, page, bytes: bytes as u64 })
    }

    /// Passes each record to `each` until the ring is empty.
    pub(crate) fn drain(&mut self, mut each: impl FnMut(&[u8])) -> Result<(), Error> {
        let mut position = self.consumer_position().load(Ordering::Acquire);
        while position < self.producer_position().load(Ordering::Acquire) {
            let Some(length) = self.record_length(position)? else { break };
            if length & DISCARDED == 0 {
                let at = self.page + (position & (self.bytes - 1)) as usize + HEADER_BYTES as usize;
                // SAFETY: record_length() checked that the record is within the data, which is mapped twice
                // in a row. It is complete, and the kernel reuses only what is before the position.
                each(unsafe { slice::from_raw_parts(self.producer.base.as_ptr().add(at), length as usize) });
            }
            position += (HEADER_BYTES + u64::from(length & !DISCARDED)).next_multiple_of(8);
            // The store must be visible before the next record is read: a producer wakes the consumer only
            // if the position has reached the record that it submits.
            self.consumer_position().store(position, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Returns the record's length with the flag [`DISCARDED`], or `None` while the record is being written.
    fn record_length(&self, position: u64) -> Result<Option<u32>, Error> {
        let at = self.page + (position & (self.bytes - 1)) as usize;
        // SAFETY: the word is within the data, at a multiple of 8, and mapped as long as `self` lives. The
        // kernel writes it by an atomic exchange.
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

    fn consumer_position(&self) -> &AtomicU64 {
        // SAFETY: the first word of a page that is mapped read-write as long as `self` lives. The kernel
        // accesses it as one word.
        unsafe { &*self.consumer.base.as_ptr().cast() }
    }

    fn producer_position(&self) -> &AtomicU64 {
        // SAFETY: the first word of a page that is mapped read-only as long as `self` lives. It is only read.
        unsafe { &*self.producer.base.as_ptr().cast() }
    }
}

impl AsFd for Ring {
    /// The descriptor is readable while the ring has records.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}
