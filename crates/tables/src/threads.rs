//! Reading the tables in threads beside the writer's.
//!
//! The kernel's grace period waits for packets only. [`WaitForThreads`] adds the
//! readers of this process: they read within a shared lock, which the writer
//! takes for an instant after the kernel's period, so that who began to read
//! before it is done. Readers never wait for the writer's work, only for that
//! instant.

use crate::grace::{Grace, GraceError};
use crate::reader::Reader;
use std::sync::{Arc, PoisonError, RwLock};

/// Held shared while a thread reads.
#[derive(Clone, Debug, Default)]
pub struct ReaderGate(Arc<RwLock<()>>);

/// A grace period of packets and of the threads that read through a gate.
#[derive(Debug)]
pub struct WaitForThreads<G> {
    packets: G,
    gate: ReaderGate,
}

impl<G> WaitForThreads<G> {
    /// Over a grace period of packets.
    pub fn new(packets: G, gate: ReaderGate) -> Self {
        Self { packets, gate }
    }
}

impl<G: Grace> Grace for WaitForThreads<G> {
    fn wait(&self) -> Result<(), GraceError> {
        self.packets.wait()?;
        drop(self.gate.0.write().unwrap_or_else(PoisonError::into_inner));
        Ok(())
    }
}

/// A [`Reader`] for threads. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SharedReader {
    reader: Reader,
    gate: ReaderGate,
}

impl SharedReader {
    /// Of tables whose writer's grace period waits at `gate`.
    pub fn new(reader: Reader, gate: ReaderGate) -> Self {
        Self { reader, gate }
    }

    /// Reads. What is long should be read in parts: the writer may wait for its end.
    pub fn read<T>(&self, read: impl FnOnce(&Reader) -> T) -> T {
        let _shared = self.gate.0.read().unwrap_or_else(PoisonError::into_inner);
        read(&self.reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Immediate, Memory, NodeTables, Sizes};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::thread;

    /// Tells when packets are done.
    struct Telling(mpsc::Sender<()>);

    impl Grace for Telling {
        fn wait(&self) -> Result<(), GraceError> {
            self.0.send(()).map_err(|error| GraceError::Failed(error.to_string()))
        }
    }

    #[test]
    fn a_grace_period_ends_after_the_readers_that_began_before_it() {
        let gate = ReaderGate::default();
        let memory = Memory::anonymous(256).unwrap();
        let tables = NodeTables::create(memory, Immediate, Sizes { endpoints: 1 }).unwrap();
        let reader = SharedReader::new(tables.reader(), gate.clone());
        let (packets_done, packets) = mpsc::channel();
        let grace = WaitForThreads::new(Telling(packets_done), gate.clone());
        let (began, has_begun) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel::<()>();
        let done = Arc::new(AtomicBool::new(false));
        let (seen, other) = (done.clone(), reader.clone());
        let reading = thread::spawn(move || {
            reader.read(|_| {
                began.send(()).unwrap();
                may_go_on.recv().unwrap();
                seen.store(true, Ordering::SeqCst);
            });
        });
        has_begun.recv().unwrap();
        assert!(gate.0.try_write().is_err(), "nothing keeps the writer waiting while a thread reads");
        assert_eq!(other.read(Reader::applied_revision), 0, "readers do not wait for each other");
        let waiting = thread::spawn(move || {
            grace.wait().unwrap();
            done.load(Ordering::SeqCst)
        });
        packets.recv().unwrap();
        go_on.send(()).unwrap();
        assert!(waiting.join().unwrap(), "the grace period ended while a thread read");
        reading.join().unwrap();
    }
}
