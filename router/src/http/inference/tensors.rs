//! Tensors of the Open Inference Protocol: named lists of elements of one type, as JSON, as typed lists or as raw bytes.

use serde_json::Value;

use super::answer::Out;
use super::invalid;
use crate::http::errors::ApiError;

/// Most elements in a tensor of a request: a prompt is one of them.
const MAX_ELEMENTS: usize = 4096;
/// Bytes before each element of a raw `BYTES` tensor: its length, little-endian.
const LENGTH: usize = 4;

/// The type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // The protocol's names.
pub enum Datatype {
    Bool,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Int8,
    Int16,
    Int32,
    Int64,
    Fp32,
    Fp64,
    Bytes,
}

impl Datatype {
    const ALL: [Self; 12] = [
        Self::Bool,
        Self::Uint8,
        Self::Uint16,
        Self::Uint32,
        Self::Uint64,
        Self::Int8,
        Self::Int16,
        Self::Int32,
        Self::Int64,
        Self::Fp32,
        Self::Fp64,
        Self::Bytes,
    ];

    /// The protocol's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::Uint8 => "UINT8",
            Self::Uint16 => "UINT16",
            Self::Uint32 => "UINT32",
            Self::Uint64 => "UINT64",
            Self::Int8 => "INT8",
            Self::Int16 => "INT16",
            Self::Int32 => "INT32",
            Self::Int64 => "INT64",
            Self::Fp32 => "FP32",
            Self::Fp64 => "FP64",
            Self::Bytes => "BYTES",
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|datatype| datatype.name() == name)
    }

    /// Bytes of a raw element; `BYTES` has its own length.
    const fn size(self) -> Option<usize> {
        match self {
            Self::Bool | Self::Uint8 | Self::Int8 => Some(1),
            Self::Uint16 | Self::Int16 => Some(2),
            Self::Uint32 | Self::Int32 | Self::Fp32 => Some(4),
            Self::Uint64 | Self::Int64 | Self::Fp64 => Some(8),
            Self::Bytes => None,
        }
    }

    /// Whether an element is of this type. Infinities and what is no number are null, which none is.
    fn holds(self, element: &Value) -> bool {
        match self {
            Self::Bool => element.is_boolean(),
            Self::Uint8 | Self::Uint16 | Self::Uint32 | Self::Uint64 => element.is_u64(),
            Self::Int8 | Self::Int16 | Self::Int32 | Self::Int64 => element.is_i64(),
            Self::Fp32 | Self::Fp64 => element.is_number(),
            Self::Bytes => element.is_string(),
        }
    }

    /// A raw element of this type; `bytes` are as many as its size says.
    fn read(self, bytes: &[u8]) -> Option<Value> {
        /// A number from its little-endian bytes.
        macro_rules! number {
            ($type:ty) => {
                Value::from(<$type>::from_le_bytes(bytes.try_into().ok()?))
            };
        }
        Some(match self {
            Self::Bool => Value::from(*bytes.first()? != 0),
            Self::Uint8 => number!(u8),
            Self::Uint16 => number!(u16),
            Self::Uint32 => number!(u32),
            Self::Uint64 => number!(u64),
            Self::Int8 => number!(i8),
            Self::Int16 => number!(i16),
            Self::Int32 => number!(i32),
            Self::Int64 => number!(i64),
            Self::Fp32 => number!(f32),
            Self::Fp64 => number!(f64),
            Self::Bytes => Value::from(std::str::from_utf8(bytes).ok()?),
        })
    }
}

/// A tensor of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Its number of dimensions.
    pub rank: usize,
    /// Its elements, row by row.
    pub elements: Vec<Value>,
}

/// What is said of a tensor before its elements.
#[derive(Debug, Clone, Copy)]
pub struct Declared<'a> {
    /// Its name.
    pub name: &'a str,
    /// The type of its elements.
    pub datatype: &'a str,
    /// Its dimensions.
    pub shape: &'a [i64],
}

