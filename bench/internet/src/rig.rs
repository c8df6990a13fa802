//! Two veth pairs in the current network namespace. The generator and the sink are on `gen`, the side that is measured has `dut`
//! and `out`, and the mirror on `web` stands for the Internet. It changes with how packets are generated and counted.
//!
//! ```text
//!   gen ------- dut  gateway or kernel  out ------- web
//!   VXLAN, of VMs                                   plain IP, answered
//! ```

use crate::packet::{self, Sender};
use libbpf_rs::{Link, MapCore, MapFlags, Object, ObjectBuilder, ProgramInput, ProgramMut};
use sluice_bench_report::shell::{Failure, run};
use sluice_bench_spine::rig::{
    Aligned, FRAMES_PER_RUN, Interfaces, LIVE_FRAMES, bring_up, link_field, mac_of, map, program, xdp_context,
};
use sluice_types::{MacAddr, ROUTER_MAC};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/internet.bpf.o")));

/// Loads the programs of the generator, the mirror and the remote endpoints, with room for so many records.
///
/// # Errors
/// Errors of the kernel.
pub fn load_programs(records: u32) -> Result<Object, Failure> {
    let mut object = ObjectBuilder::default().name("internet")?.open_memory(&OBJECT.0)?;
    let mut map = object.maps_mut().find(|map| map.name() == "records").ok_or("no map records")?;
    map.set_max_entries(records)?;
    Ok(object.load()?)
}

/// The gateway's own address on the Internet side.
pub const OUT: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 253);
/// The router on the Internet side, which is the mirror.
pub const ROUTER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 254);

/// The sessions that packets belong to: VMs, inner source ports of each, and remote endpoints of each port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sessions {
    /// Number of VMs.
    pub vms: u32,
    /// Number of inner source ports of each VM.
    pub ports: u32,
    /// Number of remote addresses that each port sends to.
    pub remotes: u32,
}

impl Sessions {
    /// Number of sessions.
    pub fn count(self) -> u32 {
        self.vms * self.ports * self.remotes
    }
}

/// The order in which packets belong to sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// At random.
    Random,
    /// One after the other, from this one on.
    From(u32),
}

/// Packets that arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrived {
    /// Back at the hosts, as VXLAN.
    pub back: u64,
    /// In the Internet.
    pub outside: u64,
}

/// The first packet of a session, as the owner in a ring sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The endpoint of the VM.
    pub inside: SocketAddrV4,
    /// The remote address.
    pub remote: Ipv4Addr,
    /// The outside port.
    pub outside_port: u16,
    /// The index of the public address, and its check (`nat_ring.h`).
    pub address: u8,
}

impl Record {
    fn bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&self.inside.ip().octets());
        bytes[4..8].copy_from_slice(&self.remote.octets());
        bytes[8..10].copy_from_slice(&self.inside.port().to_be_bytes());
        bytes[10..12].copy_from_slice(&self.outside_port.to_be_bytes());
        bytes[12] = self.address;
        bytes
    }
}

/// The generator, the mirror and the interfaces.
pub struct Rig {
    object: Object,
    _links: [Link; 2],
    /// The interfaces of the underlay.
    pub interfaces: Interfaces,
    /// Index of the interface `out`.
    pub out_ifindex: i32,
    /// MAC of the interface `out`.
    pub out_mac: MacAddr,
}

impl Rig {
    /// Creates the interfaces in the current network namespace.
    ///
    /// # Errors
    /// Errors of the tools or the kernel.
    pub fn new() -> Result<Self, Failure> {
        Self::with_records(1)
    }

