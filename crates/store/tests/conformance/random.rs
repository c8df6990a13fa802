//! Random operations on the store and on the model must give the same results.

use crate::Fixture;
use crate::cloud::{ALL, Cloud, new, peering, subnet, vpc};
use crate::model::{Model, Wanted, verdict};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use sluice_store::{Created, NewInstance, NewRoute, Page, PortSettings, RouteTarget, Store};
use sluice_types::{MacAddr, RouteTableId, SubnetId, VpcId, eui64_address};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

const SEQUENCES: u32 = 12;
const OPERATIONS: std::ops::Range<usize> = 20..60;

/// Prefixes that overlap sometimes, and are small enough to become full.
const PREFIXES: [(Option<&str>, Option<&str>); 6] = [
    (Some("10.0.0.0/29"), Some("fd00::/64")),
    (Some("10.0.0.8/29"), None),
    (Some("10.0.0.0/28"), None),
    (None, Some("fd00:0:0:1::/125")),
    (Some("10.0.1.0/30"), Some("fd00:0:0:2::/64")),
    (None, Some("fd00::/62")),
];
const ROUTES: [&str; 4] = ["0.0.0.0/0", "10.0.0.0/30", "10.0.0.12/30", "fd00::/16"];
const IPV4: [&str; 6] = ["10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.4", "10.0.0.9", "10.0.1.2"];
const IPV6: [&str; 4] = ["fd00::1", "fd00::ff:fe00:5", "fd00:0:0:1::3", "fd00::5054:ff:fe00:1"];
const MACS: [u64; 3] = [0x5254_0000_0001, 0x5254_0000_0002, 0x0200_0000_0020];

#[derive(Clone, Debug)]
struct Choice {
    name: u8,
    mac: Option<usize>,
    ipv4: Option<usize>,
    ipv6: Option<usize>,
}

/// Objects are identified by their position among the existing ones.
#[derive(Clone, Debug)]
enum Operation {
    CreateVpc(u8),
    DeleteVpc(usize),
    CreateSubnet(usize, u8, usize),
    DeleteSubnet(usize),
    CreateInstance(usize, Choice),
    Bulk(usize, Vec<Choice>),
    DeleteInstance(usize),
    CreatePeering(u8, usize, usize),
    DeletePeering(usize),
    CreateRoute(usize, usize, Option<usize>),
    DeleteRoute(usize),
}

fn choice() -> impl Strategy<Value = Choice> {
    let rarely = |n: usize| prop_oneof![4 => Just(None), 1 => (0..n).prop_map(Some)];
    (0..12u8, rarely(MACS.len()), rarely(IPV4.len()), rarely(IPV6.len()))
        .prop_map(|(name, mac, ipv4, ipv6)| Choice { name, mac, ipv4, ipv6 })
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation as O;
    let at = any::<prop::sample::Index>().prop_map(|i| i.index(1 << 16));
    prop_oneof![
        3 => (0..4u8).prop_map(O::CreateVpc),
        1 => at.clone().prop_map(O::DeleteVpc),
        6 => (at.clone(), 0..4u8, 0..PREFIXES.len()).prop_map(|(v, n, p)| O::CreateSubnet(v, n, p)),
        1 => at.clone().prop_map(O::DeleteSubnet),
        12 => (at.clone(), choice()).prop_map(|(s, c)| O::CreateInstance(s, c)),
        3 => (at.clone(), prop::collection::vec(choice(), 1..6)).prop_map(|(s, c)| O::Bulk(s, c)),
        6 => at.clone().prop_map(O::DeleteInstance),
        3 => (0..3u8, at.clone(), at.clone()).prop_map(|(n, a, b)| O::CreatePeering(n, a, b)),
        1 => at.clone().prop_map(O::DeletePeering),
        3 => (at.clone(), 0..ROUTES.len(), prop::option::of(at.clone()))
            .prop_map(|(v, p, t)| O::CreateRoute(v, p, t)),
        1 => at.prop_map(O::DeleteRoute),
    ]
}

