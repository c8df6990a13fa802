//! The wall clock, as the database and the API show times.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds of the UNIX epoch.
pub fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