impl Declared<'_> {
    /// The tensor with the elements of a JSON document: a list, or lists of lists.
    ///
    /// # Errors
    /// `Validation`, when they are not what was declared.
    pub fn json(self, data: Value) -> Result<Tensor, ApiError> {
        let (_, count) = self.checked()?;
        let mut elements = Vec::with_capacity(count);
        // One more than there may be is enough to be refused.
        flatten(data, count + 1, &mut elements);
        self.elements(elements)
    }

    /// The tensor with these elements.
    ///
    /// # Errors
    /// The same.
    pub fn elements(self, elements: Vec<Value>) -> Result<Tensor, ApiError> {
        let (datatype, count) = self.checked()?;
        if elements.len() != count {
            return Err(self.refused(&format!("has not the {count} elements that its shape says")));
        }
        if !elements.iter().all(|element| datatype.holds(element)) {
            return Err(self.refused(&format!("has elements that are no {}", datatype.name())));
        }
        Ok(Tensor { name: self.name.to_owned(), rank: self.shape.len(), elements })
    }

    /// The tensor with raw elements: little-endian, those of `BYTES` each behind its length in four bytes.
    ///
    /// # Errors
    /// The same.
    pub fn raw(self, mut bytes: &[u8]) -> Result<Tensor, ApiError> {
        let (datatype, count) = self.checked()?;
        let short = || self.refused(&format!("has not the bytes of the {count} elements that its shape says"));
        let mut elements = Vec::with_capacity(count);
        for _ in 0..count {
            let size = match datatype.size() {
                Some(size) => size,
                None => {
                    let (length, rest) = bytes.split_first_chunk::<LENGTH>().ok_or_else(short)?;
                    bytes = rest;
                    u32::from_le_bytes(*length) as usize
                }
            };
            let (element, rest) = bytes.split_at_checked(size).ok_or_else(short)?;
            bytes = rest;
            elements.push(datatype.read(element).ok_or_else(|| self.refused("has text that is not UTF-8"))?);
        }
        if bytes.is_empty() { self.elements(elements) } else { Err(short()) }
    }

    /// What is wrong with this tensor.
    pub fn refused(self, what: &str) -> ApiError {
        // A name is of the client's choice: a sentence has room for a part of it.
        let name: String = self.name.chars().take(64).collect();
        invalid(&format!("input `{name}` {what}"))
    }

    fn checked(self) -> Result<(Datatype, usize), ApiError> {
        let datatype = Datatype::named(self.datatype).ok_or_else(|| {
            let known = Datatype::ALL.map(Datatype::name).join(", ");
            self.refused(&format!("has a datatype that is not served; send one of {known}"))
        })?;
        let dimension = |all: usize, next: &i64| all.checked_mul(usize::try_from(*next).ok()?);
        let count = self.shape.iter().try_fold(1, dimension).filter(|count| *count <= MAX_ELEMENTS);
        let count = count.ok_or_else(|| {
            self.refused(&format!("has a shape that is none, or of more than {MAX_ELEMENTS} elements; send fewer"))
        })?;
        Ok((datatype, count))
    }
}

/// The elements of lists in lists, at most so many. The parser bounds how deep they are nested.
fn flatten(data: Value, most: usize, elements: &mut Vec<Value>) {
    match data {
        Value::Array(list) => {
            for element in list {
                if elements.len() >= most {
                    return;
                }
                flatten(element, most, elements);
            }
        }
        element => elements.push(element),
    }
}

/// The elements of a tensor of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Elements {
    /// `BYTES`.
    Texts(Vec<String>),
    /// `UINT32`.
    Counts(Vec<u32>),
    /// `FP32`.
    Scores(Vec<f32>),
}

impl Elements {
    /// Their type.
    #[must_use]
    pub const fn datatype(&self) -> Datatype {
        match self {
            Self::Texts(_) => Datatype::Bytes,
            Self::Counts(_) => Datatype::Uint32,
            Self::Scores(_) => Datatype::Fp32,
        }
    }

    /// Them as JSON.
    #[must_use]
    pub fn values(self) -> Vec<Value> {
        match self {
            Self::Texts(texts) => texts.into_iter().map(Value::from).collect(),
            Self::Counts(counts) => counts.into_iter().map(Value::from).collect(),
            Self::Scores(scores) => scores.into_iter().map(Value::from).collect(),
        }
    }

    /// Them as raw bytes.
    #[must_use]
    pub fn raw(&self) -> Vec<u8> {
        match self {
            Self::Texts(texts) => {
                let mut bytes = Vec::with_capacity(texts.iter().map(|text| LENGTH + text.len()).sum());
                for text in texts {
                    bytes.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
                    bytes.extend_from_slice(text.as_bytes());
                }
                bytes
            }
            Self::Counts(counts) => counts.iter().flat_map(|count| count.to_le_bytes()).collect(),
            Self::Scores(scores) => scores.iter().flat_map(|score| score.to_le_bytes()).collect(),
        }
    }
}

