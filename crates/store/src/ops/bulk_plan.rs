//! Preparation of a bulk creation: reads the VPC, its subnets, the hosts, the instances with the same names
//! and the used addresses, and checks the requests against them.

use super::alloc::{self, Cursor};
use super::bulk_groups::{self, BulkGroups};
use super::bulk_survey::Survey;
use super::further::FurtherUsers;
use super::network_classes::{self, Classes};
use super::removals::{self, HeldAddresses};
use super::{families, further, pair_macs};
use crate::backend::Query;
use crate::check::{self, Difference};
use crate::rows::{Record, get, ipv6};
use crate::value::args;
use crate::{Conflict, Host, Instance, InstanceOptions, NewInstance, Result, StoreError, Subnet, Vpc};
use sluice_types::{HostId, IpNet, MacAddr, SubnetId, VpcId};
use std::collections::HashMap;
use std::net::IpAddr;

/// Values in one `= ANY(...)` query.
pub(super) const VALUES_PER_QUERY: usize = 16384;

/// A subnet and the state of its address allocation.
pub(crate) struct SubnetState {
    pub subnet: Subnet,
    pub cursor4: Option<Cursor>,
    pub cursor6: Option<Cursor>,
    /// True if the cursors have moved and must be saved.
    pub moved: bool,
}

/// Addresses and MACs that the requests assign, each with the index of its request.
#[derive(Default)]
pub(crate) struct Given {
    pub macs: HashMap<u64, usize>,
    pub ipv4: HashMap<u128, usize>,
    pub ipv6: HashMap<u128, usize>,
}

/// A checked bulk creation.
pub(crate) struct BulkPlan<'a> {
    pub vpc: Vpc,
    /// All subnets of the VPC, in order of id.
    pub subnets: Vec<SubnetState>,
    pub hosts: HashMap<HostId, Host>,
    pub new: &'a [NewInstance],
    /// What the requests have in all.
    pub survey: Survey,
    /// True if the VPC has no instance and no mount yet.
    pub is_empty: bool,
    /// Indexes in `new` of the instances to create.
    pub to_create: Vec<usize>,
    /// Instances that exist with the same content.
    pub existing: Vec<Instance>,
    /// Number of requests that repeat an earlier one with the same name and content.
    pub repeated: usize,
    pub given: Given,
    /// Addresses of deleted instances that nodes may still have.
    pub held: HeldAddresses,
    pub groups: BulkGroups,
    /// The network classes that the requests name.
    pub classes: Classes,
}

/// Adds the index and name of the request to an error.
pub(crate) fn in_bulk(new: &[NewInstance], index: usize, error: impl Into<StoreError>) -> StoreError {
    match error.into() {
        error @ (StoreError::Conflict(_) | StoreError::NotFound { .. }) => {
            StoreError::InBulk { index, name: new[index].name.clone(), source: Box::new(error) }
        }
        other => other,
    }
}

impl<'a> BulkPlan<'a> {
    /// Reads and checks everything that is possible before addresses are allocated.
    pub async fn prepare(q: &mut dyn Query, vpc: VpcId, new: &'a [NewInstance]) -> Result<Self> {
        let survey = Survey::new(new);
        let with_settings = if survey.has_settings { new } else { &[] };
        let classes = network_classes::requested(q, with_settings).await?;
        for (index, one) in new.iter().enumerate() {
            check_request(one, &classes).map_err(|e| in_bulk(new, index, e))?;
        }
        let vpc: Vpc = get(q, vpc).await?;
        let subnets = subnets(q, vpc.id).await?;
        let has =
            "SELECT id FROM instances WHERE vpc = $1 UNION ALL SELECT id FROM mounts WHERE vpc = $1 LIMIT 1";
        let is_empty = !q.any(has, args![vpc.id.get()]).await?;
        let hosts = HashMap::new();
        let held = HeldAddresses::read(q, vpc.id).await?;
        let groups = BulkGroups::read(q, &vpc, if survey.has_groups { new } else { &[] }).await?;
        let mut plan = Self {
            vpc,
            subnets,
            hosts,
            new,
            survey,
            is_empty,
            to_create: Vec::with_capacity(new.len()),
            existing: Vec::new(),
            repeated: 0,
            given: Given::default(),
            held,
            groups,
            classes,
        };
        plan.check_subnets(q).await?;
        plan.load_hosts(q).await?;
        plan.compare_with_existing(q).await?;
        plan.check_families(q).await?;
        plan.collect_given()?;
        if !plan.is_empty {
            plan.check_further(q).await?;
            plan.check_macs(q).await?;
            plan.check_ipv4(q).await?;
            plan.check_ipv6(q).await?;
        }
        // Last: what has an address now says more than what had it.
        plan.check_held(q).await?;
        Ok(plan)
    }

