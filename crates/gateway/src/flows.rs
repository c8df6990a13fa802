//! The packet program's events about flows, and what it is told an elephant is.

use std::time::Duration;

use sluice_agent::Error;
use sluice_agent::rsp::{AsyncRing, Events};
use sluice_datapath::{FlowEvent, FlowEvents};
use sluice_tables::flows::{FlowConfig, Policy};

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
    ring: AsyncRing<FlowEvents>,
    scratch: Vec<FlowEvent>,
}

impl FlowSource {
    /// To be called within a runtime.
    ///
    /// # Errors
    /// If the runtime refuses to wait for the ring.
    pub fn new(events: FlowEvents) -> Result<Self, Error> {
        Ok(Self { ring: AsyncRing::new(events)?, scratch: Vec::new() })
    }
}

impl Events<Elephant> for FlowSource {
    async fn ready(&mut self) -> Result<(), Error> {
        self.ring.ready().await
    }

    fn drain(&mut self, out: &mut Vec<Elephant>) -> Result<(), Error> {
        self.scratch.clear();
        self.ring.get_mut().drain(&mut self.scratch)?;
        let elephant = |event: &FlowEvent| {
            let FlowEvent { vni, source, destination, .. } = *event;
            Elephant { vni, source, destination }
        };
        out.extend(self.scratch.iter().map(elephant));
        Ok(())
    }
}
