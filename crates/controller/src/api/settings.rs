//! Settings of the site: JSON by name, changed as a whole.

use super::Api;
use super::problem::Problem;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sluice_store::StoreError;

/// Times that a change is tried while others change the same settings.
const TRIES: u32 = 5;

/// Changes the settings of that name, and returns what they are then.
///
/// # Errors
/// What `change` refuses; 409 if others change them all the time.
pub async fn change<T: Default + Serialize + DeserializeOwned>(
    api: &Api,
    name: &str,
    change: impl Fn(&mut T) -> Result<(), Problem>,
) -> Result<T, Problem> {
    for _ in 0..TRIES {
        let before = api.core.store.setting(name).await?;
        let corrupt = |error| StoreError::Corrupt(format!("the settings `{name}`: {error}"));
        let mut settings: T = match &before {
            Some(text) => serde_json::from_str(text).map_err(corrupt)?,
            None => T::default(),
        };
        change(&mut settings)?;
        let text = serde_json::to_string(&settings).map_err(corrupt)?;
        if api.core.store.put_setting(name, before.as_deref(), &text).await? {
            return Ok(settings);
        }
    }
    Err(Problem::new(axum::http::StatusCode::CONFLICT, "settings-changed", "others change the settings, too")
        .offender(name))
}
