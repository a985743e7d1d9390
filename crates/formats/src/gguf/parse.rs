//! Parser of one GGUF file's header: counts, metadata, tensor descriptions.
//!
//! The layout is magic, version, tensor count, entry count, entries, tensor descriptions, padding, data.
//! `mod.rs` handles models of several files.

use std::collections::HashSet;
use std::path::Path;

use super::array::Array;
use super::cursor::Cursor;
use super::metadata::Metadata;
use super::value::{Value, ValueType};
use crate::error::Fault;
use crate::printable::shown;
use crate::{Bytes, Error, TensorInfo, TensorType};

pub(crate) const MAGIC: [u8; 4] = *b"GGUF";
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";
pub(crate) const DEFAULT_ALIGNMENT: usize = 32;
pub(crate) const MAX_KEY_BYTES: usize = 65535;
pub(crate) const MAX_DIMS: usize = 4;

/// Minimum bytes of a metadata entry: key length, type, one byte of value.
const MIN_ENTRY_BYTES: usize = 8 + 4 + 1;
/// Minimum bytes of a tensor description: name length, number of dimensions, type, offset.
const MIN_TENSOR_BYTES: usize = 8 + 4 + 4 + 8;

/// The header of one file.
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) alignment: usize,
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorInfo>, // `shard` is 0
}

/// Parses and checks the header of the file at `path` with bytes `file`.
pub(crate) fn parse(path: &Path, file: &Bytes) -> Result<Header, Error> {
    let mut cursor = Cursor::new(file);
    check_magic(path, &mut cursor)?;
    let version = read_version(path, &mut cursor)?;
    let counts = cursor.count(MIN_TENSOR_BYTES).map_err(|e| e.in_header(path, "tensor count"));
    let n_tensors = counts?;
    let counts = cursor.count(MIN_ENTRY_BYTES).map_err(|e| e.in_header(path, "metadata count"));
    let n_entries = counts?;

    let mut metadata = Metadata::new(path.to_path_buf());
    for i in 0..n_entries {
        read_entry(path, file, &mut cursor, i, &mut metadata)?;
    }
    let alignment = read_alignment(path, &metadata)?;

    let mut names = HashSet::new();
    let mut tensors = Vec::new();
    for i in 0..n_tensors {
        let tensor = read_tensor(path, &mut cursor, i)?;
        if !names.insert(tensor.name.clone()) {
            return Err(Fault::new("a name once", "it twice").in_tensor(path, &tensor.name));
        }
        tensors.push(tensor);
    }
    place_tensors(path, file.len(), cursor.pos(), alignment, &mut tensors)?;
    Ok(Header { version, alignment, metadata, tensors })
}

fn check_magic(path: &Path, cursor: &mut Cursor<'_>) -> Result<(), Error> {
    let found = match cursor.array() {
        Ok(MAGIC) => return Ok(()),
        Ok(other) => format!("the bytes '{}'", other.escape_ascii()),
        Err(_) => format!("{} bytes in all", cursor.remaining()),
    };
    let expected = "the bytes 'GGUF'".into();
    Err(Error::NotFormat { path: path.to_path_buf(), format: "GGUF", expected, found })
}

fn read_version(path: &Path, cursor: &mut Cursor<'_>) -> Result<u32, Error> {
    let version = cursor.u32().map_err(|e| e.in_header(path, "version"))?;
    let unsupported = |what, expected: &str, found| Error::Unsupported {
        path: path.to_path_buf(),
        what,
        expected: expected.into(),
        found,
    };
    match version {
        2 | 3 => Ok(version),
        _ if (1..=3).contains(&version.swap_bytes()) => {
            let found = format!("a big-endian file of version {}", version.swap_bytes());
            Err(unsupported("byte order", "a little-endian file", found))
        }
        _ => Err(unsupported("GGUF version", "2 or 3", version.to_string())),
    }
}

fn read_entry(
    path: &Path,
    file: &Bytes,
    cursor: &mut Cursor<'_>,
    i: usize,
    metadata: &mut Metadata,
) -> Result<(), Error> {
    let key = cursor.str().map_err(|e| e.in_header(path, format_args!("metadata key {i}")))?;
    if key.len() > MAX_KEY_BYTES {
        let expected = format_args!("a key of at most {MAX_KEY_BYTES} bytes");
        return Err(Fault::new(expected, key.len()).in_key(path, key));
    }
    read_value(file, cursor)
        .and_then(|value| metadata.insert(key, value))
        .map_err(|e| e.in_key(path, key))
}

fn read_value(file: &Bytes, cursor: &mut Cursor<'_>) -> Result<Value, Fault> {
    match ValueType::read(cursor)? {
        ValueType::Str => cursor.str().map(|s| Value::Str(s.to_owned())),
        ValueType::Array => Array::read(cursor, file).map(Value::Array),
        ty => Value::read_fixed(ty, cursor),
    }
}

fn read_alignment(path: &Path, metadata: &Metadata) -> Result<usize, Error> {
    match metadata.u32(ALIGNMENT_KEY)? {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(alignment) if alignment.is_power_of_two() => Ok(alignment as usize),
        Some(alignment) => Err(Fault::new("a power of two", alignment).in_key(path, ALIGNMENT_KEY)),
    }
}

