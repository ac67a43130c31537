//! Connections: so many at a time, and none that is held without being used.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

/// The bytes that a slow connection must move within its patience.
const PROGRESS: usize = 16 << 10;

/// Accepts at most so many connections at a time; further ones wait outside.
pub struct Limited {
    listener: TcpListener,
    places: Arc<Semaphore>,
    patience: Duration,
}

impl Limited {
    pub fn new(listener: TcpListener, places: usize, patience: Duration) -> Self {
        let places = Arc::new(Semaphore::new(places));
        Self {
            listener,
            places,
            patience,
        }
    }
}

impl Listener for Limited {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        // The semaphore is never closed.
        let place = self.places.clone().acquire_owned().await.ok();
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let connection = Connection {
            stream,
            patience: self.patience,
            until: Box::pin(sleep(self.patience)),
            moved: 0,
            answering: false,
            _place: place,
        };
        (connection, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends if within its patience it neither turns from a request to an answer (or back) nor moves [`PROGRESS`] bytes. So a client
/// that sends or takes a byte a minute is let go, whatever it says.
pub struct Connection {
    stream: TcpStream,
    patience: Duration,
    until: Pin<Box<Sleep>>,
    /// Bytes since the patience began anew.
    moved: usize,
    /// Whether the last bytes were of an answer.
    answering: bool,
    _place: Option<OwnedSemaphorePermit>,
}

impl Connection {
    /// The error of a connection whose patience has ended; wakes the task when it does.
    fn lapsed(&mut self, context: &mut Context<'_>) -> Option<io::Error> {
        let lapsed = self.until.as_mut().poll(context).is_ready();
        lapsed.then(|| io::ErrorKind::TimedOut.into())
    }

    fn count(&mut self, bytes: usize, answering: bool) {
        self.moved += bytes;
        if bytes > 0 && (answering != self.answering || self.moved >= PROGRESS) {
            self.answering = answering;
            self.moved = 0;
            self.until.as_mut().reset(Instant::now() + self.patience);
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(lapsed) = self.lapsed(context) {
            return Poll::Ready(Err(lapsed));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.count(buffer.filled().len() - before, false);
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Some(lapsed) = self.lapsed(context) {
            return Poll::Ready(Err(lapsed));
        }
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(bytes)) = written {
            self.count(bytes, true);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