    /// Position of a subnet of the VPC.
    fn find(&self, id: SubnetId) -> Option<usize> {
        self.subnets.binary_search_by_key(&id, |state| state.subnet.id).ok()
    }

    /// Position of the subnet with this id, which `check_subnets` has found.
    pub fn position(&self, id: SubnetId) -> usize {
        self.find(id).unwrap_or_default()
    }

    /// The subnet with this id, which `check_subnets` has found.
    pub fn subnet(&self, id: SubnetId) -> &Subnet {
        &self.subnets[self.position(id)].subnet
    }

    async fn check_subnets(&self, q: &mut dyn Query) -> Result<()> {
        if self.survey.subnets.iter().all(|id| self.find(*id).is_some()) {
            return Ok(());
        }
        for (index, one) in self.new.iter().enumerate() {
            if self.find(one.subnet).is_some() {
                continue;
            }
            let foreign = match get::<Subnet>(q, one.subnet).await {
                Ok(subnet) => {
                    Conflict::ForeignSubnet { subnet: subnet.name, vpc: self.vpc.name.clone() }.into()
                }
                Err(error) => error,
            };
            return Err(in_bulk(self.new, index, foreign));
        }
        Ok(())
    }

    async fn load_hosts(&mut self, q: &mut dyn Query) -> Result<()> {
        let ids: Vec<i64> = self.survey.hosts.iter().map(|id| id.get() as i64).collect();
        let sql = format!("SELECT {} FROM hosts WHERE id = ANY($1)", Host::COLUMNS);
        for ids in ids.chunks(VALUES_PER_QUERY) {
            for row in q.rows(&sql, args![ids.to_vec()]).await? {
                let host = Host::decode(&row)?;
                self.hosts.insert(host.id, host);
            }
        }
        if self.hosts.len() == ids.len() {
            return Ok(());
        }
        match self.new.iter().position(|one| !self.hosts.contains_key(&one.host)) {
            None => Ok(()),
            Some(index) => {
                let missing = StoreError::NotFound { kind: "host", id: self.new[index].host.to_string() };
                Err(in_bulk(self.new, index, missing))
            }
        }
    }

    /// Checks that the hosts can send to the clusters of the VPC.
    async fn check_families(&self, q: &mut dyn Query) -> Result<()> {
        let clusters = families::clusters(q, &self.vpc).await?;
        let check = |host: &Host| {
            clusters.iter().try_for_each(|cluster| families::check_host(cluster, &self.vpc.name, host))
        };
        if self.hosts.values().all(|host| check(host).is_ok()) {
            return Ok(());
        }
        for &index in &self.to_create {
            check(&self.hosts[&self.new[index].host]).map_err(|e| in_bulk(self.new, index, e))?;
        }
        Ok(())
    }

    /// Separates the instances to create from those that exist with the same content.
    async fn compare_with_existing(&mut self, q: &mut dyn Query) -> Result<()> {
        let mut existing: HashMap<String, Instance> = HashMap::new();
        if !self.is_empty {
            let sql =
                format!("SELECT {} FROM instances WHERE vpc = $1 AND name = ANY($2)", Instance::COLUMNS);
            for chunk in self.new.chunks(VALUES_PER_QUERY) {
                let names: Vec<String> = chunk.iter().map(|one| one.name.clone()).collect();
                for row in q.rows(&sql, args![self.vpc.id.get(), names]).await? {
                    let instance = Instance::decode(&row)?;
                    existing.insert(instance.name.clone(), instance);
                }
            }
        }
        if self.survey.are_distinct && existing.is_empty() {
            self.to_create.extend(0..self.new.len());
            return Ok(());
        }
        let mut first: HashMap<&str, usize> = HashMap::with_capacity(self.new.len());
        for (index, one) in self.new.iter().enumerate() {
            if let Some(earlier) = first.insert(&one.name, index) {
                check_same_request(&self.new[earlier], one, &self.classes)
                    .map_err(|e| in_bulk(self.new, index, e))?;
                self.repeated += 1;
            } else if let Some(instance) = existing.remove(&one.name) {
                let same = match check_same_content(&instance, one, &self.classes) {
                    Ok(()) => self.groups.check_same(q, &instance, one).await,
                    different => different,
                };
                same.map_err(|e| in_bulk(self.new, index, e))?;
                self.existing.push(instance);
            } else {
                self.to_create.push(index);
            }
        }
        Ok(())
    }

