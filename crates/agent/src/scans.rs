//! Scans of the session table for the controller's questions: one at a time, because a scan takes the time of a processor
//! that packets need.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_types::InstanceId;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};

use crate::EndingSessionsJob;

/// Questions that are being answered or wait. A controller has no more of them open at a time.
const QUESTIONS_MAX: usize = 16;

/// The scan that runs, and the questions that wait for it, over all streams.
#[derive(Clone, Debug)]
pub(crate) struct Scans {
    places: Arc<Semaphore>,
    running: Arc<Mutex<()>>,
}

impl Default for Scans {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(QUESTIONS_MAX)), running: Arc::default() }
    }
}

/// A question's place in the queue.
#[derive(Debug)]
pub(crate) struct Place {
    _permit: OwnedSemaphorePermit,
    running: Arc<Mutex<()>>,
}

impl Scans {
    /// A place in the queue.
    ///
    /// # Errors
    /// The queue is full.
    pub fn place(&self) -> Result<Place, String> {
        let permit = Arc::clone(&self.places).try_acquire_owned();
        let permit = permit.map_err(|_| format!("{QUESTIONS_MAX} questions about sessions wait already"))?;
        Ok(Place { _permit: permit, running: Arc::clone(&self.running) })
    }
}

impl Place {
    /// Runs the job that `prepare` makes, when the scans of the questions before have ended. A job that has started runs to
    /// its end, also if the caller stops to wait: no other one starts before.
    ///
    /// # Errors
    /// Those of `prepare` and of the job.
    pub async fn run(
        self,
        prepare: impl Future<Output = Result<EndingSessionsJob, String>>,
    ) -> Result<BTreeMap<InstanceId, u64>, String> {
        let running = Arc::clone(&self.running).lock_owned().await;
        let job = prepare.await?;
        let scan = move || {
            let _until_its_end = (self, running);
            job()
        };
        tokio::task::spawn_blocking(scan).await.unwrap_or_else(|error| Err(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    /// Catches two scans at a time, also after the stream of the first one has ended, and a queue without a bound.
    #[tokio::test]
    async fn one_scan_at_a_time_and_few_wait() {
        let scans = Scans::default();
        let at_once = Arc::new(AtomicUsize::new(0));
        let (started, mut is_started) = tokio::sync::mpsc::unbounded_channel();
        let (go_on, gate) = mpsc::channel::<()>();
        let gate = Arc::new(std::sync::Mutex::new(gate));
        let job = || -> EndingSessionsJob {
            let (at_once, started, gate) = (Arc::clone(&at_once), started.clone(), Arc::clone(&gate));
            Box::new(move || {
                let others = at_once.fetch_add(1, Ordering::SeqCst);
                started.send(()).unwrap();
                gate.lock().unwrap().recv().unwrap();
                at_once.fetch_sub(1, Ordering::SeqCst);
                if others == 0 { Ok(BTreeMap::new()) } else { Err(format!("beside {others} others")) }
            })
        };
        let ask = || {
            let (place, job) = (scans.place().unwrap(), job());
            tokio::spawn(place.run(async { Ok(job) }))
        };
        let first = ask();
        is_started.recv().await.unwrap();
        first.abort();
        let waiting: Vec<_> = (1..QUESTIONS_MAX).map(|_| ask()).collect();
        assert_eq!(scans.place().unwrap_err(), "16 questions about sessions wait already");
        for _ in 0..QUESTIONS_MAX {
            go_on.send(()).unwrap();
        }
        for answer in waiting {
            answer.await.unwrap().unwrap();
        }
        assert!(scans.place().is_ok(), "the places are free again");
    }
}
