//! Waiting until the API is ready or objects are programmed, by polling.

use crate::{Client, Error, Resource, Result};
use std::time::{Duration, Instant};

/// The first pause between two polls is short, so that programming that takes milliseconds is seen at once.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Pauses between polls, which grow from [`FIRST_PAUSE`] to [`LONGEST_PAUSE`], until a deadline.
struct Backoff {
    deadline: Instant,
    pause: Duration,
}

impl Backoff {
    fn new(timeout: Duration) -> Self {
        Self { deadline: Instant::now() + timeout, pause: FIRST_PAUSE }
    }

    /// Pauses; returns false at the deadline.
    async fn pause(&mut self) -> bool {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        tokio::time::sleep(self.pause.min(left)).await;
        self.pause = (self.pause * 3 / 2).min(LONGEST_PAUSE);
        true
    }
}

impl Client {
    /// Waits until the API responds and its database is writable.
    ///
    /// # Errors
    /// The last transient error at the timeout; any other error at once.
    pub async fn wait_ready(&self, timeout: Duration) -> Result<()> {
        let mut backoff = Backoff::new(timeout);
        loop {
            match self.ready().await {
                Ok(()) => return Ok(()),
                Err(error) if !error.is_transient() || !backoff.pause().await => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// Waits until every node that needs the object has programmed it; returns its state at that time.
    ///
    /// # Errors
    /// [`Error::NotProgrammed`] with the nodes that lag behind. Errors that are not transient end the wait at
    /// once.
    pub async fn wait_programmed<T: Resource>(&self, id: T::Id, timeout: Duration) -> Result<T> {
        self.wait_until(id, timeout, |_| true).await
    }

    /// Waits until the object is programmed and `is_done`; returns its state at that time.
    ///
    /// # Errors
    /// The errors of [`Client::wait_programmed`].
    pub async fn wait_until<T: Resource>(
        &self,
        id: T::Id,
        timeout: Duration,
        is_done: impl Fn(&T) -> bool,
    ) -> Result<T> {
        let mut backoff = Backoff::new(timeout);
        loop {
            let last = match self.get::<T>(id).await {
                Ok(object) if object.programmed() && is_done(&object) => return Ok(object),
                Ok(object) => Ok(object.revision()),
                Err(error) if error.is_transient() => Err(error),
                Err(error) => return Err(error),
            };
            if !backoff.pause().await {
                let behind = self.nodes_behind(last?).await;
                let what = format!("{} {id}", T::NOUN);
                return Err(Error::NotProgrammed { what, waited: timeout, behind });
            }
        }
    }

    /// Waits until all objects that match the filters are programmed.
    ///
    /// # Errors
    /// The errors of [`Client::wait_programmed`].
    pub async fn wait_all_programmed<T: Resource>(
        &self,
        filters: &[(&str, &str)],
        timeout: Duration,
    ) -> Result<()> {
        let deadline = Instant::now() + timeout;
        for object in self.list::<T>(filters, None).await? {
            if !object.programmed() {
                let left = deadline.saturating_duration_since(Instant::now());
                self.wait_programmed::<T>(object.id(), left).await?;
            }
        }
        Ok(())
    }

    /// Names of the nodes that have not acknowledged the revision. This is only for an error text: if the
    /// nodes cannot be listed, the text names none.
    async fn nodes_behind(&self, revision: u64) -> Vec<String> {
        let nodes = self.nodes().await.unwrap_or_default();
        nodes
            .into_iter()
            .filter(|node| node.acknowledged_revision < revision)
            .map(|node| node.name.unwrap_or(node.node))
            .collect()
    }
}
