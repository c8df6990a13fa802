//! Linux system calls that agents need and that no library of the workspace offers: packet sockets with a filter, sockets
//! of ICMP, and the priority of a thread. It does not depend on Sluice's tables and programs.

mod echo;
mod packet;
mod priority;

pub use echo::EchoSocket;
pub use packet::{LinkReply, PacketSocket};
pub use priority::{Scheduling, raise_thread_priority};

/// A system call that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation}")]
pub struct Error {
    /// What was tried, as a verb and its object.
    pub operation: &'static str,
    /// Error of the system call.
    pub source: std::io::Error,
}

impl Error {
    /// The error of the last system call of this thread.
    fn last(operation: &'static str) -> Self {
        Self { operation, source: std::io::Error::last_os_error() }
    }
}
