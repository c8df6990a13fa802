//! Writes the controller's updates into the tables, step by step.
//!
//! A step is one or more messages, of which the last has a revision. Steps are
//! idempotent: after a crash the controller sends again what was not applied.
//! A snapshot is applied over what is there: entries are written one by one as
//! in a delta, and what was not mentioned goes when it ends, so packets never
//! see less than either state.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Display;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_southbound::proto::NodeUpdate;
use sluice_southbound::{
    ClusterKeys, ClusterPlan, ELEPHANT_DEFAULT, ELEPHANT_NEVER, Endpoint, Group, Path, PathKey, Port, Route,
    Scope, Update, Vip, Vrf, Vtep, VtepRole,
};
use sluice_tables::{NodeTables, Role, Target};
use sluice_types::{InstanceId, IpNet, Vni};
use tokio::sync::watch;

use crate::linger::Linger;
use crate::rsp::{KeyBook, Keys};

mod paths;

/// Most failures of one step that are kept by name; the others are only counted.
const FAILURES_NAMED: usize = 64;

/// What becomes of the instances of this host. Gateways have none.
pub trait Ports: Send + 'static {
    /// The instance is here, or has changed.
    ///
    /// # Errors
    /// What could not be written, for the acknowledgement.
    fn upsert(&mut self, tables: &mut NodeTables, port: Port) -> Result<(), String>;

    /// The instance is here no longer.
    ///
    /// # Errors
    /// As for `upsert`.
    fn remove(&mut self, tables: &mut NodeTables, instance: InstanceId) -> Result<(), String>;

    /// All that are here.
    fn instances(&self) -> Vec<InstanceId>;

    /// Another node is there, or has another role.
    fn upsert_vtep(&mut self, _vtep: &Vtep) {}

    /// Of the other nodes these are there no longer.
    fn remove_vteps(&mut self, _gone: &dyn Fn(IpAddr) -> bool) {}

    /// A step ends: what was told must survive a crash from here on.
    ///
    /// # Errors
    /// As for `upsert`.
    fn commit(&mut self) -> Result<(), String>;
}

/// For nodes without instances.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPorts;

impl Ports for NoPorts {
    fn upsert(&mut self, _: &mut NodeTables, port: Port) -> Result<(), String> {
        Err(format!("port {}: this node has no instances", port.name))
    }

    fn remove(&mut self, _: &mut NodeTables, _: InstanceId) -> Result<(), String> {
        Ok(())
    }

    fn instances(&self) -> Vec<InstanceId> {
        Vec::new()
    }

    fn commit(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// A step that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// To be acknowledged.
    pub revision: u64,
    /// What could not be written, by name.
    pub failures: Vec<String>,
}

/// Why an update was not applied at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the controller sent changes of database {sent:#x} to tables of {ours:#x}; asking for a snapshot")]
pub struct OtherDatabase {
    sent: u64,
    ours: u64,
}

/// What a snapshot has mentioned so far.
#[derive(Debug, Default)]
struct Mentioned {
    vteps: HashSet<IpAddr>,
    vips: HashSet<IpAddr>,
    groups: HashSet<u32>,
    vnis: HashSet<Vni>,
    endpoints: HashSet<(Vni, IpAddr)>,
    routes: HashSet<(Vni, IpNet)>,
    ports: HashSet<InstanceId>,
    keys: Vec<ClusterKeys>,
}

/// Paths that the step under way enters, or (`None`) takes away.
type Paths = HashMap<PathKey, Option<Path>>;

/// The tables, and the state of the step that is under way.
pub struct Applier<P> {
    /// The tables.
    pub tables: NodeTables,
    /// The instances of this host.
    pub ports: P,
    snapshot: Option<Mentioned>,
    failures: Failures,
    paths: Paths,
    /// VRFs whose group is absent, for when it comes.
    waiting: BTreeMap<Vni, Vrf>,
    /// Counts changes of VTEPs and vIPs, for those who act on them.
    topology: u64,
    linger: Option<Linger>,
    /// vIPs that this gateway answers for.
    owned: HashSet<IpAddr>,
    keys: KeyBook,
    plan: watch::Sender<Option<ClusterPlan>>,
    /// Groups of this host that want elephants to be looked for here.
    detect: watch::Sender<BTreeSet<u32>>,
}

#[derive(Debug, Default)]
struct Failures {
    named: Vec<String>,
    count: u64,
}

impl Failures {
    fn add(&mut self, count: u64, text: impl FnOnce() -> String) {
        self.count += count;
        if self.named.len() < FAILURES_NAMED {
            let text = text();
            tracing::error!(failure = text, "update");
            self.named.push(text);
        }
    }

