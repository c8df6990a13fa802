//! Reports of the demand at a gateway, and their encoding: a version byte, then postcard, as for the other messages of a cluster.
//! The order of fields is the encoding, so it must not change within a [`REPORT_VERSION`].

use crate::message::MESSAGE_BYTES_MAX;
use serde::{Deserialize, Serialize};

/// First byte of every report.
pub const REPORT_VERSION: u8 = 1;

/// Meters in one report. One takes 17 bytes at most, so a report fits the smallest MTU of IPv6 together with an envelope.
pub const DEMANDS_MAX: usize = 60;
const _: () = assert!(DEMANDS_MAX * 17 + 2 <= MESSAGE_BYTES_MAX);

/// Largest demand in bytes per second, 35 Tbit/s: more than a gateway receives.
pub const DEMAND_MAX: u64 = (1 << 42) - 1;

/// What was offered to a meter at the sender of a report, whether it passed or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demand {
    /// The controller's identifier of the meter, which is not 0.
    pub id: u32,
    /// Bytes of IP packets in a second, inward and outward, each at most [`DEMAND_MAX`]; 0 in a direction without a limit.
    pub bytes_per_s: [u64; 2],
}

/// A part of the demands at a gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeterReport {
    /// 1 to [`DEMANDS_MAX`] meters, in the order of their identifiers.
    pub demands: Vec<Demand>,
}

/// Reason for which bytes are not a report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// The sender uses another version of the protocol.
    #[error("version {0} of meter reports is not supported, only version {REPORT_VERSION}")]
    Version(u8),
    /// The bytes are not a report that a sender of this version writes.
    #[error("malformed report about meters: {0}")]
    Malformed(String),
}

impl MeterReport {
    /// Distributes demands, in the order of their identifiers, over as many reports as they need.
    pub fn in_parts(demands: &[Demand]) -> Vec<Self> {
        demands.chunks(DEMANDS_MAX).map(|part| Self { demands: part.to_vec() }).collect()
    }

    /// Encodes the report in at most [`MESSAGE_BYTES_MAX`] bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        // Writing integers and sequences to a vector cannot fail.
        postcard::to_extend(self, vec![REPORT_VERSION]).unwrap_or_default()
    }

    /// Decodes a report.
    ///
    /// # Errors
    /// [`ReportError`] for all bytes that [`encode`](Self::encode) would not write.
    pub fn decode(bytes: &[u8]) -> Result<Self, ReportError> {
        let malformed = |reason: &str| ReportError::Malformed(reason.to_owned());
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(malformed("it is too long"));
        }
        let (&version, rest) = bytes.split_first().ok_or_else(|| malformed("it is empty"))?;
        if version != REPORT_VERSION {
            return Err(ReportError::Version(version));
        }
        let report: Self =
            postcard::from_bytes(rest).map_err(|error| ReportError::Malformed(error.to_string()))?;
        if !(1..=DEMANDS_MAX).contains(&report.demands.len()) {
            return Err(malformed("the number of meters is out of range"));
        }
        if report.demands[0].id == 0 || !report.demands.is_sorted_by(|a, b| a.id < b.id) {
            return Err(malformed("an identifier is 0 or out of order"));
        }
        if report.demands.iter().flat_map(|demand| demand.bytes_per_s).any(|demand| demand > DEMAND_MAX) {
            return Err(malformed("a demand is out of range"));
        }
        // postcard also reads integers that are longer than necessary, and bytes behind the last one.
        if report.encode() != bytes { Err(malformed("it is longer than necessary")) } else { Ok(report) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn demand(id: u32, inward: u64, outward: u64) -> Demand {
        Demand { id, bytes_per_s: [inward, outward] }
    }

    #[test]
    fn demands_are_distributed_over_reports_that_fit() {
        let largest = |at: u32| demand(u32::MAX - 200 + at, DEMAND_MAX, DEMAND_MAX);
        let demands: Vec<Demand> = (0..DEMANDS_MAX as u32 * 2 + 1).map(largest).collect();
        let reports = MeterReport::in_parts(&demands);
        assert_eq!(reports.iter().map(|report| report.demands.len()).collect::<Vec<_>>(), [60, 60, 1]);
        for report in &reports {
            let bytes = report.encode();
            assert!(bytes.len() <= MESSAGE_BYTES_MAX, "{} bytes", bytes.len());
            assert_eq!(MeterReport::decode(&bytes).as_ref(), Ok(report));
        }
        assert_eq!(reports.into_iter().flat_map(|report| report.demands).collect::<Vec<_>>(), demands);
        assert!(MeterReport::in_parts(&[]).is_empty());
    }

    /// Gateways of two releases exchange reports during an upgrade.
    #[test]
    fn encoding_does_not_change() {
        let report = MeterReport { demands: vec![demand(3, 0, 300), demand(300, 5, 0)] };
        assert_eq!(report.encode(), [1, 2, 3, 0, 0xac, 2, 0xac, 2, 5, 0]);
    }

    #[test]
    fn what_no_gateway_sends_is_refused_by_reason() {
        let refused = |bytes: &[u8]| MeterReport::decode(bytes).unwrap_err().to_string();
        let encoded = |demands: Vec<Demand>| refused(&MeterReport { demands }.encode());
        assert!(refused(&[]).ends_with("it is empty"));
        assert_eq!(refused(&[2, 1]), "version 2 of meter reports is not supported, only version 1");
        assert!(refused(&[1; 1_101]).ends_with("it is too long"));
        assert!(encoded(vec![]).ends_with("the number of meters is out of range"));
        let many = (1..=DEMANDS_MAX as u32 + 1).map(|id| demand(id, 1, 1)).collect();
        assert!(encoded(many).ends_with("the number of meters is out of range"));
        for demands in
            [vec![demand(0, 1, 1)], vec![demand(2, 1, 1); 2], vec![demand(2, 1, 1), demand(1, 1, 1)]]
        {
            assert!(encoded(demands).ends_with("an identifier is 0 or out of order"));
        }
        assert!(encoded(vec![demand(1, 0, DEMAND_MAX + 1)]).ends_with("a demand is out of range"));
        assert!(refused(&[1, 1, 3, 1, 1, 0]).ends_with("it is longer than necessary"));
        assert!(refused(&[1, 1, 0x83, 0, 1, 1]).ends_with("it is longer than necessary"));
        assert!(refused(&[1, 1, 3, 1]).starts_with("malformed report about meters"));
    }

    proptest! {
        #[test]
        fn random_bytes_do_not_panic(mut bytes in prop::collection::vec(any::<u8>(), 1..80)) {
            bytes[0] = REPORT_VERSION;
            if let Ok(report) = MeterReport::decode(&bytes) {
                prop_assert_eq!(report.encode(), bytes);
            }
        }
    }
}
