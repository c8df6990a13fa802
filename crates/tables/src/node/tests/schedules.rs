//! Changes of routes, VRFs and nodes while readers look up, in thousands of orders of the single accesses.

use super::policies::{packet, policy};
use super::*;
use crate::Verdict;
use crate::interleave::explore::{Answer, ReaderEpochs, Scenario, Step, undisturbed};
use sluice_types::IpNet;

type SeenAnswer = Answer<Finding>;
type Questions = Vec<Box<dyn Fn(&Reader) -> SeenAnswer + Send + Sync>>;

#[derive(Clone, Debug, PartialEq)]
enum Finding {
    Route(Option<Target>),
    Endpoint(Option<(MacAddr, NextHop)>),
    Node(bool),
    /// Whether a port is judged by a policy, and how.
    Judged(Verdict),
}

const HOSTS: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

fn step(change: impl Fn(&mut NodeTables) -> Result<bool, Error> + Send + Sync + 'static) -> Step<NodeTables> {
    Box::new(move |tables, _| {
        change(tables).unwrap();
    })
}

fn route(prefix: &str, peer: u32) -> Route {
    Route { vni: vni(5), prefix: prefix.parse().unwrap(), target: Target::Peer(vni(peer)) }
}

fn add(prefix: &str, peer: u32) -> Step<NodeTables> {
    let route = route(prefix, peer);
    step(move |tables| tables.upsert_route(&route))
}

fn withdraw(prefix: &str) -> Step<NodeTables> {
    let prefix: IpNet = prefix.parse().unwrap();
    step(move |tables| tables.remove_route(vni(5), prefix))
}

fn vrf(mtu: u16) -> Step<NodeTables> {
    step(move |tables| tables.upsert_vrf(&Vrf { mtu, ..plain_vrf(5) }))
}

/// Fills all free cells with invalid words, as a later user of the cells might.
fn reuse() -> Step<NodeTables> {
    step(|tables| {
        tables.flush()?;
        undisturbed(|| {
            let cells: Vec<u32> = std::iter::from_fn(|| tables.pool.allocate(1).ok()).collect();
            for &cell in &cells {
                (0..8).for_each(|word| tables.memory().store64(cell, word * 8, u64::MAX << 8));
            }
            cells.into_iter().for_each(|cell| tables.pool.give_back(cell, 1));
        });
        Ok(true)
    })
}

fn adopt() -> Step<NodeTables> {
    Box::new(|tables, epochs| {
        *tables = NodeTables::adopt(tables.memory().clone(), epochs.clone()).unwrap();
    })
}

fn ask_route(address: &str) -> Box<dyn Fn(&Reader) -> SeenAnswer + Send + Sync> {
    let address = ip(address);
    Box::new(move |reader| reader.route(vni(5), address).ok().map(Finding::Route))
}

fn ask_endpoint(address: &str) -> Box<dyn Fn(&Reader) -> SeenAnswer + Send + Sync> {
    let address = ip(address);
    Box::new(move |reader| match reader.find(5, address) {
        Lookup::Busy => None,
        Lookup::Miss => Some(Finding::Endpoint(None)),
        Lookup::Hit(hit) => {
            let hop = reader.next_hop(hit.cell).expect("a hit leads to a next hop");
            Some(Finding::Endpoint(Some((hit.mac, hop))))
        }
    })
}

fn ask_node(address: &str) -> Box<dyn Fn(&Reader) -> SeenAnswer + Send + Sync> {
    let address = ip(address);
    Box::new(move |reader| match reader.find(0, address) {
        Lookup::Busy => None,
        Lookup::Miss => Some(Finding::Node(false)),
        Lookup::Hit(hit) => Some(Finding::Node(reader.next_hop(hit.cell) == Some(NextHop::Vtep(address)))),
    })
}

/// Asks how a packet to a TCP port of the VM with interface 7 is judged.
fn ask_policy(port: u16) -> Box<dyn Fn(&Reader) -> SeenAnswer + Send + Sync> {
    Box::new(move |reader| match reader.find_index(0, 7) {
        Lookup::Busy => None,
        Lookup::Miss => panic!("the port is always there"),
        Lookup::Hit(hit) => {
            Some(Finding::Judged(reader.evaluate(reader.policy_of_port(hit.cell), &packet(port))))
        }
    })
}

/// Explores `steps` on tables that `fill` filled, while readers ask the questions.
fn explore(
    fill: impl Fn(&mut NodeTables) + Send + Sync + 'static,
    questions: Questions,
    steps: Vec<Step<NodeTables>>,
) {
    let prepare = move |epochs: ReaderEpochs| {
        let memory = Memory::anonymous(600).unwrap();
        let mut tables = NodeTables::create(memory, epochs, Sizes { endpoints: 1 }).unwrap();
        tables.upsert_vrf(&plain_vrf(5)).unwrap();
        fill(&mut tables);
        tables
    };
    Scenario { prepare: Box::new(prepare), memory: NodeTables::memory, steps, questions, may_go_back: false }
        .explore();
}

fn with_routes(prefixes: Vec<String>) -> impl Fn(&mut NodeTables) + Send + Sync + 'static {
    move |tables| {
        for (i, prefix) in prefixes.iter().enumerate() {
            tables.upsert_route(&route(prefix, 1 + i as u32)).unwrap();
        }
    }
}

/// Prefixes of one family that are next to each other.
fn side_by_side(family: &str, count: u32) -> Vec<String> {
    (0..count)
        .map(|i| if family == "v4" { format!("10.{i}.0.0/16") } else { format!("fd00:{i:x}::/32") })
        .collect()
}