    /// `entry` names what `result` is about.
    fn check<T, E: std::error::Error>(&mut self, result: Result<T, E>, entry: impl Display) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.add(1, || format!("{entry}: {}", chain(&error)));
                None
            }
        }
    }
}

/// An error with its causes, on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

impl<P: Ports> Applier<P> {
    /// Over tables as they are.
    pub fn new(tables: NodeTables, ports: P) -> Self {
        let owned = tables.vips().filter(|vip| vip.owned).map(|vip| vip.address).collect();
        Self {
            tables,
            ports,
            snapshot: None,
            failures: Failures::default(),
            paths: Paths::default(),
            waiting: BTreeMap::new(),
            topology: 0,
            linger: None,
            owned,
            keys: KeyBook::default(),
            plan: watch::Sender::default(),
            detect: watch::Sender::default(),
        }
    }

    /// Networks that the controller removes stay for this time, with their groups, and so do VTEPs of
    /// gateways, until [`Applier::end_lingering`].
    pub fn set_linger(&mut self, time: Duration) {
        self.linger = Some(Linger::new(time));
    }

    /// Lets the networks linger that `used` does not know, and VTEPs of gateways that `is_gateway` does not:
    /// a predecessor may have let them, or died before it could remove them.
    pub fn linger_unused(
        &mut self,
        now: Instant,
        used: impl Fn(&P, Vni) -> bool,
        is_gateway: impl Fn(&P, IpAddr) -> bool,
    ) {
        let Some(linger) = &mut self.linger else { return };
        for entry in self.tables.vrfs() {
            if !used(&self.ports, entry.vrf.vni) {
                linger.begin(entry.vrf.vni, now);
            }
        }
        for vtep in self.tables.vteps() {
            if self.tables.role(vtep) == Some(Role::Gateway) && !is_gateway(&self.ports, vtep) {
                linger.begin_vtep(vtep, now);
            }
        }
    }

    /// Whether a network is the controller's no more, and only lingers.
    pub fn lingers(&self, vni: Vni) -> bool {
        self.linger.as_ref().is_some_and(|linger| linger.has(vni))
    }

    /// Removes the networks that have lingered long enough, and that `used` does not know, and the VTEPs.
    pub fn end_lingering(&mut self, now: Instant, used: impl Fn(&P, Vni) -> bool) {
        let Some(linger) = &mut self.linger else { return };
        for vni in linger.take_over(now) {
            if used(&self.ports, vni) {
                continue;
            }
            tracing::info!(%vni, "no instance of this network has been here for a while: removing it");
            if let Err(error) = self.tables.remove_vrf(vni) {
                tracing::error!(%vni, error = chain(&error), "a network stays");
                linger.begin(vni, now);
            }
        }
        for vtep in linger.take_vteps_over(now) {
            tracing::info!(%vtep, "this gateway has been gone for a while: refusing its packets");
            if let Err(error) = self.tables.remove_vtep(vtep) {
                tracing::error!(%vtep, error = chain(&error), "a VTEP stays");
                linger.begin_vtep(vtep, now);
            }
        }
        let tables = &self.tables;
        let unused = linger.take_unused(|id| tables.vrfs().any(|entry| entry.vrf.group == Some(id)));
        for id in unused {
            if let Err(error) = self.tables.remove_group(id) {
                tracing::error!(id, error = chain(&error), "a group stays");
            }
        }
    }

    /// Lets packets find that this gateway answers for these vIPs, and for no others; those that are
    /// not in the tables yet, when they come. Until it is called, what the tables say counts.
    pub fn own(&mut self, owned: HashSet<IpAddr>) {
        self.owned = owned;
        let wrong: Vec<_> =
            self.tables.vips().filter(|vip| vip.owned != self.owned.contains(&vip.address)).collect();
        for vip in wrong {
            let vip = sluice_tables::Vip { owned: !vip.owned, ..vip };
            if let Err(error) = self.tables.upsert_vip(&vip) {
                tracing::error!(vip = %vip.address, owned = vip.owned, error = chain(&error), "owner of a vIP");
            }
        }
    }

