//! Fixed paths: direct paths that the controller sets (docs/decisions/models.md), in contrast to those that a
//! host learns. This file changes when the controller may set paths with other properties.

use std::collections::HashMap;
use std::net::IpAddr;

use sluice_agent::UpdateContext;
use sluice_southbound::{Path, PathKey};
use sluice_tables::DirectPath;

/// The paths of the current step, written when it ends; `None` stands for a removal.
#[derive(Debug, Default)]
pub(super) struct PendingPaths(HashMap<PathKey, Option<Path>>);

impl PendingPaths {
    /// Forgets the paths of an unfinished step.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Notes the paths of a message.
    pub(super) fn note(&mut self, paths: &[Path], removed: &[PathKey]) {
        self.0.extend(paths.iter().map(|path| (path.key, Some(*path))));
        self.0.extend(removed.iter().map(|key| (*key, None)));
    }

    /// Writes the paths of the step. A path needs its network and its host's VTEP, and yields to a port,
    /// whichever messages of the step these are in; so paths are written last. Those of a snapshot are all
    /// that there are.
    pub(super) fn write(&mut self, context: &mut UpdateContext<'_>) {
        let paths = std::mem::take(&mut self.0);
        let node = context.tables.node();
        // All hosts of a network get the same paths: those to this host, and over an address family that it
        // does not have, are not for it.
        let is_usable = |path: &Path| {
            let own = match path.host {
                IpAddr::V4(_) => node.vtep4.map(IpAddr::V4),
                IpAddr::V6(_) => node.vtep6.map(IpAddr::V6),
            };
            own.is_some_and(|own| own != path.host)
        };
        for (key, path) in &paths {
            let PathKey { vni, address } = *key;
            let result = match path.filter(is_usable) {
                Some(Path { mac, host, path_vni, .. }) => {
                    let path = DirectPath { vni, address, mac, host, path_vni, fixed: true, moved: false };
                    // If the new path cannot be written, the old one is removed, because it is out of date.
                    let written = context.tables.upsert_direct_path(&path);
                    written.or_else(|error| context.tables.remove_direct_path(vni, address).and(Err(error)))
                }
                None if context
                    .tables
                    .direct_path(vni, address)
                    .is_some_and(|path| path.fixed && !path.moved) =>
                {
                    context.tables.remove_direct_path(vni, address)
                }
                None => continue,
            };
            context.check(result, format_args!("path of VNI {vni} to {address}"));
        }
        if context.is_snapshot {
            let key = |path: &DirectPath| PathKey { vni: path.vni, address: path.address };
            let result = context.tables.retain_fixed(|path| paths.contains_key(&key(path)));
            context.check(result, "removal of paths that the snapshot does not have");
        }
    }
}
