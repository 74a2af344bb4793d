//! From a request's end to the collector: a bounded queue, which loses what it has no room for, and one task that empties it.

use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanProcessor};
use tokio::sync::{mpsc, watch};

use super::collector::{Collector, Failure};
use crate::metrics::TraceMetrics;

/// Most spans in one message.
const BATCH: usize = 512;
/// Time in which spans are gathered for a message.
const GATHER: Duration = Duration::from_secs(1);
/// The collector takes a message within this.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where spans wait. Nobody ever waits for it.
#[derive(Debug)]
pub(super) struct Queue {
    spans: mpsc::Sender<SpanData>,
    metrics: TraceMetrics,
}

impl Queue {
    /// A queue for so many spans, and its other end.
    pub(super) fn new(size: usize, metrics: TraceMetrics) -> (Self, mpsc::Receiver<SpanData>) {
        let (spans, out) = mpsc::channel(size.max(1));
        (Self { spans, metrics }, out)
    }
}

impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.spans.try_send(span).is_err() {
            self.metrics.lost.increment(1);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Sends what waits.
pub(super) struct Exporter {
    spans: mpsc::Receiver<SpanData>,
    closing: watch::Receiver<bool>,
    collector: Collector,
    resource: ResourceAttributesWithSchema,
    metrics: TraceMetrics,
    /// Whether the last message was lost, of which the log tells once.
    away: bool,
}

impl Exporter {
    pub(super) fn new(
        spans: mpsc::Receiver<SpanData>,
        closing: watch::Receiver<bool>,
        collector: Collector,
        resource: &Resource,
        metrics: TraceMetrics,
    ) -> Self {
        Self { spans, closing, collector, resource: resource.into(), metrics, away: false }
    }

    /// Runs until it is told to close, and has sent what there is then.
    pub(super) async fn run(mut self) {
        let mut batch = Vec::new();
        let mut closing = false;
        loop {
            tokio::select! {
                biased;
                taken = self.spans.recv_many(&mut batch, BATCH) => if taken == 0 { return },
                // An error is an owner that is gone.
                _ = self.closing.wait_for(|closing| *closing), if !closing => {
                    closing = true;
                    self.spans.close();
                    continue;
                }
            }
            if !closing {
                tokio::select! {
                    () = tokio::time::sleep(GATHER) => {}
                    _ = self.closing.wait_for(|closing| *closing) => {}
                }
            }
            while batch.len() < BATCH
                && let Ok(span) = self.spans.try_recv()
            {
                batch.push(span);
            }
            self.send(std::mem::take(&mut batch)).await;
        }
    }

    async fn send(&mut self, batch: Vec<SpanData>) {
        let count = batch.len() as u64;
        let resource_spans = group_spans_by_resource_and_scope(batch, &self.resource);
        let exporting = self.collector.export(ExportTraceServiceRequest { resource_spans });
        let exported = tokio::time::timeout(PATIENCE, exporting).await;
        match exported.unwrap_or_else(|_| Err(Failure::from("it did not answer in time"))) {
            Ok(rejected) => {
                self.metrics.sent.increment(count.saturating_sub(rejected));
                self.metrics.lost.increment(rejected.min(count));
                if std::mem::take(&mut self.away) {
                    tracing::info!("the collector takes traces again");
                }
            }
            Err(error) => {
                self.metrics.lost.increment(count);
                if !std::mem::replace(&mut self.away, true) {
                    tracing::warn!(%error, "the collector of --otlp-endpoint takes no traces; they are lost until it does");
                }
            }
        }
    }
}
