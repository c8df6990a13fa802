//! From rules to the longest prefix matches of a policy. Pure: it only refuses what is too large, by numbers that
//! do not depend on how much memory is free.
//!
//! A service set is a list of prefixes of services that do not overlap, sorted. The set of a prefix of addresses
//! has what the shorter prefixes that cover it permit, so that one lookup by address suffices; it is the set of the
//! next shorter prefix, with what the rules of the prefix itself add. Sets with the same content have one number.
//! Nested prefixes with many ports each would repeat them at each level, so the sum of all sets is limited.

use super::rules::{AddressFamily, Direction, Policy, Remote, Rule, Service};
use crate::error::{Error, PolicyExcess};
use crate::layout;
use crate::lpm::{Entry, Family, Prefix};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// TCP, UDP and SCTP: the protocols that have ports.
const PROTOCOLS_WITH_PORTS: [u8; 3] = [6, 17, 132];
/// ICMP and ICMPv6.
const PROTOCOLS_WITH_TYPES: [u8; 2] = [1, 58];

/// Bits of a service: the protocol alone, and with the bit that tells whether there is a transport header.
const PROTOCOL_BITS: u8 = 8;
const HEADER_BITS: u8 = 9;
/// Bits of a key of identities, without and with the family.
const IDENTITY_BITS: u8 = 16;

/// The content of a policy's cells, with numbers instead of cells.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Compiled {
    /// Number of rules.
    pub rules: u32,
    /// The service sets, of which the first has number 1. Each is sorted by prefix, and has at least one.
    pub sets: Vec<Rc<[Entry]>>,
    /// Ingress and egress.
    pub directions: [CompiledDirection; 2],
}

/// What a policy permits in one direction. Numbers are those of service sets; 0 is the empty set.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CompiledDirection {
    /// Sets for any IPv4 and any IPv6 address.
    pub any: [u32; 2],
    /// IPv4 and IPv6 prefixes with their sets.
    pub addresses: [Vec<Entry>; 2],
    /// Keys of identities with their sets.
    pub identities: Vec<Entry>,
}

/// A key of 32 bits as a prefix of the IPv4 form.
fn prefix_of(key: u32, length: u8) -> Prefix {
    Prefix { bits: u128::from(key) << 96, length }
}

fn covers(wide: Prefix, narrow: Prefix) -> bool {
    let shared = 128 - u32::from(wide.length);
    wide.length <= narrow.length && (wide.length == 0 || (wide.bits ^ narrow.bits) >> shared == 0)
}

impl Service {
    /// The prefixes of the service, at most 30.
    pub(super) fn prefixes(self) -> Vec<Prefix> {
        let protocol_key = |protocol: u8| u32::from(protocol) << layout::SERVICE_PROTOCOL_SHIFT;
        match self {
            Self::Any => vec![prefix_of(0, 0)],
            Self::Protocol(protocol) | Self::Ports { protocol, first: 0, last: u16::MAX } => {
                vec![prefix_of(protocol_key(protocol), PROTOCOL_BITS)]
            }
            Self::Ports { protocol, first, last } => {
                let blocks = port_blocks(first, last).into_iter();
                let of = |(port, bits): (u16, u8)| {
                    let key = protocol_key(protocol) | u32::from(port) << layout::SERVICE_PORT_SHIFT;
                    prefix_of(key, HEADER_BITS + bits)
                };
                blocks.map(of).collect()
            }
            Self::Icmp { protocol, kind, code } => {
                let port = u16::from_be_bytes([kind, code.unwrap_or(0)]);
                let key = protocol_key(protocol) | u32::from(port) << layout::SERVICE_PORT_SHIFT;
                vec![prefix_of(key, HEADER_BITS + if code.is_some() { 16 } else { 8 })]
            }
        }
    }
}

/// Cuts a range of ports into blocks: the first port of each, and the number of bits that its ports share.
fn port_blocks(first: u16, last: u16) -> Vec<(u16, u8)> {
    let (mut port, end) = (u32::from(first), u32::from(last) + 1);
    let mut blocks = Vec::new();
    while port < end {
        // The largest block that begins here and ends within the range.
        let size_bits = port.trailing_zeros().min((end - port).ilog2()).min(16);
        blocks.push((port as u16, 16 - size_bits as u8));
        port += 1 << size_bits;
    }
    blocks
}

/// Sorts services and removes those that another one covers. Of equal ones, the rule with the lowest id remains.
fn normalized(mut services: Vec<Entry>) -> Vec<Entry> {
    services.sort_unstable();
    services.dedup_by(|next, kept| covers(kept.0, next.0));
    services
}

