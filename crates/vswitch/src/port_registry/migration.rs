//! The part of the registry that migrates instances: while an instance moves from one host to another, at most one of both has
//! its port open, and the other one sends its packets there. This file changes when the port of such an instance has another
//! state.
//!
//! ```text
//!     target:  WAITING ---- the guest runs here ----> OPENED ---- the controller has moved it ----> an ordinary port
//!                 |  ^                                  ^
//!                 |  +--- the source is open again ---+ |
//!                 +------ the source is closed ---> RECEIVING
//!                 +-------- canceled ---------------> removed
//!     source:  OPEN ------- freeze of the target ---> FROZEN ---- the controller has moved it ----> LEFT --- 30 s ---> removed
//!                 | ^                                 ^ |
//!                 | +------- it continues here ---+   | |
//!                 +------ the guest is stopped ---> PAUSED
//!                 ^                                     |
//!                 +-------- canceled -------------------+
//! ```
//!
//! WAITING, FROZEN and LEFT have paths to the other host instead of a port, and routes of delegated prefixes to these paths; OPENED has, too, while no interface is attached. A target
//! that is canceled keeps its paths for 30 s as well: the source may hear of it later. What the controller does not know, OPENED, FROZEN and
//! LEFT, is in a file: an agent that is started again neither closes the port of a guest that runs here nor opens that of one
//! that has left.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sluice_agent::error_chain;
use sluice_southbound::{MigrationSide, Port, PortMigration};
use sluice_tables::{DirectPath, NodeTables, Target};
use sluice_types::{EntryKey, InstanceId, IpNet, MacAddr, Vni};

use super::entry::policy_key;
use super::{Attachment, PortRegistry, RegistryError, files};
use crate::policies::CLOSED;

/// How long packets follow an instance after the controller has moved it: gateways and hosts know its new host after fractions
/// of a second.
const REDIRECT_LINGER: Duration = Duration::from_secs(30);

/// What has been done with the port of an instance that migrates, if the controller does not know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Done {
    /// At the target: the guest runs here.
    Opened,
    /// At the source: the guest runs at the target.
    Frozen,
    /// The controller has removed the instance from here: from the source, or from the target of a canceled migration.
    Left,
    /// The guest is stopped: the port of the source is closed, and that of the target is open, so that its interface keeps what
    /// comes. Not saved: the next agent of the target asks the source, whose next agent opens the port.
    Stopped,
}

/// The paths to the other host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Redirect {
    vni: Vni,
    /// VTEP of the other host.
    to: IpAddr,
    addresses: Vec<(IpAddr, MacAddr)>,
    /// Prefixes that are delegated to the instance. Their packets follow the path of its first address.
    #[serde(default)]
    prefixes: Vec<IpNet>,
}

/// An instance that migrates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Moving {
    instance: InstanceId,
    migration: u64,
    done: Option<Done>,
    pub(super) redirect: Option<Redirect>,
    /// When the paths of an instance that has left are removed.
    #[serde(skip)]
    until: Option<Instant>,
}

/// The instances that migrate.
pub(super) type Migrations = BTreeMap<InstanceId, Moving>;

/// Those of the file.
pub(super) fn from_saved(saved: Vec<Moving>) -> Migrations {
    saved.into_iter().map(|moving| (moving.instance, moving)).collect()
}

/// State of the port of an instance that migrates, for users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MovingPort {
    /// The guest does not run here yet.
    Waiting,
    /// The guest runs here, and the controller does not know it yet.
    Opened,
    /// The guest does not run here yet, and is stopped at the source: its interface here keeps what comes.
    Receiving,
    /// The guest runs here, until it is stopped.
    Leaving,
    /// The guest is stopped. It may continue here or at the target.
    Paused,
    /// The guest runs at the target.
    Frozen,
}

/// Where the sessions of an instance that migrates to this host are kept, and what judges them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyTarget {
    /// Index of the interface.
    pub ifindex: u32,
    /// Number of the port's sessions.
    pub scope: u16,
    /// Policy of the port: `None`, it is not filtered and has no sessions.
    pub policy: Option<u32>,
    /// The policy has not come yet, so nothing can be judged.
    pub is_closed: bool,
}

