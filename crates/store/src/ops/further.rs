//! What an instance has besides its two addresses: secondary addresses, delegated prefixes, and addresses that it may have
//! in turn with others. The column `instances.options` has all of it; the table `further_addresses` has the addresses and
//! prefixes again, so that they are found by their value. Both are written together, by [`save`].
//!
//! A delegated prefix is either inside one subnet, where it has no address in common with anything else, or it overlaps no
//! subnet but those that it contains completely. So the ranges of the table inside a subnet are the same or disjoint.

use super::alloc::{self, Family};
use super::bulk_plan::VALUES_PER_QUERY;
use super::eips;
use super::nat_gateways;
use super::network_classes::{self, Classes};
use super::pair_macs;
use super::peerings;
use super::removals::{self, HeldAddresses, Hold};
use crate::backend::Query;
use crate::check::{self, Difference, invalid};
use crate::rows::{check_revision, find, get};
use crate::value::{Row, args, list};
use crate::write::Write;
use crate::{
    Change, ClassOfInstance, Conflict, Host, Instance, InstanceChange, InstanceOptions, Mount, Result,
    StoreError, StoredPair, Subnet, Vpc,
};
use sluice_types::{
    HostId, InstanceId, IpNet, MAX_ADDRESS_PAIRS, MAX_DELEGATED_PREFIXES, MAX_DSCP, MAX_RATE_MBPS,
    MAX_SECONDARY_ADDRESSES, MacAddr, PortSettings, RouteId, VpcId, first_host, overlap,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Display;
use std::net::IpAddr;

/// Kind of the removal of what an instance had and has no more.
const ADDRESSES: &str = "former addresses of instance";

/// The options of an instance after a request. `classes` has the network class that the request names.
///
/// # Errors
/// A field has a value that no instance can have.
pub(super) fn with_settings(
    now: &InstanceOptions,
    settings: &PortSettings,
    classes: &Classes,
) -> Result<InstanceOptions> {
    let options = replaced(now, settings, classes)?;
    match (options.qos.rate_mbps, options.network_class.as_deref()) {
        (Some(rate), Some(ClassOfInstance { id, .. })) => {
            let text = format!(
                "an instance has either a rate or a network class, not both: qos.rate_mbps is {rate}, and network_class \
                 is {id}"
            );
            Err(invalid("network_class", text))
        }
        _ => Ok(options),
    }
}

/// The options with the values of a request, each of which is one that instances can have.
fn replaced(now: &InstanceOptions, settings: &PortSettings, classes: &Classes) -> Result<InstanceOptions> {
    let mut options = now.clone();
    if let Some(addresses) = &settings.secondary_addresses {
        options.secondary = sorted("secondary_addresses", addresses, MAX_SECONDARY_ADDRESSES)?;
    }
    if let Some(prefixes) = &settings.delegated_prefixes {
        options.delegated = sorted("delegated_prefixes", prefixes, MAX_DELEGATED_PREFIXES)?;
        options.delegated.iter().try_for_each(|prefix| check_delegated(*prefix))?;
    }
    if let Some(pairs) = &settings.address_pairs {
        let addresses: Vec<IpAddr> = pairs.iter().map(|pair| pair.address).collect();
        sorted("address_pairs", &addresses, MAX_ADDRESS_PAIRS)?;
        let since = |address| now.pairs.iter().find(|pair| pair.address == address)?.held_since;
        let pair = |pair: &sluice_types::AddressPair| {
            pair.mac.map_or(Ok(()), check::mac)?;
            Ok(StoredPair { address: pair.address, mac: pair.mac, held_since: since(pair.address) })
        };
        options.pairs = pairs.iter().map(pair).collect::<Result<_>>()?;
        options.pairs.sort_by_key(|pair| pair.address);
    }
    if let Some(protection) = settings.spoofing_protection {
        options.unprotected = !protection;
    }
    if let Some(qos) = settings.qos {
        if let Some(dscp) = qos.dscp.filter(|dscp| *dscp > MAX_DSCP) {
            return Err(invalid("qos", format!("DSCP {dscp} is not between 0 and {MAX_DSCP}")));
        }
        if let Some(rate) = qos.rate_mbps.filter(|rate| !(1..=MAX_RATE_MBPS).contains(rate)) {
            let text = format!("a rate of {rate} Mbit/s is not between 1 and {MAX_RATE_MBPS}");
            return Err(invalid("qos", text));
        }
        options.qos = qos;
    }
    if let Some(class) = settings.network_class {
        options.network_class = class.map(|id| network_classes::class_of(classes, id)).transpose()?;
    }
    Ok(options)
}

/// The values in ascending order.
///
/// # Errors
/// There are too many, or one is listed twice.
fn sorted<T: Ord + Copy + Display>(field: &str, values: &[T], max: usize) -> Result<Vec<T>> {
    if values.len() > max {
        return Err(invalid(
            field,
            format!("{} values in {field}; at most {max} are possible", values.len()),
        ));
    }
    let mut sorted = values.to_vec();
    sorted.sort();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(invalid(pair[0], format!("{} is listed twice in {field}", pair[0]))),
        None => Ok(sorted),
    }
}

