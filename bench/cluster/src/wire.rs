//! Frames that arrive at a node of the lab, with the kernel's time of their arrival; threads in namespaces of the
//! lab. It changes with the packets that benches look for.

use crate::Failure;
use nix::cmsg_space;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, recvmsg,
    setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeSpec, TimeVal, TimeValLike};
use nix::time::ClockId;
use sluice_lab::Lab;
use std::fs::File;
use std::io::IoSliceMut;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

/// Length to which frames are cut: outer and inner headers, and the first bytes of the payload.
const SNAP_BYTES: usize = 128;
/// Size of the receive buffer, enough for about 100,000 frames.
const BUFFER_BYTES: usize = 64 << 20;
const ETHERNET_BYTES: usize = 14;
const ARP: u16 = 0x0806;
const IPV4: u16 = 0x0800;
/// Ethernet, IPv4, UDP and VXLAN over IPv4.
const TUNNEL_BYTES: usize = 14 + 20 + 8 + 8;

/// A frame that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A tenant's UDP packet in VXLAN.
    Tenant {
        /// The node that sent it.
        sender: Ipv4Addr,
        /// The tenant's destination.
        destination: Ipv4Addr,
        /// Bytes of the tenant's frame.
        bytes: u32,
        /// The first four bytes of the tenant's payload.
        number: u32,
    },
    /// A gratuitous ARP.
    Announcement {
        /// The announced address.
        address: Ipv4Addr,
    },
}

/// Frames with nanoseconds of CLOCK_REALTIME.
pub type Frames = Vec<(i64, Frame)>;

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Parses a frame; `None` if it is neither a tenant's UDP packet nor a gratuitous ARP.
fn parse(frame: &[u8]) -> Option<Frame> {
    let address = |at| long(frame, at).map(Ipv4Addr::from);
    match word(frame, 12)? {
        ARP => {
            let (sender, target) = (address(ETHERNET_BYTES + 14)?, address(ETHERNET_BYTES + 24)?);
            (sender == target).then_some(Frame::Announcement { address: sender })
        }
        IPV4 if *frame.get(23)? == 17 && word(frame, 36)? == 4789 => {
            let inner = TUNNEL_BYTES + ETHERNET_BYTES;
            let is_udp = word(frame, TUNNEL_BYTES + 12)? == IPV4 && *frame.get(inner + 9)? == 17;
            is_udp.then_some(Frame::Tenant {
                sender: address(26)?,
                destination: address(inner + 16)?,
                bytes: u32::from(word(frame, inner + 2)?) + ETHERNET_BYTES as u32,
                number: long(frame, inner + 28)?,
            })
        }
        _ => None,
    }
}

/// Runs `work` on a new thread in the network namespace of a node, switch or VM of the lab.
pub fn inside<T: Send + 'static>(
    lab: &Lab,
    place: &str,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> JoinHandle<Result<T, Failure>> {
    let file: PathBuf = lab.paths().namespace_file(place);
    spawn(move || {
        setns(File::open(file)?, CloneFlags::CLONE_NEWNET)?;
        work()
    })
}

/// A capture that runs until its frames are requested.
pub struct Capture {
    /// End of the capture in nanoseconds of CLOCK_REALTIME.
    end: Arc<AtomicI64>,
    thread: JoinHandle<Result<Frames, Failure>>,
}

impl Capture {
    /// Starts to capture on all interfaces of a node. Frames that arrive after the return are captured.
    pub fn start(lab: &Lab, node: &str) -> Result<Self, Failure> {
        let end = Arc::new(AtomicI64::new(i64::MAX));
        let socket = inside(lab, node, open).join().map_err(|_| "the capture panicked")??;
        let ending = end.clone();
        Ok(Self { end, thread: spawn(move || capture(&socket, &ending)) })
    }

    /// The frames so far, oldest first.
    pub fn frames(self) -> Result<Frames, Failure> {
        self.end.store(now_ns()?, Ordering::Relaxed);
        self.thread.join().map_err(|_| "the capture panicked")?
    }
}

