//! The shard's side of the router: the step protocol, the link that carries it, and the engine loop.

pub mod cancelled;
pub mod columns;
mod connection;
pub mod engine;
pub mod events;
mod frames;
mod guided;
pub mod handle;
pub mod link;
mod live;
mod mask_workers;
pub mod masks;
pub mod memory;
pub mod observer;
pub mod protocol;
pub mod steady;
