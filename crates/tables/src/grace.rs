//! Waiting until every reader that may still see what was unlinked is done.

use std::io;

/// Why a grace period cannot be waited for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraceError {
    /// The kernel does not offer it, and likely why.
    #[error(
        "the kernel offers no membarrier(MEMBARRIER_CMD_GLOBAL), without which table memory cannot be reused: {0}"
    )]
    Unsupported(String),
    /// It was offered, and failed.
    #[error("membarrier(MEMBARRIER_CMD_GLOBAL) failed: {0}")]
    Failed(String),
}

/// A grace period: all readers that began before the call have ended when it
/// returns. Readers that begin later see what was stored before it.
pub trait Grace: Send {
    /// Waits for one.
    ///
    /// # Errors
    /// When it could not be waited for; then nothing may be reused.
    fn wait(&self) -> Result<(), GraceError>;
}

/// The kernel's: waits for every XDP and TC program, because these run within
/// an RCU read side and the command is a `synchronize_rcu`. It does not wait for
/// threads of user space. About 8 ms.
///
/// While only one CPU is online the command waits for nothing. That is harmless
/// because programs run with bottom halves disabled: none can be under way on
/// that CPU while this thread runs there. It is not so on PREEMPT_RT, where the
/// threads that run programs can be preempted: there one CPU is not enough.
#[derive(Debug)]
pub struct Membarrier(());

const MEMBARRIER_CMD_QUERY: libc::c_int = 0;
const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;

fn membarrier(command: libc::c_int) -> io::Result<libc::c_long> {
    // SAFETY: membarrier takes integers only and touches no memory of ours.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

impl Membarrier {
    /// Asks the kernel whether it can.
    ///
    /// # Errors
    /// [`GraceError::Unsupported`], with the likely cause.
    pub fn new() -> Result<Self, GraceError> {
        let offered = membarrier(MEMBARRIER_CMD_QUERY).map_err(|error| {
            GraceError::Unsupported(format!(
                "{error} (kernel without CONFIG_MEMBARRIER, or a seccomp filter)"
            ))
        })?;
        if offered & libc::c_long::from(MEMBARRIER_CMD_GLOBAL) == 0 {
            return Err(GraceError::Unsupported(
                "the system runs with nohz_full; boot without the nohz_full= parameter".to_owned(),
            ));
        }
        Ok(Self(()))
    }
}

impl Grace for Membarrier {
    fn wait(&self) -> Result<(), GraceError> {
        membarrier(MEMBARRIER_CMD_GLOBAL).map(drop).map_err(|error| GraceError::Failed(error.to_string()))
    }
}

/// No waiting: right only where nothing reads while the writer writes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Immediate;

impl Grace for Immediate {
    fn wait(&self) -> Result<(), GraceError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_waits_or_says_why_not() {
        match Membarrier::new() {
            Ok(grace) => grace.wait().unwrap(),
            Err(error) => assert!(matches!(error, GraceError::Unsupported(_)), "{error}"),
        }
    }
}