    /// Where the clusters' keys are kept: what a predecessor left there is in use at once.
    pub fn set_key_book(&mut self, book: KeyBook) {
        self.keys = book;
    }

    /// The clusters' keys, as they are and as they change.
    pub fn keys(&self) -> watch::Receiver<Arc<Keys>> {
        self.keys.subscribe()
    }

    /// The newest plan of this gateway's cluster that the controller told of, since this agent
    /// started. An agent that goes on from pinned tables may be told none for long: what must
    /// outlive it is to be kept elsewhere.
    pub fn plan(&self) -> watch::Receiver<Option<ClusterPlan>> {
        self.plan.subscribe()
    }

    /// The groups that want elephants to be looked for on this host, as the controller told since this
    /// agent started. None: gateways look.
    pub fn detect(&self) -> watch::Receiver<BTreeSet<u32>> {
        self.detect.subscribe()
    }

    fn note_detect(&mut self, id: u32, detect: bool) {
        self.detect.send_if_modified(|groups| if detect { groups.insert(id) } else { groups.remove(&id) });
    }

    /// Changes whenever a VTEP or a vIP has come, changed or gone.
    pub fn topology(&self) -> u64 {
        self.topology
    }

    /// A new stream begins: what an earlier one left unfinished is forgotten.
    pub fn begin_stream(&mut self) {
        self.snapshot = None;
        self.failures = Failures::default();
        self.paths.clear();
    }

    /// Applies one message. `Some` when it ended a step.
    ///
    /// # Errors
    /// [`OtherDatabase`]: nothing was applied, and a new stream has to be opened.
    pub fn apply(&mut self, message: NodeUpdate) -> Result<Option<Applied>, OtherDatabase> {
        let (mut update, malformed) = Update::read(message);
        for error in malformed {
            self.failures.add(1, || format!("malformed: {error}"));
        }
        if update.snapshot && self.snapshot.is_none() {
            // Until it is complete the tables are of no revision.
            self.tables.set_applied_revision(0);
            self.snapshot = Some(Mentioned::default());
        }
        let ours = self.tables.database_id();
        if self.snapshot.is_none() && update.database_id != ours {
            self.tables.set_applied_revision(0);
            return Err(OtherDatabase { sent: update.database_id, ours });
        }
        if let Some(mentioned) = &mut self.snapshot {
            mentioned.note(&update);
        }
        self.upsert(&mut update);
        self.remove(&update);
        self.paths.extend(update.paths.iter().map(|path| (path.key, Some(*path))));
        self.paths.extend(update.removed_paths.iter().map(|key| (*key, None)));
        Ok(if update.revision == 0 { None } else { Some(self.finish(&update)) })
    }

    fn finish(&mut self, update: &Update) -> Applied {
        let snapshot = self.snapshot.take();
        self.write_paths(snapshot.is_some());
        if let Some(mut mentioned) = snapshot {
            let result = self.keys.update(std::mem::take(&mut mentioned.keys), true);
            self.failures.check(result, "cluster keys");
            self.ports.remove_vteps(&|address| !mentioned.vteps.contains(&address));
            // Nothing of another database may linger: the same number is another tenant's network here.
            let other = update.database_id != self.tables.database_id();
            let linger = self.linger.take_if(|_| other);
            self.sweep(&mentioned);
            self.linger = linger.map(|linger| linger.emptied()).or(self.linger.take());
        }
        let committed = self.ports.commit();
        // A successor that reads what was committed earlier must ask for a snapshot.
        let revision = if committed.is_ok() { update.revision } else { 0 };
        if let Err(error) = committed {
            self.failures.add(1, || error);
        }
        let result = self.keys.commit();
        self.failures.check(result, "the keys' file");
        self.tables.set_database_id(update.database_id);
        self.tables.set_applied_revision(revision);
        let Failures { mut named, count } = std::mem::take(&mut self.failures);
        let unnamed = count - named.len() as u64;
        if unnamed > 0 {
            named.push(format!("and {unnamed} more"));
        }
        Applied { revision: update.revision, failures: named }
    }

