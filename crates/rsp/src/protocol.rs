//! Constants of RSP that every packet depends on, and the secret that RSP keys are derived from.

use sluice_envelope::{Protocol, derive_secret};

/// UDP port of RSP, unless a site configures another one. The port is not registered.
pub const RSP_PORT: u16 = 4797;

/// Major and minor version of the packets that are sent. Another major version is refused; packets of a newer
/// minor version are understood in part.
pub const VERSION: (u8, u8) = (1, 0);

/// Size of the part of a body before its entries.
pub const BODY_HEADER_BYTES: usize = 8;

/// Smallest permitted MTU of the underlay: every IPv4 host accepts this size (RFC 1122 section 3.3.2).
pub const MTU_MIN: u16 = 576;

/// RSP in the envelope. The shortest body is one without entries.
pub(crate) const RSP: Protocol =
    Protocol::new(*b"SR", VERSION, *b"seal").with_body_bytes_min(BODY_HEADER_BYTES);

/// Derives the secret of the RSP keys from the secret of the cluster. Hosts have only this derived secret: an
/// attacker who controls a host can use RSP, but can neither read nor forge what gateways and controller send
/// each other under the secret of the cluster.
#[must_use]
pub fn rsp_secret(cluster: &[u8; 32]) -> [u8; 32] {
    derive_secret(cluster, b"rsp")
}
