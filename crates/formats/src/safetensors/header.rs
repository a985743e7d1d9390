//! Parser of a safetensors file's JSON header.
//!
//! The JSON is parsed entry by entry, which keeps its order, detects duplicate names, and builds nothing
//! for unused parts.

use std::fmt;
use std::marker::PhantomData;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use crate::error::Fault;
use crate::printable::shown;
use crate::{Bytes, Error, TensorInfo, TensorType};

/// The format's limit on the header's length.
pub(crate) const MAX_HEADER_BYTES: usize = 100_000_000;

/// Maximum number of dimensions. The format has no limit.
const MAX_DIMS: usize = 64;

pub(crate) const METADATA_KEY: &str = "__metadata__";

/// A JSON object, entries in order, duplicates included.
pub(crate) struct Entries<T>(pub(crate) Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for EntriesVisitor<T> {
            type Value = Entries<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<T>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(EntriesVisitor(PhantomData))
    }
}

impl<T> Entries<T> {
    /// A key that occurs more than once.
    pub(crate) fn duplicate(&self) -> Option<&str> {
        let mut keys: Vec<&str> = self.0.iter().map(|(key, _)| key.as_str()).collect();
        keys.sort_unstable();
        keys.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
    }
}

/// One tensor, as the header describes it.
#[derive(Deserialize)]
struct Description {
    dtype: String,
    shape: Shape,
    data_offsets: [u64; 2],
}

/// A shape; elements past [`MAX_DIMS`] are not stored.
struct Shape(Vec<u64>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ShapeVisitor;

        impl<'de> Visitor<'de> for ShapeVisitor {
            type Value = Shape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a shape of at most {MAX_DIMS} dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
                let mut dims = Vec::new();
                while let Some(dim) = seq.next_element()? {
                    if dims.len() == MAX_DIMS {
                        return Err(A::Error::invalid_length(MAX_DIMS + 1, &self));
                    }
                    dims.push(dim);
                }
                Ok(Shape(dims))
            }
        }

        deserializer.deserialize_seq(ShapeVisitor)
    }
}

/// The header's object: `__metadata__` and the tensors.
struct Object {
    metadata: Option<Entries<String>>,
    metadata_again: bool,
    tensors: Entries<Description>,
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor;

        impl<'de> Visitor<'de> for ObjectVisitor {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut tensors = Vec::new();
                let (mut metadata, mut seen, mut metadata_again) = (None, false, false);
                while let Some(key) = map.next_key::<String>()? {
                    if key == METADATA_KEY {
                        metadata_again |= seen;
                        seen = true;
                        metadata = map.next_value::<Option<Entries<String>>>()?;
                    } else {
                        tensors.push((key, map.next_value()?));
                    }
                }
                Ok(Object { metadata, metadata_again, tensors: Entries(tensors) })
            }
        }

        deserializer.deserialize_map(ObjectVisitor)
    }
}

/// The header of one file.
pub(crate) struct Header {
    pub(crate) metadata: Vec<(String, String)>,
    pub(crate) tensors: Vec<TensorInfo>, // `shard` is 0
}

/// Reads and checks the header of the file at `path`, whose bytes are `file`.
pub(crate) fn parse(path: &Path, file: &Bytes) -> Result<Header, Error> {
    let json = header_bytes(path, file)?;
    let object: Object =
        serde_json::from_slice(json).map_err(|e| Error::json(path, "header", &e))?;
    if object.metadata_again {
        return Err(Fault::new("a key once", "it twice").in_key(path, METADATA_KEY));
    }
    if let Some(name) = object.tensors.duplicate() {
        return Err(Fault::new("a name once", "it twice").in_tensor(path, name));
    }
    let metadata = object.metadata.unwrap_or(Entries(Vec::new()));
    if let Some(key) = metadata.duplicate() {
        return Err(Fault::new("a key once", "it twice").in_key(path, key));
    }

    let data_start = 8 + json.len();
    let data_len = file.len() - data_start;
    let mut tensors = Vec::with_capacity(object.tensors.0.len());
    for (name, description) in object.tensors.0 {
        tensors.push(check_tensor(path, name, &description, data_start, data_len)?);
    }
    check_contiguous(path, data_start, file.len(), &tensors)?;
    Ok(Header { metadata: metadata.0, tensors })
}