/// The paths to the other host of a port's addresses, and of the prefixes that are delegated to it.
fn redirect_of(port: &Port, to: IpAddr) -> Redirect {
    let further = port.options.additional.iter();
    let prefixes = further.filter(|net| net.prefix_len() != net.max_prefix_len()).copied().collect();
    Redirect { vni: port.vni, to, addresses: addresses(port), prefixes }
}

/// The addresses of a port that a path can lead to, with the MAC addresses by which the host of the instance delivers.
fn addresses(port: &Port) -> Vec<(IpAddr, MacAddr)> {
    let own = [port.ipv4.map(|net| net.addr().into()), port.ipv6.map(|net| net.addr().into())];
    let single = port.options.additional.iter().filter(|net| net.prefix_len() == net.max_prefix_len());
    let own = own.into_iter().flatten().chain(single.map(|net| net.addr()));
    let pairs = port.options.pairs.iter().filter(|pair| pair.held);
    let pairs = pairs.map(|pair| (pair.address, pair.mac.unwrap_or(port.mac)));
    own.map(|address| (address, port.mac)).chain(pairs).collect()
}

impl PortRegistry {
    /// The instances of this host that migrate.
    pub fn migrating(&self) -> impl Iterator<Item = (&Port, &PortMigration)> {
        self.instances.values().filter_map(|port| Some((port, port.migration.as_ref()?)))
    }

    /// Accepts packets of the hosts to which instances migrate: their VMs reach such an instance by its path to this host until it
    /// runs there. To be repeated, as the tables forget idle senders.
    pub fn permit_targets(&self, tables: &mut NodeTables) {
        for (port, migration) in self.migrating() {
            let MigrationSide::Outgoing { to } = migration.side else { continue };
            if let Err(error) = tables.permit_sender(port.vni, to) {
                tracing::debug!(instance = %port.instance, %to, error = error_chain(&error), "target not accepted yet");
            }
        }
    }

    /// Entries of instances that migrate, which are not compared with what the controller compiled.
    pub fn migrating_entries(&self) -> HashSet<EntryKey> {
        self.migrating().flat_map(|(port, _)| port.entry_hashes().map(|(key, _)| key)).collect()
    }

    /// The port of an instance that migrates; `None` if it does not.
    pub fn moving_port(&self, port: &Port) -> Option<MovingPort> {
        let migration = port.migration.as_ref()?;
        Some(match (&migration.side, self.done(port.instance, migration.id)) {
            (MigrationSide::Incoming { .. }, Some(Done::Opened)) => MovingPort::Opened,
            (MigrationSide::Incoming { .. }, Some(Done::Stopped)) => MovingPort::Receiving,
            (MigrationSide::Incoming { .. }, _) => MovingPort::Waiting,
            (MigrationSide::Outgoing { .. }, Some(Done::Stopped)) => MovingPort::Paused,
            // LEFT: an agent was killed after it had saved this and before it had saved that the instance is gone.
            (MigrationSide::Outgoing { .. }, Some(Done::Frozen | Done::Left)) => MovingPort::Frozen,
            (MigrationSide::Outgoing { .. }, _) => MovingPort::Leaving,
        })
    }

    /// Whether the packets of an instance's port pass this host.
    pub fn is_open(&self, port: &Port) -> bool {
        let closed = [MovingPort::Waiting, MovingPort::Frozen, MovingPort::Paused];
        !self.moving_port(port).is_some_and(|moving| closed.contains(&moving))
    }

    fn done(&self, instance: InstanceId, migration: u64) -> Option<Done> {
        self.moving.get(&instance).filter(|moving| moving.migration == migration)?.done
    }

    /// The host to which the packets of an instance go instead of its port here. A target without an interface for it sends them
    /// back: by a gateway they would come to the source, and from there again.
    pub(super) fn elsewhere(&self, instance: InstanceId) -> Option<IpAddr> {
        self.elsewhere_with(&self.attachments, instance)
    }

