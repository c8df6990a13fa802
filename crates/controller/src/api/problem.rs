//! Errors as problem details of RFC 9457: what is wrong, the offender and the likely cause. Internal details
//! go to the log only.

use crate::place::admission::Full;
use crate::push::EnrollError;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use sluice_store::{Conflict, MigrationConflict, ServiceConflict, StoreError};
use utoipa::ToSchema;

/// Longest text of a problem in bytes. Many texts contain a part of the request.
const DETAIL_BYTES: usize = 1024;
/// Longest name of an offender in bytes.
const OFFENDER_BYTES: usize = 256;

/// Cuts a text that is too long, at the boundary of a character.
fn cut(text: String, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text;
    }
    format!("{}…", &text[..text.floor_char_boundary(bytes_max)])
}

/// An error in the form of RFC 9457.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Problem {
    /// `urn:sluice:problem:` and the name of the kind of problem, which does not change.
    #[serde(rename = "type")]
    #[schema(example = "urn:sluice:problem:name-taken")]
    kind: String,
    /// The kind of problem in words.
    title: String,
    /// The HTTP status.
    status: u16,
    /// This problem in words, with the likely cause.
    detail: String,
    /// The offender: a field of the request, an object or an address.
    #[serde(skip_serializing_if = "Option::is_none")]
    offender: Option<String>,
    /// Seconds after which the request can be repeated.
    #[serde(skip)]
    retry_after_s: Option<u32>,
}

impl Problem {
    /// Creates a problem of a kind.
    pub fn new(status: StatusCode, kind: &str, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("urn:sluice:problem:{kind}"),
            title: title(kind),
            status: status.as_u16(),
            detail: cut(detail.into(), DETAIL_BYTES),
            offender: None,
            retry_after_s: None,
        }
    }

    /// The value of a field is invalid.
    pub fn invalid(field: &str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail).offender(field)
    }

    /// A part of the URL or a header cannot be parsed.
    pub fn bad_request(offender: &str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-request", detail).offender(offender)
    }

    /// Sets the offender.
    pub fn offender(mut self, offender: impl Into<String>) -> Self {
        self.offender = Some(cut(offender.into(), OFFENDER_BYTES));
        self
    }

    /// Adds the position of the part of the request that has the problem.
    pub fn inside(mut self, place: &str) -> Self {
        let field = self.offender.as_deref().map(|field| format!(".{field}")).unwrap_or_default();
        self.detail = cut(format!("{place}: {}", self.detail), DETAIL_BYTES);
        self.offender(format!("{place}{field}"))
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The kind, for the log.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The problem in words.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Converts a store error of a request whose URL names the object `path_id`. If another object is not
    /// found, it was named in the body.
    pub fn of_store(error: StoreError, path_id: Option<&str>) -> Self {
        match error {
            StoreError::NotFound { kind, id } if path_id.is_none_or(|path| path != id) => Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "unknown-reference",
                format!("{kind} {id} does not exist"),
            )
            .offender(id),
            StoreError::InBulk { index, name, source } => {
                let inner = Self::of_store(*source, path_id);
                let detail = format!("instances[{index}] (`{name}`): {}", inner.detail);
                Self { detail, offender: Some(format!("instances[{index}]")), ..inner }
            }
            error => error.into(),
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let text = error.to_string();
        match error {
            StoreError::NotFound { kind, id } => {
                Self::new(StatusCode::NOT_FOUND, "not-found", format!("{kind} {id} does not exist"))
                    .offender(id)
            }
            StoreError::Conflict(conflict) => of_conflict(&conflict),
            StoreError::InBulk { .. } => Self::of_store(error, None),
            StoreError::Stale { id, .. } => Self::new(
                StatusCode::PRECONDITION_FAILED,
                "stale",
                format!("{text}: it was changed after it was read"),
            )
            .offender(id),
            StoreError::Unavailable { .. } => {
                tracing::error!(error = &error as &dyn std::error::Error, "database unavailable");
                Self::unavailable("database-unavailable", &text)
            }
            StoreError::Rewound => Self::unavailable("database-rewound", &text),
            StoreError::Compacted { .. } | StoreError::BadUrl(_) | StoreError::Corrupt(_) => {
                tracing::error!(error = &error as &dyn std::error::Error, "store failed");
                Self::internal()
            }
        }
    }
}