fn check_delegated(prefix: IpNet) -> Result<()> {
    check::destination(prefix)?;
    if prefix.prefix_len() == prefix.max_prefix_len() {
        let text = format!(
            "{prefix} is a single address, and a delegated prefix has at least two: delegate a shorter prefix, or make it \
             a secondary address if it is in the subnet of the instance"
        );
        return Err(invalid(prefix, text));
    }
    Ok(())
}

/// How an existing instance differs from a request with its name.
pub(super) fn difference(
    existing: &InstanceOptions,
    settings: &PortSettings,
    classes: &Classes,
) -> Result<Difference> {
    let wanted = replaced(existing, settings, classes)?;
    let class = |options: &InstanceOptions| options.network_class.as_ref().map(|class| class.id);
    let pairs = |options: &InstanceOptions| list(&options.pairs.iter().map(pair_text).collect::<Vec<_>>());
    let text = |list: String| if list.is_empty() { "empty".to_owned() } else { list };
    Ok(Difference::default()
        .field("secondary_addresses", text(list(&existing.secondary)), text(list(&wanted.secondary)))
        .field("delegated_prefixes", text(list(&existing.delegated)), text(list(&wanted.delegated)))
        .field("address_pairs", text(pairs(existing)), text(pairs(&wanted)))
        .field("spoofing_protection", !existing.unprotected, !wanted.unprotected)
        .field("qos", existing.qos, wanted.qos)
        .optional("network_class", class(existing), class(&wanted)))
}

fn pair_text(pair: &StoredPair) -> String {
    sluice_types::AddressPair { address: pair.address, mac: pair.mac }.to_string()
}

/// A number as the columns `first` and `last` have it.
pub(super) fn bytes(number: u128) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// The lowest and the highest address of a prefix.
pub(super) fn range(net: IpNet) -> (u128, u128) {
    (check::number(net.network()), check::number(net.broadcast()))
}

/// What an instance has in a range of addresses.
pub(super) struct User {
    net: IpNet,
    kind: String,
    instance: InstanceId,
    name: String,
}

impl User {
    fn read(family: Family, row: &Row) -> Result<Self> {
        let (first, last) = (family.address(row.blob(0)?)?, family.address(row.blob(1)?)?);
        let bits = (check::number(first) ^ check::number(last)).count_ones() as u8;
        let net = IpNet::from(first);
        let net = IpNet::new(first, net.max_prefix_len() - bits);
        Ok(Self {
            net: net.map_err(|e| StoreError::Corrupt(e.to_string()))?,
            kind: row.text(2)?.to_owned(),
            instance: InstanceId::new(row.number(3)?),
            name: row.text(4)?.to_owned(),
        })
    }

    /// The instance or mount, for an error.
    fn owner(&self) -> String {
        let kind = if self.kind == MOUNT { "mount" } else { "instance" };
        format!("{kind} `{}`", self.name)
    }

    /// The error for an address that is, or is inside, what this instance has.
    pub fn conflict(&self, address: IpAddr) -> StoreError {
        let (address, instance) = (address.to_string(), self.name.clone());
        match self.kind.as_str() {
            "prefix" => Conflict::AddressDelegated { address, prefix: self.net.to_string(), instance },
            "pair" => Conflict::AddressIsPair { address, instance },
            MOUNT => Conflict::AddressIsMounted { address, mount: instance },
            _ => Conflict::AddressTaken { address, instance },
        }
        .into()
    }
}

