//! Unconfirmed entries: what nodes have and the database lost, because it went back to an earlier state. An operator
//! adopts instances, or has entries removed. This file changes when nodes keep another kind of entry.

use super::instances::{Instance, groups};
use super::problem::Problem;
use super::reply;
use super::request::{Json, check_name};
use super::{Api, App};
use crate::push::{addresses, has_address, is_of, is_route_to};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{Json as Answer, Response};
use serde::{Deserialize, Serialize};
use sluice_southbound::{Port, PortOptions, Unconfirmed};
use sluice_store::{Created, LostInstance, NodeId};
use sluice_types::{
    AddressPair, HostId, InstanceId, IpNet, MacAddr, MeterId, PortSettings, Qos, SecurityGroupId, Vni,
};
use std::collections::BTreeMap;
use std::net::IpAddr;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

/// An entry that nodes keep, and that the database does not have.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
struct UnconfirmedEntry {
    /// `instance`, `endpoint` (an address of an instance whose host is not connected), `network`, `route`, `public-prefix`
    /// or `host`.
    #[schema(example = "instance")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>)]
    vni: Option<Vni>,
    /// Id that the instance has on its host.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "inst-1")]
    instance: Option<InstanceId>,
    /// Name of the instance, after that of its VPC.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "web/vm-1")]
    name: Option<String>,
    /// Addresses of the instance, or of the host in the underlay.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    addresses: Vec<IpAddr>,
    /// Prefix of the route, or public addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    prefix: Option<IpNet>,
    /// Whether public addresses are mapped by NPTv6.
    #[serde(skip_serializing_if = "Option::is_none")]
    nptv6: Option<bool>,
    /// Meter of public addresses, which the database may have lost, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "meter-1")]
    meter: Option<MeterId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    mac: Option<MacAddr>,
    /// Names of the nodes that have the entry. Of an instance, the first is its host.
    nodes: Vec<String>,
}

#[derive(Serialize, ToSchema)]
struct UnconfirmedList {
    /// Each entry once, whatever number of nodes has it.
    items: Vec<UnconfirmedEntry>,
    /// Number of entries of each node, those included that `items` does not have: a node reports 1024 at a time.
    totals: BTreeMap<String, u64>,
}

/// Identifies an entry among all nodes. The order is that of the answer.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Instance(InstanceId),
    Endpoint(Vni, IpAddr),
    Network(Vni),
    Route(Vni, IpNet),
    PublicPrefix(IpNet),
    Host(IpAddr),
}

type Lists = [(NodeId, u64, Vec<Unconfirmed>)];

/// The instances that hosts report, with their hosts.
fn ports(lists: &Lists) -> Vec<(HostId, &Port)> {
    let entries = lists.iter().flat_map(|(node, _, entries)| entries.iter().map(move |entry| (node, entry)));
    entries
        .filter_map(|(node, entry)| match (node, entry) {
            (NodeId::Host(host), Unconfirmed::Port(port)) => Some((*host, &**port)),
            _ => None,
        })
        .collect()
}

