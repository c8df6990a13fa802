//! Packet sockets: they send whole Ethernet frames, and receive replies of address resolution, or what one sender sends.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::Error;

/// A packet socket (`AF_PACKET`). It never blocks.
#[derive(Debug)]
pub struct PacketSocket(OwnedFd);

/// The replies of address resolution that a socket receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkReply {
    /// ARP replies (RFC 826).
    Arp,
    /// Neighbor advertisements (RFC 4861) without IPv6 extension headers.
    NeighborAdvertisement,
}

const ETH_P_ARP: u16 = 0x0806;
const ETH_P_IPV6: u16 = 0x86dd;
/// All protocols (if_ether.h).
const ETH_P_ALL: u16 = 3;
/// Options of a packet socket (if_packet.h).
const PACKET_VNET_HDR: libc::c_int = 15;
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
/// Size of the receive buffer of a tap: the replies of some thousand VMs.
const TAP_BUFFER_BYTES: libc::c_int = 4 << 20;

/// An instruction of a socket filter (classic BPF).
const fn op(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const LOAD_HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
const JUMP_IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
/// Offsets in the frame: the source MAC, in two parts, the type of Ethernet, the operation of ARP, the next header of IPv6, the type
/// of ICMPv6.
const SOURCE_MAC: u32 = 6;
const SOURCE_MAC_END: u32 = 10;
const ETHERTYPE: u32 = 12;
const ARP_OPERATION: u32 = 20;
const NEXT_HEADER: u32 = 20;
const ICMP_TYPE: u32 = 54;

const ARP_REPLIES: [libc::sock_filter; 4] = [
    op(LOAD_HALF, 0, 0, ARP_OPERATION),
    op(JUMP_IF_EQUAL, 0, 1, 2),
    op(RETURN, 0, 0, 0xffff),
    op(RETURN, 0, 0, 0),
];
const ADVERTISEMENTS: [libc::sock_filter; 6] = [
    op(LOAD_BYTE, 0, 0, NEXT_HEADER),
    op(JUMP_IF_EQUAL, 0, 3, 58),
    op(LOAD_BYTE, 0, 0, ICMP_TYPE),
    op(JUMP_IF_EQUAL, 0, 1, 136),
    op(RETURN, 0, 0, 0xffff),
    op(RETURN, 0, 0, 0),
];

/// Both kinds of replies, in frames of all protocols.
const REPLIES: [libc::sock_filter; 11] = [
    op(LOAD_HALF, 0, 0, ETHERTYPE),
    op(JUMP_IF_EQUAL, 0, 2, ETH_P_ARP as u32),
    op(LOAD_HALF, 0, 0, ARP_OPERATION),
    op(JUMP_IF_EQUAL, 5, 6, 2),
    op(JUMP_IF_EQUAL, 0, 5, ETH_P_IPV6 as u32),
    op(LOAD_BYTE, 0, 0, NEXT_HEADER),
    op(JUMP_IF_EQUAL, 0, 3, 58),
    op(LOAD_BYTE, 0, 0, ICMP_TYPE),
    op(JUMP_IF_EQUAL, 0, 1, 136),
    op(RETURN, 0, 0, 0xffff),
    op(RETURN, 0, 0, 0),
];

impl PacketSocket {
    /// Opens a socket that receives nothing.
    ///
    /// # Errors
    /// If the process lacks CAP_NET_RAW.
    pub fn open() -> Result<Self, Error> {
        Self::without_protocol()
    }

    /// Opens a socket that receives nothing, and sends frames behind a `struct virtio_net_hdr`, which says what is left
    /// to the interface: a checksum, or segmentation of a frame that may then exceed the MTU.
    ///
    /// # Errors
    /// If the process lacks CAP_NET_RAW.
    pub fn open_with_offload() -> Result<Self, Error> {
        let socket = Self::without_protocol()?;
        socket.turn_on(PACKET_VNET_HDR, "let a packet socket leave work to its interface")?;
        Ok(socket)
    }

    /// Opens a socket that receives the replies of address resolution that an interface receives, before programs of
    /// traffic control see and may drop them. Index 0: of all interfaces. While it is open, every received packet passes a
    /// filter.
    ///
    /// # Errors
    /// If the process lacks CAP_NET_RAW, or the interface was deleted.
    pub fn tap(ifindex: u32) -> Result<Self, Error> {
        let socket = Self::tap_filtered()?;
        // Without the privilege the system's limit applies.
        let _ = socket.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, TAP_BUFFER_BYTES, "size a packet socket");
        socket.bind(ETH_P_ALL, ifindex)?;
        Ok(socket)
    }

    /// Like [`PacketSocket::tap`], for one interface, whose VM is asked all the time: it has a buffer of the usual size.
    ///
    /// # Errors
    /// As [`PacketSocket::tap`].
    pub fn tap_port(ifindex: u32) -> Result<Self, Error> {
        let socket = Self::tap_filtered()?;
        socket.bind(ETH_P_ALL, ifindex)?;
        Ok(socket)
    }

    fn tap_filtered() -> Result<Self, Error> {
        let socket = Self::without_protocol()?;
        socket.attach(&REPLIES)?;
        // Otherwise every packet that is sent would be copied for the filter.
        socket.turn_on(PACKET_IGNORE_OUTGOING, "let a packet socket ignore what is sent")?;
        Ok(socket)
    }

    /// Opens a socket that receives these replies from all interfaces.
    ///
    /// # Errors
    /// If the process lacks CAP_NET_RAW.
    pub fn listen(replies: LinkReply) -> Result<Self, Error> {
        let (protocol, filter): (u16, &[libc::sock_filter]) = match replies {
            LinkReply::Arp => (ETH_P_ARP, &ARP_REPLIES),
            LinkReply::NeighborAdvertisement => (ETH_P_IPV6, &ADVERTISEMENTS),
        };
        // The filter comes before the protocol, so that the kernel queues no other frame.
        let socket = Self::without_protocol()?;
        socket.attach(filter)?;
        socket.bind(protocol, 0)?;
        Ok(socket)
    }

    /// Opens a socket that receives the frames with this source MAC on one interface, also those that a program drops behind
    /// it: the programs of TC run later.
    ///
    /// # Errors
    /// If the process lacks CAP_NET_RAW, or the interface was deleted.
    pub fn watch(ifindex: u32, source: [u8; 6]) -> Result<Self, Error> {
        let [a, b, c, d, e, f] = source;
        let filter = [
            op(LOAD_WORD, 0, 0, SOURCE_MAC),
            op(JUMP_IF_EQUAL, 0, 3, u32::from_be_bytes([a, b, c, d])),
            op(LOAD_HALF, 0, 0, SOURCE_MAC_END),
            op(JUMP_IF_EQUAL, 0, 1, u32::from_be_bytes([0, 0, e, f])),
            op(RETURN, 0, 0, 0xffff),
            op(RETURN, 0, 0, 0),
        ];
        let socket = Self::without_protocol()?;
        socket.attach(&filter)?;
        // What this host sends to the interface comes from no guest, whatever its source.
        socket.turn_on(PACKET_IGNORE_OUTGOING, "let a packet socket ignore what is sent")?;
        socket.bind(ETH_P_ALL, ifindex)?;
        Ok(socket)
    }

    /// Begins to receive frames of a protocol; index 0: of all interfaces.
    fn bind(&self, protocol: u16, ifindex: u32) -> Result<(), Error> {
        let mut address = link_address(ifindex);
        address.sll_protocol = protocol.to_be();
        // SAFETY: `address` is readable for the length given, and outlives the call.
        let bound = unsafe {
            libc::bind(
                self.0.as_raw_fd(),
                (&raw const address).cast(),
                mem::size_of_val(&address) as libc::socklen_t,
            )
        };
        if bound < 0 { Err(Error::last("bind a packet socket")) } else { Ok(()) }
    }

    /// Turns an option of packet sockets on. `operation` is for the error.
    fn turn_on(&self, option: libc::c_int, operation: &'static str) -> Result<(), Error> {
        self.set(libc::SOL_PACKET, option, 1, operation)
    }

    /// Sets an option that is a number. `operation` is for the error.
    fn set(
        &self,
        level: libc::c_int,
        option: libc::c_int,
        value: libc::c_int,
        operation: &'static str,
    ) -> Result<(), Error> {
        // SAFETY: `value` is readable for the length given, and outlives the call.
        let set = unsafe {
            libc::setsockopt(
                self.0.as_raw_fd(),
                level,
                option,
                (&raw const value).cast(),
                mem::size_of_val(&value) as libc::socklen_t,
            )
        };
        if set < 0 { Err(Error::last(operation)) } else { Ok(()) }
    }

    /// Opens a socket of protocol 0, to which the kernel never queues a frame.
    fn without_protocol() -> Result<Self, Error> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: the call takes integers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if fd < 0 {
            return Err(Error::last("open a packet socket"));
        }
        // SAFETY: the call returned a new descriptor that nothing else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn attach(&self, filter: &[libc::sock_filter]) -> Result<(), Error> {
        let program =
            libc::sock_fprog { len: filter.len() as libc::c_ushort, filter: filter.as_ptr().cast_mut() };
        // SAFETY: the kernel only reads `program` and its instructions, and both outlive the call.
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
            return Err(Error::last("attach a filter to a packet socket"));
        }
        Ok(())
    }

    /// Sends a frame with its Ethernet header on the interface with this index.
    ///
    /// # Errors
    /// If the interface is down or was deleted, if its queue is full, or if the frame exceeds its MTU.
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
            return Err(Error::last("send a frame"));
        }
        Ok(())
    }

    /// Receives a frame, truncated to the length of the buffer, with the index of its interface. Returns `None` if
    /// no frame is queued.
    ///
    /// # Errors
    /// If an interface went down. The socket stays usable.
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
                _ => Err(Error { operation: "receive a frame", source: error }),
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

impl AsRawFd for PacketSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

fn link_address(ifindex: u32) -> libc::sockaddr_ll {
    // SAFETY: the structure consists of integers, for which zero is valid.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_ifindex = i32::try_from(ifindex).unwrap_or(0);
    address
}
