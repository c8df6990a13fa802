//! Finds the sessions that would end if some rules of security groups did not exist. What another rule permits goes on, as the
//! review after the change would decide. Reads only, beside packets and the review.

use std::collections::{BTreeMap, HashMap};

use sluice_agent::error_chain;
use sluice_tables::sessions::{Session, SessionReader, ticks_now};
use sluice_tables::{Error, Immediate, Memory, NodeTables, Reader, Sizes, Verdict, layout};
use sluice_types::InstanceId;

use crate::policies::Without;

/// Cells of tables that hold one policy, and little else.
const SCRATCH_CELLS: u32 = layout::POLICY_CELLS_MAX + 4096;

/// What is needed to find the sessions.
#[derive(Debug)]
pub struct Ending {
    /// Reads the sessions.
    pub sessions: SessionReader,
    /// The instances by the numbers of their ports.
    pub ports: HashMap<u32, InstanceId>,
    /// The policies that would change, by generation.
    pub policies: HashMap<u32, Without>,
}

/// A policy without the rules, compiled as the tables would have it.
pub(crate) struct Left<'a> {
    without: &'a Without,
    reader: Reader,
    cell: u32,
}

impl<'a> Left<'a> {
    pub(crate) fn compile(without: &'a Without) -> Result<Self, String> {
        let memory = Memory::anonymous(SCRATCH_CELLS).map_err(|error| error_chain(&error))?;
        let compiled =
            NodeTables::create(memory, Immediate, Sizes { endpoints: 16 }).and_then(|mut tables| {
                tables.upsert_policy(&without.left)?;
                Ok::<_, Error>(tables.reader())
            });
        let reader = compiled.map_err(|error| error_chain(&error))?;
        let cell = reader.policy_cell(without.left.id).ok().flatten();
        Ok(Self { without, reader, cell: cell.ok_or("the policy cannot be compiled")? })
    }

    pub(crate) fn ends(&self, session: &Session) -> bool {
        let verdict = || self.reader.evaluate(self.cell, &session.first_packet());
        self.without.removed.contains(&session.rule()) && !matches!(verdict(), Verdict::Permitted(_))
    }
}

impl Ending {
    /// Numbers of sessions that would end, by instance.
    ///
    /// # Errors
    /// If there is no memory for a policy.
    pub fn find(self) -> Result<BTreeMap<InstanceId, u64>, String> {
        let mut found = BTreeMap::new();
        let now = ticks_now();
        // One at a time: each may take 8 MiB.
        for (generation, without) in &self.policies {
            let left = Left::compile(without)?;
            let of_policy = self.sessions.iter().filter(|session| session.policy_generation() == *generation);
            let live = of_policy.filter(|session| {
                session.expires_at.wrapping_sub(now).cast_signed() > 0 && !session.is_revoked()
            });
            for session in live.filter(|session| left.ends(session)) {
                if let Some(instance) = self.ports.get(&session.flow.scope) {
                    *found.entry(*instance).or_default() += 1;
                }
            }
        }
        Ok(found)
    }
}
