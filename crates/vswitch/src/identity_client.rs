//! The host's part in RSP that is about identities: feeds packets to unknown receivers and gateways' answers to
//! [`RemoteIdentities`], writes the map of the packet programs, and answers for the instances of this host. This file changes
//! when the identities get another input or output.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::registry::Registry;
use sluice_agent::event_source::{AsyncEventRing, EventSource};
use sluice_agent::metric_source::{MetricSource, counter, gauge};
use sluice_agent::{Error, error_chain};
use sluice_datapath::{Datapath, RemoteIdentities as Map, RemoteIdentity, UnknownReceiver};
use sluice_rsp::{Destination, IdentityEntry, Message};
use sluice_tables::sessions::ticks_now;
use sluice_tables::{Lookup, NextHop, NodeTables, Port, Reader, Target, layout};
use sluice_types::{IpNet, Vni};
use tokio::sync::mpsc;

use crate::path_learner::Network;
use crate::remote_identities::{Actions, Change, Counts, RemoteIdentities};

const TICK_MS: u64 = 1000 / layout::SESSION_TICKS_PER_SECOND as u64;

/// A message to send: the cluster whose key seals it, the receiver's VTEP, and the message.
pub type Outgoing = (u32, IpAddr, Message);

/// The metrics, as of the last change.
#[derive(Debug, Default)]
pub struct IdentityMetrics(Mutex<(usize, Counts)>);

impl MetricSource for IdentityMetrics {
    fn register(&self, registry: &mut Registry) {
        let (entries, counts) = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let help = "Instances on other hosts whose identity this host knows or has asked for";
        gauge(registry, "remote_identities", help, entries as u64);
        let help = "Largest number of such instances";
        gauge(registry, "remote_identities_limit", help, Map::MAX as u64);
        for (name, help, count) in [
            ("remote_identities_asked", "Questions to gateways for identities", counts.asked),
            ("remote_identities_answered", "Answers of gateways to them", counts.answered),
            (
                "remote_identities_unanswered",
                "Identities about which no gateway answered four questions",
                counts.unanswered,
            ),
            ("remote_identities_evicted", "Identities replaced by others", counts.evicted),
        ] {
            registry.register(name, help, counter(count));
        }
    }
}

/// Identities of instances on other hosts. `E` is the source of events about packets to unknown receivers.
pub struct IdentityClient<E> {
    events: E,
    /// Receivers of sessions that are judged again.
    questions: mpsc::Receiver<Destination>,
    asked: Option<Destination>,
    map: Map,
    identities: RemoteIdentities,
    metrics: Arc<IdentityMetrics>,
}

impl IdentityClient<AsyncEventRing<UnknownReceiver>> {
    /// A client of the packet programs of this host, which has asked for no identity yet. `questions` are what the review of
    /// sessions needs to know. Must be called within a Tokio runtime.
    ///
    /// # Errors
    /// If the programs have no such map and events, or the runtime cannot wait for these.
    pub fn open(datapath: &Datapath, questions: mpsc::Receiver<Destination>) -> Result<Self, Error> {
        let events = AsyncEventRing::new(datapath.unknown_receivers()?)?;
        let seed = sluice_agent::rsp::wall_clock_ms() as usize;
        let (map, identities) = (datapath.remote_identities()?, RemoteIdentities::new(seed));
        Ok(Self { events, questions, asked: None, map, identities, metrics: Arc::default() })
    }
}

impl<E: EventSource<UnknownReceiver>> IdentityClient<E> {
    /// The metrics of this client.
    pub fn metrics(&self) -> Arc<IdentityMetrics> {
        self.metrics.clone()
    }

    /// Waits until there may be a packet to an unknown receiver, or a session.
    ///
    /// # Errors
    /// As [`EventSource::ready`].
    pub async fn ready(&mut self) -> Result<(), Error> {
        tokio::select! {
            ready = self.events.ready() => ready,
            Some(receiver) = self.questions.recv() => {
                self.asked = Some(receiver);
                Ok(())
            }
        }
    }

    /// Time at which [`IdentityClient::process`] is due.
    pub fn due_ms(&self) -> Option<u64> {
        self.identities.due_ms()
    }

