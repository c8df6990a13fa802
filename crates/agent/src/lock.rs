//! Locks that ensure that one agent at a time writes a node's tables: of the state directory, and of the directory
//! with the pinned programs and tables. The kernel releases a lock when its process ends, however it ends. This file
//! changes when agents share another resource.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};
use nix::sys::stat::{major, minor};

use crate::Error;

/// Locks the state directory.
pub(crate) fn lock_state(state_dir: &Path) -> Result<Flock<fs::File>, Error> {
    let path = state_dir.join("lock");
    let file = fs::File::create(&path).map_err(Error::io(format!("lock {}", path.display())))?;
    lock(file, &path, || format!("the state directory {}", state_dir.display()))
}

/// Locks the pinned programs and tables, which agents with different state directories may share by mistake.
pub(crate) fn lock_pins(pin_dir: &Path) -> Result<Flock<fs::File>, Error> {
    let file = fs::File::open(pin_dir).map_err(Error::io(format!("lock {}", pin_dir.display())))?;
    let lock = lock(file, pin_dir, || format!("the programs and tables in {}", pin_dir.display()))?;
    // Whoever creates the directory again would not see this lock.
    let inode = |path: fs::Metadata| (path.dev(), path.ino());
    let locked = lock.metadata().map(inode).ok();
    if locked.is_none() || fs::metadata(pin_dir).map(inode).ok() != locked {
        return Err(Error::Config(format!(
            "{} was removed in this moment, by an agent with --flush: start again",
            pin_dir.display()
        )));
    }
    Ok(lock)
}

fn lock(file: fs::File, path: &Path, what: impl FnOnce() -> String) -> Result<Flock<fs::File>, Error> {
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(file, number)| match number {
        nix::errno::Errno::EWOULDBLOCK => {
            let holder = holder(&file).map_or_else(String::new, |pid| format!(" (process {pid})"));
            Error::Config(format!("another agent is running{holder} with {}", what()))
        }
        number => Error::io(format!("lock {}", path.display()))(number.into()),
    })
}

/// The process that holds the lock of a file, if the kernel shows it to this process.
fn holder(file: &fs::File) -> Option<u32> {
    let metadata = file.metadata().ok()?;
    let (device, inode) = (metadata.dev(), metadata.ino());
    let wanted = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    let locks = fs::read_to_string("/proc/locks").ok()?;
    // "1: FLOCK  ADVISORY  WRITE 1234 00:1c:5678 0 EOF"; a process of another PID namespace has number 0.
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (kind, pid, file) = (words.next()?, words.nth(2)?, words.next()?);
        (kind == "FLOCK" && file == wanted).then(|| pid.parse().ok().filter(|pid| *pid > 0)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use sluice_datapath::kernel;

    use super::*;

    /// Catches a lock that the BPF file system does not have, that survives its process, or that does not name it.
    #[test]
    fn pin_directory_is_locked_until_its_process_is_killed() {
        kernel::mount_bpffs().unwrap();
        let dir = Path::new(kernel::BPFFS).join(format!("sluice-test-lock-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        drop(lock_pins(&dir).unwrap());
        // `-F`: the process that holds the lock is the one that is killed.
        let mut other = Command::new("flock").arg("-F").arg(&dir).args(["sleep", "60"]).spawn().unwrap();
        let error = loop {
            match lock_pins(&dir) {
                Ok(lock) => drop(lock),
                Err(error) => break error.to_string(),
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        };
        let (dir_text, pid) = (dir.display(), other.id());
        assert_eq!(
            error,
            format!("another agent is running (process {pid}) with the programs and tables in {dir_text}")
        );
        other.kill().unwrap();
        other.wait().unwrap();
        drop(lock_pins(&dir).unwrap());
        fs::remove_dir(&dir).unwrap();
    }
}
