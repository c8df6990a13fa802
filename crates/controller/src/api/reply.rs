//! How objects and lists go out: with their revision as ETag, and whether they
//! are programmed.

use super::Api;
use super::request::cursor;
use crate::core::Core;
use crate::members::Needs;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use serde::Serialize;
use sluice_store::{Created, Page};
use utoipa::ToSchema;

/// An object as the API shows it. Made from the store's model; its fields are
/// the API's own.
pub trait Resource: Serialize + Sized {
    /// What it is made from.
    type Stored: Send;
    /// Where objects of its kind are, like `/v1/vpcs`.
    const PATH: &'static str;
    /// Its id's text.
    fn id(stored: &Self::Stored) -> String;
    /// Its revision.
    fn revision(stored: &Self::Stored) -> u64;
    /// Which nodes need it.
    fn needs(stored: &Self::Stored) -> Needs;
    /// Made from the store's model.
    fn new(stored: Self::Stored, programmed: bool) -> Self;
    /// Adds what is not in the store.
    fn observe(&mut self, _: &Core) {}
}

/// A page of a list.
#[derive(Debug, Serialize, ToSchema)]
pub struct List<T> {
    /// In order of creation.
    pub items: Vec<T>,
    /// Present if there is more: the `cursor` that continues here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// One object.
pub fn one<R: Resource>(api: &Api, stored: R::Stored) -> Response {
    with_status::<R>(api, StatusCode::OK, stored)
}

fn with_status<R: Resource>(api: &Api, status: StatusCode, stored: R::Stored) -> Response {
    let revision = R::revision(&stored);
    let programmed = api.core.programmed(&[(R::needs(&stored), revision)])[0];
    let location = HeaderValue::try_from(format!("{}/{}", R::PATH, R::id(&stored)));
    let mut resource = R::new(stored, programmed);
    resource.observe(&api.core);
    let mut response = (status, Json(resource)).into_response();
    if let Ok(tag) = HeaderValue::try_from(format!("\"{revision}\"")) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    if let (StatusCode::CREATED, Ok(location)) = (status, location) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

/// What a creation made or found.
pub fn created<R: Resource>(api: &Api, created: Created<R::Stored>) -> Response {
    match created {
        Created::New(stored) => {
            api.core.wake();
            with_status::<R>(api, StatusCode::CREATED, stored)
        }
        Created::Existing(stored) => one::<R>(api, stored),
    }
}

/// What an update made.
pub fn updated<R: Resource>(api: &Api, stored: R::Stored) -> Response {
    api.core.wake();
    one::<R>(api, stored)
}

/// A deletion done.
pub fn deleted(api: &Api) -> Response {
    api.core.wake();
    StatusCode::NO_CONTENT.into_response()
}

/// Asks the store for one more than the page has, to know whether there is more.
pub fn one_more(page: Page) -> Page {
    Page { limit: page.limit + 1, ..page }
}

/// A page, from what [`one_more`] got.
pub fn list<R: Resource>(api: &Api, page: Page, mut stored: Vec<R::Stored>) -> Json<List<R>> {
    let limit = page.limit as usize;
    let more = stored.len() > limit;
    stored.truncate(limit);
    let next = stored.last().filter(|_| more).map(|last| cursor(&R::id(last)));
    let objects: Vec<_> = stored.iter().map(|one| (R::needs(one), R::revision(one))).collect();
    let programmed = api.core.programmed(&objects);
    let resource = |(one, programmed)| {
        let mut resource = R::new(one, programmed);
        resource.observe(&api.core);
        resource
    };
    let items = stored.into_iter().zip(programmed).map(resource).collect();
    Json(List { items, next })
}
