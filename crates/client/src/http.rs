//! [`Client`]: the HTTP requests, one method for each call of the API.

use crate::{
    BulkCreated, Cluster, EnrollmentBundle, Error, Gateway, HappenedEvent, KeyRotation, Migration,
    NewInstance, NewObject, NodeStatus, Problem, Removal, Resource, Result, SessionMode,
};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sluice_types::{ClusterId, GatewayId, HostId, InstanceId, VpcId};
use std::time::Duration;

/// Default base URL of the API.
pub const DEFAULT_API: &str = "http://127.0.0.1:7440";

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Long enough for a bulk creation of a hundred thousand instances, which is one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// Objects in one page of a list: the limit of the API.
const PAGE: u32 = 1000;

/// Result of a creation by name. Creation is idempotent: a repeated call returns the existing object.
#[derive(Clone, Debug, PartialEq)]
pub struct Created<T> {
    /// The new or existing object.
    pub object: T,
    /// True if this call created the object.
    pub created: bool,
}

#[derive(serde::Deserialize)]
#[serde(bound = "T: DeserializeOwned")]
struct ListPage<T> {
    items: Vec<T>,
    #[serde(default)]
    next: Option<String>,
}

/// A client of one API, cheap to clone.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    token: Option<String>,
}

// Neither the token nor a password in the URL may appear in logs.
impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (host, port) = (self.base.host_str(), self.base.port());
        f.debug_struct("Client").field("host", &host).field("port", &port).finish_non_exhaustive()
    }
}

