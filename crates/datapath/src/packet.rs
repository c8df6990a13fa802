//! Whole Ethernet frames: sent for announcements and questions on the underlay,
//! received where the answers are wanted.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::Error;

/// A socket that sends frames; it receives those it was opened for.
#[derive(Debug)]
pub struct PacketSocket(OwnedFd);

/// Answers to questions about the link that a socket can be opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// ARP replies (RFC 826).
    Arp,
    /// Neighbour advertisements (RFC 4861), directly behind an IPv6 header.
    Neighbours,
}

const ETH_P_ARP: u16 = 0x0806;
const ETH_P_IPV6: u16 = 0x86dd;

/// An instruction of the kernel's packet filter (classic BPF).
const fn op(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

const LOAD_HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
const IS: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const GIVE: u32 = libc::BPF_RET | libc::BPF_K;
/// Offsets in the frame: ARP's operation; IPv6's next header, ICMPv6's type.
const ARP_OPERATION: u32 = 20;
const NEXT_HEADER: u32 = 20;
const ICMP_TYPE: u32 = 54;

const ARP_REPLIES: [libc::sock_filter; 4] =
    [op(LOAD_HALF, 0, 0, ARP_OPERATION), op(IS, 0, 1, 2), op(GIVE, 0, 0, 0xffff), op(GIVE, 0, 0, 0)];
const ADVERTISEMENTS: [libc::sock_filter; 6] = [
    op(LOAD_BYTE, 0, 0, NEXT_HEADER),
    op(IS, 0, 3, 58),
    op(LOAD_BYTE, 0, 0, ICMP_TYPE),
    op(IS, 0, 1, 136),
    op(GIVE, 0, 0, 0xffff),
    op(GIVE, 0, 0, 0),
];

impl PacketSocket {
    /// Opens a socket that receives nothing.
    ///
    /// # Errors
    /// Without CAP_NET_RAW.
    pub fn open() -> Result<Self, Error> {
        // Protocol 0: no frame is ever queued to it.
        Self::of(0)
    }

    /// Opens a socket that receives such frames, of all interfaces, and never waits for one.
    ///
    /// # Errors
    /// Without CAP_NET_RAW.
    pub fn listen(answers: Answers) -> Result<Self, Error> {
        let (protocol, filter): (u16, &[libc::sock_filter]) = match answers {
            Answers::Arp => (ETH_P_ARP, &ARP_REPLIES),
            Answers::Neighbours => (ETH_P_IPV6, &ADVERTISEMENTS),
        };
        // Nothing may be queued before the filter is there.
        let socket = Self::of(0)?;
        socket.attach(filter)?;
        let mut address = link_address(0);
        address.sll_protocol = protocol.to_be();
        // SAFETY: `address` is readable for the length given, and outlives the call.
        let bound = unsafe {
            libc::bind(
                socket.0.as_raw_fd(),
                (&raw const address).cast(),
                mem::size_of_val(&address) as libc::socklen_t,
            )
        };
        if bound < 0 {
            return Err(Error::system("bind a packet socket")(io::Error::last_os_error()));
        }
        Ok(socket)
    }

    fn of(protocol: i32) -> Result<Self, Error> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: socket takes three integers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, protocol) };
        if fd < 0 {
            return Err(Error::system("open a packet socket")(io::Error::last_os_error()));
        }
        // SAFETY: the call returned a new descriptor that nothing else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn attach(&self, filter: &[libc::sock_filter]) -> Result<(), Error> {
        let program =
            libc::sock_fprog { len: filter.len() as libc::c_ushort, filter: filter.as_ptr().cast_mut() };
        // SAFETY: the kernel reads `program` and the instructions it points to, both of which outlive
        // the call, and writes to neither.
        let set = unsafe {
            libc::setsockopt(
                self.0.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const program).cast(),
                mem::size_of_val(&program) as libc::socklen_t,
            )
        };
        if set < 0 {
            return Err(Error::system("attach a filter to a packet socket")(io::Error::last_os_error()));
        }
        Ok(())
    }

    /// Sends a frame, Ethernet header included, out of an interface.
    ///
    /// # Errors
    /// If the interface is down or gone, its queue full, or the frame too long for it.
    pub fn send(&self, ifindex: u32, frame: &[u8]) -> Result<(), Error> {
        let address = link_address(ifindex);
        // SAFETY: `frame` and `address` are readable for the lengths given, and outlive the call.
        let sent = unsafe {
            libc::sendto(
                self.0.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const address).cast(),
                mem::size_of_val(&address) as libc::socklen_t,
            )
        };
        if sent < 0 {
            return Err(Error::system("send a frame")(io::Error::last_os_error()));
        }
        Ok(())
    }

    /// The next frame that has come, cut to the buffer's length, and by which interface; `None` if no
    /// frame is waiting.
    ///
    /// # Errors
    /// If an interface went down; the next call may succeed.
    pub fn receive<'a>(&self, buffer: &'a mut [u8]) -> Result<Option<(u32, &'a [u8])>, Error> {
        let mut address = link_address(0);
        let mut length = mem::size_of_val(&address) as libc::socklen_t;
        // SAFETY: `buffer` and `address` are writable for the lengths given, and outlive the call.
        let received = unsafe {
            libc::recvfrom(
                self.0.as_raw_fd(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                0,
                (&raw mut address).cast(),
                &raw mut length,
            )
        };
        let Ok(received) = usize::try_from(received) else {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock => Ok(None),
                _ => Err(Error::system("receive a frame")(error)),
            };
        };
        let ifindex = u32::try_from(address.sll_ifindex).unwrap_or(0);
        Ok(Some((ifindex, buffer.get(..received).unwrap_or_default())))
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn link_address(ifindex: u32) -> libc::sockaddr_ll {
    // SAFETY: the structure is plain integers; zero is valid.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_ifindex = i32::try_from(ifindex).unwrap_or(0);
    address
}
