//! Accepts connections and serves them. This file changes with the protocol, or with the way in which a server ends.

use std::pin::pin;

use axum::Router;
use axum::middleware;
use axum::serve::Listener;
use hyper::server::conn::http1::Builder;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::body::limit_time;
use crate::stalled_write::StalledWrite;
use crate::{Connections, Limits};

/// Serves `app` until `stop` resolves and the requests that have begun are answered. If the future is dropped
/// before, connections end at once.
pub async fn serve<L: Listener>(
    mut listener: L,
    app: Router,
    limits: Limits,
    connections: Connections,
    stop: impl Future<Output = ()>,
) {
    let app = app.layer(middleware::from_fn(move |request, next| limit_time(limits.body, request, next)));
    let mut http = Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.header);
    let (end, ending) = watch::channel(false);
    let mut tasks = JoinSet::new();
    let mut stop = pin!(stop);
    loop {
        while tasks.try_join_next().is_some() {}
        let next = async {
            let io = listener.accept().await.0;
            (connections.admit().await, io)
        };
        let (admitted, io) = tokio::select! {
            () = &mut stop => break,
            next = next => next,
        };
        let io = TokioIo::new(StalledWrite::new(io, limits.stalled_write));
        let connection = http.serve_connection(io, TowerToHyperService::new(app.clone()));
        let mut ending = ending.clone();
        tasks.spawn(async move {
            let _admitted = admitted;
            let mut connection = pin!(connection);
            // The errors of a connection are its client's: it was too slow, or has gone.
            let end = async { drop(ending.wait_for(|ending| *ending).await) };
            tokio::select! {
                _ = connection.as_mut() => {}
                () = end => {
                    connection.as_mut().graceful_shutdown();
                    let _ = connection.await;
                }
            }
        });
    }
    drop(listener);
    end.send_replace(true);
    while tasks.join_next().await.is_some() {}
}
