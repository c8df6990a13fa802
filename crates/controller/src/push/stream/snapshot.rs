//! Sends a node its complete tables, read from the store as one consistent snapshot.

use super::super::count;
use super::super::steps::encode;
use super::{Ended, NodeStream, Side};
use crate::compile::{HostView, Membership, State};
use bytes::Bytes;
use sluice_southbound::{EncodedUpdate, Update, UpdateHead};
use sluice_store::{Instance, InstancesOf, Position, SnapshotPart};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::sync::mpsc;

/// Parts of a snapshot that are read ahead of sending.
const READ_AHEAD: usize = 4;

impl NodeStream {
    /// Sends a snapshot and moves the stream's position behind it. A host that already has the snapshot's
    /// revision is sent nothing: only its view is filled.
    pub(super) async fn snapshot(&mut self) -> Result<(), Ended> {
        let began = Instant::now();
        self.last_snapshot = began;
        let of = match &self.side {
            Side::Gateway(gateway) => InstancesOf::Gateway(gateway.id),
            Side::Host(host) if self.preprograms() => InstancesOf::Around(host.id),
            Side::Host(host) => InstancesOf::Host(host.id),
        };
        let (sink, parts) = mpsc::channel(READ_AHEAD);
        let store = self.push.db.store.clone();
        let known = self.known;
        let snapshot = async move { store.snapshot_from(known, of, sink).await };
        let (revision, sent) = tokio::join!(snapshot, self.send_snapshot(parts));
        // If the node disconnected, the error of the store only says that the receiver is closed.
        let sent = sent?;
        let revision = revision?;
        if let Some(entries) = sent {
            self.sent.store(revision, Ordering::Release);
            let node = self.side.node();
            self.push.hub.snapshot_sent(node, self.session, revision);
            let end = UpdateHead { revision, commit_id: self.known.commit, ..self.snapshot_head() };
            self.send(EncodedUpdate::new(end, Bytes::new())).await?;
            self.keep_unmentioned = false;
            count(&self.push.counters.snapshots);
            let ms = began.elapsed().as_secs_f64() * 1000.0;
            tracing::info!(?node, revision, entries, ms, "snapshot sent");
        }
        self.cursor = revision;
        self.cluster_update_sent |= sent.is_some();
        Ok(())
    }

    /// The head of a message of a snapshot.
    fn snapshot_head(&self) -> UpdateHead {
        UpdateHead { snapshot: true, keep_unmentioned: self.keep_unmentioned, ..self.head() }
    }

    fn preprograms(&self) -> bool {
        self.push.compiled.model().preprograms()
    }

    /// Sends a snapshot except for the message that ends it, and returns the number of entries. `None` if the
    /// node has the snapshot's revision already.
    async fn send_snapshot(
        &mut self,
        mut parts: mpsc::Receiver<SnapshotPart>,
    ) -> Result<Option<usize>, Ended> {
        let mut state = Arc::new(State::default());
        let mut skip = false;
        let mut entries = 0;
        while let Some(part) = parts.recv().await {
            let update = match part {
                SnapshotPart::Topology(topology) => {
                    self.known = Position { revision: topology.revision, commit: topology.commit };
                    // To a node that has this revision, nothing is sent.
                    let is_known = match &self.side {
                        Side::Gateway(_) => true,
                        Side::Host(host) => host.view.is_none(),
                    };
                    skip = is_known && self.cursor != 0 && self.cursor == topology.revision;
                    skip &= !self.push.hub.is_incomplete(self.side.node());
                    state = Arc::new(State::new(&topology, self.push.compiled.model()));
                    self.base(&state, skip)?
                }
                SnapshotPart::Instances(instances) => self.instances(&mut state, instances).await?,
            };
            if let Side::Host(host) = &mut self.side
                && let Some(view) = &mut host.view
            {
                view.add(&update.ports);
            }
            if skip {
                continue;
            }
            entries += self.send_part(update).await?;
        }
        entries += self.send_host_end(state, skip).await?;
        Ok((!skip).then_some(entries))
    }

    /// Entries of instances: endpoints for a gateway, ports for a host.
    async fn instances(&self, state: &mut Arc<State>, mut instances: Vec<Instance>) -> Result<Update, Ended> {
        let is_host = match &self.side {
            Side::Gateway(_) => false,
            Side::Host(host) => {
                if self.preprograms() {
                    Arc::make_mut(state).add_instances(&instances);
                    instances.retain(|instance| instance.host == host.id);
                }
                true
            }
        };
        let state = state.clone();
        let update = tokio::task::spawn_blocking(move || match is_host {
            true => state.ports(&instances),
            false => Update { endpoints: state.endpoints(&instances), ..Update::default() },
        });
        Ok(update.await?)
    }

    /// Sends a host the entries that follow its ports: direct paths, and the keys of its VPCs' clusters.
    /// Returns the number of entries.
    async fn send_host_end(&mut self, state: Arc<State>, skip: bool) -> Result<usize, Ended> {
        let Side::Host(host) = &mut self.side else { return Ok(0) };
        let id = host.id;
        let mut keys = Update::default();
        if let Some(view) = &mut host.view {
            view.set_vpc_clusters(&state.clusters_by_vni());
            let clusters = view.clusters().into_iter().chain(host.idle_keys.keys().copied()).collect();
            keys = state.host_keys(&clusters);
            if !skip {
                view.set_keys(clusters);
            }
        }
        if skip {
            return Ok(0);
        }
        let paths = tokio::task::spawn_blocking(move || state.host_paths(id)).await?;
        let entries = self.send_part(Update { paths, ..Update::default() }).await?;
        Ok(entries + self.send_part(keys).await?)
    }

    /// Sends entries of a snapshot. Returns their number.
    async fn send_part(&self, update: Update) -> Result<usize, Ended> {
        let (head, entries) = (self.snapshot_head(), update.entry_count());
        for part in tokio::task::spawn_blocking(move || encode(update)).await? {
            self.send(EncodedUpdate::new(head, part)).await?;
        }
        Ok(entries)
    }

    /// The tables of the node without instances. Updates what the stream remembers of the node. With `skip`
    /// they are not sent.
    fn base(&mut self, state: &State, skip: bool) -> Result<Update, Ended> {
        let unknown = Ended::Unknown(self.side.node());
        match &mut self.side {
            Side::Gateway(side) => {
                let (gateway, update) = state.gateway_base(side.id).ok_or(unknown)?;
                side.membership = Membership::of(&gateway);
                Ok(update)
            }
            Side::Host(host) => {
                let Some((family, mut base)) = state.host_family(host.id).zip(state.host_base(host.id))
                else {
                    return Err(unknown);
                };
                host.view = Some(HostView::new(host.id, family));
                if self.push.compiled.model().has_zones() {
                    base.groups = self.push.compiled.zones().borrow().groups(host.id);
                    if !skip {
                        host.zone_groups.clone_from(&base.groups);
                    }
                }
                Ok(base)
            }
        }
    }
}
