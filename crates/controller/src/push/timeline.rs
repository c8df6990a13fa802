//! Measures the stages of a bulk creation, from the first byte of the API request to the acknowledgment of
//! the last gateway. The times are logged and exported as metrics.

use sluice_types::GatewayId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Creations of fewer instances are not measured.
pub const MIN_INSTANCES: usize = 1000;
/// Creations that are measured at the same time. Beyond, the oldest is dropped.
const MAX_OPEN: usize = 64;

/// Times that the API handler measured.
#[derive(Clone, Copy, Debug)]
pub struct ApiStages {
    /// Reading and checking the request's body.
    pub parse: Duration,
    /// The store's transaction.
    pub store: Duration,
}

/// Times that the follower measured.
#[derive(Clone, Copy, Debug)]
pub struct CompileStages {
    /// Reading the change from the outbox.
    pub read: Duration,
    /// Compiling and encoding.
    pub compile: Duration,
}

/// The measured times of a creation that all gateways have acknowledged.
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    /// The creation's revision.
    pub revision: u64,
    /// Number of created instances.
    pub instances: usize,
    /// Parsing and storing.
    pub api: ApiStages,
    /// Reading back and compiling.
    pub compile: CompileStages,
    /// From the end of compiling until the last message was passed to the last gateway's stream.
    pub send: Duration,
    /// From then until the last gateway acknowledged. Most of it is the time to write tables.
    pub ack: Duration,
    /// From the first byte of the API request to the last acknowledgment.
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
    /// Revisions that the API reported before the follower compiled them.
    api: BTreeMap<u64, (ApiStages, Instant)>,
    last: Option<Finished>,
    finished: u64,
}

/// All creations that are measured, and the last that finished.
#[derive(Debug, Default)]
pub struct Timeline {
    inner: Mutex<Inner>,
}

impl Timeline {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The API committed a revision. Its request began at `began`.
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

    /// The follower compiled a revision that these gateways need.
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

    /// A revision was passed completely to a gateway's stream.
    pub fn sent(&self, gateway: GatewayId, revision: u64) {
        if let Some(open) = self.lock().open.get_mut(&revision)
            && open.to_send.remove(&gateway)
        {
            open.sent_at = Instant::now();
        }
    }

    /// A gateway acknowledged this revision and all before it.
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

    /// The creation that finished last, and the number of finished ones.
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
    fn creation_finishes_with_the_last_gateway() {
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