impl Client {
    /// A client of the API at `url` (`http://HOST:PORT`), with a bearer token if the API requires one.
    ///
    /// # Errors
    /// [`Error::BadUrl`]. This does not connect yet.
    pub fn new(url: &str, token: Option<String>) -> Result<Self> {
        let bad = || Error::BadUrl(without_secrets(url));
        let base: Url = url.parse().map_err(|_| bad())?;
        if base.scheme() != "http" || base.host_str().is_none() {
            return Err(bad());
        }
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(CALL_TIMEOUT)
            .user_agent(concat!("sluice/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|source| Error::Unreachable { url: origin(&base), source })?;
        Ok(Self { http, base, token })
    }

    /// The base URL.
    pub fn url(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// The URL of a path. Paths consist of constants and ids, which need no escaping.
    pub(crate) fn at(&self, path: &str, query: &[(&str, &str)]) -> Url {
        let mut url = self.base.clone();
        url.set_path(&format!("{}{path}", self.base.path().trim_end_matches('/')));
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        url
    }

    async fn send(&self, action: &str, request: RequestBuilder) -> Result<Response> {
        let request = match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        let response =
            request.send().await.map_err(|source| Error::Unreachable { url: origin(&self.base), source })?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(Error::Refused { action: action.to_owned(), problem: Box::new(problem_of(response).await) })
    }

    async fn read<T: DeserializeOwned>(&self, action: &str, response: Response) -> Result<T> {
        let body = response
            .bytes()
            .await
            .map_err(|source| Error::Unreachable { url: origin(&self.base), source })?;
        serde_json::from_slice(&body)
            .map_err(|source| Error::Malformed { action: action.to_owned(), source: Box::new(source) })
    }

    pub(crate) async fn get_json<T: DeserializeOwned>(&self, action: &str, url: Url) -> Result<T> {
        let response = self.send(action, self.http.get(url)).await?;
        self.read(action, response).await
    }

    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        action: &str,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<(StatusCode, T)> {
        let response = self.send(action, self.http.post(self.at(path, &[])).json(body)).await?;
        let status = response.status();
        Ok((status, self.read(action, response).await?))
    }

    pub(crate) async fn patch<T: DeserializeOwned>(
        &self,
        action: &str,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<T> {
        let request = self.http.request(Method::PATCH, self.at(path, &[]));
        let response = self.send(action, request.json(body)).await?;
        self.read(action, response).await
    }

    /// The JSON at a path.
    pub(crate) async fn get_at<T: DeserializeOwned>(&self, action: &str, path: &str) -> Result<T> {
        self.get_json(action, self.at(path, &[])).await
    }

    /// Deletes what is at a path.
    pub(crate) async fn delete_at<T: DeserializeOwned>(&self, action: &str, path: &str) -> Result<T> {
        let response = self.send(action, self.http.delete(self.at(path, &[]))).await?;
        self.read(action, response).await
    }

    /// Gets one object.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn get<T: Resource>(&self, id: T::Id) -> Result<T> {
        let action = format!("show {} {id}", T::NOUN);
        self.get_json(&action, self.at(&object_path::<T>(id), &[])).await
    }

    /// Lists the objects that match the filters, at most `limit`, in as many requests as there are pages.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn list<T: Resource>(&self, filters: &[(&str, &str)], limit: Option<usize>) -> Result<Vec<T>> {
        let action = format!("list {}s", T::NOUN);
        let mut all = Vec::new();
        let mut cursor: Option<String> = None;
        let page =
            limit.map_or(PAGE, |limit| PAGE.min(u32::try_from(limit.max(1)).unwrap_or(PAGE))).to_string();
        loop {
            let mut query = filters.to_vec();
            query.push(("limit", &page));
            if let Some(cursor) = &cursor {
                query.push(("cursor", cursor));
            }
            let answer: ListPage<T> =
                self.get_json(&action, self.at(&format!("/v1/{}", T::PATH), &query)).await?;
            all.extend(answer.items);
            if let Some(limit) = limit.filter(|&limit| all.len() >= limit) {
                all.truncate(limit);
                return Ok(all);
            }
            match answer.next {
                Some(next) if Some(&next) != cursor.as_ref() => cursor = Some(next),
                _ => return Ok(all),
            }
        }
    }

    /// Deletes an object. If `expected` is given, the object must be at that revision. Nodes may have its entries for
    /// some time more; see [`Client::wait_removed`].
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn delete<T: Resource>(&self, id: T::Id, expected: Option<u64>) -> Result<Removal> {
        let action = format!("delete {} {id}", T::NOUN);
        let request = self.http.delete(self.at(&object_path::<T>(id), &[]));
        let response = self.send(&action, if_match(request, expected)).await?;
        self.read(&action, response).await
    }

    /// Changes the fields in `patch`. If `expected` is given, the object must be at that revision.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn update<T: Resource>(
        &self,
        id: T::Id,
        patch: &(impl Serialize + Sync),
        expected: Option<u64>,
    ) -> Result<T> {
        let action = format!("update {} {id}", T::NOUN);
        let request = self.http.request(Method::PATCH, self.at(&object_path::<T>(id), &[]));
        let response = self.send(&action, if_match(request, expected).json(patch)).await?;
        self.read(&action, response).await
    }

    /// Creates an object in its parent, or returns the existing object with this name and content.
    ///
    /// # Errors
    /// See [`Error`]; [`Error::Refused`] with status 409 if an object with this name has different content.
    pub async fn create<B: NewObject>(&self, parent: B::Parent, body: &B) -> Result<Created<B::Object>> {
        let action = format!("create {} `{}`", B::Object::NOUN, body.name());
        let (status, object) = self.post(&action, &B::path(parent), body).await?;
        Ok(Created { object, created: status == StatusCode::CREATED })
    }

    /// Creates many instances of one VPC, either all or none.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn create_instances(&self, vpc: VpcId, new: &[NewInstance]) -> Result<BulkCreated> {
        #[derive(Serialize)]
        struct Bulk<'a> {
            instances: &'a [NewInstance],
        }
        let action = format!("create {} instances", new.len());
        let path = format!("/v1/vpcs/{vpc}/instances/bulk");
        Ok(self.post(&action, &path, &Bulk { instances: new }).await?.1)
    }

    /// Creates an enrollment bundle for a host or a gateway. Earlier tokens stay valid until they are used or
    /// expire.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn enroll<T: Resource>(&self, id: T::Id) -> Result<EnrollmentBundle> {
        let action = format!("enroll {} {id}", T::NOUN);
        let path = format!("{}/enrollment", object_path::<T>(id));
        Ok(self.post(&action, &path, &serde_json::json!({})).await?.1)
    }

    /// Drains a gateway (its vIPs move to the other gateways of its cluster), or ends the drain.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn drain(&self, id: GatewayId, draining: bool, expected: Option<u64>) -> Result<Gateway> {
        let verb = if draining { "drain" } else { "undrain" };
        let action = format!("{verb} gateway {id}");
        let request = self.http.post(self.at(&format!("{}/{verb}", object_path::<Gateway>(id)), &[]));
        let response = self.send(&action, if_match(request, expected)).await?;
        self.read(&action, response).await
    }

    /// Replaces the key of a cluster now.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn rotate_key(&self, id: ClusterId) -> Result<KeyRotation> {
        let action = format!("rotate the key of cluster {id}");
        let path = format!("{}/rotate-key", object_path::<Cluster>(id));
        Ok(self.post(&action, &path, &serde_json::json!({})).await?.1)
    }

    /// Moves a gateway to another cluster. If `cluster` is the gateway's own cluster, cancels a move that has
    /// not joined the other cluster yet. `reason` is recorded in the event log.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn move_gateway(
        &self,
        id: GatewayId,
        cluster: ClusterId,
        reason: Option<&str>,
        expected: Option<u64>,
    ) -> Result<Gateway> {
        let action = format!("move gateway {id}");
        let body = serde_json::json!({"cluster": cluster, "reason": reason});
        let request =
            self.http.post(self.at(&format!("{}/move", object_path::<Gateway>(id)), &[])).json(&body);
        let response = self.send(&action, if_match(request, expected)).await?;
        self.read(&action, response).await
    }

    /// Starts the live migration of an instance to another host, or finds it in progress.
    ///
    /// # Errors
    /// See [`Error`]; [`Error::Refused`] with status 409 if another migration of the instance is in progress.
    pub async fn start_migration(
        &self,
        (vpc, instance): (VpcId, InstanceId),
        host: HostId,
        sessions: SessionMode,
        expected: Option<u64>,
    ) -> Result<Migration> {
        let action = format!("migrate instance {instance}");
        let body = serde_json::json!({"host": host, "sessions": sessions});
        let request = self.http.post(self.at(&migration_path(vpc, instance), &[])).json(&body);
        let response = self.send(&action, if_match(request, expected)).await?;
        self.read(&action, response).await
    }

    /// How far the migration of an instance is.
    ///
    /// # Errors
    /// See [`Error`]; [`Error::Refused`] with status 404 if it does not migrate.
    pub async fn migration(&self, vpc: VpcId, instance: InstanceId) -> Result<Migration> {
        let action = format!("show the migration of instance {instance}");
        self.get_json(&action, self.at(&migration_path(vpc, instance), &[])).await
    }

    /// Cancels the migration of an instance.
    ///
    /// # Errors
    /// See [`Error`]; [`Error::Refused`] with status 404 if it does not migrate.
    pub async fn cancel_migration(
        &self,
        vpc: VpcId,
        instance: InstanceId,
        expected: Option<u64>,
    ) -> Result<()> {
        let action = format!("cancel the migration of instance {instance}");
        let request = self.http.delete(self.at(&migration_path(vpc, instance), &[]));
        self.send(&action, if_match(request, expected)).await.map(drop)
    }

    /// Lists events, about one object or about all: the first that follow the event `after`, or the newest if
    /// `after` is `None`. `limit` is at most 1000.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn events(
        &self,
        subject: Option<&str>,
        after: Option<u64>,
        limit: u32,
    ) -> Result<Vec<HappenedEvent>> {
        let (after, limit) = (after.map(|after| after.to_string()), limit.to_string());
        let mut query = vec![("limit", limit.as_str())];
        query.extend(subject.map(|subject| ("subject", subject)));
        query.extend(after.as_deref().map(|after| ("after", after)));
        let page: ListPage<HappenedEvent> =
            self.get_json("list events", self.at("/v1/events", &query)).await?;
        Ok(page.items)
    }

    /// Lists the nodes and the revisions that they have programmed.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn nodes(&self) -> Result<Vec<NodeStatus>> {
        let page: ListPage<NodeStatus> = self.get_json("list nodes", self.at("/v1/nodes", &[])).await?;
        Ok(page.items)
    }

    /// Checks that the API can read and write its database.
    ///
    /// # Errors
    /// See [`Error`]; [`Error::Refused`] with status 503 and the cause if it cannot.
    pub async fn ready(&self) -> Result<()> {
        self.send("check that the API is ready", self.http.get(self.at("/readyz", &[]))).await.map(drop)
    }

    /// The OpenAPI description of the API.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn openapi(&self) -> Result<serde_json::Value> {
        self.get_json("fetch openapi.json", self.at("/openapi.json", &[])).await
    }
}