    /// The same, for so many packets that [`Rig::send_records`] sends.
    ///
    /// # Errors
    /// Errors of the tools or the kernel.
    pub fn with_records(records: u32) -> Result<Self, Failure> {
        let interfaces = Interfaces::create()?;
        run(
            "ip link add out numrxqueues 1 numtxqueues 1 type veth peer name web numrxqueues 1 numtxqueues 1",
        )?;
        for interface in ["out", "web"] {
            bring_up(interface)?;
        }
        run(&format!("ip address add {OUT}/24 dev out"))?;
        let router_mac = link_field("web", "address")?;
        run(&format!(
            "ip neigh replace {ROUTER} lladdr {} dev out nud permanent",
            mac_of(&router_mac)?.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
        ))?;
        run(&format!("ip route add {}/10 via {ROUTER} dev out", packet::REMOTES))?;
        let object = load_programs(records)?;
        let web: i32 = link_field("web", "ifindex")?.parse()?;
        let links = [
            program(&object, "sink")?.attach_xdp(interfaces.gen_ifindex)?,
            program(&object, "mirror")?.attach_xdp(web)?,
        ];
        let out_mac = MacAddr::new(mac_of(&link_field("out", "address")?)?);
        Ok(Self {
            object,
            _links: links,
            interfaces,
            out_ifindex: link_field("out", "ifindex")?.parse()?,
            out_mac,
        })
    }

