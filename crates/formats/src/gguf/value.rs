//! GGUF metadata values and their 13 types.

use std::fmt;

use super::array::Array;
use super::cursor::Cursor;
use crate::error::Fault;

/// The type of a metadata value. Ids are those of the GGUF specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    Str = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::Str,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// The type's id in files.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// The type with this id.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(id).ok()?).copied()
    }

    /// The type's name in Rust's spelling.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::Str => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }

    /// Bytes per value; `None` for strings and arrays, whose length varies.
    pub(crate) fn fixed_bytes(self) -> Option<usize> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::Str | Self::Array => None,
        }
    }

    /// Minimum bytes of a value in an array.
    pub(crate) fn min_bytes(self) -> usize {
        match self {
            Self::Str => 8,
            Self::Array => 12,
            _ => self.fixed_bytes().unwrap_or(1),
        }
    }

    /// Reads a type id.
    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Self, Fault> {
        let id = cursor.u32()?;
        Self::from_id(id).ok_or_else(|| Fault::new("a value type id from 0 to 12", id))
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A metadata value.
///
/// Single strings are copied; arrays stay in the file's map.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Str(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl Value {
    /// The type.
    pub fn ty(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::Str(_) => ValueType::Str,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// The number, if the value is an integer.
    pub fn as_int(&self) -> Option<i128> {
        match *self {
            Self::U8(x) => Some(x.into()),
            Self::I8(x) => Some(x.into()),
            Self::U16(x) => Some(x.into()),
            Self::I16(x) => Some(x.into()),
            Self::U32(x) => Some(x.into()),
            Self::I32(x) => Some(x.into()),
            Self::U64(x) => Some(x.into()),
            Self::I64(x) => Some(x.into()),
            _ => None,
        }
    }

    /// The number, if the value is a float; an `f64` is rounded.
    pub fn as_f32(&self) -> Option<f32> {
        match *self {
            Self::F32(x) => Some(x),
            Self::F64(x) => Some(x as f32),
            _ => None,
        }
    }

    /// The boolean.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Self::Bool(x) => Some(x),
            _ => None,
        }
    }

    /// The string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(s) => Some(s),
            _ => None,
        }
    }

    /// The array.
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Self::Array(a) => Some(a),
            _ => None,
        }
    }

    /// The value in an error message: numbers as such, otherwise the type.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Str(_) => "a string".into(),
            Self::Array(a) => format!("an array of {} {}", a.len(), a.elem_type()),
            Self::Bool(x) => format!("the bool {x}"),
            Self::F32(x) => format!("the f32 {x}"),
            Self::F64(x) => format!("the f64 {x}"),
            _ => format!("the {} {}", self.ty(), self.as_int().unwrap_or_default()),
        }
    }

    /// Reads a value of a type of fixed size.
    pub(crate) fn read_fixed(ty: ValueType, cursor: &mut Cursor<'_>) -> Result<Self, Fault> {
        Ok(match ty {
            ValueType::U8 => Self::U8(u8::from_le_bytes(cursor.array()?)),
            ValueType::I8 => Self::I8(i8::from_le_bytes(cursor.array()?)),
            ValueType::U16 => Self::U16(u16::from_le_bytes(cursor.array()?)),
            ValueType::I16 => Self::I16(i16::from_le_bytes(cursor.array()?)),
            ValueType::U32 => Self::U32(u32::from_le_bytes(cursor.array()?)),
            ValueType::I32 => Self::I32(i32::from_le_bytes(cursor.array()?)),
            ValueType::F32 => Self::F32(f32::from_le_bytes(cursor.array()?)),
            ValueType::U64 => Self::U64(u64::from_le_bytes(cursor.array()?)),
            ValueType::I64 => Self::I64(i64::from_le_bytes(cursor.array()?)),
            ValueType::F64 => Self::F64(f64::from_le_bytes(cursor.array()?)),
            ValueType::Bool => match cursor.array()? {
                [0] => Self::Bool(false),
                [1] => Self::Bool(true),
                [other] => return Err(Fault::new("a bool of 0 or 1", other)),
            },
            ValueType::Str | ValueType::Array => {
                return Err(Fault::new("a type of fixed size", ty));
            }
        })
    }

    /// Appends the value in the file format, without its type.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::U8(x) => out.extend(x.to_le_bytes()),
            Self::I8(x) => out.extend(x.to_le_bytes()),
            Self::U16(x) => out.extend(x.to_le_bytes()),
            Self::I16(x) => out.extend(x.to_le_bytes()),
            Self::U32(x) => out.extend(x.to_le_bytes()),
            Self::I32(x) => out.extend(x.to_le_bytes()),
            Self::F32(x) => out.extend(x.to_le_bytes()),
            Self::U64(x) => out.extend(x.to_le_bytes()),
            Self::I64(x) => out.extend(x.to_le_bytes()),
            Self::F64(x) => out.extend(x.to_le_bytes()),
            Self::Bool(x) => out.push(u8::from(*x)),
            Self::Str(s) => {
                out.extend((s.len() as u64).to_le_bytes());
                out.extend(s.as_bytes());
            }
            Self::Array(a) => a.encode(out),
        }
    }
}

macro_rules! value_from {
    ($($variant:ident: $ty:ty),*) => {
        $(impl From<$ty> for Value {
            fn from(x: $ty) -> Self {
                Self::$variant(x)
            }
        })*
    };
}

value_from!(U8: u8, I8: i8, U16: u16, I16: i16, U32: u32, I32: i32, F32: f32, U64: u64, I64: i64);
value_from!(F64: f64, Bool: bool, Str: String, Array: Array);

impl From<&str> for Value {
    fn from(s: &str) -> Self {
        Self::Str(s.into())
    }
}