/// Kind of the addresses of a mount, whose id is that of an instance there.
const MOUNT: &str = "mount";

const USER_COLUMNS: &str = "f.first, f.last, f.kind, f.instance, COALESCE(i.name, m.name)";

/// What has these columns: an instance or a mount.
const USERS: &str =
    "further_addresses f LEFT JOIN instances i ON i.id = f.instance LEFT JOIN mounts m ON m.id = f.instance";

/// The others' further addresses and prefixes in `net` that have an address in common with `range`, which is inside `net`:
/// the lowest of those that begin in `range`, and one that begins before it.
async fn users(q: &mut dyn Query, after: &Instance, net: IpNet, range: IpNet) -> Result<Vec<User>> {
    let family = Family::of(range);
    let ((lowest, highest), (first, last)) = (self::range(net), self::range(range));
    let select =
        format!("SELECT {USER_COLUMNS} FROM {USERS} WHERE f.vpc = $1 AND f.family = $2 AND f.instance <> $3");
    let of = || args![after.vpc.get(), family.number(), after.id.get()];
    let within = format!("{select} AND f.first BETWEEN $4 AND $5 AND f.last <= $6 ORDER BY f.first");
    let mut rows = Vec::new();
    if first < last {
        let mut values = of();
        values.extend(args![bytes(first), bytes(last), bytes(highest)]);
        rows = q.rows(&format!("{within}, f.kind LIMIT 1"), values).await?;
    }
    // The last one that begins before `range`; for a single address, the last one up to it.
    let until = if first < last { first.checked_sub(1) } else { Some(first) };
    if let Some(until) = until.filter(|until| *until >= lowest) {
        let mut values = of();
        values.extend(args![bytes(lowest), bytes(until), bytes(highest)]);
        rows.extend(q.rows(&format!("{within} DESC LIMIT 1"), values).await?);
    }
    let users = rows.iter().map(|row| User::read(family, row)).collect::<Result<Vec<_>>>()?;
    Ok(users.into_iter().filter(|user| overlap(&user.net, &range)).collect())
}

/// The name of another instance that has an address of its own, no further one, in this range.
async fn primary_user(q: &mut dyn Query, after: &Instance, range: IpNet) -> Result<Option<(IpAddr, String)>> {
    let (first, last) = self::range(range);
    let (vpc, id) = (after.vpc.get(), after.id.get());
    if let IpNet::V4(_) = range {
        let sql = "SELECT ipv4, name FROM instances WHERE vpc = $1 AND ipv4 IS NOT NULL AND ipv4 BETWEEN $2 AND $3 \
                   AND id <> $4 ORDER BY ipv4 LIMIT 1";
        let row = q.row(sql, args![vpc, first as u64, last as u64, id]).await?;
        return row
            .map(|row| Ok((crate::rows::ipv4(row.int(0)?)?.into(), row.text(1)?.to_owned())))
            .transpose();
    }
    // The index has requested addresses only. Of derived ones, those of requested MACs are searched in the index of MACs;
    // a prefix cannot contain those that are derived from ids.
    let given = "SELECT ipv6, name FROM instances WHERE vpc = $1 AND ipv6 IS NOT NULL AND derived IN (0, 1) \
                 AND ipv6 BETWEEN $2 AND $3 AND id <> $4 LIMIT 1";
    let derived = "SELECT ipv6, name FROM instances WHERE vpc = $1 AND derived IN (0, 2) AND ipv6 BETWEEN $2 AND $3 \
                   AND id <> $4 LIMIT 1";
    // Whether a single address is a derived one follows from the MAC address in it, below.
    let queries: &[&str] = if first == last { &[given] } else { &[given, derived] };
    for sql in queries {
        if let Some(row) = q.row(sql, args![vpc, bytes(first), bytes(last), id]).await? {
            return Ok(Some((crate::rows::ipv6(row.blob(0)?)?.into(), row.text(1)?.to_owned())));
        }
    }
    let Some(mac) = alloc::eui64_mac(first).filter(|_| first == last) else { return Ok(None) };
    let owners = alloc::mac_owners(q, after.vpc, &[mac]).await?;
    let owner =
        owners.into_iter().find(|owner| owner.derived_ipv6 == Some(first) && owner.name != after.name);
    Ok(owner.map(|owner| (range.addr(), owner.name)))
}

