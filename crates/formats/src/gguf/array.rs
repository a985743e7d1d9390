//! Metadata arrays, which stay in the file's map and are decoded when read.
//!
//! Elements of varying length (strings, nested arrays) are found by a sparse index of offsets, so an array
//! of 262144 tokens takes about 128 KiB in addition to the map.

use super::cursor::Cursor;
use super::value::{Value, ValueType};
use crate::error::Fault;
use crate::{Bytes, Error};

/// Number of elements per offset in the index.
const INDEX_STEP: usize = 16;

/// Maximum nesting depth. Published files have no nested arrays.
pub(crate) const MAX_DEPTH: usize = 8;

/// An array of metadata values of one type.
#[derive(Clone, Debug)]
pub struct Array {
    elem_type: ValueType,
    len: usize,
    depth: usize,      // 1 without nested arrays
    data: Bytes,       // the elements, as files store them
    index: Box<[u64]>, // offset of every INDEX_STEP-th element; empty for fixed sizes
    repaired: Repaired,
}

/// Replacements for the strings of an array that are not valid UTF-8.
#[derive(Clone, Debug, Default)]
struct Repaired {
    ends: Vec<(usize, usize)>, // (element, end of its text), in order
    text: String,
}

impl Repaired {
    fn push(&mut self, i: usize, bytes: &[u8]) {
        self.text.push_str(&String::from_utf8_lossy(bytes));
        self.ends.push((i, self.text.len()));
    }

    fn get(&self, i: usize) -> &str {
        match self.ends.binary_search_by_key(&i, |&(elem, _)| elem) {
            Ok(at) => {
                let start = if at == 0 { 0 } else { self.ends[at - 1].1 };
                &self.text[start..self.ends[at].1]
            }
            Err(_) => "",
        }
    }
}

impl Array {
    /// Reads and checks an array at the cursor, which reads `file`.
    pub(crate) fn read(cursor: &mut Cursor<'_>, file: &Bytes) -> Result<Self, Fault> {
        let elem_type = ValueType::read(cursor)?;
        let len = cursor.count(elem_type.min_bytes())?;
        let start = cursor.pos();
        let mut index = Vec::new();
        let mut repaired = Repaired::default();
        let mut depth = 1;
        match elem_type {
            ValueType::Str => {
                for i in 0..len {
                    if i.is_multiple_of(INDEX_STEP) {
                        index.push((cursor.pos() - start) as u64);
                    }
                    let bytes = cursor.string_bytes()?;
                    if std::str::from_utf8(bytes).is_err() {
                        repaired.push(i, bytes);
                    }
                }
            }
            ValueType::Array => {
                for i in 0..len {
                    if i.is_multiple_of(INDEX_STEP) {
                        index.push((cursor.pos() - start) as u64);
                    }
                    depth = depth.max(1 + skip(cursor, 2)?);
                }
            }
            _ => skip_elements(cursor, elem_type, len, 1).map(|_| ())?,
        }
        let data = file.slice(start..cursor.pos());
        Ok(Self { elem_type, len, depth, data, index: index.into(), repaired })
    }

    /// Creates an array of strings, for a writer.
    pub fn from_strs<S: AsRef<str>>(strs: impl IntoIterator<Item = S>) -> Self {
        let mut parts = Parts::default();
        for s in strs {
            parts.start();
            parts.data.extend((s.as_ref().len() as u64).to_le_bytes());
            parts.data.extend(s.as_ref().as_bytes());
        }
        parts.finish(ValueType::Str, 1)
    }

    /// Creates an array of arrays, for a writer.
    ///
    /// # Errors
    /// If the arrays are nested deeper than readers accept.
    pub fn from_arrays(arrays: &[Self]) -> Result<Self, Error> {
        let depth = 1 + arrays.iter().map(|a| a.depth).max().unwrap_or(0);
        if depth > MAX_DEPTH {
            return Err(Error::input(
                "array",
                format_args!("at most {MAX_DEPTH} levels of arrays"),
                depth,
            ));
        }
        let mut parts = Parts::default();
        for array in arrays {
            parts.start();
            array.encode(&mut parts.data);
        }
        Ok(parts.finish(ValueType::Array, depth))
    }

    /// The type of the elements.
    pub fn elem_type(&self) -> ValueType {
        self.elem_type
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A cursor at element `i`, which must be in range.
    fn seek(&self, i: usize) -> Result<Cursor<'_>, Fault> {
        if let Some(size) = self.elem_type.fixed_bytes() {
            return Ok(Cursor::new(&self.data[i * size..]));
        }
        let offset = self.index.get(i / INDEX_STEP).map_or(Ok(0), |&o| usize::try_from(o));
        let rest = offset.ok().and_then(|offset| self.data.get(offset..)).unwrap_or_default();
        let mut cursor = Cursor::new(rest);
        for _ in 0..i % INDEX_STEP {
            match self.elem_type {
                ValueType::Str => cursor.string_bytes().map(|_| ())?,
                _ => skip(&mut cursor, 2).map(|_| ())?,
            }
        }
        Ok(cursor)
    }

