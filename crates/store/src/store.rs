//! [`Store`]: all operations on the database. It queues writers and retries transactions that conflict.

use crate::backend::{Backend, Reader, is_retryable};
use crate::ops::{
    adopt, bulk, clusters, events, gateway_moves, gateways, history, hosts, instances, keys, outbox,
    peerings, placement_plans, routes, settings, snapshot, southbound, subnets, tenants, vpc_moves, vpcs,
};
use crate::rows::{get, page};
use crate::write::{NewestCommit, Write, now_ms};
use crate::*;
use sluice_types::{
    ClusterId, GatewayId, HostId, InstanceId, MeterId, PeeringId, RouteId, RouteTableId, SubnetId, TenantId,
    VpcId,
};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, MutexGuard, Semaphore, SemaphorePermit, mpsc::Sender, watch};

/// Largest number of retries of a transaction that failed because of a concurrent one.
const RETRIES: u32 = 8;
/// Attempts to replace the vIPs of a cluster while others change the same cluster.
const VIP_ATTEMPTS: u32 = 5;
/// Timeout of a write that waits for the writes before it.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(30);
/// A write in the background lets others go first for at most this time.
const BACKGROUND_WAIT: Duration = Duration::from_secs(1);
/// Interval at which it looks whether no other write runs or waits.
const BACKGROUND_LOOK: Duration = Duration::from_millis(2);
/// Snapshots that are read at the same time. Each holds a connection until its receiver has taken all parts; the
/// other connections remain for single queries, and with PostgreSQL for writes.
pub const SNAPSHOTS_MAX: usize = 2;

/// The database of one cloud: one type over either backend. `expected` revisions implement `If-Match`: `None`
/// changes the object whatever its revision is, `Some` fails with [`StoreError::Stale`] unless the object is
/// at that revision. Deletions return their revision, with which [`Store::removal`] finds the nodes that
/// may still have entries of the object.
pub struct Store {
    backend: Box<dyn Backend>,
    /// Writers of this process queue for this lock, in order. A writer that waited in the database would hold
    /// a connection.
    writers: Mutex<()>,
    /// Permits for snapshots.
    snapshots: Semaphore,
    id: DatabaseId,
    vnis: RangeInclusive<u32>,
    max_identity: u16,
    /// Writes on a database that has lost this commit are refused.
    newest: NewestCommit,
    /// Whether writers that take a revision wait.
    held: watch::Sender<bool>,
}

/// Runs `$body` in a write transaction that takes the next revision.
macro_rules! write {
    ($self:ident, $w:ident => $body:expr) => {{
        $self.wait_until_released().await?;
        write!($self, begin, $w => $body)
    }};
    ($self:ident, $begin:ident, $w:ident => $body:expr) => {{
        let _guard = $self.queue().await?;
        let mut tries = 0;
        loop {
            let result = match Write::$begin($self.backend.as_ref(), &$self.newest).await {
                Ok(mut write) => {
                    let $w = &mut write;
                    let result = $body.await;
                    write.finish(result).await
                }
                Err(error) => Err(error),
            };
            match result {
                Err(error) if is_retryable(&error) && tries < RETRIES => {
                    tries += 1;
                    tokio::time::sleep(Duration::from_millis(5 << tries)).await;
                }
                result => break result,
            }
        }
    }};
}

/// Runs `$body` in a write transaction that takes no revision. `$queue` is the function that waits for its turn.
macro_rules! write_unversioned {
    ($self:ident, $q:ident => $body:expr) => {
        write_unversioned!($self, queue, $q => $body)
    };
    ($self:ident, $queue:ident, $q:ident => $body:expr) => {{
        let _guard = $self.$queue().await?;
        let mut tries = 0;
        loop {
            let mut tx = $self.backend.begin_write().await?;
            let $q: &mut dyn crate::backend::Query = tx.as_mut();
            let result = match $body.await {
                Ok(value) => tx.commit().await.map(|()| value),
                Err(error) => {
                    if let Err(error) = tx.rollback().await {
                        tracing::warn!(%error, "rolling back failed");
                    }
                    Err(error)
                }
            };
            match result {
                Err(error) if is_retryable(&error) && tries < RETRIES => {
                    tries += 1;
                    tokio::time::sleep(Duration::from_millis(5 << tries)).await;
                }
                result => break result,
            }
        }
    }};
}