/// Whether one of the services covers this one.
fn has_covering(services: &[Entry], service: Prefix) -> bool {
    let bits = service.bits;
    let before = services.partition_point(|(known, _)| known.bits <= bits);
    before > 0 && covers(services[before - 1].0, service)
}

/// Refuses rules that no packet program understands.
fn check(policy: &Policy) -> Result<(), Error> {
    let invalid = |why: String| Err(Error::Invalid(format!("policy {}: {why}", policy.id)));
    if !(1..=Policy::ID_MAX).contains(&policy.id) {
        return invalid(format!("the id of a policy is from 1 to {}", Policy::ID_MAX));
    }
    if policy.identities.contains_key(&0) {
        return invalid("identity 0 stands for unknown remotes, and is a member of no group".to_owned());
    }
    for rule in &policy.rules {
        if !(1..=Rule::ID_MAX).contains(&rule.id) {
            return invalid(format!("rule {}: the id of a rule is from 1 to {}", rule.id, Rule::ID_MAX));
        }
        match rule.service {
            Service::Ports { protocol, .. } if !PROTOCOLS_WITH_PORTS.contains(&protocol) => {
                return invalid(format!(
                    "rule {}: protocol {protocol} has no ports, only TCP (6), UDP (17) and SCTP (132) have",
                    rule.id
                ));
            }
            Service::Ports { first, last, .. } if first > last => {
                return invalid(format!("rule {}: the range of ports {first} to {last} is empty", rule.id));
            }
            Service::Icmp { protocol, .. } if !PROTOCOLS_WITH_TYPES.contains(&protocol) => {
                return invalid(format!(
                    "rule {}: protocol {protocol} has no types, only ICMP (1) and ICMPv6 (58) have",
                    rule.id
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Compiles a policy. The result does not depend on the order of rules and groups.
///
/// # Errors
/// [`Error::Invalid`]; [`Error::PolicyTooLarge`].
pub(crate) fn compile(policy: &Policy) -> Result<Compiled, Error> {
    check(policy)?;
    let mut compiler = Compiler { policy, numbers: HashMap::new(), sets: Vec::new(), services: 0 };
    let memberships: usize = policy.identities.values().map(Vec::len).sum();
    if policy.rules.len() > layout::POLICY_RULES_MAX as usize {
        return Err(compiler.too_large(PolicyExcess::Rules(policy.rules.len())));
    }
    if memberships > layout::POLICY_MEMBERSHIPS_MAX as usize {
        return Err(compiler.too_large(PolicyExcess::Memberships(memberships)));
    }
    let directions = [compiler.direction(Direction::Ingress)?, compiler.direction(Direction::Egress)?];
    Ok(Compiled { rules: policy.rules.len() as u32, sets: compiler.sets, directions })
}

struct Compiler<'a> {
    policy: &'a Policy,
    numbers: HashMap<Rc<[Entry]>, u32>,
    sets: Vec<Rc<[Entry]>>,
    /// Number of services in all sets that were built, which limits time and memory.
    services: usize,
}

impl Compiler<'_> {
    fn too_large(&self, excess: PolicyExcess) -> Error {
        Error::PolicyTooLarge { policy: self.policy.id, excess }
    }

    /// The remotes of a policy, to explain an error.
    fn remotes(&self) -> (usize, usize) {
        remotes(self.policy)
    }

    /// Counts services that are about to be built.
    fn charge(&mut self, services: usize) -> Result<(), Error> {
        self.services += services;
        if self.services > layout::POLICY_SERVICES_MAX as usize {
            let (prefixes, identities) = self.remotes();
            return Err(self.too_large(PolicyExcess::Services { prefixes, identities }));
        }
        Ok(())
    }

    /// The number of a set; 0 for the empty one.
    fn number(&mut self, services: Vec<Entry>) -> Result<u32, Error> {
        if services.is_empty() {
            return Ok(0);
        }
        let set: Rc<[Entry]> = services.into();
        if let Some(&number) = self.numbers.get(&set) {
            return Ok(number);
        }
        if self.sets.len() == layout::POLICY_SETS_MAX as usize {
            let (prefixes, identities) = self.remotes();
            return Err(self.too_large(PolicyExcess::Sets { prefixes, identities }));
        }
        self.sets.push(set.clone());
        let number = self.sets.len() as u32;
        self.numbers.insert(set, number);
        Ok(number)
    }

    /// The set with the services of set `number` and others. A service of the set remains where both have it.
    fn extend(&mut self, number: u32, mut more: Vec<Entry>) -> Result<u32, Error> {
        let Some(base) = number.checked_sub(1).map(|i| self.sets[i as usize].clone()) else {
            self.charge(more.len())?;
            return self.number(normalized(more));
        };
        more.retain(|(service, _)| !has_covering(&base, *service));
        if more.is_empty() {
            return Ok(number);
        }
        self.charge(base.len() + more.len())?;
        more.extend_from_slice(&base);
        self.number(normalized(more))
    }

    fn direction(&mut self, direction: Direction) -> Result<CompiledDirection, Error> {
        let mut prefixes: [BTreeMap<Prefix, Vec<Entry>>; 2] = Default::default();
        let mut groups: HashMap<u32, [Vec<Entry>; 2]> = HashMap::new();
        for rule in self.policy.rules.iter().filter(|rule| rule.direction == direction) {
            let services = rule.service.prefixes().into_iter().map(|prefix| (prefix, rule.id));
            match rule.remote {
                Remote::Prefix(net) => {
                    let (family, prefix) = Prefix::from_net(net);
                    let of = &mut prefixes[usize::from(family == Family::V6)];
                    of.entry(prefix).or_default().extend(services);
                }
                Remote::Group { group, family } => {
                    let [v4, v6] = groups.entry(group).or_default();
                    if family != Some(AddressFamily::V6) {
                        v4.extend(services.clone());
                    }
                    if family != Some(AddressFamily::V4) {
                        v6.extend(services);
                    }
                }
            }
        }
        let mut compiled = CompiledDirection::default();
        for (i, mut prefixes) in prefixes.into_iter().enumerate() {
            let any = prefixes.remove(&Prefix::default()).unwrap_or_default();
            compiled.any[i] = self.extend(0, any)?;
            compiled.addresses[i] = self.addresses(prefixes)?;
        }
        compiled.identities = self.identities(groups)?;
        Ok(compiled)
    }

    /// The prefixes of one family with their sets. A prefix comes after those that cover it.
    fn addresses(&mut self, prefixes: BTreeMap<Prefix, Vec<Entry>>) -> Result<Vec<Entry>, Error> {
        let mut entries = Vec::new();
        // The prefixes with sets of their own that cover the present one, the shortest first.
        let mut above: Vec<Entry> = Vec::new();
        for (prefix, services) in prefixes {
            while above.pop_if(|(wide, _)| !covers(*wide, prefix)).is_some() {}
            let inherited = above.last().map_or(0, |&(_, number)| number);
            let number = self.extend(inherited, services)?;
            if number != inherited {
                entries.push((prefix, number));
                above.push((prefix, number));
            }
        }
        Ok(entries)
    }

    /// The identities with their sets. Identities with the same groups are one set, which is built once.
    fn identities(&mut self, groups: HashMap<u32, [Vec<Entry>; 2]>) -> Result<Vec<Entry>, Error> {
        let groups: HashMap<u32, [Vec<Entry>; 2]> =
            groups.into_iter().map(|(group, services)| (group, services.map(normalized))).collect();
        let mut known: HashMap<Vec<u32>, [u32; 2]> = HashMap::new();
        let mut entries = Vec::new();
        for (&identity, members) in &self.policy.identities {
            let mut named: Vec<u32> =
                members.iter().copied().filter(|group| groups.contains_key(group)).collect();
            named.sort_unstable();
            named.dedup();
            let sets = match known.get(&named) {
                Some(&sets) => sets,
                None => {
                    let mut sets = [0; 2];
                    for (i, set) in sets.iter_mut().enumerate() {
                        let services = named.iter().flat_map(|group| &groups[group][i]);
                        self.charge(services.clone().count())?;
                        *set = self.number(normalized(services.copied().collect()))?;
                    }
                    known.insert(named, sets);
                    sets
                }
            };
            let key = u32::from(identity) << layout::POLICY_IDENTITY_SHIFT;
            let [v4, v6] = sets;
            if v4 == v6 {
                entries.extend((v4 != 0).then_some((prefix_of(key, IDENTITY_BITS), v4)));
                continue;
            }
            for (number, bit) in [(v4, 0), (v6, layout::POLICY_IDENTITY_IPV6)] {
                let entry = (prefix_of(key | bit, IDENTITY_BITS + 1), number);
                entries.extend((number != 0).then_some(entry));
            }
        }
        Ok(entries)
    }
}

/// Numbers of prefixes and identities of a policy, to explain an error.
pub(super) fn remotes(policy: &Policy) -> (usize, usize) {
    let mut prefixes: Vec<_> = policy
        .rules
        .iter()
        .filter_map(|rule| match rule.remote {
            Remote::Prefix(prefix) => Some((rule.direction, prefix.trunc())),
            Remote::Group { .. } => None,
        })
        .collect();
    prefixes.sort_unstable();
    prefixes.dedup();
    (prefixes.len(), policy.identities.len())
}
