//! The southbound interface between the controller and its nodes.
//!
//! Messages ([`proto`], generated from `api/southbound.proto`), their checked form ([`Update`] and its
//! entries), certificates ([`CertificateAuthority`]), the node's side ([`enroll`], [`Identity`], [`connect`])
//! and the controller's side ([`server`], [`server_builder`], [`EncodedUpdate`]).
#![forbid(unsafe_code)]

mod ca;
mod client;
mod cluster;
mod digest;
mod encoded;
mod entries;
mod error;
mod health;
mod identity;
mod missing;
mod node;
mod transport;
mod wire;

/// Generated messages and the generated client.
#[allow(missing_docs, clippy::all)]
pub mod proto {
    tonic::include_proto!("sluice.southbound.v1");
}

/// The generated server. Its updates are [`EncodedUpdate`]s.
#[allow(missing_docs, clippy::all)]
pub mod server {
    include!(concat!(env!("OUT_DIR"), "/server/sluice.southbound.v1.rs"));
    pub use southbound_server::{Southbound, SouthboundServer};
}

pub use ca::{CertificateAuthority, ServerCertificate};
pub use client::{Connection, ReportSender, UpdateStream, connect, enroll};
pub use cluster::{ClusterKeys, ClusterPlan, Key, Member, PlannedVip, PreferredOwner, VIP_SLOTS};
pub use encoded::{EncodedUpdate, UpdateHead, decode_update};
pub use entries::{
    AddressClaim, AddressPair, ELEPHANT_DEFAULT, ELEPHANT_NEVER, Endpoint, EndpointKey, Group, HostState,
    MemberProbe, MemberState, Meter, MigrationPhase, MigrationSide, MigrationState, NatGateway, Path,
    PathKey, Policy, PolicyKey, Port, PortMigration, PortOptions, PublicPrefix, Qos, Route, RouteKey, Scope,
    SecurityRule, Service, ServiceAddress, ServiceAddressKey, Unconfirmed, Update, Vip, Vrf, Vtep, VtepRole,
};
pub use error::{Error, deleted};
pub use health::{Finding, HealthReport, HealthSubject, LinkHealth};
pub use identity::{EnrollmentBundle, Identity};
pub use missing::Missing;
pub use node::{Node, NodeError};
pub use sluice_types::{MigrationKey, NAT_ADDRESSES_MAX, ServiceMember, SessionMode};
pub use transport::{server_builder, server_service};
pub use wire::Malformed;

/// Largest message to a node, in bytes. Larger steps are sent in parts.
pub const MAX_UPDATE_BYTES: usize = 8 << 20;

/// Largest message from a node, in bytes.
pub const MAX_REPORT_BYTES: usize = 1 << 20;

/// Most endpoints, ports or routes in one message. It keeps messages well below [`MAX_UPDATE_BYTES`] (a port
/// without options has at most about 350 bytes). Policies, ports with options and NAT gateways with port forwards may be larger:
/// the controller counts each as several entries.
pub const MAX_ENTRIES: usize = 16_384;

/// Most ports in an answer about sessions that would end.
pub const MAX_ENDING_PORTS: usize = 1024;

/// Most failures in one acknowledgment; the agent ends a longer list with the number of the others.
pub const MAX_FAILURES: usize = 64;
/// Most entries that one report of missing entries names.
pub const MAX_MISSING: usize = 1024;
/// Most claims in one report.
pub const MAX_CLAIMS: usize = 1024;
/// Most migrations in one report.
pub const MAX_MIGRATIONS: usize = 1024;
/// Most findings, and most links, in one report of health.
pub const MAX_FINDINGS: usize = 256;
/// See [`MAX_FINDINGS`].
pub const MAX_HEALTH_LINKS: usize = 64;
/// Most states of members in one report of a host.
pub const MAX_MEMBER_STATES: usize = 4096;
/// Most hosts that a gateway probes, and most states in its report.
pub const MAX_WATCHED_HOSTS: usize = 4096;
/// Longest text about a member or a host in a report, in bytes.
pub const MAX_EVIDENCE_BYTES: usize = 128;
/// Most unconfirmed entries in one report.
pub const MAX_UNCONFIRMED: usize = 1024;
/// The name of a table of nodes in metrics, in the API and in messages; `None` if this version does not know it.
pub fn table_name(table: i32) -> Option<&'static str> {
    match proto::Table::try_from(table).ok()? {
        proto::Table::Unspecified => None,
        proto::Table::Entries => Some("entries"),
        proto::Table::EntriesWithIpv6 => Some("entries_with_ipv6"),
        proto::Table::Routes => Some("routes"),
        proto::Table::Vrfs => Some("vrfs"),
        proto::Table::NatAddresses => Some("nat_addresses"),
    }
}

/// Most VNIs whose traffic one heartbeat reports.
pub const MAX_VNI_LOADS: usize = 16_384;
