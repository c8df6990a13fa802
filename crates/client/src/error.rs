//! Errors of calls, and the problem documents with which the API refuses a request.

use crate::{EntryFailure, FieldError};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// A problem document, with which the API refuses a request: `application/problem+json` (RFC 9457).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Problem {
    /// URI that identifies the kind of problem.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Short summary of the kind of problem.
    #[serde(default)]
    pub title: String,
    /// HTTP status code.
    #[serde(default)]
    pub status: u16,
    /// What is wrong with this request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The field, object or address that caused the refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offender: Option<serde_json::Value>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = self.detail.as_deref().unwrap_or(&self.title);
        if message.is_empty() {
            write!(f, "HTTP status {}", self.status)?;
        } else {
            f.write_str(message)?;
        }
        let offender = match &self.offender {
            None | Some(serde_json::Value::Null) => return Ok(()),
            Some(serde_json::Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        // Most details name the offender already.
        if message.contains(&offender) { Ok(()) } else { write!(f, " (offender: {offender})") }
    }
}

/// Error of a call.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The base URL is not an HTTP URL. The text has no user, password or parameters.
    #[error("`{0}` is not an API URL: expected http://HOST:PORT")]
    BadUrl(String),
    /// The API did not respond.
    #[error("cannot reach the API at {url}{}", hint(source))]
    Unreachable {
        /// Scheme, host and port of the API.
        url: String,
        /// Error of the HTTP client.
        #[source]
        source: reqwest::Error,
    },
    /// The API refused the request; [`Problem::status`] is its HTTP status.
    #[error("{action}: {problem}")]
    Refused {
        /// Description of the call: `create VPC `web``.
        action: String,
        /// Reason for the refusal.
        problem: Box<Problem>,
    },
    /// The response cannot be parsed.
    #[error("{action}: the response is not that of this API version; is another program listening there?")]
    Malformed {
        /// Description of the call: `create VPC `web``.
        action: String,
        /// Error of the parser.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No object has the name.
    #[error("no {kind} is named `{name}`{within}")]
    NoSuchName {
        /// Kind of object, as [`Resource::NOUN`](crate::Resource::NOUN).
        kind: &'static str,
        /// Name that was searched.
        name: String,
        /// Where it was searched (` in vpc vpc-7`), or empty.
        within: String,
    },
    /// Several objects have the name.
    #[error("{} {kind}s are named `{name}`: {}; give the id{narrow}", ids.len(), ids.join(", "))]
    AmbiguousName {
        /// Kind of object, as [`Resource::NOUN`](crate::Resource::NOUN).
        kind: &'static str,
        /// Name that was searched.
        name: String,
        /// Ids of these objects.
        ids: Vec<String>,
        /// What else than an id selects one of them, as the end of the sentence.
        narrow: &'static str,
    },
    /// The text is the id of one object and the name of another.
    #[error(
        "`{text}` is the id of one {kind} and the name of another ({named}); write id:{text} or name:{text}"
    )]
    NameOrId {
        /// Kind of object, as [`Resource::NOUN`](crate::Resource::NOUN).
        kind: &'static str,
        /// Text that was searched.
        text: String,
        /// Id of the object that has the text as its name.
        named: String,
    },
    /// The text is the id of an object outside the tenant or VPC that was named.
    #[error("{kind} {id} is not in {within}")]
    NotWithin {
        /// Kind of object, as [`Resource::NOUN`](crate::Resource::NOUN).
        kind: &'static str,
        /// Id of the object.
        id: String,
        /// Id of the tenant, VPC or other object that it is not in.
        within: String,
    },
    /// A cloud file has a reference that cannot be resolved. Nothing was created.
    #[error(transparent)]
    CloudFile(#[from] FieldError),
    /// The object was not programmed before the timeout.
    #[error("{what} is not programmed after {} s{}", waited.as_secs(), lagging_nodes(behind, failures))]
    NotProgrammed {
        /// Kind and id of the object.
        what: String,
        /// Timeout of the wait.
        waited: Duration,
        /// Names of the nodes that have not acknowledged the revision of the object.
        behind: Vec<String>,
        /// Entries of the object that nodes could not write.
        failures: Vec<EntryFailure>,
    },
    /// A change that takes several steps, such as a drain or a move, was not complete before the timeout.
    #[error("the change of {what} is not complete after {} s", waited.as_secs())]
    NotComplete {
        /// Kind and id of the object.
        what: String,
        /// Timeout of the wait.
        waited: Duration,
    },
    /// Nodes had entries of a deleted object at the timeout.
    #[error(
        "{what} is deleted, but not removed from all nodes after {} s: {}", waited.as_secs(), waiting.join("; ")
    )]
    NotRemoved {
        /// Kind and id of the object.
        what: String,
        /// Timeout of the wait.
        waited: Duration,
        /// The nodes that may still have entries, each with the reason.
        waiting: Vec<String>,
    },
}

fn hint(error: &reqwest::Error) -> &'static str {
    if error.is_timeout() {
        ": no response before the timeout"
    } else if error.is_connect() {
        ": is `sluice controller` running there?"
    } else {
        ""
    }
}

fn lagging_nodes(behind: &[String], failures: &[EntryFailure]) -> String {
    let mut text = String::new();
    if !behind.is_empty() {
        text = format!("; nodes that lag behind: {}", behind.join(", "));
    }
    for failure in failures {
        text.push_str(&format!("; {failure}"));
    }
    text
}

impl Error {
    /// The problem document, if the API refused the request.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Refused { problem, .. } => Some(problem),
            _ => None,
        }
    }

    /// True if the requested object does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NoSuchName { .. }) || self.status() == Some(404)
    }

    /// True if the same call may succeed later: the API did not respond, or responded with status 503.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unreachable { .. }) || self.status() == Some(503)
    }

    /// HTTP status of a refusal.
    pub fn status(&self) -> Option<u16> {
        self.problem().map(|problem| problem.status)
    }
}
