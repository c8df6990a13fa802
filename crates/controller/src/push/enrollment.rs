//! One-time enrollment tokens: 32 random bytes in hexadecimal. The database stores only their SHA-256.

use super::node::southbound_id;
use crate::clock::now_ms;
use sha2::{Digest, Sha256};
use sluice_southbound::EnrollmentBundle;
use sluice_store::{EnrollmentToken, NodeId, Store, StoreError};

/// Validity of a token.
pub const TOKEN_LIFE_MS: u64 = 60 * 60 * 1000;

/// How nodes reach and authenticate this controller.
#[derive(Clone, Debug)]
pub struct Reach {
    /// Address of the southbound listener, as HOST:PORT.
    pub controller: String,
    /// Server name in the controller's certificate.
    pub server_name: String,
    /// Certificate of the certificate authority that signed it.
    pub ca_pem: String,
}

/// Why no enrollment bundle could be made.
#[derive(Debug, thiserror::Error)]
pub enum EnrollError {
    /// The system gives no random bytes.
    #[error("the system gives no random bytes: {0}")]
    Random(getrandom::Error),
    /// The token cannot be stored.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The SHA-256 by which the database identifies a token.
pub fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// Makes a token for a node, in a bundle with everything that the node needs to use it.
///
/// # Errors
/// [`EnrollError`].
pub async fn issue(store: &Store, reach: &Reach, node: NodeId) -> Result<EnrollmentBundle, EnrollError> {
    let mut bytes = [0u8; 32];
    getrandom::fill(&mut bytes).map_err(EnrollError::Random)?;
    let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let now_ms = now_ms();
    let meaning = EnrollmentToken { node, expires_ms: now_ms + TOKEN_LIFE_MS };
    store.add_enrollment_token(digest(&token), meaning, now_ms).await?;
    let name = southbound_id(node);
    Ok(EnrollmentBundle {
        token,
        ca_pem: reach.ca_pem.clone(),
        controller: reach.controller.clone(),
        server_name: reach.server_name.clone(),
        node: name.id(),
        role: name.role().to_owned(),
    })
}