impl From<Full> for Problem {
    fn from(full: Full) -> Self {
        let text = full.to_string();
        Self::new(StatusCode::INSUFFICIENT_STORAGE, "tables-full", text).offender(full.cluster.to_string())
    }
}

impl From<EnrollError> for Problem {
    fn from(error: EnrollError) -> Self {
        match error {
            EnrollError::Store(error) => error.into(),
            EnrollError::Random(_) => {
                tracing::error!(error = &error as &dyn std::error::Error, "cannot create a token");
                Self::internal()
            }
        }
    }
}

impl Problem {
    /// The request can be repeated a second later.
    pub fn unavailable(kind: &str, detail: &str) -> Self {
        let problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, kind, detail);
        Self { retry_after_s: Some(1), ..problem }
    }

    /// The controller has just started, and does not know the placement yet.
    pub fn starting() -> Self {
        Self::unavailable("starting", "the controller has started and still reads the database: try again")
    }

    /// Converts the store error of a change that makes several attempts. Without If-Match, no precondition of
    /// the request failed.
    pub fn of_change(error: StoreError, if_match: Option<u64>) -> Self {
        match error {
            StoreError::Stale { id, .. } if if_match.is_none() => {
                let detail = format!("others changed {id} at the same time: try again");
                Self::new(StatusCode::CONFLICT, "changed", detail).offender(id)
            }
            error => error.into(),
        }
    }

    /// A failure whose details are only in the log.
    pub fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "the controller failed; its log has the cause under the x-request-id of this answer",
        )
    }
}

fn title(kind: &str) -> String {
    let mut title = kind.replace('-', " ");
    if let Some(first) = title.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    title
}