    /// The same with these attachments.
    pub(super) fn elsewhere_with(
        &self,
        attachments: &BTreeMap<String, Attachment>,
        instance: InstanceId,
    ) -> Option<IpAddr> {
        let port = self.instances.get(&instance)?;
        let is_attached = attachments.values().any(|attachment| attachment.instance == instance);
        match port.migration.as_ref()?.side {
            MigrationSide::Incoming { from } if !self.is_open(port) || !is_attached => Some(from),
            MigrationSide::Outgoing { to } if !self.is_open(port) => Some(to),
            _ => None,
        }
    }

    /// Where sessions of an instance that migrates to this host are installed; `None` while it has no interface.
    pub fn copy_target(&self, instance: InstanceId) -> Option<CopyTarget> {
        let port = self.instances.get(&instance)?;
        let attachment = self.attachments.values().find(|attachment| attachment.instance == instance)?;
        let policy = policy_key(port).map(|key| self.policies.id_for(key));
        let (ifindex, scope) = (attachment.ifindex, attachment.scope);
        Some(CopyTarget { ifindex, scope, policy, is_closed: policy == Some(CLOSED) })
    }

    /// Number of the sessions of an instance's port; `None` while it has none.
    pub fn scope_of(&self, instance: InstanceId) -> Option<u16> {
        let attachment = self.attachments.values().find(|attachment| attachment.instance == instance)?;
        self.scopes.is_given(attachment.scope).then_some(attachment.scope)
    }

    /// The guest runs at the target: closes the port, and sends its packets there. Repeating the call changes nothing.
    ///
    /// # Errors
    /// [`RegistryError::NotMigrating`], or if this cannot be saved or written.
    pub fn freeze(
        &mut self,
        tables: &mut NodeTables,
        instance: InstanceId,
        migration: u64,
    ) -> Result<(), RegistryError> {
        self.note_done(instance, migration, Done::Frozen)?;
        self.write_port(tables, instance)
    }

    /// The guest runs here: opens its port. Repeating the call changes nothing.
    ///
    /// # Errors
    /// [`RegistryError::NotMigrating`], or if this cannot be saved or written.
    pub fn open_moved(
        &mut self,
        tables: &mut NodeTables,
        instance: InstanceId,
        migration: u64,
    ) -> Result<(), RegistryError> {
        self.note_done(instance, migration, Done::Opened)?;
        self.write_port(tables, instance)
    }

    /// The guest is stopped at the source, or continues there. At the source that closes the port or opens it; at the target it is
    /// the other way round. Nothing changes once the guest runs at the target. Repeating the call changes nothing.
    ///
    /// # Errors
    /// [`RegistryError::NotMigrating`]; [`RegistryError::NotStopped`] at a source whose guest runs at the target and cannot continue
    /// here; or if this cannot be saved or written.
    pub fn set_stopped(
        &mut self,
        tables: &mut NodeTables,
        instance: InstanceId,
        migration: u64,
        is_stopped: bool,
    ) -> Result<(), RegistryError> {
        match (self.done(instance, migration), is_stopped) {
            (None, true) => self.note_done(instance, migration, Done::Stopped)?,
            (Some(Done::Stopped), false) => {
                let mut changed = self.moving.clone();
                if let Some(moving) = changed.get_mut(&instance) {
                    moving.done = None;
                }
                self.save_moving(changed)?;
            }
            (Some(Done::Frozen), false) => return Err(RegistryError::NotStopped(self.name_of(instance))),
            _ => return Ok(()),
        }
        self.write_port(tables, instance)
    }

    /// Number of the migration of an instance from this host, and its target.
    ///
    /// # Errors
    /// [`RegistryError::NotOutgoing`].
    pub fn outgoing(&self, instance: InstanceId) -> Result<(u64, IpAddr), RegistryError> {
        let migration = self.instances.get(&instance).and_then(|port| port.migration.as_ref());
        match migration.map(|migration| (migration.id, migration.side)) {
            Some((id, MigrationSide::Outgoing { to })) => Ok((id, to)),
            _ => Err(RegistryError::NotOutgoing(self.name_of(instance))),
        }
    }

