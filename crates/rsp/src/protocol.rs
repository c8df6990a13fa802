//! Constants of RSP that every packet depends on, and the secrets that RSP keys are derived from.

use sluice_envelope::{Protocol, derive_secret};
use std::net::IpAddr;

/// UDP port of RSP, unless a site configures another one. The port is not registered.
pub const RSP_PORT: u16 = 4797;

/// Major and minor version of the packets that are sent. Another major version is refused; packets of a newer
/// minor version are understood in part.
pub const VERSION: (u8, u8) = (2, 4);

/// Size of the part of a body before its entries.
pub const BODY_HEADER_BYTES: usize = 8;

/// Smallest permitted MTU of the underlay: every IPv4 host accepts this size (RFC 1122 section 3.3.2).
pub const MTU_MIN: u16 = 576;

/// Smallest MTU of a tenant's packets on a direct path: every IPv6 node accepts this size (RFC 8200 section 5).
pub const RECEPTION_MTU_MIN: u16 = 1280;

/// RSP in the envelope. The shortest body is one without entries.
pub(crate) const RSP: Protocol =
    Protocol::new(*b"SR", VERSION, *b"seal").with_body_bytes_min(BODY_HEADER_BYTES);

/// Derives the secret of the RSP keys of one host from the secret of the cluster. `host` is the host's
/// registered underlay address. A host has only this secret: an attacker who controls it can neither forge a
/// gateway's messages to other hosts nor read them, nor those that gateways and controller send each other
/// under the secret of the cluster. Gateways have the secret of the cluster, and derive those of all hosts.
#[must_use]
pub fn host_secret(cluster: &[u8; 32], host: IpAddr) -> [u8; 32] {
    let host = match host {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let info = [&b"host"[..], &host.octets()].concat();
    derive_secret(&derive_secret(cluster, b"rsp"), &info)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_differ_between_hosts_and_clusters() {
        let (one, other): ([u8; 32], [u8; 32]) =
            (std::array::from_fn(|i| i as u8), std::array::from_fn(|i| 1 ^ i as u8));
        let secret = |cluster, host: &str| host_secret(cluster, host.parse().unwrap());
        let all = [
            secret(&one, "192.0.2.21"),
            secret(&one, "192.0.2.22"),
            secret(&one, "2001:db8::21"),
            secret(&other, "192.0.2.21"),
            derive_secret(&one, b"rsp"),
            one,
        ];
        let distinct: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
        // Computed by another implementation of HKDF, from the bytes 00 to 1f.
        let hex: String = all[0].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "b2a6b645457b9409015f19777dd8da55388e57121690ee2904aa81a536617595");
    }
}
