//! Work that keeps a processor busy, on threads of its own.

use super::problem::Problem;

/// Runs `work` on a thread that may block, and returns its result with the permit. The thread holds the permit
/// until `work` ends, even if the client disconnects and the handler is dropped before.
///
/// # Errors
/// 500 if `work` panics.
pub async fn run<P: Send + 'static, T: Send + 'static>(
    permit: P,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<(T, P), Problem> {
    let task = tokio::task::spawn_blocking(move || (work(), permit));
    task.await.map_err(|_| Problem::internal())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::time::Duration;
    use tokio::sync::Semaphore;

    #[tokio::test]
    async fn permit_is_held_until_the_work_ends() {
        let permits = Arc::new(Semaphore::new(1));
        let (finish, finished) = mpsc::channel::<()>();
        let permit = permits.clone().acquire_owned().await.unwrap();
        let handler = super::run(permit, move || finished.recv());
        assert!(tokio::time::timeout(Duration::from_millis(50), handler).await.is_err(), "it is dropped");
        assert_eq!(permits.available_permits(), 0);
        finish.send(()).unwrap();
        let free = tokio::time::timeout(Duration::from_secs(20), permits.acquire()).await;
        assert!(free.unwrap().is_ok());
    }
}
