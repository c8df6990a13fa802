//! Sends a node its complete tables as of one revision. A place among the snapshots that are sent is held until the
//! node has taken the last message; the database is not used meanwhile.

use super::super::count;
use super::super::snapshots::{Tables, gateway_tables};
use super::super::steps::encode;
use super::{Ended, NodeStream, Side};
use crate::compile::{HostView, Membership, State};
use bytes::Bytes;
use sluice_southbound::proto::NodeUpdate;
use sluice_southbound::{EncodedUpdate, Group, Update, UpdateHead};
use sluice_store::{Instance, InstancesOf, Position, SnapshotPart};
use sluice_types::{GatewayId, HostId};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Parts of a host's snapshot that are read ahead of encoding.
const READ_AHEAD: usize = 4;
/// Longest wait for the follower, which says whether the topology has changed.
const FOLLOWED: Duration = Duration::from_millis(200);

/// The instances of a host and the topology, as of one revision of the history that the stream continues.
struct HostInput {
    position: Position,
    state: Arc<State>,
    instances: Vec<Instance>,
}

/// The encoded tables of a host.
struct HostTables {
    revision: u64,
    parts: Vec<Bytes>,
    entries: usize,
    /// The host has this revision already.
    is_known: bool,
    /// Sent to such a host all the same, if it detects elephants: its tables do not say that it does.
    groups: Vec<Group>,
}

impl NodeStream {
    /// Sends a snapshot and moves the stream's position behind it. A node that already has the snapshot's
    /// revision is sent nothing but its groups, if it detects elephants: only what the stream remembers of a host is filled. The node names the entries of
    /// `verify_shards` that it repairs.
    pub(super) async fn snapshot(&mut self, verify_shards: u64) -> Result<(), Ended> {
        let began = Instant::now();
        let node = self.side.node();
        let push = self.push.clone();
        let _place = push.snapshots.admit(push.hub.is_slow(node)).await?;
        self.last_snapshot = Instant::now();
        let (revision, entries) = match &self.side {
            Side::Gateway(gateway) => {
                let (id, membership) = (gateway.id, gateway.membership);
                self.gateway_snapshot(id, membership, verify_shards).await?
            }
            Side::Host(host) => self.host_snapshot(host.id, verify_shards).await?,
        };
        if let Some(entries) = entries {
            self.sent.store(revision, Ordering::Release);
            self.push.hub.snapshot_sent(node, self.session, revision);
            let end = UpdateHead { revision, commit_id: self.known.commit, ..self.snapshot_head() };
            self.send(EncodedUpdate::new(end, Bytes::new())).await?;
            self.keep_unmentioned = false;
            count(&self.push.counters.snapshots);
            let ms = began.elapsed().as_secs_f64() * 1000.0;
            tracing::info!(?node, revision, entries, ms, "snapshot sent");
        }
        self.cursor = revision;
        self.cluster_update_sent |= entries.is_some();
        Ok(())
    }

    /// The head of a message of a snapshot.
    fn snapshot_head(&self) -> UpdateHead {
        UpdateHead { snapshot: true, keep_unmentioned: self.keep_unmentioned, ..self.head() }
    }

    /// Sends a gateway's tables except for the message that ends them. Returns their revision and the number of
    /// entries; no number if the gateway has the revision already.
    async fn gateway_snapshot(
        &mut self,
        id: GatewayId,
        membership: Membership,
        verify_shards: u64,
    ) -> Result<(u64, Option<usize>), Ended> {
        let at_least = self.cursor.max(self.snapshot_from);
        let tables: Arc<Tables> = gateway_tables(&self.push, id, membership, self.known, at_least).await?;
        let revision = tables.position.revision;
        let unknown = Ended::Unknown(self.side.node());
        let membership = tables.membership(id).ok_or(unknown)?;
        if let Side::Gateway(side) = &mut self.side {
            side.membership = membership;
        }
        self.known = tables.position;
        if verify_shards == 0 && self.has(revision) {
            return Ok((revision, None));
        }
        self.begin_snapshot(verify_shards).await?;
        let mut index = 0;
        while let Some(part) = tables.part(index).await? {
            self.send_part(part).await?;
            index += 1;
        }
        Ok((revision, Some(tables.entries())))
    }

    /// The same for a host.
    async fn host_snapshot(&mut self, id: HostId, verify_shards: u64) -> Result<(u64, Option<usize>), Ended> {
        let input = self.read_host(id).await?;
        self.known = input.position;
        let HostTables { revision, parts, entries, is_known, groups } =
            self.host_tables(id, input, verify_shards != 0).await?;
        if is_known {
            if !groups.is_empty() {
                self.send_unnumbered(Update { groups, ..Update::default() }).await?;
            }
            return Ok((revision, None));
        }
        self.begin_snapshot(verify_shards).await?;
        for part in parts {
            self.send_part(part).await?;
        }
        Ok((revision, Some(entries)))
    }