    fn note_done(&mut self, instance: InstanceId, migration: u64, done: Done) -> Result<(), RegistryError> {
        let port = self.instances.get(&instance);
        let side = port.and_then(|port| port.migration.as_ref()).filter(|known| known.id == migration);
        let is_side = match side.map(|known| &known.side) {
            Some(MigrationSide::Incoming { .. }) => matches!(done, Done::Opened | Done::Stopped),
            Some(MigrationSide::Outgoing { .. }) => matches!(done, Done::Frozen | Done::Stopped),
            None => false,
        };
        if !is_side {
            return Err(RegistryError::NotMigrating { instance: self.name_of(instance), migration });
        }
        if self.done(instance, migration) == Some(done) {
            return Ok(());
        }
        let mut changed = self.moving.clone();
        let redirect = changed.remove(&instance).and_then(|moving| moving.redirect);
        let moving = Moving { instance, migration, done: Some(done), redirect, until: None };
        changed.insert(instance, moving);
        self.save_moving(changed)
    }

    /// Saves and takes over what was done. Without synchronization of the disk: after a crash of the machine, no guest runs.
    fn save_moving(&mut self, changed: Migrations) -> Result<(), RegistryError> {
        let lasts = |moving: &&Moving| moving.done.is_some_and(|done| done != Done::Stopped);
        let lasting: Vec<&Moving> = changed.values().filter(lasts).collect();
        files::write_migrations(&self.state_dir, &lasting)?;
        self.moving = changed;
        Ok(())
    }

    /// The controller has sent an instance: forgets what was done for another migration of it.
    pub(super) fn follow_migration(&mut self, instance: InstanceId) {
        let migration = self.instances.get(&instance).and_then(|port| port.migration.as_ref());
        let id = migration.map(|migration| migration.id);
        let Some(moving) = self.moving.get(&instance).filter(|moving| Some(moving.migration) != id) else {
            return;
        };
        // The paths stay known until the port is written.
        let kept = moving.redirect.clone().map(|redirect| Moving {
            instance,
            migration: 0,
            done: None,
            redirect: Some(redirect),
            until: None,
        });
        let mut changed = self.moving.clone();
        changed.remove(&instance);
        changed.extend(kept.map(|moving| (instance, moving)));
        self.save_or_keep(changed);
    }

    /// If the file cannot be written, the next agent knows more than is true, which the controller's next message corrects.
    fn save_or_keep(&mut self, changed: Migrations) {
        if let Err(error) = self.save_moving(changed.clone()) {
            tracing::error!(%error, "cannot save the state of migrations");
            self.moving = changed;
        }
    }

    /// Instead of a port, sends the packets of an instance to the other host. The sessions of the port stay.
    pub(super) fn close_port(
        &mut self,
        tables: &mut NodeTables,
        instance: InstanceId,
        to: IpAddr,
    ) -> Result<(), RegistryError> {
        if let Some((_, attachment)) = self.number_port(instance)? {
            self.scopes.reserve(attachment.scope);
        }
        let failed = |error: sluice_tables::Error| RegistryError::Tables(error_chain(&error));
        let attachment = self.attachments.values().find(|attachment| attachment.instance == instance);
        if let Some(ifindex) = attachment.map(|attachment| attachment.ifindex) {
            tables.remove_port(ifindex).map_err(failed)?;
        }
        let Some(port) = self.instances.get(&instance) else { return Ok(()) };
        let Some(&PortMigration { id: migration, side, .. }) = port.migration.as_ref() else { return Ok(()) };
        let redirect = redirect_of(port, to);
        let done = match (side, self.done(instance, migration)) {
            // The instance is here all the same, so it has not left.
            (MigrationSide::Outgoing { .. }, Some(Done::Left)) => Some(Done::Frozen),
            (MigrationSide::Incoming { .. }, Some(Done::Left)) => None,
            (_, done) => done,
        };
        let old = self.moving.get(&instance).and_then(|moving| moving.redirect.clone());
        if let Some(old) = old.filter(|old| *old != redirect) {
            remove_paths(tables, &old).map_err(failed)?;
        }
        let mut changed = self.moving.clone();
        let moving = Moving { instance, migration, done, redirect: Some(redirect.clone()), until: None };
        if changed.insert(instance, moving.clone()).as_ref() != Some(&moving) {
            self.save_or_keep(changed);
        }
        write_paths(tables, &redirect).map_err(failed)
    }