/// The n-th existing object.
fn pick<K: Copy, V>(map: &BTreeMap<K, V>, n: usize) -> Option<K> {
    map.keys().nth(n % map.len().max(1)).copied()
}

struct Run {
    store: Arc<Store>,
    cloud: Arc<Cloud>,
    tenant: sluice_store::Tenant,
    model: Model,
}

impl Run {
    async fn table(&self, vpc: VpcId) -> RouteTableId {
        self.store.route_tables(Some(vpc), ALL).await.unwrap()[0].id
    }

    fn wanted(choice: &Choice) -> Wanted {
        Wanted {
            name: format!("vm-{}", choice.name),
            mac: choice.mac.map(|i| MacAddr::from_u64(MACS[i])),
            ipv4: choice.ipv4.map(|i| IPV4[i].parse().unwrap()),
            ipv6: choice.ipv6.map(|i| IPV6[i].parse().unwrap()),
        }
    }

    fn request(&self, subnet: SubnetId, wanted: &Wanted) -> NewInstance {
        NewInstance {
            name: wanted.name.clone(),
            subnet,
            host: self.cloud.host.id,
            mac: wanted.mac,
            ipv4: wanted.ipv4,
            ipv6: wanted.ipv6,
            security_groups: None,
            settings: PortSettings::default(),
        }
    }

    /// Executes an operation on both; `None` if there is no object for it.
    async fn step(&mut self, operation: &Operation) -> Option<(String, String)> {
        use Operation as O;
        let s = self.store.clone();
        Some(match *operation {
            O::CreateVpc(name) => {
                let name = format!("v{name}");
                let expected = self.model.create_vpc(&name);
                let result = s.create_vpc(vpc(&name, &self.tenant, &self.cloud.cluster)).await;
                let got = verdict(&result, |c| matches!(c, Created::Existing(_)));
                if let Ok(Created::New(vpc)) = result {
                    self.model.vpcs.insert(vpc.id, vpc);
                }
                (expected.into(), got)
            }
            O::DeleteVpc(n) => {
                let id = pick(&self.model.vpcs, n)?;
                let expected = self.model.delete_vpc(id);
                let result = s.delete_vpc(id, None).await;
                if result.is_ok() {
                    self.model.vpcs.remove(&id);
                }
                (expected.into(), verdict(&result, |_| false))
            }
            O::CreateSubnet(n, name, prefix) => {
                let vpc = pick(&self.model.vpcs, n)?;
                let new = subnet(&format!("s{name}"), vpc, PREFIXES[prefix].0, PREFIXES[prefix].1);
                let nets: Vec<_> =
                    new.ipv4.map(Into::into).into_iter().chain(new.ipv6.map(Into::into)).collect();
                let expected = self.model.create_subnet(vpc, &new.name, &nets);
                let result = s.create_subnet(new).await;
                let got = verdict(&result, |c| matches!(c, Created::Existing(_)));
                if let Ok(Created::New(subnet)) = result {
                    self.model.subnets.insert(subnet.id, subnet);
                }
                (expected.into(), got)
            }
            O::DeleteSubnet(n) => {
                let id = pick(&self.model.subnets, n)?;
                let expected = self.model.delete_subnet(id);
                let result = s.delete_subnet(id, None).await;
                if result.is_ok() {
                    self.model.subnets.remove(&id);
                }
                (expected.into(), verdict(&result, |_| false))
            }
            O::CreateInstance(n, ref choice) => {
                return self.instances(n, std::slice::from_ref(choice), false).await;
            }
            O::Bulk(n, ref choices) => return self.instances(n, choices, true).await,
            O::DeleteInstance(n) => {
                let id = pick(&self.model.instances, n)?;
                let result = s.delete_instance(id, None).await;
                self.model.instances.remove(&id);
                ("New".into(), verdict(&result, |_| false))
            }
            _ => return self.step_between_vpcs(operation).await,
        })
    }