    async fn begin_snapshot(&self, verify_shards: u64) -> Result<(), Ended> {
        self.push.hub.snapshot_begun(self.side.node(), self.session);
        if verify_shards == 0 {
            return Ok(());
        }
        let first = NodeUpdate { verify_shards, ..NodeUpdate::default() };
        self.send_part(EncodedUpdate::encode_entries(&first)).await
    }

    async fn send_part(&self, part: Bytes) -> Result<(), Ended> {
        self.send(EncodedUpdate::new(self.snapshot_head(), part)).await
    }

    /// Whether the node has a revision completely.
    fn has(&self, revision: u64) -> bool {
        self.cursor != 0 && self.cursor == revision && !self.push.hub.is_incomplete(self.side.node())
    }

    /// Reads what a host's tables are made of. Reads only its instances if the topology is known.
    async fn read_host(&self, id: HostId) -> Result<HostInput, Ended> {
        let (store, preprograms) = (&self.push.db.store, self.push.compiled.model().preprograms());
        if !preprograms {
            let (position, instances) = store.host_instances(self.known, id).await?;
            let mut followed = self.push.log.watch();
            // Without the follower, the topology is read.
            let _ =
                tokio::time::timeout(FOLLOWED, followed.wait_for(|last| *last >= position.revision)).await;
            if let Some(state) = self.push.topology.at(position) {
                return Ok(HostInput { position, state, instances });
            }
        }
        let of = if preprograms { InstancesOf::Around(id) } else { InstancesOf::Host(id) };
        let (sink, mut parts) = mpsc::channel(READ_AHEAD);
        let model = self.push.compiled.model();
        let read = async move {
            let (mut position, mut state, mut own) = (Position::default(), State::default(), Vec::new());
            while let Some(part) = parts.recv().await {
                match part {
                    SnapshotPart::Topology(topology) => {
                        position = Position { revision: topology.revision, commit: topology.commit };
                        state = tokio::task::spawn_blocking(move || State::new(&topology, model)).await?;
                    }
                    SnapshotPart::Instances(instances) => {
                        if preprograms {
                            state.add_instances(&instances);
                        }
                        own.extend(instances.into_iter().filter(|one| one.hosts().any(|host| host == id)));
                    }
                }
            }
            Ok::<_, Ended>((position, Arc::new(state), own))
        };
        let (done, read) = tokio::join!(store.snapshot_from(self.known, of, sink), read);
        done?;
        let (position, state, instances) = read?;
        if !preprograms {
            self.push.topology.keep(&state, position);
        }
        Ok(HostInput { position, state, instances })
    }

    /// Makes the tables of a host, and records its ports and VPCs in the stream's view of it.
    async fn host_tables(
        &mut self,
        id: HostId,
        input: HostInput,
        is_verification: bool,
    ) -> Result<HostTables, Ended> {
        let HostInput { position: Position { revision, .. }, state, instances } = input;
        let unknown = Ended::Unknown(self.side.node());
        let has_it = self.has(revision);
        let Side::Host(host) = &mut self.side else { return Err(unknown) };
        // Only a view that exists already can be outdated although the revision is the same.
        let is_known = host.view.is_none() && has_it && !is_verification;
        let (vtep, mut base) = state.host_vtep(id).zip(state.host_base(id)).ok_or(unknown)?;
        if self.push.compiled.model().has_zones() {
            base.groups = self.push.compiled.zones().borrow().groups(id);
            if !is_known {
                host.zone_groups.clone_from(&base.groups);
            }
        }
        let ports = tokio::task::spawn_blocking({
            let state = state.clone();
            move || state.ports(id, &instances)
        });
        let ports = ports.await?;
        let mut view = HostView::new(id, vtep);
        view.add(&ports.ports);
        view.set_vpc_clusters(&state.clusters_by_vni());
        view.set_services(&state.services_by_vni());
        let clusters = view.clusters().into_iter().chain(host.idle_keys.keys().copied()).collect();
        let keys = state.host_keys(vtep, &clusters);
        if !is_known {
            view.set_keys(clusters);
        }
        host.view = Some(view);
        if is_known {
            let model = self.push.compiled.model();
            let detects = model.hosts_detect_after_ms().is_some() && !model.has_zones();
            let groups = if detects { base.groups } else { Vec::new() };
            return Ok(HostTables { revision, parts: Vec::new(), entries: 0, is_known, groups });
        }
        let encoded = tokio::task::spawn_blocking(move || {
            let paths = Update { paths: state.host_paths(id), ..Update::default() };
            let all = [base, ports, paths, keys];
            let entries = all.iter().map(Update::entry_count).sum();
            (all.into_iter().flat_map(encode).collect(), entries)
        });
        let (parts, entries) = encoded.await?;
        Ok(HostTables { revision, parts, entries, is_known, groups: Vec::new() })
    }
}
