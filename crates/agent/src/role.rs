//! The interface between the agent and the role of its node, gateway or host: what a role does with the entries
//! of an update that only it has. This file changes when a new kind of entry is particular to a role.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use sluice_southbound::{
    ClusterPlan, Group, HostState, MemberState, Meter, NatGateway, Path, PathKey, Policy, PolicyKey, Port,
    PublicPrefix, Route, RouteKey, Scope, Vip, Vrf, Vtep, VtepRole,
};
use sluice_tables::{NatAddress, NodeTables, Target};
use sluice_types::{CreditPolicy, EntryHash, EntryKey, InstanceId, Vni};

use crate::claims::Claims;
use crate::failures::Failures;
use crate::migrations::MigrationReports;
use crate::rsp::KeyKind;
use crate::{NatAddresses, NodeLoad, StateReports, error_chain};

/// Numbers of sessions by instance, or why they cannot be found.
pub type EndingSessionsJob = Box<dyn FnOnce() -> Result<BTreeMap<InstanceId, u64>, String> + Send>;

/// What a role does with the entries of an update, and the state that it keeps besides the tables.
///
/// An entry of a kind that a role does not have is reported to the controller as a failure, and its removal
/// is ignored: that is what the default methods do.
pub trait Role: Send + 'static {
    /// The kind of secrets that the controller sends to nodes of this role.
    const KEY_KIND: KeyKind;

    /// Whether heartbeats report the traffic of each VNI.
    const REPORTS_VNI_TRAFFIC: bool = false;

    /// Whether digests are reported only after they or the revision have changed, and otherwise every [`DIGEST_REPEAT`]. For
    /// roles of which there are many nodes.
    ///
    /// [`DIGEST_REPEAT`]: crate::DIGEST_REPEAT
    const DIGESTS_ARE_RARE: bool = false;

    /// Whether what lookups find can be compared now: the role itself has nothing left to write.
    fn is_settled(&self) -> bool {
        true
    }

    /// Calls `call` for every entry that digests count. What the role keeps longer than the controller, or has not entered
    /// into the tables because something of its own is missing, is counted as the controller compiled it.
    fn visit_entries(&self, tables: &NodeTables, call: &mut dyn FnMut(EntryKey, EntryHash)) {
        tables.visit_entries(call);
    }

    /// The load that heartbeats report; 0 if the role does not measure it.
    fn load(&self) -> NodeLoad {
        NodeLoad::default()
    }

    /// The numbers of public addresses that heartbeats report; `None` if this node translates none.
    fn nat_addresses(&self) -> Option<NatAddresses> {
        None
    }

    /// The claims that the stream sends. Roles without ports of VMs have none.
    fn claims(&self) -> Claims {
        Claims::default()
    }

    /// The states of migrations that the stream sends. Roles without ports of VMs have none.
    fn migrations(&self) -> MigrationReports {
        MigrationReports::default()
    }

    /// The states of members of services that the stream sends. Roles without ports of VMs have none.
    fn members(&self) -> StateReports<MemberState> {
        StateReports::default()
    }

    /// The states of watched hosts that the stream sends. Roles that watch none have none.
    fn hosts(&self) -> StateReports<HostState> {
        StateReports::default()
    }

    /// A new stream begins: forgets what an unfinished step of an earlier stream left behind.
    fn begin_stream(&mut self) {}

    /// Adds a VTEP, or changes its role.
    fn upsert_vtep(&mut self, context: &mut UpdateContext<'_>, vtep: &Vtep) {
        context.upsert_vtep(vtep);
    }

    /// Removes a VTEP.
    fn remove_vtep(&mut self, context: &mut UpdateContext<'_>, address: IpAddr) {
        context.remove_vtep(address);
    }

    /// VTEPs that the role keeps besides those of the tables. A snapshot that does not mention them removes
    /// them.
    fn known_vteps(&self) -> Vec<IpAddr> {
        Vec::new()
    }

    /// Adds or changes a vIP of this node's cluster.
    fn upsert_vip(&mut self, context: &mut UpdateContext<'_>, vip: &Vip) {
        context.reject(format_args!("vIP {}", vip.address));
    }

    /// Removes a vIP.
    fn remove_vip(&mut self, _context: &mut UpdateContext<'_>, _address: IpAddr) {}

    /// Takes the controller's plan of this node's cluster.
    fn set_cluster_plan(&mut self, context: &mut UpdateContext<'_>, plan: ClusterPlan) {
        context.reject(format_args!("plan of {}", plan.cluster));
    }

    /// Takes the VTEPs of the hosts that this node probes, in place of those before.
    fn set_watched_hosts(&mut self, context: &mut UpdateContext<'_>, _hosts: Vec<IpAddr>) {
        context.reject(format_args!("watched hosts"));
    }

    /// Adds or changes a meter. Its removal is the same for all roles.
    fn upsert_meter(&mut self, context: &mut UpdateContext<'_>, meter: &Meter) {
        context.reject(format_args!("meter {}", meter.id));
    }

    /// Adds or changes a group of vIPs that packets are sent to.
    fn upsert_group(&mut self, context: &mut UpdateContext<'_>, group: Group) {
        context.reject(format_args!("group {}", group.id));
    }

    /// Removes a group.
    fn remove_group(&mut self, _context: &mut UpdateContext<'_>, _id: u32) {}

    /// Adds or changes a VRF.
    fn upsert_vrf(&mut self, context: &mut UpdateContext<'_>, vrf: &Vrf);

    /// Removes VRFs.
    fn remove_vrfs(&mut self, context: &mut UpdateContext<'_>, vnis: &[Vni]) {
        for vni in vnis {
            context.remove_vrf(*vni);
        }
    }

    /// Adds or changes public addresses of a VPC. Their removal is the same for all roles.
    fn upsert_public_prefix(&mut self, context: &mut UpdateContext<'_>, public: &PublicPrefix) {
        context.reject(format_args!("public prefix {}", public.outside));
    }

    /// The numbers by which packets know the public addresses of a NAT gateway ([`sluice_tables::nat::Nat::assign`]). They stay
    /// the same until [`Role::settle`] or [`Role::remove_unused`] finds the address in no NAT gateway of the tables. A gateway
    /// without NAT tables, which translates nothing itself, gives numbers without a meaning.
    ///
    /// # Errors
    /// [`sluice_tables::Error::NoNatNumber`]: there are too few for all, so none was given; the entry is tried again later.
    /// [`sluice_tables::Error::Invalid`]: nodes of this role have no NAT gateways.
    fn nat_numbers(&mut self, _addresses: &[Ipv4Addr]) -> Result<Vec<u16>, sluice_tables::Error> {
        Err(sluice_tables::Error::Invalid("a node of this role has no NAT gateways".to_owned()))
    }

    /// Adds or changes the NAT gateway of a VPC. Its removal is the same for all roles.
    fn upsert_nat_gateway(&mut self, context: &mut UpdateContext<'_>, nat: &NatGateway) {
        context.upsert_nat_gateway(nat, |addresses| self.nat_numbers(addresses));
    }

    /// Adds or replaces what ports of this host may send and receive. The role removes it when no port has its identity.
    fn upsert_policy(&mut self, context: &mut UpdateContext<'_>, policy: Policy) {
        context.reject(format_args!("policy of VNI {}", policy.key.vni));
    }

    /// Sets the policy of ports that have neither one of their own nor a rate; `None`: they have none.
    fn set_default_credit(&mut self, context: &mut UpdateContext<'_>, _policy: Option<CreditPolicy>) {
        context.reject("default network class");
    }

    /// Adds or changes an instance of this host.
    fn upsert_port(&mut self, context: &mut UpdateContext<'_>, port: Port) {
        context.reject(format_args!("port {}", port.name));
    }

    /// Removes an instance.
    fn remove_port(&mut self, _context: &mut UpdateContext<'_>, _instance: InstanceId) {}

    /// The instances of this host.
    fn instances(&self) -> Vec<InstanceId> {
        Vec::new()
    }

    /// An instance of this host.
    fn port(&self, _instance: InstanceId) -> Option<Port> {
        None
    }

    /// Whether a network that the database lost stays on this node. Gateways keep all, hosts those with an instance.
    fn keeps_network(&self, _vni: Vni) -> bool {
        true
    }

    /// Takes direct paths that the controller sets, to be written by [`Role::end_step`].
    fn note_paths(&mut self, context: &mut UpdateContext<'_>, paths: &[Path], _removed: &[PathKey]) {
        for Path { key: PathKey { vni, address }, .. } in paths {
            context.reject(format_args!("path of VNI {vni} to {address}"));
        }
    }

    /// Entries that the role keeps out of the tables, or has written in part, until another entry comes that they
    /// need.
    fn waiting(&self) -> Vec<EntryKey> {
        Vec::new()
    }

    /// All messages of a step have been applied: writes entries that need others of the same step, whichever
    /// of its messages these are in.
    fn end_step(&mut self, _context: &mut UpdateContext<'_>) {}

    /// A step has been applied, and what a snapshot did not mention was removed: removes the policies that no port refers
    /// to, and releases public addresses that are in no NAT gateway. Returns the keys of the policies.
    fn remove_unused(&mut self, _context: &mut UpdateContext<'_>) -> Vec<PolicyKey> {
        Vec::new()
    }

    /// Called about once a second between steps, also if the tables have not changed: tries again what [`Role::remove_unused`]
    /// could not do, and releases what entries that were tried again do not need.
    fn settle(&mut self, _tables: &NodeTables) {}

    /// A snapshot of another database is complete: forgets what refers to the old database, where the same
    /// VNI is another tenant's. Entries that the snapshot did not mention are removed next.
    fn database_changed(&mut self) {}

    /// A job that finds the sessions that would end if these rules of security groups did not exist. It reads tables that
    /// packets use, and may take long: it runs beside the writer of the tables.
    fn find_ending_sessions(&self, _tables: &NodeTables, _rules: &[u64]) -> EndingSessionsJob {
        Box::new(|| Err("a node of this role has no sessions".to_owned()))
    }

    /// A step has ended. Makes its changes survive a crash.
    ///
    /// # Errors
    /// A description of what could not be written, for the acknowledgment.
    fn commit(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// The tables, and where failures to write them are reported, while an update is applied.
pub struct UpdateContext<'a> {
    /// The tables.
    pub tables: &'a mut NodeTables,
    /// Whether the step is a snapshot: its entries are all that there are.
    pub is_snapshot: bool,
    /// Whether the step is a snapshot of another database than that of the tables.
    pub is_other_database: bool,
    pub(crate) failures: &'a mut Failures,
    /// See [`Applier::topology_changes`](crate::Applier::topology_changes).
    pub(crate) topology_changes: &'a mut u64,
}

/// The time of `CLOCK_MONOTONIC` in nanoseconds, which packets take from meters at.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

impl UpdateContext<'_> {
    /// Reports a failure to the controller. The entry is tried again later.
    pub fn fail(&mut self, text: impl FnOnce() -> String) {
        self.failures.add(1, text);
    }

    /// Reports an entry to the controller that is one of [`Role::waiting`] now.
    pub fn wait(&mut self, text: impl FnOnce() -> String) {
        self.failures.add_waiting(text);
    }

    /// Reports an entry of a kind that nodes of this role do not have.
    pub fn reject(&mut self, entry: impl Display) {
        self.failures.add_lost(|| format!("{entry}: a node of this role has no such entries"));
    }

    /// The value of `result`; an error is reported to the controller as a failure of `entry`.
    pub fn check<T, E: std::error::Error>(&mut self, result: Result<T, E>, entry: impl Display) -> Option<T> {
        self.failures.check(result, entry)
    }

    /// Like [`UpdateContext::check`], for a change of VTEPs or vIPs. `Ok(true)` means that the tables
    /// changed.
    pub fn check_topology(&mut self, result: Result<bool, sluice_tables::Error>, entry: impl Display) {
        if self.check(result, entry) == Some(true) {
            *self.topology_changes += 1;
        }
    }

    /// Writes a VTEP.
    pub fn upsert_vtep(&mut self, vtep: &Vtep) {
        let role = match vtep.role {
            VtepRole::Host => sluice_tables::Role::Host,
            VtepRole::ForeignHost => sluice_tables::Role::ForeignHost,
            VtepRole::Gateway { .. } => sluice_tables::Role::Gateway,
        };
        let result = self.tables.upsert_vtep(vtep.address, role);
        self.check_topology(result, format_args!("VTEP {}", vtep.address));
    }

    /// Removes a VTEP at once.
    pub fn remove_vtep(&mut self, address: IpAddr) {
        let result = self.tables.remove_vtep(address);
        self.check_topology(result, format_args!("removal of VTEP {address}"));
    }

    /// Writes a VRF.
    pub fn upsert_vrf(&mut self, vrf: &sluice_tables::Vrf) {
        let result = self.tables.upsert_vrf(vrf);
        self.check(result, format_args!("VNI {}", vrf.vni));
    }

    /// Writes a route.
    pub fn upsert_route(&mut self, route: &Route) {
        let RouteKey { vni, prefix } = route.key;
        let mut metered = Ok(());
        let target = match route.scope {
            Scope::Local => Target::Local,
            Scope::Peer(vni) => Target::Peer(vni),
            Scope::MeteredPeer { vni, out_meter, in_meter } => {
                let numbers =
                    self.meter_number(out_meter).and_then(|it| Ok((it, self.meter_number(in_meter)?)));
                // Without one of its meters it takes from none. Its packets stay on gateways.
                let (out_meter, in_meter) = *numbers.as_ref().unwrap_or(&(0, 0));
                metered = numbers.map(drop);
                Target::MeteredPeer { vni, out_meter, in_meter }
            }
            Scope::Drop => Target::Drop,
            Scope::NextHop(address) => Target::NextHop(address),
            Scope::Internet => Target::Internet,
        };
        let result = self.tables.upsert_route(&sluice_tables::Route { vni, prefix, target });
        self.check_metered(result.and(metered), format_args!("route {prefix} of VNI {vni}"));
    }

    /// Writes a public prefix.
    pub fn upsert_public_prefix(&mut self, public: &PublicPrefix) {
        let PublicPrefix { outside, vni, inside, vip, meter, nptv6 } = *public;
        let number = self.meter_number(meter);
        let meter = *number.as_ref().unwrap_or(&0);
        let result = self.tables.upsert_public_prefix(&sluice_tables::PublicPrefix {
            outside,
            vni,
            inside,
            vip,
            meter,
            nptv6,
        });
        self.check_metered(result.and(number), format_args!("public prefix {outside}"));
    }

    /// Writes a VRF of a gateway with the meter of its Internet traffic.
    pub fn upsert_gateway_vrf(&mut self, vrf: &sluice_tables::Vrf, meter: Option<u32>) {
        let number = self.meter_number(meter);
        let result = self.tables.upsert_vrf(vrf);
        let result = result
            .and_then(|_| self.tables.set_internet_meter(vrf.vni, *number.as_ref().unwrap_or(&0)))
            .and(number);
        self.check_metered(result, format_args!("VNI {}", vrf.vni));
    }

    /// Like [`UpdateContext::check`], for a meter or for what has one. It works without a meter for which there is no room, but
    /// has failed: tenants can use up all meters, which must not make the tables incomplete.
    fn check_metered<T>(&mut self, result: Result<T, sluice_tables::Error>, entry: impl Display) {
        match result {
            Err(
                error @ (sluice_tables::Error::UnknownMeter(_) | sluice_tables::Error::NoMeterNumber { .. }),
            ) => {
                self.failures.add_unmetered(|| format!("{entry}: {}", error_chain(&error)));
            }
            result => drop(self.check(result, entry)),
        }
    }

    /// The number of the meter of an entry; 0: it has none.
    fn meter_number(&self, meter: Option<u32>) -> Result<u32, sluice_tables::Error> {
        meter.map_or(Ok(0), |id| self.tables.meter_number(id).ok_or(sluice_tables::Error::UnknownMeter(id)))
    }

    /// Writes a meter.
    pub fn upsert_meter(&mut self, meter: &Meter) {
        let Meter { id, inward, outward } = *meter;
        let result = self.tables.upsert_meter(&sluice_tables::Meter { id, inward, outward }, monotonic_ns());
        self.check_metered(result, format_args!("meter {id}"));
    }

    /// Writes a NAT gateway, for whose addresses `numbers` gives numbers as [`Role::nat_numbers`] does. Returns whether the
    /// tables changed.
    pub fn upsert_nat_gateway(
        &mut self,
        nat: &NatGateway,
        numbers: impl FnOnce(&[Ipv4Addr]) -> Result<Vec<u16>, sluice_tables::Error>,
    ) -> bool {
        let NatGateway {
            vni,
            ref addresses,
            vip,
            sessions,
            blocks,
            any_remote,
            shares_ports,
            ref forwards,
            nat64,
        } = *nat;
        let entry = format_args!("NAT gateway of VNI {vni}");
        let numbers = match numbers(addresses) {
            Err(sluice_tables::Error::Invalid(reason)) => {
                self.failures.add_lost(|| format!("{entry}: {reason}"));
                return false;
            }
            numbers => self.check(numbers, entry),
        };
        let Some(numbers) = numbers else { return false };
        let addresses = addresses.iter().zip(numbers);
        let addresses = addresses.map(|(&address, number)| NatAddress { address, number }).collect();
        let forwards = forwards.clone();
        let nat = sluice_tables::NatGateway {
            vni,
            addresses,
            vip,
            sessions,
            blocks,
            any_remote,
            shares_ports,
            forwards,
            nat64,
        };
        let result = self.tables.upsert_nat_gateway(&nat);
        self.check(result, entry) == Some(true)
    }

    /// Removes a VRF at once.
    pub fn remove_vrf(&mut self, vni: Vni) {
        let result = self.tables.remove_vrf(vni);
        self.check(result, format_args!("removal of VNI {vni}"));
    }
}
