//! The handlers that all resources share: get, list, create and delete, with their OpenAPI operations. This
//! file changes when the conventions of the API change, not when a resource gets a field.
//!
//! A resource implements [`Resource`], and of [`Listable`], [`Creatable`] and [`Deletable`] those that it
//! has. What is special about a resource (patches, creation below another object) has handlers in its own
//! file.

use super::problem::Problem;
use super::removals::{self, Removal, RemovalWait};
use super::reply::{self, List, Programmed};
use super::request::{Id, IfMatch, Json, ListQuery, MAX_LIMIT, Query};
use super::{Api, App};
use crate::push::{Entries, Needs};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sluice_store::{Page, Store, StoreError};
use sluice_types::{
    ClusterId, EipId, GatewayId, HostId, MeterId, MountId, NatGatewayId, NetworkClassId, PeeringId,
    PortForwardId, PublicPoolId, RouteTableId, SecurityGroupId, SecurityRuleId, ServiceId, SubnetId,
    TenantId, VpcId,
};
use std::fmt::Display;
use std::str::FromStr;
use utoipa::openapi::path::{
    HttpMethod, OperationBuilder, Parameter, ParameterBuilder, ParameterIn, Paths, PathsBuilder,
};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{ObjectBuilder, SchemaType, Type};
use utoipa::openapi::{Content, Ref, RefOr, Required, ResponseBuilder, Schema};
use utoipa::{IntoParams, PartialSchema, ToSchema};
use utoipa_axum::router::UtoipaMethodRouter;

/// An identifier with a number of the store.
pub trait Number: Copy + Display + FromStr<Err: Display> + Send + 'static {
    /// The store's number.
    fn number(self) -> u64;
}

/// The store's model of a resource.
pub trait Stored: Sized + Send {
    /// Its identifier.
    type Id: Number;
    /// Its identifier.
    fn id(&self) -> Self::Id;
    /// Revision of its last change.
    fn revision(&self) -> u64;
    /// Reads one object.
    fn find(store: &Store, id: Self::Id) -> impl Future<Output = Result<Self, StoreError>> + Send;
}

/// The store's model of a resource that can be deleted.
pub trait StoredDelete: Stored {
    /// Deletes an object, if its revision is the expected one. Returns the revision of the deletion.
    fn delete(
        store: &Store,
        id: Self::Id,
        expected: Option<u64>,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;
}

macro_rules! stored {
    ($($model:ident $id:ident $find:ident $($delete:ident)?;)*) => {$(
        impl Number for $id {
            fn number(self) -> u64 {
                self.get()
            }
        }

        impl Stored for sluice_store::$model {
            type Id = $id;
            fn id(&self) -> $id {
                self.id
            }
            fn revision(&self) -> u64 {
                self.revision
            }
            async fn find(store: &Store, id: $id) -> Result<Self, StoreError> {
                store.$find(id).await
            }
        }

        $(impl StoredDelete for sluice_store::$model {
            async fn delete(store: &Store, id: $id, expected: Option<u64>) -> Result<u64, StoreError> {
                store.$delete(id, expected).await
            }
        })?
    )*};
}

stored! {
    Tenant TenantId tenant delete_tenant;
    Cluster ClusterId cluster delete_cluster;
    Gateway GatewayId gateway delete_gateway;
    Host HostId host delete_host;
    Vpc VpcId vpc delete_vpc;
    Subnet SubnetId subnet delete_subnet;
    RouteTable RouteTableId route_table;
    Peering PeeringId peering delete_peering;
    SecurityGroup SecurityGroupId security_group delete_security_group;
    SecurityRule SecurityRuleId security_rule delete_security_rule;
    PublicPool PublicPoolId public_pool delete_public_pool;
    Eip EipId eip delete_eip;
    NatGateway NatGatewayId nat_gateway delete_nat_gateway;
    Meter MeterId meter delete_meter;
    PortForward PortForwardId port_forward delete_port_forward;
    NetworkClass NetworkClassId network_class delete_network_class;
    Service ServiceId service delete_service;
    Mount MountId mount delete_mount;
}

/// An object as the API shows it. It is created from the model of the store, but its fields belong to the
/// API.
pub trait Resource: Serialize + ToSchema + Sized + Send + 'static {
    /// The model of the store from which it is created.
    type Stored: Stored;
    /// Path of its collection, like `/v1/vpcs`.
    const PATH: &'static str;
    /// Tag of its operations in the OpenAPI document.
    const TAG: &'static str;
    /// Name of one object in operation ids, like `route_table`.
    const NAME: &'static str;
    /// Name of its identifier in paths, like `table`.
    const PARAMETER: &'static str = Self::NAME;
    /// The nodes that need it.
    fn needs(stored: &Self::Stored) -> Needs;
    /// The entries that these nodes have of it.
    fn entries(stored: &Self::Stored) -> Entries;
    /// Creates it from the model of the store.
    fn new(stored: Self::Stored, programmed: Programmed) -> Self;
    /// Adds information that is not in the store.
    fn observe(&mut self, _: &Api) {}
}

