//! Reports as datagrams: sealed with the cluster's key for one receiver, and accepted once. The caller has the sockets.

use super::report::{MeterReport, ReportError};
use sluice_envelope::{BootId, KeyRing, Limits, Opener, Protocol, Refusal, SealError, Sealer};
use sluice_types::GatewayId;
use std::net::IpAddr;

/// UDP port between gateways, unless a site configures another one. The port is not registered.
pub const METER_PORT: u16 = 4800;

/// The protocol in the envelope: its magic number is "SM".
const PROTOCOL: Protocol = Protocol::new(*b"SM", (1, 0), *b"mtrs");

/// Number of remembered boot ids: many for each of 64 gateways.
const SENDERS_MAX: usize = 1_024;

/// Reason for which a datagram was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportRefused {
    /// The envelope is not authentic, not new, or not for this receiver.
    #[error(transparent)]
    Envelope(#[from] Refusal),
    /// The content is not a valid report.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// The sender is not a gateway.
    #[error("sealed by node {0:#x}, which is not a gateway")]
    Sender(u64),
}

impl ReportRefused {
    /// Name of the reason, used as a metric label.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Envelope(refusal) => refusal.name(),
            Self::Report(ReportError::Version(_)) => "message_version",
            Self::Report(ReportError::Malformed(_)) => "message",
            Self::Sender(_) => "sender",
        }
    }
}

/// Seals and opens the reports of one run of a gateway.
#[derive(Debug)]
pub struct ReportCodec {
    sealer: Sealer,
    opener: Opener,
}

impl ReportCodec {
    /// Makes the codec of gateway `own`, which starts at `now_ms` (milliseconds since 1970). `boot` is drawn for this run only.
    #[must_use]
    pub fn new(own: GatewayId, boot: BootId, now_ms: u64) -> Self {
        let limits = Limits { senders_max: SENDERS_MAX, ..Limits::default() };
        Self {
            sealer: Sealer::new(PROTOCOL, own.into(), boot),
            opener: Opener::new(PROTOCOL, limits, now_ms),
        }
    }

    /// Makes the datagram that carries `report` to the gateway that receives at `to`.
    ///
    /// # Errors
    /// [`SealError`], most often because no key is valid.
    pub fn seal(
        &mut self,
        keys: &KeyRing,
        now_ms: u64,
        to: IpAddr,
        report: &MeterReport,
    ) -> Result<Vec<u8>, SealError> {
        self.sealer.seal(keys, now_ms, to, &report.encode())
    }

    /// Opens a datagram that arrived at the address `local`. Returns the gateway that sealed it, and its report.
    ///
    /// # Errors
    /// [`ReportRefused`].
    pub fn open(
        &mut self,
        keys: &KeyRing,
        now_ms: u64,
        local: IpAddr,
        packet: &[u8],
    ) -> Result<(GatewayId, MeterReport), ReportRefused> {
        let read = |_, body: &[u8]| Ok::<_, ReportRefused>(MeterReport::decode(body)?);
        let opened = self.opener.open(keys, now_ms, local, packet, read)?;
        let gateway = opened.sender.gateway().ok_or(ReportRefused::Sender(opened.sender.get()))?;
        Ok((gateway, opened.body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meters::report::Demand;
    use sluice_envelope::{ClusterKey, NodeId};
    use sluice_types::HostId;

    const NOW_MS: u64 = 1_700_000_000_000;

    fn keys() -> KeyRing {
        let secret = std::array::from_fn(|i| i as u8);
        KeyRing::new(vec![ClusterKey::new(3, &secret, 0, u64::MAX).unwrap()]).unwrap()
    }

    #[test]
    fn datagram_is_opened_once_and_only_by_its_receiver() {
        let sent = MeterReport { demands: vec![Demand { id: 7, bytes_per_s: [1, 2] }] };
        for here in ["2001:db8::9", "192.0.2.9"].map(|address| address.parse::<IpAddr>().unwrap()) {
            let mut receiver = ReportCodec::new(GatewayId::new(1), BootId::random().unwrap(), NOW_MS);
            let mut sender = ReportCodec::new(GatewayId::new(2), BootId::random().unwrap(), NOW_MS);
            let packet = sender.seal(&keys(), NOW_MS, here, &sent).unwrap();
            let mut open = |local: &str| receiver.open(&keys(), NOW_MS, local.parse().unwrap(), &packet);
            assert_eq!(open("2001:db8::8").unwrap_err().name(), "misdirected");
            assert_eq!(open(&here.to_string()), Ok((GatewayId::new(2), sent.clone())));
            assert_eq!(open(&here.to_string()).unwrap_err().name(), "replayed");
        }
    }

    #[test]
    fn hosts_and_invalid_reports_are_refused_by_name() {
        let here = "192.0.2.9".parse().unwrap();
        let mut receiver = ReportCodec::new(GatewayId::new(1), BootId::random().unwrap(), NOW_MS);
        let mut refused = |protocol: Protocol, sender: NodeId, body: &[u8]| {
            let mut sealer = Sealer::new(protocol, sender, BootId::random().unwrap());
            let packet = sealer.seal(&keys(), NOW_MS, here, body).unwrap();
            receiver.open(&keys(), NOW_MS, here, &packet).unwrap_err().name()
        };
        let valid = [1, 1, 3, 1, 1];
        let gateway = NodeId::from(GatewayId::new(2));
        assert_eq!(refused(PROTOCOL, HostId::new(2).into(), &valid), "sender");
        assert_eq!(refused(PROTOCOL, gateway, &[9, 9]), "message_version");
        assert_eq!(refused(PROTOCOL, gateway, &[1]), "message");
        // A key of the other protocol between gateways does not open it.
        assert_eq!(
            refused(Protocol::new(*b"SM", (1, 0), *b"ownr"), gateway, &valid),
            "authentication_failed"
        );
    }
}
