//! RSP on the wire (`api/rsp.md`), for both roles: sockets, keys, batching and counters. Which messages are
//! sent is decided by the roles; here messages become datagrams and back.

mod batcher;
mod key_store;
mod path_mtu;
pub(crate) mod socket;
mod stats;
mod transport;

pub use batcher::{Admission, Batcher};
pub use key_store::{KeyKind, KeyStore, Keys};
pub use socket::{Datagram, Socket};
pub use stats::{MessageKind, RspStats, Unsent};
pub use transport::{Received, RspTransport, TransportConfig};

use std::time::{SystemTime, UNIX_EPOCH};

/// The wall clock that RSP uses: milliseconds since 1970.
#[must_use]
pub fn wall_clock_ms() -> u64 {
    // A clock before 1970 differs from any receiver's by more than the tolerance.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
