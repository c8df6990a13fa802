//! The packet program's events: packets for instances that are not here, and elephants where this host
//! looks for them.

use sluice_agent::Error;
use sluice_agent::rsp::{AsyncRing, Events};
use sluice_datapath::{FlowEvent, FlowEvents, Stray, Strays};

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

/// Elephants that this host sends, as the runtime waits for them.
pub struct SentSource(AsyncRing<FlowEvents>);

impl SentSource {
    /// As [`StraySource::new`].
    ///
    /// # Errors
    /// As [`StraySource::new`].
    pub fn new(events: FlowEvents) -> Result<Self, Error> {
        AsyncRing::new(events).map(Self)
    }
}

impl Events<FlowEvent> for SentSource {
    async fn ready(&mut self) -> Result<(), Error> {
        self.0.ready().await
    }

    fn drain(&mut self, out: &mut Vec<FlowEvent>) -> Result<(), Error> {
        self.0.get_mut().drain(out)?;
        Ok(())
    }
}
