//! Rules of security groups. They do not change: a rule is deleted, and another one created.

use super::App;
use super::problem::Problem;
use super::reply::{self, Programmed};
use super::request::{Id, Json};
use super::resource::{self, Deletable, Listable, Resource};
use crate::push::{Ending, Entries, HostEnding, Needs};
use axum::extract::State;
use axum::response::{Json as Answer, Response};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use sluice_store::{Created, Page, RuleMatch, Store, StoreError};
use sluice_types::{
    AddressFamily, Direction, HostId, InstanceId, IpNet, PortRange, Protocol, SecurityGroupId,
    SecurityRuleId, VpcId, parse_prefix,
};
use std::fmt;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// The other end: the source of ingress, the destination of egress. `"any"` is any address of the family,
/// `{"prefix": "192.0.2.0/24"}` a range of addresses, `{"group": "sg-1"}` the instances that have the group.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Remote {
    Any,
    Prefix(String),
    Group(GroupRef),
}

/// The forms of [`Remote`]. The derived decoder of an enum does not say what it expects.
const REMOTE_FORMS: &str = r#""any", {"prefix": "192.0.2.0/24"} or {"group": "sg-1"}"#;

impl<'de> Deserialize<'de> for Remote {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(RemoteVisitor)
    }
}

struct RemoteVisitor;

impl<'de> Visitor<'de> for RemoteVisitor {
    type Value = Remote;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REMOTE_FORMS)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Remote, E> {
        if text == "any" { Ok(Remote::Any) } else { Err(E::invalid_value(Unexpected::Str(text), &self)) }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Remote, A::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Fields {
            prefix: Option<String>,
            group: Option<GroupRef>,
        }
        match Fields::deserialize(MapAccessDeserializer::new(map))? {
            Fields { prefix: Some(prefix), group: None } => Ok(Remote::Prefix(prefix)),
            Fields { prefix: None, group: Some(group) } => Ok(Remote::Group(group)),
            Fields { prefix: None, group: None } => {
                Err(de::Error::custom(format!("neither prefix nor group is given, expected {REMOTE_FORMS}")))
            }
            _ => Err(de::Error::custom(format!("both prefix and group are given, expected {REMOTE_FORMS}"))),
        }
    }
}

/// Id of a security group of the same VPC.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = String, example = "sg-1")]
struct GroupRef(SecurityGroupId);

/// A rule permits what it matches. What no rule permits is dropped.
#[derive(Serialize, ToSchema)]
struct SecurityRule {
    #[schema(value_type = String, example = "sgr-1")]
    id: SecurityRuleId,
    #[schema(value_type = String, example = "sg-1")]
    group: SecurityGroupId,
    #[schema(value_type = String, example = "vpc-1")]
    vpc: VpcId,
    /// `ingress` or `egress`.
    #[schema(value_type = String, example = "ingress")]
    direction: Direction,
    /// `ipv4` or `ipv6`.
    #[schema(value_type = String, example = "ipv4")]
    family: AddressFamily,
    /// `any`, `tcp`, `udp`, `sctp`, `icmp`, `icmpv6` or a number.
    #[schema(value_type = String, example = "tcp")]
    protocol: Protocol,
    /// Destination ports: one, or the first and the last. If absent, all ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "8000-8099")]
    ports: Option<PortRange>,
    /// If absent, all types of ICMP.
    #[serde(skip_serializing_if = "Option::is_none")]
    icmp_type: Option<u8>,
    /// If absent, all codes.
    #[serde(skip_serializing_if = "Option::is_none")]
    icmp_code: Option<u8>,
    remote: Remote,
    description: String,
    revision: u64,
    #[serde(flatten)]
    programmed: Programmed,
}

impl Resource for SecurityRule {
    type Stored = sluice_store::SecurityRule;
    const PATH: &'static str = "/v1/security-rules";
    const TAG: &'static str = "security";
    const NAME: &'static str = "security_rule";
    const PARAMETER: &'static str = "rule";
    fn needs(stored: &Self::Stored) -> Needs {
        Needs::HostsOf(stored.vpc)
    }
    fn entries(stored: &Self::Stored) -> Entries {
        Entries { vpcs: vec![stored.vpc], ..Entries::default() }
    }
    fn new(stored: Self::Stored, programmed: Programmed) -> Self {
        let sluice_store::SecurityRule { id, group, vpc, matches, description, revision } = stored;
        let RuleMatch { direction, family, protocol, ports, icmp_type, icmp_code, remote } = matches;
        let remote = match remote {
            sluice_store::Remote::Any => Remote::Any,
            sluice_store::Remote::Prefix(prefix) => Remote::Prefix(prefix.to_string()),
            sluice_store::Remote::Group(group) => Remote::Group(GroupRef(group)),
        };
        Self {
            id,
            group,
            vpc,
            direction,
            family,
            protocol,
            ports,
            icmp_type,
            icmp_code,
            remote,
            description,
            revision,
            programmed,
        }
    }
}

/// A rule has no name: the same request again is refused.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewSecurityRule {
    /// `ingress` (to the instance) or `egress` (from it).
    #[schema(value_type = String, example = "ingress")]
    direction: Direction,
    /// `ipv4` or `ipv6`.
    #[schema(value_type = String, example = "ipv4")]
    family: AddressFamily,
    /// `any`, `tcp`, `udp`, `sctp`, `icmp` (only with `ipv4`), `icmpv6` (only with `ipv6`), or a number from 1 to
    /// 255; `any` if left out.
    #[schema(value_type = Option<String>, example = "tcp")]
    protocol: Option<Protocol>,
    /// Destination ports of `tcp`, `udp` or `sctp`: one, or the first and the last; all if left out.
    #[schema(value_type = Option<String>, example = "8000-8099")]
    ports: Option<PortRange>,
    /// Type of `icmp` or `icmpv6`; all if left out.
    #[schema(maximum = 255)]
    icmp_type: Option<u8>,
    /// Code of that type; all if left out.
    #[schema(maximum = 255)]
    icmp_code: Option<u8>,
    /// `"any"` if left out.
    remote: Option<Remote>,
    /// At most 255 bytes, on one line.
    #[serde(default)]
    description: String,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SecurityRuleFilter {
    /// Only rules of this security group.
    #[param(value_type = Option<String>)]
    group: Option<SecurityGroupId>,
    /// Only rules of the security groups of this VPC.
    #[param(value_type = Option<String>)]
    vpc: Option<VpcId>,
}