    /// Element `i`; `None` past the end.
    ///
    /// In a string that is not valid UTF-8, invalid parts are replaced, as by [`StrArray::get`].
    pub fn get(&self, i: usize) -> Option<Value> {
        if i >= self.len {
            return None;
        }
        let mut cursor = self.seek(i).ok()?;
        match self.elem_type {
            ValueType::Str => self.strs().map(|strs| Value::Str(strs.get(i).to_owned())),
            ValueType::Array => {
                let at = self.data.len() - cursor.remaining();
                let file = self.data.slice(at..);
                Self::read(&mut Cursor::new(&file), &file).ok().map(Value::Array)
            }
            ty => Value::read_fixed(ty, &mut cursor).ok(),
        }
    }

    /// The elements, in order.
    pub fn iter(&self) -> impl Iterator<Item = Value> + '_ {
        (0..self.len).map_while(|i| self.get(i))
    }

    /// All elements, converted by `convert`. If it returns `None` for one, the error says `expected`.
    pub(crate) fn decode<T>(
        &self,
        expected: &str,
        convert: impl Fn(&Value) -> Option<T>,
    ) -> Result<Vec<T>, Fault> {
        let mut out = Vec::with_capacity(self.len);
        let mut cursor = Cursor::new(&self.data);
        for i in 0..self.len {
            let value = match Value::read_fixed(self.elem_type, &mut cursor) {
                Ok(value) => value,
                // A string or an array.
                Err(_) => self.get(i).unwrap_or(Value::Bool(false)),
            };
            match convert(&value) {
                Some(x) => out.push(x),
                None => {
                    let found = format_args!("{} as element {i}", value.describe());
                    return Err(Fault::new(expected, found));
                }
            }
        }
        Ok(out)
    }

    /// The strings of an array of strings.
    pub fn strs(&self) -> Option<StrArray<'_>> {
        (self.elem_type == ValueType::Str).then_some(StrArray { array: self })
    }

    /// Appends type, length and elements in the file format.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.elem_type.id().to_le_bytes());
        out.extend((self.len as u64).to_le_bytes());
        out.extend(&self.data[..]);
    }
}

impl PartialEq for Array {
    fn eq(&self, other: &Self) -> bool {
        self.elem_type == other.elem_type && self.len == other.len && self.data == other.data
    }
}

/// Builder of an array of elements of varying length.
#[derive(Default)]
struct Parts {
    len: usize,
    data: Vec<u8>,
    index: Vec<u64>,
}

impl Parts {
    fn start(&mut self) {
        if self.len.is_multiple_of(INDEX_STEP) {
            self.index.push(self.data.len() as u64);
        }
        self.len += 1;
    }

    fn finish(self, elem_type: ValueType, depth: usize) -> Array {
        let (data, index) = (Bytes::from(self.data), self.index.into());
        Array { elem_type, len: self.len, depth, data, index, repaired: Repaired::default() }
    }
}

/// Checks and skips an array, including its type and length; returns its depth. `level` is the number of
/// enclosing arrays, itself included.
fn skip(cursor: &mut Cursor<'_>, level: usize) -> Result<usize, Fault> {
    if level > MAX_DEPTH {
        return Err(Fault::new(format_args!("at most {MAX_DEPTH} levels of arrays"), "more"));
    }
    let elem_type = ValueType::read(cursor)?;
    let len = cursor.count(elem_type.min_bytes())?;
    skip_elements(cursor, elem_type, len, level)
}

fn skip_elements(
    cursor: &mut Cursor<'_>,
    elem_type: ValueType,
    len: usize,
    level: usize,
) -> Result<usize, Fault> {
    let mut depth = 1;
    match elem_type {
        ValueType::Str => {
            for _ in 0..len {
                cursor.string_bytes()?;
            }
        }
        ValueType::Array => {
            for _ in 0..len {
                depth = depth.max(1 + skip(cursor, level + 1)?);
            }
        }
        _ => {
            // No overflow: the count was checked against the remaining bytes.
            let size = elem_type.fixed_bytes().unwrap_or(1);
            let bytes = cursor.take(len as u64 * size as u64)?;
            if elem_type == ValueType::Bool
                && let Some(other) = bytes.iter().find(|&&b| b > 1)
            {
                return Err(Fault::new("bools of 0 or 1", other));
            }
        }
    }
    Ok(depth)
}

/// The strings of an array, in the file's map.
///
/// Some published vocabularies have tokens that are not valid UTF-8. These do not make the file
/// unreadable: [`get`](Self::get) and [`iter`](Self::iter) replace invalid parts by U+FFFD, and
/// [`get_bytes`](Self::get_bytes) returns the unchanged bytes.
#[derive(Clone, Copy, Debug)]
pub struct StrArray<'a> {
    array: &'a Array,
}

impl<'a> StrArray<'a> {
    /// The number of strings.
    pub fn len(&self) -> usize {
        self.array.len
    }

    /// Whether there are no strings.
    pub fn is_empty(&self) -> bool {
        self.array.len == 0
    }

