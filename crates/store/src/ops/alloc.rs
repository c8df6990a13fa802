//! Allocation of addresses and MACs. Until all addresses of a subnet were allocated once, it takes time in
//! proportion to what is allocated; after that, also to the used addresses that it skips.

use crate::backend::Query;
use crate::check;
use crate::rows::{DERIVED_IPV6, DERIVED_MAC, ipv6};
use crate::value::{Row, Value, args};
use crate::{Result, StoreError, Subnet};
use sluice_types::{IpNet, Ipv6Net, MacAddr, VpcId, eui64_address};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::net::IpAddr;

/// Smallest and largest number of used addresses to read at once.
const READ_AHEAD: (usize, usize) = (256, 65536);

/// An address family.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub fn of(net: IpNet) -> Self {
        if net.addr().is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// The number that stands for it in the table of further addresses.
    pub fn number(self) -> u64 {
        match self {
            Self::V4 => 4,
            Self::V6 => 6,
        }
    }

    /// The address in a column of the table of further addresses.
    pub fn address(self, bytes: &[u8]) -> Result<IpAddr> {
        let v6 = ipv6(bytes)?;
        match self {
            Self::V4 => crate::rows::ipv4(u128::from(v6) as i64).map(IpAddr::V4),
            Self::V6 => Ok(v6.into()),
        }
    }

    /// The address as its column holds it.
    fn value(self, number: u128) -> Value {
        match self {
            Self::V4 => Value::Int(Some(number as i64)),
            Self::V6 => number.to_be_bytes().to_vec().into(),
        }
    }
}

/// State of the search for free addresses of a subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// This address and all higher ones were never allocated.
    pub next: u128,
    /// All addresses below this one are in use.
    pub low: u128,
    /// Lowest and highest address of the subnet.
    pub subnet: (u128, u128),
    /// Last address of the subnet that instances can have.
    pub last: u128,
}

impl Cursor {
    /// Reads the columns of a subnet; `None` if it has no prefix of the family.
    pub fn read(net: Option<IpNet>, next: Option<&[u8]>, low: Option<&[u8]>) -> Result<Option<Self>> {
        let (Some(net), Some(next), Some(low)) = (net, next, low) else { return Ok(None) };
        let number = |bytes: &[u8]| ipv6(bytes).map(u128::from);
        let (last, subnet) = (check::usable(&net).1, super::further::range(net));
        Ok(Some(Self { next: number(next)?, low: number(low)?, subnet, last }))
    }
}

/// Allocates up to `count` addresses, fewer if the subnet has no more: first the lowest that were never
/// allocated, then the lowest free ones. Those in `avoided` are skipped.
pub(crate) async fn take(
    q: &mut dyn Query,
    used: Used,
    cursor: &mut Cursor,
    count: usize,
    avoided: &Avoided,
) -> Result<VecDeque<u128>> {
    let mut taken = VecDeque::with_capacity(count);
    // If the first sweep finds too few addresses, all from here on are in use.
    let swept = cursor.next;
    sweep(q, used, &mut cursor.next, cursor.last, count, avoided, &mut taken).await?;
    sweep(q, used, &mut cursor.low, swept - 1, count, avoided, &mut taken).await?;
    Ok(taken)
}

/// Reads the used addresses of a VPC.
#[derive(Clone, Copy)]
pub(crate) struct Used {
    pub vpc: VpcId,
    pub family: Family,
    /// Lowest and highest address of the subnet.
    pub subnet: (u128, u128),
    /// True if the VPC has no instance and no mount, so that nothing needs to be read.
    pub is_empty: bool,
}