fn open() -> Result<OwnedFd, Failure> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll)?;
    setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
    setsockopt(&socket, sockopt::RcvBufForce, &BUFFER_BYTES)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::milliseconds(20))?;
    Ok(socket)
}

/// Nanoseconds of CLOCK_REALTIME.
pub fn now_ns() -> Result<i64, Failure> {
    Ok(ClockId::CLOCK_REALTIME.now()?.num_nanoseconds())
}

fn capture(socket: &OwnedFd, end: &AtomicI64) -> Result<Frames, Failure> {
    let mut frames = Frames::new();
    let mut bytes = [0; SNAP_BYTES];
    let mut space = cmsg_space!(TimeSpec);
    loop {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::empty();
        let received = match recvmsg::<LinkAddr>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags) {
            Ok(received) => received,
            Err(nix::errno::Errno::EAGAIN) if end.load(Ordering::Relaxed) != i64::MAX => return Ok(frames),
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        };
        // Frames that the node sends, and frames to other nodes that a switch floods, are ignored.
        let kind = received.address.map(|address| address.pkttype());
        let is_others = kind.is_some_and(|kind| [PACKET_OTHERHOST, PACKET_OUTGOING].contains(&kind));
        let length = received.bytes.min(SNAP_BYTES);
        let at_ns = received.cmsgs()?.find_map(|message| match message {
            ControlMessageOwned::ScmTimestampns(time) => Some(time.num_nanoseconds()),
            _ => None,
        });
        if at_ns.is_some_and(|at_ns| at_ns > end.load(Ordering::Relaxed)) {
            return Ok(frames);
        }
        if let (false, Some(at_ns), Some(frame)) = (is_others, at_ns, parse(&bytes[..length])) {
            frames.push((at_ns, frame));
        }
    }
}

/// The `sll_pkttype` of frames to another node, and of frames that this node sent.
const PACKET_OTHERHOST: u8 = 3;
const PACKET_OUTGOING: u8 = 4;

/// Sleeps until `deadline`, and reads the clock in a loop for the last part, because timers are late.
pub fn sleep_until(deadline: std::time::Instant) {
    const EARLY: Duration = Duration::from_micros(150);
    let left = deadline.saturating_duration_since(std::time::Instant::now());
    if left > EARLY {
        std::thread::sleep(left - EARLY);
    }
    while std::time::Instant::now() < deadline {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_frames_are_distinguished() {
        let mut frame = vec![0; 14];
        frame[12..14].copy_from_slice(&ARP.to_be_bytes());
        frame.extend([0; 28]);
        frame[28..32].copy_from_slice(&[192, 0, 2, 9]);
        assert_eq!(parse(&frame), None);
        frame[38..42].copy_from_slice(&[192, 0, 2, 9]);
        assert_eq!(parse(&frame), Some(Frame::Announcement { address: Ipv4Addr::new(192, 0, 2, 9) }));
        assert_eq!(parse(&frame[..30]), None);

        let mut frame = vec![0; TUNNEL_BYTES + ETHERNET_BYTES + 32];
        frame[12..14].copy_from_slice(&IPV4.to_be_bytes());
        frame[23] = 17;
        frame[26..30].copy_from_slice(&[192, 0, 2, 11]);
        frame[36..38].copy_from_slice(&4789_u16.to_be_bytes());
        let inner = TUNNEL_BYTES + ETHERNET_BYTES;
        frame[inner - 2..inner].copy_from_slice(&IPV4.to_be_bytes());
        frame[inner + 2..inner + 4].copy_from_slice(&1400_u16.to_be_bytes());
        frame[inner + 9] = 17;
        frame[inner + 16..inner + 20].copy_from_slice(&[10, 2, 0, 7]);
        frame[inner + 28..inner + 32].copy_from_slice(&77_u32.to_be_bytes());
        let (sender, destination) = (Ipv4Addr::new(192, 0, 2, 11), Ipv4Addr::new(10, 2, 0, 7));
        let tenant = Frame::Tenant { sender, destination, bytes: 1414, number: 77 };
        assert_eq!(parse(&frame), Some(tenant));
        frame[36] = 0;
        assert_eq!(parse(&frame), None);
    }
}
