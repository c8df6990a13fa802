//! The identity of this node: the certificate of an earlier start, or a new one that the controller issues for
//! the token of the enrollment file. This file changes with the way in which nodes get certificates.

use std::path::Path;

use sluice_southbound::{EnrollmentBundle, Identity, Node, enroll};
use tokio::time::sleep;

use crate::backoff::Backoff;
use crate::{Error, error_chain};

/// Checks that [`load_or_enroll`] has a certificate or an enrollment file to start from, and that it is one of a
/// node of this role.
///
/// # Errors
/// If there is neither of them, or if it is one of a node of the other role.
pub fn check_identity(state_dir: &Path, enrollment: Option<&Path>, role: &str) -> Result<(), Error> {
    let node = match Identity::load(state_dir)? {
        Some(identity) => identity.node()?,
        None => load_bundle(state_dir, enrollment)?.node()?,
    };
    if matches!(node, Node::Gateway(_)) == (role == "gateway") {
        return Ok(());
    }
    Err(Error::Config(format!("this node is enrolled as {node}, which cannot run as a {role}")))
}

fn load_bundle(state_dir: &Path, enrollment: Option<&Path>) -> Result<EnrollmentBundle, Error> {
    let Some(file) = enrollment else {
        return Err(Error::Config(format!(
            "there is no certificate in {}: give --enrollment with the file that the controller issued for \
             this node",
            state_dir.display()
        )));
    };
    Ok(EnrollmentBundle::load(file)?)
}

/// Loads the certificate of an earlier start, or enrolls. Retries while the controller cannot be reached.
///
/// # Errors
/// If there is neither a certificate nor an enrollment file, or if the controller refuses the token.
pub async fn load_or_enroll(state_dir: &Path, enrollment: Option<&Path>) -> Result<Identity, Error> {
    if let Some(identity) = Identity::load(state_dir)? {
        return Ok(identity);
    }
    let bundle = load_bundle(state_dir, enrollment)?;
    let mut backoff = Backoff::new();
    loop {
        match enroll(&bundle, state_dir).await {
            Ok(identity) => {
                tracing::info!(node = bundle.node, controller = bundle.controller, "enrolled");
                return Ok(identity);
            }
            Err(error) if error.is_refusal() => return Err(error.into()),
            Err(error) => {
                let delay = backoff.next_delay();
                tracing::warn!(error = error_chain(&error), ?delay, "enrollment failed; retrying");
                sleep(delay).await;
            }
        }
    }
}
