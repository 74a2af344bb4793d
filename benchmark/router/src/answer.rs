//! An HTTP/1.1 answer as it arrives, in pieces of any size: its status, its events, its end.

use crate::Outcome;

/// Longest head that is read.
const MAX_HEAD: usize = 16 << 10;

/// One answer.
#[derive(Debug, Default)]
pub struct Answer {
    head: Vec<u8>,
    part: Part,
    /// The status, once the head is there.
    pub status: Option<u16>,
    /// Whether the head names a time to come back.
    pub retry_after: bool,
    newlines: u64,
    /// Bytes of the body so far.
    pub body_bytes: u64,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Part {
    #[default]
    Head,
    /// A body of known length: bytes left.
    Whole(usize),
    /// The digits of a chunk's size so far.
    Size(usize),
    /// A chunk: bytes left, the line end after it included.
    Chunk(usize),
    /// After the last chunk: bytes of its empty line left.
    Trailer(usize),
    Done,
}

impl Answer {
    /// Whether all of it is there.
    pub fn done(&self) -> bool {
        self.part == Part::Done
    }

    /// Server-sent events so far: each ends with an empty line and has no other line end.
    pub fn events(&self) -> u64 {
        self.newlines / 2
    }

    /// Takes the next piece; gives how much of it belongs to this answer.
    ///
    /// # Errors
    /// When it is no HTTP.
    pub fn feed(&mut self, piece: &[u8]) -> Outcome<usize> {
        let mut at = 0;
        while at < piece.len() && !self.done() {
            at += self.step(&piece[at..])?;
        }
        Ok(at)
    }

    fn step(&mut self, rest: &[u8]) -> Outcome<usize> {
        match self.part {
            Part::Head => self.feed_head(rest),
            Part::Whole(left) => {
                let taken = self.take_body(rest, left);
                self.part = if taken == left { Part::Done } else { Part::Whole(left - taken) };
                Ok(taken)
            }
            Part::Size(size) => {
                self.part = match rest[0] {
                    b'\r' => Part::Size(size),
                    b'\n' if size == 0 => Part::Trailer(2),
                    b'\n' => Part::Chunk(size + 2),
                    digit => {
                        let digit = char::from(digit).to_digit(16).ok_or("a chunk without a size")? as usize;
                        Part::Size(size.checked_mul(16).ok_or("a chunk beyond all size")? + digit)
                    }
                };
                Ok(1)
            }
            Part::Chunk(left) => {
                let taken = if left > 2 { self.take_body(rest, left - 2) } else { rest.len().min(left) };
                self.part = if taken == left { Part::Size(0) } else { Part::Chunk(left - taken) };
                Ok(taken)
            }
            Part::Trailer(left) => {
                self.part = if left == 1 { Part::Done } else { Part::Trailer(left - 1) };
                Ok(1)
            }
            Part::Done => Ok(0),
        }
    }

    fn take_body(&mut self, rest: &[u8], most: usize) -> usize {
        let body = &rest[..rest.len().min(most)];
        self.newlines += body.iter().filter(|&&byte| byte == b'\n').count() as u64;
        self.body_bytes += body.len() as u64;
        body.len()
    }

    fn feed_head(&mut self, rest: &[u8]) -> Outcome<usize> {
        let before = self.head.len();
        self.head.extend_from_slice(rest);
        // The end may have begun in the piece before.
        let from = before.saturating_sub(3);
        let Some(end) = self.head[from..].windows(4).position(|window| window == b"\r\n\r\n") else {
            return if self.head.len() > MAX_HEAD { Err("a head without an end".into()) } else { Ok(rest.len()) };
        };
        let end = from + end + 4;
        self.head.truncate(end);
        self.read_head()?;
        Ok(end - before)
    }

    fn read_head(&mut self) -> Outcome {
        let head = std::str::from_utf8(&self.head)?.to_ascii_lowercase();
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.strip_prefix("http/1.1 ")).and_then(|line| line.get(..3));
        self.status = Some(status.ok_or("an answer that is no HTTP/1.1")?.parse()?);
        let header = |name: &str| lines.clone().find_map(|line| line.strip_prefix(name)).map(str::trim);
        self.retry_after = header("retry-after:").is_some();
        self.part = if header("transfer-encoding:") == Some("chunked") {
            Part::Size(0)
        } else {
            match header("content-length:").map_or(Ok(0), str::parse)? {
                0 => Part::Done,
                length => Part::Whole(length),
            }
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n\
        9\r\ndata: a\n\n\r\n12\r\ndata: b\n\ndata: c\n\n\r\n0\r\n\r\n";
    const WHOLE: &[u8] = b"HTTP/1.1 429 Too Many\r\nretry-after: 1\r\ncontent-length: 5\r\n\r\nhello";

    #[test]
    fn an_answer_is_the_same_in_pieces_of_any_size() {
        for size in 1..STREAM.len() {
            let mut answer = Answer::default();
            for piece in STREAM.chunks(size) {
                assert!(!answer.done());
                assert_eq!(answer.feed(piece).unwrap(), piece.len());
            }
            assert!(answer.done(), "in pieces of {size}");
            assert_eq!((answer.status, answer.events(), answer.body_bytes), (Some(200), 3, 27));
        }
    }

    #[test]
    fn what_follows_belongs_to_the_next_answer() {
        let two = [WHOLE, STREAM].concat();
        let mut first = Answer::default();
        assert_eq!(first.feed(&two).unwrap(), WHOLE.len());
        assert!(first.done() && first.retry_after);
        assert_eq!((first.status, first.body_bytes), (Some(429), 5));
        let mut second = Answer::default();
        assert_eq!(second.feed(&two[WHOLE.len()..]).unwrap(), STREAM.len());
        assert!(second.done() && !second.retry_after);
    }

    #[test]
    fn what_is_no_http_is_refused() {
        for text in ["SMTP ready\r\n\r\n", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n"] {
            assert!(Answer::default().feed(text.as_bytes()).is_err(), "{text}");
        }
    }
}
