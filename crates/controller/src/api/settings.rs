//! Changes of stored settings, with the answer for conflicts.

use super::Api;
use super::problem::Problem;
use axum::http::StatusCode;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Changes the settings with a name, and returns the new ones.
///
/// # Errors
/// The errors of `change`, and 409 if others changed the same settings during each attempt.
pub async fn change<T: Default + Serialize + DeserializeOwned>(
    api: &Api,
    name: &str,
    change: impl Fn(&mut T) -> Result<(), Problem>,
) -> Result<T, Problem> {
    let changed = api.db.change_settings(name, change).await?;
    changed.ok_or_else(|| {
        let detail = "others changed the same settings at the same time: try again";
        Problem::new(StatusCode::CONFLICT, "settings-changed", detail).offender(name)
    })
}