/// A tensor of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// Which it is.
    pub out: Out,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Its elements, row by row.
    pub elements: Elements,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn declared<'a>(datatype: &'a str, shape: &'a [i64]) -> Declared<'a> {
        Declared { name: "x", datatype, shape }
    }

    #[test]
    fn raw_elements_of_every_type() {
        for (datatype, bytes, element) in [
            ("BOOL", &[1][..], json!(true)),
            ("UINT8", &[200], json!(200)),
            ("UINT16", &[1, 2], json!(513)),
            ("UINT32", &[0, 0, 0, 1], json!(1 << 24)),
            ("UINT64", &[255; 8], json!(u64::MAX)),
            ("INT8", &[255], json!(-1)),
            ("INT16", &[254, 255], json!(-2)),
            ("INT32", &[255; 4], json!(-1)),
            ("INT64", &[255; 8], json!(-1)),
            ("FP32", &[0, 0, 0x20, 0x3f], json!(0.625)),
            ("FP64", &[0, 0, 0, 0, 0, 0, 0xe4, 0x3f], json!(0.625)),
            ("BYTES", &[3, 0, 0, 0, b'a', 0xc3, 0xa9], json!("aé")),
        ] {
            let read = declared(datatype, &[1, 1]).raw(bytes);
            assert_eq!(read, Ok(Tensor { name: "x".to_owned(), rank: 2, elements: vec![element] }), "{datatype}");
            assert!(declared(datatype, &[1]).raw(&bytes[..bytes.len() - 1]).is_err(), "{datatype}");
            assert!(declared(datatype, &[1]).raw(&[bytes, &[0]].concat()).is_err(), "{datatype}");
        }
    }

    #[test]
    fn what_is_not_as_declared_is_refused_with_a_sentence() {
        let nan = f32::NAN.to_le_bytes();
        for (result, words) in [
            (declared("TEXT", &[1]).json(json!(["a"])), "a datatype that is not served; send one of BOOL, UINT8"),
            (declared("BYTES", &[-1]).json(json!(["a"])), "a shape that is none"),
            (declared("INT8", &[1 << 40, 1 << 40]).raw(&[]), "more than 4096 elements"),
            (declared("INT8", &[4097]).raw(&[0; 4097]), "more than 4096 elements"),
            (declared("BYTES", &[2]).json(json!(["a"])), "not the 2 elements"),
            (declared("BYTES", &[1]).json(json!([["a"], ["b"]])), "not the 1 elements"),
            (declared("BYTES", &[1]).json(json!([1])), "no BYTES"),
            (declared("BOOL", &[1]).json(json!([1])), "no BOOL"),
            (declared("UINT8", &[1]).json(json!([-1])), "no UINT8"),
            (declared("INT32", &[1]).json(json!([1.5])), "no INT32"),
            (declared("FP32", &[1]).json(json!([null])), "no FP32"),
            (declared("FP32", &[1]).raw(&nan), "no FP32"),
            (declared("BYTES", &[1]).raw(&[255, 255, 255, 255, b'a']), "not the bytes"),
            (declared("BYTES", &[1]).raw(&[1, 0, 0, 0, 0xff]), "not UTF-8"),
        ] {
            let Err(ApiError::Validation(sentence)) = result else { panic!("{words}: {result:?}") };
            assert!(sentence.starts_with("Input validation error: input `x` has "), "{sentence}");
            assert!(sentence.contains(words), "{sentence}");
        }
    }

    #[test]
    fn lists_in_lists_are_read_row_by_row() {
        let read = declared("INT64", &[2, 2]).json(json!([[1, 2], [3, 4]])).unwrap();
        assert_eq!((read.rank, read.elements), (2, vec![json!(1), json!(2), json!(3), json!(4)]));
    }

    proptest! {
        #[test]
        fn texts_come_back_from_raw_bytes(texts: Vec<String>) {
            let raw = Elements::Texts(texts.clone()).raw();
            let read = declared("BYTES", &[texts.len() as i64]).raw(&raw).unwrap();
            prop_assert_eq!(read.elements, Elements::Texts(texts).values());
        }

        #[test]
        fn no_bytes_break_the_reader(bytes: Vec<u8>, place in 0..Datatype::ALL.len(), shape: Vec<i16>) {
            let shape: Vec<i64> = shape.into_iter().map(i64::from).collect();
            if let Ok(tensor) = declared(Datatype::ALL[place].name(), &shape).raw(&bytes) {
                prop_assert_eq!(tensor.elements.len() as i64, shape.iter().product::<i64>());
            }
        }
    }
}