/// Checks that an instance may have another address or pair.
async fn check_address(
    q: &mut dyn Query,
    subnet: &Subnet,
    after: &Instance,
    address: IpAddr,
    pair: Option<&StoredPair>,
    held: &HeldAddresses,
) -> Result<()> {
    let text = || address.to_string();
    if let Some((_, instance)) = primary_user(q, after, address.into()).await? {
        return Err(Conflict::AddressTaken { address: text(), instance }.into());
    }
    let net = check::prefixes(subnet).find(|net| net.contains(&address));
    if let Some(user) = users(q, after, net.unwrap_or(address.into()), address.into()).await?.pop() {
        let Some(pair) = pair.filter(|_| user.kind == "pair") else { return Err(user.conflict(address)) };
        let other: Instance = get(q, user.instance).await?;
        let theirs = other.options.pairs.iter().find(|other| other.address == address);
        return match theirs.filter(|theirs| theirs.mac != pair.mac) {
            // Nothing else has it, and what others have given up does not matter: they shared it as well.
            None => Ok(()),
            Some(theirs) => {
                let theirs = pair_text(theirs);
                Err(Conflict::PairDiffers { given: pair_text(pair), instance: user.name, theirs }.into())
            }
        };
    }
    match held.conflicting(address.into(), net) {
        Some((what, revision)) => Err(removals::conflict(q, what, revision).await?),
        None => Ok(()),
    }
}

/// Checks that a mount may have an address of a subnet: nothing else has it.
pub(super) async fn check_mountable(
    q: &mut dyn Query,
    subnet: &Subnet,
    address: IpAddr,
    held: &HeldAddresses,
) -> Result<()> {
    // A new mount excludes no instance: no id is 0, and no name is empty.
    let nothing = Instance {
        id: InstanceId::new(0),
        name: String::new(),
        vpc: subnet.vpc,
        subnet: subnet.id,
        host: HostId::new(0),
        mac: MacAddr::local(0),
        ipv4: None,
        ipv6: None,
        identity: 0,
        options: InstanceOptions::default(),
        migration: None,
        revision: 0,
    };
    check_address(q, subnet, &nothing, address, None, held).await
}

/// Whether a prefix has addresses that instances without a requested MAC derive in the /64: those of ids below 2^32,
/// which no cloud exceeds.
fn has_derived_addresses(prefix: IpNet) -> bool {
    let mask = u128::from(u64::MAX) & !(u128::MAX >> prefix.prefix_len().min(127));
    let fixed = 0xffff_00ff_ff00_0000_u128;
    let pattern = 0x0000_00ff_fe00_0000_u128;
    (check::number(prefix.network()) ^ pattern) & mask & fixed == 0
}

/// Checks that an instance may have another prefix.
async fn check_prefix(
    q: &mut dyn Query,
    vpc: &Vpc,
    subnets: &[Subnet],
    after: &Instance,
    prefix: IpNet,
    held: &HeldAddresses,
) -> Result<()> {
    let nets = || subnets.iter().flat_map(|subnet| check::prefixes(subnet).map(move |net| (net, subnet)));
    let around = nets().find(|(net, _)| net.contains(&prefix));
    if let Some((net, subnet)) = around {
        check_prefix_inside(q, (net, subnet), after, prefix).await?;
    } else {
        let sql = format!(
            "SELECT {USER_COLUMNS} FROM {USERS} WHERE f.vpc = $1 \
             AND f.family = $2 AND f.first = $3 AND f.last = $4 AND f.kind = 'prefix' AND f.instance <> $5"
        );
        let (family, (first, last)) = (Family::of(prefix), range(prefix));
        let values = args![vpc.id.get(), family.number(), bytes(first), bytes(last), after.id.get()];
        if let Some(row) = q.row(&sql, values).await? {
            return Err(taken(prefix, User::read(family, &row)?));
        }
    }
    check_routes(q, vpc, prefix).await?;
    nat_gateways::check_not_nat64(q, vpc.id, prefix, |new, nat64| nat64.contains(new)).await?;
    match held.conflicting(prefix, around.map(|(net, _)| net)) {
        Some((what, revision)) => Err(removals::conflict(q, what, revision).await?),
        None => Ok(()),
    }
}

