//! What can go wrong between this process and the kernel.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// A failure to load, attach, adopt or read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The process lacks rights.
    #[error("missing {0}: run as root")]
    Privilege(String),
    /// The kernel is too old.
    #[error("Linux {0} is too old: 6.1 or newer is needed")]
    OldKernel(String),
    /// A system call failed.
    #[error("{what}")]
    System {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// libbpf failed.
    #[error("{what}")]
    Bpf {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: libbpf_rs::Error,
    },
    /// Tables in a map could not be made or taken over.
    #[error("{what}")]
    Tables {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: sluice_tables::Error,
    },
    /// What a predecessor left pinned cannot be used.
    #[error("{path} was left by an incompatible version ({why}); run once with --flush to discard it")]
    Incompatible {
        /// The pin.
        path: PathBuf,
        /// How it differs.
        why: String,
    },
    /// No such interface.
    #[error("no interface {0:?} in this network namespace")]
    NoInterface(String),
    /// The interface is taken.
    #[error("interface {0:?} already has an XDP program that is not Sluice's; detach it first")]
    Occupied(String),
    /// The program has no map or program of this name.
    #[error("the eBPF object {object:?} has no {kind} {name:?}")]
    Missing {
        /// Object's name.
        object: &'static str,
        /// "map" or "program".
        kind: &'static str,
        /// What was looked for.
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
