//! The middleware of every request: request id, bearer token and log.

use super::App;
use super::problem::Problem;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tracing::Instrument;

const REQUEST_ID: &str = "x-request-id";
const MAX_REQUEST_ID: usize = 64;

/// Time at which a request arrived.
#[derive(Clone, Copy)]
pub struct Arrived(pub Instant);

static REQUESTS: AtomicU64 = AtomicU64::new(0);

/// The caller's id of the request, if it is short printable text. Otherwise a new id.
fn request_id(headers: &HeaderMap) -> String {
    let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok());
    let is_valid =
        |id: &&str| !id.is_empty() && id.len() <= MAX_REQUEST_ID && id.bytes().all(|b| b.is_ascii_graphic());
    match given.filter(is_valid) {
        Some(id) => id.to_owned(),
        None => {
            let number = REQUESTS.fetch_add(1, Ordering::Relaxed);
            format!("{:x}-{number:x}", crate::clock::now_ms())
        }
    }
}

/// Whether a path needs no token. These paths say nothing about the cloud, and probes have no token.
fn is_open(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz" | "/openapi.json")
}

fn check_token(expected: Option<[u8; 32]>, request: &Request) -> Result<(), Problem> {
    let Some(expected) = expected else { return Ok(()) };
    if is_open(request.uri().path()) {
        return Ok(());
    }
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    // The name of the scheme is case-insensitive (RFC 9110 section 11.1).
    let token = given.and_then(|text| text.split_once(' ')).filter(|(s, _)| s.eq_ignore_ascii_case("bearer"));
    let token = token.map(|(_, token)| token);
    // Digests are compared, so that the duration reveals nothing about the token.
    let is_correct =
        token.is_some_and(|token| <[u8; 32]>::from(Sha256::digest(token.as_bytes())) == expected);
    if is_correct {
        return Ok(());
    }
    let cause = if given.is_some() { "the bearer token is wrong" } else { "a bearer token is required" };
    Err(Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", cause).offender("authorization"))
}

/// Only GET and DELETE have parameters; handlers that have some refuse those that they do not know. A parameter that a change
/// ignored could be a condition, such as an expected revision, that its sender relies on.
fn check_query(request: &Request) -> Result<(), Problem> {
    let query = request.uri().query().unwrap_or_default();
    if matches!(*request.method(), Method::GET | Method::DELETE) || query.is_empty() {
        return Ok(());
    }
    let detail = format!(
        "a {} request accepts no parameters; the expected revision is given in the header If-Match",
        request.method()
    );
    Err(Problem::bad_request("query", detail))
}

/// Runs the handler also if the client closes the connection meanwhile: what the handler notes after its transaction must
/// agree with what the transaction created.
async fn run_to_the_end(next: Next, request: Request) -> Response {
    let handler = async move { next.run(request).await };
    let task = tokio::spawn(handler.in_current_span());
    task.await.unwrap_or_else(|_panic| Problem::internal().into_response())
}

/// Handles every request before and after its handler.
pub async fn guard(State(api): State<App>, mut request: Request, next: Next) -> Response {
    let arrived = Instant::now();
    let id = request_id(request.headers());
    let span = tracing::info_span!("request", id, method = %request.method(), path = request.uri().path());
    request.extensions_mut().insert(Arrived(arrived));
    let checked = check_token(api.token_digest, &request).and_then(|()| check_query(&request));
    let answer = async {
        let mut response = match checked {
            Ok(()) if request.method() == Method::POST => run_to_the_end(next, request).await,
            Ok(()) => next.run(request).await,
            Err(problem) => problem.into_response(),
        };
        let ms = arrived.elapsed().as_secs_f64() * 1000.0;
        let status = response.status();
        let counter = match status.as_u16() {
            500.. => &api.answers.server_error,
            400.. => &api.answers.client_error,
            _ => &api.answers.ok,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        match response.extensions().get::<Problem>() {
            Some(problem) => tracing::info!(
                status = status.as_u16(),
                ms,
                kind = problem.kind(),
                detail = problem.detail(),
                "refused"
            ),
            None => tracing::debug!(status = status.as_u16(), ms, "answered"),
        }
        if let Ok(id) = HeaderValue::try_from(id) {
            response.headers_mut().insert(REQUEST_ID, id);
        }
        response
    };
    answer.instrument(span).await
}
