//! Events that the packet programs post to the agent: flows, strays, claims and unknown receivers.

use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr;

use sluice_tables::layout;
use sluice_types::Vni;

use crate::Error;
use crate::ring::Ring;

/// Ring of events of one kind. In the sense of `poll` it is readable while it has events. With edge-triggered
/// polling the caller must drain it completely each time.
#[derive(Debug)]
pub struct EventRing<E> {
    ring: Ring,
    kind: PhantomData<fn() -> E>,
}

/// Flows that have become elephants, or all flows if the policy reports every flow.
pub type FlowEvents = EventRing<FlowEvent>;

/// Strays of a vSwitch: packets from other hosts for instances that are not on this host.
pub type Strays = EventRing<Stray>;

/// Claims of a vSwitch: announcements of addresses that VMs have in turn and do not hold.
pub type Claims = EventRing<Claim>;

/// Receivers of packets that a vSwitch denied because it does not know the receivers' identities.
pub type UnknownReceivers = EventRing<UnknownReceiver>;

/// A flow whose sender should learn a direct path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowEvent {
    /// VNI in the packet's tunnel header; on a vSwitch, the sender's VNI.
    pub vni: Vni,
    /// Inner source address, of the same family as the destination.
    pub source: IpAddr,
    /// Inner destination address.
    pub destination: IpAddr,
    /// Underlay address of the node that sent the packet; on a vSwitch 0.0.0.0, because the sender is this host.
    pub sender: IpAddr,
    /// Time (`CLOCK_MONOTONIC`) at which the packet that made the flow an elephant was counted.
    pub time_ns: u64,
}

/// A packet that was forwarded to a gateway because its destination is not on this host. Its sender should be
/// notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stray {
    /// VNI in the packet's tunnel header, which is the destination's.
    pub vni: Vni,
    /// Inner destination address.
    pub destination: IpAddr,
    /// Underlay address of the host that sent the packet.
    pub sender: IpAddr,
}

/// A VM has announced an address of its pairs that its port does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// Identifier of the instance at the controller.
    pub instance: u64,
    /// The address.
    pub address: IpAddr,
    /// When it was announced, in milliseconds of `CLOCK_MONOTONIC`, which wrap after 49 days.
    pub at_ms: u32,
}

/// The receiver of a packet that an egress rule may permit if the receiver is in the group that the rule names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UnknownReceiver {
    /// VNI of the port that sent the packet.
    pub vni: Vni,
    /// Destination address of the packet.
    pub destination: IpAddr,
}

/// Converts an address from the two halves that the packet programs write. An IPv4 address is in the low 32
/// bits of the second half.
pub(crate) fn address(halves: [u64; 2], ipv6: u8) -> IpAddr {
    if ipv6 == 0 {
        return Ipv4Addr::from(halves[1] as u32).into();
    }
    Ipv6Addr::from(u128::from(halves[0]) << 64 | u128::from(halves[1])).into()
}

/// A structure of `bpf/include/layout/events.h`, which consists of integers.
///
/// # Safety
/// The type must be valid for every bit pattern.
unsafe trait Record: Copy {
    /// Reads the structure. Records of another version, which have another size, give `None`.
    fn read(record: &[u8]) -> Option<Self> {
        // SAFETY: the record has as many bytes as the type, every bit pattern is valid, and the read may be
        // unaligned.
        (record.len() == size_of::<Self>()).then(|| unsafe { ptr::read_unaligned(record.as_ptr().cast()) })
    }
}

// SAFETY: integers and arrays of them, without padding.
unsafe impl Record for layout::flow_event {}
// SAFETY: integers and arrays of them, without padding.
unsafe impl Record for layout::stray_event {}
// SAFETY: integers and arrays of them, without padding.
unsafe impl Record for layout::unknown_receiver_event {}

// SAFETY: integers and arrays of them, without padding.
unsafe impl Record for layout::claim_event {}

/// An event that a packet program posts to a ring.
pub trait Event: Sized {
    /// Reads the event from a record. Records of another version or with invalid fields give `None`.
    fn read(record: &[u8]) -> Option<Self>;
}

impl<E: Event> EventRing<E> {
    pub(crate) fn new(ring: Ring) -> Self {
        Self { ring, kind: PhantomData }
    }

    /// Takes all events out of the ring and appends them to `out`. Returns their number.
    ///
    /// # Errors
    /// If the ring is damaged.
    pub fn drain(&mut self, out: &mut Vec<E>) -> Result<usize, Error> {
        let before = out.len();
        self.ring.drain(|record| out.extend(E::read(record)))?;
        Ok(out.len() - before)
    }
}

impl<E> AsFd for EventRing<E> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

impl<E> AsRawFd for EventRing<E> {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Event for Stray {
    fn read(record: &[u8]) -> Option<Self> {
        let event = layout::stray_event::read(record)?;
        Some(Self {
            vni: Vni::new(event.vni).ok()?,
            destination: address(event.destination, event.ipv6),
            sender: address(event.sender, event.sender_ipv6),
        })
    }
}

impl Event for Claim {
    fn read(record: &[u8]) -> Option<Self> {
        let event = layout::claim_event::read(record)?;
        let address = address(event.address, u8::from(event.ipv6 != 0));
        Some(Self { instance: event.instance, address, at_ms: event.at_ms })
    }
}

impl Event for UnknownReceiver {
    fn read(record: &[u8]) -> Option<Self> {
        let event = layout::unknown_receiver_event::read(record)?;
        Some(Self { vni: Vni::new(event.vni).ok()?, destination: address(event.destination, event.ipv6) })
    }
}

impl Event for FlowEvent {
    fn read(record: &[u8]) -> Option<Self> {
        let event = layout::flow_event::read(record)?;
        Some(Self {
            vni: Vni::new(event.vni).ok()?,
            source: address(event.source, event.ipv6),
            destination: address(event.destination, event.ipv6),
            sender: address(event.outer_source, event.outer_ipv6),
            time_ns: event.time_ns,
        })
    }
}