/// The JSON: 8 bytes of length, then the text, which starts with `{`.
fn header_bytes<'a>(path: &Path, file: &'a Bytes) -> Result<&'a [u8], Error> {
    let not_format = |expected: String, found: String| Error::NotFormat {
        path: path.to_path_buf(),
        format: "safetensors",
        expected,
        found,
    };
    let Some((len, rest)) = file.split_first_chunk::<8>() else {
        let found = format!("{} bytes in all", file.len());
        return Err(not_format("a header length of 8 bytes".into(), found));
    };
    let len = u64::from_le_bytes(*len);
    let most = rest.len().min(MAX_HEADER_BYTES);
    let json = usize::try_from(len).ok().filter(|&len| len <= most).map(|len| &rest[..len]);
    let expected = || format!("a header of at most {most} bytes");
    let json = json.ok_or_else(|| not_format(expected(), format!("a length of {len}")))?;
    if json.first() != Some(&b'{') {
        let found = format!("'{}'", json[..json.len().min(8)].escape_ascii());
        return Err(not_format("a header starting with '{'".into(), found));
    }
    Ok(json)
}

fn check_tensor(
    path: &Path,
    name: String,
    description: &Description,
    data_start: usize,
    data_len: usize,
) -> Result<TensorInfo, Error> {
    let in_tensor = |e: Fault| e.in_tensor(path, &name);
    let Description { dtype, shape: Shape(shape), data_offsets: [begin, end] } = description;
    let ty = TensorType::from_dtype(dtype).ok_or_else(|| Error::UnknownType {
        path: path.to_path_buf(),
        tensor: shown(&name),
        found: format!("dtype '{}'", shown(dtype)),
    })?;
    let sizes: Result<Vec<usize>, _> = shape.iter().map(|&dim| usize::try_from(dim)).collect();
    let sized = sizes.ok().and_then(|shape| Some((ty.size_of_shape(&shape).ok()?, shape)));
    let Some((n_bytes, shape)) = sized else {
        let dims = shown(&format!("{shape:?}"));
        return Err(in_tensor(Fault::new(
            "a size that fits in memory",
            format_args!("shape {dims}"),
        )));
    };
    let range = || format!("data_offsets [{begin}, {end}]");
    let place = usize::try_from(*begin).ok().zip(usize::try_from(*end).ok());
    let Some((begin, end)) = place.filter(|&(begin, end)| begin <= end && end <= data_len) else {
        let expected = format_args!("data_offsets within {data_len} bytes of data");
        return Err(in_tensor(Fault::new(expected, range())));
    };
    if end - begin != n_bytes {
        let dims = shown(&format!("{shape:?}"));
        let expected = format_args!("{n_bytes} bytes for {ty} of shape {dims}");
        return Err(in_tensor(Fault::new(expected, range())));
    }
    let start = data_start + begin;
    Ok(TensorInfo { name, ty, shape, n_bytes, shard: 0, start })
}

/// Checks that the tensors fill the data without gap or overlap.
fn check_contiguous(
    path: &Path,
    data_start: usize,
    file_len: usize,
    tensors: &[TensorInfo],
) -> Result<(), Error> {
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|t| (t.start, t.n_bytes));
    let mut end = data_start;
    for tensor in order {
        if tensor.start != end {
            let expected = format_args!("data at {}, where the last ends", end - data_start);
            let fault = Fault::new(expected, tensor.start - data_start);
            return Err(fault.in_tensor(path, &tensor.name));
        }
        end += tensor.n_bytes;
    }
    if end != file_len {
        let expected = format_args!("{} bytes, the sum of the tensors", end - data_start);
        return Err(Fault::new(expected, file_len - data_start).in_header(path, "data length"));
    }
    Ok(())
}
