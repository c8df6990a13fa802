//! The calls about security groups.

use super::{RETRIES, Store};
use crate::backend::{Query, is_retryable};
use crate::ops::{group_sets, instances, migrations, security_groups, security_rules};
use crate::rows::{get, page};
use crate::write::Write;
use crate::*;
use sluice_types::{HostId, InstanceId, MigrationStatus, SecurityGroupId, SecurityRuleId, VpcId};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

impl Store {
    /// Creates a group with its initial rules: egress to any address. A new VPC has the group
    /// [`DEFAULT_GROUP`] already.
    pub async fn create_security_group(&self, new: NewSecurityGroup) -> Result<Created<SecurityGroup>> {
        write!(self, w => security_groups::create(w, &new))
    }

    pub async fn security_group(&self, id: SecurityGroupId) -> Result<SecurityGroup> {
        get(&mut self.reader(), id).await
    }

    pub async fn security_groups(
        &self,
        vpc: Option<VpcId>,
        name: Option<&str>,
        at: Page,
    ) -> Result<Vec<SecurityGroup>> {
        let filters = vec![("vpc", vpc.map(|v| v.get().into())), ("name", name.map(Into::into))];
        page(&mut self.reader(), filters, at).await
    }

    pub async fn update_security_group(
        &self,
        id: SecurityGroupId,
        new: SecurityGroupUpdate,
        expected: Option<u64>,
    ) -> Result<SecurityGroup> {
        write!(self, w => security_groups::update(w, id, &new, expected))
    }

    /// Deletes a group that no instance has and no rule of another group names, with its rules.
    pub async fn delete_security_group(&self, id: SecurityGroupId, expected: Option<u64>) -> Result<u64> {
        write!(self, w => security_groups::delete(w, id, expected))
    }

    /// Creates a rule. A rule has no name, so the same request again is refused with
    /// [`Conflict::SameSecurityRule`].
    pub async fn create_security_rule(&self, new: NewSecurityRule) -> Result<SecurityRule> {
        write!(self, w => security_rules::create(w, &new))
    }

    pub async fn security_rule(&self, id: SecurityRuleId) -> Result<SecurityRule> {
        get(&mut self.reader(), id).await
    }

    pub async fn security_rules(
        &self,
        vpc: Option<VpcId>,
        group: Option<SecurityGroupId>,
        at: Page,
    ) -> Result<Vec<SecurityRule>> {
        let filters =
            vec![("vpc", vpc.map(|v| v.get().into())), ("security_group", group.map(|g| g.get().into()))];
        page(&mut self.reader(), filters, at).await
    }

    pub async fn delete_security_rule(&self, id: SecurityRuleId, expected: Option<u64>) -> Result<u64> {
        write!(self, w => security_rules::delete(w, id, expected))
    }

    /// Gives an instance other security groups; with an empty list, its port is not filtered.
    pub async fn set_security_groups(
        &self,
        id: InstanceId,
        groups: &[SecurityGroupId],
        expected: Option<u64>,
    ) -> Result<Instance> {
        write!(self, w => instances::set_groups(w, id, groups, expected, self.max_identity))
    }

    /// An instance, its security groups in ascending order, and how far its migration is.
    pub async fn instance_with_groups(&self, id: InstanceId) -> Result<InstanceWithGroups> {
        let mut tx = self.backend.begin_read().await?;
        let result = async {
            let instance = get(tx.as_mut(), id).await?;
            Ok(with_groups(tx.as_mut(), vec![instance]).await?.remove(0))
        };
        let result = result.await;
        tx.rollback().await?;
        result
    }

    /// As [`Store::instances`], with the security groups of each instance in ascending order, and how far its migration is.
    pub async fn instances_with_groups(
        &self,
        vpc: Option<VpcId>,
        host: Option<HostId>,
        name: Option<&str>,
        at: Page,
    ) -> Result<Vec<InstanceWithGroups>> {
        let mut tx = self.backend.begin_read().await?;
        let result = async {
            let instances = page(tx.as_mut(), instances::filters(vpc, host, name), at).await?;
            with_groups(tx.as_mut(), instances).await
        };
        let result = result.await;
        tx.rollback().await?;
        result
    }
}

/// An instance, its security groups, and how far its migration is; `None` if it does not migrate.
pub type InstanceWithGroups = (Instance, Vec<SecurityGroupId>, Option<MigrationStatus>);

/// Adds groups and migrations to instances that the same transaction read.
async fn with_groups(q: &mut dyn Query, instances: Vec<Instance>) -> Result<Vec<InstanceWithGroups>> {
    let statuses = migrations::statuses(q, &instances).await?;
    let mut wanted: BTreeMap<VpcId, BTreeSet<u16>> = BTreeMap::new();
    for instance in instances.iter().filter(|instance| instance.identity != 0) {
        wanted.entry(instance.vpc).or_default().insert(instance.identity);
    }
    let mut sets = HashMap::new();
    for (vpc, identities) in wanted {
        let identities: Vec<u16> = identities.into_iter().collect();
        for set in group_sets::with_identities(q, vpc, &identities).await? {
            sets.insert((set.vpc, set.identity), set.groups);
        }
    }
    let with_groups = |instance: Instance| {
        let groups = match instance.identity {
            0 => Vec::new(),
            identity => sets.get(&(instance.vpc, identity)).cloned().ok_or_else(|| {
                StoreError::Corrupt(format!("{} has identity {identity}, which is no set", instance.id))
            })?,
        };
        let status = statuses.get(&instance.id).copied();
        Ok((instance, groups, status))
    };
    instances.into_iter().map(with_groups).collect()
}
