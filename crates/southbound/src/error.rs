use crate::NodeError;
use std::path::PathBuf;

/// Errors between a node and its controller.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of the state directory, or the enrollment bundle, cannot be read or written.
    #[error("cannot {action} {}", path.display())]
    File {
        /// The action that failed, as in "cannot read".
        action: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A file has unexpected contents.
    #[error("{} does not contain a valid {expected}", path.display())]
    Content {
        /// The path of the file.
        path: PathBuf,
        /// What the file must contain.
        expected: &'static str,
        /// The syntax error.
        #[source]
        source: serde_json::Error,
    },
    /// A key or certificate cannot be created or parsed.
    #[error("cannot {action}")]
    Certificate {
        /// The action that failed.
        action: &'static str,
        /// The cause.
        #[source]
        source: rcgen::Error,
    },
    /// The name of a node is invalid.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The token belongs to another node than the bundle says.
    #[error("the token belongs to {given}, but the bundle is for {expected}")]
    OtherNode {
        /// The node in the controller's answer.
        given: String,
        /// The node in the bundle.
        expected: String,
    },
    /// The controller's address is invalid.
    #[error("`{0}` is not a valid controller address: expected HOST:PORT")]
    Address(String),
    /// The controller does not answer, or the certificates do not match.
    #[error("cannot connect to the controller at {controller}")]
    Connect {
        /// The controller's address, as HOST:PORT.
        controller: String,
        /// The cause.
        #[source]
        source: tonic::transport::Error,
    },
    /// The controller ended the stream or the call with an error, or the connection broke.
    #[error("controller: {} ({})", .0.message(), .0.code())]
    Status(Box<tonic::Status>),
    /// The sending half of the stream has ended.
    #[error("the stream to the controller has ended")]
    Ended,
}

impl From<tonic::Status> for Error {
    fn from(status: tonic::Status) -> Self {
        Self::Status(Box::new(status))
    }
}

/// Header of the status for a deleted node: the id of the database from which it was deleted, in decimal.
const DELETED_FROM: &str = "sluice-deleted-from";

/// The status with which a controller answers a node that was deleted from this database.
pub fn deleted(database_id: u64) -> tonic::Status {
    let mut status = tonic::Status::permission_denied("this node is not in the database any more");
    status.metadata_mut().insert(DELETED_FROM, database_id.into());
    status
}

impl Error {
    /// The database from which this node was deleted, if the controller says so.
    pub fn deleted_from(&self) -> Option<u64> {
        let Self::Status(status) = self else { return None };
        status.metadata().get(DELETED_FROM)?.to_str().ok()?.parse().ok()
    }

    /// True if another attempt cannot succeed: the controller refuses the token or this node, or a file or
    /// the controller's address is invalid.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Status(status) => {
                matches!(status.code(), tonic::Code::Unauthenticated | tonic::Code::PermissionDenied)
            }
            Self::OtherNode { .. } | Self::Content { .. } | Self::Node(_) | Self::Address(_) => true,
            _ => false,
        }
    }
}
