//! Loads of the last moment, from the cluster protocol. This file changes when gateways send other figures in
//! it, or when another load wakes the scheduler.

use std::collections::VecDeque;

/// Period in milliseconds over which gateways measure [`RecentLoad::busy`].
pub const BUSY_MS: u64 = 100;
/// Oldest count that is used for the recent rate, in milliseconds: two of the gateway's messages may be lost.
const RECENT_MS: u64 = 160;
/// Shortest time between two counts that give a rate, in milliseconds: a little less than the time between
/// two messages.
const RATE_MS: u64 = 40;
/// Shortest time between two counts that are kept, in milliseconds.
const COUNTS_MS: u64 = 10;

/// The load of a gateway in the last 100 ms, from the cluster protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RecentLoad {
    /// Time of the report, in milliseconds of [`Loads::now_ms`](super::Loads::now_ms).
    pub measured_ms: u64,
    /// CPU load of its forwarding cores; 1 is full load.
    pub busy: f64,
    /// Packet rate; `None` if the gateway sends no packet counts this often.
    pub rate: Option<Rate>,
}

/// A packet rate and the start of its measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    /// Packets a second.
    pub pps: f64,
    /// Start of the measurement, in milliseconds of [`Loads::now_ms`](super::Loads::now_ms).
    pub since_ms: u64,
}

/// Loads above which the scheduler looks at a gateway without delay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alarm {
    /// CPU load of its forwarding cores; 1 is full load.
    pub busy: f64,
    /// Packets a second.
    pub pps: f64,
}

/// What a gateway reported last in the cluster protocol.
#[derive(Debug, Default)]
pub struct Recent {
    /// Its last load, which may arrive before its first heartbeat.
    pub load: Option<RecentLoad>,
    /// The loads that wake the scheduler, if any do.
    pub alarm: Option<Alarm>,
    /// Times and values of its last packet counts, the newest last.
    counts: VecDeque<(u64, u64)>,
}

impl Recent {
    /// Adds a load. Returns true if it is above the alarm.
    pub fn report(&mut self, load: &sluice_cluster::Load, now_ms: u64) -> bool {
        let rate = load.packets.and_then(|packets| rate(&mut self.counts, packets, now_ms));
        let busy = f64::from(load.busy_permille.min(1000)) / 1000.0;
        self.load = Some(RecentLoad { measured_ms: now_ms, busy, rate });
        self.alarm.is_some_and(|alarm| busy > alarm.busy || rate.is_some_and(|rate| rate.pps > alarm.pps))
    }
}

/// Adds a packet count and returns the rate since the newest count that is at least [`RATE_MS`] old.
fn rate(counts: &mut VecDeque<(u64, u64)>, packets: u64, now_ms: u64) -> Option<Rate> {
    let age_ms = |at_ms: u64| now_ms.saturating_sub(at_ms);
    // A counter that restarted is lower than before.
    counts.retain(|(at_ms, count)| age_ms(*at_ms) <= RECENT_MS && *count <= packets);
    let since = counts.iter().rev().find(|(at_ms, _)| age_ms(*at_ms) >= RATE_MS).copied();
    if counts.back().is_none_or(|(at_ms, _)| age_ms(*at_ms) >= COUNTS_MS) {
        counts.push_back((now_ms, packets));
    }
    let (since_ms, count) = since?;
    Some(Rate { pps: (packets - count) as f64 * 1000.0 / age_ms(since_ms) as f64, since_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_measured_over_recent_counts_and_compared_with_the_alarm() {
        let alarm = Some(Alarm { busy: 0.8, pps: 10_000.0 });
        let mut recent = Recent { alarm, ..Recent::default() };
        let mut report = |busy_permille, packets, now_ms| {
            let above = recent.report(&sluice_cluster::Load { busy_permille, packets }, now_ms);
            (above, recent.load.unwrap())
        };
        let first = RecentLoad { measured_ms: 1_000, busy: 0.3, rate: None };
        assert_eq!(report(300, Some(5_000), 1_000), (false, first));
        let mut rate = |busy_permille, packets, now_ms| {
            let (above, load) = report(busy_permille, packets, now_ms);
            (above, load.rate.map(|rate| (rate.pps, rate.since_ms)))
        };
        assert_eq!(rate(300, Some(9_000), 1_030), (false, None), "counts 30 ms apart give no rate");
        assert!(!rate(300, Some(5_500), 1_050).0, "the counter restarted");
        assert_eq!(rate(300, Some(5_900), 1_150), (false, Some((4_000.0, 1_050))));
        assert_eq!(rate(300, Some(6_000), 1_175), (false, Some((4_000.0, 1_050))), "the newest is too new");
        assert_eq!(rate(300, Some(6_700), 1_200), (true, Some((16_000.0, 1_150))));
        assert_eq!(rate(800, None, 1_300), (false, None));
        assert_eq!(rate(801, None, 1_300), (true, None));
        assert_eq!(rate(100, Some(9_000_000), 2_300), (false, None), "all counts are too old");
        recent.alarm = None;
        assert!(!recent.report(&sluice_cluster::Load { busy_permille: 1000, packets: None }, 2_350));
    }
}
