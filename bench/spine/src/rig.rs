//! A veth pair in the current network namespace: the generator and the sink are on `gen`, the measured program
//! is on `dut`. It changes with how packets are generated and counted.

use crate::packet;
use libbpf_rs::{Link, Map, MapCore, MapFlags, Object, ObjectBuilder, ProgramInput, ProgramMut};
use sluice_bench_report::shell::{Failure, run};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Bytes with the alignment that an ELF reader expects.
#[repr(C, align(8))]
pub struct Aligned<Bytes: ?Sized>(pub Bytes);
static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/bench.bpf.o")));

/// The flag `BPF_F_TEST_XDP_LIVE_FRAMES`.
pub const LIVE_FRAMES: u32 = 1 << 1;
/// Frames of one live run.
pub const FRAMES_PER_RUN: u32 = 1 << 18;
/// Packets of one timed run whose result is recorded.
pub const TIMED_PACKETS: u32 = 2_000_000;

/// A program of the rig for `dut`.
#[derive(Clone, Copy)]
pub enum Program {
    /// Swaps the addresses and sends the packet back.
    Reflect,
    /// Passes the packet to the kernel.
    Pass,
}

/// The generator and its two interfaces.
pub struct Rig {
    object: Object,
    _sink: Option<Link>,
    /// Its interfaces.
    pub interfaces: Interfaces,
}

/// Indices and MACs of the interfaces of a rig.
#[derive(Clone, Copy, Debug)]
pub struct Interfaces {
    /// Index of the interface `gen`.
    pub gen_ifindex: i32,
    /// Index of the interface `dut`.
    pub dut_ifindex: i32,
    /// MAC of the interface `dut`.
    pub dut_mac: [u8; 6],
    /// MAC of the interface `gen`.
    pub gen_mac: [u8; 6],
}

/// MAC address of a text.
///
/// # Errors
/// If it is not a MAC address.
pub fn mac_of(text: &str) -> Result<[u8; 6], Failure> {
    Ok(text.trim().parse::<sluice_types::MacAddr>()?.octets())
}