impl Used {
    /// Used ranges that begin from `from` to `last`, ascending, and the number below which all of them are known. Ranges
    /// of further addresses may begin before `from`.
    async fn read(
        &self,
        q: &mut dyn Query,
        from: u128,
        last: u128,
        limit: usize,
    ) -> Result<(VecDeque<(u128, u128)>, u128)> {
        let own = match self.family {
            Family::V4 => {
                "SELECT ipv4 FROM instances WHERE vpc = $1 AND ipv4 IS NOT NULL \
                 AND ipv4 BETWEEN $2 AND $3 ORDER BY ipv4 LIMIT $4"
            }
            Family::V6 => {
                "SELECT ipv6 FROM instances WHERE vpc = $1 AND ipv6 IS NOT NULL AND derived IN (0, 1) \
                 AND ipv6 BETWEEN $2 AND $3 ORDER BY ipv6 LIMIT $4"
            }
        };
        let values = vec![
            self.vpc.get().into(),
            self.family.value(from),
            self.family.value(last),
            Value::Int(Some(limit as i64)),
        ];
        let rows = q.rows(own, values).await?;
        let number = |row: &Row| match self.family {
            Family::V4 => row.number(0).map(u128::from),
            Family::V6 => ipv6(row.blob(0)?).map(u128::from),
        };
        let own: Vec<_> = rows.iter().map(|row| number(row).map(|n| (n, n))).collect::<Result<_>>()?;
        let further = self.further(q, from, last, limit).await?;
        // What a query that reached its limit did not return begins behind the last that it did.
        let known_until = |ranges: &[(u128, u128)]| match ranges.last() {
            Some((first, _)) if ranges.len() >= limit => first + 1,
            _ => last + 1,
        };
        let until = known_until(&own).min(known_until(&further));
        let mut all: Vec<_> = own.into_iter().chain(further).filter(|(first, _)| *first < until).collect();
        all.sort_unstable();
        Ok((all.into(), until))
    }

    /// The ranges of further addresses and delegated prefixes that [`Used::read`] reads. Prefixes that contain the whole subnet do not count.
    async fn further(
        &self,
        q: &mut dyn Query,
        from: u128,
        last: u128,
        limit: usize,
    ) -> Result<Vec<(u128, u128)>> {
        let bytes = |number: u128| number.to_be_bytes().to_vec();
        let sql = "SELECT DISTINCT first, last FROM further_addresses WHERE vpc = $1 AND family = $2 \
                   AND first BETWEEN $3 AND $4 AND last <= $5 ORDER BY first LIMIT $6";
        let (lowest, highest) = self.subnet;
        let values = args![
            self.vpc.get(),
            self.family.number(),
            bytes(from),
            bytes(last),
            bytes(highest),
            limit as u64
        ];
        let mut rows = q.rows(sql, values).await?;
        if from > lowest {
            // Ranges inside a subnet are disjoint: only the last one that begins before may reach beyond `from`.
            let sql = "SELECT first, last FROM further_addresses WHERE vpc = $1 AND family = $2 \
                       AND first BETWEEN $3 AND $4 AND last <= $5 ORDER BY first DESC LIMIT 1";
            let values =
                args![self.vpc.get(), self.family.number(), bytes(lowest), bytes(from - 1), bytes(highest)];
            let before = q.rows(sql, values).await?;
            rows.splice(0..0, before);
        }
        let range = |row: &Row| Ok((ipv6(row.blob(0)?)?.into(), ipv6(row.blob(1)?)?.into()));
        rows.iter().map(range).collect()
    }
}

/// What allocation skips besides what is in use: what the same request assigns, and what is held.
#[derive(Default)]
pub(crate) struct Avoided {
    pub addresses: HashSet<u128>,
    /// Last address by first one, disjoint.
    ranges: BTreeMap<u128, u128>,
}

impl Avoided {
    /// Adds a range. What overlaps becomes one.
    pub fn add_range(&mut self, (mut first, mut last): (u128, u128)) {
        while let Some((&from, &until)) =
            self.ranges.range(..=last).next_back().filter(|(_, until)| **until >= first)
        {
            self.ranges.remove(&from);
            (first, last) = (first.min(from), last.max(until));
        }
        self.ranges.insert(first, last);
    }

    /// The last address of what contains this one.
    fn until(&self, address: u128) -> Option<u128> {
        if self.addresses.contains(&address) {
            return Some(address);
        }
        self.ranges.range(..=address).next_back().map(|(_, last)| *last).filter(|last| *last >= address)
    }
}

