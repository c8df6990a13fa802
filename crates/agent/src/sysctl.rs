//! The kernel's per-interface settings, in this network namespace.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::Error;

/// Address family of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// net.ipv4
    V4,
    /// net.ipv6
    V6,
}

fn path(family: Family, interface: &str, key: &str) -> PathBuf {
    let family = match family {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
    };
    PathBuf::from(format!("/proc/sys/net/{family}/conf/{interface}/{key}"))
}

/// Reads a setting; none where the kernel has no such (IPv6 may be absent altogether).
///
/// # Errors
/// If it cannot be read.
pub fn get(family: Family, interface: &str, key: &str) -> Result<Option<String>, Error> {
    let path = path(family, interface, key);
    match fs::read_to_string(&path) {
        Ok(value) => Ok(Some(value.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(format!("read {}", path.display()))(error)),
    }
}

/// Changes a setting unless it has the value already. A setting that the kernel does not have is left.
///
/// # Errors
/// If it cannot be written.
pub fn set(family: Family, interface: &str, key: &str, value: &str) -> Result<(), Error> {
    match get(family, interface, key)? {
        Some(now) if now != value => {
            let path = path(family, interface, key);
            fs::write(&path, value).map_err(Error::io(format!("write {value} to {}", path.display())))
        }
        _ => Ok(()),
    }
}