impl NewSecurityRule {
    fn checked(self, group: SecurityGroupId) -> Result<sluice_store::NewSecurityRule, Problem> {
        let Self { direction, family, protocol, ports, icmp_type, icmp_code, remote, description } = self;
        let prefix = |text: String| -> Result<IpNet, Problem> {
            parse_prefix(&text).map_err(|error| Problem::invalid("remote", error.to_string()))
        };
        let remote = match remote.unwrap_or(Remote::Any) {
            Remote::Any => sluice_store::Remote::Any,
            Remote::Prefix(text) => sluice_store::Remote::Prefix(prefix(text)?),
            Remote::Group(GroupRef(group)) => sluice_store::Remote::Group(group),
        };
        let protocol = protocol.unwrap_or(Protocol::ANY);
        let matches = RuleMatch { direction, family, protocol, ports, icmp_type, icmp_code, remote };
        Ok(sluice_store::NewSecurityRule { group, matches, description })
    }
}

#[utoipa::path(post, path = "/v1/security-groups/{group}/rules", tag = "security",
    params(("group" = String, Path)), request_body = NewSecurityRule,
    responses((status = 201, body = SecurityRule)))]
async fn create_security_rule(
    State(api): State<App>,
    Id(group): Id<SecurityGroupId>,
    Json(body): Json<NewSecurityRule>,
) -> Result<Response, Problem> {
    let path = group.to_string();
    let created = api.db.store.create_security_rule(body.checked(group)?).await;
    let rule = created.map_err(|error| Problem::of_store(error, Some(&path)))?;
    Ok(reply::created::<SecurityRule>(&api, Created::New(rule)))
}

/// The sessions that would end if a rule did not exist: those that no other rule permits.
#[derive(Serialize, ToSchema)]
struct EndingSessions {
    #[schema(value_type = String, example = "sgr-1")]
    rule: SecurityRuleId,
    /// Sessions of all hosts that answered.
    sessions: u64,
    /// The hosts that answered.
    hosts: Vec<HostEndingSessions>,
    /// The hosts with instances of the VPC that did not answer.
    unanswered: Vec<UnansweredHost>,
}

#[derive(Serialize, ToSchema)]
struct HostEndingSessions {
    #[schema(value_type = String, example = "host-1")]
    host: HostId,
    sessions: u64,
    /// The instances of the host with such sessions; at most 1,024.
    instances: Vec<InstanceEndingSessions>,
}

#[derive(Serialize, ToSchema)]
struct InstanceEndingSessions {
    #[schema(value_type = String, example = "inst-1")]
    instance: InstanceId,
    sessions: u64,
}

#[derive(Serialize, ToSchema)]
struct UnansweredHost {
    #[schema(value_type = String, example = "host-1")]
    host: HostId,
    reason: String,
}

impl EndingSessions {
    fn new(rule: SecurityRuleId, ending: Ending) -> Self {
        let sessions = ending.hosts.values().fold(0_u64, |sum, host| sum.saturating_add(host.sessions));
        let of_instance =
            |(instance, sessions): (InstanceId, u64)| InstanceEndingSessions { instance, sessions };
        let of_host = |(host, HostEnding { sessions, instances }): (HostId, HostEnding)| HostEndingSessions {
            host,
            sessions,
            instances: instances.into_iter().map(of_instance).collect(),
        };
        let unanswered = ending.unanswered.into_iter().map(|(host, reason)| UnansweredHost { host, reason });
        Self {
            rule,
            sessions,
            hosts: ending.hosts.into_iter().map(of_host).collect(),
            unanswered: unanswered.collect(),
        }
    }
}

/// Asks the hosts which of their sessions would end if the rule were deleted. Nothing changes. While 16 of these requests are
/// being answered, others get 503 `too-many-questions`.
#[utoipa::path(get, path = "/v1/security-rules/{rule}/ending-sessions", tag = "security",
    params(("rule" = String, Path)), responses((status = 200, body = EndingSessions)))]
async fn get_ending_sessions(
    State(api): State<App>,
    Id(id): Id<SecurityRuleId>,
) -> Result<Answer<EndingSessions>, Problem> {
    let rule = api.db.store.security_rule(id).await?;
    let ending = api.push.ending_sessions(rule.vpc, &[id]).await;
    let ending = ending.map_err(|error| Problem::unavailable("too-many-questions", &error.to_string()))?;
    Ok(Answer(EndingSessions::new(id, ending)))
}

impl Listable for SecurityRule {
    type Filter = SecurityRuleFilter;
    async fn list(
        store: &Store,
        filter: SecurityRuleFilter,
        page: Page,
    ) -> Result<Vec<Self::Stored>, StoreError> {
        store.security_rules(filter.vpc, filter.group, page).await
    }
}

impl Deletable for SecurityRule {}

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(resource::list::<SecurityRule>())
        .routes(resource::get::<SecurityRule>())
        .routes(resource::delete::<SecurityRule>())
        .routes(routes!(create_security_rule))
        .routes(routes!(get_ending_sessions))
}