mod addresses;
mod health;
mod internet;
mod migrations;
mod network_classes;
mod removals;
mod security;
mod services;

pub use security::InstanceWithGroups;

impl Store {
    pub(crate) fn new(backend: Box<dyn Backend>, id: DatabaseId, options: Options) -> Self {
        let Options { vnis, max_identity } = options;
        let (writers, snapshots) = (Mutex::new(()), Semaphore::new(SNAPSHOTS_MAX));
        let (newest, held) = (NewestCommit::default(), watch::Sender::new(false));
        Self { backend, writers, snapshots, id, vnis, max_identity, newest, held }
    }

    async fn wait_until_released(&self) -> Result<()> {
        let mut held = self.held.subscribe();
        match tokio::time::timeout(QUEUE_TIMEOUT, held.wait_for(|held| !held)).await {
            Ok(_) => Ok(()),
            Err(_) => Err(StoreError::Unavailable { cause: "writes are held back".into(), source: None }),
        }
    }

    async fn queue(&self) -> Result<MutexGuard<'_, ()>> {
        tokio::time::timeout(QUEUE_TIMEOUT, self.writers.lock()).await.map_err(|_| StoreError::Unavailable {
            cause: format!("other writes took more than {} s", QUEUE_TIMEOUT.as_secs()),
            source: None,
        })
    }

    /// Waits until no other write runs or waits, for at most [`BACKGROUND_WAIT`], and then for its turn.
    async fn queue_in_background(&self) -> Result<MutexGuard<'_, ()>> {
        let began = Instant::now();
        while began.elapsed() < BACKGROUND_WAIT {
            // Fails also while the lock passes from one waiting writer to the next.
            if let Ok(guard) = self.writers.try_lock() {
                return Ok(guard);
            }
            tokio::time::sleep(BACKGROUND_LOOK).await;
        }
        self.queue().await
    }

    fn reader(&self) -> Reader<'_> {
        Reader(self.backend.as_ref())
    }
}

impl Store {
    pub fn database_id(&self) -> DatabaseId {
        self.id
    }

    /// Revision of the last commit.
    pub async fn revision(&self) -> Result<u64> {
        outbox::revision(&mut self.reader()).await
    }

    /// The last commit.
    pub async fn position(&self) -> Result<Position> {
        history::newest(&mut self.reader()).await
    }

    /// The revision of a commit of this database's history. `None` if it is a commit of another history, which
    /// exists after the database was restored from a backup; also for all but the newest 100,000 commits.
    pub async fn revision_of(&self, commit: u64) -> Result<Option<u64>> {
        history::revision_of(&mut self.reader(), commit).await
    }

    /// Whether all of these positions are in the database's history.
    ///
    /// # Errors
    /// [`StoreError::Rewound`] if one of them is not.
    pub async fn check_positions(&self, positions: &[Position]) -> Result<()> {
        let mut tx = self.backend.begin_read().await?;
        let mut result = Ok(());
        for at in positions {
            result = history::check(tx.as_mut(), *at).await;
            if result.is_err() {
                break;
            }
        }
        tx.rollback().await?;
        result
    }

    /// The revision of the oldest commit that [`Store::revision_of`] finds; `u64::MAX` before the first commit.
    pub async fn oldest_known_revision(&self) -> Result<u64> {
        history::oldest(&mut self.reader()).await
    }

    /// Raises revision, next ids and next VNI above what nodes have, after it was found that the database went back
    /// to an earlier state, or may have. Returns false if it went back and they were above it already. Until this is called, a store that
    /// knows a lost commit refuses changes with [`StoreError::Rewound`].
    pub async fn jump(&self, seen: &Seen, reason: JumpReason) -> Result<bool> {
        let jumped = write!(self, begin_anywhere, w => history::jump(w, seen, &self.vnis, reason))?;
        if !jumped {
            self.newest.commit.store(self.position().await?.commit, Ordering::Release);
        }
        Ok(jumped)
    }