    async fn step_between_vpcs(&mut self, operation: &Operation) -> Option<(String, String)> {
        use Operation as O;
        let s = self.store.clone();
        Some(match *operation {
            O::CreatePeering(name, a, b) => {
                let (a, b) = (pick(&self.model.vpcs, a)?, pick(&self.model.vpcs, b)?);
                let name = format!("p{name}");
                let expected = self.model.create_peering(&name, a, b);
                let result =
                    s.create_peering(peering(&name, &self.model.vpcs[&a], &self.model.vpcs[&b])).await;
                let got = verdict(&result, |c| matches!(c, Created::Existing(_)));
                if let Ok(Created::New(peering)) = result {
                    self.model.peerings.insert(peering.id, peering);
                }
                (expected.into(), got)
            }
            O::DeletePeering(n) => {
                let id = pick(&self.model.peerings, n)?;
                let expected = self.model.delete_peering(id);
                let result = s.delete_peering(id, None).await;
                if result.is_ok() {
                    self.model.peerings.remove(&id);
                }
                (expected.into(), verdict(&result, |_| false))
            }
            O::CreateRoute(n, prefix, target) => {
                let vpc = pick(&self.model.vpcs, n)?;
                let prefix = ROUTES[prefix].parse().unwrap();
                let target = match target.and_then(|n| pick(&self.model.peerings, n)) {
                    Some(peering) => RouteTarget::Peering(peering),
                    None => RouteTarget::Drop,
                };
                let expected = self.model.create_route(vpc, prefix, target);
                let result = s.create_route(NewRoute { table: self.table(vpc).await, prefix, target }).await;
                let got = verdict(&result, |c| matches!(c, Created::Existing(_)));
                if let Ok(Created::New(route)) = result {
                    self.model.routes.insert(route.id, (vpc, route));
                }
                (expected.into(), got)
            }
            O::DeleteRoute(n) => {
                let id = pick(&self.model.routes, n)?;
                let result = s.delete_route(id, None).await;
                self.model.routes.remove(&id);
                ("New".into(), verdict(&result, |_| false))
            }
            _ => return None,
        })
    }

    /// Creates one instance, or several in bulk. The model predicts a bulk creation only if no address is
    /// given: then it is equal to single creations in order.
    async fn instances(&mut self, n: usize, choices: &[Choice], bulk: bool) -> Option<(String, String)> {
        let subnet = pick(&self.model.subnets, n)?;
        let vpc = self.model.subnets[&subnet].vpc;
        let mut names = HashSet::new();
        let mut wanted: Vec<Wanted> = choices.iter().map(Self::wanted).collect();
        if bulk {
            wanted.retain(|w| names.insert(w.name.clone()));
            for one in &mut wanted {
                (one.mac, one.ipv4, one.ipv6) = (None, None, None);
            }
        }
        let requests: Vec<NewInstance> = wanted.iter().map(|w| self.request(subnet, w)).collect();
        let before = self.model.checkpoint();
        let result = if bulk {
            self.store.create_instances(vpc, requests).await
        } else {
            let one = self.store.create_instance(vpc, requests[0].clone()).await;
            one.map(|created| match created {
                Created::New(instance) => (vec![instance], 0),
                Created::Existing(_) => (vec![], 1),
            })
        };
        let got = verdict(&result, |(made, _)| made.is_empty());
        let made = result.map(|(made, _)| made).unwrap_or_default();
        let mut made = made.into_iter();
        let mut expected = "Existing".to_owned();
        // All names are checked before an address is allocated.
        let mut fresh = Vec::new();
        for one in &wanted {
            let mut probe = self.model.clone();
            let (word, ..) = probe.create_instance(subnet, one);
            match word {
                "New" | "SubnetFull" => fresh.push(one),
                "Existing" => {}
                refused => {
                    self.model = before;
                    return Some((refused.to_owned(), got));
                }
            }
        }
        for one in fresh {
            let (word, ipv4, ipv6) = self.model.create_instance(subnet, one);
            expected = word.to_owned();
            if word == "SubnetFull" {
                break;
            }
            let Some(instance) = made.next() else {
                // A later instance of the bulk may be refused. The model finds that too if this one exists.
                self.model.pretend(subnet, one, ipv4, ipv6);
                continue;
            };
            self.check(&instance, one, ipv4, ipv6);
            self.model.instances.insert(instance.id, instance);
        }
        if expected == "SubnetFull" {
            self.model = before;
        }
        Some((expected, got))
    }

