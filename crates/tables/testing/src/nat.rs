//! Source NAT in this process: packets, by the C code of `nat.h`.

use super::bound::{self, NAT_OP_IN, NAT_OP_INSTALL, NAT_OP_OUT, sluice_nat_tables};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};
use std::ptr::NonNull;

pub use super::bound::{
    NAT_BEGUN, NAT_BLOCKS, NAT_BUSY, NAT_ELSEWHERE, NAT_EXHAUSTED, NAT_FULL, NAT_MISS, NAT_NO_ADDRESS,
    NAT_NO_SESSION, NAT_PROTOCOL, NAT_SESSIONS, NAT_TAKEN, NAT_TRANSLATED, NAT_VPC_SESSIONS, nat_pool,
    nat_test,
};

/// `flags` of a pool: packets from any remote endpoint to a mapped port begin a session.
pub const ANY_REMOTE: u8 = bound::NAT_ANY_REMOTE as u8;

/// `flags` of a pool: sessions that begin share ports (endpoint-dependent mapping).
pub const SHARES_PORTS: u8 = bound::NAT_SHARES_PORTS as u8;

/// In `vni` of a packet: the inside address is of IPv6 (NAT64).
pub const INSIDE_IPV6: u32 = 1 << 24;

/// `flags` of a packet: nothing changes.
pub const PEEK: u32 = 1;
/// `flags` of a packet: it is an ICMP query.
pub const QUERY: u32 = 2;

/// `flags` of a session to install: the owner of the NAT gateway's vIP says so.
pub const OF_OWNER: u32 = 4;
/// `flags` of a session to install: its state is added to that of a session that exists.
pub const ADDS_STATE: u32 = 8;
/// `state` of a session to install: the remote endpoint sent the first packet.
pub const COPY_OF_REMOTE: u32 = bound::NAT_COPY_OF_REMOTE;
/// `state` of a session to install: its outside port is shared.
pub const COPY_OF_SHARED: u32 = bound::NAT_COPY_OF_SHARED;

/// Size of a packet for `bpf/nat_test.bpf.c`.
pub const PACKET_BYTES: usize = size_of::<nat_test>();

const _: () = assert!(PACKET_BYTES == 120, "struct nat_test has padding, or has changed: adapt this number");

/// The pool of a VPC that has these numbers, at most 16, without other settings.
///
/// # Panics
/// If there are more.
#[must_use]
pub fn pool_of(numbers: &[u16]) -> nat_pool {
    let mut pool = nat_pool { addresses: numbers.len() as u8, ..Default::default() };
    pool.address[..numbers.len()].copy_from_slice(numbers);
    pool
}

/// A packet of a VM of a VPC. It has no pool yet. With an inside address of IPv6 it is one of NAT64.
///
/// # Panics
/// If bits 64 to 95 of an address of IPv6 are not 0.
#[must_use]
pub fn outgoing(vni: u32, protocol: u8, inside: impl Into<SocketAddr>, remote: SocketAddrV4) -> nat_test {
    let inside = inside.into();
    let (family, high, low) = match inside.ip() {
        IpAddr::V4(inside) => (0, 0, inside.into()),
        IpAddr::V6(inside) => {
            let bits = u128::from(inside);
            (INSIDE_IPV6, (bits >> 64) as u64, u32::try_from(bits as u64).expect("bits 64 to 95 are 0"))
        }
    };
    nat_test {
        op: NAT_OP_OUT,
        vni: vni | family,
        inside: low,
        inside_high: high,
        inside_port: inside.port(),
        remote: (*remote.ip()).into(),
        remote_port: remote.port(),
        protocol,
        ..Default::default()
    }
}

/// A packet from the Internet to a port of the public address with this number, which a VPC has. It has no pool yet.
#[must_use]
pub fn incoming(
    vni: u32,
    address: u32,
    protocol: u8,
    outside: SocketAddrV4,
    remote: SocketAddrV4,
) -> nat_test {
    nat_test {
        op: NAT_OP_IN,
        vni,
        address,
        outside: (*outside.ip()).into(),
        outside_port: outside.port(),
        remote: (*remote.ip()).into(),
        remote_port: remote.port(),
        protocol,
        ..Default::default()
    }
}

/// A session that another gateway describes, with the public address of this number.
#[must_use]
pub fn installed(
    vni: u32,
    protocol: u8,
    (inside, remote): (impl Into<SocketAddr>, SocketAddrV4),
    (address, outside_port): (u32, u16),
) -> nat_test {
    nat_test { op: NAT_OP_INSTALL, address, outside_port, ..outgoing(vni, protocol, inside, remote) }
}

