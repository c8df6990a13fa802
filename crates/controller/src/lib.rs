//! The controller: the northbound API, the compiler of intent into table
//! entries, and the streams that carry them to the nodes.
//!
//! A change's way: `api` checks it and has the store commit it; `follow` reads
//! it back from the outbox, `compile` says what it means for whom, `steps` keeps
//! that, encoded, for `stream` to send to each node; `southbound` takes in the
//! acknowledgements, from which `members` says what is programmed.
#![forbid(unsafe_code)]

mod api;
mod compile;
mod core;
mod enrol;
mod follow;
mod gateway_moves;
mod hub;
mod keys;
mod ledger;
mod load;
mod members;
mod metrics;
mod model;
mod moves;
mod ownership;
mod placing;
mod run;
mod scheduling;
mod southbound;
mod steps;
mod stream;
mod timeline;
mod zones;

pub use model::Model;
pub use run::{Args, Controller, Error, run};

/// The OpenAPI document of the northbound API, as `api/openapi.json` has it.
///
/// # Errors
/// When it cannot be written as JSON.
pub fn openapi_json() -> Result<String, serde_json::Error> {
    api::document().to_pretty_json().map(|text| text + "\n")
}

#[cfg(test)]
mod compile_tests;
