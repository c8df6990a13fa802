//! What the packet programs tell the agent of.

use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr;

use sluice_tables::layout;
use sluice_types::Vni;

use crate::Error;
use crate::ring::Ring;

/// Events of one kind. Readable, in the sense of `poll`, while there are any; also
/// edge-triggered, if each time all are drained.
#[derive(Debug)]
pub struct EventRing<E> {
    ring: Ring,
    kind: PhantomData<fn() -> E>,
}

/// Flows that have become elephants, or that are told of because every flow is.
pub type FlowEvents = EventRing<FlowEvent>;

/// Of the vSwitch: packets from other hosts for instances that are not here.
pub type Strays = EventRing<Stray>;

/// A flow whose sender should be told a direct path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowEvent {
    /// The VPC that the packet came with.
    pub vni: Vni,
    /// The packet's own source, of the family of the destination.
    pub source: IpAddr,
    /// Its destination.
    pub destination: IpAddr,
    /// The node that sent the packet, on the underlay.
    pub sender: IpAddr,
    /// When the packet that made it an elephant was counted, `CLOCK_MONOTONIC`.
    pub time_ns: u64,
}

/// A packet that went on to a gateway; its sender should be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stray {
    /// The VPC that the packet came with: the destination's own.
    pub vni: Vni,
    /// Its destination.
    pub destination: IpAddr,
    /// The host that sent it, on the underlay.
    pub sender: IpAddr,
}

/// Halves of the packet programs: IPv4 in the low 32 bits of the second.
fn address(halves: [u64; 2], ipv6: u8) -> IpAddr {
    if ipv6 == 0 {
        return Ipv4Addr::from(halves[1] as u32).into();
    }
    Ipv6Addr::from(u128::from(halves[0]) << 64 | u128::from(halves[1])).into()
}

/// Structures of `bpf/include/events.h`: integers only.
///
/// # Safety
/// The type must be valid for every bit pattern.
unsafe trait Record: Copy {
    /// The structure, if the record is one of this version's.
    fn read(record: &[u8]) -> Option<Self> {
        // SAFETY: as many bytes as the type has, which takes any; they need not be aligned.
        (record.len() == size_of::<Self>()).then(|| unsafe { ptr::read_unaligned(record.as_ptr().cast()) })
    }
}

// SAFETY: integers and arrays of them, without padding.
unsafe impl Record for layout::flow_event {}
// SAFETY: the same.
unsafe impl Record for layout::stray_event {}

/// What a packet program tells of.
pub trait Event: Sized {
    /// The event, if the record is one of this version's and makes sense.
    fn read(record: &[u8]) -> Option<Self>;
}

impl<E: Event> EventRing<E> {
    pub(crate) fn new(ring: Ring) -> Self {
        Self { ring, kind: PhantomData }
    }

    /// Appends the events that have come since the last time; how many.
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
