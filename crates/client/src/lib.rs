//! Client of the REST API, used by the command line, the lab and the scenario tests.
//!
//! [`Client`] is typed: one struct for each kind of object ([`Tenant`], [`Vpc`], ...) and one generic set of
//! calls over [`Resource`]. [`CloudFile`] describes a whole cloud in YAML; [`apply()`] creates what it
//! describes, and can be repeated.
#![forbid(unsafe_code)]

mod apply;
mod cloud;
mod ending;
mod error;
mod health;
mod http;
mod internet;
mod migrations;
mod model;
mod network_classes;
mod new;
mod placement;
mod references;
mod removals;
mod resolve;
mod scheduler;
mod security;
mod services;
mod unconfirmed;
mod wait;

pub use apply::{Event, Options, Report, Tally, apply};
pub use cloud::{
    CloudFile, CloudFileError, ClusterSpec, EipSpec, FieldError, GatewaySpec, HostSpec, InstanceSpec,
    MeterSpec, NatGatewaySpec, NetworkClassSpec, PeeringSpec, PortForwardSpec, PublicPoolSpec, RouteSpec,
    RouteTargetSpec, SecurityGroupSpec, SecurityRuleSpec, SubnetSpec, TenantSpec, VpcSpec,
};
pub use ending::{EndingSessions, HostEndingSessions, InstanceEndingSessions, UnansweredHost};
pub use error::{Error, Problem};
pub use health::{ClassPolicy, Health, HealthFinding};
pub use http::{Client, Created, DEFAULT_API};
pub use internet::{
    Eip, Meter, NatGateway, NewEip, NewMeter, NewNatGateway, NewPortForward, NewPublicPool, PortForward,
    PublicPool,
};
pub use migrations::{InstanceMigration, Migration};
pub use model::{
    AwaitedNode, BulkCreated, Cluster, ClusterVip, EnrollmentBundle, EntryFailure, Gateway, HappenedEvent,
    HeldPair, Host, Instance, KeyRotation, NodeStatus, NodeTable, Peering, PendingRemoval, Removal, Resource,
    Route, RouteTable, RouteTarget, Subnet, Tenant, Vpc,
};
pub use network_classes::{NetworkClass, NewNetworkClass};
pub use new::{
    NewCluster, NewGateway, NewHost, NewInstance, NewObject, NewPeering, NewRoute, NewSubnet, NewTenant,
    NewVpc,
};
pub use placement::{
    NewPlan, Placement, PlacementCluster, PlacementGateway, PlacementPlan, PlacementVpc, PlanStep,
    PlanSummary,
};
pub use scheduler::{Scheduler, SchedulerDecision, SchedulerGateway, SchedulerWait};
pub use security::{DEFAULT_GROUP, NewSecurityGroup, NewSecurityRule, Remote, SecurityGroup, SecurityRule};
pub use services::{Mount, NewMount, NewService, Service, ServiceMember, Vnic};
pub use sluice_types::{AnomalyClass, HealthAction, HealthPolicy, HealthPolicyPatch};
pub use sluice_types::{MigrationStatus, SessionMode};
pub use sluice_types::{PlacementSettings, PlacementSettingsPatch, SchedulerPatch, SchedulerSettings};
pub use unconfirmed::{UnconfirmedEntry, UnconfirmedList, UnconfirmedRemoval, UnconfirmedSelection};
pub use wait::{Deadline, MigrationEnd};

/// Result of every call.
pub type Result<T> = std::result::Result<T, Error>;
