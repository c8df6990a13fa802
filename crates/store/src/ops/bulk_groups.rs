//! The security groups of the instances of a bulk creation: each set is looked up once, whatever the number of instances
//! that have it.

use super::bulk_plan::in_bulk;
use super::group_sets;
use crate::backend::Query;
use crate::check::Difference;
use crate::security::DEFAULT_GROUP;
use crate::value::{args, list};
use crate::write::Write;
use crate::{Instance, NewInstance, Result, StoreError, Vpc};
use sluice_types::SecurityGroupId;
use std::collections::HashMap;

/// The sets of groups that the requests name.
#[derive(Default)]
pub(crate) struct BulkGroups {
    /// Each set in ascending order, with its identity if it has one. The first is that of the group `default`.
    sets: Vec<(Vec<SecurityGroupId>, Option<u16>)>,
    /// Positions in `sets` by the list of a request.
    positions: HashMap<Vec<SecurityGroupId>, usize>,
}

impl BulkGroups {
    /// Reads and checks the groups of all requests.
    pub async fn read(q: &mut dyn Query, vpc: &Vpc, new: &[NewInstance]) -> Result<Self> {
        let sql = "SELECT id, name FROM security_groups WHERE vpc = $1";
        let (mut known, mut default) = (Vec::new(), None);
        for row in q.rows(sql, args![vpc.id.get()]).await? {
            let id = SecurityGroupId::new(row.number(0)?);
            known.push(id);
            default = default.or((row.text(1)? == DEFAULT_GROUP).then_some(id));
        }
        let missing = || StoreError::Corrupt(format!("{} has no security group `{DEFAULT_GROUP}`", vpc.id));
        let mut groups = Self { sets: vec![(vec![default.ok_or_else(missing)?], None)], ..Self::default() };
        for (index, one) in new.iter().enumerate() {
            let Some(requested) = one.security_groups.as_ref().filter(|groups| !groups.is_empty()) else {
                continue;
            };
            if groups.positions.contains_key(requested) {
                continue;
            }
            let set = group_sets::sorted(requested).map_err(|e| in_bulk(new, index, e))?;
            for unknown in set.iter().filter(|group| !known.contains(group)) {
                group_sets::check_group(q, vpc, *unknown).await.map_err(|e| in_bulk(new, index, e))?;
            }
            let position = groups.positions.get(&set).copied().unwrap_or(groups.sets.len());
            if position == groups.sets.len() {
                groups.positions.insert(set.clone(), position);
                groups.sets.push((set, None));
            }
            groups.positions.insert(requested.clone(), position);
        }
        let all: Vec<_> = groups.sets.iter().map(|(set, _)| set.clone()).collect();
        let found = group_sets::find(q, vpc.id, &all).await?;
        for (set, identity) in &mut groups.sets {
            *identity = found.get(set).copied();
        }
        Ok(groups)
    }

    /// Position of the set of a new instance; `None` if it has no groups.
    fn position(&self, one: &NewInstance) -> Option<usize> {
        match &one.security_groups {
            None => Some(0),
            Some(groups) if groups.is_empty() => None,
            Some(groups) => Some(self.positions[groups]),
        }
    }

    /// Assigns identities to the sets of the instances that are created, and counts the instances. Without `has_groups`, none of
    /// them lists its groups.
    pub async fn assign(
        &mut self,
        w: &mut Write,
        vpc: &Vpc,
        created: impl ExactSizeIterator<Item = &NewInstance>,
        has_groups: bool,
        max_identity: u16,
    ) -> Result<()> {
        let mut counts = vec![0i64; self.sets.len()];
        if has_groups {
            created.filter_map(|one| self.position(one)).for_each(|position| counts[position] += 1);
        } else {
            counts[0] = created.len() as i64;
        }
        let is_new = |at: &usize| counts[*at] > 0 && self.sets[*at].1.is_none();
        let new: Vec<usize> = (0..counts.len()).filter(is_new).collect();
        let sets = new.iter().map(|at| self.sets[*at].0.clone()).collect();
        let identities = group_sets::create(w, vpc, sets, max_identity).await?;
        for (at, identity) in new.into_iter().zip(identities) {
            self.sets[at].1 = Some(identity);
        }
        for (count, (_, identity)) in counts.into_iter().zip(&self.sets) {
            if let (1.., Some(identity)) = (count, identity) {
                group_sets::count(w.q(), vpc.id, *identity, count).await?;
            }
        }
        Ok(())
    }

    /// The identity of an instance; 0 if it has no groups, or its set has no identity yet.
    pub fn identity(&self, one: &NewInstance) -> u16 {
        self.position(one).and_then(|position| self.sets[position].1).unwrap_or_default()
    }

    /// Checks that an existing instance has the groups that a request with its name lists.
    pub async fn check_same(&self, q: &mut dyn Query, instance: &Instance, one: &NewInstance) -> Result<()> {
        let Some(requested) = &one.security_groups else { return Ok(()) };
        let identity = self.position(one).map_or(Some(0), |position| self.sets[position].1);
        if identity == Some(instance.identity) {
            return Ok(());
        }
        let sets = group_sets::with_identities(q, instance.vpc, &[instance.identity]).await?;
        let existing = sets.first().map(|set| set.groups.clone()).unwrap_or_default();
        Difference::default()
            .field("security_groups", text(&existing), text(&group_sets::sorted(requested)?))
            .conflict("instance", &one.name)
    }
}

/// The groups as errors name them.
pub(super) fn text(groups: &[SecurityGroupId]) -> String {
    if groups.is_empty() { "empty".to_owned() } else { list(groups) }
}
