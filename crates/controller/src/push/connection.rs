//! A node's connection, which the controller can end at any moment. The end of a stream alone frees nothing if the
//! node does not read: messages wait for the window of HTTP/2 as long as the connection lives, and a node that does
//! not read its stream still answers the probes of its connection.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tonic::transport::server::Connected;

/// An accepted connection.
#[derive(Debug)]
pub struct NodeConnection {
    stream: TcpStream,
    /// Resolves when the connection must end. HTTP/2 always waits for something to read, so checking it there is
    /// enough.
    end: oneshot::Receiver<()>,
    is_ended: bool,
    handle: ConnectionHandle,
}

/// Ends a connection. Requests have it among their extensions.
#[derive(Clone, Debug)]
pub struct ConnectionHandle(Arc<Mutex<Option<oneshot::Sender<()>>>>);

impl ConnectionHandle {
    /// Ends the connection with all its streams.
    pub fn end(&self) {
        if let Some(end) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // The connection may have ended already.
            let _ = end.send(());
        }
    }
}

impl NodeConnection {
    /// Takes over an accepted connection.
    pub fn new(stream: TcpStream) -> Self {
        let (sender, end) = oneshot::channel();
        Self { stream, end, is_ended: false, handle: ConnectionHandle(Arc::new(Mutex::new(Some(sender)))) }
    }
}

impl Connected for NodeConnection {
    type ConnectInfo = ConnectionHandle;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.handle.clone()
    }
}

impl AsyncRead for NodeConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // Its sender lives as long as `handle`.
        if self.is_ended || Pin::new(&mut self.end).poll(context).is_ready() {
            self.is_ended = true;
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for NodeConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, buffer)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