fn taken(prefix: IpNet, user: User) -> StoreError {
    let (prefix, existing) = (prefix.to_string(), user.net.to_string());
    Conflict::PrefixTaken { prefix, existing, instance: user.name }.into()
}

/// Checks a prefix inside a prefix of a subnet.
async fn check_prefix_inside(
    q: &mut dyn Query,
    (net, subnet): (IpNet, &Subnet),
    after: &Instance,
    prefix: IpNet,
) -> Result<()> {
    let contains = |address: IpAddr, owner: String| {
        StoreError::from(Conflict::PrefixContains {
            prefix: prefix.to_string(),
            address: address.to_string(),
            owner,
        })
    };
    if let Some(router) = first_host(&net).filter(|router| prefix.contains(router)) {
        return Err(contains(router, format!("the router of subnet `{}`", subnet.name)));
    }
    if net.prefix_len() == 64 && !prefix.addr().is_ipv4() && has_derived_addresses(prefix) {
        let text = format!(
            "{prefix} contains addresses that instances of subnet `{}` derive from their MAC addresses (EUI-64)",
            subnet.name
        );
        return Err(invalid(prefix, text));
    }
    if let Some((address, name)) = primary_user(q, after, prefix).await? {
        return Err(contains(address, format!("instance `{name}`")));
    }
    match users(q, after, net, prefix).await?.into_iter().next() {
        None => Ok(()),
        Some(user) if user.kind == "prefix" => Err(taken(prefix, user)),
        Some(user) => Err(contains(user.net.addr(), user.owner())),
    }
}

/// Checks that the VPC has no route with this destination, neither of its route table nor to a subnet of a peer.
async fn check_routes(q: &mut dyn Query, vpc: &Vpc, prefix: IpNet) -> Result<()> {
    let is_route = |owner| StoreError::from(Conflict::PrefixIsRoute { prefix: prefix.to_string(), owner });
    let sql = "SELECT id FROM routes WHERE prefix = $2 AND route_table IN \
               (SELECT id FROM route_tables WHERE vpc = $1)";
    if let Some(row) = q.row(sql, args![vpc.id.get(), prefix.to_string()]).await? {
        return Err(is_route(format!("route {}", RouteId::new(row.number(0)?))));
    }
    for peer in peerings::peers(q, vpc.id).await? {
        for subnet in find::<Subnet>(q, vec![("vpc", peer.id.get().into())]).await? {
            if check::prefixes(&subnet).any(|net| net == prefix) {
                return Err(is_route(format!("subnet `{}` of the peered VPC `{}`", subnet.name, peer.name)));
            }
        }
    }
    Ok(())
}

/// Checks that no instance of a VPC has a delegated prefix that equals one of these, which become destinations of routes.
pub(super) async fn check_not_delegated(
    q: &mut dyn Query,
    vpc: VpcId,
    prefixes: &[IpNet],
    owner: impl Fn() -> String,
) -> Result<()> {
    for prefix in prefixes {
        let (family, (first, last)) = (Family::of(*prefix), range(*prefix));
        let sql = "SELECT i.name FROM further_addresses f JOIN instances i ON i.id = f.instance WHERE f.vpc = $1 \
                   AND f.family = $2 AND f.first = $3 AND f.last = $4 AND f.kind = 'prefix'";
        if let Some(row) = q.row(sql, args![vpc.get(), family.number(), bytes(first), bytes(last)]).await? {
            let (existing, instance) = (prefix.to_string(), row.text(0)?.to_owned());
            return Err(Conflict::RouteIsDelegated { prefix: existing, instance, owner: owner() }.into());
        }
    }
    Ok(())
}

/// A delegated prefix inside this prefix, or the same one, and its instance.
pub(super) async fn delegated_in(
    q: &mut dyn Query,
    vpc: VpcId,
    net: IpNet,
) -> Result<Option<(IpNet, String)>> {
    let (family, (first, last)) = (Family::of(net), range(net));
    let sql = format!(
        "SELECT {USER_COLUMNS} FROM {USERS} WHERE f.vpc = $1 \
         AND f.family = $2 AND f.first BETWEEN $3 AND $4 AND f.last <= $5 AND f.kind = 'prefix' ORDER BY f.first LIMIT 1"
    );
    let values = args![vpc.get(), family.number(), bytes(first), bytes(last), bytes(last)];
    let row = q.row(&sql, values).await?;
    row.map(|row| User::read(family, &row).map(|user| (user.net, user.name))).transpose()
}

