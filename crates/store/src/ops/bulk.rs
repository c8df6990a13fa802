//! Creation of instances, from one to a million in one transaction.

use super::alloc::{self, Avoided, Family, Ids, Used};
use super::bulk_plan::{BulkPlan, address_taken, in_bulk};
use super::further;
use crate::check;
use crate::codec;
use crate::value::args;
use crate::write::Write;
use crate::{Change, Host, Instance, InstanceOptions, NewInstance, Result, StoreError, Subnet, Vpc};
use sluice_types::{HostId, InstanceId, IpNet, Ipv6Net, VpcId, eui64_address};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// Instances in one row of the outbox.
pub(super) const INSTANCES_PER_ROW: usize = 16384;

/// Result of a bulk creation.
pub(crate) struct Outcome {
    pub created: Vec<Instance>,
    pub existing: Vec<Instance>,
    /// Number of requests that repeat an earlier one with the same name and content.
    pub repeated: usize,
}

/// Creates instances. Sets of security groups that no instance had before get identities up to `max_identity`.
pub(crate) async fn create(
    w: &mut Write,
    vpc: VpcId,
    new: &[NewInstance],
    max_identity: u16,
) -> Result<Outcome> {
    let mut plan = BulkPlan::prepare(w.q(), vpc, new).await?;
    if plan.to_create.is_empty() {
        return Ok(Outcome { created: Vec::new(), existing: plan.existing, repeated: plan.repeated });
    }
    let created = plan.to_create.iter().map(|index| &new[*index]);
    plan.groups.assign(w, &plan.vpc, created, plan.survey.has_groups, max_identity).await?;
    let (made, derived) = build(w, &mut plan).await?;
    let subnets: Vec<Subnet> = plan.subnets.iter().map(|state| state.subnet.clone()).collect();
    let made = Arc::new(made);
    let encoding = Encoding {
        vpc: plan.vpc.clone(),
        subnets: subnets.clone(),
        hosts: std::mem::take(&mut plan.hosts),
        made: made.clone(),
    };
    let parts = if made.len() > INSTANCES_PER_ROW {
        // The rows of the outbox are encoded while the database inserts the instances.
        let encoded = tokio::task::spawn_blocking(move || (encoding.parts(), encoding.changes()));
        w.tx.insert_instances(&made, &derived).await?;
        let failed = |e| StoreError::Corrupt(format!("encoding of instances: {e}"));
        let (parts, changes) = encoded.await.map_err(failed)?;
        w.keep(changes);
        parts
    } else {
        w.tx.insert_instances(&made, &derived).await?;
        encoding.parts()
    };
    let with_settings = if plan.survey.has_settings { plan.to_create.as_slice() } else { &[] };
    if !with_settings.is_empty() {
        w.tx.complete_indexes().await?;
    }
    for (index, instance) in with_settings.iter().zip(made.iter()) {
        if !plan.new[*index].settings.is_empty() {
            let none = InstanceOptions::default();
            let established = further::establish(w, (&plan.vpc, &subnets), &none, instance, &plan.held).await;
            established.map_err(|e| in_bulk(plan.new, *index, e))?;
        }
    }
    for part in parts? {
        w.push_encoded(part);
    }
    save_cursors(w, &plan).await?;
    Ok(Outcome { created: Arc::unwrap_or_clone(made), existing: plan.existing, repeated: plan.repeated })
}

/// Allocated addresses of each subnet, by its position.
type Allocated = Vec<VecDeque<u128>>;

/// The prefix in which IPv6 addresses that requests leave open are derived from MACs.
fn derived_prefix(subnet: &Subnet) -> Option<&Ipv6Net> {
    subnet.ipv6.as_ref().filter(|net| net.prefix_len() == 64)
}

/// How many addresses of one family the requests leave open, by the position of the subnet.
fn wanted(plan: &BulkPlan<'_>, family: Family) -> Vec<usize> {
    let allocates = |subnet: &Subnet| match family {
        Family::V4 => subnet.ipv4.is_some(),
        Family::V6 => subnet.ipv6.is_some_and(|net| net.prefix_len() != 64),
    };
    let mut wanted = vec![0; plan.subnets.len()];
    if let Some(position) = plan.survey.only_subnet().map(|id| plan.position(id)) {
        if allocates(&plan.subnets[position].subnet) {
            wanted[position] = plan.to_create.len();
        }
        return wanted;
    }
    for &index in &plan.to_create {
        let one = &plan.new[index];
        let is_open = match family {
            Family::V4 => one.ipv4.is_none(),
            Family::V6 => one.ipv6.is_none(),
        };
        let position = plan.position(one.subnet);
        if is_open && allocates(&plan.subnets[position].subnet) {
            wanted[position] += 1;
        }
    }
    wanted
}

