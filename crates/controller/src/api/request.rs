//! How requests are read: strictly, within limits, and with an error that says
//! where the fault is.

use super::problem::Problem;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::de::IgnoredAny;
use serde_json::error::Category;
use sluice_store::Page;
use std::fmt::Display;
use std::str::FromStr;

/// Largest body of all requests but the bulk creation's.
pub const MAX_BODY_BYTES: usize = 1 << 20;
/// Largest body of a bulk creation.
pub const MAX_BULK_BODY_BYTES: usize = 256 << 20;
/// Objects on a page if the request does not say.
const DEFAULT_LIMIT: u32 = 100;
/// Most objects on a page.
const MAX_LIMIT: u32 = 1000;
/// Longest name.
const MAX_NAME: usize = 63;

/// The id in the URL.
pub struct Id<T>(pub T);

impl<S: Send + Sync, T: FromStr<Err: Display> + Send> FromRequestParts<S> for Id<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path(text) = Path::<String>::from_request_parts(parts, state)
            .await
            .map_err(|error| Problem::bad_request("path", error.body_text()))?;
        match text.parse() {
            Ok(id) => Ok(Self(id)),
            Err(error) => Err(Problem::bad_request(&text, error.to_string())),
        }
    }
}

/// The query string.
pub struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let query = axum::extract::Query::<T>::try_from_uri(&parts.uri);
        query.map(|query| Self(query.0)).map_err(|error| {
            let cause =
                std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            Problem::bad_request("query", cause)
        })
    }
}

/// A JSON body as bytes, its media type checked.
pub struct JsonBytes(pub Bytes);

impl<S: Send + Sync> FromRequest<S> for JsonBytes {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        check_media_type(request.headers())?;
        let bytes = Bytes::from_request(request, state).await.map_err(|error| match error {
            BytesRejection::FailedToBufferBody(error) if error.status() == StatusCode::PAYLOAD_TOO_LARGE => {
                Problem::new(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "body-too-large",
                    format!("the body is larger than {MAX_BODY_BYTES} bytes ({MAX_BULK_BODY_BYTES} for bulk creation)"),
                )
                .offender("body")
            }
            error => Problem::bad_request("body", error.body_text()),
        })?;
        Ok(Self(bytes))
    }
}

fn check_media_type(headers: &HeaderMap) -> Result<(), Problem> {
    let given = headers.get(header::CONTENT_TYPE).map(|value| value.to_str().unwrap_or("?"));
    let bare = given.and_then(|text| text.split(';').next()).map(str::trim);
    match bare {
        Some(text) if text.eq_ignore_ascii_case("application/json") => Ok(()),
        _ => {
            let detail = format!("expected content-type application/json, not {}", given.unwrap_or("none"));
            Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type", detail)
                .offender("content-type"))
        }
    }
}

/// Parses JSON; the error names the place in the document.
///
/// # Errors
/// 400 for what is no JSON, 422 for JSON of another shape.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    // Every body is an object; an array would be taken for one by the order of its fields.
    if bytes.trim_ascii_start().starts_with(b"[") {
        return Err(Problem::invalid("body", "expected a JSON object, not an array"));
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let at = if path == "." { "body".to_owned() } else { path };
        let inner = error.into_inner();
        match inner.classify() {
            // An enum's shape is checked as syntax; what is JSON all the same is of the wrong shape.
            Category::Syntax if !is_json(bytes) => not_json(&inner),
            Category::Data | Category::Syntax => Problem::invalid(&at, format!("{at}: {inner}")),
            Category::Eof | Category::Io => not_json(&inner),
        }
    })?;
    json.end().map_err(|error| not_json(&error))?;
    Ok(value)
}

fn is_json(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok())
}

fn not_json(error: &serde_json::Error) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "malformed-json", format!("the body is no JSON: {error}"))
        .offender("body")
}

/// A JSON body.
pub struct Json<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let JsonBytes(bytes) = JsonBytes::from_request(request, state).await?;
        parse(&bytes).map(Self)
    }
}

/// The revision in If-Match: `None` if there is none, or `*`.
pub struct IfMatch(pub Option<u64>);

impl<S: Send + Sync> FromRequestParts<S> for IfMatch {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let mut values = parts.headers.get_all(header::IF_MATCH).iter();
        let Some(value) = values.next() else { return Ok(Self(None)) };
        let text = value.to_str().unwrap_or("");
        if text == "*" && values.next().is_none() {
            return Ok(Self(None));
        }
        let number = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        match number.and_then(|number| number.parse().ok()) {
            Some(revision) if values.next().is_none() => Ok(Self(Some(revision))),
            _ => Err(Problem::bad_request(
                "if-match",
                "expected one entity tag as given in an ETag, like \"42\", or *",
            )),
        }
    }
}

