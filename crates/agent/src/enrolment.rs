//! The identity of this node: the certificate of an earlier start, or a new one that the controller issues for
//! the token of the enrollment file. This file changes with the way in which nodes get certificates.

use std::path::Path;

use sluice_southbound::{EnrolmentBundle, Identity, enrol};
use tokio::time::sleep;

use crate::backoff::Backoff;
use crate::{Error, error_chain};

/// Checks that [`load_or_enrol`] has a certificate or an enrollment file to start from.
///
/// # Errors
/// If there is neither of them.
pub fn check_identity(state_dir: &Path, enrolment: Option<&Path>) -> Result<(), Error> {
    match Identity::load(state_dir)? {
        Some(_) => Ok(()),
        None => load_bundle(state_dir, enrolment).map(drop),
    }
}

fn load_bundle(state_dir: &Path, enrolment: Option<&Path>) -> Result<EnrolmentBundle, Error> {
    let Some(file) = enrolment else {
        return Err(Error::Config(format!(
            "there is no certificate in {}: give --enrolment with the file that the controller issued for \
             this node",
            state_dir.display()
        )));
    };
    Ok(EnrolmentBundle::load(file)?)
}

/// Loads the certificate of an earlier start, or enrolls. Retries while the controller cannot be reached.
///
/// # Errors
/// If there is neither a certificate nor an enrollment file, or if the controller refuses the token.
pub async fn load_or_enrol(state_dir: &Path, enrolment: Option<&Path>) -> Result<Identity, Error> {
    if let Some(identity) = Identity::load(state_dir)? {
        return Ok(identity);
    }
    let bundle = load_bundle(state_dir, enrolment)?;
    let mut backoff = Backoff::new();
    loop {
        match enrol(&bundle, state_dir).await {
            Ok(identity) => {
                tracing::info!(node = bundle.node, controller = bundle.controller, "enrolled");
                return Ok(identity);
            }
            Err(error) if error.is_refusal() => return Err(error.into()),
            Err(error) => {
                let delay = backoff.next_delay();
                tracing::warn!(error = error_chain(&error), ?delay, "enrolment failed; retrying");
                sleep(delay).await;
            }
        }
    }
}