    /// With true, changes of objects wait, at most 30 s, until this is called with false. A controller that starts
    /// does so until its nodes have told it whether the database was restored from a backup.
    pub fn hold_writes(&self, held: bool) {
        self.held.send_replace(held);
    }

    /// Fails with the cause if the database cannot be written.
    pub async fn check_writable(&self) -> Result<()> {
        write_unversioned!(self, q => q.run("UPDATE probe SET written = written + 1", vec![])).map(drop)
    }

    pub async fn create_tenant(&self, name: &str) -> Result<Created<Tenant>> {
        write!(self, w => tenants::create(w, name))
    }

    pub async fn tenant(&self, id: TenantId) -> Result<Tenant> {
        get(&mut self.reader(), id).await
    }

    pub async fn tenants(&self, name: Option<&str>, at: Page) -> Result<Vec<Tenant>> {
        page(&mut self.reader(), vec![("name", name.map(Into::into))], at).await
    }

    pub async fn rename_tenant(&self, id: TenantId, name: &str, expected: Option<u64>) -> Result<Tenant> {
        write!(self, w => tenants::rename(w, id, name, expected))
    }

    pub async fn delete_tenant(&self, id: TenantId, expected: Option<u64>) -> Result<u64> {
        write!(self, w => tenants::delete(w, id, expected))
    }

    /// `hello_interval_ms` is the default interval if it is `None`.
    pub async fn create_cluster(
        &self,
        name: &str,
        vips: &[IpAddr],
        hello_interval_ms: Option<u16>,
    ) -> Result<Created<Cluster>> {
        write!(self, w => clusters::create(w, name, vips, hello_interval_ms))
    }

    pub async fn cluster(&self, id: ClusterId) -> Result<Cluster> {
        get(&mut self.reader(), id).await
    }

    pub async fn clusters(&self, name: Option<&str>, at: Page) -> Result<Vec<Cluster>> {
        page(&mut self.reader(), vec![("name", name.map(Into::into))], at).await
    }

    /// Replaces the vIPs. A vIP that stays keeps its slot. If vIPs are both added and removed, this takes two
    /// revisions. If the cluster changes between them, the vIPs are compared again.
    pub async fn update_cluster(
        &self,
        id: ClusterId,
        vips: &[IpAddr],
        mut expected: Option<u64>,
    ) -> Result<Cluster> {
        crate::check::vips(vips)?;
        let mut attempts = 1;
        loop {
            let now = self.cluster(id).await?.addresses();
            let adds = vips.iter().any(|vip| !now.contains(vip));
            let removes = now.iter().any(|vip| !vips.contains(vip));
            if !(adds && removes) {
                return write!(self, w => clusters::replace_vips(w, id, vips, expected));
            }
            // Gateways must have a new vIP before hosts send to it, and hosts must stop sending to an old vIP
            // before gateways remove it. One revision cannot do both. Reasons to refuse the second revision
            // are checked before the first one.
            clusters::check_vips(&mut self.reader(), id, vips).await?;
            let mut all = now;
            all.extend(vips.iter().filter(|vip| !all.contains(vip)).copied().collect::<Vec<_>>());
            let both = write!(self, w => clusters::replace_vips(w, id, &all, expected))?.revision;
            match write!(self, w => clusters::replace_vips(w, id, vips, Some(both))) {
                // The first revision had the expected one before it, so the next attempt expects none.
                Err(StoreError::Stale { .. }) if attempts < VIP_ATTEMPTS => {
                    attempts += 1;
                    expected = None;
                }
                result => return result,
            }
        }
    }

    pub async fn delete_cluster(&self, id: ClusterId, expected: Option<u64>) -> Result<u64> {
        write!(self, w => clusters::delete(w, id, expected))
    }