    /// String `i`, with invalid UTF-8 replaced by U+FFFD.
    ///
    /// # Panics
    /// If `i` is not less than [`len`](Self::len); see
    /// [`get_checked`](Self::get_checked) for an index that comes from a file.
    pub fn get(&self, i: usize) -> &'a str {
        assert!(i < self.len(), "string {i} of an array of {}", self.len());
        self.array.str_or_repaired(i, self.bytes_at(i))
    }

    /// String `i`, or `None` past the end.
    pub fn get_checked(&self, i: usize) -> Option<&'a str> {
        (i < self.len()).then(|| self.get(i))
    }

    /// The bytes of string `i` in the file; `None` past the end.
    pub fn get_bytes(&self, i: usize) -> Option<&'a [u8]> {
        (i < self.len()).then(|| self.bytes_at(i))
    }

    fn bytes_at(&self, i: usize) -> &'a [u8] {
        // The whole array was checked when it was read.
        self.array.seek(i).and_then(|mut cursor| cursor.string_bytes()).unwrap_or_default()
    }

    /// The bytes of the strings, in order.
    pub fn iter_bytes(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut cursor = Cursor::new(&self.array.data);
        (0..self.len()).map_while(move |_| cursor.string_bytes().ok())
    }

    /// The strings, in order, with invalid UTF-8 replaced by U+FFFD.
    pub fn iter(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let array = self.array;
        self.iter_bytes().enumerate().map(move |(i, bytes)| array.str_or_repaired(i, bytes))
    }
}

impl Array {
    fn str_or_repaired<'a>(&'a self, i: usize, bytes: &'a [u8]) -> &'a str {
        std::str::from_utf8(bytes).unwrap_or_else(|_| self.repaired.get(i))
    }
}

macro_rules! array_from {
    ($($variant:ident: $ty:ty),*) => {
        $(impl From<&[$ty]> for Array {
            fn from(xs: &[$ty]) -> Self {
                let data: Vec<u8> = xs.iter().flat_map(|x| x.to_le_bytes()).collect();
                let (elem_type, data) = (ValueType::$variant, Bytes::from(data));
                let (index, repaired) = (Box::default(), Repaired::default());
                Self { elem_type, len: xs.len(), depth: 1, data, index, repaired }
            }
        })*
    };
}

array_from!(U8: u8, I8: i8, U16: u16, I16: i16, U32: u32, I32: i32, F32: f32, U64: u64, I64: i64);
array_from!(F64: f64);

impl From<&[bool]> for Array {
    fn from(xs: &[bool]) -> Self {
        let bytes: Vec<u8> = xs.iter().map(|&x| u8::from(x)).collect();
        Self { elem_type: ValueType::Bool, ..Self::from(&bytes[..]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(array: &Array) -> Result<Array, Fault> {
        let mut bytes = Vec::new();
        array.encode(&mut bytes);
        let file = Bytes::from(bytes);
        Array::read(&mut Cursor::new(&file), &file)
    }

    #[test]
    fn strings_are_found_by_index_and_in_order() {
        let words: Vec<String> = (0..100).map(|i| "é".repeat(i % 7) + &i.to_string()).collect();
        let array = read(&Array::from_strs(&words)).expect("an array");
        let strs = array.strs().expect("strings");
        assert_eq!(strs.len(), 100);
        assert!(strs.iter().eq(words.iter().map(String::as_str)));
        for (i, word) in words.iter().enumerate() {
            assert_eq!(strs.get(i), word);
            assert_eq!(array.get(i), Some(Value::Str(word.clone())));
        }
        assert_eq!(strs.get_checked(100), None);
    }

    #[test]
    fn invalid_utf8_is_repaired_and_its_bytes_are_kept() {
        let mut array = Array::from_strs(["aaa", "b", "cc", "d"]);
        let mut data = array.data.to_vec();
        data[9] = 0xff;
        *data.last_mut().expect("bytes") = 0xc3;
        array.data = Bytes::from(data);
        let array = read(&array).expect("an array");
        let strs = array.strs().expect("strings");
        assert_eq!(strs.iter().collect::<Vec<_>>(), ["a\u{fffd}a", "b", "cc", "\u{fffd}"]);
        assert_eq!((strs.get(0), strs.get(3)), ("a\u{fffd}a", "\u{fffd}"));
        assert_eq!(strs.get_bytes(3), Some(&[0xc3][..]));
    }

    #[test]
    fn arrays_nest_to_a_limit() {
        let mut array = Array::from(&[1u16, 2, 3][..]);
        for _ in 1..MAX_DEPTH {
            array = Array::from_arrays(&[array.clone(), array]).expect("not too deep");
        }
        assert!(Array::from_arrays(std::slice::from_ref(&array)).is_err());
        let back = read(&array).expect("an array");
        assert_eq!(back, array);
        let mut inner = Value::Array(back);
        for _ in 1..MAX_DEPTH {
            inner = inner.as_array().and_then(|a| a.get(1)).expect("an element");
        }
        assert_eq!(inner, Value::Array(Array::from(&[1u16, 2, 3][..])));

        let mut deep = [9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0].repeat(MAX_DEPTH);
        deep.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let file = Bytes::from(deep);
        assert!(Array::read(&mut Cursor::new(&file), &file).is_err());
    }
}
