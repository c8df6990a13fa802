use crate::{Client, Error, Resource, Result};
use std::time::{Duration, Instant};

/// Fast enough to see sub-second programming, slow enough to load no one.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Pauses that grow from [`FIRST_PAUSE`] to [`LONGEST_PAUSE`] until the time is up.
struct Patience {
    deadline: Instant,
    pause: Duration,
}

impl Patience {
    fn new(timeout: Duration) -> Self {
        Self { deadline: Instant::now() + timeout, pause: FIRST_PAUSE }
    }

    /// Pauses; false when the time is up.
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
    /// Waits until the API answers and its database is writable.
    ///
    /// # Errors
    /// The last answer when the time is up.
    pub async fn wait_ready(&self, timeout: Duration) -> Result<()> {
        let mut patience = Patience::new(timeout);
        loop {
            match self.ready().await {
                Ok(()) => return Ok(()),
                Err(error) if !error.is_transient() || !patience.pause().await => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// Waits until every node that needs the object has it; returns it as it is then.
    ///
    /// # Errors
    /// [`Error::NotProgrammed`] with the nodes that are behind; other errors
    /// than passing ones at once.
    pub async fn wait_programmed<T: Resource>(&self, id: T::Id, timeout: Duration) -> Result<T> {
        self.wait_until(id, timeout, |_| true).await
    }

    /// Waits until an object is as it shall be, and programmed; returns it as it is then.
    ///
    /// # Errors
    /// As [`Client::wait_programmed`].
    pub async fn wait_until<T: Resource>(
        &self,
        id: T::Id,
        timeout: Duration,
        fits: impl Fn(&T) -> bool,
    ) -> Result<T> {
        let mut patience = Patience::new(timeout);
        loop {
            let last = match self.get::<T>(id).await {
                Ok(object) if object.programmed() && fits(&object) => return Ok(object),
                Ok(object) => Ok(object.revision()),
                Err(error) if error.is_transient() => Err(error),
                Err(error) => return Err(error),
            };
            if !patience.pause().await {
                let behind = self.nodes_behind(last?).await;
                let what = format!("{} {id}", T::NOUN);
                return Err(Error::NotProgrammed { what, waited: timeout, behind });
            }
        }
    }

    /// Waits until everything that the filters let through is programmed.
    ///
    /// # Errors
    /// As [`Client::wait_programmed`].
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

    async fn nodes_behind(&self, revision: u64) -> Vec<String> {
        let nodes = self.nodes().await.unwrap_or_default();
        nodes
            .into_iter()
            .filter(|node| node.acked < revision)
            .map(|node| node.name.unwrap_or(node.node))
            .collect()
    }
}