    fn check(
        &self,
        made: &sluice_store::Instance,
        wanted: &Wanted,
        ipv4: Option<std::net::Ipv4Addr>,
        ipv6: Option<std::net::Ipv6Addr>,
    ) {
        assert_eq!((&made.name, made.ipv4), (&wanted.name, ipv4));
        assert_eq!(made.mac, wanted.mac.unwrap_or(MacAddr::local(made.id.get())));
        let net = self.model.subnets[&made.subnet].ipv6;
        assert_eq!(made.ipv6, ipv6.or_else(|| net.and_then(|net| eui64_address(&net, made.mac))));
        for other in self.model.instances.values().filter(|i| i.vpc == made.vpc) {
            assert_ne!(made.mac, other.mac, "{made:?} {other:?}");
            assert!(made.ipv6.is_none() || made.ipv6 != other.ipv6, "{made:?} {other:?}");
        }
    }

    /// The store lists the objects of the model, and the outbox gave the same state.
    async fn compare(&self, since: u64) {
        let s = &self.store;
        let vpcs = s.vpcs(Some(self.tenant.id), None, ALL).await.unwrap();
        assert_eq!(vpcs, self.model.vpcs.values().cloned().collect::<Vec<_>>());
        for vpc in self.model.vpcs.keys() {
            let subnets = self.model.subnets.values().filter(|s| s.vpc == *vpc).cloned().collect::<Vec<_>>();
            assert_eq!(s.subnets(Some(*vpc), None, ALL).await.unwrap(), subnets);
            let all = self.model.instances.values().filter(|i| i.vpc == *vpc).cloned().collect::<Vec<_>>();
            assert_eq!(s.instances(Some(*vpc), None, None, ALL).await.unwrap(), all);
            let routes = self.model.routes.values().filter(|(v, _)| v == vpc).map(|(_, r)| r.clone());
            let stored = s.routes(self.table(*vpc).await, Page { after: 0, limit: 100 }).await.unwrap();
            assert_eq!(stored, routes.collect::<Vec<_>>());
        }
        let mut told = Model::default();
        for row in s.outbox(since, u32::MAX).await.unwrap() {
            told.apply(&row.change);
        }
        assert_eq!(told.vpcs, self.model.vpcs);
        assert_eq!(told.subnets, self.model.subnets);
        assert_eq!(told.instances, self.model.instances);
        assert_eq!(told.routes, self.model.routes);
    }
}

async fn sequence(store: Arc<Store>, cloud: Arc<Cloud>, operations: Vec<Operation>) {
    let since = store.revision().await.unwrap();
    // A separate tenant has no interaction with others.
    let tenant = new(store.create_tenant(&format!("t{since}")).await);
    let mut run = Run { store, cloud, tenant, model: Model::default() };
    for (step, operation) in operations.iter().enumerate() {
        if let Some((expected, got)) = run.step(operation).await {
            assert_eq!(got, expected, "step {step}: {operation:?}");
        }
    }
    run.compare(since).await;
}

pub async fn operations_match_the_model(f: Fixture) {
    let cloud = Arc::new(Cloud::make(&f).await);
    let handle = tokio::runtime::Handle::current();
    let config = Config { cases: SEQUENCES, failure_persistence: None, ..Config::default() };
    let strategy = prop::collection::vec(operation(), OPERATIONS);
    let result = tokio::task::block_in_place(|| {
        TestRunner::new(config).run(&strategy, |operations| {
            let task = handle.spawn(sequence(f.store.clone(), cloud.clone(), operations));
            handle.block_on(task).map_err(|e| TestCaseError::fail(e.to_string()))
        })
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}
