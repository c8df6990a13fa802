//! For tests only: the C that packet programs use on the session tables, run in
//! a process, and the structure by which a test tells it, or an eBPF program,
//! what to do.

use std::cell::Cell;
use std::ffi::c_void;
use std::net::{IpAddr, SocketAddr};
use std::ptr::NonNull;

mod bound {
    #![allow(missing_docs, non_camel_case_types, non_upper_case_globals, clippy::all)]
    include!(concat!(env!("OUT_DIR"), "/test.rs"));
}

pub use bound::{
    SESSION_BUSY, SESSION_CREATED, SESSION_FULL, SESSION_GONE, SESSION_HIT, SESSION_MISS, SESSION_OP_CREATE,
    SESSION_OP_END, SESSION_OP_FIND, SESSION_OP_PACKET, SESSION_OP_TOUCH, session_test,
};

/// Length of an operation in a "packet" of `bpf/sessions_test.bpf.c`.
pub const OPERATION_BYTES: usize = size_of::<session_test>();

/// TCP flags.
pub mod tcp {
    #![allow(missing_docs)]
    pub const FIN: u8 = 1;
    pub const SYN: u8 = 2;
    pub const RST: u8 = 4;
    pub const ACK: u8 = 16;
}

/// An operation on behalf of a packet from `source` to `destination`, of the same family.
#[must_use]
pub fn operation(op: u32, vni: u32, protocol: u8, [source, destination]: [SocketAddr; 2]) -> session_test {
    let halves = |address: IpAddr| match address {
        IpAddr::V4(v4) => [0, u64::from(u32::from(v4))],
        IpAddr::V6(v6) => [(u128::from(v6) >> 64) as u64, u128::from(v6) as u64],
    };
    session_test {
        op,
        family: if source.is_ipv4() { 4 } else { 6 },
        source: halves(source.ip()),
        destination: halves(destination.ip()),
        source_port: source.port(),
        destination_port: destination.port(),
        vni,
        protocol,
        ..Default::default()
    }
}

/// The operation as a part of a "packet".
#[must_use]
pub fn to_bytes(test: &session_test) -> Vec<u8> {
    let from: *const session_test = test;
    // SAFETY: a borrowed structure of integers without padding (asserted below), read as bytes.
    unsafe { std::slice::from_raw_parts(from.cast::<u8>(), OPERATION_BYTES) }.to_vec()
}

/// The answered operation.
///
/// # Panics
/// If the length is another.
#[must_use]
pub fn from_bytes(bytes: &[u8]) -> session_test {
    assert_eq!(bytes.len(), OPERATION_BYTES);
    // SAFETY: as long as the structure, which is valid for all bit patterns; the read is unaligned-safe.
    unsafe { bytes.as_ptr().cast::<session_test>().read_unaligned() }
}

const _: () = assert!(OPERATION_BYTES == 176, "sessions_test.h has padding, or this number is old");

unsafe extern "C-unwind" {
    fn sluice_sessions_run(
        config: *mut c_void,
        buckets4: *mut c_void,
        count4: usize,
        buckets6: *mut c_void,
        count6: usize,
        test: *mut session_test,
    );
}

thread_local!(static POINT: Cell<Option<fn()>> = const { Cell::new(None) });

/// A function that is called, in this thread, before each access to the tables.
pub fn set_point(point: Option<fn()>) {
    POINT.set(point);
}

#[unsafe(no_mangle)]
extern "C-unwind" fn sluice_point() {
    if let Some(point) = POINT.get() {
        point();
    }
}

/// Tables in this process's memory. All operations of a thread are on the same ones.
#[derive(Clone, Copy, Debug)]
pub struct HostTables {
    config: NonNull<u8>,
    buckets: [(NonNull<u8>, usize); 2],
}

// SAFETY: addresses of memory that threads may share, as `new` demands.
unsafe impl Send for HostTables {}
// SAFETY: as above.
unsafe impl Sync for HostTables {}

impl HostTables {
    /// Configuration, and buckets and their numbers for IPv4 and IPv6.
    ///
    /// # Safety
    /// The memory must be laid out as `session_layout.h` says, be that long,
    /// stay while `run` is called, and be accessed by others atomically only.
    #[must_use]
    pub unsafe fn new(config: NonNull<u8>, buckets: [(NonNull<u8>, usize); 2]) -> Self {
        Self { config, buckets }
    }

    /// Does what the operation says and writes the answer into it.
    pub fn run(&self, test: &mut session_test) {
        let [(buckets4, count4), (buckets6, count6)] = self.buckets;
        // SAFETY: `new` was told that the memory is right; the function keeps no pointer, and the
        // operation is borrowed for the call.
        unsafe {
            sluice_sessions_run(
                self.config.as_ptr().cast(),
                buckets4.as_ptr().cast(),
                count4,
                buckets6.as_ptr().cast(),
                count6,
                test,
            );
        }
    }
}
