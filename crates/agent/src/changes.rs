//! What an agent changes on the interfaces of a machine, so that `--flush` can restore it. This file changes when
//! agents change a setting of another kind.
//!
//! Each change has a record in the pin directory: `changes/INDEX,KIND,NAME,OLD,NEW`. The BPF file system has
//! directories, but no regular files; and it is empty after a boot, as the changes are gone. A record is made before
//! its change, and keeps the first old value. A setting that another program has changed since is left as it is.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::netlink::{Link, Netlink};
use crate::sysctl::{self, Family};

const PROMISCUOUS: &str = "promiscuous";

/// The changes that the agents of a node have made.
#[derive(Clone, Debug)]
pub struct Changes {
    dir: PathBuf,
}

/// A changed setting.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    /// Index of the interface.
    ifindex: u32,
    /// The sysctl's family; `None` for a property of the interface.
    family: Option<Family>,
    name: String,
    old: String,
    new: String,
}

impl Change {
    fn record(&self) -> String {
        let kind = match self.family {
            Some(Family::V4) => "ipv4",
            Some(Family::V6) => "ipv6",
            None => "link",
        };
        format!("{},{kind},{},{},{}", self.ifindex, self.name, self.old, self.new)
    }

    /// The inverse of [`Change::record`].
    fn parse(record: &str) -> Option<Self> {
        let [index, kind, name, old, new]: [&str; 5] =
            record.split(',').collect::<Vec<_>>().try_into().ok()?;
        let family = match kind {
            "ipv4" => Some(Family::V4),
            "ipv6" => Some(Family::V6),
            "link" => None,
            _ => return None,
        };
        let [name, old, new] = [name, old, new].map(str::to_owned);
        Some(Self { ifindex: index.parse().ok()?, family, name, old, new })
    }

    fn is_same_setting(&self, other: &Self) -> bool {
        (self.ifindex, self.family, &self.name) == (other.ifindex, other.family, &other.name)
    }

    async fn undo(&self, netlink: &Netlink, link: &Link) -> Result<(), Error> {
        match self.family {
            Some(family) => {
                let current = sysctl::get(family, &link.name, &self.name)?;
                match current.is_some_and(|current| current == self.new) {
                    true => sysctl::set(family, &link.name, &self.name, &self.old),
                    false => Ok(()),
                }
            }
            None if self.name == PROMISCUOUS => netlink.set_promiscuous(link, false).await,
            None => Ok(()),
        }
    }
}

impl Changes {
    /// The changes of the node with this pin directory, which must exist before the first change.
    #[must_use]
    pub fn new(pin_dir: &Path) -> Self {
        Self { dir: pin_dir.join(sluice_datapath::KEPT_DIR) }
    }

    /// Changes a setting of an interface unless it has the value already. A setting that the kernel does not have is
    /// ignored.
    ///
    /// # Errors
    /// If the change cannot be recorded or made.
    pub fn set_sysctl(&self, link: &Link, family: Family, name: &str, value: &str) -> Result<(), Error> {
        let Some(old) = sysctl::get(family, &link.name, name)?.filter(|old| old != value) else {
            return Ok(());
        };
        let (ifindex, name_owned, new) = (link.index, name.to_owned(), value.to_owned());
        self.record(&Change { ifindex, family: Some(family), name: name_owned, old, new })?;
        sysctl::set(family, &link.name, name, value)
    }

    /// Makes an interface receive frames for every MAC.
    ///
    /// # Errors
    /// If the change cannot be recorded or made.
    pub async fn set_promiscuous(&self, netlink: &Netlink, link: &Link) -> Result<(), Error> {
        if link.promiscuous {
            return Ok(());
        }
        let (name, old, new) = (PROMISCUOUS.to_owned(), "0".to_owned(), "1".to_owned());
        self.record(&Change { ifindex: link.index, family: None, name, old, new })?;
        netlink.set_promiscuous(link, true).await
    }

    fn record(&self, change: &Change) -> Result<(), Error> {
        if self.list()?.iter().any(|known| known.is_same_setting(change)) {
            return Ok(());
        }
        let path = self.dir.join(change.record());
        fs::create_dir_all(&path).map_err(Error::io(format!("record a change in {}", path.display())))
    }

    fn list(&self) -> Result<Vec<Change>, Error> {
        let failed = || Error::io(format!("list {}", self.dir.display()));
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed()(error)),
        };
        let mut changes = Vec::new();
        for entry in entries {
            changes.extend(Change::parse(&entry.map_err(failed())?.file_name().to_string_lossy()));
        }
        Ok(changes)
    }

    /// Removes the records of interfaces that do not exist any more.
    ///
    /// # Errors
    /// If a record cannot be removed.
    pub fn forget_removed(&self, links: &[Link]) -> Result<(), Error> {
        for change in self.list()? {
            if !links.iter().any(|link| link.index == change.ifindex) {
                self.remove(&change)?;
            }
        }
        Ok(())
    }

    fn remove(&self, change: &Change) -> Result<(), Error> {
        let path = self.dir.join(change.record());
        fs::remove_dir(&path).map_err(Error::io(format!("remove {}", path.display())))
    }

    /// Undoes the changes of the interfaces with the indices that `is_chosen` accepts, and releases the neighbors that the
    /// kernel keeps resolved there. Interfaces that were removed have nothing to restore.
    ///
    /// # Errors
    /// If a setting cannot be restored: its record stays, and the call can be repeated.
    pub async fn restore(&self, netlink: &Netlink, is_chosen: impl Fn(u32) -> bool) -> Result<(), Error> {
        let changes: Vec<Change> =
            self.list()?.into_iter().filter(|change| is_chosen(change.ifindex)).collect();
        if changes.is_empty() {
            return Ok(());
        }
        let links = netlink.links().await?;
        for change in &changes {
            if let Some(link) = links.iter().find(|link| link.index == change.ifindex) {
                change.undo(netlink, link).await?;
                tracing::info!(interface = link.name, setting = change.name, value = change.old, "restored");
            }
            self.remove(change)?;
        }
        let changed: BTreeSet<u32> = changes.iter().map(|change| change.ifindex).collect();
        for hop in netlink.neighbors().await?.iter().filter(|hop| hop.kept && changed.contains(&hop.ifindex))
        {
            netlink.release_neighbor(hop.ifindex, hop.address).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_can_be_read_back_from_its_record() {
        for family in [Some(Family::V4), Some(Family::V6), None] {
            let [name, old, new] = ["accept_ra", "-1", "2"].map(str::to_owned);
            let change = Change { ifindex: 7, family, name, old, new };
            // The BPF file system does not allow dots in names.
            assert!(!change.record().contains('.'));
            assert_eq!(Change::parse(&change.record()), Some(change));
        }
        for invalid in ["", "7,ipv4,forwarding,0", "7,ipv5,forwarding,0,1", "x,ipv4,forwarding,0,1"] {
            assert_eq!(Change::parse(invalid), None, "{invalid}");
        }
    }
}