    /// Sets the interval between two hellos of the gateways of a cluster.
    pub async fn set_hello_interval(
        &self,
        id: ClusterId,
        hello_interval_ms: u16,
        expected: Option<u64>,
    ) -> Result<Cluster> {
        write!(self, w => clusters::set_hello_interval(w, id, hello_interval_ms, expected))
    }

    /// Raises the revision of the vIP assignment of a cluster if it is lower than `above`, the revision that
    /// gateways have, as it is after the database was restored from a backup. Returns true if it was lower.
    pub async fn reissue_assignment(&self, id: ClusterId, above: u64) -> Result<bool> {
        write!(self, w => clusters::reissue_assignment(w, id, above))
    }

    /// The keys of a cluster, in order of id.
    pub async fn cluster_keys(&self, id: ClusterId) -> Result<Vec<ClusterKey>> {
        keys::list(&mut self.reader(), Some(id)).await
    }

    /// Adds the next key of a cluster if it is due at `now_ms` (milliseconds of the UNIX epoch) or if a node
    /// that has the keys was deleted, and deletes expired keys. Returns true if anything changed.
    pub async fn rotate_keys(&self, id: ClusterId, now_ms: u64) -> Result<bool> {
        let keys = keys::list(&mut self.reader(), Some(id)).await?;
        let due = keys.is_empty() || keys::is_due(&keys, now_ms);
        if !due && !keys::is_renewal_requested(&mut self.reader(), id).await? {
            return Ok(false);
        }
        write!(self, w => keys::rotate(w, id, now_ms))
    }

    /// Adds a new key of a cluster now; all others expire within minutes. This is possible once in five
    /// minutes.
    pub async fn renew_key(&self, id: ClusterId) -> Result<KeyRotation> {
        write!(self, w => keys::renew(w, id))
    }

    pub async fn create_gateway(&self, new: NewGateway) -> Result<Created<Gateway>> {
        write!(self, w => gateways::create(w, &new))
    }

    pub async fn gateway(&self, id: GatewayId) -> Result<Gateway> {
        get(&mut self.reader(), id).await
    }

    pub async fn gateways(
        &self,
        cluster: Option<ClusterId>,
        name: Option<&str>,
        at: Page,
    ) -> Result<Vec<Gateway>> {
        let filters = vec![("cluster", cluster.map(|c| c.get().into())), ("name", name.map(Into::into))];
        page(&mut self.reader(), filters, at).await
    }

    /// Changes the preferred owner of a vIP from `from` to `to`. Returns false if the preferred owner is
    /// another gateway, or if `to` cannot own the vIP.
    pub async fn set_preferred_owner(
        &self,
        cluster: ClusterId,
        vip: IpAddr,
        from: GatewayId,
        to: GatewayId,
    ) -> Result<bool> {
        write!(self, w => clusters::set_preferred_owner(w, cluster, vip, from, to))
    }

    pub async fn delete_gateway(&self, id: GatewayId, expected: Option<u64>) -> Result<u64> {
        write!(self, w => gateways::delete(w, id, expected))
    }

    /// Starts to move a gateway to another cluster, or reverses its move. [`Store::advance_gateway_move`]
    /// takes the further steps. `reason` is recorded in the event log. Nothing changes if the gateway is in
    /// the cluster already.
    pub async fn move_gateway(
        &self,
        id: GatewayId,
        to: ClusterId,
        reason: &str,
        expected: Option<u64>,
    ) -> Result<Gateway> {
        write!(self, w => gateway_moves::start(w, id, to, reason, expected))
    }

    /// Takes the next step of the move of a gateway if it is in the phase `at`; returns false if it is not.
    pub async fn advance_gateway_move(&self, id: GatewayId, at: GatewayMove) -> Result<bool> {
        write!(self, w => gateway_moves::advance(w, id, at))
    }

    /// Drains a gateway: other gateways of its cluster become the preferred owners of its vIPs. Or ends the
    /// drain: the gateway gets its share of the vIPs again.
    pub async fn drain_gateway(
        &self,
        id: GatewayId,
        draining: bool,
        expected: Option<u64>,
    ) -> Result<Gateway> {
        write!(self, w => gateways::drain(w, id, draining, expected))
    }

