//! The one thread that writes the tables.
//!
//! A big update takes milliseconds and waits for grace periods: none of that
//! may block the threads that serve sockets.

use std::thread;

use tokio::sync::{mpsc, oneshot};

use crate::{Applier, Error, Ports};

/// Jobs that wait. Senders beyond that wait themselves, which slows the controller's stream down.
const JOBS: usize = 64;

type Job<P> = Box<dyn FnOnce(&mut Applier<P>) + Send>;

/// Hands jobs to the thread. Cheap to clone.
pub struct Writer<P> {
    jobs: mpsc::Sender<Job<P>>,
}

impl<P> Clone for Writer<P> {
    fn clone(&self) -> Self {
        Self { jobs: self.jobs.clone() }
    }
}

impl<P: Ports> Writer<P> {
    /// Starts the thread; it ends with the last handle.
    ///
    /// # Errors
    /// If the system has no room for a thread.
    pub fn start(mut applier: Applier<P>) -> Result<Self, Error> {
        let (jobs, mut queue) = mpsc::channel::<Job<P>>(JOBS);
        let run = move || {
            while let Some(job) = queue.blocking_recv() {
                job(&mut applier);
            }
        };
        thread::Builder::new().name("tables".to_owned()).spawn(run).map_err(Error::io("start a thread"))?;
        Ok(Self { jobs })
    }

    /// Runs `job` after all that were handed over before, and returns its result.
    ///
    /// # Errors
    /// [`Error::WriterGone`].
    pub async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Applier<P>) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let (sender, receiver) = oneshot::channel();
        let job: Job<P> = Box::new(move |applier| {
            // Nobody waits for the answer any more: the job is done all the same.
            let _ = sender.send(job(applier));
        });
        self.jobs.send(job).await.map_err(|_| Error::WriterGone)?;
        receiver.await.map_err(|_| Error::WriterGone)
    }

    /// Hands `job` over without waiting for anything; false, and nothing is done, while too many wait.
    #[must_use]
    pub fn post(&self, job: impl FnOnce(&mut Applier<P>) + Send + 'static) -> bool {
        match self.jobs.try_send(Box::new(job)) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Full(_)) => false,
            // There are no tables any more: nothing is left to be done.
            Err(mpsc::error::TrySendError::Closed(_)) => true,
        }
    }
}
