//! Sends packets into a host and counts where they arrive. It changes with how packets enter and leave a host.
//!
//! Small packets enter an interface as live frames of `BPF_PROG_TEST_RUN`: the kernel makes an skb of each and receives
//! it. Long packets enter through a packet socket on the other end of the interface. A packet has arrived when the tc
//! program of its last interface sees it: at egress, where a driver would get it, or at ingress of a VM's own end.

use super::frames::{FRAME_BYTES, TUNNEL_BYTES};
use crate::rig::{self, Aligned, LIVE_FRAMES};
use libbpf_rs::{
    Link, MapCore, MapFlags, Object, ObjectBuilder, ProgramInput, TC_EGRESS, TC_INGRESS, TcHookBuilder,
};
use sluice_bench_report::shell::Failure;
use sluice_sys::PacketSocket;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/host.bpf.o")));

/// The verdict on a packet that was forwarded (pkt_cls.h).
const TC_ACT_REDIRECT: u32 = 7;
/// Longest time from the last packet that is sent until all have arrived.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where packets are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Packets that the interface receives.
    Ingress,
    /// Packets that the interface would send.
    Egress,
}

/// Generator and counters of one side.
pub struct Traffic {
    object: Object,
    /// The kernel rewrites the entry of all XDP programs before and after a run of one that is not attached, which
    /// takes longer than the run.
    _attached: [Link; 2],
}

impl Traffic {
    /// Loads the programs. The two interfaces get no packets.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn new(unused: [u32; 2]) -> Result<Self, Failure> {
        let object = ObjectBuilder::default().name("host")?.open_memory(&OBJECT.0)?.load()?;
        let attach = |name, ifindex| -> Result<Link, Failure> {
            Ok(rig::program(&object, name)?.attach_xdp(i32::try_from(ifindex)?)?)
        };
        let attached = [attach("send_frame", unused[0])?, attach("send_tunneled", unused[1])?];
        Ok(Self { object, _attached: attached })
    }

    /// Counts and ends all packets at an interface of the current namespace, until that is removed. In tests, the last
    /// one is kept.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn end_at(&self, ifindex: u32, hook: Hook) -> Result<(), Failure> {
        if cfg!(test) {
            self.attach("keep", 1, ifindex, hook)?;
        }
        self.attach("arrive", 2, ifindex, hook)
    }

    /// The packet that was kept, with zeros behind it.
    ///
    /// # Errors
    /// Errors of the kernel.
    #[cfg(test)]
    pub fn kept(&self) -> Result<Vec<u8>, Failure> {
        let kept = rig::map(&self.object, "kept")?.lookup(&0u32.to_ne_bytes(), MapFlags::ANY)?;
        kept.ok_or_else(|| "no packet was kept".into())
    }

    /// Programs with a lower priority run first.
    fn attach(&self, name: &str, priority: u32, ifindex: u32, hook: Hook) -> Result<(), Failure> {
        let program = rig::program(&self.object, name)?;
        let mut builder = TcHookBuilder::new(program.as_fd());
        builder.ifindex(i32::try_from(ifindex)?).handle(1).priority(priority);
        let mut hook = builder.hook(if hook == Hook::Ingress { TC_INGRESS } else { TC_EGRESS });
        hook.create()?;
        hook.attach()?;
        Ok(())
    }

    /// Sets what the generator sends.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn aim(&self, template: &[u8]) -> Result<(), Failure> {
        Ok(rig::map(&self.object, "traffic")?.update(&0u32.to_ne_bytes(), template, MapFlags::ANY)?)
    }

    /// Packets that have arrived so far.
    fn arrived(&self) -> Result<u64, Failure> {
        let map = rig::map(&self.object, "arrived")?;
        let values = map.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)?.unwrap_or_default();
        let counts =
            values.iter().filter_map(|bytes| bytes.get(..8)?.try_into().ok().map(u64::from_ne_bytes));
        Ok(counts.sum())
    }

    /// Sends `count` packets by `send` and waits until all have arrived.
    fn deliver<T>(&self, count: u32, send: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        let wanted = self.arrived()? + u64::from(count);
        let outcome = send()?;
        let deadline = Instant::now() + PATIENCE;
        let mut arrived = self.arrived()?;
        while arrived < wanted && Instant::now() < deadline {
            arrived = self.arrived()?;
        }
        if arrived != wanted {
            let got = arrived + u64::from(count) - wanted;
            return Err(format!("{got} packets have arrived of {count} that were sent").into());
        }
        Ok(outcome)
    }

    /// Lets the interface receive `count` small packets, in VXLAN or not, as the generator is aimed. Returns the
    /// nanoseconds of a packet, without times in which another process had the processor.
    ///
    /// # Errors
    /// Errors of the kernel; packets that did not arrive.
    pub fn receive(&self, ifindex: u32, is_tunneled: bool, count: u32) -> Result<f64, Failure> {
        let (name, bytes) = match is_tunneled {
            true => ("send_tunneled", TUNNEL_BYTES + FRAME_BYTES),
            false => ("send_frame", FRAME_BYTES),
        };
        let mut context = rig::xdp_context(ifindex, bytes as u32);
        let data = vec![0; bytes];
        let program = rig::program(&self.object, name)?;
        self.deliver(count, || {
            let output = program.test_run(ProgramInput {
                context_in: Some(&mut context),
                data_in: Some(&data),
                flags: LIVE_FRAMES,
                repeat: count,
                ..ProgramInput::default()
            })?;
            Ok(output.duration.as_nanos() as f64)
        })
    }

    /// Sends a frame `count` times on an interface of the socket's namespace. Returns the nanoseconds until all have
    /// arrived, for each.
    ///
    /// # Errors
    /// Errors of the kernel; packets that did not arrive.
    pub fn send(
        &self,
        socket: &PacketSocket,
        ifindex: u32,
        frame: &[u8],
        count: u32,
    ) -> Result<f64, Failure> {
        let start = Instant::now();
        self.deliver(count, || (0..count).try_for_each(|_| Ok(socket.send(ifindex, frame)?)))?;
        Ok(start.elapsed().as_nanos() as f64 / f64::from(count))
    }

    /// Nanoseconds that a program of tc takes for a small packet, as the mean of `count`, without what follows it.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn time_program(&self, program: BorrowedFd<'_>, ifindex: u32, count: u32) -> Result<f64, Failure> {
        let (verdict, with) = self.run(program, ifindex, count)?;
        if verdict != TC_ACT_REDIRECT {
            return Err(format!("the verdict on the timed packet is {verdict}: it was not forwarded").into());
        }
        let nothing = rig::program(&self.object, "nothing")?;
        let (_, without) = self.run(nothing.as_fd(), ifindex, count)?;
        Ok(with - without)
    }

    /// The verdict and the nanoseconds of `count` runs, those of the generator included.
    fn run(&self, program: BorrowedFd<'_>, ifindex: u32, count: u32) -> Result<(u32, f64), Failure> {
        let fd = program.as_raw_fd() as u32;
        let map = rig::map(&self.object, "measured")?;
        map.update(&0u32.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY)?;
        // struct __sk_buff: ifindex at 40.
        let mut context = [0u8; 192];
        context[40..44].copy_from_slice(&ifindex.to_ne_bytes());
        let data = [0u8; FRAME_BYTES];
        let output = rig::program(&self.object, "write_and_call")?.test_run(ProgramInput {
            context_in: Some(&mut context),
            data_in: Some(&data),
            repeat: count,
            ..ProgramInput::default()
        })?;
        Ok((output.return_value, output.duration.as_nanos() as f64))
    }
}