    pub async fn create_host(&self, new: NewHost) -> Result<Created<Host>> {
        write!(self, w => hosts::create(w, &new))
    }

    pub async fn host(&self, id: HostId) -> Result<Host> {
        get(&mut self.reader(), id).await
    }

    pub async fn hosts(&self, name: Option<&str>, at: Page) -> Result<Vec<Host>> {
        page(&mut self.reader(), vec![("name", name.map(Into::into))], at).await
    }

    pub async fn delete_host(&self, id: HostId, expected: Option<u64>) -> Result<u64> {
        write!(self, w => hosts::delete(w, id, expected))
    }

    pub async fn create_vpc(&self, new: NewVpc) -> Result<Created<Vpc>> {
        write!(self, w => vpcs::create(w, &new, self.vnis.clone()))
    }

    pub async fn vpc(&self, id: VpcId) -> Result<Vpc> {
        get(&mut self.reader(), id).await
    }

    pub async fn vpcs(&self, tenant: Option<TenantId>, name: Option<&str>, at: Page) -> Result<Vec<Vpc>> {
        let filters = vec![("tenant", tenant.map(|t| t.get().into())), ("name", name.map(Into::into))];
        page(&mut self.reader(), filters, at).await
    }

    pub async fn update_vpc(&self, id: VpcId, new: VpcUpdate, expected: Option<u64>) -> Result<Vpc> {
        write!(self, w => vpcs::update(w, id, &new, expected))
    }

    /// Starts to move a VPC, and all VPCs that are peered with it, to another cluster, or reverses their
    /// move. [`Store::advance_move`] takes the further steps. Nothing changes if the VPC is on the cluster
    /// already.
    pub async fn move_vpc(&self, id: VpcId, to: ClusterId, expected: Option<u64>) -> Result<Vpc> {
        write!(self, w => vpc_moves::start(w, id, to, expected))
    }

    /// Takes the next step of the move with the id [`Move::id`] if it is in the phase that `switched` says;
    /// returns false if it is not.
    pub async fn advance_move(&self, id: u64, switched: bool) -> Result<bool> {
        write!(self, w => vpc_moves::advance(w, id, switched))
    }

    /// The hosts that have instances of a VPC or to which some migrate, in order of id.
    pub async fn vpc_hosts(&self, id: VpcId) -> Result<Vec<HostId>> {
        let sql = "SELECT host FROM instances WHERE vpc = $1 \
                   UNION SELECT target FROM migrations WHERE vpc = $1 AND ended = 0 ORDER BY host";
        let rows = self.backend.rows(sql, crate::value::args![id.get()]).await?;
        rows.iter().map(|row| row.number(0).map(HostId::new)).collect()
    }

    pub async fn delete_vpc(&self, id: VpcId, expected: Option<u64>) -> Result<u64> {
        write!(self, w => vpcs::delete(w, id, expected))
    }

    pub async fn create_subnet(&self, new: NewSubnet) -> Result<Created<Subnet>> {
        write!(self, w => subnets::create(w, &new))
    }

    pub async fn subnet(&self, id: SubnetId) -> Result<Subnet> {
        get(&mut self.reader(), id).await
    }

    pub async fn subnets(&self, vpc: Option<VpcId>, name: Option<&str>, at: Page) -> Result<Vec<Subnet>> {
        let filters = vec![("vpc", vpc.map(|v| v.get().into())), ("name", name.map(Into::into))];
        page(&mut self.reader(), filters, at).await
    }

    pub async fn delete_subnet(&self, id: SubnetId, expected: Option<u64>) -> Result<u64> {
        write!(self, w => subnets::delete(w, id, expected))
    }

    pub async fn create_instance(&self, vpc: VpcId, new: NewInstance) -> Result<Created<Instance>> {
        write!(self, w => instances::create(w, vpc, &new, self.max_identity))
    }

