//! What connections of HTTP/2 have in common on both ports: their limits, and how they begin.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use super::listener::Door;

/// What an HTTP/2 connection begins with.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Most bytes of a call's headers.
const MAX_HEAD: u32 = 64 << 10;

/// A builder of connections that carry at most `calls` at once.
pub fn builder(door: &Door, calls: usize) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(door.head_timeout)
        .keep_alive_timeout(door.head_timeout)
        .max_concurrent_streams(u32::try_from(calls.max(1)).unwrap_or(u32::MAX))
        .max_header_list_size(MAX_HEAD);
    builder
}

/// The connection, once it has begun as HTTP/2 does: the library would wait for that for ever.
///
/// # Errors
/// When it begins otherwise, or breaks.
pub async fn begun<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) -> io::Result<Begun<S>> {
    let mut preface = [0; PREFACE.len()];
    stream.read_exact(&mut preface).await?;
    if &preface != PREFACE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(Begun { preface: PREFACE, stream })
}

/// A connection whose beginning has been read, and is read again.
#[derive(Debug)]
pub struct Begun<S> {
    /// What is still to be read of the beginning.
    preface: &'static [u8],
    stream: S,
}

impl<S: AsyncRead + Unpin> AsyncRead for Begun<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.preface.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let (now, later) = self.preface.split_at(self.preface.len().min(buffer.remaining()));
        buffer.put_slice(now);
        self.preface = later;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Begun<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
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

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn the_beginning_is_read_again_and_then_what_follows() {
        let (mut client, server) = tokio::io::duplex(64);
        client.write_all(PREFACE).await.unwrap();
        client.write_all(b"more").await.unwrap();
        client.shutdown().await.unwrap();
        let mut begun = begun(server).await.unwrap();
        let mut first = [0; 5];
        begun.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"PRI *");
        let mut all = first.to_vec();
        begun.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, [&PREFACE[..], b"more"].concat());
    }

    #[tokio::test]
    async fn what_begins_otherwise_is_none() {
        let (mut client, server) = tokio::io::duplex(64);
        client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        assert_eq!(begun(server).await.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
