//! Where the packet programs' events come from.

use std::future::Future;

use sluice_datapath::{Event, EventRing};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::Error;

/// A queue that packets fill.
pub trait Events<T>: Send {
    /// Waits until there may be something. Nothing is lost when this is given up.
    ///
    /// # Errors
    /// If there will never be anything.
    fn ready(&mut self) -> impl Future<Output = Result<(), Error>> + Send;

    /// Takes all that there is.
    ///
    /// # Errors
    /// If it cannot be read, ever.
    fn drain(&mut self, out: &mut Vec<T>) -> Result<(), Error>;
}

/// A ring of the kernel's, as the runtime waits for it.
#[derive(Debug)]
pub struct AsyncRing<E>(AsyncFd<EventRing<E>>);

impl<E> AsyncRing<E> {
    /// To be called within a runtime.
    ///
    /// # Errors
    /// If the runtime refuses to wait for it.
    pub fn new(ring: EventRing<E>) -> Result<Self, Error> {
        #[expect(deprecated, reason = "a ring's descriptor is its own, and the same for as long as it lives")]
        let ring = AsyncFd::with_interest(ring, Interest::READABLE);
        ring.map(Self).map_err(Error::io("wait for events of packets"))
    }
}

impl<E: Event> Events<E> for AsyncRing<E> {
    async fn ready(&mut self) -> Result<(), Error> {
        let mut ready = self.0.readable().await.map_err(Error::io("wait for events of packets"))?;
        // All is drained then: only what comes later makes it ready again.
        ready.clear_ready();
        Ok(())
    }

    fn drain(&mut self, out: &mut Vec<E>) -> Result<(), Error> {
        self.0.get_mut().drain(out)?;
        Ok(())
    }
}
