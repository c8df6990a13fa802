//! The minimal forwarder of `bench/spine/bpf/minimal.bpf.c`, a peer of the gateway's program, on the rig's interface
//! `dut`. It changes with the entries of its maps.

use crate::packet;
use crate::peers::{host_of, instance, mac_of};
use crate::rig::{self, Aligned, Rig};
use libbpf_rs::{Link, MapCore, MapFlags, Object, ObjectBuilder, ProgramMut};
use sluice_bench_report::shell::Failure;
use sluice_types::ROUTER_MAC;
use std::os::fd::AsFd;

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/minimal.bpf.o")));

/// Entries of one system call that fills the map.
const BATCH: u32 = 1 << 16;

/// Entries for which the map has space, for each endpoint. With more of them its hash chains are shorter, but its
/// buckets take more memory: 2 is faster than 1 and 4 at most sizes.
const SPACE: u32 = 2;

/// A loaded forwarder with the same endpoints as a [`crate::gateway::Gateway`].
pub struct Minimal {
    object: Object,
}

impl Minimal {
    /// Loads the program with `count` endpoints.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn new(rig: &Rig, count: u32) -> Result<Self, Failure> {
        let mut builder = ObjectBuilder::default();
        let mut open = builder.name("minimal")?.open_memory(&OBJECT.0)?;
        let mut endpoints =
            open.maps_mut().find(|map| map.name() == "endpoints").ok_or("no map endpoints")?;
        endpoints.set_max_entries(count * SPACE)?;
        let minimal = Self { object: open.load()? };
        // MAC addresses of the outer and of the inner header, without their destinations.
        let mut own = Vec::new();
        for source in [rig.interfaces.dut_mac, ROUTER_MAC.octets()] {
            own.extend([0; 6]);
            own.extend(source);
        }
        own.extend(packet::GATEWAY.octets());
        rig::map(&minimal.object, "own")?.update(
            &rig.interfaces.dut_ifindex.to_ne_bytes(),
            &own,
            MapFlags::ANY,
        )?;
        let endpoints = rig::map(&minimal.object, "endpoints")?;
        for first in (0..count).step_by(BATCH as usize) {
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            let end = count.min(first + BATCH);
            for index in first..end {
                keys.extend((packet::VNI << 8).to_be_bytes());
                keys.extend(instance(index).octets());
                values.extend(rig.interfaces.gen_mac);
                values.extend(mac_of(index).octets());
                values.extend(host_of(index).octets());
            }
            endpoints.update_batch(&keys, &values, end - first, MapFlags::ANY, MapFlags::ANY)?;
        }
        Ok(minimal)
    }

    fn program(&self) -> Result<ProgramMut<'_>, Failure> {
        rig::program(&self.object, "minimal")
    }

    /// Attaches the program to `dut` until the link is dropped.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn attach(&self, rig: &Rig) -> Result<Link, Failure> {
        Ok(self.program()?.attach_xdp(rig.interfaces.dut_ifindex)?)
    }

    /// Nanoseconds that the program takes for a packet, as the mean of `packets`.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn nanoseconds(&self, rig: &Rig, packets: u32) -> Result<f64, Failure> {
        rig.nanoseconds(self.program()?.as_fd(), packets)
    }

    /// The verdict for a packet that `dut` receives, and what the packet is then.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn forward(&self, rig: &Rig, packet: &[u8]) -> Result<(u32, Vec<u8>), Failure> {
        rig.forward(&self.program()?, packet)
    }
}