    /// Collects the addresses and MACs that the requests assign. Each may be assigned once and must be in its
    /// subnet.
    fn collect_given(&mut self) -> Result<()> {
        if !self.survey.has_given {
            return Ok(());
        }
        let mut given = Given::default();
        for &index in &self.to_create {
            let one = &self.new[index];
            let at = |error: StoreError| in_bulk(self.new, index, error);
            if let Some(mac) = one.mac
                && let Some(other) = given.macs.insert(mac.to_u64(), index)
            {
                return Err(at(self.mac_taken(mac, &self.new[other].name)));
            }
            let addresses = one.ipv4.map(IpAddr::V4).into_iter().chain(one.ipv6.map(IpAddr::V6));
            for address in addresses {
                check::address(self.subnet(one.subnet), address).map_err(at)?;
                let known = if address.is_ipv4() { &mut given.ipv4 } else { &mut given.ipv6 };
                if let Some(other) = known.insert(check::number(address), index) {
                    return Err(at(address_taken(address, &self.new[other].name)));
                }
            }
        }
        self.given = given;
        Ok(())
    }

    /// The addresses that the requests assign, and those derived from MACs that they assign, each with the index of its
    /// request.
    fn wanted(&self) -> Vec<(IpAddr, usize)> {
        let v4 = self.given.ipv4.iter().map(|(number, index)| (IpAddr::V4((*number as u32).into()), *index));
        v4.chain(self.wanted_ipv6().into_iter().map(|(number, index)| (IpAddr::V6(number.into()), index)))
            .collect()
    }

    /// Checks that no wanted address is held.
    async fn check_held(&self, q: &mut dyn Query) -> Result<()> {
        if self.held.is_empty() {
            return Ok(());
        }
        for (address, index) in self.wanted() {
            let subnet = self.subnet(self.new[index].subnet);
            let net = check::prefixes(subnet).find(|net| net.contains(&address));
            if let Some((what, revision)) = self.held.conflicting(address.into(), net) {
                let error = removals::conflict(q, what, revision).await?;
                return Err(in_bulk(self.new, index, error));
            }
        }
        Ok(())
    }

    /// Checks that no wanted address is a further one of an instance, or in a prefix that is delegated to one.
    async fn check_further(&self, q: &mut dyn Query) -> Result<()> {
        let wanted = self.wanted();
        let Some(further) = FurtherUsers::read(q, self.vpc.id, &wanted).await? else { return Ok(()) };
        for (address, index) in wanted {
            if let Some(user) = further.of(address) {
                return Err(in_bulk(self.new, index, user.conflict(address)));
            }
        }
        Ok(())
    }

    /// The IPv6 addresses that the requests assign, and those derived from MACs that they assign, each with the index
    /// of its request.
    fn wanted_ipv6(&self) -> HashMap<u128, usize> {
        let mut wanted = self.given.ipv6.clone();
        for (&mac, &index) in &self.given.macs {
            let one = &self.new[index];
            let net = self.subnet(one.subnet).ipv6.filter(|_| one.ipv6.is_none());
            let derived = net.and_then(|net| sluice_types::eui64_address(&net, MacAddr::from_u64(mac)));
            wanted.extend(derived.map(|address| (u128::from(address), index)));
        }
        wanted
    }

    fn mac_taken(&self, mac: MacAddr, instance: &str) -> StoreError {
        Conflict::MacTaken { mac: mac.to_string(), instance: instance.to_owned() }.into()
    }

    async fn check_macs(&self, q: &mut dyn Query) -> Result<()> {
        let macs: Vec<MacAddr> = self.given.macs.keys().map(|mac| MacAddr::from_u64(*mac)).collect();
        for chunk in macs.chunks(VALUES_PER_QUERY) {
            if let Some(owner) = alloc::mac_owners(q, self.vpc.id, chunk).await?.first() {
                let index = self.given.macs[&owner.mac.to_u64()];
                return Err(in_bulk(self.new, index, self.mac_taken(owner.mac, &owner.name)));
            }
            if let Some((mac, instance)) = pair_macs::listed(q, self.vpc.id, chunk).await? {
                let (index, mac) = (self.given.macs[&mac.to_u64()], mac.to_string());
                return Err(in_bulk(self.new, index, Conflict::MacIsPair { mac, instance }));
            }
        }
        Ok(())
    }

    async fn check_ipv4(&self, q: &mut dyn Query) -> Result<()> {
        let numbers: Vec<i64> = self.given.ipv4.keys().map(|address| *address as i64).collect();
        let sql = "SELECT ipv4, name FROM instances WHERE vpc = $1 AND ipv4 IS NOT NULL AND ipv4 = ANY($2)";
        for chunk in numbers.chunks(VALUES_PER_QUERY) {
            if let Some(row) = q.row(sql, args![self.vpc.id.get(), chunk.to_vec()]).await? {
                let address = crate::rows::ipv4(row.int(0)?)?;
                let index = self.given.ipv4[&u128::from(u32::from(address))];
                return Err(in_bulk(self.new, index, address_taken(address.into(), row.text(1)?)));
            }
        }
        Ok(())
    }