    /// Creates all instances or none. Instances that exist with the same content are skipped. Returns the new
    /// instances in order of id, and the number of skipped ones.
    pub async fn create_instances(
        &self,
        vpc: VpcId,
        new: Vec<NewInstance>,
    ) -> Result<(Vec<Instance>, usize)> {
        let outcome = write!(self, w => bulk::create(w, vpc, &new, self.max_identity))?;
        Ok((outcome.created, outcome.existing.len() + outcome.repeated))
    }

    pub async fn instance(&self, id: InstanceId) -> Result<Instance> {
        get(&mut self.reader(), id).await
    }

    pub async fn instances(
        &self,
        vpc: Option<VpcId>,
        host: Option<HostId>,
        name: Option<&str>,
        at: Page,
    ) -> Result<Vec<Instance>> {
        page(&mut self.reader(), instances::filters(vpc, host, name), at).await
    }

    /// Those of the names that instances of the VPC have.
    pub async fn taken_names(&self, vpc: VpcId, names: &[String]) -> Result<Vec<String>> {
        instances::taken_names(&mut self.reader(), vpc, names).await
    }

    /// Makes an instance an object again that nodes still have but that the database lost, with the same id, MAC and
    /// addresses.
    pub async fn adopt_instance(&self, lost: LostInstance) -> Result<Instance> {
        write!(self, w => adopt::instance(w, &lost, self.max_identity))
    }

    /// Records that an instance runs on another host. Its migration ends, whatever its target.
    pub async fn move_instance(
        &self,
        id: InstanceId,
        host: HostId,
        expected: Option<u64>,
    ) -> Result<Instance> {
        write!(self, w => instances::relocate(w, id, host, expected))
    }

    pub async fn delete_instance(&self, id: InstanceId, expected: Option<u64>) -> Result<u64> {
        write!(self, w => instances::delete(w, id, expected))
    }

    pub async fn route_table(&self, id: RouteTableId) -> Result<RouteTable> {
        get(&mut self.reader(), id).await
    }

    pub async fn route_tables(&self, vpc: Option<VpcId>, at: Page) -> Result<Vec<RouteTable>> {
        page(&mut self.reader(), vec![("vpc", vpc.map(|v| v.get().into()))], at).await
    }

    pub async fn create_route(&self, new: NewRoute) -> Result<Created<Route>> {
        write!(self, w => routes::create(w, &new))
    }

    pub async fn route(&self, id: RouteId) -> Result<Route> {
        get(&mut self.reader(), id).await
    }

    pub async fn routes(&self, table: RouteTableId, at: Page) -> Result<Vec<Route>> {
        page(&mut self.reader(), vec![("route_table", Some(table.get().into()))], at).await
    }

    pub async fn delete_route(&self, id: RouteId, expected: Option<u64>) -> Result<u64> {
        write!(self, w => routes::delete(w, id, expected))
    }

    pub async fn create_peering(&self, new: NewPeering) -> Result<Created<Peering>> {
        write!(self, w => peerings::create(w, &new))
    }

    pub async fn peering(&self, id: PeeringId) -> Result<Peering> {
        get(&mut self.reader(), id).await
    }

    pub async fn peerings(&self, vpc: Option<VpcId>, name: Option<&str>, at: Page) -> Result<Vec<Peering>> {
        peerings::list(&mut self.reader(), vpc, name, at).await
    }

    /// Sets the meters of the sides of these VPCs; `None` removes the meter.
    pub async fn update_peering(
        &self,
        id: PeeringId,
        meters: &BTreeMap<VpcId, Option<MeterId>>,
        expected: Option<u64>,
    ) -> Result<Peering> {
        write!(self, w => peerings::update(w, id, meters, expected))
    }

    pub async fn delete_peering(&self, id: PeeringId, expected: Option<u64>) -> Result<u64> {
        write!(self, w => peerings::delete(w, id, expected))
    }

    /// Complete revisions after `after`, oldest first, until there are at least `limit` rows.
    /// [`StoreError::Compacted`] if some of them were deleted.
    pub async fn outbox(&self, after: u64, limit: u32) -> Result<Vec<OutboxRow>> {
        // Both queries must see the same state, otherwise a compaction between them could remain unnoticed.
        let mut tx = self.backend.begin_read().await?;
        let result = outbox::read(tx.as_mut(), after, limit).await;
        tx.rollback().await?;
        result
    }