/// Checks that the addresses and prefixes of an instance do not conflict with each other.
fn check_own(subnets: &[Subnet], subnet: &Subnet, after: &Instance) -> Result<()> {
    let InstanceOptions { secondary, delegated, pairs, .. } = &after.options;
    let is_inside =
        |prefix: &&IpNet| subnets.iter().flat_map(check::prefixes).any(|net| net.contains(*prefix));
    let inside: Vec<&IpNet> = delegated.iter().filter(is_inside).collect();
    let singles = secondary.iter().copied().chain(pairs.iter().map(|pair| pair.address));
    for (index, address) in singles.enumerate() {
        check::unicast(address)?;
        check::address(subnet, address)?;
        let is_pair = index >= secondary.len();
        if after.addresses().any(|own| own == address) || is_pair && secondary.contains(&address) {
            return Err(Conflict::AddressTaken {
                address: address.to_string(),
                instance: after.name.clone(),
            }
            .into());
        }
        if let Some(prefix) = inside.iter().find(|prefix| prefix.contains(&address)) {
            let (address, prefix, instance) = (address.to_string(), prefix.to_string(), after.name.clone());
            return Err(Conflict::AddressDelegated { address, prefix, instance }.into());
        }
    }
    for (index, prefix) in inside.iter().enumerate() {
        if let Some(other) = inside[..index].iter().find(|other| overlap(other, prefix)) {
            let (prefix, existing, instance) = (prefix.to_string(), other.to_string(), after.name.clone());
            return Err(Conflict::PrefixTaken { prefix, existing, instance }.into());
        }
    }
    Ok(())
}

/// The further addresses and delegated prefixes of a VPC that matter to some addresses.
pub(super) struct FurtherUsers {
    addresses: HashMap<IpAddr, User>,
    /// Of both families.
    prefixes: BTreeMap<(IpAddr, u8), User>,
    subnets: Vec<IpNet>,
}

impl FurtherUsers {
    /// Reads them; `None` if the VPC has none.
    pub async fn read(q: &mut dyn Query, vpc: VpcId, wanted: &[(IpAddr, usize)]) -> Result<Option<Self>> {
        if wanted.is_empty()
            || !q.any("SELECT vpc FROM further_addresses WHERE vpc = $1 LIMIT 1", args![vpc.get()]).await?
        {
            return Ok(None);
        }
        let from = format!("SELECT {USER_COLUMNS} FROM {USERS}");
        let subnets: Vec<Subnet> = find(q, vec![("vpc", vpc.get().into())]).await?;
        let subnets = subnets.iter().flat_map(check::prefixes).collect();
        let mut found = Self { addresses: HashMap::new(), prefixes: BTreeMap::new(), subnets };
        for family in [Family::V4, Family::V6] {
            let of = || args![vpc.get(), family.number()];
            let sql = format!("{from} WHERE f.vpc = $1 AND f.family = $2 AND f.kind = 'prefix'");
            for row in q.rows(&sql, of()).await? {
                let user = User::read(family, &row)?;
                found.prefixes.insert((user.net.network(), user.net.prefix_len()), user);
            }
            let sql = format!(
                "{from} WHERE f.vpc = $1 AND f.family = $2 AND f.kind <> 'prefix' AND f.first = ANY($3)"
            );
            let of_family = wanted.iter().filter(|(address, _)| Family::of((*address).into()) == family);
            let numbers: Vec<Vec<u8>> =
                of_family.map(|(address, _)| bytes(check::number(*address))).collect();
            for numbers in numbers.chunks(VALUES_PER_QUERY) {
                let mut values = of();
                values.push(numbers.to_vec().into());
                for row in q.rows(&sql, values).await? {
                    let user = User::read(family, &row)?;
                    found.addresses.insert(user.net.addr(), user);
                }
            }
        }
        let subnets = &found.subnets;
        found.prefixes.retain(|_, user| subnets.iter().any(|net| net.contains(&user.net)));
        Ok(Some(found))
    }

    /// What has an address of a subnet.
    pub fn of(&self, address: IpAddr) -> Option<&User> {
        // Prefixes inside subnets are disjoint.
        let prefix = || self.prefixes.range(..=(address, u8::MAX)).next_back().map(|(_, user)| user);
        self.addresses.get(&address).or_else(|| prefix().filter(|user| user.net.contains(&address)))
    }
}