/// A conflict with existing objects is 409. A request that is wrong whatever exists is 422.
fn of_conflict(conflict: &Conflict) -> Problem {
    let with =
        |status, kind, offender: &str| Problem::new(status, kind, conflict.to_string()).offender(offender);
    let conflict_with = |kind, offender: &str| with(StatusCode::CONFLICT, kind, offender);
    let invalid = |kind, offender: &str| with(StatusCode::UNPROCESSABLE_ENTITY, kind, offender);
    match conflict {
        Conflict::NameTaken { name, .. } => conflict_with("name-taken", name),
        Conflict::PrefixOverlap { given, .. } => conflict_with("prefix-overlap", given),
        Conflict::OutsideSubnet { address, .. } => invalid("outside-subnet", address),
        Conflict::ReservedAddress { address, .. } => invalid("reserved-address", address),
        Conflict::AddressTaken { address, .. }
        | Conflict::AddressIsPair { address, .. }
        | Conflict::AddressIsMounted { address, .. }
        | Conflict::PublicAddressTaken { address, .. } => conflict_with("address-taken", address),
        Conflict::AddressDelegated { address, .. } => conflict_with("address-delegated", address),
        Conflict::PairDiffers { given, .. } => conflict_with("pair-differs", given),
        Conflict::PrefixTaken { prefix, .. } => conflict_with("prefix-taken", prefix),
        Conflict::PrefixContains { prefix, .. } => conflict_with("prefix-in-use", prefix),
        Conflict::PrefixIsRoute { prefix, .. } => conflict_with("prefix-is-route", prefix),
        Conflict::RouteIsDelegated { prefix, .. } => conflict_with("route-is-delegated", prefix),
        Conflict::SubnetIsDelegated { given, .. } => conflict_with("subnet-is-delegated", given),
        Conflict::ClaimRefused { address, .. } => conflict_with("claim-refused", address),
        Conflict::UnderlayAddressTaken { address, .. } => conflict_with("underlay-address-taken", address),
        Conflict::MacTaken { mac, .. } | Conflict::MacIsPair { mac, .. } => conflict_with("mac-taken", mac),
        Conflict::NoSuchFamily { address, .. } => invalid("no-such-family", address),
        Conflict::SubnetFull { subnet, .. } => conflict_with("subnet-full", subnet),
        Conflict::VniTaken { vni, .. } => conflict_with("vni-taken", &vni.to_string()),
        Conflict::Held { what, .. } => conflict_with("held", what),
        Conflict::VniExhausted { .. } => conflict_with("vni-exhausted", "vni"),
        Conflict::PeeringOverlap { b_prefix, .. } => conflict_with("peering-overlap", b_prefix),
        Conflict::PeeringAcrossTenants { b, .. } => invalid("peering-across-tenants", b),
        Conflict::AlreadyPeered { peering, .. } => conflict_with("already-peered", peering),
        Conflict::PeeredWithItself => invalid("peered-with-itself", "vpcs"),
        Conflict::ForeignPeering { peering } => invalid("foreign-peering", peering),
        Conflict::VpcNotPeered { vpc, .. } => invalid("vpc-not-peered", vpc),
        Conflict::RouteInsideSubnet { prefix, .. } => conflict_with("route-inside-subnet", prefix),
        Conflict::ForeignSubnet { subnet, .. } => invalid("foreign-subnet", subnet),
        Conflict::InUse { user, .. } => conflict_with("in-use", user),
        Conflict::ForeignSecurityGroup { group, .. } => invalid("foreign-security-group", group),
        Conflict::DefaultSecurityGroup { .. } => conflict_with("default-security-group", "default"),
        Conflict::TooManySecurityGroups { vpc, .. } => conflict_with("too-many-security-groups", vpc),
        Conflict::TooManySecurityRules { group, .. } => conflict_with("too-many-security-rules", group),
        Conflict::SameSecurityRule { rule, .. } => conflict_with("same-security-rule", rule),
        Conflict::IdentitiesExhausted { vpc, .. } => conflict_with("identities-exhausted", vpc),
        Conflict::PeeringAcrossClusters { b, .. } => invalid("peering-across-clusters", b),
        Conflict::VpcMoves { vpc, .. } => conflict_with("vpc-moves", vpc),
        Conflict::NoVipForHost { host, .. } => conflict_with("no-vip-for-host", host),
        Conflict::Migration(conflict) => of_migration(conflict),
        Conflict::Service(conflict) => of_service(conflict),
        Conflict::NoGateways { cluster } => conflict_with("no-gateways", cluster),
        Conflict::LastGateway { gateway } => conflict_with("last-gateway", gateway),
        Conflict::KeyIsNew { cluster, .. } => conflict_with("key-is-new", cluster),
        Conflict::GatewayMoves { gateway, .. } => conflict_with("gateway-moves", gateway),
        Conflict::FamilyMissing { gateway, .. } => invalid("family-missing", gateway),
        Conflict::PoolOverlap { given, .. } => conflict_with("pool-overlap", given),
        Conflict::OutsidePool { address, .. } => invalid("outside-pool", address),
        Conflict::ReservedInPool { address, .. } => invalid("reserved-address", address),
        Conflict::PoolFull { pool, .. } => conflict_with("pool-full", pool),
        Conflict::InsideTaken { eip, .. } => conflict_with("has-eip", eip),
        Conflict::EipAcrossTenants { vpc, .. } => invalid("eip-across-tenants", vpc),
        Conflict::EipAcrossClusters { vpc, .. } => conflict_with("eip-across-clusters", vpc),
        Conflict::VpcHasEip { eip, .. } => conflict_with("vpc-has-eip", eip),
        Conflict::Nat64PrefixTaken { prefix, .. } => conflict_with("nat64-prefix-taken", prefix),
        Conflict::VpcHasNatGateway { nat_gateway, .. } => conflict_with("has-nat-gateway", nat_gateway),
        Conflict::NatGatewayAcrossClusters { pool, .. } => conflict_with("nat-gateway-across-clusters", pool),
        Conflict::NatGatewayStays { nat_gateway, .. } => conflict_with("vpc-has-nat-gateway", nat_gateway),
        Conflict::MeterAcrossTenants { meter, .. } => invalid("meter-across-tenants", meter),
        Conflict::TooManyMeters { tenant, .. } => conflict_with("too-many-meters", tenant),
        Conflict::PortForwarded { endpoint, .. } => conflict_with("port-forwarded", &endpoint.to_string()),
        Conflict::EndpointForwarded { endpoint, .. } => {
            conflict_with("endpoint-forwarded", &endpoint.to_string())
        }
        Conflict::InsideForwarded { forward, .. } => conflict_with("has-port-forward", forward),
        Conflict::TooManyPortForwards { nat_gateway: it, .. } => conflict_with("too-many-port-forwards", it),
        Conflict::PlanApplying { plan } => conflict_with("plan-applying", &plan.to_string()),
        Conflict::PlanDone { plan } => conflict_with("plan-done", &plan.to_string()),
        Conflict::PlanNotApplying { plan } => conflict_with("plan-not-applying", &plan.to_string()),
        Conflict::Invalid { offender, .. } => invalid("invalid", offender),
    }
}

