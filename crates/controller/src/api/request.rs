//! Parsing of requests: strict, with limits, and with errors that name the position of the fault.

use super::problem::Problem;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use bytes::Bytes;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::error::Category;
use sluice_store::Page;
use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::net::IpAddr;
use std::str::FromStr;

/// Largest body of a request in bytes, except that of a bulk creation.
pub const MAX_BODY_BYTES: usize = 1 << 20;
/// Largest body of a bulk creation in bytes.
pub const MAX_BULK_BODY_BYTES: usize = 256 << 20;
/// Objects on a page of a request without `limit`.
const DEFAULT_LIMIT: u32 = 100;
/// Most objects on a page.
pub const MAX_LIMIT: u32 = 1000;
/// Longest name in bytes.
const MAX_NAME: usize = 63;

/// The id in the path.
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
        parse_query(&parts.uri).map(Self)
    }
}

/// The query string of a list: the resource's own filter, and the page.
pub struct ListQuery<F> {
    /// Selects objects.
    pub filter: F,
    /// Most objects on the page.
    pub limit: Option<u32>,
    /// End of the previous page.
    pub cursor: Option<String>,
}

#[derive(serde::Deserialize)]
struct PageQuery {
    limit: Option<u32>,
    cursor: Option<String>,
}

impl<S: Send + Sync, F: DeserializeOwned> FromRequestParts<S> for ListQuery<F> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Self::parse(&parts.uri)
    }
}

impl<F: DeserializeOwned> ListQuery<F> {
    /// Parses the query string of a URI.
    ///
    /// # Errors
    /// 400 for an unknown parameter or an invalid value.
    pub fn parse(uri: &Uri) -> Result<Self, Problem> {
        // Both parts are read strictly, so each must see only its own parameters.
        let is_of_page = |pair: &&str| matches!(pair.split('=').next(), Some("limit" | "cursor"));
        let pairs = || uri.query().unwrap_or_default().split('&');
        let PageQuery { limit, cursor } = read_query(pairs().filter(is_of_page))?;
        let filter = read_query(pairs().filter(|pair| !is_of_page(pair)))?;
        Ok(Self { filter, limit, cursor })
    }
}

fn read_query<'a, T: DeserializeOwned>(pairs: impl Iterator<Item = &'a str>) -> Result<T, Problem> {
    let query: Vec<&str> = pairs.collect();
    let uri = format!("/?{}", query.join("&"));
    let uri: Uri = uri.parse().map_err(|_| Problem::bad_request("query", "the query cannot be read"))?;
    parse_query(&uri)
}

/// Parses the query string of a URI.
///
/// # Errors
/// 400 for an unknown parameter or an invalid value.
pub fn parse_query<T: DeserializeOwned>(uri: &Uri) -> Result<T, Problem> {
    let query = axum::extract::Query::<T>::try_from_uri(uri);
    query.map(|query| query.0).map_err(|error| {
        let cause = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        Problem::bad_request("query", cause)
    })
}

/// The bytes of a JSON body, whose media type was checked.
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

/// A request that needs no body. A body other than an empty object is refused, because its sender expects an
/// effect of it.
pub struct NoBody;

impl<S: Send + Sync> FromRequest<S> for NoBody {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let body = Bytes::from_request(request, state).await;
        let body = body.map_err(|error| Problem::bad_request("body", error.body_text()))?;
        match body.trim_ascii() {
            b"" | b"{}" => Ok(Self),
            _ => Err(Problem::bad_request("body", "this request must have no body, or the body {}")),
        }
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

/// Parses JSON. The error names the position in the document.
///
/// # Errors
/// 400 if the text is not JSON, 422 if the JSON has another form.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let Object(value) = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let at = if path == "." { "body".to_owned() } else { path };
        let inner = error.into_inner();
        match inner.classify() {
            // The form of an enum is checked as syntax: text that is JSON has the wrong form.
            Category::Syntax if !is_json(bytes) => not_json(&inner),
            Category::Data | Category::Syntax => {
                Problem::invalid(&at, format!("{at}: {}", plain(&inner.to_string())))
            }
            Category::Eof | Category::Io => not_json(&inner),
        }
    })?;
    json.end().map_err(|error| not_json(&error))?;
    Ok(value)
}

