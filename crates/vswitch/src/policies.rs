//! The policies of this host's instances: as the controller sent them, and as they are in the tables. This file changes
//! when rules of security groups get another property.
//!
//! The tables know a policy by a number of their own. Ports refer to it, so the next agent learns the numbers from the ports
//! that it adopts, and a policy that has not changed keeps its generation.
//!
//! A port never becomes open because of a policy that is absent or does not fit: it then has the policy [`CLOSED`]. If
//! another version of a policy does not fit, the one in the tables stays in force.

mod convert;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use sluice_agent::error_chain;
use sluice_southbound::{Policy, PolicyKey};
use sluice_tables::{Error, NodeTables};
use sluice_types::{EntryHash, EntryKey, SecurityRuleId};

/// Number of the policy without rules: ports have it whose own policy is not in the tables.
pub const CLOSED: u32 = 1;
/// Rules that one digest compares with the tables, at most, besides those of policies that were never compared. Comparing
/// takes about a microsecond for each.
const COMPARED_RULES_MAX: usize = 20_000;

/// The ids of a policy's rules: rule `n` of the tables is element `n - 1`.
pub type RuleIds = Arc<[SecurityRuleId]>;

/// What is known of the policy of a key.
#[derive(Debug, Default)]
struct Known {
    /// `None`: an earlier agent has written it, and the controller has not sent it to this one.
    sent: Option<Sent>,
    /// Its number in the tables. `None`: it is not there.
    id: Option<u32>,
    /// Generation in the tables when it was last compared with what was sent, and whether they were equal.
    compared: Cell<Option<(u32, bool)>>,
}

#[derive(Debug)]
struct Sent {
    policy: Policy,
    hash: EntryHash,
}

/// The policies by VPC and identity.
#[derive(Debug, Default)]
pub struct Policies {
    known: BTreeMap<PolicyKey, Known>,
    last_id: u32,
    /// The policy that was compared last in turn.
    compared_last: Cell<Option<PolicyKey>>,
}

/// What a change of a policy means for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyChange {
    /// The tables have changed: sessions must be reviewed.
    pub is_other: bool,
    /// The tables did not have it: the ports with its key must be written.
    pub is_new: bool,
}

impl Policies {
    /// Policies that were received by an earlier agent.
    pub fn received(policies: Vec<Policy>) -> Self {
        let mut this = Self::default();
        for policy in policies {
            let known = Known { sent: Some(Sent::new(policy)), ..Known::default() };
            let key = known.sent.as_ref().map(|sent| sent.policy.key);
            this.known.extend(key.map(|key| (key, known)));
        }
        this
    }

    /// A port of the tables, which an earlier agent has written, has this policy.
    pub fn adopt(&mut self, key: PolicyKey, id: u32) {
        if id != CLOSED && !self.known.values().any(|known| known.id == Some(id)) {
            self.known.entry(key).or_default().id.get_or_insert(id);
        }
    }

    /// The policies that were received.
    pub fn sent(&self) -> impl Iterator<Item = &Policy> {
        self.known.values().filter_map(|known| Some(&known.sent.as_ref()?.policy))
    }

    /// Whether the policy was received, or an earlier agent has written it.
    pub fn has(&self, key: PolicyKey) -> bool {
        self.known.contains_key(&key)
    }

    /// The number of the policy that a port with this key must have.
    pub fn id_for(&self, key: PolicyKey) -> u32 {
        self.known.get(&key).and_then(|known| known.id).unwrap_or(CLOSED)
    }

    /// Writes the policy without rules, unless it is in the tables.
    ///
    /// # Errors
    /// Those of [`NodeTables::upsert_policy`].
    pub fn write_closed(tables: &mut NodeTables) -> Result<(), Error> {
        tables.upsert_policy(&sluice_tables::Policy { id: CLOSED, ..Default::default() }).map(drop)
    }

    /// Adds or replaces a policy. After an error, what the tables had before stays in force.
    ///
    /// # Errors
    /// Those of [`NodeTables::upsert_policy`].
    pub fn upsert(&mut self, tables: &mut NodeTables, policy: Policy) -> Result<PolicyChange, Error> {
        let key = policy.key;
        let known_id = self.known.get(&key).and_then(|known| known.id);
        let id = known_id.unwrap_or_else(|| self.free_id(tables));
        let written = tables.upsert_policy(&convert::table_policy(&policy, id));
        let known = self.known.entry(key).or_default();
        known.sent = Some(Sent::new(policy));
        let is_right = written.is_ok();
        known.id = known.id.or(is_right.then_some(id));
        known.compared.set(tables.policy_generation(id).map(|generation| (generation, is_right)));
        written.map(|is_other| PolicyChange { is_other, is_new: known_id.is_none() })
    }

    /// Writes policies of an earlier agent that the tables do not have. Those that do not fit stay absent.
    pub fn write_absent(&mut self, tables: &mut NodeTables) {
        let absent = self.known.values().filter(|known| known.id.is_none());
        let absent: Vec<Policy> =
            absent.filter_map(|known| Some(known.sent.as_ref()?.policy.clone())).collect();
        for policy in absent {
            let key = policy.key;
            if let Err(error) = self.upsert(tables, policy) {
                tracing::warn!(
                    policy = name(key),
                    error = reason(&error),
                    "the policy is not in the tables yet"
                );
            }
        }
    }