/// Allocates the addresses of one family that the request leaves open, subnet by subnet.
async fn allocate(w: &mut Write, plan: &mut BulkPlan<'_>, family: Family) -> Result<Allocated> {
    let wanted = wanted(plan, family);
    let (given, held) = match family {
        Family::V4 => (&plan.given.ipv4, &plan.held.ipv4),
        Family::V6 => (&plan.given.ipv6, &plan.held.ipv6),
    };
    let mut avoided = Avoided::default();
    avoided.addresses.extend(given.keys().chain(held.keys()));
    let held = plan.held.prefixes.iter().map(|(net, _)| *net);
    for net in further_of(plan).chain(held).filter(|net| Family::of(*net) == family) {
        match further::range(net) {
            (first, last) if first == last => drop(avoided.addresses.insert(first)),
            // A prefix that contains the subnet takes none of its addresses.
            range
                if plan
                    .subnets
                    .iter()
                    .any(|state| check::prefixes(&state.subnet).any(|of| of.contains(&net))) =>
            {
                avoided.add_range(range);
            }
            _ => {}
        }
    }
    let mut allocated = vec![VecDeque::new(); plan.subnets.len()];
    for (position, count) in wanted.into_iter().enumerate().filter(|(_, count)| *count > 0) {
        let state = &mut plan.subnets[position];
        let cursor = match family {
            Family::V4 => state.cursor4.as_mut(),
            Family::V6 => state.cursor6.as_mut(),
        };
        if let Some(cursor) = cursor {
            let used = Used { vpc: plan.vpc.id, family, subnet: cursor.subnet, is_empty: plan.is_empty };
            allocated[position] = alloc::take(w.q(), used, cursor, count, &avoided).await?;
            state.moved = true;
        }
    }
    Ok(allocated)
}

/// The further addresses and delegated prefixes that the requests assign.
fn further_of(plan: &BulkPlan<'_>) -> impl Iterator<Item = IpNet> {
    let all = if plan.survey.has_settings { plan.to_create.as_slice() } else { &[] };
    all.iter().flat_map(|index| {
        let settings = &plan.new[*index].settings;
        let secondary = settings.secondary_addresses.iter().flatten().copied();
        let pairs = settings.address_pairs.iter().flatten().map(|pair| pair.address);
        let addresses = secondary.chain(pairs).map(IpNet::from);
        addresses.chain(settings.delegated_prefixes.iter().flatten().copied())
    })
}

/// Returns the next free address of the subnet. If the subnet is full, the error names the request.
fn next(
    allocated: &mut Allocated,
    plan: &BulkPlan<'_>,
    index: usize,
    position: usize,
    net: Option<IpNet>,
) -> Result<Option<u128>> {
    let Some(net) = net else { return Ok(None) };
    match allocated[position].pop_front() {
        Some(address) => Ok(Some(address)),
        None => Err(in_bulk(plan.new, index, alloc::subnet_full(&plan.subnets[position].subnet, &net))),
    }
}

