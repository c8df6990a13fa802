//! What ports use, and what they may use now: the maps `port_credits` and `packet_costs`
//! (`bpf/include/layout/credit_layout.h`). Packets count and take; the agent writes limits and credit. This module changes with
//! that header.

use crate::error::Error;
use crate::layout::{self, packet_costs, port_credit};
use crate::region::Region;
use std::mem::{offset_of, size_of};

/// Number of [`CreditDimension`]s.
pub const CREDIT_DIMENSIONS: usize = layout::CREDIT_DIMENSIONS as usize;
/// Number of classes of packets with a cost of their own: sent, sent and judged by a policy, received, received and judged.
pub const COST_CLASSES: usize = layout::COST_CLASSES as usize;

/// One of so many packets is timed in the programs.
pub const COST_SAMPLE: u64 = layout::COST_SAMPLE as u64;

/// What an instance uses. Its number is the index in [`PortCredits::limits`] and [`PortCredits::credit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CreditDimension {
    /// What the VM sends, in Mbit/s of IP packets.
    SentMbps = layout::CREDIT_SENT_MBPS as isize,
    /// What the VM gets, in Mbit/s of IP packets.
    ReceivedMbps = layout::CREDIT_RECEIVED_MBPS as isize,
    /// What the VM sends, in 1000 packets per second.
    SentKpps = layout::CREDIT_SENT_KPPS as isize,
    /// What the VM gets, in 1000 packets per second.
    ReceivedKpps = layout::CREDIT_RECEIVED_KPPS as isize,
    /// Time of the host's processors, in thousandths of one.
    Cpu = layout::CREDIT_CPU as isize,
}

impl CreditDimension {
    /// All, in the order of their numbers.
    pub const ALL: [Self; CREDIT_DIMENSIONS] =
        [Self::SentMbps, Self::ReceivedMbps, Self::SentKpps, Self::ReceivedKpps, Self::Cpu];
}

/// What has passed a port since it has its number. The first of each pair is what the VM has sent, the second what it got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortUse {
    /// Bytes of IP packets.
    pub bytes: [u64; 2],
    /// Packets, as the wire carries them.
    pub packets: [u64; 2],
    /// Estimated time of the host's processors, in ns.
    pub cpu_ns: u64,
    /// Frames for which that time was charged: one that is cut into packets later is one.
    pub frames: u64,
}

/// Packets of a port that were dropped over its limits, sent ones and received ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreditDrops {
    /// Over the packet rate.
    pub packets: [u64; 2],
    /// Over the share of the processors.
    pub cpu: [u64; 2],
    /// Over the rate of received bytes, as far as the packet program enforces it.
    pub received_rate: u64,
}

/// What packets cost the host's processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketCosts {
    /// In ns, by class ([`COST_CLASSES`]).
    pub packet_ns: [u32; COST_CLASSES],
    /// In ns, for each 1024 bytes besides.
    pub kib_ns: u32,
}

/// The credits by the number of the port ([`crate::Port::scope`]), and what packets cost. Clones refer to the same memory.
#[derive(Clone, Debug)]
pub struct PortCredits {
    ports: Region,
    costs: Region,
}

impl PortCredits {
    /// Size of the map of ports.
    pub const BYTES: usize = layout::PORT_METERS as usize * size_of::<port_credit>();

    /// Uses the memory of the maps.
    ///
    /// # Errors
    /// [`Error::Invalid`] if one has another size.
    pub fn new(ports: Region, costs: Region) -> Result<Self, Error> {
        for (region, needed, name) in
            [(&ports, Self::BYTES, "port credits"), (&costs, size_of::<packet_costs>(), "packet costs")]
        {
            let found = region.bytes();
            if found < needed {
                return Err(Error::Invalid(format!(
                    "the map of {name} has {found} bytes, but needs {needed}"
                )));
            }
        }
        Ok(Self { ports, costs })
    }

    /// Maps zeroed memory of this process.
    ///
    /// # Errors
    /// If the kernel refuses the mapping.
    pub fn anonymous() -> std::io::Result<Self> {
        let costs = Region::anonymous(size_of::<packet_costs>())?;
        Ok(Self { ports: Region::anonymous(Self::BYTES)?, costs })
    }

    /// Whether limits are enforced at the port.
    #[must_use]
    pub fn is_active(&self, scope: u16) -> bool {
        self.ports.load64(Self::at(scope, offset_of!(port_credit, active))) != 0
    }

    /// Sets whether limits are enforced at the port, and what it uses is counted. The limit of received bytes is left to the queueing
    /// discipline of its interface.
    pub fn set_active(&self, scope: u16, active: bool) {
        let value = if active { layout::CREDIT_SHAPED } else { 0 };
        self.ports.store64(Self::at(scope, offset_of!(port_credit, active)), value.into());
    }

    /// Limits are enforced at the port, and what it uses is counted. The packet program enforces that of received bytes, too: the
    /// interface has no queueing discipline that does so.
    pub fn set_policed(&self, scope: u16) {
        self.ports.store64(Self::at(scope, offset_of!(port_credit, active)), layout::CREDIT_POLICED.into());
    }

