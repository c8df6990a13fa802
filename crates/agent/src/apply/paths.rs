//! Direct paths that are the controller's own (docs/decisions/models.md).

use std::net::IpAddr;

use sluice_southbound::{Path, PathKey};
use sluice_tables::DirectPath;

use super::{Applier, Ports};

impl<P: Ports> Applier<P> {
    /// Writes what a step says of paths. It does so last: a path gives way to a port, and
    /// needs its network and its host's VTEP, whichever messages of the step these are in.
    /// A snapshot's are all that there are.
    pub(super) fn write_paths(&mut self, snapshot: bool) {
        let paths = std::mem::take(&mut self.paths);
        let node = self.tables.node();
        // All hosts of a network are told the same: some of it is not for this one.
        let leads_away = |path: &Path| {
            let own = match path.host {
                IpAddr::V4(_) => node.vtep4.map(IpAddr::V4),
                IpAddr::V6(_) => node.vtep6.map(IpAddr::V6),
            };
            own.is_some_and(|own| own != path.host)
        };
        for (key, path) in &paths {
            let PathKey { vni, address } = *key;
            let result = match path.filter(leads_away) {
                Some(Path { mac, host, path_vni, .. }) => {
                    self.tables.upsert_direct(&DirectPath { vni, address, mac, host, path_vni, fixed: true })
                }
                None if self.tables.direct(vni, address).is_some_and(|path| path.fixed) => {
                    self.tables.remove_direct(vni, address)
                }
                None => continue,
            };
            self.failures.check(result, format_args!("path of VNI {vni} to {address}"));
        }
        if snapshot {
            let key = |path: &DirectPath| PathKey { vni: path.vni, address: path.address };
            let result = self.tables.retain_fixed(|path| paths.contains_key(&key(path)));
            self.failures.check(result, "removal of paths that the snapshot does not have");
        }
    }
}
