//! Errors of changes to the tables and of their adoption.

use crate::grace::GraceError;
use sluice_types::Vni;
use std::net::IpAddr;

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
    /// No group has this identifier.
    #[error("group {0} is not in the tables")]
    UnknownGroup(u32),
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