/// A page's `limit` and `cursor`. The cursor is the last id of the page before,
/// in hexadecimal, so that nobody takes it for more than it is.
///
/// # Errors
/// 400 for a limit out of range or a cursor that is none of this list's.
pub fn page<T: FromStr>(
    limit: Option<u32>,
    cursor: Option<&str>,
    number: impl Fn(T) -> u64,
) -> Result<Page, Problem> {
    let limit = limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(Problem::bad_request(
            "limit",
            format!("limit must be between 1 and {MAX_LIMIT}, not {limit}"),
        ));
    }
    let after = match cursor {
        None => 0,
        Some(cursor) => {
            let id = from_hex(cursor).and_then(|text| text.parse::<T>().ok());
            number(id.ok_or_else(|| Problem::bad_request("cursor", "the cursor is not one of this list's"))?)
        }
    };
    Ok(Page { after, limit })
}

/// The cursor that continues behind an id.
pub fn cursor(id: &str) -> String {
    id.bytes().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<String> {
    if !text.len().is_multiple_of(2) || text.len() > 64 || !text.is_ascii() {
        return None;
    }
    let bytes: Option<Vec<u8>> =
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect();
    String::from_utf8(bytes?).ok()
}

/// Checks a new object's name.
///
/// # Errors
/// 422, naming the field.
pub fn check_name(field: &str, name: &str) -> Result<(), Problem> {
    let fits = !name.is_empty() && name.len() <= MAX_NAME;
    let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if fits && name.bytes().all(good) && name.as_bytes()[0].is_ascii_alphanumeric() {
        return Ok(());
    }
    let shown: String = name.chars().take(MAX_NAME + 1).collect();
    Err(Problem::invalid(
        field,
        format!(
            "`{}` is not a name: expected 1 to {MAX_NAME} of a-z, A-Z, 0-9, `-`, `_` and `.`, the first a letter or digit",
            shown.escape_debug()
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_types::{HostId, VpcId};

    #[test]
    fn cursors_belong_to_their_list() {
        let at = cursor("vpc-42");
        let page = |cursor: &str| super::page(None, Some(cursor), VpcId::get);
        assert_eq!(page(&at).unwrap().after, 42);
        assert!(super::page(None, Some(&at), HostId::get).is_err());
        for text in ["", "zz", "7", "ää", &"00".repeat(40)] {
            assert_eq!(page(text).unwrap_err().status(), 400, "{text}");
        }
        for limit in [0, 1001] {
            assert!(super::page(Some(limit), None, VpcId::get).is_err());
        }
        assert_eq!(super::page(Some(1000), None, VpcId::get).unwrap().limit, 1000);
    }

    #[test]
    fn names() {
        for name in ["a", "vm-1", "A.b_c", &"x".repeat(63)] {
            assert!(check_name("name", name).is_ok(), "{name}");
        }
        for name in ["", "-a", ".", "a b", "a/b", "ä", "a\0", &"x".repeat(64)] {
            assert!(check_name("name", name).is_err(), "{name}");
        }
    }

    #[test]
    fn parse_errors_name_the_place() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Inner {
            #[serde(rename = "n")]
            _n: u8,
        }
        #[derive(Debug, serde::Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Kind {
            Drop,
        }
        #[derive(Debug, serde::Deserialize)]
        struct Outer {
            #[serde(rename = "list")]
            _list: Vec<Inner>,
            #[serde(rename = "kind")]
            _kind: Option<Kind>,
        }
        let refused = |body: &str| {
            let problem = parse::<Outer>(body.as_bytes()).unwrap_err();
            (problem.status(), problem.detail().to_owned())
        };
        let (status, detail) = refused(r#"{"list":[{"n":1},{"n":300}]}"#);
        assert!(status == 422 && detail.starts_with("list[1].n: invalid value"), "{detail}");
        let (status, detail) = refused(r#"{"list":[],"kind":{}}"#);
        assert!(status == 422 && detail.starts_with("kind: "), "JSON of the wrong shape: {detail}");
        assert_eq!(refused("[[]]").0, 422, "no array passes for an object");
        assert_eq!(refused(r#"{"list":"#).0, 400);
        assert_eq!(refused(r#"{"list":[]} x"#).0, 400);
    }
}