    /// The port of an instance was written, or it has none here: removes the paths to the other host.
    pub(super) fn remove_redirect(
        &mut self,
        tables: &mut NodeTables,
        instance: InstanceId,
    ) -> Result<(), RegistryError> {
        let Some(moving) = self.moving.get(&instance) else { return Ok(()) };
        let Some(redirect) = moving.redirect.clone() else { return Ok(()) };
        let failed = |error: sluice_tables::Error| RegistryError::Tables(error_chain(&error));
        remove_paths(tables, &redirect).map_err(failed)?;
        let mut changed = self.moving.clone();
        match changed.get_mut(&instance) {
            Some(moving) if matches!(moving.done, Some(Done::Opened | Done::Stopped)) => {
                moving.redirect = None
            }
            _ => drop(changed.remove(&instance)),
        }
        self.save_or_keep(changed);
        Ok(())
    }

    /// The paths to the source that an instance has which migrates to this host, or would have without a port.
    pub(super) fn way_back(&self, instance: InstanceId) -> Option<Redirect> {
        let port = self.instances.get(&instance)?;
        match port.migration.as_ref()?.side {
            MigrationSide::Incoming { from } => Some(redirect_of(port, from)),
            MigrationSide::Outgoing { .. } => None,
        }
    }

    /// The controller has removed an instance: for a while, packets follow one that has left, and return to the source of a
    /// canceled migration, which may redirect them until it has heard of that.
    pub(super) fn end_migration(
        &mut self,
        tables: &mut NodeTables,
        instance: InstanceId,
        way_back: Option<Redirect>,
    ) -> Result<(), RegistryError> {
        let Some(moving) = self.moving.get(&instance) else { return Ok(()) };
        let has_left = matches!(moving.done, Some(Done::Frozen | Done::Left));
        if !has_left && way_back.is_none() {
            self.remove_redirect(tables, instance)?;
            let mut changed = self.moving.clone();
            if changed.remove(&instance).is_some() {
                self.save_or_keep(changed);
            }
            return Ok(());
        }
        let redirect = moving.redirect.clone().or(way_back);
        let until = moving.until.or_else(|| Some(Instant::now() + REDIRECT_LINGER));
        let left = Moving { done: Some(Done::Left), redirect: redirect.clone(), until, ..moving.clone() };
        let mut changed = self.moving.clone();
        changed.insert(instance, left);
        self.save_or_keep(changed);
        // The network may be gone.
        if let Some(Err(error)) = redirect.map(|redirect| write_paths(tables, &redirect)) {
            tracing::warn!(%instance, error = error_chain(&error), "cannot redirect its packets");
        }
        Ok(())
    }

    /// After a snapshot, which names all instances: those that are unknown have left while no agent or another one ran here.
    pub fn end_unknown_migrations(&mut self) {
        let mut changed = self.moving.clone();
        let unknown = changed.values_mut().filter(|moving| !self.instances.contains_key(&moving.instance));
        for moving in unknown {
            moving.done = Some(Done::Left);
        }
        if changed != self.moving {
            self.save_or_keep(changed);
        }
    }

    /// Removes the paths of instances that have left long ago.
    pub fn remove_expired_redirects(&mut self, tables: &mut NodeTables, now: Instant) {
        let left = self.moving.values_mut().filter(|moving| moving.done == Some(Done::Left));
        let mut expired = Vec::new();
        for moving in left {
            // The time of an earlier agent is not known.
            if *moving.until.get_or_insert(now + REDIRECT_LINGER) <= now {
                expired.push(moving.instance);
            }
        }
        for instance in expired {
            if let Err(error) = self.remove_redirect(tables, instance) {
                tracing::error!(%instance, %error, "cannot remove the paths of an instance that has left; retrying later");
                continue;
            }
            // It may have had no paths.
            let mut changed = self.moving.clone();
            if changed.remove(&instance).is_some() {
                self.save_or_keep(changed);
            }
        }
    }

