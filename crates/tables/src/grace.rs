//! Grace periods: waiting until every reader that may still see unlinked cells has finished.

use std::io;

/// A grace period could not be waited for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraceError {
    /// The kernel does not offer the system call; with the likely cause.
    #[error(
        "the kernel offers no membarrier(MEMBARRIER_CMD_GLOBAL), \
         without which table memory cannot be reused: {0}"
    )]
    Unsupported(String),
    /// The system call failed although the kernel offers it; with the cause.
    #[error("membarrier(MEMBARRIER_CMD_GLOBAL) failed: {0}")]
    Failed(String),
}

/// A way to wait for grace periods.
pub trait Grace: Send {
    /// Waits for a grace period. When the call returns, all readers that started before it have ended.
    /// Readers that start later see what was stored before it.
    ///
    /// # Errors
    /// If it could not be waited for. Nothing may be reused then.
    fn wait(&self) -> Result<(), GraceError>;
}

/// The kernel's grace period, about 8 ms. It waits for every XDP and TC program, because these run in an RCU
/// read-side critical section and the command is a `synchronize_rcu`. It does not wait for threads of user
/// space.
///
/// While only one CPU is online, the command does not wait. That is harmless because programs run with bottom
/// halves disabled: no program can be running on that CPU while this thread does. On PREEMPT_RT the threads
/// that run programs can be preempted, so a machine with one CPU is not supported there.
#[derive(Debug)]
pub struct Membarrier(());

const MEMBARRIER_CMD_QUERY: libc::c_int = 0;
const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;

fn membarrier(command: libc::c_int) -> io::Result<libc::c_long> {
    // SAFETY: membarrier takes only integers, and accesses no memory of this process.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

impl Membarrier {
    /// Checks that the kernel offers the command.
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

/// Does not wait. Correct only if nothing reads while the writer writes.
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
    fn kernel_waits() {
        Membarrier::new().unwrap().wait().unwrap();
    }
}