    /// As [`Store::outbox`], for a reader that follows: it continues from a position that it has read before.
    ///
    /// # Errors
    /// Also [`StoreError::Rewound`] if that position is not in the database's history.
    pub async fn outbox_from(&self, after: Position, limit: u32) -> Result<Vec<OutboxRow>> {
        let mut tx = self.backend.begin_read().await?;
        let result = match history::check(tx.as_mut(), after).await {
            Ok(()) => match self.newest.take_large(tx.as_mut(), after.revision).await {
                Ok(Some(rows)) => Ok(rows),
                Ok(None) => outbox::read(tx.as_mut(), after.revision, limit).await,
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        tx.rollback().await?;
        let newest = result.as_ref().map_or(0, |rows| rows.last().map_or(after.commit, |row| row.commit));
        if newest != 0 {
            self.newest.commit.store(newest, Ordering::Release);
        }
        result
    }

    /// Deletes the outbox rows of revisions up to and including `revision`.
    pub async fn compact_outbox(&self, revision: u64) -> Result<()> {
        write_unversioned!(self, q => outbox::compact(q, revision))
    }

    /// Reads a consistent snapshot: `sink` receives the topology, then the instances in order of id. Slow
    /// receivers delay other snapshots, but neither queries nor writers. Returns the revision of the snapshot.
    pub async fn snapshot(&self, instances: InstancesOf, sink: Sender<SnapshotPart>) -> Result<u64> {
        self.snapshot_from(Position::default(), instances, sink).await
    }

    /// As [`Store::snapshot`], for a receiver that has the state of an earlier position.
    ///
    /// # Errors
    /// Also [`StoreError::Rewound`], before anything is sent, if that position is not in the database's history.
    pub async fn snapshot_from(
        &self,
        known: Position,
        instances: InstancesOf,
        sink: Sender<SnapshotPart>,
    ) -> Result<u64> {
        let _permit = self.snapshot_permit().await?;
        let mut tx = self.backend.begin_read().await?;
        let result = match history::check(tx.as_mut(), known).await {
            Ok(()) => snapshot::send(tx.as_mut(), instances, &sink).await,
            Err(error) => Err(error),
        };
        tx.rollback().await?;
        result
    }

    /// The instances of a host in order of id, then those that migrate to it, and the position to which this applies, for a receiver that has the
    /// state of an earlier position.
    ///
    /// # Errors
    /// Also [`StoreError::Rewound`] if that position is not in the database's history.
    pub async fn host_instances(&self, known: Position, host: HostId) -> Result<(Position, Vec<Instance>)> {
        let _permit = self.snapshot_permit().await?;
        let mut tx = self.backend.begin_read().await?;
        let result = match history::check(tx.as_mut(), known).await {
            Ok(()) => snapshot::of_host(tx.as_mut(), host).await,
            Err(error) => Err(error),
        };
        tx.rollback().await?;
        result
    }

    /// Number of snapshots that are being read, at most [`SNAPSHOTS_MAX`]. Each holds a connection.
    pub fn snapshots_being_read(&self) -> usize {
        SNAPSHOTS_MAX - self.snapshots.available_permits()
    }

    async fn snapshot_permit(&self) -> Result<SemaphorePermit<'_>> {
        let closed = |_| StoreError::Unavailable { cause: "the store is closed".into(), source: None };
        self.snapshots.acquire().await.map_err(closed)
    }

    /// Adds an event that does not belong to a change of an object; returns its id. Only the newest 100,000
    /// events are kept.
    pub async fn add_event(&self, event: NewEvent) -> Result<u64> {
        write_unversioned!(self, q => events::add(q, now_ms(), &event))
    }

    /// At most `limit` events in order of id: the first that follow `after`, or the newest if it is `None`.
    pub async fn events(&self, subject: Option<&str>, after: Option<u64>, limit: u32) -> Result<Vec<Event>> {
        events::list(&mut self.reader(), subject, after, limit).await
    }

    /// A setting of the site by its name.
    pub async fn setting(&self, name: &str) -> Result<Option<String>> {
        settings::get(&mut self.reader(), name).await
    }

    /// Changes a setting if its value is still `before`; returns false if it is not.
    pub async fn put_setting(&self, name: &str, before: Option<&str>, value: &str) -> Result<bool> {
        write_unversioned!(self, q => settings::put(q, name, before, value))
    }

    /// Numbers of addresses of each VPC that has instances, and the revision to which this applies.
    pub async fn address_counts(&self) -> Result<(u64, Vec<(VpcId, AddressCounts)>)> {
        let mut tx = self.backend.begin_read().await?;
        let result = async {
            let revision = outbox::revision(tx.as_mut()).await?;
            Ok((revision, instances::address_counts(tx.as_mut()).await?))
        };
        let result = result.await;
        tx.rollback().await?;
        result
    }

    /// Stores a placement plan with this number of steps; returns its id. Deletes old plans that are not
    /// being applied.
    pub async fn add_plan(&self, created_ms: u64, steps: u64, body: &str) -> Result<u64> {
        write_unversioned!(self, q => placement_plans::add(q, created_ms, steps, body))
    }

    pub async fn plan(&self, id: u64) -> Result<StoredPlan> {
        placement_plans::get(&mut self.reader(), id).await
    }

    /// The stored placement plans, in order of id.
    pub async fn plans(&self) -> Result<Vec<PlanProgress>> {
        placement_plans::list(&mut self.reader()).await
    }

    /// Starts or resumes a placement plan, with at most `parallel` steps in progress. Only one plan can be
    /// applied at a time.
    pub async fn apply_plan(&self, id: u64, parallel: u64) -> Result<PlanProgress> {
        write_unversioned!(self, q => placement_plans::apply(q, id, parallel))
    }

    /// Stops a placement plan that is being applied. `note` is the reason. Returns its progress.
    pub async fn stop_plan(&self, id: u64, note: &str) -> Result<PlanProgress> {
        write_unversioned!(self, q => placement_plans::stop(q, id, note))
    }

    /// Records the progress of a placement plan that is being applied; returns false if it is not.
    pub async fn update_plan_progress(
        &self,
        id: u64,
        state: PlanState,
        done: u64,
        note: &str,
    ) -> Result<bool> {
        write_unversioned!(self, q => placement_plans::record_progress(q, id, state, done, note))
    }

    /// Stores the states of nodes in one transaction, after the writes that run or wait. `states` has a node at
    /// most once; nodes that do not exist any more are ignored.
    pub async fn save_node_states(&self, states: &[NodeState]) -> Result<()> {
        write_unversioned!(self, queue_in_background, q => southbound::save_states(q, states))
    }

    pub async fn node_states(&self) -> Result<Vec<NodeState>> {
        southbound::states(&mut self.reader()).await
    }

    /// Stores a token by its SHA-256, and deletes all tokens that expired at `now_ms`.
    pub async fn add_enrollment_token(
        &self,
        digest: [u8; 32],
        token: EnrollmentToken,
        now_ms: u64,
    ) -> Result<()> {
        write_unversioned!(self, q => southbound::add_token(q, digest, &token, now_ms))
    }

    /// Deletes a token and returns its node. `None` if the token is unknown or expired at `now_ms`, so that
    /// it is accepted once.
    pub async fn take_enrollment_token(&self, digest: [u8; 32], now_ms: u64) -> Result<Option<NodeId>> {
        write_unversioned!(self, q => southbound::take_token(q, digest, now_ms))
    }

    /// The PEM certificate and key of the certificate authority. If the database has no authority yet, `new` is
    /// stored first; of several replicas, the first one's pair is stored.
    pub async fn certificate_authority(&self, new: (String, String)) -> Result<(String, String)> {
        write_unversioned!(self, q => southbound::authority(q, &new))
    }
}
