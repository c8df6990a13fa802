//! Errors of loading, attaching, adopting and reading eBPF programs and maps.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// A failed operation on eBPF programs, maps or attachments.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The process does not have the named capabilities.
    #[error("missing {0}: run as root")]
    Privilege(String),
    /// The kernel has the named release, which is too old.
    #[error("Linux {0} is too old: 6.1 or newer is needed")]
    OldKernel(String),
    /// A system call failed.
    #[error("{what}")]
    System {
        /// Operation that failed.
        what: String,
        /// Error of the system call.
        source: io::Error,
    },
    /// libbpf failed.
    #[error("{what}")]
    Bpf {
        /// Operation that failed.
        what: String,
        /// Error of libbpf.
        source: libbpf_rs::Error,
    },
    /// Tables in a map could not be initialized or adopted.
    #[error("{what}")]
    Tables {
        /// Operation that failed.
        what: String,
        /// Error of the tables.
        source: sluice_tables::Error,
    },
    /// A pinned map of an earlier agent cannot be used.
    #[error("{path} was left by an incompatible version ({difference}); run once with --flush to discard it")]
    Incompatible {
        /// Path of the pin.
        path: PathBuf,
        /// Difference between the pinned map and the one that is needed.
        difference: String,
    },
    /// There is no interface with this name.
    #[error("no interface {0:?} in this network namespace")]
    NoInterface(String),
    /// The interface's XDP hook has a program that is not Sluice's.
    #[error("interface {0:?} already has an XDP program that is not Sluice's; detach it first")]
    Occupied(String),
    /// The eBPF object has no map or program with this name.
    #[error("the eBPF object {object:?} has no {kind} {name:?}")]
    Missing {
        /// Name of the object.
        object: &'static str,
        /// Kind of the missing item, for example "map" or "program".
        kind: &'static str,
        /// Name of the missing item.
        name: String,
    },
}

impl Error {
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }

    pub(crate) fn tables(what: impl Into<String>) -> impl FnOnce(sluice_tables::Error) -> Self {
        let what = what.into();
        move |source| Self::Tables { what, source }
    }

    pub(crate) fn bpf(what: impl Into<String>) -> impl FnOnce(libbpf_rs::Error) -> Self {
        let what = what.into();
        move |source| Self::Bpf { what, source }
    }
}