fn entry_of(entry: &Unconfirmed, ports: &[(HostId, &Port)]) -> (Key, UnconfirmedEntry) {
    let bare = UnconfirmedEntry {
        kind: "network",
        vni: None,
        instance: None,
        name: None,
        addresses: Vec::new(),
        prefix: None,
        nptv6: None,
        meter: None,
        mac: None,
        nodes: Vec::new(),
    };
    match entry {
        Unconfirmed::Network(vni) => (Key::Network(*vni), UnconfirmedEntry { vni: Some(*vni), ..bare }),
        Unconfirmed::Route(key) => {
            if let Some((_, port)) = ports.iter().find(|(_, port)| is_route_to(key, port)) {
                return entry_of(&Unconfirmed::Port(Box::new((*port).clone())), &[]);
            }
            let (vni, prefix) = (Some(key.vni), Some(key.prefix));
            (Key::Route(key.vni, key.prefix), UnconfirmedEntry { kind: "route", vni, prefix, ..bare })
        }
        Unconfirmed::PublicPrefix(public) => {
            let (vni, prefix) = (Some(public.vni), Some(public.outside));
            let meter = public.meter.map(|id| MeterId::new(id.into()));
            let nptv6 = Some(public.nptv6);
            let entry = UnconfirmedEntry { kind: "public-prefix", vni, prefix, nptv6, meter, ..bare };
            (Key::PublicPrefix(public.outside), entry)
        }
        Unconfirmed::Vtep(address) => {
            (Key::Host(*address), UnconfirmedEntry { kind: "host", addresses: vec![*address], ..bare })
        }
        Unconfirmed::Port(port) => {
            let addresses = addresses(port).collect();
            let (vni, instance, name) = (Some(port.vni), Some(port.instance), Some(port.name.clone()));
            let (kind, mac) = ("instance", Some(port.mac));
            let entry = UnconfirmedEntry { kind, vni, instance, name, addresses, mac, ..bare };
            (Key::Instance(port.instance), entry)
        }
        Unconfirmed::Endpoint(endpoint) => {
            if let Some((_, port)) = ports.iter().find(|(_, port)| is_of(&endpoint.key(), port)) {
                return entry_of(&Unconfirmed::Port(Box::new((*port).clone())), &[]);
            }
            let v4 = endpoint.ipv4.map(IpAddr::V4);
            let addresses: Vec<_> = v4.into_iter().chain(endpoint.ipv6.map(IpAddr::V6)).collect();
            let (vni, mac) = (Some(endpoint.vni), Some(endpoint.mac));
            let key = Key::Endpoint(endpoint.vni, addresses[0]);
            (key, UnconfirmedEntry { kind: "endpoint", vni, mac, addresses, ..bare })
        }
    }
}

/// The entries of all nodes, each once.
fn items(lists: &Lists, name: impl Fn(NodeId) -> String) -> Vec<UnconfirmedEntry> {
    let ports = ports(lists);
    let mut items: BTreeMap<Key, UnconfirmedEntry> = BTreeMap::new();
    for (node, _, entries) in lists {
        let name = name(*node);
        for entry in entries {
            let (key, item) = entry_of(entry, &ports);
            let nodes = &mut items.entry(key).or_insert(item).nodes;
            match (entry, nodes.contains(&name)) {
                (_, true) => {}
                (Unconfirmed::Port(_), false) => nodes.insert(0, name.clone()),
                (_, false) => nodes.push(name.clone()),
            }
        }
    }
    items.into_values().collect()
}

fn name_of(api: &Api, node: NodeId) -> String {
    api.push.names(&[node]).pop().unwrap_or_default()
}

/// Entries that connected nodes keep and that the database does not have, because it went back to an earlier state,
/// as after a restored backup. They forward packets until they are adopted or removed. With several replicas, each
/// lists the nodes that are connected to it.
#[utoipa::path(get, path = "/v1/unconfirmed", tag = "unconfirmed",
    responses((status = 200, body = UnconfirmedList)))]
async fn list_unconfirmed(State(api): State<App>) -> Answer<UnconfirmedList> {
    let lists = api.push.unconfirmed.all();
    let totals = lists.iter().map(|(node, total, _)| (name_of(&api, *node), *total)).collect();
    Answer(UnconfirmedList { items: items(&lists, |node| name_of(&api, node)), totals })
}

/// Which entries to remove: those of an instance; of an address in a network; all of a network; or the address of a
/// host.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RemoveUnconfirmed {
    #[schema(value_type = Option<String>, example = "inst-1")]
    instance: Option<InstanceId>,
    #[schema(value_type = Option<u32>)]
    vni: Option<Vni>,
    #[schema(value_type = Option<String>)]
    address: Option<IpAddr>,
}

type Selector = Box<dyn Fn(&Unconfirmed) -> bool>;

