//! The body of an answer that is traced to its last byte.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};

use super::request::Trace;

/// A body, and the trace that ends with it.
pub(super) struct Traced {
    body: Body,
    trace: Arc<Trace>,
}

impl Traced {
    pub(super) fn new(body: Body, trace: Arc<Trace>) -> Self {
        Self { body, trace }
    }
}

impl http_body::Body for Traced {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        // The sequences of a stream end with its body: what they have to tell comes first.
        drop(std::mem::take(&mut self.body));
        self.trace.sent();
    }
}
