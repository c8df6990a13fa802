use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// An error as the API states it: `application/problem+json` (RFC 9457).
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
    /// What went wrong this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The field, object or address that the API objects to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offender: Option<serde_json::Value>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = self.detail.as_deref().unwrap_or(&self.title);
        if said.is_empty() {
            write!(f, "HTTP status {}", self.status)?;
        } else {
            f.write_str(said)?;
        }
        let offender = match &self.offender {
            None | Some(serde_json::Value::Null) => return Ok(()),
            Some(serde_json::Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        // Most details name the offender already.
        if said.contains(&offender) { Ok(()) } else { write!(f, " (offender: {offender})") }
    }
}

/// What can go wrong between a caller and the API.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The base URL is no HTTP URL.
    #[error("`{0}` is no API URL: expected http://HOST:PORT")]
    BadUrl(String),
    /// No answer.
    #[error("cannot reach the API at {url}{}", hint(source))]
    Unreachable {
        /// What was called.
        url: String,
        /// Why there was none.
        #[source]
        source: reqwest::Error,
    },
    /// The API answered with a problem; [`Problem::status`] says of which class.
    #[error("{action}: {problem}")]
    Refused {
        /// What was asked, in words.
        action: String,
        /// What the API said.
        problem: Box<Problem>,
    },
    /// The answer is not what this version of the API says.
    #[error("{action}: answer is not of this version's API; is something else listening there?")]
    Malformed {
        /// What was asked, in words.
        action: String,
        /// Where it differs.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No object has this name.
    #[error("no {kind} is named `{name}`{within}")]
    NoSuchName {
        /// Kind of object.
        kind: &'static str,
        /// The name looked for.
        name: String,
        /// Where it was looked for, with a space before it, or nothing.
        within: String,
    },
    /// Several objects have this name.
    #[error("{} {kind}s are named `{name}`: {}; give the id{narrow}", ids.len(), ids.join(", "))]
    AmbiguousName {
        /// Kind of object.
        kind: &'static str,
        /// The name looked for.
        name: String,
        /// Who has it.
        ids: Vec<String>,
        /// What else would tell them apart, as the end of the sentence.
        narrow: &'static str,
    },
    /// One object's id is another one's name.
    #[error(
        "`{text}` is the id of one {kind} and the name of another ({named}); write id:{text} or name:{text}"
    )]
    NameOrId {
        /// Kind of object.
        kind: &'static str,
        /// What was looked for.
        text: String,
        /// Id of the one that is named so.
        named: String,
    },
    /// Not programmed in time.
    #[error("{what} is not programmed after {} s{}", waited.as_secs(), laggards(behind))]
    NotProgrammed {
        /// The object.
        what: String,
        /// How long was waited.
        waited: Duration,
        /// Nodes that have not acknowledged its revision.
        behind: Vec<String>,
    },
}

fn hint(error: &reqwest::Error) -> &'static str {
    if error.is_timeout() {
        ": no answer in time"
    } else if error.is_connect() {
        ": is `sluice controller` running there?"
    } else {
        ""
    }
}

fn laggards(behind: &[String]) -> String {
    if behind.is_empty() { String::new() } else { format!("; behind: {}", behind.join(", ")) }
}

impl Error {
    /// The API's problem, if it answered with one.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Refused { problem, .. } => Some(problem),
            _ => None,
        }
    }

    /// True when what was asked for does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NoSuchName { .. }) || self.status() == Some(404)
    }

    /// True when the call may succeed later unchanged: nothing answered, or the API said 503.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unreachable { .. }) || self.status() == Some(503)
    }

    /// The HTTP status of a refusal.
    pub fn status(&self) -> Option<u16> {
        self.problem().map(|problem| problem.status)
    }
}
