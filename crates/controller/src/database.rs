//! The database as all modules of the controller use it: the store, the notice that something was
//! committed, and settings of the site.

use serde::Serialize;
use serde::de::DeserializeOwned;
use sluice_store::{Store, StoreError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

/// Attempts to change settings while others change the same settings.
const CHANGE_ATTEMPTS: u32 = 5;

/// The handle of the lowest layer.
pub struct Database {
    /// The objects, the outbox and the event log.
    pub store: Arc<Store>,
    committed: Notify,
    errors: AtomicU64,
}

impl Database {
    /// Uses an open store.
    pub fn new(store: Arc<Store>) -> Self {
        Self { store, committed: Notify::new(), errors: AtomicU64::new(0) }
    }

    /// Wakes the follower after a commit of this replica, so that nodes need not wait for its next poll.
    pub fn notify_commit(&self) {
        self.committed.notify_one();
    }

    /// Returns after the next commit of this replica.
    pub async fn wait_for_commit(&self) {
        self.committed.notified().await;
    }

    /// Counts a store call of a background task that failed.
    pub fn count_error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of store calls of background tasks that failed.
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// Reads settings, which are stored as JSON under a name. Settings that were never stored have their
    /// default values.
    ///
    /// # Errors
    /// Errors of the store, and [`StoreError::Corrupt`] if the stored text has another form.
    pub async fn settings<T: Default + DeserializeOwned>(&self, name: &str) -> Result<T, StoreError> {
        match self.store.setting(name).await? {
            None => Ok(T::default()),
            Some(text) => serde_json::from_str(&text).map_err(|error| corrupt(name, &error)),
        }
    }

    /// Changes settings as a whole and returns the new ones. Returns `None` if others changed them during
    /// each attempt.
    ///
    /// # Errors
    /// Errors of the store, and whatever `change` refuses.
    pub async fn change_settings<T, E>(
        &self,
        name: &str,
        change: impl Fn(&mut T) -> Result<(), E>,
    ) -> Result<Option<T>, E>
    where
        T: Default + Serialize + DeserializeOwned,
        E: From<StoreError>,
    {
        for _ in 0..CHANGE_ATTEMPTS {
            let before = self.store.setting(name).await?;
            let mut settings: T = match &before {
                Some(text) => serde_json::from_str(text).map_err(|error| corrupt(name, &error))?,
                None => T::default(),
            };
            change(&mut settings)?;
            let text = serde_json::to_string(&settings).map_err(|error| corrupt(name, &error))?;
            if self.store.put_setting(name, before.as_deref(), &text).await? {
                return Ok(Some(settings));
            }
        }
        Ok(None)
    }
}

fn corrupt(name: &str, error: &serde_json::Error) -> StoreError {
    StoreError::Corrupt(format!("the settings `{name}`: {error}"))
}
