//! Where the time of a bulk creation goes: stage by stage, from the API's first
//! byte to the last gateway's acknowledgement. Logged and exported as metrics.

use sluice_types::GatewayId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Creations of fewer instances are not timed.
pub const MIN_INSTANCES: usize = 1000;
/// Creations timed at once; the oldest gives way.
const MAX_OPEN: usize = 64;

/// What the API measured.
#[derive(Clone, Copy, Debug)]
pub struct ApiStages {
    /// Reading and checking the body.
    pub parse: Duration,
    /// The store's transaction.
    pub store: Duration,
}

/// What the follower measured.
#[derive(Clone, Copy, Debug)]
pub struct CompileStages {
    /// Reading the change back.
    pub read: Duration,
    /// Compiling and encoding.
    pub compile: Duration,
}

/// A finished creation.
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    /// Its revision.
    pub revision: u64,
    /// How many.
    pub instances: usize,
    /// Parse and store.
    pub api: ApiStages,
    /// Read and compile.
    pub compile: CompileStages,
    /// From compiled to the last message of it handed to the last gateway's stream.
    pub send: Duration,
    /// From there to the last gateway's acknowledgement: its writing, mostly.
    pub ack: Duration,
    /// From the API's first byte to the end.
    pub total: Duration,
}

#[derive(Debug)]
struct Open {
    instances: usize,
    api: Option<(ApiStages, Instant)>,
    compile: CompileStages,
    compiled_at: Instant,
    to_send: BTreeSet<GatewayId>,
    sent_at: Instant,
    to_ack: BTreeSet<GatewayId>,
    acked_at: Instant,
}

#[derive(Debug, Default)]
struct Inner {
    open: BTreeMap<u64, Open>,
    /// The API may know of a revision before the follower does, and after.
    api: BTreeMap<u64, (ApiStages, Instant)>,
    last: Option<Finished>,
    finished: u64,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Timeline {
    inner: Mutex<Inner>,
}

impl Timeline {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The API has made a revision; its request began at `began`.
    pub fn committed(&self, revision: u64, stages: ApiStages, began: Instant) {
        let mut inner = self.lock();
        match inner.open.get_mut(&revision) {
            Some(open) => open.api = Some((stages, began)),
            None => {
                inner.api.insert(revision, (stages, began));
                trim(&mut inner.api);
            }
        }
        inner.finish(revision);
    }

    /// The follower has compiled a revision, for these gateways.
    pub fn compiled(
        &self,
        revision: u64,
        instances: usize,
        stages: CompileStages,
        gateways: BTreeSet<GatewayId>,
    ) {
        let now = Instant::now();
        let mut inner = self.lock();
        let open = Open {
            instances,
            api: inner.api.remove(&revision),
            compile: stages,
            compiled_at: now,
            to_send: gateways.clone(),
            sent_at: now,
            to_ack: gateways,
            acked_at: now,
        };
        inner.open.insert(revision, open);
        trim(&mut inner.open);
    }

    /// A gateway's stream has taken all of a revision.
    pub fn sent(&self, gateway: GatewayId, revision: u64) {
        if let Some(open) = self.lock().open.get_mut(&revision)
            && open.to_send.remove(&gateway)
        {
            open.sent_at = Instant::now();
        }
    }

    /// A gateway acknowledged a revision, and with it all before.
    pub fn acked(&self, gateway: GatewayId, revision: u64) {
        let mut inner = self.lock();
        let reached: Vec<u64> = inner.open.range(..=revision).map(|(revision, _)| *revision).collect();
        for revision in reached {
            if let Some(open) = inner.open.get_mut(&revision)
                && open.to_ack.remove(&gateway)
            {
                open.acked_at = Instant::now();
            }
            inner.finish(revision);
        }
    }

    /// The last one that finished, and how many have.
    pub fn last(&self) -> (Option<Finished>, u64) {
        let inner = self.lock();
        (inner.last, inner.finished)
    }
}

fn trim<T>(map: &mut BTreeMap<u64, T>) {
    while map.len() > MAX_OPEN {
        map.pop_first();
    }
}

impl Inner {
    fn finish(&mut self, revision: u64) {
        let Some(open) = self.open.get(&revision) else { return };
        let Some((api, began)) = open.api else { return };
        if !open.to_ack.is_empty() {
            return;
        }
        let finished = Finished {
            revision,
            instances: open.instances,
            api,
            compile: open.compile,
            send: open.sent_at.duration_since(open.compiled_at),
            ack: open.acked_at.saturating_duration_since(open.sent_at),
            total: open.acked_at.saturating_duration_since(began),
        };
        let ms = |duration: Duration| duration.as_secs_f64() * 1000.0;
        tracing::info!(
            revision,
            instances = finished.instances,
            parse_ms = ms(api.parse),
            store_ms = ms(api.store),
            read_ms = ms(finished.compile.read),
            compile_ms = ms(finished.compile.compile),
            send_ms = ms(finished.send),
            ack_ms = ms(finished.ack),
            total_ms = ms(finished.total),
            "bulk creation programmed on all gateways"
        );
        self.last = Some(finished);
        self.finished += 1;
        self.open.remove(&revision);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finishes_with_the_last_gateway_whoever_reports_first() {
        let stage = Duration::from_millis(3);
        let api = ApiStages { parse: stage, store: stage };
        let compile = CompileStages { read: stage, compile: stage };
        let (one, two) = (GatewayId::new(1), GatewayId::new(2));
        for api_first in [true, false] {
            let timeline = Timeline::default();
            let began = Instant::now();
            if api_first {
                timeline.committed(7, api, began);
            }
            timeline.compiled(7, 2000, compile, [one, two].into());
            timeline.sent(one, 7);
            timeline.acked(one, 7);
            timeline.sent(two, 7);
            assert_eq!(timeline.last().1, 0);
            timeline.acked(two, 8);
            if !api_first {
                assert_eq!(timeline.last().1, 0);
                timeline.committed(7, api, began);
            }
            let (last, count) = timeline.last();
            assert_eq!((last.unwrap().instances, count), (2000, 1));
        }
    }
}
