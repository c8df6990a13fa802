//! Checks once at start that the kernel and the rights of the process are sufficient, and mounts the BPF file
//! system.

use std::fs;
use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use crate::Error;

/// Mount point of the BPF file system.
pub const BPFFS: &str = "/sys/fs/bpf";

const OLDEST: (u32, u32) = (6, 1);

/// Required capabilities: bit in the effective set (capability.h) and name.
const CAPABILITIES: [(u32, &str); 3] = [(12, "CAP_NET_ADMIN"), (13, "CAP_NET_RAW"), (21, "CAP_SYS_ADMIN")];

/// Checks the capabilities of the process and the kernel's version. The limit on
/// locked memory is not raised, because kernels since 5.11 account BPF memory to
/// the control group.
///
/// # Errors
/// [`Error::Privilege`] or [`Error::OldKernel`].
pub fn check() -> Result<(), Error> {
    check_capabilities(&read("/proc/self/status")?)?;
    check_version(read("/proc/sys/kernel/osrelease")?.trim())
}

fn read(path: &str) -> Result<String, Error> {
    fs::read_to_string(path).map_err(Error::system(format!("read {path}")))
}

fn check_capabilities(status: &str) -> Result<(), Error> {
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    let missing: Vec<_> =
        CAPABILITIES.iter().filter(|(bit, _)| effective >> bit & 1 == 0).map(|(_, name)| *name).collect();
    if missing.is_empty() { Ok(()) } else { Err(Error::Privilege(missing.join(", "))) }
}

fn check_version(release: &str) -> Result<(), Error> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse().ok());
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= OLDEST { Ok(()) } else { Err(Error::OldKernel(release.to_owned())) }
}

/// Mounts the BPF file system at [`BPFFS`] unless it is mounted already.
///
/// # Errors
/// If it cannot be mounted.
pub fn mount_bpffs() -> Result<(), Error> {
    let path = Path::new(BPFFS);
    if is_bpffs(path) {
        return Ok(());
    }
    mount(Some("bpf"), path, Some("bpf"), MsFlags::empty(), Some("mode=0700"))
        .map_err(|error| Error::system(format!("mount the BPF file system at {BPFFS}"))(error.into()))?;
    tracing::info!(path = BPFFS, "mounted the BPF file system");
    Ok(())
}

pub(crate) fn is_bpffs(path: &Path) -> bool {
    statfs(path).is_ok_and(|stat| stat.filesystem_type() == BPF_FS_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_before_6_1_are_rejected() {
        for good in ["6.1.0-18-amd64", "6.1", "6.18.44-fc", "7.0.1"] {
            assert!(check_version(good).is_ok(), "{good}");
        }
        for bad in ["5.15.0-91-generic", "6.0.12", "", "junk"] {
            assert!(matches!(check_version(bad), Err(Error::OldKernel(_))), "{bad}");
        }
    }

    #[test]
    fn missing_capabilities_are_named() {
        assert!(check_capabilities("Name: x\nCapEff:\t000001ffffffffff\n").is_ok());
        let error = check_capabilities("CapEff:\t0000000000003000\n").unwrap_err();
        assert_eq!(error.to_string(), "missing CAP_SYS_ADMIN: run as root");
        assert!(check_capabilities("").is_err());
    }
}