    /// What has passed the port.
    #[must_use]
    pub fn usage(&self, scope: u16) -> PortUse {
        PortUse {
            bytes: self.pair(scope, offset_of!(port_credit, bytes)),
            packets: self.pair(scope, offset_of!(port_credit, packets)),
            cpu_ns: self.ports.load64(Self::at(scope, offset_of!(port_credit, cpu_ns))),
            frames: self.ports.load64(Self::at(scope, offset_of!(port_credit, frames))),
        }
    }

    /// What was dropped over the limits of the port.
    #[must_use]
    pub fn drops(&self, scope: u16) -> CreditDrops {
        CreditDrops {
            packets: self.pair(scope, offset_of!(port_credit, dropped_packets)),
            cpu: self.pair(scope, offset_of!(port_credit, dropped_cpu)),
            received_rate: self.ports.load64(Self::at(scope, offset_of!(port_credit, dropped_received))),
        }
    }

    /// The limits, by [`CreditDimension`]; 0: not limited.
    #[must_use]
    pub fn limits(&self, scope: u16) -> [u64; CREDIT_DIMENSIONS] {
        self.words(scope, offset_of!(port_credit, limit))
    }

    /// Sets a limit. Packets use it at once.
    pub fn set_limit(&self, scope: u16, dimension: CreditDimension, limit: u64) {
        let at = Self::at(scope, offset_of!(port_credit, limit) + dimension as usize * size_of::<u64>());
        self.ports.store64(at, limit);
    }

    /// The credit that an agent has written, by [`CreditDimension`].
    #[must_use]
    pub fn credit(&self, scope: u16) -> [i64; CREDIT_DIMENSIONS] {
        self.words(scope, offset_of!(port_credit, credit)).map(u64::cast_signed)
    }

    /// Keeps the credit for an agent that comes later.
    pub fn set_credit(&self, scope: u16, credit: [i64; CREDIT_DIMENSIONS]) {
        for (number, value) in credit.into_iter().enumerate() {
            let at = Self::at(scope, offset_of!(port_credit, credit) + number * size_of::<u64>());
            self.ports.store64(at, value.cast_unsigned());
        }
    }

    /// Prepares the number for another port: nothing is used, limited and saved.
    pub fn reset(&self, scope: u16) {
        self.ports.zero(Self::at(scope, 0), size_of::<port_credit>());
    }

    /// Sets what packets cost.
    pub fn set_costs(&self, costs: PacketCosts) {
        for (number, ns) in costs.packet_ns.into_iter().enumerate() {
            self.costs.store32(offset_of!(packet_costs, packet_ns) + number * size_of::<u32>(), ns);
        }
        self.costs.store32(offset_of!(packet_costs, kib_ns), costs.kib_ns);
    }

    /// Sets what packets have counted.
    #[doc(hidden)]
    pub fn set_usage(&self, scope: u16, usage: PortUse) {
        let pairs = [
            (offset_of!(port_credit, bytes), usage.bytes),
            (offset_of!(port_credit, packets), usage.packets),
        ];
        for (field, pair) in pairs {
            self.ports.store64(Self::at(scope, field), pair[0]);
            self.ports.store64(Self::at(scope, field + size_of::<u64>()), pair[1]);
        }
        self.ports.store64(Self::at(scope, offset_of!(port_credit, cpu_ns)), usage.cpu_ns);
        self.ports.store64(Self::at(scope, offset_of!(port_credit, frames)), usage.frames);
    }

    fn at(scope: u16, field: usize) -> usize {
        usize::from(scope) * size_of::<port_credit>() + field
    }

    fn pair(&self, scope: u16, field: usize) -> [u64; 2] {
        [0, 1].map(|number| self.ports.load64(Self::at(scope, field + number * size_of::<u64>())))
    }

    fn words(&self, scope: u16, field: usize) -> [u64; CREDIT_DIMENSIONS] {
        std::array::from_fn(|number| self.ports.load64(Self::at(scope, field + number * size_of::<u64>())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_is_kept_by_itself_and_for_its_port_only() {
        let credits = PortCredits::anonymous().unwrap();
        let usage = PortUse { bytes: [1, 2], packets: [3, 4], cpu_ns: 5, frames: 6 };
        credits.set_usage(7, usage);
        credits.set_active(7, true);
        for (number, dimension) in CreditDimension::ALL.into_iter().enumerate() {
            credits.set_limit(7, dimension, 100 + number as u64);
        }
        credits.set_credit(7, [-1, 2, -3, 4, i64::MIN]);
        assert_eq!((credits.usage(7), credits.limits(7)), (usage, [100, 101, 102, 103, 104]));
        assert_eq!((credits.credit(7), credits.is_active(7)), ([-1, 2, -3, 4, i64::MIN], true));
        assert_eq!(credits.drops(7), CreditDrops::default());
        for other in [6, 8, u16::MAX] {
            assert_eq!((credits.usage(other), credits.limits(other)), (PortUse::default(), [0; 5]));
        }
        credits.set_policed(7);
        assert!(credits.is_active(7) && !credits.is_active(6));
        credits.reset(7);
        assert_eq!(
            (credits.usage(7), credits.credit(7), credits.is_active(7)),
            (PortUse::default(), [0; 5], false)
        );
    }
}
