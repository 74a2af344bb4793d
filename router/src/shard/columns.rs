//! Packed little-endian columns: what is per token or per sequence travels as one msgpack `bin`, never as an object each.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};

/// A number that can stand in a column.
pub trait Cell: Copy {
    /// Bytes of one cell.
    const SIZE: usize;
    /// Appends the cell.
    fn put(self, out: &mut Vec<u8>);
    /// Reads a cell of exactly `SIZE` bytes.
    fn get(bytes: &[u8]) -> Self;
}

macro_rules! cell {
    ($type:ty) => {
        impl Cell for $type {
            const SIZE: usize = size_of::<$type>();
            fn put(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn get(bytes: &[u8]) -> Self {
                let mut cell = [0; size_of::<$type>()];
                cell.copy_from_slice(bytes);
                Self::from_le_bytes(cell)
            }
        }
    };
}
cell!(u32);
cell!(f32);

/// A column of numbers; on the wire a `bin` of their little-endian bytes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Column<T>(pub Vec<T>);

/// Reads packed cells; `None` when the length is not a whole number of cells.
#[must_use]
pub fn unpack<T: Cell>(bytes: &[u8]) -> Option<Vec<T>> {
    let chunks = bytes.chunks_exact(T::SIZE);
    chunks.remainder().is_empty().then(|| chunks.map(T::get).collect())
}

impl<T: Cell> Serialize for Column<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut bytes = Vec::with_capacity(self.0.len() * T::SIZE);
        for &cell in &self.0 {
            cell.put(&mut bytes);
        }
        serializer.serialize_bytes(&bytes)
    }
}

impl<'de, T: Cell> Deserialize<'de> for Column<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes<T>(std::marker::PhantomData<T>);
        impl<'de, T: Cell> Visitor<'de> for Bytes<T> {
            type Value = Column<T>;
            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                write!(formatter, "bin of {}-byte little-endian cells", T::SIZE)
            }
            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Self::Value, E> {
                unpack(bytes).map(Column).ok_or_else(|| E::invalid_length(bytes.len(), &self))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<Self::Value, A::Error> {
                Err(A::Error::custom("a column is a bin, not an array"))
            }
        }
        deserializer.deserialize_bytes(Bytes(std::marker::PhantomData))
    }
}