/// The message of a decoder about JSON of the wrong form. Decoders name types of Rust, and say nothing of use about enums.
fn plain(message: &str) -> String {
    let (text, position) = match message.rfind(" at line ") {
        Some(at) => message.split_at(at),
        None => (message, ""),
    };
    if text == "expected value" {
        return format!("expected a string, or an object with exactly one field{position}");
    }
    let Some((found, expected)) = text.rsplit_once(", expected ") else { return message.to_owned() };
    let expected = match expected {
        "u8" => "an integer from 0 to 255",
        "u16" => "an integer from 0 to 65535",
        "u32" => "an integer from 0 to 4294967295",
        "u64" | "usize" => "an integer that is not negative",
        kind if kind.starts_with("struct ") => "an object",
        kind => kind,
    };
    format!("{found}, expected {expected}{position}")
}

fn is_json(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok())
}

fn not_json(error: &serde_json::Error) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "malformed-json", format!("the body is not JSON: {error}"))
        .offender("body")
}

/// A value that is a JSON object. The derived decoders of structures also accept an array, with the values of
/// the fields in their order.
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}

/// Decodes a field that is absent, null or a value, which are three different things.
///
/// # Errors
/// Those of the value.
pub fn set<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(from).map(Some)
}

/// Decodes a list of objects, for fields of structures.
///
/// # Errors
/// An element is not an object, or cannot be decoded.
pub fn objects<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    let objects = Vec::<Object<T>>::deserialize(from)?;
    Ok(objects.into_iter().map(|Object(value)| value).collect())
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

/// The revision in If-Match. `None` if the header is absent or `*`.
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
                "expected one entity tag as in an ETag, like \"42\", or *",
            )),
        }
    }
}

/// Parses `limit` and `cursor`. The cursor is the last id of the previous page in hexadecimal, so that
/// clients do not interpret it.
///
/// # Errors
/// 400 for a limit out of range or the cursor of another list.
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
            number(
                id.ok_or_else(|| Problem::bad_request("cursor", "the cursor does not belong to this list"))?,
            )
        }
    };
    Ok(Page { after, limit })
}

/// The cursor of the page after an id.
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

/// Checks the name of a new object.
///
/// # Errors
/// 422, naming the field.
pub fn check_name(field: &str, name: &str) -> Result<(), Problem> {
    let has_valid_length = !name.is_empty() && name.len() <= MAX_NAME;
    let is_valid = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if has_valid_length && name.bytes().all(is_valid) && name.as_bytes()[0].is_ascii_alphanumeric() {
        return Ok(());
    }
    let shown: String = name.chars().take(MAX_NAME + 1).collect();
    Err(Problem::invalid(
        field,
        format!(
            "`{}` is not a valid name: expected 1 to {MAX_NAME} of a-z, A-Z, 0-9, `-`, `_` and `.`, the first a letter or digit",
            shown.escape_debug()
        ),
    ))
}

/// Checks that an interface may have the address in a field.
///
/// # Errors
/// 422, naming the field.
pub fn check_unicast(field: &str, address: impl Into<IpAddr>) -> Result<(), Problem> {
    sluice_types::check_unicast(address.into()).map_err(|error| Problem::invalid(field, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_types::{HostId, VpcId};

    #[test]
    fn cursors_of_other_lists_are_refused() {
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
    fn names_have_valid_length_and_characters() {
        for name in ["a", "vm-1", "A.b_c", &"x".repeat(63)] {
            assert!(check_name("name", name).is_ok(), "{name}");
        }
        for name in ["", "-a", ".", "a b", "a/b", "ä", "a\0", &"x".repeat(64)] {
            assert!(check_name("name", name).is_err(), "{name}");
        }
    }

    #[test]
    fn parse_errors_name_the_position() {
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
            #[serde(rename = "inner")]
            _inner: Option<Inner>,
        }
        let refused = |body: &str| {
            let problem = parse::<Outer>(body.as_bytes()).unwrap_err();
            (problem.status(), problem.detail().to_owned())
        };
        let (status, detail) = refused(r#"{"list":[{"n":1},{"n":300}]}"#);
        let expected = "list[1].n: invalid value: integer `300`, expected an integer from 0 to 255 at line 1";
        assert!(status == 422 && detail.starts_with(expected), "{detail}");
        let (status, detail) = refused(r#"{"list":[],"inner":"x"}"#);
        let expected = "inner: invalid type: string \"x\", expected an object at line 1";
        assert!(status == 422 && detail.starts_with(expected), "{detail}");
        let (status, detail) = refused(r#"{"list":[],"kind":{}}"#);
        assert!(
            status == 422 && detail.starts_with("kind: expected a string"),
            "JSON of the wrong form: {detail}"
        );
        let (status, detail) = refused("[[]]");
        assert!(status == 422 && detail.starts_with("body: invalid type: sequence, expected an object"));
        assert_eq!(refused(r#"{"list":"#).0, 400);
        assert_eq!(refused(r#"{"list":[]} x"#).0, 400);
    }
}
