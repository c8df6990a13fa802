//! The topology that hosts' snapshots share. Reading and indexing it takes as long as the rest of a snapshot for a
//! hundred hosts, and creating and deleting instances does not change it. So it is read once, and used until a
//! revision changes it.

use crate::compile::State;
use sluice_store::Change;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
struct Inner {
    /// Last revision that was followed.
    followed: u64,
    /// Last of these that changed more than instances and tenants, as far as is known.
    changed: u64,
    state: Option<Arc<State>>,
}

/// The last topology that was read, and for which revisions it is valid.
#[derive(Debug, Default)]
pub struct SharedTopology {
    inner: Mutex<Inner>,
}

/// Whether a change leaves the entries that [`State`] has for any instance the same.
fn is_of_instances(change: &Change) -> bool {
    matches!(
        change,
        Change::InstancesCreated { .. }
            | Change::InstancesRemoved { .. }
            | Change::InstanceMoved { .. }
            | Change::EndpointsAdded { .. }
            | Change::EndpointsRemoved { .. }
            | Change::TenantUpserted(_)
            | Change::TenantRemoved(_)
    )
}

impl SharedTopology {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The follower starts at a revision.
    pub fn reset(&self, revision: u64) {
        *self.lock() = Inner { followed: revision, changed: revision, state: None };
    }

    /// All changes of the next revision. Called before the revision is in the log of steps.
    pub fn apply(&self, revision: u64, changes: &[Change]) {
        let mut inner = self.lock();
        inner.followed = revision;
        if !changes.iter().all(is_of_instances) {
            inner.changed = revision;
            inner.state = None;
        }
    }

    /// The topology as of a revision that was followed; `None` if it must be read.
    pub fn at(&self, revision: u64) -> Option<Arc<State>> {
        let inner = self.lock();
        let state = inner.state.as_ref()?;
        let (first, last) = (revision.min(state.revision()), revision.max(state.revision()));
        (inner.changed <= first && last <= inner.followed).then(|| state.clone())
    }

    /// Keeps a topology that was read. It must contain no instances.
    pub fn keep(&self, state: &Arc<State>) {
        let mut inner = self.lock();
        if state.revision() >= inner.changed {
            inner.state = Some(state.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_store::{Tenant, Topology};
    use sluice_types::TenantId;

    fn topology(revision: u64) -> Arc<State> {
        let topology = Topology {
            revision,
            hosts: Vec::new(),
            clusters: Vec::new(),
            gateways: Vec::new(),
            vpcs: Vec::new(),
            subnets: Vec::new(),
            routes: Vec::new(),
            peerings: Vec::new(),
            keys: Vec::new(),
        };
        Arc::new(State::new(&topology, crate::compile::Model::Zeta))
    }

    #[test]
    fn topology_is_valid_between_its_changes() {
        let shared = SharedTopology::default();
        let tenant = Change::TenantUpserted(Tenant { id: TenantId::new(1), name: "t".into(), revision: 11 });
        let keys = Change::KeysChanged { cluster: sluice_types::ClusterId::new(1), keys: Vec::new() };
        shared.reset(10);
        assert!(shared.at(10).is_none(), "nothing was read");
        shared.keep(&topology(12));
        assert!(shared.at(10).is_none() && shared.at(12).is_none(), "not followed so far");
        shared.apply(11, std::slice::from_ref(&tenant));
        shared.apply(12, std::slice::from_ref(&tenant));
        assert!(shared.at(10).is_some() && shared.at(12).is_some() && shared.at(13).is_none());
        assert!(shared.at(9).is_none(), "before the follower started");
        shared.apply(13, &[tenant.clone(), keys]);
        assert!(shared.at(12).is_none() && shared.at(13).is_none());
        shared.keep(&topology(12));
        assert!(shared.at(13).is_none(), "it is older than the change");
        shared.keep(&topology(13));
        assert!(shared.at(13).is_some() && shared.at(12).is_none());
        shared.reset(14);
        assert!(shared.at(14).is_none());
    }
}
