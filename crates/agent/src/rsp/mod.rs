//! RSP on the wire: sockets, keys, and what both roles need to speak it
//! (`api/rsp.md`). What is said is for the roles to know; here messages become
//! datagrams and back.

mod batch;
mod edge;
mod events;
mod keys;
mod socket;
mod stats;
mod way;

pub use batch::{Admission, Batch};
pub use edge::{Edge, EdgeConfig, Received};
pub use events::{AsyncRing, Events};
pub use keys::{KeyBook, Keys, Trust};
pub use stats::{Kind, RspStats, Unsent};

use std::time::{SystemTime, UNIX_EPOCH};

/// The wall clock as RSP has it: milliseconds since 1970.
#[must_use]
pub fn wall_clock_ms() -> u64 {
    // A clock before 1970 is wrong by more than any receiver forgives.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