    /// A number that no policy of the tables has.
    fn free_id(&mut self, tables: &NodeTables) -> u32 {
        loop {
            self.last_id = if self.last_id < sluice_tables::Policy::ID_MAX { self.last_id + 1 } else { 1 };
            let is_known = self.known.values().any(|known| known.id == Some(self.last_id));
            if self.last_id != CLOSED && !is_known && tables.policy_generation(self.last_id).is_none() {
                return self.last_id;
            }
        }
    }

    /// Removes the policies whose keys are not `used`, and those of the tables that have no key. Returns their keys.
    pub fn retain(&mut self, tables: &mut NodeTables, used: &BTreeSet<PolicyKey>) -> Vec<PolicyKey> {
        let unused: Vec<PolicyKey> = self.known.keys().filter(|key| !used.contains(key)).copied().collect();
        for key in &unused {
            self.known.remove(key);
        }
        let known: BTreeSet<u32> = self.known.values().filter_map(|known| known.id).collect();
        let unknown: Vec<u32> =
            tables.policy_ids().filter(|id| *id != CLOSED && !known.contains(id)).collect();
        for id in unknown {
            if let Err(error) = tables.remove_policy(id) {
                // A port that could not be written has it still. The end of the next step removes it.
                tracing::warn!(id, error = error_chain(&error), "cannot remove a policy; retrying later");
            }
        }
        unused
    }

    /// Calls `call` for each policy that was received, with its hash if the tables have exactly this policy. Damage of a
    /// policy that has not changed is found when it is its turn: not all are compared each time.
    pub fn visit(&self, tables: &NodeTables, call: &mut dyn FnMut(EntryKey, EntryHash)) {
        let mut rules_left = COMPARED_RULES_MAX;
        let last = self.compared_last.get();
        let after = self.known.range((last.map_or(Unbounded, Excluded), Unbounded));
        let before = self.known.iter().take_while(|(key, _)| last.is_some_and(|last| **key <= last));
        for (key, known) in after.chain(before) {
            let Some(sent) = &known.sent else { continue };
            let cost = sent.policy.rules.len() + 1;
            if cost > rules_left {
                break;
            }
            rules_left -= cost;
            self.compared_last.set(Some(*key));
            known.compared.set(None);
        }
        for (key, known) in &self.known {
            let Some(sent) = &known.sent else { continue };
            let key = EntryKey::Policy(key.vni, key.identity);
            let hash = if known.is_right(tables) { sent.hash } else { EntryHash::unreadable(key) };
            call(key, hash);
        }
    }

    /// The ids of rules by generation of the policy, for sessions. Policies that differ from what was received are left out.
    pub fn rule_ids(&self, tables: &NodeTables) -> HashMap<u32, RuleIds> {
        let right = self.known.values().filter(|known| known.is_right(tables));
        let ids = right.filter_map(|known| {
            let generation = tables.policy_generation(known.id?)?;
            let rules = &known.sent.as_ref()?.policy.rules;
            Some((generation, rules.iter().map(|rule| rule.id).collect()))
        });
        ids.collect()
    }

    /// What the policies that have one of these rules would be without them, by generation. Policies that differ from what
    /// was received are left out.
    pub fn without(&self, tables: &NodeTables, rules: &[SecurityRuleId]) -> HashMap<u32, Without> {
        let right = self.known.values().filter(|known| known.is_right(tables));
        let changed = right.filter_map(|known| {
            let id = known.id?;
            let mut policy = known.sent.as_ref()?.policy.clone();
            let numbered = policy.rules.iter().zip(1..);
            let removed: BTreeSet<u32> =
                numbered.filter(|(rule, _)| rules.contains(&rule.id)).map(|(_, number)| number).collect();
            policy.rules.retain(|rule| !rules.contains(&rule.id));
            let without = Without { removed, left: convert::table_policy(&policy, id) };
            (!without.removed.is_empty()).then_some((tables.policy_generation(id)?, without))
        });
        changed.collect()
    }
}

/// A policy without some of its rules.
#[derive(Debug)]
pub struct Without {
    /// The numbers of these rules in the policy.
    pub removed: BTreeSet<u32>,
    /// What is left, with other numbers.
    pub left: sluice_tables::Policy,
}

impl Sent {
    fn new(policy: Policy) -> Self {
        let (_, hash) = policy.entry_hash();
        Self { policy, hash }
    }
}

impl Known {
    /// Whether the tables have what was sent. Compares only what was not compared since it changed.
    fn is_right(&self, tables: &NodeTables) -> bool {
        let (Some(id), Some(sent)) = (self.id, &self.sent) else { return false };
        let Some(generation) = tables.policy_generation(id) else { return false };
        match self.compared.get() {
            Some((of, is_right)) if of == generation => is_right,
            _ => {
                let is_right = tables.is_policy_right(&convert::table_policy(&sent.policy, id));
                self.compared.set(Some((generation, is_right)));
                is_right
            }
        }
    }
}

/// The policy's name in failures and logs.
pub fn name(key: PolicyKey) -> String {
    EntryKey::Policy(key.vni, key.identity).to_string()
}

/// Why a policy was not written, without its number in the tables.
pub fn reason(error: &Error) -> String {
    match error {
        Error::PolicyTooLarge { excess, .. } => format!("it is too large: {excess}"),
        other => error_chain(other),
    }
}
