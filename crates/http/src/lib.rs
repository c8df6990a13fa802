//! Serves HTTP/1.1 to clients that may be slow or hostile: the number of connections is limited, and so is the time
//! for which a connection may wait for its client. Controllers and agents serve all their HTTP by it.
//!
//! `server` accepts connections and serves them; `body` limits the time of request bodies, `stalled_write` that of
//! answers that a client does not read.
#![forbid(unsafe_code)]

mod body;
mod server;
mod stalled_write;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub use server::serve;

/// How long a connection waits for its client, and how many connections there may be.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// From the start of a connection, or from the end of an answer, until the header of the next request has
    /// arrived. So this is also how long a connection may be idle.
    pub header: Duration,
    /// From the header of a request until its body has arrived.
    pub body: Duration,
    /// For which the client may read nothing of an answer.
    pub stalled_write: Duration,
    /// Connections that are served at a time. Others wait, all but one in the kernel, until one of these ends.
    pub connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            header: Duration::from_secs(15),
            // The body of a bulk creation may have a quarter of a gigabyte.
            body: Duration::from_secs(120),
            stalled_write: Duration::from_secs(30),
            connections: 256,
        }
    }
}

/// The connections of a server. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Connections {
    free: Arc<Semaphore>,
    limit: usize,
}

impl Connections {
    /// No connection yet.
    #[must_use]
    pub fn new(limits: &Limits) -> Self {
        let limit = limits.connections;
        Self { free: Arc::new(Semaphore::new(limit)), limit }
    }

    /// Number of connections that are open.
    #[must_use]
    pub fn open(&self) -> usize {
        self.limit - self.free.available_permits().min(self.limit)
    }

    /// Most connections that may be open.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Waits until there may be another connection. It counts until the result is dropped.
    async fn admit(&self) -> OwnedSemaphorePermit {
        self.free.clone().acquire_owned().await.expect("the semaphore is never closed")
    }
}