/// Why an instance cannot migrate.
fn of_migration(conflict: &MigrationConflict) -> Problem {
    let (kind, offender) = match conflict {
        MigrationConflict::OnHostAlready { host, .. } => ("on-host-already", host),
        MigrationConflict::InstanceMigrates { instance, .. } => ("instance-migrates", instance),
        MigrationConflict::HostWithoutVswitch { host } => ("host-without-vswitch", host),
        MigrationConflict::MigrationAcrossFamilies { to, .. } => ("migration-across-families", to),
        MigrationConflict::TooManyMigrations { host, .. } => ("too-many-migrations", host),
    };
    Problem::new(StatusCode::CONFLICT, kind, conflict.to_string()).offender(offender)
}

/// Why a service cannot have a member or a mount.
fn of_service(conflict: &ServiceConflict) -> Problem {
    let (kind, offender) = match conflict {
        ServiceConflict::StillMounted { mount, .. } => ("still-mounted", mount),
        ServiceConflict::TenantNotPermitted { vpc, .. } => ("tenant-not-permitted", vpc),
        ServiceConflict::MountedAlready { mount, .. } => ("mounted-already", mount),
        ServiceConflict::InstanceIsMember { service, .. } => ("instance-is-member", service),
        ServiceConflict::ForeignMember { instance, .. } => ("foreign-member", instance),
        ServiceConflict::MemberMigrates { instance } => ("instance-migrates", instance),
        ServiceConflict::MemberWithoutVswitch { host, .. } => ("host-without-vswitch", host),
        ServiceConflict::TooManyMembers { service, .. } => ("too-many-members", service),
        ServiceConflict::TooManyServices { instance, .. } => ("too-many-services", instance),
        ServiceConflict::TooManyVnics { service, .. } => ("too-many-vnics", service),
        ServiceConflict::TooManyMounts { service, .. } => ("too-many-mounts", service),
    };
    let is_wrong = matches!(conflict, ServiceConflict::ForeignMember { .. });
    let status = if is_wrong { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::CONFLICT };
    Problem::new(status, kind, conflict.to_string()).offender(offender)
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let json = HeaderValue::from_static("application/problem+json");
        let mut response = (status, [(header::CONTENT_TYPE, json)], body).into_response();
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_errors_have_status_and_offender() {
        let taken = Conflict::AddressTaken { address: "10.0.0.2".into(), instance: "vm1".into() };
        let problem = Problem::of_store(
            StoreError::InBulk { index: 3, name: "vm9".into(), source: Box::new(taken.into()) },
            Some("vpc-1"),
        );
        assert_eq!(problem.status, 409);
        assert_eq!(problem.offender.as_deref(), Some("instances[3]"));
        assert_eq!(problem.detail, "instances[3] (`vm9`): 10.0.0.2 is already used by instance `vm1`");
        assert_eq!(
            (problem.kind.as_str(), problem.title.as_str()),
            ("urn:sluice:problem:address-taken", "Address taken")
        );

        let not_found = || StoreError::NotFound { kind: "VPC", id: "vpc-1".into() };
        assert_eq!(Problem::of_store(not_found(), Some("vpc-1")).status, 404);
        assert_eq!(Problem::of_store(not_found(), Some("vpc-2")).status, 422);
        assert_eq!(Problem::of_store(not_found(), None).status, 422);

        let stale = || StoreError::Stale { kind: "VPC", id: "vpc-1".into(), current: 7, expected: 6 };
        assert_eq!(Problem::of_change(stale(), None).status, 409);
        assert_eq!(Problem::of_change(stale(), Some(6)).status, 412);

        let unavailable = StoreError::Unavailable { cause: "disk full".into(), source: None };
        let response = Problem::from(unavailable).into_response();
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let long = "ü".repeat(1 << 20);
        let problem = Problem::invalid(&long, format!("{long} is unknown")).inside("instances[3]");
        let offender = problem.offender.as_deref().unwrap();
        assert!(offender.starts_with("instances[3].ü") && offender.ends_with("ü…"), "{offender}");
        assert!(problem.detail.starts_with("instances[3]: ü") && problem.detail.ends_with('…'));
        assert!(offender.len() < OFFENDER_BYTES + 4 && problem.detail.len() < DETAIL_BYTES + 4);
        let short = Problem::invalid("name", "x".repeat(DETAIL_BYTES));
        assert_eq!((short.detail.len(), short.offender.as_deref()), (DETAIL_BYTES, Some("name")));
    }
}
