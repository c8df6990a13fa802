//! The controller's database: objects, revisions, outbox.
//!
//! One trait, [`Store`], two backends: SQLite (the default) and PostgreSQL.
//! Every change is one transaction that checks what only the database can
//! check, takes the next revision, writes the objects and appends to the outbox
//! what changed. Revisions are in commit order. One conformance suite
//! (`tests/conformance`) runs against both backends.
#![forbid(unsafe_code)]
#![allow(missing_docs)] // the model's fields say what they are

mod backend;
mod check;
mod codec;
mod database;
mod error;
mod model;
mod ops;
mod plans;
mod postgres;
mod rows;
mod schema;
mod sqlite;
mod url;
mod value;
mod write;

pub use error::{Conflict, StoreError};
pub use model::*;
pub use plans::{PlanProgress, PlanState, StoredPlan};
pub use url::Options;

use async_trait::async_trait;
use sluice_types::{
    ClusterId, GatewayId, HostId, InstanceId, IpNet, Ipv4Net, Ipv6Net, MacAddr, PeeringId, RouteId,
    RouteTableId, SubnetId, TenantId, Vni, VpcId,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Result of every store call.
pub type Result<T> = std::result::Result<T, StoreError>;

/// Outcome of a creation by name: the same call again finds what it made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Created<T> {
    /// Made by this call.
    New(T),
    /// Was there already, with the same content.
    Existing(T),
}

impl<T> Created<T> {
    /// The object, whoever made it.
    pub fn into_inner(self) -> T {
        match self {
            Self::New(object) | Self::Existing(object) => object,
        }
    }
}

/// A page: objects with an id greater than `after`, at most `limit` of them, in order of id.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    pub after: u64,
    pub limit: u32,
}

#[derive(Clone, Debug)]
pub struct NewVpc {
    pub name: String,
    pub tenant: TenantId,
    /// `None`: the lowest VNI never used, or if there is none, the lowest free one.
    pub vni: Option<Vni>,
    pub cluster: ClusterId,
    pub mtu: u16,
    /// As [`Vpc::offload_kbps`].
    pub offload_kbps: Option<u32>,
}

/// What a VPC shall be called and have; all of it is set.
#[derive(Clone, Debug)]
pub struct VpcUpdate {
    pub name: String,
    pub mtu: u16,
    /// As [`Vpc::offload_kbps`].
    pub offload_kbps: Option<u32>,
}

#[derive(Clone, Debug)]
pub struct NewSubnet {
    pub name: String,
    pub vpc: VpcId,
    pub ipv4: Option<Ipv4Net>,
    pub ipv6: Option<Ipv6Net>,
    pub dns: Vec<Ipv4Addr>,
}

#[derive(Clone, Debug)]
pub struct NewHost {
    pub name: String,
    pub vtep: IpAddr,
    pub agent: bool,
}

#[derive(Clone, Debug)]
pub struct NewGateway {
    pub name: String,
    pub cluster: ClusterId,
    pub vtep4: Option<Ipv4Addr>,
    pub vtep6: Option<Ipv6Addr>,
}

/// Addresses left out are allocated: MAC from the id; IPv4 the lowest never
/// used in the subnet, then the lowest free; IPv6 by EUI-64 from the MAC in a
/// /64, else like IPv4. An address is allocated in each family the subnet has.
#[derive(Clone, Debug)]
pub struct NewInstance {
    pub name: String,
    pub subnet: SubnetId,
    pub host: HostId,
    pub mac: Option<MacAddr>,
    pub ipv4: Option<Ipv4Addr>,
    pub ipv6: Option<Ipv6Addr>,
}

#[derive(Clone, Debug)]
pub struct NewRoute {
    pub table: RouteTableId,
    pub prefix: IpNet,
    pub target: RouteTarget,
}

#[derive(Clone, Debug)]
pub struct NewPeering {
    pub name: String,
    pub a: VpcId,
    pub b: VpcId,
}

/// Everything but the instances.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    pub revision: u64,
    pub hosts: Vec<Host>,
    pub clusters: Vec<Cluster>,
    pub gateways: Vec<Gateway>,
    pub vpcs: Vec<Vpc>,
    pub subnets: Vec<Subnet>,
    pub routes: Vec<(VpcId, Route)>,
    pub peerings: Vec<Peering>,
    /// In order of id.
    pub keys: Vec<ClusterKey>,
}