    /// Takes over what an earlier agent left in the map.
    pub fn adopt(&mut self, now_ms: u64) {
        match self.map.all() {
            Ok(entries) => {
                let entry = |(vni, address, entry): (Vni, IpAddr, RemoteIdentity)| {
                    (Destination { vni, address }, entry.identity, used_ms(now_ms, entry))
                };
                let entries: Vec<_> = entries.into_iter().map(entry).collect();
                let actions = self.identities.adopt(now_ms, &entries);
                self.perform(actions).for_each(drop);
            }
            Err(error) => {
                tracing::error!(
                    error = error_chain(&error),
                    "cannot read the identities of an earlier agent"
                );
            }
        }
    }

    /// Sets the networks of this host.
    pub fn set_networks(&mut self, database: u64, networks: &BTreeMap<Vni, Network>) {
        let actions = self.identities.set_networks(database, networks);
        self.perform(actions).for_each(drop);
    }

    /// Takes the answers of a gateway. `is_authoritative`: whether its cluster may say something about a network.
    pub fn answer(&mut self, now_ms: u64, entries: &[IdentityEntry], is_authoritative: impl Fn(Vni) -> bool) {
        let mut actions = Actions::default();
        self.identities.answer(now_ms, entries, is_authoritative, &mut actions);
        self.perform(actions).for_each(drop);
    }

    /// Processes new events and what is due. Returns the messages to send.
    ///
    /// # Errors
    /// If the events cannot be read.
    pub fn process(
        &mut self,
        now_ms: u64,
        networks: &BTreeMap<Vni, Network>,
    ) -> Result<impl Iterator<Item = Outgoing> + use<E>, Error> {
        let (mut events, mut actions) = (Vec::new(), Actions::default());
        self.events.drain(&mut events)?;
        let destination = |event: UnknownReceiver| Destination { vni: event.vni, address: event.destination };
        let of_sessions = std::iter::from_fn(|| self.asked.take().or_else(|| self.questions.try_recv().ok()));
        for destination in events.into_iter().map(destination).chain(of_sessions) {
            self.identities.note_unknown(now_ms, destination, &mut actions);
        }
        if self.identities.due_ms().is_some_and(|due_ms| due_ms <= now_ms) {
            let map = &self.map;
            let used = |destination: &Destination| {
                let entry = map.get(destination.vni, destination.address).ok()??;
                Some(used_ms(now_ms, entry))
            };
            self.identities.handle_timer(now_ms, networks, used, &mut actions);
        }
        Ok(self.perform(actions))
    }

    /// Changes the map. Returns the messages to send.
    fn perform(&self, mut actions: Actions) -> impl Iterator<Item = Outgoing> + use<E> {
        for change in actions.changes.drain(..) {
            let changed = match change {
                // The packet that needed it was sent a moment ago.
                Change::Write(Destination { vni, address }, identity) => {
                    self.map.write(vni, address, RemoteIdentity { identity, used: ticks_now() })
                }
                Change::Remove(Destination { vni, address }) => self.map.remove(vni, address),
            };
            if let Err(error) = changed {
                tracing::error!(?change, error = error_chain(&error), "cannot change the identities of VMs");
            }
        }
        let state = (self.identities.len(), self.identities.counts());
        *self.metrics.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
        actions.messages()
    }
}

/// The time at which an entry of the map was last used.
fn used_ms(now_ms: u64, entry: RemoteIdentity) -> u64 {
    // A packet may have used it after the time was read.
    let ticks = ticks_now().wrapping_sub(entry.used).cast_signed().max(0).cast_unsigned();
    now_ms.saturating_sub(u64::from(ticks) * TICK_MS)
}

/// The subnets of the ports of each network, as far as they were needed.
type Subnets = BTreeMap<Vni, BTreeSet<IpNet>>;

