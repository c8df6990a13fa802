//! For tests only: runs the C code of packet programs on session tables and source NAT ([`nat`]) in this process. [`session_test`]
//! describes one operation, for this code and for the eBPF program of the same tests.

pub mod nat;

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

/// Size of an operation in a packet for `bpf/sessions_test.bpf.c`.
pub const OPERATION_BYTES: usize = size_of::<session_test>();

/// TCP flags.
pub mod tcp {
    #![allow(missing_docs)]
    pub const FIN: u8 = 1;
    pub const SYN: u8 = 2;
    pub const RST: u8 = 4;
    pub const ACK: u8 = 16;
}

/// The operation of a packet from `source` to `destination`, which have the same family.
#[must_use]
pub fn operation(op: u32, scope: u32, protocol: u8, [source, destination]: [SocketAddr; 2]) -> session_test {
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
        scope,
        protocol,
        ..Default::default()
    }
}

/// The operation as bytes of a packet.
#[must_use]
pub fn to_bytes(test: &session_test) -> Vec<u8> {
    let from: *const session_test = test;
    // SAFETY: the slice covers the borrowed structure, which consists of integers without padding (its size
    // is asserted below), so that all its bytes are initialized.
    unsafe { std::slice::from_raw_parts(from.cast::<u8>(), OPERATION_BYTES) }.to_vec()
}

/// The inverse of [`to_bytes`].
///
/// # Panics
/// If the number of bytes is not [`OPERATION_BYTES`].
#[must_use]
pub fn from_bytes(bytes: &[u8]) -> session_test {
    assert_eq!(bytes.len(), OPERATION_BYTES);
    // SAFETY: the slice is as long as the structure, which is valid for all bit patterns; the read needs no
    // alignment.
    unsafe { bytes.as_ptr().cast::<session_test>().read_unaligned() }
}

const _: () =
    assert!(OPERATION_BYTES == 176, "struct session_test has padding, or has changed: adapt this number");

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

thread_local!(static HOOK: Cell<Option<fn()>> = const { Cell::new(None) });

/// Sets the function that the C code calls, in this thread, before each access to the tables.
pub fn set_hook(hook: Option<fn()>) {
    HOOK.set(hook);
}

#[unsafe(no_mangle)]
extern "C-unwind" fn sluice_before_access() {
    if let Some(hook) = HOOK.get() {
        hook();
    }
}

/// Session tables in this process's memory. All operations of a thread must be on the same tables.
#[derive(Clone, Copy, Debug)]
pub struct HostTables {
    config: NonNull<u8>,
    buckets: [(NonNull<u8>, usize); 2],
}

// SAFETY: the caller of `new` promises that the memory is valid and accessed only atomically, in whichever
// thread.
unsafe impl Send for HostTables {}
// SAFETY: as for Send.
unsafe impl Sync for HostTables {}

impl HostTables {
    /// Uses the configuration at `config`, and the tables of IPv4 and IPv6: the first bucket and the number
    /// of buckets of each.
    ///
    /// # Safety
    /// - `config` points to a `struct session_config`, and each table to that many buckets
    ///   (`session_layout.h`), aligned to 8 bytes, readable and writable.
    /// - `session_config.buckets4` and `buckets6` are at most these numbers of buckets, or 0.
    /// - The memory stays valid as long as [`HostTables::run`] is called on the value or a copy.
    /// - All other accesses to it meanwhile are atomic.
    #[must_use]
    pub unsafe fn new(config: NonNull<u8>, buckets: [(NonNull<u8>, usize); 2]) -> Self {
        Self { config, buckets }
    }

    /// Runs the operation and stores the answer in it.
    pub fn run(&self, test: &mut session_test) {
        let [(buckets4, count4), (buckets6, count6)] = self.buckets;
        // SAFETY: the caller of `new` promised that the memory is valid, long enough and accessed atomically.
        // The function keeps no pointer after it returns, and the operation is borrowed for the call.
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
