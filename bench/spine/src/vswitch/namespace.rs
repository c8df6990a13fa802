//! Network namespaces of a side: of the host that is measured, and of all that is outside of it. It changes with how
//! namespaces are made.

use nix::sched::{CloneFlags, setns, unshare};
use sluice_bench_report::shell::Failure;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

/// A network namespace. The kernel removes it when the value is dropped, unless a thread is in it.
pub struct Namespace(File);

impl Namespace {
    /// The namespace of the calling thread.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn current() -> Result<Self, Failure> {
        Ok(Self(File::open("/proc/thread-self/ns/net")?))
    }

    /// The namespace of a file.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn open(file: &Path) -> Result<Self, Failure> {
        Ok(Self(File::open(file)?))
    }

    /// A new namespace. The calling thread stays in its own.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn new() -> Result<Self, Failure> {
        let inside = || {
            unshare(CloneFlags::CLONE_NEWNET)?;
            Self::current()
        };
        std::thread::spawn(inside).join().map_err(|_| "the thread of a namespace panicked")?
    }

    /// A path that `ip` accepts as the name of the namespace.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Runs `work` in the namespace.
    ///
    /// # Errors
    /// Errors of the kernel and of `work`.
    pub fn within<T>(&self, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        let before = Self::current()?;
        setns(&self.0, CloneFlags::CLONE_NEWNET)?;
        let outcome = work();
        setns(&before.0, CloneFlags::CLONE_NEWNET)?;
        outcome
    }
}