/// Checks what an instance has more than before, and stores its options. `subnets` are those of the VPC.
pub(super) async fn establish(
    w: &mut Write,
    (vpc, subnets): (&Vpc, &[Subnet]),
    before: &InstanceOptions,
    after: &Instance,
    held: &HeldAddresses,
) -> Result<()> {
    let missing = || StoreError::Corrupt(format!("{} has no subnet", after.id));
    let subnet = subnets.iter().find(|subnet| subnet.id == after.subnet).ok_or_else(missing)?;
    check_own(subnets, subnet, after)?;
    pair_macs::check(w.q(), before, after).await?;
    for address in after.options.secondary.iter().filter(|address| !before.secondary.contains(address)) {
        check_address(w.q(), subnet, after, *address, None, held).await?;
    }
    let listed =
        |pair: &StoredPair| before.pairs.iter().any(|old| (old.address, old.mac) == (pair.address, pair.mac));
    for pair in after.options.pairs.iter().filter(|pair| !listed(pair)) {
        check_address(w.q(), subnet, after, pair.address, Some(pair), held).await?;
    }
    for prefix in after.options.delegated.iter().filter(|prefix| !before.delegated.contains(prefix)) {
        check_prefix(w.q(), vpc, subnets, after, *prefix, held).await?;
    }
    if *before != InstanceOptions::default() {
        forget(w.q(), after.id).await?;
    }
    store(w.q(), after).await
}

/// Stores the options and the revision of an instance, in place of those before.
pub(super) async fn save(q: &mut dyn Query, instance: &Instance) -> Result<()> {
    forget(q, instance.id).await?;
    store(q, instance).await
}

/// Stores the options and the revision of an instance of which the table of further addresses has nothing.
async fn store(q: &mut dyn Query, instance: &Instance) -> Result<()> {
    let options = &instance.options;
    let class = options.network_class.as_ref().map(|class| class.id.get() as i64);
    let listed = InstanceOptions { network_class: None, ..options.clone() };
    let text = match listed == InstanceOptions::default() {
        true => None,
        false => Some(serde_json::to_string(&listed).map_err(|e| StoreError::Corrupt(e.to_string()))?),
    };
    let (vpc, id) = (instance.vpc.get(), instance.id.get());
    let sql = "UPDATE instances SET options = $2, revision = $3, network_class = $4 WHERE id = $1";
    q.run(sql, args![id, text, instance.revision, class]).await?;
    let secondary = options.secondary.iter().map(|address| (IpNet::from(*address), "secondary", false, 0));
    let prefixes = options.delegated.iter().map(|prefix| (*prefix, "prefix", false, 0));
    let pairs = options
        .pairs
        .iter()
        .map(|pair| (IpNet::from(pair.address), "pair", pair.is_held(), pair.mac.map_or(0, MacAddr::to_u64)));
    let (mut rows, mut values) = (Vec::new(), Vec::new());
    for (net, kind, held, mac) in secondary.chain(prefixes).chain(pairs) {
        let (family, (first, last), at) = (Family::of(net), range(net), values.len());
        rows.push(format!(
            "({})",
            (at + 1..=at + 8).map(|number| format!("${number}")).collect::<Vec<_>>().join(", ")
        ));
        values.extend(args![vpc, family.number(), bytes(first), bytes(last), kind, id, held, mac]);
    }
    if !rows.is_empty() {
        // At most 64 rows of 8 values: less than any database permits.
        let columns = "vpc, family, first, last, kind, instance, held, mac";
        let sql = format!("INSERT INTO further_addresses ({columns}) VALUES {}", rows.join(", "));
        q.run(&sql, values).await?;
    }
    Ok(())
}

/// Adds the addresses of a mount to the table in which they are found.
pub(super) async fn save_mount(q: &mut dyn Query, mount: &Mount) -> Result<()> {
    for address in mount.addresses() {
        let (net, id) = (IpNet::from(address), mount.id.get());
        let (family, (first, last)) = (Family::of(net), range(net));
        let sql = "INSERT INTO further_addresses (vpc, family, first, last, kind, instance, held, mac) \
                   VALUES ($1, $2, $3, $4, $5, $6, 0, 0)";
        let values = args![mount.vpc.get(), family.number(), bytes(first), bytes(last), MOUNT, id];
        q.run(sql, values).await?;
    }
    Ok(())
}

