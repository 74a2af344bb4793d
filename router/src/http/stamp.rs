//! Tells one state of a file from another, for files that are followed while the server runs.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// One state of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stamp {
    inode: u64,
    length: u64,
    modified: (i64, i64),
}

impl Stamp {
    /// The state that these facts belong to.
    #[must_use]
    pub fn of(metadata: &fs::Metadata) -> Self {
        Self { inode: metadata.ino(), length: metadata.len(), modified: (metadata.mtime(), metadata.mtime_nsec()) }
    }

    /// The state of a file now, behind all links; the default one of a file that is not there.
    #[must_use]
    pub fn now(path: &Path) -> Self {
        fs::metadata(path).map(|metadata| Self::of(&metadata)).unwrap_or_default()
    }
}
