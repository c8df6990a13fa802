//! Queues of events that the packet programs fill, as asynchronous sources. This file changes when events come
//! by another kind of kernel queue.

use std::future::Future;

use sluice_datapath::{Event, EventRing};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::Error;

/// A queue of events.
pub trait EventSource<T>: Send {
    /// Waits until the queue may have an event. Canceling the wait loses no event.
    ///
    /// # Errors
    /// If the queue will never have an event again.
    fn ready(&mut self) -> impl Future<Output = Result<(), Error>> + Send;

    /// Moves all events of the queue to `out`.
    ///
    /// # Errors
    /// If the queue cannot be read.
    fn drain(&mut self, out: &mut Vec<T>) -> Result<(), Error>;
}

/// A BPF ring buffer that the Tokio runtime waits for.
#[derive(Debug)]
pub struct AsyncEventRing<E>(AsyncFd<EventRing<E>>);

impl<E> AsyncEventRing<E> {
    /// Registers the ring with the runtime, within which it must be called.
    ///
    /// # Errors
    /// If the runtime cannot wait for the ring.
    pub fn new(ring: EventRing<E>) -> Result<Self, Error> {
        #[expect(deprecated, reason = "the ring owns its descriptor, which never changes")]
        let ring = AsyncFd::with_interest(ring, Interest::READABLE);
        ring.map(Self).map_err(Error::io("wait for events of the packet programs"))
    }
}

impl<E: Event> EventSource<E> for AsyncEventRing<E> {
    async fn ready(&mut self) -> Result<(), Error> {
        let mut ready =
            self.0.readable().await.map_err(Error::io("wait for events of the packet programs"))?;
        // The caller drains the ring next, so only a later event makes it ready again.
        ready.clear_ready();
        Ok(())
    }

    fn drain(&mut self, out: &mut Vec<E>) -> Result<(), Error> {
        self.0.get_mut().drain(out)?;
        Ok(())
    }
}
