//! Arguments of security groups and their rules, and of the groups of instances.

use super::resource::{
    ByVpc, Creatable, Create, Filter, Help, InVpc, Kind, NameInVpc, NoPreview, NoVerb, Parent, Preview, Run,
    Select, Target,
};
use crate::api::{self, ApiArgs};
use crate::failure::Failure;
use crate::output;
use clap::{ArgGroup, Args, Subcommand};
use serde_json::{Map, Value, json};
use sluice_client::{
    Client, Host, NewSecurityGroup, NewSecurityRule, Remote, SecurityGroup, SecurityRule, UnansweredHost,
};
use sluice_types::{
    AddressFamily, Direction, IpNet, PortRange, Protocol, SecurityGroupId, SecurityRuleId, VpcId,
    parse_prefix,
};

impl Kind for SecurityGroup {
    const HELP: Help =
        Help { list: "List security groups; each VPC has one, `default`", show: "Show one security group" };
    const COLUMNS: &'static [&'static str] = &["id", "name", "vpc", "description", "programmed"];
    type Selector = NameInVpc;
    type Filters = ByVpc;
}

impl Creatable for SecurityGroup {
    const CREATE_HELP: &'static str = "Create a security group, which permits egress to any address";
    const DELETE_HELP: &'static str =
        "Delete a security group that no instance has and no rule of another group names";
    type New = NewSecurityGroupArgs;
    type Verbs = SecurityGroupVerb;
    type Preview = NoPreview;
}

#[derive(Args)]
pub struct NewSecurityGroupArgs {
    /// Name, unique in the VPC
    name: String,
    /// VPC of the group: name, TENANT/NAME or id
    #[arg(long)]
    vpc: String,
    /// Text for people
    #[arg(long)]
    description: Option<String>,
}

impl Create for NewSecurityGroupArgs {
    type Object = SecurityGroup;
    type Body = NewSecurityGroup;
    async fn request(self, client: &Client) -> Result<(Parent<Self>, NewSecurityGroup), Failure> {
        let vpc = api::vpc(client, &self.vpc).await?.id;
        Ok((vpc, NewSecurityGroup { name: self.name, description: self.description }))
    }
}

#[derive(Subcommand)]
pub enum SecurityGroupVerb {
    /// Change the name or the description of a security group
    #[command(group(ArgGroup::new("change").required(true).multiple(true)))]
    Update {
        #[command(flatten)]
        target: Target<SecurityGroup>,
        /// New name; the group `default` keeps its name
        #[arg(long = "name", value_name = "NAME", group = "change")]
        new_name: Option<String>,
        /// New text for people
        #[arg(long, group = "change")]
        description: Option<String>,
    },
}

impl Run for SecurityGroupVerb {
    async fn run(self, api: &ApiArgs, client: &Client) -> Result<(), Failure> {
        let Self::Update { target, new_name, description } = self;
        let mut patch = Map::new();
        patch.extend(new_name.map(|name| ("name".to_owned(), json!(name))));
        patch.extend(description.map(|text| ("description".to_owned(), json!(text))));
        output::one(api.output, &target.update(client, &patch).await?)
    }
}

impl Kind for SecurityRule {
    const HELP: Help = Help { list: "List rules of security groups", show: "Show one rule" };
    const COLUMNS: &'static [&'static str] = &[
        "id",
        "group",
        "direction",
        "family",
        "protocol",
        "ports",
        "icmp_type",
        "icmp_code",
        "remote",
        "description",
        "programmed",
    ];
    type Selector = RuleId;
    type Filters = OfGroup;

    fn table_row(&self) -> Value {
        let mut row = serde_json::to_value(self).unwrap_or_default();
        row["remote"] = json!(self.remote.to_string());
        row
    }
}

impl Creatable for SecurityRule {
    const CREATE_HELP: &'static str = "Create a rule, which permits what it matches";
    const DELETE_HELP: &'static str = "Delete a rule";
    type New = NewSecurityRuleArgs;
    type Verbs = NoVerb;
    type Preview = RulePreview;
}

/// Hosts without an answer that are named: each takes a request.
const NAMED_MAX: usize = 20;

/// Shows which sessions the deletion of a rule would end.
#[derive(Args)]
pub struct RulePreview {
    /// Delete nothing: show the sessions that would end, which are those that no other rule permits
    #[arg(long, conflicts_with_all = ["if_revision", "wait"])]
    dry_run: bool,
}

impl Preview<SecurityRule> for RulePreview {
    async fn show(&self, api: &ApiArgs, client: &Client, rule: &SecurityRule) -> Result<bool, Failure> {
        if !self.dry_run {
            return Ok(false);
        }
        let ending = client.ending_sessions(rule.id).await?;
        if api.output == output::Format::Table {
            let rows: Vec<_> = ending.instances().collect();
            output::list(api.output, &["host", "instance", "sessions"], &rows)?;
            eprintln!("{ending}");
        } else {
            output::one(api.output, &ending)?;
        }
        if ending.unanswered.is_empty() {
            return Ok(true);
        }
        let mut hosts = Vec::new();
        for UnansweredHost { host, reason } in ending.unanswered.iter().take(NAMED_MAX) {
            // A host that was deleted meanwhile has no name any more.
            let name = client.get::<Host>(*host).await.map_or_else(|_| host.to_string(), |host| host.name);
            hosts.push(format!("host `{name}`: {reason}"));
        }
        if let Some(more @ 1..) = ending.unanswered.len().checked_sub(NAMED_MAX) {
            hosts.push(format!("and {more} other hosts"));
        }
        Err(Failure::HostsUnanswered(hosts.join("\n  ")))
    }
}

