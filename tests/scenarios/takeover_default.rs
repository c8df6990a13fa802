//! A gateway dies at the default hello interval of 4 ms: the outage of every flow through it is as short as
//! `docs/decisions/takeover.md` says.
//!
//! At this interval a stall of the machine of 13 ms looks like a failure, so runs with stalls are repeated
//! (`stalls`). Catches: timers that are late, takeover steps that wait for each other, slow announcements.

use crate::Ground;
use crate::support::Outcome;
use crate::takeover::{Bench, Hellos, lab_of_three};
use std::time::Duration;

/// 15 ms from the failure to the first packet through another gateway, and 10 ms for probes that send every
/// 2 ms from a machine on whose two processors everything of the lab runs.
const TAKEOVER_MAX: Duration = Duration::from_millis(25);

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = lab_of_three(ground, None, Hellos::Default).await?;
    let bench = Bench::new(&lab).await?;
    bench.owners_preferred().await?;
    bench.gateway_dies("a gateway dies, 4 ms hellos", false, TAKEOVER_MAX).await
}
