use crate::NodeError;
use std::path::PathBuf;

/// What can go wrong between a node and its controller.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of the state directory, or the enrolment bundle.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A file that was read, but holds something else.
    #[error("{} is no {expected}", path.display())]
    Content {
        /// Where.
        path: PathBuf,
        /// What was expected there.
        expected: &'static str,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// A key or certificate cannot be made or read.
    #[error("cannot {action}")]
    Certificate {
        /// What was tried.
        action: &'static str,
        /// Why not.
        #[source]
        source: rcgen::Error,
    },
    /// The name of a node is invalid.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The controller answered an enrolment for another node.
    #[error("the token is {given}'s, but the bundle says {expected}")]
    OtherNode {
        /// In the controller's answer.
        given: String,
        /// In the bundle.
        expected: String,
    },
    /// The controller's address cannot be used.
    #[error("`{0}` is no controller address: expected HOST:PORT")]
    Address(String),
    /// There is no TLS connection: the peer does not answer, or the certificates do not match.
    #[error("cannot connect to the controller at {controller}")]
    Connect {
        /// HOST:PORT
        controller: String,
        /// Why not.
        #[source]
        source: tonic::transport::Error,
    },
    /// The controller refused, or the stream broke.
    #[error("controller: {} ({})", .0.message(), .0.code())]
    Status(Box<tonic::Status>),
    /// The stream's sending side has ended.
    #[error("the stream to the controller has ended")]
    Ended,
}

impl From<tonic::Status> for Error {
    fn from(status: tonic::Status) -> Self {
        Self::Status(Box::new(status))
    }
}

/// Of the answer to a node that has been deleted: the database that knows it no more, in decimal.
const DELETED_FROM: &str = "sluice-deleted-from";

/// What a controller answers a node that has been deleted from the database of this number.
pub fn deleted(database_id: u64) -> tonic::Status {
    let mut status = tonic::Status::permission_denied("this node is not in the database any more");
    status.metadata_mut().insert(DELETED_FROM, database_id.into());
    status
}

impl Error {
    /// The database that this node was deleted from, if that is what the controller says.
    pub fn deleted_from(&self) -> Option<u64> {
        let Self::Status(status) = self else { return None };
        status.metadata().get(DELETED_FROM)?.to_str().ok()?.parse().ok()
    }

    /// True when trying again cannot help: the token is spent, the node is
    /// removed, the certificate is not the controller's.
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
