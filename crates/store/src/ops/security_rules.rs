//! Rules of security groups: creation and deletion. Rules do not change.

use super::removals;
use crate::backend::Query;
use crate::check::{self, invalid};
use crate::rows::{check_revision, get};
use crate::security::MAX_RULES;
use crate::value::args;
use crate::write::Write;
use crate::{Change, Conflict, NewSecurityRule, Remote, Result, RuleMatch, SecurityGroup, SecurityRule, Vpc};
use sluice_types::SecurityRuleId;

/// Checks a rule by itself. The errors name the field.
fn check(new: &NewSecurityRule) -> Result<()> {
    check::description(&new.description)?;
    new.matches.check().map_err(|error| invalid(error.field, error.problem))
}

/// Inserts a rule that was checked.
pub(super) async fn insert(q: &mut dyn Query, rule: &SecurityRule) -> Result<()> {
    let RuleMatch { direction, family, protocol, ports, icmp_type, icmp_code, remote } = &rule.matches;
    let (prefix, group) = match remote {
        Remote::Any => (None, None),
        Remote::Prefix(prefix) => (Some(prefix.to_string()), None),
        Remote::Group(group) => (None, Some(group.get() as i64)),
    };
    let sql = "INSERT INTO security_rules (id, security_group, vpc, direction, family, protocol, ports, icmp_type, \
               icmp_code, remote, remote_group, content, description, revision) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)";
    let values = args![
        rule.id.get(),
        rule.group.get(),
        rule.vpc.get(),
        direction.to_string(),
        family.to_string(),
        protocol.number().map(i64::from),
        ports.map(|ports| ports.to_string()),
        icmp_type.map(i64::from),
        icmp_code.map(i64::from),
        prefix,
        group,
        rule.matches.to_string(),
        rule.description.as_str(),
        rule.revision,
    ];
    q.run(sql, values).await.map(drop)
}

pub(crate) async fn create(w: &mut Write, new: &NewSecurityRule) -> Result<SecurityRule> {
    check(new)?;
    let group: SecurityGroup = get(w.q(), new.group).await?;
    let vpc: Vpc = get(w.q(), group.vpc).await?;
    if let Remote::Group(remote) = new.matches.remote {
        let remote: SecurityGroup = get(w.q(), remote).await?;
        if remote.vpc != vpc.id {
            return Err(Conflict::ForeignSecurityGroup { group: remote.name, vpc: vpc.name }.into());
        }
    }
    let matches = new.matches.to_string();
    let sql = "SELECT id FROM security_rules WHERE security_group = $1 AND content = $2";
    if let Some(row) = w.q().row(sql, args![group.id.get(), matches.as_str()]).await? {
        let rule = SecurityRuleId::new(row.number(0)?).to_string();
        return Err(Conflict::SameSecurityRule { group: group.name, rule, matches }.into());
    }
    let sql = "SELECT COUNT(*) FROM security_rules WHERE security_group = $1";
    let row = w.q().row(sql, args![group.id.get()]).await?;
    if row.map_or(Ok(0), |row| row.number(0))? >= MAX_RULES {
        return Err(Conflict::TooManySecurityRules { group: group.name, max: MAX_RULES }.into());
    }
    let rule = SecurityRule {
        id: SecurityRuleId::new(w.id()),
        group: group.id,
        vpc: vpc.id,
        matches: new.matches.clone(),
        description: new.description.clone(),
        revision: w.revision,
    };
    insert(w.q(), &rule).await?;
    w.push(&Change::SecurityRuleCreated { vpc, rule: rule.clone() })?;
    Ok(rule)
}

pub(crate) async fn delete(w: &mut Write, id: SecurityRuleId, expected: Option<u64>) -> Result<u64> {
    let rule: SecurityRule = get(w.q(), id).await?;
    check_revision(id, &rule, expected)?;
    let group: SecurityGroup = get(w.q(), rule.group).await?;
    let vpc: Vpc = get(w.q(), rule.vpc).await?;
    w.q().run("DELETE FROM security_rules WHERE id = $1", args![id.get()]).await?;
    let nodes = removals::gateways_and_hosts_of(w.q(), &vpc).await?;
    let name = format!("{} of {}", rule.matches, group.name);
    w.push(&Change::SecurityRuleRemoved { vpc, rule })?;
    removals::record(w, ("security rule", id.get(), &name), nodes, &[]).await
}