    /// Checks the IPv6 addresses that the requests assign, and those derived from MACs that they assign: an
    /// existing instance must have none of them, neither assigned nor derived.
    async fn check_ipv6(&self, q: &mut dyn Query) -> Result<()> {
        let wanted = self.wanted_ipv6();
        let wanted_list: Vec<u128> = wanted.keys().copied().collect();
        let sql = "SELECT ipv6, name FROM instances WHERE vpc = $1 AND ipv6 IS NOT NULL \
                   AND derived IN (0, 1) AND ipv6 = ANY($2)";
        let taken = |address: u128, name: &str| {
            let error = address_taken(std::net::Ipv6Addr::from(address).into(), name);
            in_bulk(self.new, wanted[&address], error)
        };
        for chunk in wanted_list.chunks(VALUES_PER_QUERY) {
            let blobs: Vec<Vec<u8>> = chunk.iter().map(|address| address.to_be_bytes().to_vec()).collect();
            if let Some(row) = q.row(sql, args![self.vpc.id.get(), blobs]).await? {
                return Err(taken(ipv6(row.blob(0)?)?.into(), row.text(1)?));
            }
            let macs: Vec<MacAddr> = chunk.iter().filter_map(|address| alloc::eui64_mac(*address)).collect();
            if macs.is_empty() {
                continue;
            }
            for owner in alloc::mac_owners(q, self.vpc.id, &macs).await? {
                if let Some(address) = owner.derived_ipv6.filter(|address| wanted.contains_key(address)) {
                    return Err(taken(address, &owner.name));
                }
            }
        }
        Ok(())
    }
}

/// The error for an address that another instance has.
pub(crate) fn address_taken(address: IpAddr, instance: &str) -> StoreError {
    Conflict::AddressTaken { address: address.to_string(), instance: instance.to_owned() }.into()
}

/// Checks a request by itself.
fn check_request(one: &NewInstance, classes: &Classes) -> Result<()> {
    check::name("instance", &one.name)?;
    if !one.settings.is_empty() {
        further::with_settings(&InstanceOptions::default(), &one.settings, classes)?;
    }
    one.mac.map_or(Ok(()), check::mac)
}

/// Checks that an existing instance matches a request with its name.
fn check_same_content(instance: &Instance, one: &NewInstance, classes: &Classes) -> Result<()> {
    if instance.subnet == one.subnet
        && instance.host == one.host
        && one.mac.is_none_or(|mac| mac == instance.mac)
        && one.ipv4.is_none_or(|address| Some(address) == instance.ipv4)
        && one.ipv6.is_none_or(|address| Some(address) == instance.ipv6)
    {
        return further::difference(&instance.options, &one.settings, classes)?
            .conflict("instance", &one.name);
    }
    Difference::default()
        .field("subnet", instance.subnet, one.subnet)
        .field("host", instance.host, one.host)
        .given("mac", Some(instance.mac), one.mac)
        .given("ipv4", instance.ipv4, one.ipv4)
        .given("ipv6", instance.ipv6, one.ipv6)
        .conflict("instance", &one.name)
}

/// Checks that two requests with the same name are equal.
fn check_same_request(first: &NewInstance, second: &NewInstance, classes: &Classes) -> Result<()> {
    let groups = |one: &NewInstance| one.security_groups.as_deref().map(bulk_groups::text);
    Difference::default()
        .field("subnet", first.subnet, second.subnet)
        .field("host", first.host, second.host)
        .optional("mac", first.mac, second.mac)
        .optional("ipv4", first.ipv4, second.ipv4)
        .optional("ipv6", first.ipv6, second.ipv6)
        .optional("security_groups", groups(first), groups(second))
        .conflict("instance", &second.name)?;
    let options = further::with_settings(&InstanceOptions::default(), &first.settings, classes)?;
    further::difference(&options, &second.settings, classes)?.conflict("instance", &second.name)
}

async fn subnets(q: &mut dyn Query, vpc: VpcId) -> Result<Vec<SubnetState>> {
    let sql = format!(
        "SELECT {}, next4, low4, next6, low6 FROM subnets WHERE vpc = $1 ORDER BY id",
        Subnet::COLUMNS
    );
    let rows = q.rows(&sql, args![vpc.get()]).await?;
    let first = Subnet::COLUMNS.split(',').count();
    rows.iter()
        .map(|row| {
            let subnet = Subnet::decode(row)?;
            let cursor = |net, at| Cursor::read(net, row.opt_blob(at)?, row.opt_blob(at + 1)?);
            let cursor4 = cursor(subnet.ipv4.map(IpNet::V4), first)?;
            let cursor6 = cursor(subnet.ipv6.map(IpNet::V6), first + 2)?;
            Ok(SubnetState { subnet, cursor4, cursor6, moved: false })
        })
        .collect()
}