    fn upsert(&mut self, update: &mut Update) {
        for vtep in &update.vteps {
            self.ports.upsert_vtep(vtep);
            if let Some(linger) = &mut self.linger {
                linger.keep_vtep(vtep.address);
            }
            let result = self.tables.upsert_vtep(vtep.address, tables_role(vtep.role));
            self.note_topology(result, format_args!("VTEP {}", vtep.address));
        }
        for Vip { address, mac } in update.vips.iter().copied() {
            let vip = sluice_tables::Vip { address, mac, owned: self.owned.contains(&address) };
            let result = self.tables.upsert_vip(&vip);
            self.note_topology(result, format_args!("vIP {address}"));
        }
        if let Some(plan) = update.cluster.take() {
            self.note_plan(plan);
        }
        self.note_keys(std::mem::take(&mut update.keys));
        for group in update.groups.drain(..) {
            self.upsert_group(group);
        }
        for vrf in &update.vrfs {
            self.upsert_vrf(vrf);
        }
        self.upsert_endpoints(&update.endpoints);
        for route in &update.routes {
            self.upsert_route(route);
        }
        for port in update.ports.drain(..) {
            if let Err(error) = self.ports.upsert(&mut self.tables, port) {
                self.failures.add(1, || error);
            }
        }
    }

    /// A stream that goes on from this gateway's tables begins with the newest plan, and comes to the steps
    /// with those before it then.
    fn note_plan(&mut self, plan: ClusterPlan) {
        self.plan.send_if_modified(|known| {
            let older = known
                .as_ref()
                .is_some_and(|known| known.cluster == plan.cluster && known.revision >= plan.revision);
            if !older {
                *known = Some(plan);
            }
            !older
        });
    }

    fn note_keys(&mut self, keys: Vec<ClusterKeys>) {
        match &mut self.snapshot {
            // A snapshot's are taken together when it ends: an id may have been another cluster's before.
            Some(mentioned) => mentioned.keys.extend(keys),
            None => {
                let result = self.keys.update(keys, false);
                self.failures.check(result, "cluster keys");
            }
        }
    }

    fn note_topology(&mut self, result: Result<bool, sluice_tables::Error>, entry: impl Display) {
        if self.failures.check(result, entry) == Some(true) {
            self.topology += 1;
        }
    }

    fn upsert_group(&mut self, group: Group) {
        let id = group.id;
        self.note_detect(id, group.detect);
        if group.vips.is_empty() {
            self.remove_group(id);
            return;
        }
        if let Some(linger) = &mut self.linger {
            linger.keep_group(id);
        }
        let result = self.tables.upsert_group(&sluice_tables::Group { id, vips: group.vips });
        if self.failures.check(result, format_args!("group {id}")).is_none() {
            return;
        }
        let ready: Vec<Vrf> = self.waiting.values().filter(|vrf| vrf.group == Some(id)).copied().collect();
        for vrf in ready {
            self.upsert_vrf(&vrf);
        }
    }

    fn remove_group(&mut self, id: u32) {
        self.note_detect(id, false);
        let users = self.tables.vrfs().filter(|entry| entry.vrf.group == Some(id));
        let users: Vec<Vrf> = users.map(|entry| southbound_vrf(&entry.vrf)).collect();
        if let Some(linger) = &mut self.linger
            && !users.is_empty()
            && users.iter().all(|vrf| linger.has(vrf.vni))
        {
            return linger.begin_group(id);
        }
        let result = self.tables.remove_group(id);
        if self.failures.check(result, format_args!("removal of group {id}")).is_some() {
            // A snapshot's VRFs come behind its groups, and may have others.
            if self.snapshot.is_none() {
                users.iter().for_each(|vrf| self.note_unreached(vrf));
            }
            self.waiting.extend(users.into_iter().map(|vrf| (vrf.vni, vrf)));
        }
    }