/// The port that has an address, as all vNICs of a mount have those of the mount, or to which a prefix with the address is delegated.
fn port_with(
    tables: &NodeTables,
    reader: &Reader,
    subnets: &mut Subnets,
    destination: Destination,
) -> Option<Port> {
    let Destination { vni, address } = destination;
    match reader.find(vni.get(), address) {
        Lookup::Hit(hit) => match reader.next_hop(hit.cell)? {
            NextHop::Port(ifindex) => tables.port(ifindex),
            NextHop::Service(_) => tables.ports().find(|port| is_vnic_of(port, destination)),
            _ => None,
        },
        Lookup::Busy => None,
        Lookup::Miss => {
            let Ok(Some(Target::Port(ifindex))) = reader.route(vni, address) else { return None };
            let subnets = subnets.entry(vni).or_insert_with(|| subnets_of(tables, vni));
            tables.port(ifindex).filter(|port| !is_in_covered_subnet(subnets, port, address))
        }
    }
}

/// Whether a port is a bonding vNIC of the mount that has this address.
fn is_vnic_of(port: &Port, Destination { vni, address }: Destination) -> bool {
    let has_address = match address {
        IpAddr::V4(address) => port.ipv4.is_some_and(|v4| v4.address == address),
        IpAddr::V6(address) => port.ipv6.as_ref().is_some_and(|v6| v6.address == address),
    };
    port.bonded && port.vni == vni && has_address
}

fn subnets_of(tables: &NodeTables, vni: Vni) -> BTreeSet<IpNet> {
    let of_port = |port: Port| {
        let v4 = port.ipv4.and_then(|v4| IpNet::new(v4.address.into(), v4.length).ok());
        let v6 = port.ipv6.and_then(|v6| IpNet::new(v6.address.into(), v6.length).ok());
        v4.into_iter().chain(v6).map(|net| net.trunc())
    };
    tables.ports().filter(|port| port.vni == vni).flat_map(of_port).collect()
}

/// Whether a subnet that has the address is in the port's prefix with it. Such a prefix has no addresses of the subnet: one
/// without a port here is of an instance that has left.
fn is_in_covered_subnet(subnets: &BTreeSet<IpNet>, port: &Port, address: IpAddr) -> bool {
    let prefixes = port.sources.additional.iter().filter(|net| net.contains(&address));
    let longest = prefixes.map(IpNet::prefix_len).max();
    subnets.iter().any(|subnet| subnet.contains(&address) && Some(subnet.prefix_len()) > longest)
}

