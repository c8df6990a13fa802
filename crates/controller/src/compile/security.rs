//! The policies of hosts' ports, from security groups, their rules, and the sets of groups that instances have. This
//! file changes with what policies contain, or with which changes of groups change them.

use super::{Compiled, State, Target};
use sluice_southbound::{Policy, PolicyKey, SecurityRule};
use sluice_store::{Change, GroupSet, Remote, RuleMatch, SecurityRule as StoredRule, Topology};
use sluice_types::{SecurityGroupId, SecurityRuleId, Vni, VpcId};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Most bytes of policies, for each VPC, in a step. A change that would exceed it is sent in snapshots, which contain
/// only the policies of one host each, and no more often than the host can take them.
const STEP_BYTES_MAX: usize = 8 << 20;
/// Most bytes of the policies of a VPC that are hashed after a change of it, for digests.
pub(super) const HASHED_BYTES_MAX: usize = STEP_BYTES_MAX;
/// What a policy takes besides its content: its key, and its place in the step.
const POLICY_BYTES: usize = 256;
/// Bytes of a rule in a message: most have fewer.
const RULE_BYTES: usize = 32;
/// Bytes of an identity in a message, at most.
const IDENTITY_BYTES: usize = 3;

/// The security groups of a VPC.
#[derive(Clone, Debug, Default)]
pub(super) struct SecurityGroups {
    /// Last revision that changed a group or a set, as far as is known.
    pub changed: u64,
    groups: BTreeMap<SecurityGroupId, Group>,
    /// The groups of each identity.
    sets: BTreeMap<u16, Vec<SecurityGroupId>>,
}

#[derive(Clone, Debug, Default)]
struct Group {
    rules: BTreeMap<SecurityRuleId, RuleMatch>,
    /// The groups that are the remote of a rule, with the number of these rules.
    remotes: BTreeMap<SecurityGroupId, usize>,
    /// The identities whose sets contain the group.
    identities: BTreeSet<u16>,
}

impl Group {
    fn add(&mut self, rule: &StoredRule) {
        if let Remote::Group(remote) = rule.matches.remote {
            *self.remotes.entry(remote).or_default() += 1;
        }
        self.rules.insert(rule.id, rule.matches.clone());
    }

    fn remove(&mut self, rule: &StoredRule) {
        self.rules.remove(&rule.id);
        if let Remote::Group(remote) = rule.matches.remote
            && let Some(count) = self.remotes.get_mut(&remote)
        {
            *count -= 1;
            if *count == 0 {
                self.remotes.remove(&remote);
            }
        }
    }
}

impl SecurityGroups {
    fn group(&mut self, id: SecurityGroupId) -> &mut Group {
        self.groups.entry(id).or_default()
    }

    fn add_set(&mut self, set: &GroupSet) {
        for group in &set.groups {
            self.group(*group).identities.insert(set.identity);
        }
        self.sets.insert(set.identity, set.groups.clone());
    }

    fn remove_set(&mut self, identity: u16) -> Vec<SecurityGroupId> {
        let groups = self.sets.remove(&identity).unwrap_or_default();
        for group in &groups {
            self.group(*group).identities.remove(&identity);
        }
        groups
    }

    /// The identities whose policies name one of these groups as remote.
    fn naming(&self, groups: &BTreeSet<SecurityGroupId>) -> BTreeSet<u16> {
        let names = |group: &&Group| group.remotes.keys().any(|remote| groups.contains(remote));
        self.groups.values().filter(names).flat_map(|group| group.identities.iter().copied()).collect()
    }

    /// Advances by a change. Returns the identities whose policies are other than before. A new set is not among them: no
    /// host has its policy.
    fn apply(&mut self, change: &Change) -> BTreeSet<u16> {
        match change {
            Change::SecurityGroupCreated { group, rules, .. } => {
                let new = self.group(group.id);
                rules.iter().for_each(|rule| new.add(rule));
                BTreeSet::new()
            }
            Change::SecurityGroupRemoved { group, identities, .. } => {
                let members = identities.iter().flat_map(|identity| self.remove_set(*identity)).collect();
                self.groups.remove(&group.id);
                self.naming(&members)
            }
            Change::SecurityRuleCreated { rule, .. } => {
                let group = self.group(rule.group);
                group.add(rule);
                group.identities.clone()
            }
            Change::SecurityRuleRemoved { rule, .. } => {
                let group = self.group(rule.group);
                group.remove(rule);
                group.identities.clone()
            }
            Change::GroupSetsCreated { sets, .. } => {
                let changed = self.naming(&sets.iter().flat_map(|set| set.groups.iter().copied()).collect());
                sets.iter().for_each(|set| self.add_set(set));
                changed
            }
            _ => BTreeSet::new(),
        }
    }

