//! The topology that hosts' snapshots share. Reading and indexing it takes as long as the rest of a snapshot for a
//! hundred hosts, and creating and deleting instances does not change it. So it is read once, and used until a
//! revision changes it.

use crate::compile::{State, port_changes};
use sluice_store::{Change, Position};
use sluice_types::VpcId;
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Followed positions that are remembered: more than are followed while a host's instances are read.
const POSITIONS_MAX: usize = 1024;

#[derive(Debug, Default)]
struct Inner {
    /// The last positions that were followed, in order. What is read at another position is of a history of the
    /// database that the follower does not follow, or has not reached.
    followed: VecDeque<Position>,
    /// Last of these that changed what hosts have besides their instances, as far as is known.
    changed: u64,
    /// VPCs that have mounts of services: hosts are told which hosts have ports in them.
    mounted: BTreeSet<VpcId>,
    state: Option<Arc<State>>,
}

impl Inner {
    /// Whether a change leaves the entries that [`State`] has for any host with its instances the same. Advances by it.
    fn is_of_instances(&mut self, change: &Change) -> bool {
        match change {
            Change::MountCreated { vpc, .. } => drop(self.mounted.insert(vpc.id)),
            // That the VPC has another mount is possible, so it stays.
            Change::VpcRemoved(vpc) => drop(self.mounted.remove(&vpc.id)),
            _ => {}
        }
        let is_mounted = port_changes(change).is_some_and(|vpc| self.mounted.contains(&vpc.id));
        is_of_instances(change) && !is_mounted
    }

    fn last(&self) -> u64 {
        self.followed.back().map_or(0, |last| last.revision)
    }
}

/// The last topology that was read, and for which revisions it is valid.
#[derive(Debug, Default)]
pub struct SharedTopology {
    inner: Mutex<Inner>,
}

/// Whether a change leaves the entries that [`State`] has for any host with its instances the same.
fn is_of_instances(change: &Change) -> bool {
    matches!(
        change,
        Change::InstancesCreated { .. }
            | Change::InstancesRemoved { .. }
            | Change::InstanceMoved { .. }
            | Change::InstanceMigrationChanged { .. }
            | Change::EndpointsAdded { .. }
            | Change::EndpointsRemoved { .. }
            | Change::InstanceGroupsChanged { .. }
            | Change::InstancesChanged { .. }
            | Change::SecurityGroupUpdated { .. }
            | Change::TenantUpserted(_)
            | Change::TenantRemoved(_)
            | Change::PublicPoolUpserted(_)
            | Change::PublicPoolRemoved(_)
            | Change::EipUpserted(_)
            | Change::EipRemoved(_)
            | Change::NatGatewayUpserted(_)
            | Change::NatGatewayRemoved(_)
            | Change::MeterUpserted(_)
            | Change::MeterRemoved(_)
            | Change::PortForwardCreated(_)
            | Change::PortForwardRemoved(_)
            | Change::CreditChanged { .. }
    )
}

impl SharedTopology {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The follower starts at a position. `mounted` are the VPCs that have mounts.
    pub fn reset(&self, at: Position, mounted: BTreeSet<VpcId>) {
        *self.lock() = Inner { followed: [at].into(), changed: at.revision, mounted, state: None };
    }

    /// All changes of the next revision. Called before the revision is in the log of steps.
    pub fn apply(&self, at: Position, changes: &[Change]) {
        let mut inner = self.lock();
        if inner.followed.len() == POSITIONS_MAX {
            inner.followed.pop_front();
        }
        inner.followed.push_back(at);
        let changes_more = changes.iter().filter(|change| !inner.is_of_instances(change)).count() > 0;
        if changes_more {
            inner.changed = at.revision;
            inner.state = None;
        }
    }

    /// The topology as of a position that was followed; `None` if it must be read.
    pub fn at(&self, position: Position) -> Option<Arc<State>> {
        let inner = self.lock();
        let revision = position.revision;
        let state = inner.state.as_ref()?;
        let (first, last) = (revision.min(state.revision()), revision.max(state.revision()));
        let is_valid = inner.changed <= first && last <= inner.last() && inner.followed.contains(&position);
        is_valid.then(|| state.clone())
    }

