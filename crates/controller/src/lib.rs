//! The controller: the northbound API, the compiler of intent into table
//! entries, and the streams that carry them to the nodes.
//!
//! Each module owns its state behind one handle; arrows are dependencies, and there are no others:
//!
//! ```text
//!                   api                    REST handlers (Api)
//!          ┌─────────┼─────────┐
//!          ▼         ▼         │
//!        place     moves       │           VPCs to clusters, vIPs to gateways (Place); moves (Moves)
//!          │ ╲     ╱ │         │
//!          │   ╲ ╱   │         │
//!          │   ╱ ╲   │         │
//!          ▼ ▼     ▼ ▼         │
//!      ownership   push ◀──────┘           owners of vIPs (Ownership); streams to nodes (Push)
//!          │         │
//!          └────┬────┘
//!               ▼
//!            compile                       intent to entries (CompiledClusters)
//!               │
//!               ▼
//!            database                      the store, commits, settings (Database)
//! ```
//!
//! `api` may use all modules below it. `push` and `ownership` call `place` only through the observer traits
//! that they define. `run` connects the modules and starts their tasks.
//!
//! How a change gets to the nodes: `api` checks it and has the store commit it; `push` reads it back from
//! the outbox, `compile` says what it means for which node, and `push` keeps that, encoded, and sends it to
//! each node. From the acknowledgments, `push` says what is programmed.
#![forbid(unsafe_code)]

mod api;
mod clock;
mod compile;
mod database;
mod moves;
mod ownership;
mod place;
mod push;
mod run;

pub use api::{REQUEST_DECODERS, Refusal, RequestDecoder};
pub use compile::Model;
pub use run::{Args, Controller, Error, run};

/// The OpenAPI document of the northbound API, as `api/openapi.json` has it.
///
/// # Errors
/// When it cannot be written as JSON.
pub fn openapi_json() -> Result<String, serde_json::Error> {
    api::document().to_pretty_json().map(|text| text + "\n")
}

#[cfg(test)]
mod convergence_tests;