    fn upsert_vrf(&mut self, vrf: &Vrf) {
        if let Some(linger) = &mut self.linger {
            linger.keep(vrf.vni);
        }
        let mut entry = tables_vrf(vrf);
        if entry.group.is_some_and(|id| !self.tables.groups().any(|group| group.id == id)) {
            // Without vIPs of this host's family the VPC works on this host alone.
            entry.group = None;
            self.waiting.insert(vrf.vni, *vrf);
            self.note_unreached(vrf);
        } else {
            self.waiting.remove(&vrf.vni);
        }
        let result = self.tables.upsert_vrf(&entry);
        self.failures.check(result, format_args!("VNI {}", vrf.vni));
    }

    fn note_unreached(&mut self, vrf: &Vrf) {
        let group = vrf.group.unwrap_or_default();
        let said = || format!("VNI {}: its gateway group {group} has no vIP for this host", vrf.vni);
        self.failures.add(1, said);
    }

    fn upsert_endpoints(&mut self, endpoints: &[Endpoint]) {
        let entries: Vec<_> = endpoints.iter().flat_map(tables_endpoints).collect();
        let bulk = self.tables.upsert_endpoints(&entries);
        let named = bulk.errors.len();
        for (index, error) in bulk.errors {
            let name =
                entries.get(index).map_or_else(String::new, |e| format!("{} of VNI {}", e.address, e.vni));
            self.failures.add(1, || format!("endpoint {name}: {}", chain(&error)));
        }
        let rest = bulk.failed.saturating_sub(named) as u64;
        if rest > 0 {
            self.failures.add(rest, || format!("endpoints: {rest} more of one message"));
        }
    }

    fn upsert_route(&mut self, route: &Route) {
        let target = match route.scope {
            Scope::Local => Target::Local,
            Scope::Peer(vni) => Target::Peer(vni),
            Scope::Drop => Target::Drop,
        };
        let (vni, prefix) = (route.key.vni, route.key.prefix);
        let result = self.tables.upsert_route(&sluice_tables::Route { vni, prefix, target });
        self.failures.check(result, format_args!("route {prefix} of VNI {vni}"));
    }

    fn remove(&mut self, update: &Update) {
        for port in &update.removed_ports {
            if let Err(error) = self.ports.remove(&mut self.tables, *port) {
                self.failures.add(1, || error);
            }
        }
        for key in &update.removed_endpoints {
            for address in addresses(key.ipv4, key.ipv6) {
                let result = self.tables.remove_endpoint(key.vni, address);
                self.failures.check(result, format_args!("removal of endpoint {address} of VNI {}", key.vni));
            }
        }
        for key in &update.removed_routes {
            let result = self.tables.remove_route(key.vni, key.prefix);
            self.failures.check(result, format_args!("removal of route {} of VNI {}", key.prefix, key.vni));
        }
        for vni in &update.removed_vnis {
            self.waiting.remove(vni);
            if let Some(linger) = &mut self.linger
                && self.tables.vrf(*vni).is_some()
            {
                linger.begin(*vni, Instant::now());
                continue;
            }
            let result = self.tables.remove_vrf(*vni);
            self.failures.check(result, format_args!("removal of VNI {vni}"));
        }
        if !update.removed_vnis.is_empty() {
            // A network that lingers is not told of changes any more.
            let result = self.tables.retain_fixed(|path| !update.removed_vnis.contains(&path.vni));
            self.failures.check(result, "removal of the paths of networks");
        }
        for id in &update.removed_groups {
            self.remove_group(*id);
        }
        for address in &update.removed_vips {
            let result = self.tables.remove_vip(*address);
            self.note_topology(result, format_args!("removal of vIP {address}"));
        }
        if !update.removed_vteps.is_empty() {
            self.ports.remove_vteps(&|address| update.removed_vteps.contains(&address));
        }
        for address in &update.removed_vteps {
            if let Some(linger) = &mut self.linger
                && self.tables.role(*address) == Some(Role::Gateway)
            {
                linger.begin_vtep(*address, Instant::now());
                continue;
            }
            let result = self.tables.remove_vtep(*address);
            self.note_topology(result, format_args!("removal of VTEP {address}"));
        }
    }

