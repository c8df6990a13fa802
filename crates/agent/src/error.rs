//! Errors of an agent, and how they are written on one line. This file changes with what an agent may fail to
//! do.

use std::io;

use thiserror::Error;

/// A failure of an agent.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The command line or the machine's configuration is invalid.
    #[error("{0}")]
    Config(String),
    /// Loading, attaching or reading the packet programs and their maps failed.
    #[error(transparent)]
    Datapath(#[from] sluice_datapath::Error),
    /// An operation on a packet socket failed.
    #[error(transparent)]
    Sys(#[from] sluice_sys::Error),
    /// Writing the forwarding tables failed.
    #[error("forwarding tables")]
    Tables(#[from] sluice_tables::Error),
    /// Enrollment or the controller's stream failed.
    #[error("controller")]
    Southbound(#[from] sluice_southbound::Error),
    /// The controller sent a delta of a database that the tables are not of.
    #[error(transparent)]
    OtherDatabase(#[from] OtherDatabase),
    /// The kernel refused a change of interfaces, routes or neighbors.
    #[error("{what}")]
    Netlink {
        /// The attempted operation.
        what: String,
        /// The kernel's answer.
        source: rtnetlink::Error,
    },
    /// An operation on a file or a socket failed.
    #[error("{what}")]
    Io {
        /// The attempted operation.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The thread that writes the tables has ended.
    #[error("the table writer has stopped; see the log for the reason")]
    WriterGone,
}

/// A delta was refused because the tables hold another database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the controller sent a delta of database {sent:#x}, but the tables are of database {ours:#x}; \
     requesting a snapshot"
)]
pub struct OtherDatabase {
    pub(crate) sent: u64,
    pub(crate) ours: u64,
}

impl Error {
    /// For `map_err`: adds the attempted operation to an I/O error.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// For `map_err`: the task that reads the packet counters has panicked.
    pub(crate) fn counters(failed: tokio::task::JoinError) -> Self {
        Self::io("read the packet counters")(io::Error::other(failed))
    }

    /// For `map_err`: adds the attempted operation to a netlink error.
    pub fn netlink(what: impl Into<String>) -> impl FnOnce(rtnetlink::Error) -> Self {
        let what = what.into();
        move |source| Self::Netlink { what, source }
    }
}

/// An error with its causes, on one line.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