/// Reads one description. `start` of the result is still relative to the data section, and `n_bytes` of an
/// unknown type is 0.
fn read_tensor(path: &Path, cursor: &mut Cursor<'_>, i: usize) -> Result<TensorInfo, Error> {
    let name = cursor.str().map_err(|e| e.in_header(path, format_args!("name of tensor {i}")))?;
    let in_tensor = |e: Fault| e.in_tensor(path, name);

    let n_dims = cursor.u32().map_err(in_tensor)? as usize;
    if n_dims > MAX_DIMS {
        return Err(in_tensor(Fault::new("at most 4 dimensions", n_dims)));
    }
    let mut shape = Vec::with_capacity(n_dims);
    for _ in 0..n_dims {
        let dim = cursor.u64().map_err(in_tensor)?;
        let fault = |_| in_tensor(Fault::new("a dimension that fits in memory", dim));
        shape.push(usize::try_from(dim).map_err(fault)?);
    }
    // Files store the innermost dimension first.
    shape.reverse();

    let id = cursor.u32().map_err(in_tensor)?;
    let ty = TensorType::from_ggml_id(id).unwrap_or(TensorType::Unknown(id));
    let n_bytes = if ty.is_known() {
        ty.size_of_shape(&shape).map_err(|_| {
            let expected = format_args!("rows of whole {ty} blocks of {}", ty.block_len());
            in_tensor(Fault::new(expected, format_args!("shape {shape:?}")))
        })?
    } else {
        // `bound_unknown` sets the bytes; here only the element count is checked.
        let count = shape.iter().try_fold(1usize, |n, dim| n.checked_mul((*dim).max(1)));
        if count.is_none_or(|n| isize::try_from(n).is_err()) {
            let found = format_args!("shape {shape:?}");
            return Err(in_tensor(Fault::new("elements that fit in memory", found)));
        }
        0
    };
    let offset = cursor.u64().map_err(in_tensor)?;
    let fault = |_| in_tensor(Fault::new("an offset that fits in memory", offset));
    let start = usize::try_from(offset).map_err(fault)?;
    Ok(TensorInfo { name: name.to_owned(), ty, shape, n_bytes, shard: 0, start })
}

/// Checks the tensors' places in the data section, and makes their offsets relative to the file.
fn place_tensors(
    path: &Path,
    file_len: usize,
    header_len: usize,
    alignment: usize,
    tensors: &mut [TensorInfo],
) -> Result<(), Error> {
    let data_start = header_len.checked_next_multiple_of(alignment);
    for tensor in tensors.iter_mut() {
        let in_tensor = |e: Fault| e.in_tensor(path, &tensor.name);
        if !tensor.start.is_multiple_of(alignment) {
            let expected = format_args!("an offset that is a multiple of {alignment}");
            return Err(in_tensor(Fault::new(expected, tensor.start)));
        }
        let start = data_start.and_then(|data| data.checked_add(tensor.start));
        let end = start.and_then(|start| start.checked_add(tensor.n_bytes));
        match (start, end) {
            (Some(start), Some(end)) if end <= file_len => tensor.start = start,
            _ => {
                let found =
                    format_args!("{} bytes at data offset {}", tensor.n_bytes, tensor.start);
                let expected = format_args!("data within the {file_len} bytes of the file");
                return Err(in_tensor(Fault::new(expected, found)));
            }
        }
    }

    bound_unknown(path, file_len, tensors)?;

    let mut order: Vec<&TensorInfo> = tensors.iter().filter(|t| t.n_bytes > 0).collect();
    order.sort_by_key(|t| t.start);
    for pair in order.windows(2) {
        if pair[1].start < pair[0].start + pair[0].n_bytes {
            let found = format_args!("data shared with tensor '{}'", shown(&pair[0].name));
            return Err(Fault::new("data of its own", found).in_tensor(path, &pair[1].name));
        }
    }
    Ok(())
}

/// Sets the bytes of tensors of unknown types to those up to the next tensor's data.
fn bound_unknown(path: &Path, file_len: usize, tensors: &mut [TensorInfo]) -> Result<(), Error> {
    if tensors.iter().all(|t| t.ty.is_known()) {
        return Ok(());
    }
    let has_data = |t: &TensorInfo| t.n_bytes > 0 || !t.ty.is_known() && t.n_elements() > 0;
    let mut starts: Vec<usize> = tensors.iter().filter(|t| has_data(t)).map(|t| t.start).collect();
    starts.sort_unstable();
    for tensor in tensors.iter_mut().filter(|t| !t.ty.is_known() && has_data(t)) {
        let next = starts.partition_point(|start| *start <= tensor.start);
        tensor.n_bytes = starts.get(next).unwrap_or(&file_len) - tensor.start;
        if tensor.n_bytes == 0 {
            let expected = format_args!("data within the {file_len} bytes of the file");
            return Err(Fault::new(expected, "none").in_tensor(path, &tensor.name));
        }
    }
    Ok(())
}