/// The outside endpoint of a packet that was answered.
#[must_use]
pub fn outside_of(packet: &nat_test) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from(packet.outside), packet.outside_port)
}

/// The inside endpoint of a packet that was answered.
#[must_use]
pub fn inside_of(packet: &nat_test) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from(packet.inside), packet.inside_port)
}

/// The inside endpoint of a packet of NAT64 that was answered.
///
/// # Panics
/// If it is one of IPv4.
#[must_use]
pub fn inside64_of(packet: &nat_test) -> SocketAddr {
    assert_ne!(packet.vni & INSIDE_IPV6, 0, "{packet:?}");
    let address = u128::from(packet.inside_high) << 64 | u128::from(packet.inside);
    (Ipv6Addr::from(address), packet.inside_port).into()
}

/// The packet as bytes.
#[must_use]
pub fn to_bytes(packet: &nat_test) -> Vec<u8> {
    let from: *const nat_test = packet;
    // SAFETY: the slice covers the borrowed structure, which consists of integers without padding (its size is asserted above),
    // so that all its bytes are initialized.
    unsafe { std::slice::from_raw_parts(from.cast::<u8>(), PACKET_BYTES) }.to_vec()
}

/// The inverse of [`to_bytes`].
///
/// # Panics
/// If the number of bytes is not [`PACKET_BYTES`].
#[must_use]
pub fn from_bytes(bytes: &[u8]) -> nat_test {
    assert_eq!(bytes.len(), PACKET_BYTES);
    // SAFETY: the slice is as long as the structure, which is valid for all bit patterns; the read needs no alignment.
    unsafe { bytes.as_ptr().cast::<nat_test>().read_unaligned() }
}

unsafe extern "C-unwind" {
    fn sluice_nat_run(tables: *const sluice_nat_tables, test: *mut nat_test);
}

/// Tables in this process's memory. All packets of a thread must be on the same tables.
#[derive(Clone, Copy, Debug)]
pub struct HostNat(sluice_nat_tables);

// SAFETY: the caller of `new` promises that the memory is valid and accessed only atomically, in whichever thread.
unsafe impl Send for HostNat {}
// SAFETY: as for Send.
unsafe impl Sync for HostNat {}

/// Memory of an array: its first byte and its number of elements.
pub type Elements = (NonNull<u8>, usize);

impl HostNat {
    /// Uses these maps of `nat_maps.h`: `nat_config`, `nat_groups`, `nat_ports`, `nat_tuples`, `session_config`,
    /// `sessions4`, `sessions6`.
    ///
    /// # Safety
    /// - Each points to that many elements, aligned to 64 bytes, readable and writable; the configurations to one.
    /// - What the configurations say about the sizes of the tables is right, or 0.
    /// - The memory stays valid as long as [`HostNat::run`] is called on the value or a copy.
    /// - All other accesses to it meanwhile are atomic.
    #[must_use]
    pub unsafe fn new(
        config: NonNull<u8>,
        groups: Elements,
        cells: Elements,
        tuples: Elements,
        sessions: NonNull<u8>,
        [buckets, buckets6]: [Elements; 2],
    ) -> Self {
        Self(sluice_nat_tables {
            config: config.as_ptr().cast::<bound::nat_config>(),
            groups: groups.0.as_ptr().cast::<bound::nat_group>(),
            cells: cells.0.as_ptr().cast::<bound::nat_ports>(),
            tuples: tuples.0.as_ptr().cast::<bound::nat_tuples>(),
            sessions: sessions.as_ptr().cast::<bound::session_config>(),
            buckets: buckets.0.as_ptr().cast::<bound::session_bucket4>(),
            group_count: groups.1,
            cell_count: cells.1,
            tuple_count: tuples.1,
            bucket_count: buckets.1,
            buckets6: buckets6.0.as_ptr().cast::<bound::session_bucket6>(),
            bucket6_count: buckets6.1,
        })
    }

    /// Runs a packet and stores the answer in it.
    pub fn run(&self, packet: &mut nat_test) {
        // SAFETY: the caller of `new` promised that the memory is valid, long enough and accessed atomically. The function keeps
        // no pointer after it returns, and the packet is borrowed for the call.
        unsafe { sluice_nat_run(&raw const self.0, packet) };
    }
}
