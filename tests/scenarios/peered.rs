//! VMs of two peered VPCs reach each other, both ways.

use crate::Ground;
use crate::support::{Outcome, reaches};

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = ground.lab()?;
    for (from, to) in
        [("web-1", "db-1"), ("db-1", "web-1"), ("web-3", "db-1"), ("web-3", "db-2"), ("db-2", "web-2")]
    {
        reaches(lab, from, to).await?;
    }
    Ok(())
}
