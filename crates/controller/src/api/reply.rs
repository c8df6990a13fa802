//! Answers with objects and lists: with the revision as ETag, and whether the object is programmed.

use super::Api;
use super::request::cursor;
use super::resource::{Resource, Stored};
use crate::push::{EntryFailure, Written, southbound_id};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use serde::Serialize;
use sluice_store::{Created, Page};
use utoipa::ToSchema;

/// A page of a list.
#[derive(Debug, Serialize, ToSchema)]
pub struct List<T> {
    /// Objects in order of creation.
    pub items: Vec<T>,
    /// The `cursor` of the next page. Absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Whether an object is programmed.
#[derive(Debug, Serialize, ToSchema)]
pub struct Programmed {
    /// Every node that needs the object has written it to its tables.
    programmed: bool,
    /// Entries of the object that nodes could not write, at most 16.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failures: Vec<Failure>,
}

/// An entry of an object that a node could not write. The node tries again.
#[derive(Debug, Serialize, ToSchema)]
struct Failure {
    /// Id of the gateway or host.
    #[schema(example = "gw-1")]
    node: String,
    /// The entry.
    #[schema(example = "endpoint 10.0.0.2 of VNI 7")]
    entry: String,
    /// Why the node could not write it.
    reason: String,
}

fn programmed<R: Resource>(api: &Api, stored: &[R::Stored]) -> Vec<Programmed> {
    let objects: Vec<_> = stored.iter().map(|one| (R::needs(one), one.revision(), R::entries(one))).collect();
    let failure = |failure: EntryFailure| Failure {
        node: southbound_id(failure.node).id(),
        entry: failure.entry,
        reason: failure.reason,
    };
    let one = |written: Written| Programmed {
        programmed: written.programmed,
        failures: written.failures.into_iter().map(failure).collect(),
    };
    api.push.written(&objects).into_iter().map(one).collect()
}

/// Answers with one object.
pub fn one<R: Resource>(api: &Api, stored: R::Stored) -> Response {
    with_status::<R>(api, StatusCode::OK, stored)
}

fn with_status<R: Resource>(api: &Api, status: StatusCode, stored: R::Stored) -> Response {
    let revision = stored.revision();
    let programmed = programmed::<R>(api, std::slice::from_ref(&stored)).remove(0);
    let location = HeaderValue::try_from(format!("{}/{}", R::PATH, stored.id()));
    let mut resource = R::new(stored, programmed);
    resource.observe(api);
    let mut response = (status, Json(resource)).into_response();
    if let Ok(tag) = HeaderValue::try_from(format!("\"{revision}\"")) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    if let (StatusCode::CREATED, Ok(location)) = (status, location) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

/// Answers with a created object (201) or an existing one (200).
pub fn created<R: Resource>(api: &Api, created: Created<R::Stored>) -> Response {
    match created {
        Created::New(stored) => {
            api.db.notify_commit();
            with_status::<R>(api, StatusCode::CREATED, stored)
        }
        Created::Existing(stored) => one::<R>(api, stored),
    }
}

/// Answers with an updated object.
pub fn updated<R: Resource>(api: &Api, stored: R::Stored) -> Response {
    api.db.notify_commit();
    one::<R>(api, stored)
}

/// The page with one object more, which shows whether there is another page.
pub fn one_more(page: Page) -> Page {
    Page { limit: page.limit + 1, ..page }
}

/// Answers with a page. `stored` are the objects of [`one_more`].
pub fn list<R: Resource>(api: &Api, page: Page, mut stored: Vec<R::Stored>) -> Json<List<R>> {
    let limit = page.limit as usize;
    let more = stored.len() > limit;
    stored.truncate(limit);
    let next = stored.last().filter(|_| more).map(|last| cursor(&last.id().to_string()));
    let programmed = programmed::<R>(api, &stored);
    let resource = |(one, programmed)| {
        let mut resource = R::new(one, programmed);
        resource.observe(api);
        resource
    };
    let items = stored.into_iter().zip(programmed).map(resource).collect();
    Json(List { items, next })
}
