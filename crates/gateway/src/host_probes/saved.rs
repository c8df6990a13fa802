//! The file with the hosts that a gateway probes. This file changes with its format.

use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::Path;

/// Name of the file in the state directory: a list of addresses.
const FILE: &str = "watched-hosts.json";

/// Reads the hosts; none if the file is absent or damaged, until the controller sends them.
pub fn read(state_dir: &Path) -> Vec<IpAddr> {
    let bytes = fs::read(state_dir.join(FILE)).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

/// Writes the hosts. After a crash of the machine there is either the old or the new file.
pub fn write(state_dir: &Path, hosts: &[IpAddr]) -> io::Result<()> {
    if hosts == read(state_dir) {
        return Ok(());
    }
    let path = state_dir.join(FILE);
    let new = path.with_extension("new");
    let mut file = fs::File::create(&new)?;
    file.write_all(&serde_json::to_vec(hosts)?)?;
    file.sync_all()?;
    fs::rename(&new, &path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read_as_they_were_written_and_a_damaged_file_has_none() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(read(directory.path()), Vec::<IpAddr>::new());
        let hosts: [IpAddr; 2] = [[192, 0, 2, 7].into(), "2001:db8::7".parse().unwrap()];
        write(directory.path(), &hosts).unwrap();
        assert_eq!(read(directory.path()), hosts);
        write(directory.path(), &hosts[..1]).unwrap();
        assert_eq!(read(directory.path()), hosts[..1]);
        fs::write(directory.path().join(FILE), "[\"192.0").unwrap();
        assert_eq!(read(directory.path()), Vec::<IpAddr>::new());
    }
}