    /// Removes what a snapshot has not mentioned.
    fn sweep(&mut self, mentioned: &Mentioned) {
        let unmentioned = Update {
            removed_ports: without(self.ports.instances(), &mentioned.ports),
            removed_vnis: without(self.tables.vrfs().map(|entry| entry.vrf.vni), &mentioned.vnis),
            removed_groups: without(self.tables.groups().map(|group| group.id), &mentioned.groups),
            removed_vips: without(self.tables.vips().map(|vip| vip.address), &mentioned.vips),
            removed_vteps: without(self.tables.vteps(), &mentioned.vteps),
            ..Update::default()
        };
        let routes = without(self.tables.routes().map(|route| (route.vni, route.prefix)), &mentioned.routes);
        for (vni, prefix) in routes {
            let result = self.tables.remove_route(vni, prefix);
            self.failures.check(result, format_args!("removal of route {prefix} of VNI {vni}"));
        }
        let kept = |endpoint: &sluice_tables::Endpoint| {
            mentioned.endpoints.contains(&(endpoint.vni, endpoint.address))
        };
        let result = self.tables.retain_endpoints(kept);
        self.failures.check(result, "removal of endpoints that the snapshot does not have");
        self.remove(&unmentioned);
    }
}

impl Mentioned {
    fn note(&mut self, update: &Update) {
        self.vteps.extend(update.vteps.iter().map(|vtep| vtep.address));
        self.vips.extend(update.vips.iter().map(|vip| vip.address));
        self.groups.extend(update.groups.iter().map(|group| group.id));
        self.vnis.extend(update.vrfs.iter().map(|vrf| vrf.vni));
        self.routes.extend(update.routes.iter().map(|route| (route.key.vni, route.key.prefix)));
        self.ports.extend(update.ports.iter().map(|port| port.instance));
        for endpoint in &update.endpoints {
            let keys = addresses(endpoint.ipv4, endpoint.ipv6).map(|address| (endpoint.vni, address));
            self.endpoints.extend(keys);
        }
    }
}

fn without<T: Eq + std::hash::Hash>(all: impl IntoIterator<Item = T>, mentioned: &HashSet<T>) -> Vec<T> {
    all.into_iter().filter(|item| !mentioned.contains(item)).collect()
}

fn addresses(
    ipv4: Option<std::net::Ipv4Addr>,
    ipv6: Option<std::net::Ipv6Addr>,
) -> impl Iterator<Item = IpAddr> {
    ipv4.map(IpAddr::V4).into_iter().chain(ipv6.map(IpAddr::V6))
}

fn tables_endpoints(endpoint: &Endpoint) -> impl Iterator<Item = sluice_tables::Endpoint> {
    let Endpoint { vni, mac, host, ipv4, ipv6 } = *endpoint;
    addresses(ipv4, ipv6).map(move |address| sluice_tables::Endpoint { vni, address, mac, host })
}

fn tables_role(role: VtepRole) -> Role {
    match role {
        VtepRole::Host => Role::Host,
        VtepRole::Gateway { .. } => Role::Gateway,
    }
}

fn tables_vrf(vrf: &Vrf) -> sluice_tables::Vrf {
    let Vrf { vni, mtu, router4, router6, group, elephant_kbps } = *vrf;
    // A host's networks have a group, and no threshold.
    let elephant_bytes = if group.is_some() { None } else { elephant_bytes(elephant_kbps) };
    sluice_tables::Vrf { vni, mtu, router4, router6, group, elephant_bytes }
}

/// Bytes in the second that flows are counted over.
fn elephant_bytes(kbps: u32) -> Option<u32> {
    const NEVER: u32 = sluice_tables::Vrf::NEVER_ELEPHANTS;
    match kbps {
        ELEPHANT_DEFAULT => None,
        ELEPHANT_NEVER => Some(NEVER),
        kbps => {
            Some(u32::try_from(u64::from(kbps) * 1000 / 8).map_or(NEVER - 1, |bytes| bytes.min(NEVER - 1)))
        }
    }
}

fn southbound_vrf(vrf: &sluice_tables::Vrf) -> Vrf {
    let sluice_tables::Vrf { vni, mtu, router4, router6, group, elephant_bytes: _ } = *vrf;
    // Only hosts' VRFs come this way, and hosts offload by what gateways tell them.
    Vrf { vni, mtu, router4, router6, group, elephant_kbps: ELEPHANT_DEFAULT }
}

#[cfg(test)]
#[path = "apply_tests.rs"]
mod tests;
