//! What can go wrong in an agent.

use std::io;

use thiserror::Error;

/// A failure of an agent.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The operator asked for something that cannot be.
    #[error("{0}")]
    Config(String),
    /// Programs, maps or attachments.
    #[error(transparent)]
    Datapath(#[from] sluice_datapath::Error),
    /// The forwarding tables.
    #[error("forwarding tables")]
    Tables(#[from] sluice_tables::Error),
    /// Enrolment or the controller's stream.
    #[error("controller")]
    Southbound(#[from] sluice_southbound::Error),
    /// The kernel refused a change of interfaces, routes or neighbours.
    #[error("{what}")]
    Netlink {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: rtnetlink::Error,
    },
    /// A file or socket.
    #[error("{what}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The thread that writes the tables has ended.
    #[error("the table writer has stopped; see the log for why")]
    WriterGone,
}

impl Error {
    /// For `map_err`: names what was tried.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// For `map_err`: names what was tried.
    pub fn netlink(what: impl Into<String>) -> impl FnOnce(rtnetlink::Error) -> Self {
        let what = what.into();
        move |source| Self::Netlink { what, source }
    }
}
