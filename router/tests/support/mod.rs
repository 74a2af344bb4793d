//! What integration tests of the router share.

pub mod mock_shard;
pub mod seed;
