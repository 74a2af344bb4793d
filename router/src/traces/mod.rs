//! Traces: what became of each request, stage by stage, told to a collector in OpenTelemetry's protocol (OTLP).
//!
//! A span is made when its stage is over, out of times that the request's task takes anyway: nothing happens for a single token,
//! and without a collector nothing happens at all. What clients wrote and what the model answered is in no span.

mod body;
mod collector;
mod exporter;
mod request;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::{HeaderMap, HeaderName};
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::TracerProvider;
use opentelemetry::{Context, InstrumentationScope, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use self::collector::Collector;
use self::exporter::{Exporter, Queue};
pub use self::request::{Stage, TRACEPARENT, TRACESTATE, Trace};
use crate::metrics::Metrics;
use crate::settings::Settings;

/// Why traces cannot be sent; its text names the flag.
#[derive(Debug, thiserror::Error)]
#[error("{flag}: {reason}")]
pub struct TracesError {
    flag: &'static str,
    reason: String,
}

/// Where traces of requests begin. Cheap to clone.
#[derive(Clone)]
pub struct Traces(Arc<Inner>);

struct Inner {
    tracer: SdkTracer,
    propagator: TraceContextPropagator,
    model: String,
    closing: watch::Sender<bool>,
    exporting: Mutex<Option<JoinHandle<()>>>,
}

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traces").finish_non_exhaustive()
    }
}

impl Traces {
    /// Sends what is traced from now on to the collector that the settings name; `None` where they name none.
    ///
    /// # Errors
    /// When its address or the headers for it cannot be used.
    pub fn start(settings: &Settings, metrics: &Metrics, runtime: &Handle) -> Result<Option<Self>, TracesError> {
        let Some(endpoint) = &settings.otlp_endpoint else { return Ok(None) };
        let headers = settings.otlp_headers.as_ref().map_or("", |headers| headers.reveal());
        let collector = Collector::at(endpoint, settings.otlp_protocol, headers)?;
        let resource = Resource::builder()
            .with_service_name(settings.otlp_service_name.clone())
            .with_attribute(KeyValue::new("service.version", settings.version.clone()))
            .build();
        let (queue, spans) = Queue::new(settings.otlp_queue_size, metrics.traces.clone());
        let (closing, told) = watch::channel(false);
        let exporter = Exporter::new(spans, told, collector, &resource, metrics.traces.clone());
        let provider = SdkTracerProvider::builder()
            .with_span_processor(queue)
            .with_resource(resource)
            // Who calls decides, and everything is traced where nobody has.
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::AlwaysOn)))
            .build();
        let scope = InstrumentationScope::builder("textgen.router").with_version(settings.version.clone()).build();
        Ok(Some(Self(Arc::new(Inner {
            tracer: provider.tracer_with_scope(scope),
            propagator: TraceContextPropagator::new(),
            model: settings.model_id.clone(),
            closing,
            exporting: Mutex::new(Some(runtime.spawn(exporter.run()))),
        }))))
    }

    /// The trace of a call, which goes on the one that the headers name.
    #[must_use]
    pub fn begin(&self, name: &str, headers: &HeaderMap) -> Arc<Trace> {
        let caller = self.0.propagator.extract_with_context(&Context::new(), &Headers(headers));
        Arc::new(Trace::begin(self.0.tracer.clone(), &caller, name, &self.0.model))
    }

    /// Sends what is left and takes nothing more. As slow as the collector is.
    pub async fn close(&self) {
        self.0.closing.send_replace(true);
        let exporting = self.0.exporting.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(exporting) = exporting
            && exporting.await.is_err()
        {
            tracing::error!("the sending of traces ended by a panic");
        }
    }
}

/// Headers as the propagator reads them.
struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}
