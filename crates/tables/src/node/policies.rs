//! Changes to policies: what the security groups of ports permit.

use super::NodeTables;
use super::ports::{PORT_CELLS, port_key};
use crate::error::Error;
use crate::exact::{Entry, Key};
use crate::layout::{self, node_config, port};
use crate::policy::{self, Compiled, Policy};
use std::mem::offset_of;

/// A policy as it is in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyEntry {
    /// Identifier of the policy.
    pub id: u32,
    /// Another number for each policy that these tables have had, never 0: it changes with each replacement.
    pub generation: u32,
    /// Number of rules in both directions.
    pub rules: u32,
    /// Number of different service sets.
    pub service_sets: u32,
    /// Cells that it takes, of 64 bytes each.
    pub cells: u64,
}

pub(super) fn policy_key(id: u32) -> Key {
    Key::Index { vni: 0, id: layout::EXACT_POLICY_ID | id }
}

/// The identifier of a policy whose key has this number; `None` if it is that of an interface or a service.
pub(super) fn policy_of_index(id: u32) -> Option<u32> {
    (id & layout::EXACT_SERVICE_ID == layout::EXACT_POLICY_ID).then_some(id & !layout::EXACT_SERVICE_ID)
}

impl NodeTables {
    /// Adds or replaces a policy. A packet that is judged meanwhile is judged by one of the two.
    ///
    /// # Errors
    /// [`Error::Invalid`] for rules that make no sense; [`Error::PolicyTooLarge`]; [`Error::Full`];
    /// [`Error::Grace`].
    pub fn upsert_policy(&mut self, policy: &Policy) -> Result<bool, Error> {
        let compiled = policy::compile(policy)?;
        let old = self.policies.get(&policy.id).copied();
        if self.has_policy(policy.id, &compiled) {
            return Ok(false);
        }
        let generation = self.next_policy_generation();
        let run = policy::write(&mut self.pool, policy, generation, &compiled)?;
        let entry = Entry { mac: 0, next: run };
        if let Err(error) = self.exact.put(&mut self.pool, policy_key(policy.id), entry) {
            policy::retire(&mut self.pool, run);
            return Err(error);
        }
        self.policies.insert(policy.id, run);
        self.point_ports_to_policy(policy.id, run);
        if let Some(old) = old {
            policy::retire(&mut self.pool, old);
        }
        Ok(true)
    }

    /// Whether what lookups find of a policy is exactly what [`NodeTables::upsert_policy`] would write. Compiles the policy.
    pub fn is_policy_right(&self, policy: &Policy) -> bool {
        policy::compile(policy).is_ok_and(|compiled| self.has_policy(policy.id, &compiled))
    }

    /// Whether lookups find a policy with this content.
    fn has_policy(&self, id: u32, compiled: &Compiled) -> bool {
        let known = self.policies.get(&id).copied().filter(|known| self.visible_policy(id) == Some(*known));
        known.is_some_and(|cell| policy::read(self.memory(), cell).as_ref() == Some(compiled))
    }

    /// The generation of a policy; `None` if the tables do not have it.
    pub fn policy_generation(&self, id: u32) -> Option<u32> {
        self.policies.get(&id).map(|&cell| policy::head(self.memory(), cell).generation)
    }

    /// Removes a policy that no port has.
    ///
    /// # Errors
    /// [`Error::PolicyInUse`]; [`Error::Grace`].
    pub fn remove_policy(&mut self, id: u32) -> Result<bool, Error> {
        let Some(&run) = self.policies.get(&id) else { return Ok(false) };
        if let Some(ifindex) = self.port_with_policy(id) {
            return Err(Error::PolicyInUse { policy: id, ifindex });
        }
        self.exact.take(&mut self.pool, policy_key(id))?;
        self.policies.remove(&id);
        policy::retire(&mut self.pool, run);
        Ok(true)
    }

    /// All policies, in the order of their identifiers.
    pub fn policies(&self) -> impl Iterator<Item = PolicyEntry> + '_ {
        self.policies.iter().map(|(&id, &cell)| {
            let head = policy::head(self.memory(), cell);
            PolicyEntry {
                id,
                generation: head.generation,
                rules: head.rules,
                service_sets: head.set_count,
                cells: policy::cells_used(self.memory(), cell),
            }
        })
    }

    /// The identifiers of all policies, in order.
    pub fn policy_ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.policies.keys().copied()
    }

    /// The cell of the policy that lookups find.
    fn visible_policy(&self, id: u32) -> Option<u32> {
        let cell = self.exact.get(self.memory(), policy_key(id))?.next;
        policy::is_policy(self.memory(), cell, id).then_some(cell)
    }

    /// Draws the generation of a new policy. It is stored first, so that no successor draws it again.
    fn next_policy_generation(&self) -> u32 {
        let (cell, offset) = (layout::CELL_NODE, offset_of!(node_config, by_role));
        let generation = (self.memory().load64(cell, offset) as u32).wrapping_add(1).max(1);
        self.memory().store64(cell, offset, generation.into());
        generation
    }

    /// The cells of all ports: those that are recorded, and those that a change of a port left visible when it failed.
    fn port_cells(&self) -> impl Iterator<Item = u32> + '_ {
        self.ports.iter().flat_map(|(&ifindex, &cell)| {
            let visible = self.exact.get(self.memory(), port_key(ifindex)).map(|entry| entry.next);
            let is_other = |other: &u32| *other != cell && self.memory().contains(*other, PORT_CELLS);
            std::iter::once(cell).chain(visible.filter(is_other))
        })
    }

    /// The interface of a port that has a policy.
    fn port_with_policy(&self, id: u32) -> Option<u32> {
        let memory = self.memory();
        let found = self.port_cells().find(|&cell| memory.load32(cell, offset_of!(port, policy_id)) == id)?;
        Some(memory.load32(found, offset_of!(port, ifindex)))
    }

    /// Points the ports that have a policy to its cells.
    fn point_ports_to_policy(&self, id: u32, run: u32) {
        for cell in self.port_cells() {
            if self.memory().load32(cell, offset_of!(port, policy_id)) == id {
                self.memory().store32(cell, offset_of!(port, policy), run);
            }
        }
    }

    /// The word by which a port refers to its policy, 0 if it has none.
    pub(super) fn policy_link(&self, id: u32) -> u32 {
        match id {
            0 => 0,
            _ => self.policies.get(&id).copied().unwrap_or(layout::POLICY_CELL_MISSING),
        }
    }

    /// Points an adopted port to its policy. If the tables have lost it, the port is closed until it is added again.
    pub(super) fn point_port_to_policy(&self, cell: u32) {
        let link = self.policy_link(self.memory().load32(cell, offset_of!(port, policy_id)));
        if self.memory().load32(cell, offset_of!(port, policy)) != link {
            self.memory().store32(cell, offset_of!(port, policy), link);
        }
    }
}