impl RemoveUnconfirmed {
    /// Whether it selects an entry.
    ///
    /// # Errors
    /// 422 for a combination of fields that has no meaning.
    fn selector(&self, lists: &Lists) -> Result<Selector, Problem> {
        let vni_of = |entry: &Unconfirmed| match entry {
            Unconfirmed::Network(vni) => Some(*vni),
            Unconfirmed::Route(route) => Some(route.vni),
            Unconfirmed::Endpoint(endpoint) => Some(endpoint.vni),
            Unconfirmed::Port(port) => Some(port.vni),
            Unconfirmed::PublicPrefix(public) => Some(public.vni),
            Unconfirmed::Vtep(_) => None,
        };
        Ok(match (self.instance, self.vni, self.address) {
            (Some(id), None, None) => {
                let found = ports(lists).into_iter().find(|(_, port)| port.instance == id);
                let port = found.ok_or_else(|| not_found(&id.to_string()))?.1.clone();
                Box::new(move |entry| match entry {
                    Unconfirmed::Port(other) => other.instance == port.instance,
                    Unconfirmed::Endpoint(endpoint) => is_of(&endpoint.key(), &port),
                    Unconfirmed::Route(route) => is_route_to(route, &port),
                    Unconfirmed::PublicPrefix(public) => {
                        let is_its = |address| IpNet::from(address) == public.inside;
                        public.vni == port.vni && addresses(&port).any(is_its)
                    }
                    _ => false,
                })
            }
            (None, Some(vni), Some(address)) => {
                Box::new(move |entry| vni_of(entry) == Some(vni) && has_address(entry, address))
            }
            (None, Some(vni), None) => Box::new(move |entry| vni_of(entry) == Some(vni)),
            (None, None, Some(address)) => {
                Box::new(move |entry| matches!(entry, Unconfirmed::Vtep(vtep) if *vtep == address))
            }
            _ => {
                let detail =
                    "give an instance, or a VNI with or without an address, or the address of a host";
                return Err(Problem::invalid("instance", detail));
            }
        })
    }
}

fn not_found(what: &str) -> Problem {
    let detail = format!("no connected node has the unconfirmed entry {what}");
    Problem::new(StatusCode::NOT_FOUND, "not-found", detail).offender(what)
}

/// What is removed.
#[derive(Serialize, ToSchema)]
struct RemovedUnconfirmed {
    /// Names of the nodes.
    nodes: Vec<String>,
    /// Number of entries, on all nodes together.
    entries: usize,
}

/// Has the nodes remove entries that the database does not have. They do so within a second, and the entries then
/// leave the list.
#[utoipa::path(post, path = "/v1/unconfirmed/remove", tag = "unconfirmed", request_body = RemoveUnconfirmed,
    responses((status = 200, body = RemovedUnconfirmed)))]
async fn remove_unconfirmed(
    State(api): State<App>,
    Json(body): Json<RemoveUnconfirmed>,
) -> Result<Answer<RemovedUnconfirmed>, Problem> {
    let select = body.selector(&api.push.unconfirmed.all())?;
    let (nodes, entries) = api.push.unconfirmed.remove(select);
    if entries == 0 {
        let vni = body.vni.map(|vni| format!("VNI {vni} ")).unwrap_or_default();
        let address = body.address.map(|address| address.to_string()).unwrap_or_default();
        return Err(not_found(format!("{vni}{address}").trim()));
    }
    Ok(Answer(RemovedUnconfirmed { nodes: api.push.names(&nodes), entries }))
}

/// The instance that becomes an object again.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AdoptUnconfirmed {
    #[schema(value_type = String, example = "inst-1")]
    instance: InstanceId,
    /// Its name; if left out, the name that it has on its host.
    name: Option<String>,
    /// Its security groups, which nodes do not know, as of a new instance: if left out, the group `default`.
    #[serde(default, deserialize_with = "groups")]
    #[schema(value_type = Option<Vec<String>>, nullable = false, example = json!(["sg-1"]))]
    security_groups: Option<Vec<SecurityGroupId>>,
}

