//! Fixed paths: direct paths that the controller sets (docs/decisions/models.md), in contrast to those that a
//! host learns. This file changes when the controller may set paths with other properties.

use std::collections::HashMap;
use std::net::IpAddr;

use sluice_agent::{UpdateContext, error_chain};
use sluice_southbound::{Path, PathKey};
use sluice_tables::{DirectPath, NodeTables};
use sluice_types::Vni;

/// The paths of the current step, written when it ends.
#[derive(Debug, Default)]
pub(super) struct PendingPaths {
    /// `None` stands for a removal.
    step: HashMap<PathKey, Option<Path>>,
    /// Those whose instance migrates, and whose address has a path to the other host until that is removed.
    held: HashMap<PathKey, Path>,
}

fn direct_path(key: &PathKey, path: &Path) -> DirectPath {
    let (PathKey { vni, address }, Path { mac, host, path_vni, .. }) = (*key, *path);
    DirectPath { vni, address, mac, host, path_vni, mtu: 0, fixed: true, moved: false }
}

impl PendingPaths {
    /// Forgets the paths of an unfinished step.
    pub(super) fn clear(&mut self) {
        self.step.clear();
    }

    /// Notes the paths of a message.
    pub(super) fn note(&mut self, paths: &[Path], removed: &[PathKey]) {
        self.step.extend(paths.iter().map(|path| (path.key, Some(*path))));
        self.step.extend(removed.iter().map(|key| (*key, None)));
    }

    /// Writes the paths of the step. A path needs its network and its host's VTEP, and yields to a port,
    /// whichever messages of the step these are in; so paths are written last. Those of a snapshot are all
    /// that there are. A path of an instance that migrates stays: packets follow that.
    pub(super) fn write(&mut self, context: &mut UpdateContext<'_>) {
        let paths = std::mem::take(&mut self.step);
        if context.is_snapshot {
            self.held.clear();
        }
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
            let (path, known) = (path.filter(is_usable), context.tables.direct_path(vni, address));
            self.held.remove(key);
            if known.is_some_and(|known| known.moved) {
                self.held.extend(path.map(|path| (*key, path)));
                continue;
            }
            let result = match path {
                Some(path) => {
                    // If the new path cannot be written, the old one is removed, because it is out of date.
                    let written = context.tables.upsert_direct_path(&direct_path(key, &path));
                    written.or_else(|error| context.tables.remove_direct_path(vni, address).and(Err(error)))
                }
                None if known.is_some_and(|known| known.fixed) => {
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

    /// Forgets the paths of networks that are removed.
    pub(super) fn forget(&mut self, vnis: &[Vni]) {
        self.held.retain(|key, _| !vnis.contains(&key.vni));
    }

    /// Writes the paths of instances that no longer migrate.
    pub(super) fn write_held(&mut self, tables: &mut NodeTables) {
        let is_moved =
            |key: &PathKey| tables.direct_path(key.vni, key.address).is_some_and(|known| known.moved);
        let ready: Vec<(PathKey, Path)> = self.held.extract_if(|key, _| !is_moved(key)).collect();
        for (key, path) in ready {
            if let Err(error) = tables.upsert_direct_path(&direct_path(&key, &path)) {
                // As a port of this host has the address.
                tracing::debug!(?key, error = error_chain(&error), "a path that was held is not written");
            }
        }
    }
}
