//! Reading the tables in threads of the process that writes them.
//!
//! The kernel's grace period waits only for packet programs. [`WaitForThreads`] extends it to readers in this
//! process: they hold a shared lock while they read, and the writer takes the lock exclusively for an instant
//! after the kernel's grace period, so that every reader that started before it has finished. A reader
//! that starts while the writer waits for the lock also waits for the readers before it, but never for the
//! writer's work.

use crate::grace::{Grace, GraceError};
use crate::reader::Reader;
use std::sync::{Arc, PoisonError, RwLock};

/// The lock that a thread holds shared while it reads.
#[derive(Clone, Debug, Default)]
pub struct ReaderGate(Arc<RwLock<()>>);

/// A grace period that waits for packet programs and for threads that read through a gate.
#[derive(Debug)]
pub struct WaitForThreads<G> {
    packets: G,
    gate: ReaderGate,
}

impl<G> WaitForThreads<G> {
    /// Adds the threads of `gate` to `packets`, the grace period for packet programs.
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
    /// Reads tables whose writer waits for `gate` in its grace periods.
    pub fn new(reader: Reader, gate: ReaderGate) -> Self {
        Self { reader, gate }
    }

    /// Runs `read`. Long work should be split: the writer may wait for its end.
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

    /// A grace period for packets that ends at once and sends a message when it does.
    struct Reporting(mpsc::Sender<()>);

    impl Grace for Reporting {
        fn wait(&self) -> Result<(), GraceError> {
            self.0.send(()).map_err(|error| GraceError::Failed(error.to_string()))
        }
    }

    #[test]
    fn grace_period_ends_after_the_readers_that_started_before_it() {
        let gate = ReaderGate::default();
        let memory = Memory::anonymous(256).unwrap();
        let tables = NodeTables::create(memory, Immediate, Sizes { endpoints: 1 }).unwrap();
        let reader = SharedReader::new(tables.reader(), gate.clone());
        let (packets_done, packets) = mpsc::channel();
        let grace = WaitForThreads::new(Reporting(packets_done), gate.clone());
        let (started, has_started) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let done = Arc::new(AtomicBool::new(false));
        let (set_done, other) = (done.clone(), reader.clone());
        let reading = thread::spawn(move || {
            reader.read(|_| {
                started.send(()).unwrap();
                released.recv().unwrap();
                set_done.store(true, Ordering::SeqCst);
            });
        });
        has_started.recv().unwrap();
        assert!(gate.0.try_write().is_err(), "a thread reads, but nothing keeps the writer waiting");
        assert_eq!(other.read(Reader::applied_revision), 0, "readers do not wait for each other");
        let waiting = thread::spawn(move || {
            grace.wait().unwrap();
            done.load(Ordering::SeqCst)
        });
        packets.recv().unwrap();
        release.send(()).unwrap();
        assert!(waiting.join().unwrap(), "the grace period ended while a thread was reading");
        reading.join().unwrap();
    }
}