/// What `ip` tells about an interface.
///
/// # Errors
/// Errors of `ip`.
pub fn link_field(interface: &str, field: &str) -> Result<String, Failure> {
    let json: serde_json::Value = serde_json::from_str(&run(&format!("ip -j link show dev {interface}"))?)?;
    let value = &json[0][field];
    Ok(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

impl Interfaces {
    /// Creates the interfaces in the current network namespace, with routes to all hosts by `dut`.
    ///
    /// # Errors
    /// Errors of the tools or the kernel.
    pub fn create() -> Result<Self, Failure> {
        run("ip link set lo up")?;
        run(
            "ip link add gen numrxqueues 1 numtxqueues 1 type veth peer name dut numrxqueues 1 numtxqueues 1",
        )?;
        for interface in ["gen", "dut"] {
            bring_up(interface)?;
        }
        run("ip address add 192.0.2.2/24 dev dut")?;
        let gen_mac = mac_of(&link_field("gen", "address")?)?;
        run(&format!(
            "ip neigh replace 192.0.2.1 lladdr {} dev dut nud permanent",
            sluice_types::MacAddr::new(gen_mac)
        ))?;
        run("ip route add 172.16.0.0/12 via 192.0.2.1 dev dut")?;
        // The kernel answers FIB lookups of XDP programs only on interfaces that forward.
        run("sysctl -qw net.ipv4.conf.all.forwarding=1")?;
        let gen_ifindex = link_field("gen", "ifindex")?.parse()?;
        let dut_ifindex = link_field("dut", "ifindex")?.parse()?;
        let dut_mac = mac_of(&link_field("dut", "address")?)?;
        Ok(Self { gen_ifindex, dut_ifindex, dut_mac, gen_mac })
    }
}

/// Brings one end of a veth pair up, which sends nothing by itself, and whose packets have checksums.
///
/// # Errors
/// Errors of the tools.
pub fn bring_up(interface: &str) -> Result<(), Failure> {
    run(&format!("ip link set {interface} addrgenmode none"))?;
    run(&format!("ip link set {interface} up"))?;
    run(&format!("ethtool -K {interface} tx off"))?;
    Ok(())
}

impl Rig {
    /// Creates the interfaces in the current network namespace.
    ///
    /// # Errors
    /// Errors of the tools or the kernel.
    pub fn new() -> Result<Self, Failure> {
        let interfaces = Interfaces::create()?;
        let object = ObjectBuilder::default().name("bench")?.open_memory(&OBJECT.0)?.load()?;
        let sink = program(&object, "sink")?.attach_xdp(interfaces.gen_ifindex)?;
        Ok(Self { object, _sink: Some(sink), interfaces })
    }

    /// A rig for timed runs only, over the interfaces of another one.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn over(interfaces: Interfaces) -> Result<Self, Failure> {
        let object = ObjectBuilder::default().name("bench")?.open_memory(&OBJECT.0)?.load()?;
        Ok(Self { object, _sink: None, interfaces })
    }

    /// Sends to `count` inner destinations, `ports` flows to each (at most 64,000), inner frames to `inner_mac`.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn aim(&self, count: u32, ports: u32, inner_mac: [u8; 6]) -> Result<(), Failure> {
        self.aim_with_elephants(count, ports, inner_mac, 0)
    }

    /// As [`Rig::aim`], but one packet in eight belongs to one of `elephants` flows, at most `count`.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn aim_with_elephants(
        &self,
        count: u32,
        ports: u32,
        inner_mac: [u8; 6],
        elephants: u32,
    ) -> Result<(), Failure> {
        let (packet, check) = packet::template(self.interfaces.dut_mac, self.interfaces.gen_mac, inner_mac);
        let mut value = packet.to_vec();
        for word in [packet::INNER_BASE, count, check, ports, elephants, 0] {
            value.extend(word.to_ne_bytes());
        }
        self.map("generator")?.update(&0u32.to_ne_bytes(), &value, MapFlags::ANY)?;
        Ok(())
    }

    /// Attaches a program of the rig to `dut`.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn attach(&self, program: Program) -> Result<Link, Failure> {
        let name = match program {
            Program::Reflect => "reflect",
            Program::Pass => "pass",
        };
        Ok(self.program(name)?.attach_xdp(self.interfaces.dut_ifindex)?)
    }

    fn program(&self, name: &str) -> Result<ProgramMut<'_>, Failure> {
        program(&self.object, name)
    }

    fn map(&self, name: &str) -> Result<Map<'_>, Failure> {
        map(&self.object, name)
    }

    fn received(&self) -> Result<u64, Failure> {
        let values =
            self.map("received")?.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)?.unwrap_or_default();
        let counts =
            values.iter().filter_map(|bytes| bytes.get(..8)?.try_into().ok().map(u64::from_ne_bytes));
        Ok(counts.sum())
    }

    fn send(&self) -> Result<(), Failure> {
        let mut context = xdp_context(self.interfaces.gen_ifindex as u32, packet::TEMPLATE_BYTES as u32);
        let data = [0u8; packet::TEMPLATE_BYTES];
        let input = ProgramInput {
            context_in: Some(&mut context),
            data_in: Some(&data),
            flags: LIVE_FRAMES,
            repeat: FRAMES_PER_RUN,
            ..ProgramInput::default()
        };
        self.program("generate")?.test_run(input)?;
        Ok(())
    }

    /// Millions of packets a second that come back over `seconds`, after a short warm-up.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn mpps(&self, seconds: f64) -> Result<f64, Failure> {
        self.send()?;
        let bound = Duration::from_secs_f64(seconds);
        let (before, start) = (self.received()?, Instant::now());
        while start.elapsed() < bound {
            self.send()?;
        }
        let elapsed = start.elapsed().as_secs_f64();
        Ok((self.received()? - before) as f64 / elapsed / 1e6)
    }

    /// Nanoseconds that `program` takes for a packet received on `dut`, as the mean of `packets`. The
    /// generator's part is measured by a run without the program, and subtracted.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn nanoseconds(&self, program: BorrowedFd<'_>, packets: u32) -> Result<f64, Failure> {
        let with = self.timed(program, packets)?;
        let without = self.timed(self.program("accept")?.as_fd(), packets)?;
        Ok(with - without)
    }

    /// A packet of the generator.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn packet(&self) -> Result<Vec<u8>, Failure> {
        self.measure_program(self.program("accept")?.as_fd())?;
        Ok(self.forward(&self.program("generate_and_call")?, &[0; packet::TEMPLATE_BYTES])?.1)
    }

    /// The verdict of `program` for a packet that `dut` receives, and what the packet is then.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn forward(&self, program: &ProgramMut<'_>, packet: &[u8]) -> Result<(u32, Vec<u8>), Failure> {
        let mut context = xdp_context(self.interfaces.dut_ifindex as u32, packet.len() as u32);
        let mut forwarded = vec![0; packet.len()];
        let input = ProgramInput {
            context_in: Some(&mut context),
            data_in: Some(packet),
            data_out: Some(&mut forwarded),
            ..ProgramInput::default()
        };
        let verdict = program.test_run(input)?.return_value;
        Ok((verdict, forwarded))
    }

    /// Sets the program that `generate_and_call` calls.
    fn measure_program(&self, program: BorrowedFd<'_>) -> Result<(), Failure> {
        let fd = program.as_raw_fd() as u32;
        self.map("measured")?.update(&0u32.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY)?;
        Ok(())
    }

    fn timed(&self, program: BorrowedFd<'_>, packets: u32) -> Result<f64, Failure> {
        self.measure_program(program)?;
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
}

/// The map of this name.
///
/// # Errors
/// If nothing has this name.
pub fn map<'object>(object: &'object Object, name: &str) -> Result<Map<'object>, Failure> {
    let found = object.maps().find(|map| map.name() == name);
    found.ok_or_else(|| format!("no map {name}").into())
}

/// The program of this name.
///
/// # Errors
/// If nothing has this name.
pub fn program<'object>(object: &'object Object, name: &str) -> Result<ProgramMut<'object>, Failure> {
    let found = object.progs_mut().find(|program| program.name() == name);
    found.ok_or_else(|| format!("no program {name}").into())
}

/// A `struct xdp_md` with the length of the packet and the interface that received it.
pub fn xdp_context(ifindex: u32, length: u32) -> [u8; 24] {
    let mut context = [0u8; 24];
    context[4..8].copy_from_slice(&length.to_ne_bytes());
    context[12..16].copy_from_slice(&ifindex.to_ne_bytes());
    context
}
