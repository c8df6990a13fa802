//! Where the packet programs' events come from.

use std::future::Future;
use std::os::fd::{AsFd, AsRawFd, RawFd};

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
pub struct AsyncRing<R: AsFd>(AsyncFd<Handle<R>>);

#[derive(Debug)]
struct Handle<R>(R);

impl<R: AsFd> AsRawFd for Handle<R> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl<R: AsFd> AsyncRing<R> {
    /// To be called within a runtime.
    ///
    /// # Errors
    /// If the runtime refuses to wait for it.
    pub fn new(ring: R) -> Result<Self, Error> {
        #[expect(deprecated, reason = "a ring's descriptor is its own, and the same for as long as it lives")]
        let ring = AsyncFd::with_interest(Handle(ring), Interest::READABLE);
        ring.map(Self).map_err(Error::io("wait for events of packets"))
    }

    /// Waits until there may be something. All must be taken then: only what comes later makes it ready
    /// again.
    ///
    /// # Errors
    /// If the runtime ends.
    pub async fn ready(&self) -> Result<(), Error> {
        let mut ready = self.0.readable().await.map_err(Error::io("wait for events of packets"))?;
        ready.clear_ready();
        Ok(())
    }

    /// The ring.
    pub fn get_mut(&mut self) -> &mut R {
        &mut self.0.get_mut().0
    }
}