    /// Keeps a topology that was read at a position. It must contain no instances.
    pub fn keep(&self, state: &Arc<State>, at: Position) {
        let mut inner = self.lock();
        // One that is ahead of the follower is used when the follower has reached it.
        let is_followed = at.revision > inner.last() || inner.followed.contains(&at);
        if is_followed && at.revision >= inner.changed {
            inner.state = Some(state.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_store::{GroupSet, SecurityGroup, Tenant, Topology, Vpc};
    use sluice_types::{ClusterId, SecurityGroupId, TenantId, Vni, VpcId};

    fn topology(revision: u64) -> Arc<State> {
        let topology = Topology { revision, ..Topology::default() };
        Arc::new(State::new(&topology, crate::compile::Model::Zeta))
    }

    /// A position of the history whose commits have these ids.
    fn at(revision: u64) -> Position {
        Position { revision, commit: 1000 + revision }
    }

    /// Catches a host's tables that are made of the instances of one history and the topology of another.
    #[test]
    fn topology_is_of_the_history_of_the_position() {
        let lost = Position { commit: 1, ..at(12) };
        let shared = SharedTopology::default();
        shared.reset(at(12), BTreeSet::new());
        shared.keep(&topology(12), lost);
        assert!(shared.at(at(12)).is_none(), "it is of another history");
        shared.keep(&topology(12), at(12));
        assert!(shared.at(lost).is_none() && shared.at(at(12)).is_some());
    }

    #[test]
    fn topology_is_valid_between_its_changes() {
        let shared = SharedTopology::default();
        let tenant = Change::TenantUpserted(Tenant { id: TenantId::new(1), name: "t".into(), revision: 11 });
        let keys = Change::KeysChanged { cluster: ClusterId::new(1), keys: Vec::new() };
        shared.reset(at(10), BTreeSet::new());
        assert!(shared.at(at(10)).is_none(), "nothing was read");
        shared.keep(&topology(12), at(12));
        assert!(shared.at(at(10)).is_none() && shared.at(at(12)).is_none(), "not followed so far");
        shared.apply(at(11), std::slice::from_ref(&tenant));
        shared.apply(at(12), std::slice::from_ref(&tenant));
        assert!(shared.at(at(10)).is_some() && shared.at(at(12)).is_some() && shared.at(at(13)).is_none());
        assert!(shared.at(at(9)).is_none(), "before the follower started");
        shared.apply(at(13), &[tenant.clone(), keys]);
        assert!(shared.at(at(12)).is_none() && shared.at(at(13)).is_none());
        shared.keep(&topology(12), at(12));
        assert!(shared.at(at(13)).is_none(), "it is older than the change");
        shared.keep(&topology(13), at(13));
        assert!(shared.at(at(13)).is_some() && shared.at(at(12)).is_none());
        shared.reset(at(14), BTreeSet::new());
        assert!(shared.at(at(14)).is_none());
    }

    /// Catches hosts' tables that are made of the policies of an earlier revision.
    #[test]
    fn changes_of_policies_change_the_topology_and_groups_of_instances_do_not() {
        let shared = SharedTopology::default();
        let vpc = VpcId::new(1);
        let stored = Vpc {
            id: vpc,
            name: "v".into(),
            tenant: TenantId::new(1),
            vni: Vni::new(7).unwrap(),
            cluster: ClusterId::new(1),
            mtu: 1430,
            offload_kbps: None,
            internet_meter: None,
            moving: None,
            revision: 1,
        };
        let (id, name, description, revision) = (SecurityGroupId::new(1), "g".to_owned(), String::new(), 11);
        let group = SecurityGroup { id, name, vpc, description, revision };
        let renamed = Change::SecurityGroupUpdated { vpc: stored.clone(), group: group.clone() };
        shared.reset(at(10), BTreeSet::new());
        shared.keep(&topology(10), at(10));
        shared.apply(at(11), &[renamed]);
        assert!(shared.at(at(11)).is_some());
        let set = GroupSet { vpc, identity: 1, groups: vec![id] };
        let created = Change::GroupSetsCreated { vpc: stored.clone(), sets: vec![set] };
        shared.apply(at(12), &[created]);
        assert!(shared.at(at(11)).is_none() && shared.at(at(12)).is_none());
        shared.keep(&topology(12), at(12));
        assert!(shared.at(at(12)).is_some());
        let removed = Change::SecurityGroupRemoved { vpc: stored, group, identities: vec![1] };
        shared.apply(at(13), &[removed]);
        assert!(shared.at(at(12)).is_none() && shared.at(at(13)).is_none());
    }
}