/// A resource that can be listed.
pub trait Listable: Resource {
    /// The query parameters that select objects.
    type Filter: DeserializeOwned + IntoParams + Send;
    /// Reads a page of the objects that the filter selects, in order of creation.
    fn list(
        store: &Store,
        filter: Self::Filter,
        page: Page,
    ) -> impl Future<Output = Result<Vec<Self::Stored>, StoreError>> + Send;
}

/// A resource that is created at its own path.
pub trait Creatable: Resource {
    /// The body of the request.
    type New: DeserializeOwned + ToSchema + Send;
    /// Checks and creates an object, or finds the existing one.
    fn create(
        api: &Api,
        new: Self::New,
    ) -> impl Future<Output = Result<sluice_store::Created<Self::Stored>, Problem>> + Send;
}

/// A resource that can be deleted.
pub trait Deletable: Resource<Stored: StoredDelete> {
    /// Checks that an object may be deleted.
    fn check(_: &Api, _: IdOf<Self>) -> impl Future<Output = Result<(), Problem>> + Send {
        std::future::ready(Ok(()))
    }
}

/// The identifier of a resource.
pub type IdOf<R> = <<R as Resource>::Stored as Stored>::Id;

async fn get_one<R: Resource>(State(api): State<App>, Id(id): Id<IdOf<R>>) -> Result<Response, Problem> {
    let stored = R::Stored::find(&api.db.store, id).await?;
    Ok(reply::one::<R>(&api, stored))
}

async fn list_page<R: Listable>(
    State(api): State<App>,
    ListQuery { filter, limit, cursor }: ListQuery<R::Filter>,
) -> Result<Response, Problem> {
    let page = super::request::page(limit, cursor.as_deref(), IdOf::<R>::number)?;
    let stored = R::list(&api.db.store, filter, reply::one_more(page)).await?;
    Ok(reply::list::<R>(&api, page, stored).into_response())
}

async fn create_one<R: Creatable>(
    State(api): State<App>,
    Json(body): Json<R::New>,
) -> Result<Response, Problem> {
    let created = R::create(&api, body).await?;
    Ok(reply::created::<R>(&api, created))
}

async fn delete_one<R: Deletable>(
    State(api): State<App>,
    Id(id): Id<IdOf<R>>,
    IfMatch(expected): IfMatch,
    Query(wait): Query<RemovalWait>,
) -> Result<Response, Problem> {
    let deadline = wait.deadline()?;
    R::check(&api, id).await?;
    let revision = R::Stored::delete(&api.db.store, id, expected).await?;
    api.db.notify_commit();
    Ok(removals::answer(&api, revision, deadline).await?.into_response())
}

/// `GET` of one object.
pub fn get<R: Resource>() -> UtoipaMethodRouter<App> {
    let operation = operation::<R>(format!("get_{}", R::NAME))
        .parameter(path_parameter::<R>())
        .response("200", answer(reference::<R>(), "The object"));
    (schemas_of::<R>(), paths(one_path::<R>(), HttpMethod::Get, operation), routing::get(get_one::<R>))
}