    /// Sends packets of these sessions, inner frames to `inner_mac`.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn aim(&self, sessions: Sessions, order: Order, inner_mac: MacAddr) -> Result<(), Failure> {
        self.aim_from((Sender::Host, packet::PACKET_BYTES), sessions, order, inner_mac)
    }

    /// The same for packets of `bytes`, which [`Rig::send_long`] sends.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn aim_long(
        &self,
        bytes: usize,
        sessions: Sessions,
        order: Order,
        inner_mac: MacAddr,
    ) -> Result<(), Failure> {
        self.aim_from((Sender::Host, bytes), sessions, order, inner_mac)
    }

    fn aim_from(
        &self,
        (sender, bytes): (Sender, usize),
        sessions: Sessions,
        order: Order,
        inner_mac: MacAddr,
    ) -> Result<(), Failure> {
        let template = packet::template(
            sender,
            bytes,
            MacAddr::new(self.interfaces.dut_mac),
            MacAddr::new(self.interfaces.gen_mac),
            inner_mac,
        );
        let (in_order, next) = match order {
            Order::Random => (0, 0),
            Order::From(first) => (1, first),
        };
        let mut value = template.bytes.to_vec();
        value.extend(u64::from(next).to_ne_bytes());
        let Sessions { vms, ports, remotes } = sessions;
        let (vm, remote) = (u32::from(packet::VMS), u32::from(packet::REMOTES));
        for word in [vm, remote, vms, ports, remotes, in_order, template.ip_sum, template.udp_sum] {
            value.extend(word.to_ne_bytes());
        }
        map(&self.object, "generator")?.update(&0u32.to_ne_bytes(), &value, MapFlags::ANY)?;
        Ok(())
    }

    /// Attaches a program that passes packets to the kernel to `dut` and `out`.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn pass(&self) -> Result<[Link; 2], Failure> {
        Ok([self.pass_at(self.interfaces.dut_ifindex)?, self.pass_at(self.out_ifindex)?])
    }

    fn pass_at(&self, ifindex: i32) -> Result<Link, Failure> {
        Ok(program(&self.object, "pass")?.attach_xdp(ifindex)?)
    }

    /// Packets that arrived so far.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn arrived(&self) -> Result<Arrived, Failure> {
        let sum = |which: u32| -> Result<u64, Failure> {
            let received = map(&self.object, "received")?;
            let values = received.lookup_percpu(&which.to_ne_bytes(), MapFlags::ANY)?.unwrap_or_default();
            let counts =
                values.iter().filter_map(|bytes| bytes.get(..8)?.try_into().ok().map(u64::from_ne_bytes));
            Ok(counts.sum())
        };
        Ok(Arrived { back: sum(0)?, outside: sum(1)? })
    }

    /// Sets the first public address, by which packets of a ring leave it, and whether the mirror answers.
    ///
    /// # Errors
    /// Errors of the tools or the kernel.
    pub fn end_ring(&self, first_public: Ipv4Addr, answers: bool) -> Result<(), Failure> {
        let mut value = mac_of(&link_field("web", "address")?)?.to_vec();
        value.extend(self.out_mac.octets());
        for word in [self.out_ifindex as u32, u32::from(first_public), u32::from(!answers)] {
            value.extend(word.to_ne_bytes());
        }
        Ok(map(&self.object, "edge")?.update(&0u32.to_ne_bytes(), &value, MapFlags::ANY)?)
    }

    /// Sets the packets that the owner in a ring sends: as many as there is room for.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn set_records(&self, records: &[Record]) -> Result<(), Failure> {
        let values: Vec<u8> = records.iter().flat_map(Record::bytes).collect();
        let keys: Vec<u8> = (0..records.len() as u32).flat_map(u32::to_ne_bytes).collect();
        let count = u32::try_from(records.len())?;
        let map = map(&self.object, "records")?;
        Ok(map.update_batch(&keys, &values, count, MapFlags::ANY, MapFlags::ANY)?)
    }

    /// Sends `packets`, out of `gen`.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn send(&self, packets: u32) -> Result<(), Failure> {
        self.send_long(packet::TEMPLATE_BYTES, packets)
    }

    /// The same with packets of `bytes`, at least those of the template.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn send_long(&self, bytes: usize, packets: u32) -> Result<(), Failure> {
        self.send_by("generate", bytes, packets)
    }

    /// Sends the first `packets` that were set, out of `gen`, as the owner in a ring does.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn send_records(&self, packets: u32) -> Result<(), Failure> {
        let one = Sessions { vms: 1, ports: 1, remotes: 1 };
        self.aim_from((Sender::Owner, packet::PACKET_BYTES), one, Order::From(0), ROUTER_MAC)?;
        self.send_by("generate_records", packet::TEMPLATE_BYTES, packets)
    }

    fn send_by(&self, name: &str, bytes: usize, packets: u32) -> Result<(), Failure> {
        let mut context = xdp_context(self.interfaces.gen_ifindex as u32, bytes as u32);
        let data = vec![0u8; bytes];
        let input = ProgramInput {
            context_in: Some(&mut context),
            data_in: Some(&data),
            flags: LIVE_FRAMES,
            repeat: packets,
            ..ProgramInput::default()
        };
        self.program(name)?.test_run(input)?;
        Ok(())
    }

    /// Millions of packets a second that are translated, out and back, over `seconds`, after a short warm-up.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn mpps(&self, seconds: f64) -> Result<f64, Failure> {
        self.send(FRAMES_PER_RUN)?;
        let bound = Duration::from_secs_f64(seconds);
        let (before, start) = (self.arrived()?, Instant::now());
        while start.elapsed() < bound {
            self.send(FRAMES_PER_RUN)?;
        }
        let (elapsed, now) = (start.elapsed().as_secs_f64(), self.arrived()?);
        Ok((now.back - before.back + now.outside - before.outside) as f64 / elapsed / 1e6)
    }

    /// Nanoseconds that `measured` takes for a packet of a VM, as the mean of `packets`. The generator's part is measured by a
    /// run without the program, and subtracted.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn nanoseconds(&self, measured: BorrowedFd<'_>, packets: u32) -> Result<f64, Failure> {
        let with = self.timed(measured, packets)?;
        Ok(with - self.timed(program(&self.object, "accept")?.as_fd(), packets)?)
    }

    /// Nanoseconds of the generator and of `measured` for a packet.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn timed(&self, measured: BorrowedFd<'_>, packets: u32) -> Result<f64, Failure> {
        let fd = measured.as_raw_fd() as u32;
        map(&self.object, "measured")?.update(&0u32.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY)?;
        let mut context = xdp_context(self.interfaces.dut_ifindex as u32, packet::TEMPLATE_BYTES as u32);
        let data = [0u8; packet::TEMPLATE_BYTES];
        let input = ProgramInput {
            context_in: Some(&mut context),
            data_in: Some(&data),
            repeat: packets,
            ..ProgramInput::default()
        };
        let output = self.program("generate_and_call")?.test_run(input)?;
        Ok(output.duration.as_nanos() as f64)
    }

    fn program(&self, name: &str) -> Result<ProgramMut<'_>, Failure> {
        program(&self.object, name)
    }
}