    /// Writes the paths of all instances that migrate, and removes those of others. Returns whether all were written.
    pub(super) fn write_redirects(&mut self, tables: &mut NodeTables) -> Result<bool, RegistryError> {
        let failed = |error: sluice_tables::Error| RegistryError::Tables(error_chain(&error));
        let mut all_written = true;
        let incoming: Vec<InstanceId> = self.migrating().map(|(port, _)| port.instance).collect();
        for instance in incoming {
            if let Err(error) = self.write_port(tables, instance) {
                tracing::warn!(port = self.name_of(instance), %error, "a port that migrates is not in the tables yet");
                all_written = false;
            }
        }
        let known: HashSet<(Vni, IpAddr)> = self
            .moving
            .values()
            .filter_map(|moving| moving.redirect.as_ref())
            .flat_map(|redirect| redirect.addresses.iter().map(|(address, _)| (redirect.vni, *address)))
            .collect();
        let unknown: Vec<(Vni, IpAddr)> = tables
            .direct_paths()
            .map(|(path, _)| path)
            .filter(|path| path.moved && !known.contains(&(path.vni, path.address)))
            .map(|path| (path.vni, path.address))
            .collect();
        for (vni, address) in unknown {
            tables.remove_direct_path(vni, address).map_err(failed)?;
        }
        self.remove_unknown_routes(tables).map_err(failed)?;
        for moving in self.moving.values().filter(|moving| moving.done == Some(Done::Left)) {
            let Some(redirect) = &moving.redirect else { continue };
            if let Err(error) = write_paths(tables, redirect) {
                tracing::warn!(instance = %moving.instance, error = error_chain(&error), "cannot redirect its packets");
            }
        }
        Ok(all_written)
    }

    /// Removes the routes of delegated prefixes whose instance does not migrate any more.
    fn remove_unknown_routes(&self, tables: &mut NodeTables) -> Result<(), sluice_tables::Error> {
        let redirects = self.moving.values().filter_map(|moving| moving.redirect.as_ref());
        let known: HashSet<(Vni, IpNet)> = redirects
            .flat_map(|redirect| redirect.prefixes.iter().map(|prefix| (redirect.vni, *prefix)))
            .collect();
        let moved = tables.routes().filter(|route| matches!(route.target, Target::Moved(_)));
        let moved = moved.map(|route| (route.vni, route.prefix));
        let unknown: Vec<(Vni, IpNet)> = moved.filter(|route| !known.contains(route)).collect();
        for (vni, prefix) in unknown {
            tables.remove_moved_route(vni, prefix)?;
        }
        Ok(())
    }
}

fn write_paths(tables: &mut NodeTables, redirect: &Redirect) -> Result<(), sluice_tables::Error> {
    let Redirect { vni, to: host, ref addresses, ref prefixes } = *redirect;
    for (address, mac) in addresses.iter().copied() {
        let path = DirectPath { vni, address, mac, host, path_vni: vni, mtu: 0, fixed: true, moved: true };
        tables.upsert_direct_path(&path)?;
    }
    let first = addresses.first().map(|(address, _)| *address);
    for (prefix, first) in prefixes.iter().filter_map(|prefix| Some((*prefix, first?))) {
        tables.upsert_moved_route(vni, prefix, first)?;
    }
    Ok(())
}

fn remove_paths(tables: &mut NodeTables, redirect: &Redirect) -> Result<(), sluice_tables::Error> {
    for prefix in &redirect.prefixes {
        tables.remove_moved_route(redirect.vni, *prefix)?;
    }
    for (address, _) in &redirect.addresses {
        if tables.direct_path(redirect.vni, *address).is_some_and(|path| path.moved) {
            tables.remove_direct_path(redirect.vni, *address)?;
        }
    }
    Ok(())
}
