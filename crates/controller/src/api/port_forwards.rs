//! Port forwards of NAT gateways: ports of a public address that stand for ports of instances.

use super::problem::Problem;
use super::reply::Programmed;
use super::request::check_name;
use super::resource::{self, Creatable, Deletable, Listable, Resource};
use super::{Api, App};
use crate::place::admission::demand::{Demand, NewObjects};
use crate::push::{Entries, Needs};
use serde::{Deserialize, Serialize};
use sluice_store::{Created, Page, Store, StoreError};
use sluice_types::{ForwardProtocol, InstanceId, NatGatewayId, PortForwardId, VpcId};
use std::net::{IpAddr, Ipv4Addr};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;

/// A port of a NAT gateway's address that stands for a port of an instance: packets to it go to the instance, and packets that the
/// instance sends from its port leave by it.
#[derive(Serialize, ToSchema)]
struct PortForward {
    #[schema(value_type = String, example = "fwd-1")]
    id: PortForwardId,
    name: String,
    #[schema(value_type = String, example = "nat-1")]
    nat_gateway: NatGatewayId,
    /// VPC of the NAT gateway and of the instance.
    #[schema(value_type = String, example = "vpc-1")]
    vpc: VpcId,
    /// `tcp` or `udp`.
    #[schema(value_type = String, example = "tcp")]
    protocol: ForwardProtocol,
    /// Public address, one of the NAT gateway.
    #[schema(value_type = String, example = "198.51.100.1")]
    address: Ipv4Addr,
    /// Port of the public address.
    #[schema(minimum = 1)]
    port: u16,
    #[schema(value_type = String, example = "inst-1")]
    instance: InstanceId,
    /// The instance's own IPv4 address.
    #[schema(value_type = String, example = "10.0.0.2")]
    inside: Ipv4Addr,
    /// Port of the instance.
    #[schema(minimum = 1)]
    inside_port: u16,
    revision: u64,
    #[serde(flatten)]
    programmed: Programmed,
}

impl Resource for PortForward {
    type Stored = sluice_store::PortForward;
    const PATH: &'static str = "/v1/port-forwards";
    const TAG: &'static str = "internet";
    const NAME: &'static str = "port_forward";
    fn needs(stored: &Self::Stored) -> Needs {
        Needs::Vpc(stored.vpc)
    }
    fn entries(stored: &Self::Stored) -> Entries {
        Entries { vpcs: vec![stored.vpc], nat_gateway: true, ..Entries::default() }
    }
    fn new(stored: Self::Stored, programmed: Programmed) -> Self {
        let sluice_store::PortForward { id, name, nat_gateway, vpc, protocol, address, port, .. } = stored;
        let (instance, inside, inside_port) = (stored.instance, stored.inside, stored.inside_port);
        let revision = stored.revision;
        Self {
            id,
            name,
            nat_gateway,
            vpc,
            protocol,
            address,
            port,
            instance,
            inside,
            inside_port,
            revision,
            programmed,
        }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewPortForward {
    /// Name, unique in the NAT gateway.
    name: String,
    /// It has at most 256.
    #[schema(value_type = String, example = "nat-1")]
    nat_gateway: NatGatewayId,
    /// `tcp` or `udp`.
    #[schema(value_type = String, example = "tcp")]
    protocol: ForwardProtocol,
    /// An address of the NAT gateway. If left out, its lowest.
    #[schema(value_type = Option<String>, example = "198.51.100.1")]
    address: Option<IpAddr>,
    /// Port of the public address, 1 to 65535.
    #[schema(minimum = 1)]
    port: u16,
    /// An instance of the NAT gateway's VPC with an IPv4 address that has no EIP.
    #[schema(value_type = String, example = "inst-1")]
    instance: InstanceId,
    /// Port of the instance, 1 to 65535. If left out, the same as `port`. No other port forward of the protocol leads to it.
    #[schema(minimum = 1)]
    inside_port: Option<u16>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PortForwardFilter {
    /// Only port forwards of this NAT gateway.
    #[param(value_type = Option<String>)]
    nat_gateway: Option<NatGatewayId>,
    /// Only port forwards of the NAT gateway of this VPC.
    #[param(value_type = Option<String>)]
    vpc: Option<VpcId>,
    /// Only port forwards to this instance.
    #[param(value_type = Option<String>)]
    instance: Option<InstanceId>,
    /// Only port forwards with this name, at most one for each NAT gateway.
    name: Option<String>,
}

impl Listable for PortForward {
    type Filter = PortForwardFilter;
    async fn list(
        store: &Store,
        filter: PortForwardFilter,
        page: Page,
    ) -> Result<Vec<Self::Stored>, StoreError> {
        let PortForwardFilter { nat_gateway, vpc, instance, name } = filter;
        store.port_forwards(&sluice_store::PortForwardFilter { nat_gateway, vpc, instance, name }, page).await
    }
}

impl Deletable for PortForward {}

impl Creatable for PortForward {
    type New = NewPortForward;
    async fn create(api: &Api, new: NewPortForward) -> Result<Created<Self::Stored>, Problem> {
        check_name("name", &new.name)?;
        let NewPortForward { name, nat_gateway, protocol, address, port, instance, inside_port } = new;
        let store = &api.db.store;
        let of_store = |error| Problem::of_store(error, None);
        let vpc = store.nat_gateway(nat_gateway).await.map_err(of_store)?.vpc;
        let same = sluice_store::PortForwardFilter {
            nat_gateway: Some(nat_gateway),
            name: Some(name.clone()),
            ..Default::default()
        };
        let exists = async { Ok(!store.port_forwards(&same, super::FIRST).await?.is_empty()) };
        let demand = Demand { routes: 1, ..Demand::default() };
        let admission = api.admit(NewObjects::Further(vpc, demand), exists).await?;
        let new = sluice_store::NewPortForward {
            name,
            nat_gateway,
            protocol,
            address,
            port,
            instance,
            inside_port,
        };
        let created = store.create_port_forward(new).await.map_err(of_store)?;
        super::settle(admission, &created);
        Ok(created)
    }
}

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(resource::create::<PortForward>())
        .routes(resource::list::<PortForward>())
        .routes(resource::get::<PortForward>())
        .routes(resource::delete::<PortForward>())
}
