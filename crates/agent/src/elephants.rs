//! From which rate on a flow is an elephant, as both roles count it. This changes with the unit of thresholds.

use std::time::Duration;

use sluice_southbound::{ELEPHANT_DEFAULT, ELEPHANT_NEVER};
use sluice_tables::Vrf;

/// Bytes of a flow of this rate, in kbit/s, in a period of whole milliseconds.
#[must_use]
pub const fn flow_bytes(kbps: u32, period: Duration) -> u64 {
    kbps as u64 * period.as_millis() as u64 / 8
}

/// The threshold of a network in bytes per period, of what the controller has sent. `None`: the default.
#[must_use]
pub fn elephant_bytes(kbps: u32, period: Duration) -> Option<u32> {
    const NEVER: u32 = Vrf::NEVER_ELEPHANTS;
    match kbps {
        ELEPHANT_DEFAULT => None,
        ELEPHANT_NEVER => Some(NEVER),
        kbps => Some(u32::try_from(flow_bytes(kbps, period)).map_or(NEVER - 1, |bytes| bytes.min(NEVER - 1))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_bytes_of_a_period() {
        let period = Duration::from_millis(250);
        assert_eq!(elephant_bytes(ELEPHANT_DEFAULT, period), None);
        assert_eq!(elephant_bytes(1, period), Some(31));
        assert_eq!(elephant_bytes(8_000, period), Some(250_000));
        assert_eq!(elephant_bytes(8_000, Duration::from_secs(1)), Some(1_000_000));
        assert_eq!(elephant_bytes(ELEPHANT_NEVER, period), Some(Vrf::NEVER_ELEPHANTS));
        assert_eq!(elephant_bytes(ELEPHANT_NEVER - 1, period), Some(Vrf::NEVER_ELEPHANTS - 1));
    }
}