async fn build(w: &mut Write, plan: &mut BulkPlan<'_>) -> Result<(Vec<Instance>, Vec<u8>)> {
    let mut ipv4s = allocate(w, plan, Family::V4).await?;
    let mut ipv6s = allocate(w, plan, Family::V6).await?;
    let plan = &*plan;
    let prefixes = plan.survey.subnets.iter().filter_map(|id| derived_prefix(plan.subnet(*id)));
    let prefixes: BTreeSet<Ipv6Net> = prefixes.copied().collect();
    let given6: HashSet<u128> = plan.given.ipv6.keys().copied().collect();
    let mut avoided6: HashSet<u128> = given6.iter().chain(plan.held.ipv6.keys()).copied().collect();
    avoided6
        .extend(further_of(plan).filter(|net| !net.addr().is_ipv4()).map(|net| check::number(net.network())));
    let with_settings = if plan.survey.has_settings { plan.to_create.as_slice() } else { &[] };
    let requested =
        with_settings.iter().flat_map(|index| plan.new[*index].settings.address_pairs.iter().flatten());
    // Of a single request, the MAC address may be the instance's own.
    let of_pairs = requested.filter(|_| plan.to_create.len() > 1).filter_map(|pair| Some(pair.mac?.to_u64()));
    let macs = plan.given.macs.keys().copied().chain(of_pairs).collect();
    let mut ids = Ids::new(plan.vpc.id, plan.is_empty, prefixes.into_iter().collect(), macs, &avoided6);
    let mut made = Vec::with_capacity(plan.to_create.len());
    let mut derived = Vec::with_capacity(plan.to_create.len());
    for (done, &index) in plan.to_create.iter().enumerate() {
        let one = &plan.new[index];
        let position = plan.position(one.subnet);
        let subnet = &plan.subnets[position].subnet;
        let derives_in = derived_prefix(subnet).filter(|_| one.ipv6.is_none());
        if one.mac.is_none() {
            let ahead = plan.to_create.len() - done;
            loop {
                let next = w.peek_id();
                if ids.is_free(w.q(), next, derives_in, ahead).await? {
                    break;
                }
                w.id();
            }
        }
        let id = w.id();
        let mac = one.mac.unwrap_or_else(|| alloc::derived_mac(id));
        let ipv4 = match one.ipv4 {
            Some(given) => Some(given),
            None => next(&mut ipv4s, plan, index, position, subnet.ipv4.map(IpNet::V4))?
                .map(|number| Ipv4Addr::from(number as u32)),
        };
        let ipv6 = match (one.ipv6, derives_in) {
            (Some(given), _) => Some(given),
            (None, Some(net)) => derive(plan, index, net, mac, &given6)?,
            (None, None) => {
                next(&mut ipv6s, plan, index, position, subnet.ipv6.map(IpNet::V6))?.map(Ipv6Addr::from)
            }
        };
        derived.push(alloc::derived_flags(one.mac.is_none(), derives_in.is_some()));
        made.push(Instance {
            id: InstanceId::new(id),
            name: one.name.clone(),
            vpc: plan.vpc.id,
            subnet: one.subnet,
            host: one.host,
            mac,
            ipv4,
            ipv6,
            identity: plan.groups.identity(one),
            options: if with_settings.is_empty() {
                InstanceOptions::default()
            } else {
                further::with_settings(&InstanceOptions::default(), &one.settings, &plan.classes)?
            },
            migration: None,
            revision: w.revision,
        });
    }
    Ok((made, derived))
}

/// The address derived from the MAC.
///
/// # Errors
/// The same request assigns the address to another instance.
fn derive(
    plan: &BulkPlan<'_>,
    index: usize,
    net: &Ipv6Net,
    mac: sluice_types::MacAddr,
    given: &HashSet<u128>,
) -> Result<Option<Ipv6Addr>> {
    let address = eui64_address(net, mac);
    match address.filter(|address| !given.is_empty() && given.contains(&u128::from(*address))) {
        None => Ok(address),
        Some(address) => {
            let owner = plan.given.ipv6[&u128::from(address)];
            Err(in_bulk(plan.new, index, address_taken(address.into(), &plan.new[owner].name)))
        }
    }
}

async fn save_cursors(w: &mut Write, plan: &BulkPlan<'_>) -> Result<()> {
    for state in plan.subnets.iter().filter(|state| state.moved) {
        let bytes = |number: Option<u128>| number.map(|n| n.to_be_bytes().to_vec());
        let (c4, c6) = (state.cursor4, state.cursor6);
        let sql = "UPDATE subnets SET next4 = $2, low4 = $3, next6 = $4, low6 = $5 WHERE id = $1";
        let values = args![
            state.subnet.id.get(),
            bytes(c4.map(|c| c.next)),
            bytes(c4.map(|c| c.low)),
            bytes(c6.map(|c| c.next)),
            bytes(c6.map(|c| c.low)),
        ];
        w.q().run(sql, values).await?;
    }
    Ok(())
}

/// What the rows of the outbox are encoded of.
struct Encoding {
    vpc: Vpc,
    subnets: Vec<Subnet>,
    hosts: HashMap<HostId, Host>,
    made: Arc<Vec<Instance>>,
}

impl Encoding {
    fn hosts_of(&self, part: &[Instance]) -> Vec<Host> {
        let used: BTreeSet<HostId> = part.iter().map(|instance| instance.host).collect();
        used.iter().map(|id| self.hosts[id].clone()).collect()
    }

    /// Encodes the rows.
    fn parts(&self) -> Result<Vec<Vec<u8>>> {
        let part =
            |part: &[Instance]| codec::encode_created(&self.vpc, &self.subnets, &self.hosts_of(part), part);
        self.made.chunks(INSTANCES_PER_ROW).map(part).collect()
    }

    /// What the rows are.
    fn changes(&self) -> Vec<Change> {
        let change = |part: &[Instance]| Change::InstancesCreated {
            vpc: self.vpc.clone(),
            subnets: self.subnets.clone(),
            hosts: self.hosts_of(part),
            instances: part.to_vec(),
        };
        self.made.chunks(INSTANCES_PER_ROW).map(change).collect()
    }
}
