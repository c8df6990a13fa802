//! The packet program's events about flows, and what it is told an elephant is.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

use sluice_agent::Error;
use sluice_agent::rsp::Events;
use sluice_datapath::{FlowEvent, FlowEvents};
use sluice_tables::flows::{FlowConfig, Policy};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::offload::Elephant;

/// How long a flow's bytes are added up.
pub const PERIOD: Duration = Duration::from_secs(1);
/// 20 kbit/s (Zeta section IV-C), in bytes a period: where a VPC has no threshold of its own.
const ELEPHANT_BYTES: u64 = 20_000 / 8;

/// What is told of flows; `all`: of every one.
pub fn policy(all: bool) -> Policy {
    if all {
        return Policy::Every { period: PERIOD };
    }
    Policy::Detect(FlowConfig { period: PERIOD, elephant_bytes: ELEPHANT_BYTES })
}

/// The events, as the runtime waits for them.
pub struct FlowSource {
    ring: AsyncFd<Ring>,
    scratch: Vec<FlowEvent>,
}

struct Ring(FlowEvents);

impl AsRawFd for Ring {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl FlowSource {
    /// To be called within a runtime.
    ///
    /// # Errors
    /// If the runtime refuses to wait for the ring.
    pub fn new(events: FlowEvents) -> Result<Self, Error> {
        let ring = AsyncFd::with_interest(Ring(events), Interest::READABLE)
            .map_err(Error::io("wait for events of flows"))?;
        Ok(Self { ring, scratch: Vec::new() })
    }
}

impl Events<Elephant> for FlowSource {
    async fn ready(&mut self) -> Result<(), Error> {
        // All is drained each time: what comes later makes it ready again.
        self.ring.readable().await.map_err(Error::io("wait for events of flows"))?.clear_ready();
        Ok(())
    }

    fn drain(&mut self, out: &mut Vec<Elephant>) -> Result<(), Error> {
        self.scratch.clear();
        self.ring.get_mut().0.drain(&mut self.scratch)?;
        let elephant = |event: &FlowEvent| {
            let FlowEvent { vni, source, destination, .. } = *event;
            Elephant { vni, source, destination }
        };
        out.extend(self.scratch.iter().map(elephant));
        Ok(())
    }
}
