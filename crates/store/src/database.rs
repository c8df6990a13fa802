//! The store over either backend: who may write when, what is tried again.

use crate::backend::{Backend, Reader, is_retryable};
use crate::ops::{
    bulk, enrolment, events, gateway_moves, homes, instances, keys, moves, outbox, peerings, placement,
    routes, settings, snapshot, subnets, tenants, vpcs,
};
use crate::rows::{get, page};
use crate::write::{Write, now_ms};
use crate::*;
use std::ops::RangeInclusive;
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard, mpsc::Sender};

/// How often a transaction that lost against another is tried again.
const RETRIES: u32 = 8;
/// How long a write waits for the writes before it.
const TURN: Duration = Duration::from_secs(30);

pub(crate) struct Database {
    backend: Box<dyn Backend>,
    /// Writers of this process queue here, in order, rather than in the
    /// database, where waiting holds a connection.
    writers: Mutex<()>,
    id: DatabaseId,
    vnis: RangeInclusive<u32>,
}

/// Runs `$body` in a write transaction that takes the next revision.
macro_rules! write {
    ($self:ident, $w:ident => $body:expr) => {{
        let _turn = $self.turn().await?;
        let mut tries = 0;
        loop {
            let result = match Write::begin($self.backend.as_ref()).await {
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

/// Runs `$body` in a write transaction that is no revision.
macro_rules! note {
    ($self:ident, $q:ident => $body:expr) => {{
        let _turn = $self.turn().await?;
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

impl Database {
    pub fn new(backend: Box<dyn Backend>, id: DatabaseId, vnis: RangeInclusive<u32>) -> Self {
        Self { backend, writers: Mutex::new(()), id, vnis }
    }

    async fn turn(&self) -> Result<MutexGuard<'_, ()>> {
        tokio::time::timeout(TURN, self.writers.lock()).await.map_err(|_| StoreError::Unavailable {
            cause: format!("other writes took more than {} s", TURN.as_secs()),
            source: None,
        })
    }

    fn reader(&self) -> Reader<'_> {
        Reader(self.backend.as_ref())
    }
}

#[async_trait]
impl Store for Database {
    fn database_id(&self) -> DatabaseId {
        self.id
    }

    async fn revision(&self) -> Result<u64> {
        outbox::revision(&mut self.reader()).await
    }

    async fn check_writable(&self) -> Result<()> {
        note!(self, q => q.run("UPDATE probe SET written = written + 1", vec![])).map(drop)
    }

    async fn create_tenant(&self, name: &str) -> Result<Created<Tenant>> {
        write!(self, w => tenants::create(w, name))
    }

    async fn tenant(&self, id: TenantId) -> Result<Tenant> {
        get(&mut self.reader(), id).await
    }

    async fn tenants(&self, name: Option<&str>, at: Page) -> Result<Vec<Tenant>> {
        page(&mut self.reader(), vec![("name", name.map(Into::into))], at).await
    }

    async fn rename_tenant(&self, id: TenantId, name: &str, expected: Option<u64>) -> Result<Tenant> {
        write!(self, w => tenants::rename(w, id, name, expected))
    }

    async fn delete_tenant(&self, id: TenantId, expected: Option<u64>) -> Result<()> {
        write!(self, w => tenants::delete(w, id, expected))
    }

    async fn create_cluster(
        &self,
        name: &str,
        vips: &[IpAddr],
        hello_ms: Option<u16>,
    ) -> Result<Created<Cluster>> {
        write!(self, w => placement::create_cluster(w, name, vips, hello_ms))
    }

    async fn cluster(&self, id: ClusterId) -> Result<Cluster> {
        get(&mut self.reader(), id).await
    }

    async fn clusters(&self, name: Option<&str>, at: Page) -> Result<Vec<Cluster>> {
        page(&mut self.reader(), vec![("name", name.map(Into::into))], at).await
    }

    async fn update_cluster(&self, id: ClusterId, vips: &[IpAddr], expected: Option<u64>) -> Result<Cluster> {
        let now = self.cluster(id).await?.addresses();
        let comes = vips.iter().any(|vip| !now.contains(vip));
        let goes = now.iter().any(|vip| !vips.contains(vip));
        let mut expected = expected;
        if comes && goes {
            // Gateways must have a new vIP before hosts send to it, and hosts must have left
            // an old one before gateways forget it: one revision cannot be both. What the second
            // would refuse is refused before the first.
            placement::check_vips(&mut self.reader(), id, vips).await?;
            let mut all = now;
            all.extend(vips.iter().filter(|vip| !all.contains(vip)).copied().collect::<Vec<_>>());
            let both = write!(self, w => placement::update_cluster(w, id, &all, expected))?;
            expected = Some(both.revision);
        }
        write!(self, w => placement::update_cluster(w, id, vips, expected))
    }

    async fn delete_cluster(&self, id: ClusterId, expected: Option<u64>) -> Result<()> {
        write!(self, w => placement::delete_cluster(w, id, expected))
    }

    async fn set_hello(&self, id: ClusterId, hello_ms: u16, expected: Option<u64>) -> Result<Cluster> {
        write!(self, w => homes::set_hello(w, id, hello_ms, expected))
    }

    async fn raise_plan(&self, id: ClusterId, above: u64) -> Result<bool> {
        write!(self, w => placement::raise_plan(w, id, above))
    }

    async fn cluster_keys(&self, id: ClusterId) -> Result<Vec<ClusterKey>> {
        keys::list(&mut self.reader(), Some(id)).await
    }

    async fn rotate_keys(&self, id: ClusterId, now_ms: u64) -> Result<bool> {
        let keys = keys::list(&mut self.reader(), Some(id)).await?;
        let due = keys.is_empty() || keys::is_due(&keys, now_ms);
        if !due && !keys::is_wanted(&mut self.reader(), id).await? {
            return Ok(false);
        }
        write!(self, w => keys::rotate(w, id, now_ms))
    }

    async fn renew_key(&self, id: ClusterId) -> Result<KeyRotation> {
        write!(self, w => keys::revoke(w, id))
    }

    async fn create_gateway(&self, new: NewGateway) -> Result<Created<Gateway>> {
        write!(self, w => placement::create_gateway(w, &new))
    }

    async fn gateway(&self, id: GatewayId) -> Result<Gateway> {
        get(&mut self.reader(), id).await
    }

    async fn gateways(
        &self,
        cluster: Option<ClusterId>,
        name: Option<&str>,
        at: Page,
    ) -> Result<Vec<Gateway>> {
        let filters = vec![("cluster", cluster.map(|c| c.get().into())), ("name", name.map(Into::into))];
        page(&mut self.reader(), filters, at).await
    }

    async fn move_home(
        &self,
        cluster: ClusterId,
        vip: IpAddr,
        from: GatewayId,
        to: GatewayId,
    ) -> Result<bool> {
        write!(self, w => homes::move_home(w, cluster, vip, from, to))
    }

    async fn delete_gateway(&self, id: GatewayId, expected: Option<u64>) -> Result<()> {
        write!(self, w => placement::delete_gateway(w, id, expected))
    }

    async fn move_gateway(
        &self,
        id: GatewayId,
        to: ClusterId,
        why: &str,
        expected: Option<u64>,
    ) -> Result<Gateway> {
        write!(self, w => gateway_moves::begin(w, id, to, why, expected))
    }

    async fn advance_gateway_move(&self, id: GatewayId, at: GatewayMove) -> Result<bool> {
        write!(self, w => gateway_moves::advance(w, id, at))
    }

    async fn drain_gateway(&self, id: GatewayId, draining: bool, expected: Option<u64>) -> Result<Gateway> {
        write!(self, w => placement::drain_gateway(w, id, draining, expected))
    }

    async fn create_host(&self, new: NewHost) -> Result<Created<Host>> {
        write!(self, w => placement::create_host(w, &new))
    }

    async fn host(&self, id: HostId) -> Result<Host> {
        get(&mut self.reader(), id).await
    }

    async fn hosts(&self, name: Option<&str>, at: Page) -> Result<Vec<Host>> {
        page(&mut self.reader(), vec![("name", name.map(Into::into))], at).await
    }

    async fn delete_host(&self, id: HostId, expected: Option<u64>) -> Result<()> {
        write!(self, w => placement::delete_host(w, id, expected))
    }

    async fn create_vpc(&self, new: NewVpc) -> Result<Created<Vpc>> {
        write!(self, w => vpcs::create(w, &new, self.vnis.clone()))
    }

    async fn vpc(&self, id: VpcId) -> Result<Vpc> {
        get(&mut self.reader(), id).await
    }

    async fn vpcs(&self, tenant: Option<TenantId>, name: Option<&str>, at: Page) -> Result<Vec<Vpc>> {
        let filters = vec![("tenant", tenant.map(|t| t.get().into())), ("name", name.map(Into::into))];
        page(&mut self.reader(), filters, at).await
    }

    async fn update_vpc(&self, id: VpcId, new: VpcUpdate, expected: Option<u64>) -> Result<Vpc> {
        write!(self, w => vpcs::update(w, id, &new, expected))
    }

    async fn move_vpc(&self, id: VpcId, to: ClusterId, expected: Option<u64>) -> Result<Vpc> {
        write!(self, w => moves::begin(w, id, to, expected))
    }

    async fn advance_move(&self, id: u64, switched: bool) -> Result<bool> {
        write!(self, w => moves::advance(w, id, switched))
    }

    async fn vpc_hosts(&self, id: VpcId) -> Result<Vec<HostId>> {
        let sql = "SELECT DISTINCT host FROM instances WHERE vpc = $1 ORDER BY host";
        let rows = self.backend.rows(sql, crate::value::args![id.get()]).await?;
        rows.iter().map(|row| row.number(0).map(HostId::new)).collect()
    }

    async fn delete_vpc(&self, id: VpcId, expected: Option<u64>) -> Result<()> {
        write!(self, w => vpcs::delete(w, id, expected))
    }

    async fn create_subnet(&self, new: NewSubnet) -> Result<Created<Subnet>> {
        write!(self, w => subnets::create(w, &new))
    }

    async fn subnet(&self, id: SubnetId) -> Result<Subnet> {
        get(&mut self.reader(), id).await
    }

    async fn subnets(&self, vpc: Option<VpcId>, name: Option<&str>, at: Page) -> Result<Vec<Subnet>> {
        let filters = vec![("vpc", vpc.map(|v| v.get().into())), ("name", name.map(Into::into))];
        page(&mut self.reader(), filters, at).await
    }

    async fn delete_subnet(&self, id: SubnetId, expected: Option<u64>) -> Result<()> {
        write!(self, w => subnets::delete(w, id, expected))
    }

    async fn create_instance(&self, vpc: VpcId, new: NewInstance) -> Result<Created<Instance>> {
        write!(self, w => instances::create(w, vpc, &new))
    }

    async fn create_instances(&self, vpc: VpcId, new: Vec<NewInstance>) -> Result<(Vec<Instance>, usize)> {
        let outcome = write!(self, w => bulk::create(w, vpc, &new))?;
        Ok((outcome.made, outcome.existing.len() + outcome.repeated))
    }

    async fn instance(&self, id: InstanceId) -> Result<Instance> {
        get(&mut self.reader(), id).await
    }

    async fn instances(
        &self,
        vpc: Option<VpcId>,
        host: Option<HostId>,
        name: Option<&str>,
        at: Page,
    ) -> Result<Vec<Instance>> {
        let filters = vec![
            ("vpc", vpc.map(|v| v.get().into())),
            ("host", host.map(|h| h.get().into())),
            ("name", name.map(Into::into)),
        ];
        page(&mut self.reader(), filters, at).await
    }

    async fn move_instance(&self, id: InstanceId, host: HostId, expected: Option<u64>) -> Result<Instance> {
        write!(self, w => instances::relocate(w, id, host, expected))
    }

    async fn delete_instance(&self, id: InstanceId, expected: Option<u64>) -> Result<()> {
        write!(self, w => instances::delete(w, id, expected))
    }

    async fn route_table(&self, id: RouteTableId) -> Result<RouteTable> {
        get(&mut self.reader(), id).await
    }

    async fn route_tables(&self, vpc: Option<VpcId>, at: Page) -> Result<Vec<RouteTable>> {
        page(&mut self.reader(), vec![("vpc", vpc.map(|v| v.get().into()))], at).await
    }

    async fn create_route(&self, new: NewRoute) -> Result<Created<Route>> {
        write!(self, w => routes::create(w, &new))
    }

    async fn route(&self, id: RouteId) -> Result<Route> {
        get(&mut self.reader(), id).await
    }

    async fn routes(&self, table: RouteTableId, at: Page) -> Result<Vec<Route>> {
        page(&mut self.reader(), vec![("route_table", Some(table.get().into()))], at).await
    }

    async fn delete_route(&self, id: RouteId, expected: Option<u64>) -> Result<()> {
        write!(self, w => routes::delete(w, id, expected))
    }

    async fn create_peering(&self, new: NewPeering) -> Result<Created<Peering>> {
        write!(self, w => peerings::create(w, &new))
    }

    async fn peering(&self, id: PeeringId) -> Result<Peering> {
        get(&mut self.reader(), id).await
    }

    async fn peerings(&self, vpc: Option<VpcId>, name: Option<&str>, at: Page) -> Result<Vec<Peering>> {
        peerings::list(&mut self.reader(), vpc, name, at).await
    }

    async fn delete_peering(&self, id: PeeringId, expected: Option<u64>) -> Result<()> {
        write!(self, w => peerings::delete(w, id, expected))
    }

    async fn outbox(&self, after: u64, limit: u32) -> Result<Vec<OutboxRow>> {
        // One moment for both, or a compaction between them would go unseen.
        let mut tx = self.backend.begin_read().await?;
        let result = outbox::read(tx.as_mut(), after, limit).await;
        tx.rollback().await?;
        result
    }

    async fn compact_outbox(&self, revision: u64) -> Result<()> {
        note!(self, q => outbox::compact(q, revision))
    }

    async fn snapshot(&self, instances: InstancesOf, sink: Sender<SnapshotPart>) -> Result<u64> {
        let mut tx = self.backend.begin_read().await?;
        let result = snapshot::send(tx.as_mut(), instances, &sink).await;
        tx.rollback().await?;
        result
    }

    async fn add_event(&self, event: NewEvent) -> Result<u64> {
        note!(self, q => events::add(q, now_ms(), &event))
    }

    async fn events(&self, subject: Option<&str>, after: Option<u64>, limit: u32) -> Result<Vec<Event>> {
        events::list(&mut self.reader(), subject, after, limit).await
    }

    async fn setting(&self, name: &str) -> Result<Option<String>> {
        settings::get(&mut self.reader(), name).await
    }

    async fn put_setting(&self, name: &str, before: Option<&str>, value: &str) -> Result<bool> {
        note!(self, q => settings::put(q, name, before, value))
    }

    async fn instance_counts(&self) -> Result<(u64, Vec<(VpcId, u64)>)> {
        let mut tx = self.backend.begin_read().await?;
        let result = async {
            let revision = outbox::revision(tx.as_mut()).await?;
            Ok((revision, settings::instance_counts(tx.as_mut()).await?))
        };
        let result = result.await;
        tx.rollback().await?;
        result
    }

    async fn add_plan(&self, created_ms: u64, steps: u64, body: &str) -> Result<u64> {
        note!(self, q => settings::add_plan(q, created_ms, steps, body))
    }

    async fn plan(&self, id: u64) -> Result<StoredPlan> {
        settings::plan(&mut self.reader(), id).await
    }

    async fn plans(&self) -> Result<Vec<PlanProgress>> {
        settings::plans(&mut self.reader()).await
    }

    async fn apply_plan(&self, id: u64, parallel: u64) -> Result<PlanProgress> {
        note!(self, q => settings::apply_plan(q, id, parallel))
    }

    async fn note_plan(&self, id: u64, state: PlanState, done: u64, note: &str) -> Result<bool> {
        note!(self, q => settings::note_plan(q, id, state, done, note))
    }

    async fn save_node_state(&self, state: NodeState) -> Result<()> {
        note!(self, q => enrolment::save_state(q, &state))
    }

    async fn node_states(&self) -> Result<Vec<NodeState>> {
        enrolment::states(&mut self.reader()).await
    }

    async fn add_enrolment_token(&self, digest: [u8; 32], token: EnrolmentToken) -> Result<()> {
        note!(self, q => enrolment::add_token(q, digest, &token))
    }

    async fn take_enrolment_token(&self, digest: [u8; 32], now_ms: u64) -> Result<Option<NodeId>> {
        note!(self, q => enrolment::take_token(q, digest, now_ms))
    }

    async fn certificate_authority(&self, made: (String, String)) -> Result<(String, String)> {
        note!(self, q => enrolment::authority(q, &made))
    }
}
