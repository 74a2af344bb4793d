//! The link to a shard: frames over an inherited Unix socket.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::protocol::{Frame, HEADER, MAX_PAYLOAD, ProtocolError};

/// Why a link is of no more use.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The shard has closed its end.
    #[error("the shard closed the connection")]
    Closed,
    /// The socket failed.
    #[error("the connection to the shard failed: {0}")]
    Io(#[from] io::Error),
    /// A step is not answered.
    #[error("the shard has not answered a step for {} s; where steps can take longer, raise --shard-step-timeout", .0.as_secs_f64())]
    Hung(Duration),
    /// The shard broke the protocol.
    #[error("the shard broke the protocol: {0}")]
    Protocol(#[from] ProtocolError),
}

/// Bytes that are read at once.
const PIECE: usize = 64 << 10;

/// One connected shard.
#[derive(Debug)]
pub struct Link {
    /// Watched for input alone: who watches for room as well is woken whenever the shard has read something, in each step.
    socket: AsyncFd<UnixStream>,
    piece: Box<[u8]>,
    input: BytesMut,
    output: Vec<u8>,
}

impl Link {
    /// Takes over a connected Unix stream socket. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// When the descriptor is not such a socket.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        let socket = UnixStream::from(socket);
        socket.set_nonblocking(true)?;
        let socket = watched(socket, Interest::READABLE)?;
        Ok(Self { socket, piece: vec![0; PIECE].into(), input: BytesMut::new(), output: Vec::new() })
    }

    /// The next frame. Safe to cancel: what was read stays in the buffer.
    ///
    /// # Errors
    /// `Closed` at the end of the stream, `Io`, or `Protocol`.
    pub async fn receive(&mut self) -> Result<Frame, LinkError> {
        loop {
            if let Some(frame) = self.buffered()? {
                return Ok(frame);
            }
            let mut ready = if self.output.is_empty() {
                self.socket.readable().await?
            } else {
                let room = self.room()?;
                tokio::select! {
                    ready = self.socket.readable() => ready?,
                    room = room.writable() => {
                        room?.retain_ready();
                        self.send()?;
                        continue;
                    }
                }
            };
            match ready.get_inner().read(&mut self.piece) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(count) => {
                    self.input.extend_from_slice(&self.piece[..count]);
                    if count < PIECE {
                        // That was all: what comes later is told anew.
                        ready.clear_ready();
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => ready.clear_ready(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn buffered(&mut self) -> Result<Option<Frame>, ProtocolError> {
        let Some((&[a, b, c, d, kind], rest)) = self.input.split_first_chunk::<HEADER>() else { return Ok(None) };
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length > MAX_PAYLOAD {
            return Err(ProtocolError::TooLarge(length));
        }
        let Some(payload) = rest.get(..length) else {
            let missing = length - rest.len();
            self.input.reserve(missing);
            return Ok(None);
        };
        let frame = Frame::decode(kind, payload)?;
        self.input.advance(HEADER + length);
        Ok(Some(frame))
    }

    /// Writes a frame into the buffer; [`Link::send`] sends what has gathered in one write.
    ///
    /// # Errors
    /// When the frame is over the limit.
    pub fn queue(&mut self, frame: &Frame) -> Result<(), LinkError> {
        Ok(frame.encode(&mut self.output)?)
    }

    /// Sends what is queued as far as there is room, which there nearly always is; [`Link::receive`] sends the rest. A shard reads
    /// between its steps alone: who waited for it would not hear what it asks for in the middle of one.
    ///
    /// # Errors
    /// `Closed` and `Io`.
    pub fn send(&mut self) -> Result<(), LinkError> {
        let mut sent = 0;
        while let Some(rest) = self.output.get(sent..).filter(|rest| !rest.is_empty()) {
            match self.socket.get_ref().write(rest) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.output.drain(..sent);
        Ok(())
    }

    /// Sends all that is queued.
    ///
    /// # Errors
    /// `Closed` and `Io`.
    pub async fn flush(&mut self) -> Result<(), LinkError> {
        loop {
            self.send()?;
            if self.output.is_empty() {
                return Ok(());
            }
            self.room()?.writable().await?.retain_ready();
        }
    }

    /// What tells that there is room again.
    fn room(&self) -> io::Result<AsyncFd<UnixStream>> {
        watched(self.socket.get_ref().try_clone()?, Interest::WRITABLE)
    }
}

fn watched(socket: UnixStream, interest: Interest) -> io::Result<AsyncFd<UnixStream>> {
    // SAFETY: a `UnixStream` owns its descriptor, which stays open and the same as long as it lives, and the `AsyncFd` owns it.
    let watched = unsafe { AsyncFd::register_with_interest(socket, interest) };
    Ok(watched?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::columns::Column;
    use crate::shard::protocol::{Ask, Step};

    /// More than a socket holds is queued while the shard is in a step, and asks for something in the middle of it.
    #[tokio::test]
    async fn who_has_more_to_send_than_there_is_room_for_still_hears() {
        let (ours, mut shard) = UnixStream::pair().unwrap();
        let mut link = Link::new(ours.into()).unwrap();
        let step = Frame::Step(Step { tokens: Column((0..1 << 20).collect()), ..Step::default() });
        let ask = Frame::Ask(Ask { step: 1, masks: Column(vec![2]) });
        let mut bytes = Vec::new();
        ask.encode(&mut bytes).unwrap();
        shard.write_all(&bytes).unwrap();
        link.queue(&step).unwrap();
        link.send().unwrap();
        assert_eq!(link.receive().await.unwrap(), ask);
        assert!(!link.output.is_empty(), "the shard has read nothing");
        let reading = std::thread::spawn(move || {
            let mut length = 0;
            let mut header = [0; HEADER];
            shard.read_exact(&mut header).unwrap();
            let mut payload = vec![0; u32::from_le_bytes(header[..4].try_into().unwrap()) as usize];
            while length < payload.len() {
                length += shard.read(&mut payload[length..]).unwrap();
            }
            shard.write_all(&bytes).unwrap();
            (Frame::decode(header[4], &payload).unwrap(), shard)
        });
        assert_eq!(link.receive().await.unwrap(), ask, "what was left is sent meanwhile");
        let (read, _shard) = reading.join().unwrap();
        assert!(read == step && link.output.is_empty());
    }
}
