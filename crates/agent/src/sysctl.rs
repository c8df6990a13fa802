//! The kernel's settings of interfaces (`net.ipv4.conf`, `net.ipv6.conf`) in this network namespace. Changes
//! when a setting of another kind is needed.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::Error;

/// Address family of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Settings under `net.ipv4`.
    V4,
    /// Settings under `net.ipv6`.
    V6,
}

fn path(family: Family, interface: &str, key: &str) -> PathBuf {
    let family = match family {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
    };
    PathBuf::from(format!("/proc/sys/net/{family}/conf/{interface}/{key}"))
}

/// Reads a setting; `None` if the kernel does not have it, for example because IPv6 is disabled.
///
/// # Errors
/// If the setting cannot be read.
pub fn get(family: Family, interface: &str, key: &str) -> Result<Option<String>, Error> {
    let path = path(family, interface, key);
    match fs::read_to_string(&path) {
        Ok(value) => Ok(Some(value.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(format!("read {}", path.display()))(error)),
    }
}

/// Changes a setting unless it has the value already. A setting that the kernel does not have is ignored.
///
/// # Errors
/// If the setting cannot be written.
pub fn set(family: Family, interface: &str, key: &str, value: &str) -> Result<(), Error> {
    match get(family, interface, key)? {
        Some(current) if current != value => {
            let path = path(family, interface, key);
            fs::write(&path, value).map_err(Error::io(format!("write {value} to {}", path.display())))
        }
        _ => Ok(()),
    }
}
