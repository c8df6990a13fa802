//! The packet program's events about packets for instances that are not here.

use sluice_agent::Error;
use sluice_agent::rsp::{AsyncRing, Events};
use sluice_datapath::{Stray, Strays};

/// The events, as the runtime waits for them.
pub struct StraySource(AsyncRing<Strays>);

impl StraySource {
    /// To be called within a runtime.
    ///
    /// # Errors
    /// If the runtime refuses to wait for the ring.
    pub fn new(strays: Strays) -> Result<Self, Error> {
        AsyncRing::new(strays).map(Self)
    }
}

impl Events<Stray> for StraySource {
    async fn ready(&mut self) -> Result<(), Error> {
        self.0.ready().await
    }

    fn drain(&mut self, out: &mut Vec<Stray>) -> Result<(), Error> {
        self.0.get_mut().drain(out)?;
        Ok(())
    }
}