/// Collects free addresses from `start` to `last` into `taken`, until it has `count`. Moves `start` ahead.
async fn sweep(
    q: &mut dyn Query,
    used: Used,
    start: &mut u128,
    last: u128,
    count: usize,
    avoided: &Avoided,
    taken: &mut VecDeque<u128>,
) -> Result<()> {
    let limit = count.clamp(READ_AHEAD.0, READ_AHEAD.1);
    let mut known = VecDeque::new();
    // Used ranges that begin before this one are all in `known`.
    let mut known_until = if used.is_empty { last + 1 } else { *start };
    while taken.len() < count && *start <= last {
        if *start >= known_until {
            (known, known_until) = used.read(q, *start, last, limit).await?;
        }
        let address = *start;
        while known.front().is_some_and(|(_, end)| *end < address) {
            known.pop_front();
        }
        let in_use = known.front().filter(|(first, _)| *first <= address).map(|(_, end)| *end);
        match in_use.or_else(|| avoided.until(address)) {
            Some(end) => *start = end + 1,
            None => {
                taken.push_back(address);
                *start += 1;
            }
        }
    }
    Ok(())
}

/// The MAC of an instance for which none was requested.
pub(crate) fn derived_mac(id: u64) -> MacAddr {
    MacAddr::local(id)
}

/// The id of the instance whose derived MAC this would be, if it has the form of one.
fn mac_to_id(mac: MacAddr) -> Option<u64> {
    let id = mac.to_u64() & 0xff_ffff_ffff;
    (derived_mac(id) == mac).then_some(id)
}

/// The MAC from which the interface identifier of an IPv6 address is derived (EUI-64).
pub(crate) fn eui64_mac(address: u128) -> Option<MacAddr> {
    let [a, b, c, 0xff, 0xfe, d, e, f] = (address as u64).to_be_bytes() else { return None };
    Some(MacAddr::new([a ^ 2, b, c, d, e, f]))
}

/// An instance found by its MAC.
pub(crate) struct MacOwner {
    pub mac: MacAddr,
    /// IPv6 address of the instance, if it is derived from the MAC.
    pub derived_ipv6: Option<u128>,
    pub name: String,
}

/// The instances of the VPC that have one of these MACs, requested or derived.
pub(crate) async fn mac_owners(q: &mut dyn Query, vpc: VpcId, macs: &[MacAddr]) -> Result<Vec<MacOwner>> {
    let numbers: Vec<i64> = macs.iter().map(|mac| mac.to_u64() as i64).collect();
    let ids: Vec<i64> = macs.iter().filter_map(|mac| mac_to_id(*mac)).map(|id| id as i64).collect();
    let given = "SELECT mac, ipv6, derived, name FROM instances WHERE vpc = $1 AND derived IN (0, 2) \
                 AND mac = ANY($2)";
    let made = "SELECT mac, ipv6, derived, name FROM instances WHERE vpc = $1 AND derived IN (1, 3) \
                AND id = ANY($2)";
    let mut rows = q.rows(given, args![vpc.get(), numbers]).await?;
    if !ids.is_empty() {
        rows.extend(q.rows(made, args![vpc.get(), ids]).await?);
    }
    rows.iter()
        .map(|row| {
            let derived = row.int(2)? & i64::from(DERIVED_IPV6) != 0;
            let address = row.opt_blob(1)?.map(ipv6).transpose()?.map(u128::from);
            Ok(MacOwner {
                mac: MacAddr::from_u64(row.number(0)?),
                derived_ipv6: address.filter(|_| derived),
                name: row.text(3)?.to_owned(),
            })
        })
        .collect()
}

/// Finds ids whose derived MAC and IPv6 address are not assigned to an instance by request.
pub(crate) struct Ids {
    vpc: VpcId,
    /// Prefixes that addresses are derived in.
    prefixes: Vec<Ipv6Net>,
    macs: HashSet<u64>,
    addresses: HashSet<u128>,
    /// `macs` and `addresses` contain all that conflict with ids below this one.
    known_until: u64,
}

impl Ids {
    /// `macs` and `addresses` are those that the request assigns; `macs` also has those of address pairs, and `addresses`
    /// those that are held.
    pub fn new(
        vpc: VpcId,
        is_empty: bool,
        prefixes: Vec<Ipv6Net>,
        macs: HashSet<u64>,
        addresses: &HashSet<u128>,
    ) -> Self {
        Self {
            vpc,
            prefixes,
            macs,
            addresses: addresses.clone(),
            known_until: if is_empty { u64::MAX } else { 0 },
        }
    }

