//! The OpenAPI document, generated from the handlers. `api/openapi.json` is the copy in the repository.

use super::problem::Problem;
use axum::http::header;
use axum::response::IntoResponse;
use std::sync::LazyLock;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, ResponseBuilder};
use utoipa::{Modify, OpenApi as _};

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Sluice",
        description = "The northbound API of the Sluice controller.\n\n\
            Creation is idempotent by name: the same request again answers 200 with the existing object, \
            unless one of its fields has changed, by a request or by the controller: then it answers 409. \
            Security rules have no name: one that exists already is answered with 409 `same-security-rule`. \
            Objects have their `revision` as ETag; updates and deletions accept If-Match. \
            It answers 507 `tables-full` if the tables of the cluster's gateways may not hold the object. \
            `programmed` is true when every node that needs the object has written it to its tables. \
            An address that another instance has is answered with 409 `address-taken`, whether it is an own, secondary or \
            pair's address; one inside a delegated prefix with `address-delegated`; one that nodes may still have from a \
            previous owner with `held`. A prefix is answered with 409 `prefix-taken` if another prefix overlaps it, \
            `prefix-in-use` if it contains an address that is used, and `prefix-is-route` if a route equals it. \
            The detail names the owner. \
            Lists have pages: pass `next` as `cursor` to get the next page. \
            Errors are problem details (RFC 9457)."
    ),
    components(schemas(Problem)),
    modifiers(&Common)
)]
struct Base;

/// Adds what all operations have in common.
struct Common;

impl Modify for Common {
    fn modify(&self, document: &mut OpenApi) {
        let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        if let Some(components) = document.components.as_mut() {
            components.add_security_scheme("bearer", bearer);
        }
        document.security =
            Some(vec![SecurityRequirement::default(), SecurityRequirement::new("bearer", [""; 0])]);
    }
}

/// Adds the problem answer to every operation.
fn add_problems(document: &mut OpenApi) {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    let response = ResponseBuilder::new()
        .description("The request failed")
        .content("application/problem+json", content)
        .build();
    for path in document.paths.paths.values_mut() {
        let operations =
            [&mut path.get, &mut path.post, &mut path.patch, &mut path.delete].into_iter().flatten();
        for operation in operations {
            operation.responses.responses.insert("default".to_owned(), response.clone().into());
        }
    }
}

/// The OpenAPI document.
pub fn document() -> OpenApi {
    let (_, paths) = super::described().split_for_parts();
    let mut document = Base::openapi();
    document.merge(paths);
    add_problems(&mut document);
    document
}

static TEXT: LazyLock<String> = LazyLock::new(|| document().to_pretty_json().unwrap_or_default());

/// Answers `/openapi.json`.
pub async fn serve() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], TEXT.as_str())
}
