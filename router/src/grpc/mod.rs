//! gRPC: the Open Inference Protocol and `grpc.health.v1` on a port of their own. Messages become what `http::inference` knows; nothing behind
//! knows that it was gRPC.

mod convert;
mod deadline;
mod health;
mod listener;
mod service;
mod status;

pub use self::health::{HealthService, ServerHealth, health_service};
pub use self::listener::serve;
pub use self::service::{InferenceService, Server, service};

/// The messages and the service, as `build.rs` wrote them.
#[allow(missing_docs, missing_debug_implementations, clippy::all, clippy::pedantic, clippy::nursery)]
pub mod proto {
    tonic::include_proto!("inference");
}

/// The messages and the service of health, as `build.rs` wrote them.
#[allow(missing_docs, missing_debug_implementations, clippy::all, clippy::pedantic, clippy::nursery)]
pub mod health_proto {
    tonic::include_proto!("grpc.health.v1");
}
