//! Security groups, their rules, and the groups of instances.

use super::{Applier, Tally};
use crate::cloud::name_in;
use crate::{
    NewObject, NewSecurityGroup, Remote, Resource, Result, SecurityGroup, SecurityGroupSpec, SecurityRule,
    VpcSpec,
};
use sluice_types::{SecurityGroupId, VpcId};

impl Applier<'_> {
    /// Creates the groups of a VPC, then their rules: a rule can name any group of the VPC. `None`: a dry run would
    /// create the VPC.
    pub(super) async fn security_groups(&mut self, spec: &VpcSpec, vpc: Option<VpcId>) -> Result<()> {
        let mut ids = Vec::with_capacity(spec.security_groups.len());
        let within = vpc.map(|vpc| vpc.to_string()).unwrap_or_default();
        for group in &spec.security_groups {
            let body = NewSecurityGroup { name: group.name.clone(), description: group.description.clone() };
            let id = self.create_or_compare(&group.name, vpc, &[("vpc", &within)], Some(body)).await?;
            if let Some(vpc) = vpc {
                self.ids.groups.insert((vpc, group.name.clone()), id);
            }
            ids.push(id);
        }
        for (group, id) in spec.security_groups.iter().zip(ids) {
            self.security_rules(group, vpc.zip(id)).await?;
        }
        Ok(())
    }

    /// Creates the rules that the group does not have. `None`: a dry run would create the group.
    async fn security_rules(
        &mut self,
        spec: &SecurityGroupSpec,
        at: Option<(VpcId, SecurityGroupId)>,
    ) -> Result<()> {
        if spec.rules.is_empty() {
            return Ok(());
        }
        let existing: Vec<String> = match at {
            Some((_, group)) => {
                let rules: Vec<SecurityRule> =
                    self.client.list(&[("group", &group.to_string())], None).await?;
                rules.iter().map(Resource::name).collect()
            }
            None => Vec::new(),
        };
        for rule in &spec.rules {
            let remote = match (&rule.remote, at) {
                (Remote::Group(text), Some((vpc, _))) => self.security_group(vpc, text).await?,
                _ => None,
            };
            let body = rule.request(remote);
            let is_known = body.as_ref().is_some_and(|body| existing.contains(&body.name()));
            if let (false, false, Some((_, group)), Some(body)) = (self.options.dry_run, is_known, at, &body)
            {
                self.client.create(group, body).await?;
            }
            let name = format!("{} {} {} of {}", rule.direction, rule.family, rule.protocol, spec.name);
            self.report_step(SecurityRule::NOUN, &name, Tally::of(!is_known), None);
        }
        Ok(())
    }

    /// The id of a group of a VPC. `None`: a dry run would create the group.
    async fn security_group(&mut self, vpc: VpcId, text: &str) -> Result<Option<SecurityGroupId>> {
        for key in [name_in(text), text] {
            if let Some(id) = self.ids.groups.get(&(vpc, key.to_owned())) {
                return Ok(*id);
            }
        }
        let found = self.client.id_of::<SecurityGroup>(text, &[("vpc", &vpc.to_string())]).await;
        let id = self.none_if_not_created_yet(found)?;
        self.ids.groups.insert((vpc, text.to_owned()), id);
        Ok(id)
    }

    /// The groups of an instance. The outer `None`: a dry run would create one of them.
    pub(super) async fn groups_of(
        &mut self,
        vpc: VpcId,
        texts: Option<&[String]>,
    ) -> Result<Option<Option<Vec<SecurityGroupId>>>> {
        let Some(texts) = texts else { return Ok(Some(None)) };
        let mut groups = Vec::with_capacity(texts.len());
        for text in texts {
            match self.security_group(vpc, text).await? {
                Some(id) => groups.push(id),
                None => return Ok(None),
            }
        }
        Ok(Some(Some(groups)))
    }
}