/// What a snapshot is read as: the topology first, then instances in pages.
#[derive(Clone, Debug)]
pub enum SnapshotPart {
    Topology(Box<Topology>),
    Instances(Vec<Instance>),
}

/// Which instances a snapshot wants.
#[derive(Clone, Copy, Debug)]
pub enum InstancesOf {
    /// Of all VPCs on a cluster.
    Cluster(ClusterId),
    /// Of all VPCs on a gateway's clusters.
    Gateway(GatewayId),
    /// On a host.
    Host(HostId),
    /// Of all VPCs that have an instance on a host, and of those peered with them.
    Around(HostId),
    /// All there are.
    All,
}

/// The identity of a database, made when it is created, never 0.
pub type DatabaseId = u64;

/// A one-time token's meaning. Only the SHA-256 of the token is stored.
#[derive(Clone, Debug)]
pub struct EnrolmentToken {
    pub node: NodeId,
    pub expires_ms: u64,
}

/// The database of one cloud. `expected` revisions implement If-Match: `None`
/// changes whatever is there, `Some` fails with [`StoreError::Stale`] unless the
/// object is at that revision.
#[async_trait]
pub trait Store: Send + Sync {
    fn database_id(&self) -> DatabaseId;
    /// Revision of the last commit.
    async fn revision(&self) -> Result<u64>;
    /// Fails with the cause when nothing could be written now.
    async fn check_writable(&self) -> Result<()>;

    async fn create_tenant(&self, name: &str) -> Result<Created<Tenant>>;
    async fn tenant(&self, id: TenantId) -> Result<Tenant>;
    async fn tenants(&self, name: Option<&str>, page: Page) -> Result<Vec<Tenant>>;
    async fn rename_tenant(&self, id: TenantId, name: &str, expected: Option<u64>) -> Result<Tenant>;
    async fn delete_tenant(&self, id: TenantId, expected: Option<u64>) -> Result<()>;

    /// `hello_ms`: the usual one if left out.
    async fn create_cluster(
        &self,
        name: &str,
        vips: &[IpAddr],
        hello_ms: Option<u16>,
    ) -> Result<Created<Cluster>>;
    async fn cluster(&self, id: ClusterId) -> Result<Cluster>;
    async fn clusters(&self, name: Option<&str>, page: Page) -> Result<Vec<Cluster>>;
    /// Replaces the vIPs. What stays keeps its place; if some come and some go, that
    /// takes two revisions.
    async fn update_cluster(&self, id: ClusterId, vips: &[IpAddr], expected: Option<u64>) -> Result<Cluster>;
    /// Sets how often its gateways say hello to each other.
    async fn set_hello(&self, id: ClusterId, hello_ms: u16, expected: Option<u64>) -> Result<Cluster>;
    /// Gateways have its plan at the revision `above`: if the database's is older, as after it was restored
    /// from a backup, it is given a newer revision. True if it was older.
    async fn raise_plan(&self, id: ClusterId, above: u64) -> Result<bool>;
    /// Its keys, in order of id.
    async fn cluster_keys(&self, id: ClusterId) -> Result<Vec<ClusterKey>>;
    /// Makes the cluster's next key if it is due at `now_ms` (milliseconds of the UNIX
    /// epoch), or a node that has the others was deleted, and drops those that ended long ago. True if
    /// anything changed.
    async fn rotate_keys(&self, id: ClusterId, now_ms: u64) -> Result<bool>;
    /// Makes the cluster's next key at once; all others end within minutes. Not more often than every
    /// five minutes.
    async fn renew_key(&self, id: ClusterId) -> Result<KeyRotation>;
    async fn delete_cluster(&self, id: ClusterId, expected: Option<u64>) -> Result<()>;