/// Removes the further addresses of an instance or a mount from the table in which they are found.
pub(super) async fn forget(q: &mut dyn Query, instance: InstanceId) -> Result<()> {
    q.run("DELETE FROM further_addresses WHERE instance = $1", args![instance.get()]).await.map(drop)
}

/// Frees what an instance had and has no more, in the allocation of its VPC, and returns what must be held until nodes
/// have removed it. That includes addresses of pairs which others list: the node of this instance may be the last that has
/// one when the others have given it up.
pub(super) async fn release(
    q: &mut dyn Query,
    vpc: VpcId,
    before: &InstanceOptions,
    after: &InstanceOptions,
) -> Result<Vec<Hold>> {
    let singles = |options: &InstanceOptions| {
        let pairs = options.pairs.iter().map(|pair| pair.address);
        options.secondary.iter().copied().chain(pairs).collect::<BTreeSet<IpAddr>>()
    };
    // A secondary address that becomes a pair stays in use, and the reverse.
    let mut gone: Vec<IpNet> = (&singles(before) - &singles(after)).into_iter().map(IpNet::from).collect();
    gone.extend(before.delegated.iter().filter(|prefix| !after.delegated.contains(prefix)));
    if gone.is_empty() {
        return Ok(Vec::new());
    }
    let subnets: Vec<Subnet> = find(q, vec![("vpc", vpc.get().into())]).await?;
    for net in &gone {
        if let Some(subnet) = subnets.iter().find(|subnet| check::prefixes(subnet).any(|of| of.contains(net)))
        {
            alloc::free(q, subnet.id.get(), net.network()).await?;
        }
    }
    Ok(gone.into_iter().map(|net| Hold::of(vpc, net)).collect())
}

/// Changes the options of an instance.
pub(crate) async fn update(
    w: &mut Write,
    id: InstanceId,
    settings: &PortSettings,
    expected: Option<u64>,
) -> Result<Instance> {
    let before: Instance = get(w.q(), id).await?;
    check_revision(id, &before, expected)?;
    let classes = network_classes::named_by(w.q(), settings).await?;
    let options = with_settings(&before.options, settings, &classes)?;
    if options == before.options {
        return Ok(before);
    }
    let after = Instance { options, revision: w.revision, ..before.clone() };
    eips::check_addresses(w.q(), &after).await?;
    let vpc: Vpc = get(w.q(), after.vpc).await?;
    let held = HeldAddresses::read(w.q(), vpc.id).await?;
    let subnets: Vec<Subnet> = find(w.q(), vec![("vpc", vpc.id.get().into())]).await?;
    establish(w, (&vpc, &subnets), &before.options, &after, &held).await?;
    let holds = release(w.q(), vpc.id, &before.options, &after.options).await?;
    let host: Host = get(w.q(), after.host).await?;
    let mut nodes = removals::gateways_of(w.q(), &vpc).await?;
    let changes = vec![InstanceChange { before: before.options, after: after.clone() }];
    w.push(&Change::InstancesChanged { vpc, hosts: vec![host], changes })?;
    if !holds.is_empty() {
        nodes.extend(removals::hosts_of(w.q(), &after).await?);
        nodes.extend(removals::previous_hosts(w.q(), id).await?);
        removals::record(w, (ADDRESSES, id.get(), &after.name), nodes, &holds).await?;
    }
    Ok(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a prefix that would make the search for an id endless, and one that is refused without a reason.
    #[test]
    fn derived_addresses_are_recognized() {
        for (prefix, expected) in [
            ("2001:db8::ff:fe00:0/104", true),
            ("2001:db8::ff:fe00:100/120", true),
            ("2001:db8::12ff:fe00:0/96", true),
            ("2001:db8::8000:0:0/81", true),
            ("2001:db8:0:0:1::/80", false),
            ("2001:db8::ff:fd00:0/104", false),
            ("2001:db8::100/120", false),
            ("2001:db8:0:0:8000::/65", false),
        ] {
            assert_eq!(has_derived_addresses(prefix.parse().unwrap()), expected, "{prefix}");
        }
    }
}