    fn groups_of(&self, identity: u16) -> impl Iterator<Item = &Group> {
        self.sets.get(&identity).into_iter().flatten().filter_map(|id| self.groups.get(id))
    }

    fn remotes_of(&self, identity: u16) -> BTreeSet<SecurityGroupId> {
        self.groups_of(identity).flat_map(|group| group.remotes.keys().copied()).collect()
    }

    /// About the size of a policy's message, without making it.
    pub fn bytes(&self, identity: u16) -> usize {
        let rules: usize = self.groups_of(identity).map(|group| group.rules.len()).sum();
        let remotes = self.remotes_of(identity);
        let remotes = remotes.iter().filter_map(|id| self.groups.get(id));
        let identities: usize = remotes.map(|group| group.identities.len()).sum();
        POLICY_BYTES + rules * RULE_BYTES + identities * IDENTITY_BYTES
    }

    /// The policy of the ports with an identity; `None` if no set has it.
    pub fn policy(&self, vni: Vni, identity: u16) -> Option<Policy> {
        self.sets.get(&identity)?;
        let rule =
            |(id, matches): (&SecurityRuleId, &RuleMatch)| SecurityRule { id: *id, matches: matches.clone() };
        let mut rules: Vec<_> =
            self.groups_of(identity).flat_map(|group| group.rules.iter().map(rule)).collect();
        rules.sort_unstable_by_key(|rule| rule.id);
        let identities = |id: &SecurityGroupId| {
            self.groups.get(id).map_or_else(Vec::new, |group| group.identities.iter().copied().collect())
        };
        let groups = self.remotes_of(identity).into_iter().map(|id| (id, identities(&id))).collect();
        Some(Policy { key: PolicyKey { vni, identity }, rules, groups })
    }
}

/// The security groups of each VPC of a snapshot, by VNI. They may have changed in its revision.
pub(super) fn of_topology(topology: &Topology) -> BTreeMap<Vni, SecurityGroups> {
    let vnis: HashMap<VpcId, Vni> = topology.vpcs.iter().map(|vpc| (vpc.id, vpc.vni)).collect();
    let empty = || SecurityGroups { changed: topology.revision, ..SecurityGroups::default() };
    let mut all: BTreeMap<Vni, SecurityGroups> = vnis.values().map(|vni| (*vni, empty())).collect();
    let mut with = |vpc: VpcId, change: &dyn Fn(&mut SecurityGroups)| {
        if let Some(groups) = vnis.get(&vpc).and_then(|vni| all.get_mut(vni)) {
            change(groups);
        }
    };
    for rule in &topology.security_rules {
        with(rule.vpc, &|groups| groups.group(rule.group).add(rule));
    }
    for set in &topology.group_sets {
        with(set.vpc, &|groups| groups.add_set(set));
    }
    all
}

impl State {
    /// Advances the groups of a VPC by a change of them.
    pub(super) fn change_security_groups(&mut self, vni: Vni, change: &Change, out: &mut Compiled) {
        let groups = self.security.entry(vni).or_default();
        let changed = groups.apply(change);
        groups.changed = out.revision;
        out.hosts.changed_policies.extend(changed.into_iter().map(|identity| (vni, identity)));
    }

    /// Adds the policies of a step: those that hosts may need for ports that it adds, and those that it changes, whether
    /// or not a host has them, because the state holds no instances. The revision is already in the state.
    pub(super) fn send_policies(&self, out: &mut Compiled) {
        let added = out.hosts.ports.values().flat_map(|counts| counts.added.keys());
        let mut needed: BTreeMap<Vni, BTreeSet<u16>> = BTreeMap::new();
        for (vni, identity) in added.chain(&out.hosts.changed_policies) {
            needed.entry(*vni).or_default().insert(*identity);
        }
        for (vni, identities) in needed {
            let Some(groups) = self.security.get(&vni) else { continue };
            let mut bytes = 0;
            let exceeds = |identity: &u16| {
                bytes += groups.bytes(*identity);
                bytes > STEP_BYTES_MAX
            };
            // Stops at the limit, so that the cost of a change of very many policies is bounded, too.
            if identities.iter().any(exceeds) {
                out.hosts.resync.insert(vni);
                out.hosts.changed_policies.retain(|(of, _)| *of != vni);
                continue;
            }
            for policy in identities.iter().filter_map(|identity| groups.policy(vni, *identity)) {
                out.of(Target::Policy(vni, policy.key.identity)).policies.push(policy);
            }
        }
    }

    /// The policies of hosts' ports with these VNIs and identities.
    pub(super) fn policies(&self, keys: &BTreeSet<(Vni, u16)>) -> Vec<Policy> {
        let policy = |(vni, identity): &(Vni, u16)| self.security.get(vni)?.policy(*vni, *identity);
        keys.iter().filter_map(policy).collect()
    }
}