    async fn create_gateway(&self, new: NewGateway) -> Result<Created<Gateway>>;
    async fn gateway(&self, id: GatewayId) -> Result<Gateway>;
    async fn gateways(
        &self,
        cluster: Option<ClusterId>,
        name: Option<&str>,
        page: Page,
    ) -> Result<Vec<Gateway>>;
    /// Takes its vIPs' homes away from a gateway, if another of its cluster can have
    /// them, or gives it its share again.
    async fn drain_gateway(&self, id: GatewayId, draining: bool, expected: Option<u64>) -> Result<Gateway>;
    /// Gives a vIP whose home is `from` the home `to`, both of that cluster. False if its home is another,
    /// or `to` cannot have it.
    async fn move_home(
        &self,
        cluster: ClusterId,
        vip: IpAddr,
        from: GatewayId,
        to: GatewayId,
    ) -> Result<bool>;
    /// Begins to move a gateway to another cluster, or turns a move back;
    /// [`Store::advance_gateway_move`] does the rest. `why` is for the event log. Without
    /// need nothing changes.
    async fn move_gateway(
        &self,
        id: GatewayId,
        to: ClusterId,
        why: &str,
        expected: Option<u64>,
    ) -> Result<Gateway>;
    /// Takes a gateway's move one step on if it is `at` that step; false if it is not.
    async fn advance_gateway_move(&self, id: GatewayId, at: GatewayMove) -> Result<bool>;
    async fn delete_gateway(&self, id: GatewayId, expected: Option<u64>) -> Result<()>;

    async fn create_host(&self, new: NewHost) -> Result<Created<Host>>;
    async fn host(&self, id: HostId) -> Result<Host>;
    async fn hosts(&self, name: Option<&str>, page: Page) -> Result<Vec<Host>>;
    async fn delete_host(&self, id: HostId, expected: Option<u64>) -> Result<()>;

    async fn create_vpc(&self, new: NewVpc) -> Result<Created<Vpc>>;
    async fn vpc(&self, id: VpcId) -> Result<Vpc>;
    async fn vpcs(&self, tenant: Option<TenantId>, name: Option<&str>, page: Page) -> Result<Vec<Vpc>>;
    async fn update_vpc(&self, id: VpcId, new: VpcUpdate, expected: Option<u64>) -> Result<Vpc>;
    /// Begins to move a VPC to another cluster, with all that it is peered with, or turns
    /// a move back; [`Store::advance_move`] does the rest. Without need nothing changes.
    async fn move_vpc(&self, id: VpcId, to: ClusterId, expected: Option<u64>) -> Result<Vpc>;
    /// Takes a move ([`Move::id`]) one step on if it is where `switched` says; false if
    /// it is not.
    async fn advance_move(&self, id: u64, switched: bool) -> Result<bool>;
    /// Hosts with instances of a VPC, in order of id.
    async fn vpc_hosts(&self, id: VpcId) -> Result<Vec<HostId>>;
    async fn delete_vpc(&self, id: VpcId, expected: Option<u64>) -> Result<()>;

    async fn create_subnet(&self, new: NewSubnet) -> Result<Created<Subnet>>;
    async fn subnet(&self, id: SubnetId) -> Result<Subnet>;
    async fn subnets(&self, vpc: Option<VpcId>, name: Option<&str>, page: Page) -> Result<Vec<Subnet>>;
    async fn delete_subnet(&self, id: SubnetId, expected: Option<u64>) -> Result<()>;

    async fn create_instance(&self, vpc: VpcId, new: NewInstance) -> Result<Created<Instance>>;
    /// All or nothing; names already there with the same content are skipped.
    /// Returns the instances made now, in order of id, and how many were there.
    async fn create_instances(&self, vpc: VpcId, new: Vec<NewInstance>) -> Result<(Vec<Instance>, usize)>;
    async fn instance(&self, id: InstanceId) -> Result<Instance>;
    async fn instances(
        &self,
        vpc: Option<VpcId>,
        host: Option<HostId>,
        name: Option<&str>,
        page: Page,
    ) -> Result<Vec<Instance>>;
    /// An instance is on another host now.
    async fn move_instance(&self, id: InstanceId, host: HostId, expected: Option<u64>) -> Result<Instance>;
    async fn delete_instance(&self, id: InstanceId, expected: Option<u64>) -> Result<()>;

    async fn route_table(&self, id: RouteTableId) -> Result<RouteTable>;
    async fn route_tables(&self, vpc: Option<VpcId>, page: Page) -> Result<Vec<RouteTable>>;
    async fn create_route(&self, new: NewRoute) -> Result<Created<Route>>;
    async fn route(&self, id: RouteId) -> Result<Route>;
    async fn routes(&self, table: RouteTableId, page: Page) -> Result<Vec<Route>>;
    async fn delete_route(&self, id: RouteId, expected: Option<u64>) -> Result<()>;

    async fn create_peering(&self, new: NewPeering) -> Result<Created<Peering>>;
    async fn peering(&self, id: PeeringId) -> Result<Peering>;
    async fn peerings(&self, vpc: Option<VpcId>, name: Option<&str>, page: Page) -> Result<Vec<Peering>>;
    async fn delete_peering(&self, id: PeeringId, expected: Option<u64>) -> Result<()>;