/// The identities of the instances among `destinations` that have a port of this host.
pub fn identities_of_ports(tables: &NodeTables, destinations: &[Destination]) -> Vec<IdentityEntry> {
    let (reader, mut subnets) = (tables.reader(), Subnets::new());
    let identity = |destination: &Destination| {
        let port = port_with(tables, &reader, &mut subnets, *destination)?;
        Some(IdentityEntry { destination: *destination, identity: port.identity })
    };
    destinations.iter().filter_map(identity).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text;
    use sluice_tables::{
        Immediate, MemberService, Memory, PortIpv4, PortIpv6, PortQos, PortSources, Sizes, Vrf,
    };
    use sluice_types::MacAddr;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn port(ifindex: u32, vni: Vni, identity: u16) -> Port {
        let (IpAddr::V4(v4), IpAddr::V6(v6)) = (ip("10.0.0.5"), ip("fd00::5")) else { unreachable!() };
        Port {
            ifindex,
            peer_redirect: false,
            mtu: 1430,
            vni,
            mac: MacAddr::local(u64::from(ifindex)),
            ipv4: Some(PortIpv4 { address: v4, length: 24, router: None }),
            ipv6: Some(PortIpv6 { address: v6, length: 64, dhcp: false }),
            dns4: Vec::new(),
            instance: ifindex.into(),
            lease_s: 1,
            policy: None,
            scope: 0,
            identity,
            adopt_until_s: 0,
            qos: PortQos::default(),
            sources: PortSources {
                additional: ["10.0.7.0/24", "10.0.0.0/8", "fd00::/16"]
                    .map(|net| net.parse().unwrap())
                    .to_vec(),
                ..PortSources::default()
            },
            bonded: false,
        }
    }

    /// Two networks use the same addresses. Prefixes of the ports contain their subnets.
    #[test]
    fn a_host_tells_the_identities_of_its_ports_only() {
        let memory = Memory::anonymous(1 << 12).unwrap();
        let mut tables = NodeTables::create(memory, Immediate, Sizes::default()).unwrap();
        let [one, other, third] = [1, 2, 3].map(|number| Vni::new(number).unwrap());
        for (vni, identity) in [(one, 258), (other, 0)] {
            let vrf = Vrf { vni, mtu: 1430, router4: None, router6: None, group: None, elephant_bytes: None };
            tables.upsert_vrf(&vrf).unwrap();
            tables.upsert_port(&port(vni.get(), vni, identity)).unwrap();
        }
        let to = |vni, address| Destination { vni, address: ip(address) };
        let asked = [
            to(one, "10.0.0.5"),
            to(one, "fd00::5"),
            to(one, "10.0.0.6"),
            to(other, "10.0.0.5"),
            to(third, "10.0.0.5"),
            to(one, "10.0.7.9"),
            to(one, "fd00::6"),
            to(one, "10.9.0.1"),
            to(one, "fd00:9::1"),
        ];
        let told = [0, 1, 3, 5, 7, 8].map(|at| (asked[at], if at == 3 { 0 } else { 258 }));
        let told = told.map(|(destination, identity)| IdentityEntry { destination, identity });
        assert_eq!(identities_of_ports(&tables, &asked), told);
    }

    /// Catches the identity of a vNIC of another network, and of a port that has another mount's address.
    #[test]
    fn a_host_of_a_member_tells_the_identity_of_the_mount() {
        let memory = Memory::anonymous(1 << 12).unwrap();
        let mut tables = NodeTables::create(memory, Immediate, Sizes::default()).unwrap();
        let [one, other] = [1, 2].map(|number| Vni::new(number).unwrap());
        tables.upsert_service(&MemberService { id: 9, seed: [1, 2], members: Vec::new() }).unwrap();
        for vni in [one, other] {
            let vrf = Vrf { vni, mtu: 1430, router4: None, router6: None, group: None, elephant_bytes: None };
            tables.upsert_vrf(&vrf).unwrap();
            for address in ["10.0.0.5", "fd00::5", "10.0.0.6"] {
                tables.upsert_service_address(vni, ip(address), 9).unwrap();
            }
            let identity = 256 + vni.get() as u16;
            let vnic = port(vni.get(), vni, identity);
            let vnic = Port { bonded: true, sources: PortSources::default(), ..vnic };
            tables.upsert_port(&vnic).unwrap();
        }
        let to = |vni, address| Destination { vni, address: ip(address) };
        let asked = [to(other, "10.0.0.5"), to(one, "fd00::5"), to(one, "10.0.0.6"), to(one, "10.0.0.5")];
        let told = [(0, 258), (1, 257), (3, 257)];
        let told = told.map(|(at, identity)| IdentityEntry { destination: asked[at], identity });
        assert_eq!(identities_of_ports(&tables, &asked), told);
    }

    /// Catches a counter that is registered under another name, or not at all.
    #[test]
    fn each_counter_has_its_metric() {
        let counts = Counts { asked: 1, answered: 2, unanswered: 3, evicted: 4 };
        let mut registry = Registry::default();
        IdentityMetrics(Mutex::new((5, counts))).register(&mut registry);
        let mut page = String::new();
        text::encode(&mut page, &registry).unwrap();
        for line in [
            "remote_identities 5",
            "remote_identities_limit 65536",
            "remote_identities_asked_total 1",
            "remote_identities_answered_total 2",
            "remote_identities_unanswered_total 3",
            "remote_identities_evicted_total 4",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} in {page}");
        }
    }

    #[test]
    fn time_of_use_follows_from_its_ticks() {
        let entry = |ago: u32| RemoteIdentity { identity: 1, used: ticks_now().wrapping_sub(ago) };
        let ago = |ticks| 1_000_000 - used_ms(1_000_000, entry(ticks));
        assert!((10_000..60_000).contains(&ago(10 * layout::SESSION_TICKS_PER_SECOND)));
        // The future, and a time before this clock began.
        assert_eq!(ago(u32::MAX - 100), 0);
        assert_eq!(used_ms(5, entry(800)), 0);
    }
}