/// Scheme, host and port of a URL, which may appear in messages.
fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}

/// A wrong URL without user, password and parameters, wherever it has them.
fn without_secrets(url: &str) -> String {
    let is_scheme = |text: &str| text.chars().all(|letter| letter.is_ascii_alphanumeric());
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) if is_scheme(scheme) => (format!("{scheme}://"), rest),
        _ => (String::new(), url),
    };
    let host = rest.rsplit('@').next().unwrap_or_default();
    scheme + host.split(['?', '#']).next().unwrap_or_default()
}

fn object_path<T: Resource>(id: T::Id) -> String {
    format!("/v1/{}/{id}", T::PATH)
}

fn migration_path(vpc: VpcId, instance: InstanceId) -> String {
    format!("/v1/vpcs/{vpc}/instances/{instance}/migration")
}

fn if_match(request: RequestBuilder, expected: Option<u64>) -> RequestBuilder {
    match expected {
        Some(revision) => request.header("If-Match", format!("\"{revision}\"")),
        None => request,
    }
}

/// The problem document of a refusal. For a response that is not one (from a proxy, for example), a problem
/// made of the status and the first line of the body.
async fn problem_of(response: Response) -> Problem {
    let status = response.status();
    let text = response.text().await.unwrap_or_default();
    if let Ok(mut problem) = serde_json::from_str::<Problem>(&text) {
        problem.status = status.as_u16();
        return problem;
    }
    let title = status.canonical_reason().unwrap_or("unknown status").to_owned();
    let first_line: String = text.lines().next().unwrap_or_default().chars().take(200).collect();
    let detail = (!first_line.is_empty()).then(|| format!("{title}: {first_line}"));
    Problem { kind: None, title, status: status.as_u16(), detail, offender: None }
}