/// Makes an instance that nodes have and the database lost an object again, with its id, MAC, addresses and host. Its
/// VPC, with the same VNI, and its subnet must exist.
#[utoipa::path(post, path = "/v1/unconfirmed/adopt", tag = "unconfirmed", request_body = AdoptUnconfirmed,
    responses((status = 201, body = Instance)))]
async fn adopt_unconfirmed(
    State(api): State<App>,
    Json(body): Json<AdoptUnconfirmed>,
) -> Result<Response, Problem> {
    let lists = api.push.unconfirmed.all();
    let found = ports(&lists).into_iter().find(|(_, port)| port.instance == body.instance);
    let (host, port) = found.ok_or_else(|| not_found(&body.instance.to_string()))?;
    if port.options.bonded {
        let detail =
            format!("{} is the vNIC of a mount: create the service and the mount again", port.instance);
        return Err(Problem::invalid("instance", detail));
    }
    let name = body.name.unwrap_or_else(|| {
        let name = port.name.as_str();
        name.rsplit_once('/').map_or(name, |(_, name)| name).to_owned()
    });
    check_name("name", &name)?;
    let lost = LostInstance {
        id: port.instance,
        name,
        vni: port.vni,
        host,
        mac: port.mac,
        ipv4: port.ipv4.map(|net| net.addr()),
        ipv6: port.ipv6.map(|net| net.addr()),
        security_groups: body.security_groups,
        settings: settings_of(port),
    };
    let store = &api.db.store;
    let made = store.adopt_instance(lost).await.map_err(|error| Problem::of_store(error, None))?;
    let made = store.instance_with_groups(made.id).await?;
    Ok(reply::created::<Instance>(&api, Created::New(made)))
}

/// What the instance had besides its addresses, as its host knows it. Who holds the addresses of its pairs is found out
/// again, when an instance announces them. Hosts do not know which network class it had, so it has none.
fn settings_of(port: &Port) -> PortSettings {
    let PortOptions { additional, pairs, unprotected, qos, member: _, bonded: _ } = &port.options;
    let (secondary, delegated): (Vec<IpNet>, Vec<IpNet>) =
        additional.iter().partition(|net| net.prefix_len() == net.max_prefix_len());
    let pair = |pair: &sluice_southbound::AddressPair| AddressPair { address: pair.address, mac: pair.mac };
    PortSettings {
        secondary_addresses: Some(secondary.iter().map(IpNet::addr).collect()),
        delegated_prefixes: Some(delegated),
        address_pairs: Some(pairs.iter().map(pair).collect()),
        spoofing_protection: Some(!unprotected),
        qos: Some(Qos { dscp: qos.dscp, rate_mbps: qos.rate_mbps.map(Into::into) }),
        network_class: None,
    }
}

