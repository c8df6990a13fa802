//! What can go wrong with the tables.

use crate::grace::GraceError;
use sluice_types::Vni;
use std::net::IpAddr;

/// Why a change was not made, or tables were not adopted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No run of free cells is long enough.
    #[error(
        "table memory is full: {needed_cells} cells in a row are needed, {free_cells} cells are free of {total_cells}"
    )]
    Full {
        /// Length of the run that was wanted.
        needed_cells: u64,
        /// Free cells, in whatever pieces.
        free_cells: u64,
        /// Capacity.
        total_cells: u64,
    },
    /// The memory cannot hold even empty tables.
    #[error("table memory of {found_cells} cells is too small: at least {needed_cells} are needed")]
    TooSmall {
        /// Capacity.
        found_cells: u64,
        /// Least capacity for these sizes.
        needed_cells: u64,
    },
    /// An endpoint's host is no known VTEP.
    #[error("host {host} of endpoint {address} in VNI {vni} is no known VTEP")]
    UnknownVtep {
        /// The endpoint's VNI.
        vni: Vni,
        /// The endpoint.
        address: IpAddr,
        /// The VTEP that is not there.
        host: IpAddr,
    },
    /// No VRF has this VNI.
    #[error("VNI {0} is not in the tables")]
    UnknownVni(Vni),
    /// A VRF has as many routes of the family as it may.
    #[error("VNI {vni} has {limit} routes of this family, which is the limit of a VRF")]
    RouteLimit {
        /// The VRF.
        vni: Vni,
        /// Routes it may have in each family.
        limit: u32,
    },
    /// No group has this id.
    #[error("group {0} is not in the tables")]
    UnknownGroup(u32),
    /// The address is already something else.
    #[error("address {address} in VNI {vni} (0 is the underlay) is already {holder}")]
    AddressTaken {
        /// VNI, 0 for the underlay.
        vni: u32,
        /// The address.
        address: IpAddr,
        /// What holds it, like "a vIP" or "the port with ifindex 7".
        holder: String,
    },
    /// An argument that no table entry can express.
    #[error("{0}")]
    Invalid(String),
    /// The memory holds no tables.
    #[error("the memory does not hold Sluice's tables (no magic number)")]
    NotTables,
    /// The tables were laid out by another version.
    #[error("the tables have layout version {found}, this program knows version {known}")]
    LayoutVersion {
        /// In the superblock.
        found: u32,
        /// This program's.
        known: u32,
    },
    /// The tables were laid out for memory of another size.
    #[error("the tables were laid out for {laid_out} cells, the memory has {found}")]
    Capacity {
        /// In the superblock.
        laid_out: u64,
        /// Of the memory.
        found: u64,
    },
    /// The tables contradict themselves.
    #[error("the tables are damaged: {0}")]
    Corrupt(String),
    /// Waiting for readers failed, so nothing can be reused.
    #[error("could not wait for readers")]
    Grace(#[from] GraceError),
}
