//! Limits the time in which the body of a request must arrive. This file changes when bodies have another limit.

use std::io;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use futures::{StreamExt, stream};
use tokio::time::{Instant, timeout_at};

/// Middleware: a body that has not arrived within `limit` ends with an error.
pub(crate) async fn limit_time(limit: Duration, request: Request, next: Next) -> Response {
    let deadline = Instant::now() + limit;
    let limited = request.map(|body| {
        let parts = stream::unfold(Some(body.into_data_stream()), move |rest| async move {
            let mut rest = rest?;
            match timeout_at(deadline, rest.next()).await {
                Ok(part) => Some((part?.map_err(io::Error::other), Some(rest))),
                Err(_) => {
                    let late = format!("the body did not arrive within {} s", limit.as_secs_f32());
                    Some((Err(io::Error::new(io::ErrorKind::TimedOut, late)), None))
                }
            }
        });
        Body::from_stream(parts)
    });
    next.run(limited).await
}
