//! Answers of a VM as they arrive at its peer, with the kernel's time of their arrival. It changes with the protocols whose gaps are
//! measured.

use super::ECHO;
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, recvmsg,
    setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeSpec, TimeVal, TimeValLike};
use sluice_bench_report::shell::Failure;
use sluice_bench_spine::vswitch::namespace::Namespace;
use std::io::IoSliceMut;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Length to which frames are cut: all headers.
const SNAP_BYTES: usize = 96;
const BUFFER_BYTES: usize = 16 << 20;
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const IPV4_AT: usize = 14;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
/// Types of the answers to pings.
const ECHO_REPLY: u8 = 0;
const ECHO_REPLY6: u8 = 129;
const TCP_FLAGS_AT: usize = 13;
const RST: u8 = 4;

/// What an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An answer to a ping.
    Icmp,
    /// A datagram of the UDP port that echoes.
    Udp,
    /// A segment of TCP that ends no connection.
    Tcp,
}

/// An answer that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// When, since the UNIX epoch.
    pub at: Duration,
    /// What it is.
    pub kind: Kind,
    /// Whether it is of IPv6.
    pub ipv6: bool,
}

/// The time since the UNIX epoch.
pub fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// What a frame of one of these addresses answers. The VMs send no IP options and no extension headers.
fn parse(frame: &[u8], from: &[IpAddr]) -> Option<(Kind, bool)> {
    let part = |at: usize, length: usize| frame.get(at..at + length);
    let (ipv6, protocol, source, next) = if part(12, 2)? == IPV4 {
        let source: [u8; 4] = part(IPV4_AT + 12, 4)?.try_into().ok()?;
        (false, *frame.get(IPV4_AT + 9)?, IpAddr::from(Ipv4Addr::from(source)), IPV4_AT + IPV4_BYTES)
    } else if part(12, 2)? == IPV6 {
        let source: [u8; 16] = part(IPV4_AT + 8, 16)?.try_into().ok()?;
        (true, *frame.get(IPV4_AT + 6)?, IpAddr::from(Ipv6Addr::from(source)), IPV4_AT + IPV6_BYTES)
    } else {
        return None;
    };
    let kind = match (protocol, *frame.get(next)?) {
        (1, ECHO_REPLY) | (58, ECHO_REPLY6) => Kind::Icmp,
        (17, _) if part(next, 2)? == ECHO.to_be_bytes() => Kind::Udp,
        (6, _) if frame.get(next + TCP_FLAGS_AT)? & RST == 0 => Kind::Tcp,
        _ => return None,
    };
    from.contains(&source).then_some((kind, ipv6))
}

/// A capture that runs until its answers are requested.
pub struct Capture {
    end: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<Answer>, Failure>>,
}

impl Capture {
    /// Starts to capture what a namespace gets from these addresses. What arrives after the return is captured.
    pub fn start(namespace: &Path, from: Vec<IpAddr>) -> Result<Self, Failure> {
        let socket = Namespace::open(namespace)?.within(open)?;
        let end = Arc::new(AtomicBool::new(false));
        let ending = end.clone();
        Ok(Self { end, thread: std::thread::spawn(move || capture(&socket, &from, &ending)) })
    }

