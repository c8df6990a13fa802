//! The controller's database: objects, revisions and the outbox.
//!
//! [`Store`] is one type over two backends: SQLite (the default) and PostgreSQL. Every change is one
//! transaction: it checks what only the database can check, takes the next revision, writes the objects and
//! appends the changes to the outbox. Revisions are in commit order. One conformance suite
//! (`tests/conformance`) runs against both backends.
#![forbid(unsafe_code)]
// `id`, `name` and `revision` recur in every object, and most calls are create, get, list or delete of one
// kind. Documentation is written where unit, meaning or effect are not obvious.
#![allow(missing_docs)]

mod backend;
mod check;
mod codec;
mod error;
mod health;
mod internet;
mod migrations;
mod model;
mod network_classes;
mod ops;
mod placement_plans;
mod postgres;
mod requests;
mod rows;
mod schema;
mod security;
mod services;
mod sqlite;
mod store;
mod url;
mod value;
mod write;

pub use check::{MAX_DNS, MAX_VIPS, MTU};
pub use error::{Conflict, MigrationConflict, ServiceConflict, StoreError};
pub use health::*;
pub use internet::*;
pub use migrations::*;
pub use model::*;
pub use network_classes::*;
pub use placement_plans::{PlanProgress, PlanState, StoredPlan};
pub use requests::*;
pub use security::{
    DEFAULT_GROUP, GroupSet, MAX_GROUPS, MAX_GROUPS_OF_INSTANCE, MAX_RULES, MAX_RULES_OF_INSTANCE, MAX_SETS,
    NewSecurityGroup, NewSecurityRule, SecurityGroup, SecurityGroupUpdate, SecurityRule,
};
pub use services::*;
pub use sluice_types::{PortSettings, Qos, Remote, RuleMatch};
pub use store::{InstanceWithGroups, SNAPSHOTS_MAX, Store};
pub use url::Options;

use std::sync::Arc;

/// Result of every store call.
pub type Result<T> = std::result::Result<T, StoreError>;

/// Opens `sqlite:PATH`, `sqlite::memory:` or `postgres://...`. Creates or migrates the schema.
///
/// # Errors
/// [`StoreError::Unavailable`] with the cause; [`StoreError::BadUrl`]; [`StoreError::Corrupt`] if the schema
/// was written by a newer version.
pub async fn open(url: &str) -> Result<Arc<Store>> {
    open_with(url, Options::default()).await
}

/// [`open`] with options that the URL does not contain.
///
/// # Errors
/// The errors of [`open`].
pub async fn open_with(url: &str, options: Options) -> Result<Arc<Store>> {
    let (backend, dialect): (Box<dyn backend::Backend>, _) = match url::parse(url)? {
        url::Location::File(path) => {
            (Box::new(sqlite::SqliteBackend::open(&path).await?), schema::Dialect::Sqlite)
        }
        url::Location::Memory => {
            (Box::new(sqlite::SqliteBackend::in_memory().await?), schema::Dialect::Sqlite)
        }
        url::Location::Postgres(options) => {
            (Box::new(postgres::PostgresBackend::open(*options).await?), schema::Dialect::Postgres)
        }
    };
    let mut tx = backend.begin_write().await?;
    let id = schema::migrate(tx.as_mut(), dialect, *options.vnis.start()).await?;
    tx.commit().await?;
    Ok(Arc::new(Store::new(backend, id, options)))
}