    /// True if an instance with this id can derive its MAC, and its address in `prefix`. `ahead` is the
    /// number of ids that will be needed in total.
    pub async fn is_free(
        &mut self,
        q: &mut dyn Query,
        id: u64,
        prefix: Option<&Ipv6Net>,
        ahead: usize,
    ) -> Result<bool> {
        if id >= self.known_until {
            self.learn(q, id, id + ahead.clamp(READ_AHEAD.0, READ_AHEAD.1) as u64).await?;
        }
        let mac = derived_mac(id);
        if !self.macs.is_empty() && self.macs.contains(&mac.to_u64()) {
            return Ok(false);
        }
        let address = prefix.filter(|_| !self.addresses.is_empty()).and_then(|p| eui64_address(p, mac));
        Ok(address.is_none_or(|address| !self.addresses.contains(&u128::from(address))))
    }

    /// Reads the MACs and addresses that conflict with a range of ids.
    async fn learn(&mut self, q: &mut dyn Query, from: u64, until: u64) -> Result<()> {
        let (first, last) = (derived_mac(from), derived_mac(until - 1));
        let given =
            "SELECT mac FROM instances WHERE vpc = $1 AND derived IN (0, 2) AND mac BETWEEN $2 AND $3";
        let of_pairs =
            "SELECT mac FROM further_addresses WHERE vpc = $1 AND mac <> 0 AND mac BETWEEN $2 AND $3";
        for sql in [given, of_pairs] {
            for row in q.rows(sql, args![self.vpc.get(), first.to_u64(), last.to_u64()]).await? {
                self.macs.insert(row.number(0)?);
            }
        }
        for prefix in &self.prefixes {
            let (Some(first), Some(last)) = (eui64_address(prefix, first), eui64_address(prefix, last))
            else {
                continue;
            };
            let sql = "SELECT ipv6 FROM instances WHERE vpc = $1 AND ipv6 IS NOT NULL AND derived IN (0, 1) \
                       AND ipv6 BETWEEN $2 AND $3";
            // Delegated prefixes contain no derived addresses.
            let further = "SELECT first FROM further_addresses WHERE vpc = $1 AND family = 6 AND kind <> 'prefix' \
                           AND first BETWEEN $2 AND $3";
            for sql in [sql, further] {
                let values = args![self.vpc.get(), first.octets().to_vec(), last.octets().to_vec()];
                for row in q.rows(sql, values).await? {
                    self.addresses.insert(ipv6(row.blob(0)?)?.into());
                }
            }
        }
        self.known_until = until;
        Ok(())
    }
}

/// Frees an address. Only an address below `low` needs an update: addresses above it are searched anyway.
pub(crate) async fn free(q: &mut dyn Query, subnet: u64, address: IpAddr) -> Result<()> {
    let sql = match address {
        IpAddr::V4(_) => "UPDATE subnets SET low4 = $2 WHERE id = $1 AND low4 > $2",
        IpAddr::V6(_) => "UPDATE subnets SET low6 = $2 WHERE id = $1 AND low6 > $2",
    };
    q.run(sql, args![subnet, check::number(address).to_be_bytes().to_vec()]).await.map(drop)
}

/// The error for a subnet whose addresses are all in use.
pub(crate) fn subnet_full(subnet: &Subnet, net: &IpNet) -> StoreError {
    crate::Conflict::SubnetFull { subnet: subnet.name.clone(), prefix: net.to_string() }.into()
}

/// The value of the column `derived` of an instance.
pub(crate) fn derived_flags(mac: bool, ipv6: bool) -> u8 {
    DERIVED_MAC * u8::from(mac) + DERIVED_IPV6 * u8::from(ipv6)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches an address that is allocated although one of several ranges, which may overlap, contains it.
    #[test]
    fn avoided_ranges_are_found() {
        let mut avoided = Avoided::default();
        for range in [(30, 39), (10, 19), (15, 24), (50, 59), (28, 45), (52, 53)] {
            avoided.add_range(range);
        }
        let found: Vec<_> = [9, 10, 24, 25, 28, 45, 46, 50, 59, 60].map(|at| avoided.until(at)).into();
        let expected = [None, Some(24), Some(24), None, Some(45), Some(45), None, Some(59), Some(59), None];
        assert_eq!(found, expected);
    }
}