    /// The answers so far, oldest first.
    pub fn answers(self) -> Result<Vec<Answer>, Failure> {
        self.end.store(true, Ordering::Relaxed);
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

fn capture(socket: &OwnedFd, from: &[IpAddr], end: &AtomicBool) -> Result<Vec<Answer>, Failure> {
    let mut answers = Vec::new();
    let mut bytes = [0; SNAP_BYTES];
    let mut space = cmsg_space!(TimeSpec);
    while !end.load(Ordering::Relaxed) {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let received =
            match recvmsg::<LinkAddr>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::empty()) {
                Ok(received) => received,
                Err(Errno::EAGAIN | Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            };
        let length = received.bytes.min(SNAP_BYTES);
        let at_ns = received.cmsgs()?.find_map(|message| match message {
            ControlMessageOwned::ScmTimestampns(time) => Some(time.num_nanoseconds()),
            _ => None,
        });
        if let (Some(at_ns), Some((kind, ipv6))) = (at_ns, parse(&bytes[..length], from)) {
            let at = Duration::from_nanos(u64::try_from(at_ns).unwrap_or_default());
            answers.push(Answer { at, kind, ipv6 });
        }
    }
    Ok(answers)
}

/// The longest time without an answer of a kind that ended after `since`. `None` if none came after it.
pub fn longest_gap(answers: &[Answer], (kind, ipv6): (Kind, bool), since: Duration) -> Option<Duration> {
    let own = answers.iter().filter(|answer| answer.kind == kind && answer.ipv6 == ipv6);
    let times: Vec<Duration> = own.map(|answer| answer.at).collect();
    let gaps = times.windows(2).filter(|pair| pair[1] > since);
    gaps.map(|pair| pair[1].saturating_sub(pair[0])).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Catches gaps of another protocol or family, those from before the move, and a silence that never ends.
    #[test]
    fn a_gap_is_of_one_kind_and_ends_after_the_move_began() {
        let answer = |at, kind, ipv6| Answer { at: ms(at), kind, ipv6 };
        let answers = [
            answer(0, Kind::Udp, false),
            answer(90, Kind::Udp, false),
            answer(91, Kind::Tcp, false),
            answer(92, Kind::Udp, true),
            answer(100, Kind::Udp, false),
            answer(145, Kind::Udp, false),
            answer(150, Kind::Udp, false),
        ];
        assert_eq!(longest_gap(&answers, (Kind::Udp, false), ms(95)), Some(ms(45)));
        assert_eq!(longest_gap(&answers, (Kind::Udp, true), ms(95)), None);
        assert_eq!(longest_gap(&answers, (Kind::Tcp, false), ms(95)), None);
    }

    #[test]
    fn answers_are_those_of_the_vm() {
        let guest = [IpAddr::from([10, 1, 0, 31]), "fd10::31".parse().unwrap()];
        let mut frame = vec![0; IPV4_AT + IPV4_BYTES + 20];
        frame[12..14].copy_from_slice(&IPV4);
        frame[26..30].copy_from_slice(&[10, 1, 0, 31]);
        let kind = |frame: &[u8], protocol: u8, first: u8, flags: u8| {
            let mut frame = frame.to_vec();
            let ipv6 = frame[12..14] == IPV6;
            let (at, next) = if ipv6 { (20, 54) } else { (23, 34) };
            frame[next..next + 2].copy_from_slice(&ECHO.to_be_bytes());
            if protocol != 17 {
                frame[next] = first;
            }
            (frame[at], frame[next + TCP_FLAGS_AT]) = (protocol, flags);
            parse(&frame, &guest)
        };
        assert_eq!(kind(&frame, 1, ECHO_REPLY, 0), Some((Kind::Icmp, false)));
        assert_eq!(kind(&frame, 1, 8, 0), None);
        assert_eq!(kind(&frame, 17, 0, 0), Some((Kind::Udp, false)));
        assert_eq!(kind(&frame, 6, 9, 0x10), Some((Kind::Tcp, false)));
        assert_eq!(kind(&frame, 6, 9, 0x14), None);
        frame[29] = 32;
        assert_eq!(kind(&frame, 17, 0, 0), None);
        let mut frame = vec![0; IPV4_AT + IPV6_BYTES + 20];
        frame[12..14].copy_from_slice(&IPV6);
        frame[22..24].copy_from_slice(&[0xfd, 0x10]);
        frame[37] = 0x31;
        assert_eq!(kind(&frame, 58, ECHO_REPLY6, 0), Some((Kind::Icmp, true)));
        assert_eq!(kind(&frame, 58, 135, 0), None);
        assert_eq!(parse(&frame[..30], &guest), None);
    }
}