    /// Whole revisions after `after`, oldest first, until `limit` rows are
    /// passed. [`StoreError::Compacted`] if some of them are gone.
    async fn outbox(&self, after: u64, limit: u32) -> Result<Vec<OutboxRow>>;
    /// Drops outbox rows of revisions up to and including `revision`.
    async fn compact_outbox(&self, revision: u64) -> Result<()>;
    /// One consistent picture: `sink` is given the topology and then the
    /// instances, in order of id. A slow sink delays no writer. Returns the
    /// picture's revision.
    async fn snapshot(
        &self,
        instances: InstancesOf,
        sink: tokio::sync::mpsc::Sender<SnapshotPart>,
    ) -> Result<u64>;

    /// Adds an event that tells of no change of an object; returns its id. Only the newest
    /// 100,000 are kept.
    async fn add_event(&self, event: NewEvent) -> Result<u64>;
    /// At most `limit` events in order of id: the first after `after`, or without it the
    /// newest.
    async fn events(&self, subject: Option<&str>, after: Option<u64>, limit: u32) -> Result<Vec<Event>>;
    /// What the site wants, by name.
    async fn setting(&self, name: &str) -> Result<Option<String>>;
    /// Sets it if it is `before` still; false if it is not.
    async fn put_setting(&self, name: &str, before: Option<&str>, value: &str) -> Result<bool>;
    /// Instances of each VPC that has any, and the revision that this is of.
    async fn instance_counts(&self) -> Result<(u64, Vec<(VpcId, u64)>)>;
    /// Keeps a plan of so many steps; returns its number. Old ones that are not being carried out go.
    async fn add_plan(&self, created_ms: u64, steps: u64, body: &str) -> Result<u64>;
    async fn plan(&self, id: u64) -> Result<StoredPlan>;
    /// All that are kept, in order.
    async fn plans(&self) -> Result<Vec<PlanProgress>>;
    /// It shall be carried out, or go on, so many steps at a time; one plan at a time.
    async fn apply_plan(&self, id: u64, parallel: u64) -> Result<PlanProgress>;
    /// How far a plan has come that is being carried out; false if it is not.
    async fn note_plan(&self, id: u64, state: PlanState, done: u64, note: &str) -> Result<bool>;

    async fn save_node_state(&self, state: NodeState) -> Result<()>;
    async fn node_states(&self) -> Result<Vec<NodeState>>;

    /// Remembers a token by its SHA-256.
    async fn add_enrolment_token(&self, digest: [u8; 32], token: EnrolmentToken) -> Result<()>;
    /// Takes a token out: `None` if unknown or expired at `now_ms`. Succeeds once.
    async fn take_enrolment_token(&self, digest: [u8; 32], now_ms: u64) -> Result<Option<NodeId>>;
    /// The CA's PEM pair, or what `make` returns, stored first by whichever replica is first.
    async fn certificate_authority(&self, made: (String, String)) -> Result<(String, String)>;
}

/// Opens `sqlite:PATH`, `sqlite::memory:` or `postgres://...`, creating or
/// migrating the schema.
///
/// # Errors
/// [`StoreError::Unavailable`] with the cause; [`StoreError::BadUrl`].
pub async fn open(url: &str) -> Result<std::sync::Arc<dyn Store>> {
    open_with(url, Options::default()).await
}

/// [`open`], with what is not in the URL.
///
/// # Errors
/// As [`open`].
pub async fn open_with(url: &str, options: Options) -> Result<std::sync::Arc<dyn Store>> {
    let (backend, dialect): (Box<dyn backend::Backend>, _) = match url::parse(url)? {
        url::Location::File(path) => {
            (Box::new(sqlite::SqliteBackend::open(&path).await?), schema::Dialect::Sqlite)
        }
        url::Location::Memory => {
            (Box::new(sqlite::SqliteBackend::in_memory().await?), schema::Dialect::Sqlite)
        }
        url::Location::Postgres(options) => {
            (Box::new(postgres::PostgresBackend::open(*options).await?), schema::Dialect::Postgres)
        }
    };
    let mut tx = backend.begin_write().await?;
    let id = schema::migrate(tx.as_mut(), dialect, *options.vnis.start()).await?;
    tx.commit().await?;
    Ok(std::sync::Arc::new(database::Database::new(backend, id, options.vnis)))
}