pub(super) fn routes() -> OpenApiRouter<std::sync::Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(list_unconfirmed))
        .routes(routes!(remove_unconfirmed))
        .routes(routes!(adopt_unconfirmed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_southbound::{Endpoint, PublicPrefix};
    use sluice_types::GatewayId;

    fn port(id: u64, address: &str) -> Port {
        Port {
            instance: InstanceId::new(id),
            name: format!("blue/vm{id}"),
            vni: Vni::new(5).unwrap(),
            mac: MacAddr::local(id),
            ipv4: Some(format!("{address}/24").parse().unwrap()),
            router4: None,
            ipv6: Some(format!("fd00::{id}/64").parse().unwrap()),
            ipv6_dhcp: false,
            mtu: 1430,
            dns4: Vec::new(),
            identity: 0,
            options: sluice_southbound::PortOptions::default(),
            migration: None,
        }
    }

    fn endpoint(id: u64, ipv4: Option<&str>, ipv6: Option<&str>) -> Unconfirmed {
        Unconfirmed::Endpoint(Endpoint {
            vni: Vni::new(5).unwrap(),
            ipv4: ipv4.map(|address| address.parse().unwrap()),
            ipv6: ipv6.map(|address| address.parse().unwrap()),
            mac: MacAddr::local(id),
            host: "192.0.2.1".parse().unwrap(),
        })
    }

    fn public(outside: &str, inside: &str) -> Unconfirmed {
        Unconfirmed::PublicPrefix(PublicPrefix {
            outside: outside.parse().unwrap(),
            vni: Vni::new(5).unwrap(),
            inside: inside.parse().unwrap(),
            vip: "192.0.2.100".parse().unwrap(),
            meter: None,
            nptv6: false,
        })
    }

    fn lists() -> Vec<(NodeId, u64, Vec<Unconfirmed>)> {
        let vni = Vni::new(5).unwrap();
        let mut nptv6 = public("2001:db8:5::/64", "fd00::/64");
        if let Unconfirmed::PublicPrefix(prefix) = &mut nptv6 {
            (prefix.nptv6, prefix.meter) = (true, Some(3));
        }
        let gateway = vec![
            Unconfirmed::Network(vni),
            endpoint(7, Some("10.0.0.7"), None),
            endpoint(7, None, Some("fd00::7")),
            endpoint(8, Some("10.0.0.8"), None),
            Unconfirmed::Vtep("192.0.2.9".parse().unwrap()),
            public("198.51.100.7/32", "10.0.0.7/32"),
            nptv6,
        ];
        let host = vec![Unconfirmed::Port(Box::new(port(7, "10.0.0.7"))), Unconfirmed::Network(vni)];
        vec![(NodeId::Gateway(GatewayId::new(1)), 7, gateway), (NodeId::Host(HostId::new(2)), 2, host)]
    }

    /// Catches an instance that is listed once for each of its addresses and nodes.
    #[test]
    fn entries_of_all_nodes_are_listed_once() {
        let items = items(&lists(), |node| format!("{node:?}"));
        let found: Vec<_> =
            items.iter().map(|item| (item.kind, item.addresses.len(), item.nodes.len())).collect();
        let expected = [
            ("instance", 2, 2),
            ("endpoint", 1, 1),
            ("network", 0, 2),
            ("public-prefix", 0, 1),
            ("public-prefix", 0, 1),
            ("host", 1, 1),
        ];
        assert_eq!(found, expected);
        assert!(items[0].nodes[0].contains("Host"), "its host comes first: {:?}", items[0].nodes);
        assert_eq!(items[0].name.as_deref(), Some("blue/vm7"));
        let public: Vec<_> = items[3..5].iter().map(|item| (item.nptv6, item.meter)).collect();
        assert_eq!(public, [(Some(false), None), (Some(true), Some(MeterId::new(3)))]);
    }

    /// Catches a selection that removes more or less than was named.
    #[test]
    fn selections() {
        let lists = lists();
        let count = |body: &str| {
            let body: RemoveUnconfirmed = serde_json::from_str(body).unwrap();
            let select = body.selector(&lists).ok()?;
            Some(lists.iter().flat_map(|(_, _, entries)| entries).filter(|entry| select(entry)).count())
        };
        assert_eq!(count(r#"{"instance":"inst-7"}"#), Some(4), "a port, two addresses and a public one");
        assert_eq!(count(r#"{"instance":"inst-8"}"#), None);
        assert_eq!(count(r#"{"vni":5,"address":"10.0.0.7"}"#), Some(3));
        assert_eq!(count(r#"{"vni":5,"address":"198.51.100.7"}"#), Some(1));
        assert_eq!(count(r#"{"vni":5,"address":"2001:db8:5::"}"#), Some(1));
        assert_eq!(count(r#"{"vni":5,"address":"10.0.0.8"}"#), Some(1));
        assert_eq!(count(r#"{"vni":5}"#), Some(8));
        assert_eq!(count(r#"{"vni":6}"#), Some(0));
        assert_eq!(count(r#"{"address":"192.0.2.9"}"#), Some(1));
        assert_eq!(count("{}"), None);
        assert_eq!(count(r#"{"instance":"inst-7","vni":5}"#), None);
    }
}
