//! The thread that writes the tables: the only one of the process. This file changes with the way in which work
//! is handed to it.
//!
//! A large update takes milliseconds and waits for grace periods, which must not block the threads that serve
//! sockets.

use std::thread;

use tokio::sync::{mpsc, oneshot};

use crate::{Applier, Error, Role};

/// Jobs that may be queued. Further senders wait, which slows down the controller's stream.
const QUEUE_MAX: usize = 64;

type Job<R> = Box<dyn FnOnce(&mut Applier<R>) + Send>;

/// Hands jobs to the writer thread. Cheap to clone.
pub struct TableWriter<R> {
    jobs: mpsc::Sender<Job<R>>,
}

impl<R> Clone for TableWriter<R> {
    fn clone(&self) -> Self {
        Self { jobs: self.jobs.clone() }
    }
}

impl<R: Role> TableWriter<R> {
    /// Starts the thread. It ends when the last handle is dropped.
    ///
    /// # Errors
    /// If the system refuses to start a thread.
    pub fn start(mut applier: Applier<R>) -> Result<Self, Error> {
        let (jobs, mut queue) = mpsc::channel::<Job<R>>(QUEUE_MAX);
        let run = move || {
            while let Some(job) = queue.blocking_recv() {
                job(&mut applier);
            }
        };
        thread::Builder::new()
            .name("tables".to_owned())
            .spawn(run)
            .map_err(Error::io("start the table writer"))?;
        Ok(Self { jobs })
    }

    /// Runs `job` after all jobs that were queued before, and returns its result.
    ///
    /// # Errors
    /// [`Error::WriterGone`].
    pub async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Applier<R>) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let (sender, receiver) = oneshot::channel();
        let job: Job<R> = Box::new(move |applier| {
            // The caller may have been canceled; the job is done nevertheless.
            let _ = sender.send(job(applier));
        });
        self.jobs.send(job).await.map_err(|_| Error::WriterGone)?;
        receiver.await.map_err(|_| Error::WriterGone)
    }

    /// Queues `job` without waiting. Returns false, and does nothing, if the queue is full.
    #[must_use]
    pub fn post(&self, job: impl FnOnce(&mut Applier<R>) + Send + 'static) -> bool {
        match self.jobs.try_send(Box::new(job)) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Full(_)) => false,
            // The tables are closed, so nothing is left to be done.
            Err(mpsc::error::TrySendError::Closed(_)) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::tests::applier;
    use std::sync::mpsc::channel;
    use std::sync::{Arc, Mutex};

    /// Catches a queue without a limit, and jobs that are lost or reordered.
    #[test]
    fn jobs_run_in_order_and_a_full_queue_refuses_more() {
        let writer = TableWriter::start(applier(1 << 12)).unwrap();
        let ((started, is_started), (release, is_released)) = (channel(), channel::<()>());
        assert!(writer.post(move |_| {
            started.send(()).unwrap();
            is_released.recv().unwrap();
        }));
        is_started.recv().unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        for number in 0..QUEUE_MAX {
            let order = order.clone();
            assert!(writer.post(move |_| order.lock().unwrap().push(number)), "job {number}");
        }
        assert!(!writer.post(|_| panic!("a refused job must not run")));
        release.send(()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let revision = runtime.block_on(writer.run(|applier| applier.tables.applied_revision()));
        assert_eq!(revision.unwrap(), 0);
        assert_eq!(*order.lock().unwrap(), (0..QUEUE_MAX).collect::<Vec<_>>());
    }
}
