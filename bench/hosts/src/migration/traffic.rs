//! What a peer sends to a VM that moves, and what it gets back; and what the VM itself can send meanwhile. It changes with the
//! traffic under which VMs move.

use super::capture::{Answer, Capture};
use super::client::{Talked, talk};
use super::{ECHO, SERVED};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use sluice_bench_report::shell::Failure;
use sluice_bench_spine::vswitch::namespace::Namespace;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

/// Where the peer gets what the VM sends of its own. Nothing reads it.
const SINK: u16 = 7690;
/// How often it is tried whether the VM can send.
const TRIED_EVERY: Duration = Duration::from_micros(500);
/// Echo requests: type, code, checksum, identifier, number and eight bytes.
const PING_BYTES: usize = 16;
const ECHO_REQUEST: u8 = 8;
const ECHO_REQUEST6: u8 = 128;

/// The traffic of a move.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Namespace of the peer.
    pub peer: PathBuf,
    /// Addresses of the VM.
    pub targets: Vec<IpAddr>,
    /// Between two packets of each kind and family.
    pub interval: Duration,
    /// After this time without an answer, the application connects again.
    pub patience: Duration,
}

/// Packets of all kinds and families, until they are ended.
pub struct Traffic {
    end: Arc<AtomicBool>,
    capture: Capture,
    senders: Vec<JoinHandle<()>>,
    talks: Vec<(bool, JoinHandle<Result<Talked, Failure>>)>,
}

/// What the peer saw.
pub struct Seen {
    /// All answers of the VM.
    pub answers: Vec<Answer>,
    /// The applications, and whether each uses IPv6.
    pub talks: Vec<(bool, Talked)>,
}

impl Traffic {
    /// Begins to send.
    pub fn begin(plan: &Plan) -> Result<Self, Failure> {
        let Plan { peer, targets, interval, patience } = plan.clone();
        let end = Arc::new(AtomicBool::new(false));
        let capture = Capture::start(&peer, targets.clone())?;
        let (mut senders, mut talks) = (Vec::new(), Vec::new());
        for target in targets {
            let datagrams = udp(&peer, target.is_ipv6(), SocketAddr::new(target, ECHO))?;
            let pings = icmp(&peer, target)?;
            for (socket, packet) in [(datagrams, vec![0; PING_BYTES]), (pings, ping(target.is_ipv6()))] {
                let ended = end.clone();
                senders.push(spawn(move || {
                    while !ended.load(Ordering::Relaxed) {
                        // The error is an ICMP error for an earlier packet.
                        let _ = socket.send(&packet);
                        sleep(interval);
                    }
                }));
            }
            let (ended, peer) = (end.clone(), peer.clone());
            let at = SocketAddr::new(target, SERVED);
            let work = move || Namespace::open(&peer)?.within(|| talk(at, interval, patience, &ended));
            talks.push((target.is_ipv6(), spawn(work)));
        }
        Ok(Self { end, capture, senders, talks })
    }

    /// Ends all.
    pub fn end(self) -> Result<Seen, Failure> {
        // Before the applications end their connections.
        let answers = self.capture.answers()?;
        self.end.store(true, Ordering::Relaxed);
        for sender in self.senders {
            sender.join().map_err(|_| "a sender panicked")?;
        }
        let joined = self.talks.into_iter().map(|(ipv6, talk)| {
            let talked = talk.join().map_err(|_| Failure::from("an application panicked"))?;
            Ok((ipv6, talked?))
        });
        Ok(Seen { answers, talks: joined.collect::<Result<_, Failure>>()? })
    }
}

fn udp(namespace: &Path, ipv6: bool, to: SocketAddr) -> Result<UdpSocket, Failure> {
    Namespace::open(namespace)?.within(|| {
        let socket = UdpSocket::bind((any(ipv6), 0))?;
        socket.connect(to)?;
        Ok(socket)
    })
}

fn any(ipv6: bool) -> IpAddr {
    if ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

/// A raw socket that sends pings.
fn icmp(namespace: &Path, target: IpAddr) -> Result<UdpSocket, Failure> {
    let (family, protocol) = match target {
        IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp),
        IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6),
    };
    Namespace::open(namespace)?.within(|| {
        // The standard library has no other type for a socket of datagrams.
        let socket = UdpSocket::from(socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?);
        socket.connect(SocketAddr::new(target, 0))?;
        Ok(socket)
    })
}

/// An echo request. The kernel computes the checksum of ICMPv6.
fn ping(ipv6: bool) -> Vec<u8> {
    let mut packet = vec![0; PING_BYTES];
    packet[0] = if ipv6 { ECHO_REQUEST6 } else { ECHO_REQUEST };
    packet[5] = 1;
    if !ipv6 {
        let sum: u32 = packet.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
        packet[2..4].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    }
    packet
}

/// For how long a VM cannot send, by whether that is IPv6.
pub type PauseByFamily = Vec<(bool, Duration)>;

/// Watches for how long a VM that is a namespace cannot send, because it has no link, no address or no route.
pub struct Pauses {
    end: Arc<AtomicBool>,
    watches: Vec<(bool, JoinHandle<Duration>)>,
    _sinks: Vec<UdpSocket>,
}

impl Pauses {
    /// Begins to watch a VM, which sends to a peer with these addresses.
    pub fn watch(vm: &Path, peer: &Path, addresses: &[IpAddr]) -> Result<Self, Failure> {
        let end = Arc::new(AtomicBool::new(false));
        let (mut watches, mut sinks) = (Vec::new(), Vec::new());
        for address in addresses {
            let at = SocketAddr::new(*address, SINK);
            sinks.push(Namespace::open(peer)?.within(|| Ok(UdpSocket::bind(at)?))?);
            let (socket, ended) = (udp(vm, address.is_ipv6(), at)?, end.clone());
            watches.push((address.is_ipv6(), spawn(move || longest_pause(&socket, &ended))));
        }
        Ok(Self { end, watches, _sinks: sinks })
    }

    /// The longest pause of a family, for each.
    pub fn end(self) -> Result<PauseByFamily, Failure> {
        self.end.store(true, Ordering::Relaxed);
        let joined = self.watches.into_iter().map(|(ipv6, watch)| {
            Ok((ipv6, watch.join().map_err(|_| Failure::from("the watch of a pause panicked"))?))
        });
        joined.collect()
    }
}

/// From the first datagram that could not be sent to the next one that could.
fn longest_pause(socket: &UdpSocket, end: &AtomicBool) -> Duration {
    let (mut begun, mut longest) = (None, Duration::ZERO);
    while !end.load(Ordering::Relaxed) {
        match (socket.send(&[0]), begun) {
            (Err(_), None) => begun = Some(Instant::now()),
            (Ok(_), Some(since)) => {
                longest = longest.max(Instant::now().duration_since(since));
                begun = None;
            }
            _ => {}
        }
        sleep(TRIED_EVERY);
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches pings that a receiver drops because of their checksum.
    #[test]
    fn pings_have_the_checksum_of_their_words() {
        let packet = ping(false);
        let sum: u32 = packet.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        assert_eq!(ping(true)[..4], [ECHO_REQUEST6, 0, 0, 0]);
    }
}
