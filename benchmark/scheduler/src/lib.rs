//! The real scheduler under a virtual clock: what it would do on devices and clusters that are not at hand. See `README.md`.

pub mod balance;
pub mod device;
pub mod experiments;
pub mod ideal;
pub mod policy;
pub mod scale;
pub mod simulation;
pub mod summary;
pub mod trace;
pub mod windows;