/// Selects a rule: it has no name.
#[derive(Args)]
pub struct RuleId {
    /// Id of the rule
    id: SecurityRuleId,
}

impl Select<SecurityRule> for RuleId {
    async fn find(&self, client: &Client) -> Result<SecurityRule, Failure> {
        Ok(client.get(self.id).await?)
    }
}

/// Finds a group by name or id, if a VPC is given in that VPC.
async fn find_group(client: &Client, text: &str, vpc: Option<&str>) -> Result<SecurityGroup, Failure> {
    let within: Vec<(&str, &str)> = vpc.map(|vpc| ("vpc", vpc)).into_iter().collect();
    Ok(client.find(text, &within).await?)
}

/// Restricts a list of rules to a group or a VPC.
#[derive(Args)]
pub struct OfGroup {
    /// Only rules of this security group: name or id
    #[arg(long)]
    group: Option<String>,
    #[command(flatten)]
    vpc: InVpc,
}

impl Filter for OfGroup {
    async fn query(self, client: &Client) -> Result<Vec<(&'static str, String)>, Failure> {
        let vpc = self.vpc.id(client).await?;
        let mut query = Vec::new();
        if let Some(group) = &self.group {
            query.push(("group", find_group(client, group, vpc.as_deref()).await?.id.to_string()));
        }
        query.extend(vpc.map(|vpc| ("vpc", vpc)));
        Ok(query)
    }
}

#[derive(Args)]
pub struct NewSecurityRuleArgs {
    /// `ingress` (to the instance) or `egress` (from it)
    direction: Direction,
    /// Security group of the rule: name or id
    #[arg(long)]
    group: String,
    #[command(flatten)]
    vpc: InVpc,
    /// `ipv4` or `ipv6` [default: the family of the prefix in --remote]
    #[arg(long)]
    family: Option<AddressFamily>,
    /// `any`, `tcp`, `udp`, `sctp`, `icmp`, `icmpv6` or a number
    #[arg(long, default_value = "any")]
    protocol: Protocol,
    /// Destination ports: one, like 443, or a range, like 8000-8099 [default: all]
    #[arg(long)]
    ports: Option<PortRange>,
    /// Type of ICMP or ICMPv6 [default: all]
    #[arg(long, value_name = "NUMBER")]
    icmp_type: Option<u8>,
    /// Code of the type [default: all]
    #[arg(long, value_name = "NUMBER", requires = "icmp_type")]
    icmp_code: Option<u8>,
    /// Source of ingress, or destination of egress [default: any address]
    #[arg(long, value_name = "PREFIX", value_parser = parse_prefix, conflicts_with = "remote_group")]
    remote: Option<IpNet>,
    /// The same, given by the security group of the instances there: name or id
    #[arg(long, value_name = "GROUP")]
    remote_group: Option<String>,
    /// Text for people
    #[arg(long, default_value = "")]
    description: String,
}

impl Create for NewSecurityRuleArgs {
    type Object = SecurityRule;
    type Body = NewSecurityRule;
    async fn request(self, client: &Client) -> Result<(Parent<Self>, NewSecurityRule), Failure> {
        let family = self.family.or_else(|| self.remote.as_ref().map(AddressFamily::of));
        let family = family.ok_or_else(|| {
            Failure::Usage("give --family ipv4 or --family ipv6; a rule is for one address family".to_owned())
        })?;
        let vpc = self.vpc.id(client).await?;
        let group = find_group(client, &self.group, vpc.as_deref()).await?;
        let remote = match (self.remote, &self.remote_group) {
            (Some(prefix), _) => Remote::Prefix(prefix),
            (None, Some(remote)) => {
                Remote::Group(find_group(client, remote, Some(&group.vpc.to_string())).await?.id)
            }
            (None, None) => Remote::Any,
        };
        let Self { direction, protocol, ports, icmp_type, icmp_code, description, .. } = self;
        let rule =
            NewSecurityRule { direction, family, protocol, ports, icmp_type, icmp_code, remote, description };
        Ok((group.id, rule))
    }
}

/// The security groups of an instance.
#[derive(Args)]
pub struct Groups {
    /// Security group of the instance: name or id; can be given up to 5 times
    #[arg(long, value_name = "GROUP", conflicts_with = "no_security_groups")]
    security_group: Vec<String>,
    /// The instance has no security groups: its port is not filtered
    #[arg(long)]
    no_security_groups: bool,
}

impl Groups {
    /// The ids of the groups; `None` if no option was given.
    pub async fn ids(&self, client: &Client, vpc: VpcId) -> Result<Option<Vec<SecurityGroupId>>, Failure> {
        if self.security_group.is_empty() {
            return Ok(self.no_security_groups.then(Vec::new));
        }
        let mut ids = Vec::new();
        for group in &self.security_group {
            ids.push(find_group(client, group, Some(&vpc.to_string())).await?.id);
        }
        Ok(Some(ids))
    }
}
