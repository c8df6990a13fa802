//! Errors of changes to the tables and of their adoption.

use crate::grace::GraceError;
use crate::layout;
use sluice_types::{EntryKey, Vni};
use std::net::{IpAddr, Ipv4Addr};

/// A change was not made, or tables were not adopted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No run of free cells is long enough.
    #[error(
        "table memory is full: {needed_cells} contiguous cells are needed, \
         {free_cells} of {total_cells} cells are free"
    )]
    Full {
        /// Length of the run that was requested.
        needed_cells: u64,
        /// Free cells, in runs of any length.
        free_cells: u64,
        /// Cells of the whole memory.
        total_cells: u64,
    },
    /// The memory cannot hold even empty tables.
    #[error("table memory of {found_cells} cells is too small: at least {needed_cells} are needed")]
    TooSmall {
        /// Cells of the whole memory.
        found_cells: u64,
        /// Smallest capacity for the requested sizes.
        needed_cells: u64,
    },
    /// The host of an endpoint or direct path is not an accepted VTEP.
    #[error("host {host} of address {address} in VNI {vni} is not in the tables: add it as a VTEP first")]
    UnknownVtep {
        /// VNI of the endpoint or path.
        vni: Vni,
        /// Address of the endpoint or path.
        address: IpAddr,
        /// Address of the host.
        host: IpAddr,
    },
    /// No VRF has this VNI.
    #[error("VNI {0} is not in the tables")]
    UnknownVni(Vni),
    /// The vIP of a public prefix or NAT gateway is not in the tables.
    #[error("vIP {vip} of the {entry} is not in the tables: add it first")]
    UnknownVip {
        /// The public prefix or NAT gateway.
        entry: EntryKey,
        /// Address of the vIP.
        vip: IpAddr,
    },
    /// No group has this identifier.
    #[error("group {0} is not in the tables")]
    UnknownGroup(u32),
    /// No policy has this identifier.
    #[error("policy {0} is not in the tables: add it before the ports that it applies to")]
    UnknownPolicy(u32),
    /// A policy cannot be removed, because a port without one would be open.
    #[error("policy {policy} applies to the port with ifindex {ifindex}: give the port another policy first")]
    PolicyInUse {
        /// Identifier of the policy.
        policy: u32,
        /// Interface index of a port that has it.
        ifindex: u32,
    },
    /// A policy exceeds a limit, however much memory is free.
    #[error("policy {policy} is too large: {excess}")]
    PolicyTooLarge {
        /// Identifier of the policy.
        policy: u32,
        /// What there is too much of.
        excess: PolicyExcess,
    },
    /// The address already belongs to another entry.
    #[error("address {address} in VNI {vni} (0 is the underlay) already belongs to {holder}")]
    AddressTaken {
        /// VNI, 0 for the underlay.
        vni: u32,
        /// The address.
        address: IpAddr,
        /// The entry that has it, for example "a vIP" or "the port with ifindex 7".
        holder: String,
    },
    /// The NAT tables have no free number for a public address.
    #[error(
        "the public address {address} gets no number for address translation: all {total} are in use, of which {released} will \
         be free soon"
    )]
    NoNatNumber {
        /// The address.
        address: std::net::Ipv4Addr,
        /// Numbers of the tables.
        total: u32,
        /// Numbers of addresses that were released.
        released: u32,
    },
    /// The table of meters has no free number.
    #[error("no room for meter {id}: all {total} are in use; the gateway's --meters sets how many there are")]
    NoMeterNumber {
        /// The controller's identifier of the meter.
        id: u32,
        /// Meters of the table.
        total: u32,
    },
    /// The meter of a public prefix or VPC, by the controller's identifier, is not in the tables.
    #[error("meter {0} is not in the tables: packets pass without its limit")]
    UnknownMeter(u32),
    /// The public address already belongs to another entry.
    #[error("the {entry} cannot have the address {address}: the {holder} has it")]
    PublicAddressTaken {
        /// The public prefix or NAT gateway that is to have it.
        entry: EntryKey,
        /// The address.
        address: Ipv4Addr,
        /// The public prefix or NAT gateway that has it.
        holder: EntryKey,
    },
    /// An argument is invalid; with the reason.
    #[error("{0}")]
    Invalid(String),
    /// The memory holds no tables.
    #[error("the memory does not hold tables of Sluice (the magic number is missing)")]
    NotTables,
    /// The tables were laid out by another version.
    #[error("the tables have layout version {found}, but this program knows only version {known}")]
    LayoutVersion {
        /// Version of the tables.
        found: u32,
        /// Version of this program.
        known: u32,
    },
    /// The tables were laid out for memory of another size.
    #[error("the tables were laid out for {laid_out} cells, but the memory has {found}")]
    Capacity {
        /// Capacity for which the tables were laid out.
        laid_out: u64,
        /// Capacity of the memory.
        found: u64,
    },
    /// The tables are inconsistent; with the first contradiction.
    #[error("the tables are damaged: {0}")]
    Corrupt(String),
    /// A grace period failed, so no cell can be reused.
    #[error("could not wait for the readers of the tables to finish")]
    Grace(#[from] GraceError),
}

/// What a policy has too much of. `prefixes` and `identities` are numbers of different ones, as causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyExcess {
    /// Number of rules.
    #[error("it has {0} rules, at most {max} fit", max = layout::POLICY_RULES_MAX)]
    Rules(usize),
    /// Groups of all identities, added up.
    #[error(
        "its identities are members of {0} groups in all, at most {max} fit",
        max = layout::POLICY_MEMBERSHIPS_MAX
    )]
    Memberships(usize),
    /// Prefixes of services, which are repeated for each prefix or identity that has several rules in common.
    #[error(
        "the rules of {prefixes} prefixes and {identities} identities have more than {max} services in all; \
         ranges of ports count up to 30 times, once for each prefix below that of their rule",
        max = layout::POLICY_SERVICES_MAX
    )]
    Services {
        /// Number of prefixes, in both directions.
        prefixes: usize,
        /// Number of identities.
        identities: usize,
    },
    /// Different combinations of services.
    #[error(
        "the rules of {prefixes} prefixes and {identities} identities permit more than {max} different sets of \
         services",
        max = layout::POLICY_SETS_MAX
    )]
    Sets {
        /// Number of prefixes, in both directions.
        prefixes: usize,
        /// Number of identities.
        identities: usize,
    },
    /// Table memory.
    #[error(
        "the rules of {prefixes} prefixes and {identities} identities need more than {max} cells",
        max = layout::POLICY_CELLS_MAX
    )]
    Cells {
        /// Number of prefixes, in both directions.
        prefixes: usize,
        /// Number of identities.
        identities: usize,
    },
}