/// `GET` of a list.
pub fn list<R: Listable>() -> UtoipaMethodRouter<App> {
    let of_type = |kind| ObjectBuilder::new().schema_type(SchemaType::new(kind));
    let number = of_type(Type::Integer).minimum(Some(1)).maximum(Some(MAX_LIMIT)).build();
    let limit = query_parameter("limit", "Most objects on the page; 100 if absent.", number);
    let text = of_type(Type::String).build();
    let cursor = query_parameter("cursor", "The `next` of the previous page.", text);
    let name = format!("List_{}", R::name());
    let mut parameters = R::Filter::into_params(|| Some(ParameterIn::Query));
    parameters.extend([limit, cursor]);
    let ending = if R::NAME.ends_with('s') { "es" } else { "s" };
    let operation = operation::<R>(format!("list_{}{ending}", R::NAME))
        .parameters(Some(parameters))
        .response("200", answer(Ref::from_schema_name(&name), "A page of objects"));
    let mut schemas = schemas_of::<R>();
    schemas.push((name, List::<R>::schema()));
    (schemas, paths(R::PATH.to_owned(), HttpMethod::Get, operation), routing::get(list_page::<R>))
}

/// `POST` of a new object.
pub fn create<R: Creatable>() -> UtoipaMethodRouter<App> {
    let content = Content::new(Some(reference::<R::New>()));
    let body =
        RequestBodyBuilder::new().content("application/json", content).required(Some(Required::True)).build();
    let operation = operation::<R>(format!("create_{}", R::NAME))
        .request_body(Some(body))
        .response("201", answer(reference::<R>(), "Created"))
        .response("200", answer(reference::<R>(), "The same object exists already"));
    let mut schemas = schemas_of::<R>();
    schemas.extend(schemas_of::<R::New>());
    (schemas, paths(R::PATH.to_owned(), HttpMethod::Post, operation), routing::post(create_one::<R>))
}

/// `DELETE` of one object.
pub fn delete<R: Deletable>() -> UtoipaMethodRouter<App> {
    let text = ObjectBuilder::new().schema_type(SchemaType::new(Type::String)).build();
    let if_match = ParameterBuilder::new()
        .name("If-Match")
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .schema(Some(text))
        .build();
    let operation = operation::<R>(format!("delete_{}", R::NAME))
        .parameter(path_parameter::<R>())
        .parameter(if_match)
        .parameters(Some(RemovalWait::into_params(|| Some(ParameterIn::Query))))
        .response(
            "200",
            answer(reference::<Removal>(), "Deleted; nodes may still have entries of the object"),
        );
    let paths = paths(one_path::<R>(), HttpMethod::Delete, operation);
    (schemas_of::<Removal>(), paths, routing::delete(delete_one::<R>))
}

fn one_path<R: Resource>() -> String {
    format!("{}/{{{}}}", R::PATH, R::PARAMETER)
}

fn operation<R: Resource>(id: String) -> OperationBuilder {
    OperationBuilder::new().tag(R::TAG).operation_id(Some(id))
}

fn paths(path: String, method: HttpMethod, operation: OperationBuilder) -> Paths {
    PathsBuilder::new().path(path, utoipa::openapi::PathItem::new(method, operation)).build()
}

fn reference<T: ToSchema>() -> Ref {
    Ref::from_schema_name(T::name())
}

fn schemas_of<T: ToSchema>() -> Vec<(String, RefOr<Schema>)> {
    let mut schemas = vec![(T::name().into_owned(), T::schema())];
    T::schemas(&mut schemas);
    schemas
}

fn answer(schema: Ref, description: &str) -> utoipa::openapi::Response {
    let content = Content::new(Some(schema));
    ResponseBuilder::new().description(description).content("application/json", content).build()
}

fn path_parameter<R: Resource>() -> Parameter {
    let text = ObjectBuilder::new().schema_type(SchemaType::new(Type::String)).build();
    ParameterBuilder::new()
        .name(R::PARAMETER)
        .parameter_in(ParameterIn::Path)
        .required(Required::True)
        .schema(Some(text))
        .build()
}

fn query_parameter(name: &str, description: &str, schema: utoipa::openapi::Object) -> Parameter {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Query)
        .required(Required::False)
        .description(Some(description))
        .schema(Some(schema))
        .build()
}
