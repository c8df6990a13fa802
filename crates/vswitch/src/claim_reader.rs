//! Reads the claims that the program of the ports posts: announcements of addresses that VMs have in turn. This file
//! changes when claims come from elsewhere.

use std::sync::Arc;

use sluice_agent::event_source::EventSource;
use sluice_agent::{Applier, Error, Node};
use sluice_datapath::Claim;

use crate::role::HostRole;

/// Passes claims to the role until it fails.
///
/// # Errors
/// [`Error::WriterGone`], or if the events cannot be read.
pub async fn run(node: Arc<Node<HostRole>>, mut announced: impl EventSource<Claim>) -> Result<(), Error> {
    loop {
        announced.ready().await?;
        let mut claims = Vec::new();
        announced.drain(&mut claims)?;
        if !claims.is_empty() {
            node.writer.run(move |applier: &mut Applier<HostRole>| applier.role.note_claims(&claims)).await?;
        }
    }
}
