//! The files of a model's folder.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Why a model's folder has no usable text side.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file that must be there is not.
    #[error("{} is missing: {remedy}", path.display())]
    Missing {
        /// The path looked at.
        path: PathBuf,
        /// What to do.
        remedy: &'static str,
    },
    /// A file is there, but cannot be used.
    #[error("{} cannot be used: {reason}; download or save the model again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// The bytes of a file; `None` when there is none.
pub(crate) fn read_optional(dir: &Path, name: &str) -> Result<Option<Vec<u8>>, LoadError> {
    let path = dir.join(name);
    match std::fs::read(&path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(LoadError::Damaged { path, reason: error.to_string() }),
    }
}

/// The text of a file; `None` when there is none.
pub(crate) fn read_text(dir: &Path, name: &str) -> Result<Option<String>, LoadError> {
    let Some(bytes) = read_optional(dir, name)? else { return Ok(None) };
    let text = String::from_utf8(bytes)
        .map_err(|_| LoadError::Damaged { path: dir.join(name), reason: "it is not UTF-8 text".to_owned() })?;
    Ok(Some(text))
}

/// The JSON object in a file; `Null`, which has no fields, when there is no such file.
pub(crate) fn read_json(dir: &Path, name: &str) -> Result<Value, LoadError> {
    let Some(bytes) = read_optional(dir, name)? else { return Ok(Value::Null) };
    let damaged = |reason: String| LoadError::Damaged { path: dir.join(name), reason };
    let value: Value = serde_json::from_slice(&bytes).map_err(|error| damaged(format!("it is not JSON ({error})")))?;
    if value.is_object() { Ok(value) } else { Err(damaged("it is not a JSON object".to_owned())) }
}