#[test]
fn lists_of_few_routes_change() {
    let fill = with_routes(vec!["10.0.0.0/8".to_owned()]);
    let steps = vec![
        add("10.1.0.0/16", 91),
        add("10.1.0.0/16", 92),
        withdraw("10.1.0.0/16"),
        add("0.0.0.0/0", 93),
        reuse(),
        withdraw("10.0.0.0/8"),
    ];
    explore(fill, vec![ask_route("10.1.2.3")], steps);
    let fill = with_routes(vec!["::/0".to_owned(), "fd00::/16".to_owned()]);
    let steps = vec![
        add("fd00::1/128", 91),
        withdraw("fd00::/16"),
        withdraw("fd00::1/128"),
        reuse(),
        withdraw("::/0"),
        add("fd00::/64", 92),
    ];
    explore(fill, vec![ask_route("fd00::1")], steps);
}

/// A list becomes a directory and a list again, with a route that stays and one that changes.
#[test]
fn lists_become_directories_and_back() {
    for (family, asked, host) in [("v4", "10.3.0.1", "10.3.0.1/32"), ("v6", "fd00:3::1", "fd00:3::1/128")] {
        let list_max = match family {
            "v4" => layout::LPM_SCAN4_CELLS * layout::LPM_SCAN4_ROUTES,
            _ => layout::LPM_SCAN6_CELLS * layout::LPM_SCAN6_ROUTES,
        };
        let fill = with_routes(side_by_side(family, list_max));
        let more = side_by_side(family, list_max + 2);
        let last = list_max as usize;
        let mut steps =
            vec![add(&more[last], 91), add(host, 92), reuse(), withdraw(host), add(&more[last + 1], 93)];
        steps.extend(more[4..].iter().map(|prefix| withdraw(prefix)));
        steps.extend([reuse(), add(&more[3], 94)]);
        explore(fill, vec![ask_route(asked)], steps);
    }
}

/// Buckets overflow into directories and become buckets again, short routes are pushed into them, and skips
/// are split.
#[test]
fn routes_below_directories_change() {
    let clump = |family: &str, count: u32| -> Vec<String> {
        let host = |i| if family == "v4" { format!("10.3.0.{i}/32") } else { format!("fd00:3::{i:x}/128") };
        side_by_side(family, 16).into_iter().chain((0..count).map(host)).collect()
    };
    for (family, asked, short, near) in [
        ("v4", "10.3.0.1", ["10.0.0.0/7", "10.3.0.0/23"], "10.3.128.0/20"),
        ("v6", "fd00:3::1", ["fc00::/7", "fd00:3::/63"], "fd00:3:8000::/40"),
    ] {
        let hosts = clump(family, 14);
        let mut steps: Vec<_> = hosts[18..].iter().map(|host| add(host, 91)).collect();
        steps.extend([add(short[0], 92), add(near, 93), add(short[1], 94), reuse()]);
        steps.extend(hosts[17..].iter().map(|host| withdraw(host)));
        steps.extend([withdraw(near), reuse(), withdraw(short[1]), withdraw(short[0])]);
        explore(with_routes(hosts[..18].to_vec()), vec![ask_route(asked)], steps);
    }
}

#[test]
fn vrfs_change_and_are_removed() {
    let fill = with_routes(side_by_side("v4", 3));
    let steps = vec![
        vrf(1400),
        add("10.1.1.0/24", 91),
        vrf(1300),
        reuse(),
        step(|tables| tables.remove_vrf(vni(5))),
        reuse(),
        vrf(1500),
        add("10.1.0.0/16", 92),
    ];
    explore(fill, vec![ask_route("10.1.1.1")], steps);
}

/// A packet is judged by the old policy or by the new one. All of these policies permit TCP port 82.
#[test]
fn policies_of_a_port_are_replaced() {
    let fill = |tables: &mut NodeTables| {
        tables.upsert_policy(&policy(3, 80)).unwrap();
        tables.upsert_policy(&policy(4, 81)).unwrap();
        tables.upsert_port(&Port { policy: Some(3), ..port(7) }).unwrap();
    };
    let put = |id, port| step(move |tables| tables.upsert_policy(&policy(id, port)));
    let give = |policy| step(move |tables| tables.upsert_port(&Port { policy, ..port(7) }));
    let steps = || {
        vec![
            put(3, 82),
            reuse(),
            put(3, 81),
            give(Some(4)),
            step(|tables| tables.remove_policy(3)),
            reuse(),
            adopt(),
            put(4, 82),
            give(None),
            reuse(),
        ]
    };
    for asked in [82, 80, 84] {
        explore(fill, vec![ask_policy(asked)], steps());
    }
}

#[test]
fn nodes_are_removed_and_added_while_endpoints_lead_to_them() {
    for address in ["10.0.0.1", "fd00::1"] {
        let at = move |host: usize, seed| Endpoint { mac: mac(seed), ..endpoint(5, address, HOSTS[host]) };
        let fill = move |tables: &mut NodeTables| {
            HOSTS.iter().for_each(|host| assert!(tables.upsert_vtep(ip(host), Role::Host).unwrap()));
            tables.upsert_endpoint(&at(0, 1)).unwrap();
        };
        let steps = vec![
            step(|tables| tables.remove_vtep(ip(HOSTS[0]))),
            step(move |tables| tables.upsert_endpoint(&at(1, 1))),
            reuse(),
            step(|tables| tables.upsert_vtep(ip(HOSTS[0]), Role::Host)),
            step(move |tables| tables.upsert_endpoint(&at(0, 2))),
            adopt(),
            step(move |tables| tables.remove_endpoint(vni(5), ip(address))),
            step(|tables| tables.remove_vtep(ip(HOSTS[1]))),
            reuse(),
        ];
        let questions = vec![ask_endpoint(address), ask_node(HOSTS[0]), ask_node(HOSTS[1])];
        explore(fill, questions, steps);
    }
}
