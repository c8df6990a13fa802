use crate::proto::NodeRole;
use sluice_types::{GatewayId, HostId, IdError};
use std::fmt;
use std::str::FromStr;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The identity of a node: the subject of its certificate, written as `gateway:gw-7` or `host:host-3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Node {
    /// A gateway.
    Gateway(GatewayId),
    /// A compute host.
    Host(HostId),
}

/// Why a text or certificate does not identify a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// The text is neither `gateway:ID` nor `host:ID`.
    #[error("`{0}` does not identify a node: expected gateway:gw-NUMBER or host:host-NUMBER")]
    NotANode(String),
    /// The part after the role is not a valid id.
    #[error(transparent)]
    Id(#[from] IdError),
    /// The certificate cannot be parsed, or has no subject name.
    #[error("the certificate has no subject that names a node")]
    NoSubject,
}

impl Node {
    /// The node of a certificate (DER), which the caller has verified.
    ///
    /// # Errors
    /// [`NodeError`] if its subject does not identify a node.
    pub fn of_certificate(der: &[u8]) -> Result<Self, NodeError> {
        let (_, certificate) = X509Certificate::from_der(der).map_err(|_| NodeError::NoSubject)?;
        let mut names = certificate.subject().iter_common_name();
        let name = names.next().and_then(|name| name.as_str().ok()).ok_or(NodeError::NoSubject)?;
        name.parse()
    }

    /// The node with a role, as in an enrollment bundle, and an id.
    ///
    /// # Errors
    /// [`NodeError`] if they do not match.
    pub fn from_parts(role: &str, id: &str) -> Result<Self, NodeError> {
        match role {
            "gateway" => Ok(Self::Gateway(id.parse()?)),
            "host" => Ok(Self::Host(id.parse()?)),
            _ => Err(NodeError::NotANode(format!("{role}:{id}"))),
        }
    }

    /// `gateway` or `host`.
    pub fn role(&self) -> &'static str {
        match self {
            Self::Gateway(_) => "gateway",
            Self::Host(_) => "host",
        }
    }

    /// The id as text: `gw-7`, `host-3`.
    pub fn id(&self) -> String {
        match self {
            Self::Gateway(id) => id.to_string(),
            Self::Host(id) => id.to_string(),
        }
    }

    /// The role in messages.
    pub fn proto_role(&self) -> NodeRole {
        match self {
            Self::Gateway(_) => NodeRole::Gateway,
            Self::Host(_) => NodeRole::Host,
        }
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gateway(id) => write!(f, "gateway:{id}"),
            Self::Host(id) => write!(f, "host:{id}"),
        }
    }
}

impl FromStr for Node {
    type Err = NodeError;
    fn from_str(text: &str) -> Result<Self, NodeError> {
        let (role, id) = text.split_once(':').ok_or_else(|| NodeError::NotANode(text.to_owned()))?;
        Self::from_parts(role, id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_names_role_and_id() {
        for text in ["gateway:gw-7", "host:host-3"] {
            assert_eq!(text.parse::<Node>().unwrap().to_string(), text);
        }
        for text in ["", "gateway", "gateway:host-3", "host:gw-7", "router:gw-7", "host:host-0"] {
            assert!(text.parse::<Node>().is_err(), "{text}");
        }
        assert!(Node::of_certificate(b"junk").is_err());
    }
}
