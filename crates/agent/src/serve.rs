//! A node that serves: its tasks, from the first to the signal that ends them. This file changes when a node
//! serves something else.

use std::fs;
use std::future::Future;
use std::io;

use axum::Router;
use axum::serve::Listener;
use sluice_http::{Connections, Limits};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::scans::Scans;
use crate::stream_client::StreamClient;
use crate::{CommonArgs, Error, Role, Started, local_api, metrics};

/// Connections to the local API, and to the metrics: few clients need them.
const CONNECTIONS_MAX: usize = 64;

impl<R: Role> Started<R> {
    /// Follows the controller, serves the local API and metrics, and runs `work`, until SIGTERM or SIGINT.
    /// Programs, tables and attachments stay in place.
    ///
    /// # Errors
    /// If a listener cannot be opened, or one of the tasks fails permanently.
    pub async fn serve(
        self,
        common: &CommonArgs,
        routes: Router,
        work: impl Future<Output = Result<(), Error>> + Send + 'static,
    ) -> Result<(), Error> {
        let node = self.node;
        let mut tasks = JoinSet::new();
        let socket = common.socket(node.role);
        let listener = local_api::listen(&socket)?;
        let local = local_api::router(node.clone()).merge(routes);
        tasks.spawn(serve_http(listener, local));
        if let Some(address) = common.metrics {
            let listener = TcpListener::bind(address)
                .await
                .map_err(Error::io(format!("listen on {address} for metrics")))?;
            tasks.spawn(serve_http(listener, metrics::router(node.clone())));
        }
        let client = StreamClient {
            identity: self.identity,
            writer: node.writer.clone(),
            datapath: node.datapath.clone(),
            status: node.status.clone(),
            topology: node.topology.clone(),
            deleted: node.deleted.clone(),
            scans: Scans::default(),
            health: node.health.clone(),
        };
        tasks.spawn(client.run());
        tasks.spawn(work);
        tracing::info!(node = node.name, socket = %socket.display(), "running");
        let result = tokio::select! {
            signal = stop_signal() => signal,
            Some(result) = tasks.join_next() => match result {
                Ok(result) => result,
                Err(panic) => Err(Error::io("a task failed")(io::Error::other(panic))),
            },
        };
        // This cannot be the socket of a successor: the lock is still held here.
        let _ = fs::remove_file(&socket);
        result
    }
}

/// Serves until the task is canceled.
async fn serve_http<L: Listener>(listener: L, router: Router) -> Result<(), Error> {
    let limits = Limits { connections: CONNECTIONS_MAX, ..Limits::default() };
    sluice_http::serve(listener, router, limits, Connections::new(&limits), std::future::pending()).await;
    Ok(())
}

async fn stop_signal() -> Result<(), Error> {
    let failed = || Error::io("listen for signals");
    let mut terminate = signal(SignalKind::terminate()).map_err(failed())?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("stopping; programs and tables stay in place");
    Ok(())
}
