//! Writer of GGUF version 3, in one or several files.
//!
//! The output is deterministic: padding is zero, and metadata and tensors are in the order in which they
//! were added.

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::parse::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC, MAX_DIMS, MAX_KEY_BYTES};
use super::split::{COUNT_KEY, NO_KEY, TENSORS_KEY, shard_path};
use super::value::Value;
use crate::output::{Pending, Source, pad, write_error, write_file};
use crate::{Error, TensorType};

const VERSION: u32 = 3;

/// Limits at which a model continues in the next file. A file has at least one tensor, however large.
#[derive(Clone, Copy, Debug, Default)]
pub struct SplitLimits {
    /// Maximum number of tensors per file.
    pub max_tensors: Option<usize>,
    /// Maximum bytes of tensor data per file.
    pub max_bytes: Option<u64>,
}

/// Builds and writes a GGUF model.
#[derive(Default)]
pub struct GgufWriter<'a> {
    metadata: Vec<(String, Value)>,
    tensors: Vec<Pending<'a>>,
    names: HashSet<String>, // of the tensors
    alignment: Option<usize>,
}

impl<'a> GgufWriter<'a> {
    /// A model with no metadata and no tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a metadata entry. `general.alignment` also sets the alignment of tensor data, which defaults to
    /// 32.
    ///
    /// # Errors
    /// If the key exists, is empty, is longer than 65535 bytes, or begins with `split.`, which is reserved for
    /// [`write_split`](Self::write_split); or if an alignment is not a `u32` power of two.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) -> Result<(), Error> {
        let value = value.into();
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            let expected = format_args!("a key of 1 to {MAX_KEY_BYTES} bytes");
            return Err(Error::input(key, expected, format_args!("{} bytes", key.len())));
        }
        if self.metadata.iter().any(|(other, _)| other == key) {
            return Err(Error::input(key, "a key once", "it twice"));
        }
        if [NO_KEY, COUNT_KEY, TENSORS_KEY].contains(&key) {
            return Err(Error::input(key, "no key of a split model", "one"));
        }
        if key == ALIGNMENT_KEY {
            match value {
                Value::U32(n) if n.is_power_of_two() => self.alignment = Some(n as usize),
                other => return Err(Error::input(key, "a u32 power of two", other.describe())),
            }
        }
        self.metadata.push((key.to_owned(), value));
        Ok(())
    }

    /// Adds a tensor with data in memory. `shape` is row-major, outermost dimension first.
    ///
    /// # Errors
    /// If the name exists, GGUF cannot store the type or the number of dimensions, or the length of the data
    /// does not match the shape.
    pub fn tensor(
        &mut self,
        name: &str,
        ty: impl Into<TensorType>,
        shape: &[usize],
        data: &'a [u8],
    ) -> Result<(), Error> {
        self.push(Pending::new(name, ty.into(), shape, Source::Bytes(data))?)
    }

    /// Adds a tensor whose data is produced while the file is written, so that the model need not fit in
    /// memory.
    ///
    /// # Errors
    /// As [`tensor`](Self::tensor). Data of another length is an error of the write.
    pub fn tensor_with(
        &mut self,
        name: &str,
        ty: impl Into<TensorType>,
        shape: &[usize],
        produce: impl FnOnce(&mut dyn Write) -> io::Result<()> + 'a,
    ) -> Result<(), Error> {
        let source = Source::Produced(Box::new(produce));
        self.push(Pending::new(name, ty.into(), shape, source)?)
    }

    fn push(&mut self, tensor: Pending<'a>) -> Result<(), Error> {
        let name = &tensor.name;
        if tensor.ty.ggml_id().is_none() {
            return Err(Error::input(name, "a type that GGUF holds", tensor.ty));
        }
        if tensor.shape.len() > MAX_DIMS {
            let found = tensor.shape.len();
            return Err(Error::input(name, "at most 4 dimensions", found));
        }
        if !self.names.insert(name.clone()) {
            return Err(Error::input(name, "a name once", "it twice"));
        }
        self.tensors.push(tensor);
        Ok(())
    }

    fn alignment(&self) -> usize {
        self.alignment.unwrap_or(DEFAULT_ALIGNMENT)
    }

    /// Writes the model to any output.
    ///
    /// # Errors
    /// If the output fails, or a tensor's produced data has another length.
    pub fn write(self, out: &mut dyn Write) -> Result<(), Error> {
        let alignment = self.alignment();
        write_model(&self.metadata, self.tensors, alignment, out)
    }

    /// Writes the model to a file, which appears under its name when it is complete.
    ///
    /// # Errors
    /// As [`write`](Self::write), or if the file cannot be created.
    pub fn write_file(self, path: impl AsRef<Path>) -> Result<(), Error> {
        write_file(path.as_ref(), |out| self.write(out))
    }

    /// Writes the model to files named `PREFIX-00001-of-00003.gguf` and so on; returns their paths. The first
    /// one has the metadata.
    ///
    /// # Errors
    /// As [`write_file`](Self::write_file), or if there would be more than 65535 files.
    pub fn write_split(
        self,
        prefix: impl AsRef<Path>,
        limits: SplitLimits,
    ) -> Result<Vec<PathBuf>, Error> {
        let (alignment, n_tensors) = (self.alignment(), self.tensors.len());
        let groups = split_tensors(self.tensors, limits);
        let name = prefix.as_ref().display().to_string();
        let count = u16::try_from(groups.len())
            .map_err(|_| Error::input(&name, "at most 65535 files", groups.len()))?;
        let n_tensors = i32::try_from(n_tensors)
            .map_err(|_| Error::input(&name, "at most 2147483647 tensors", n_tensors))?;

        let mut metadata = self.metadata;
        let mut paths = Vec::with_capacity(groups.len());
        for (no, tensors) in (0..count).zip(groups) {
            metadata.push((NO_KEY.into(), Value::U16(no)));
            metadata.push((COUNT_KEY.into(), Value::U16(count)));
            metadata.push((TENSORS_KEY.into(), Value::I32(n_tensors)));
            let path = shard_path(prefix.as_ref(), no.into(), count.into());
            write_file(&path, |out| write_model(&metadata, tensors, alignment, out))?;
            paths.push(path);
            // Later files repeat the alignment only.
            metadata.retain(|(key, _)| key == ALIGNMENT_KEY);
        }
        Ok(paths)
    }
}

/// Distributes the tensors to files, in order.
fn split_tensors(tensors: Vec<Pending<'_>>, limits: SplitLimits) -> Vec<Vec<Pending<'_>>> {
    let max_tensors = limits.max_tensors.unwrap_or(usize::MAX);
    let max_bytes = limits.max_bytes.unwrap_or(u64::MAX);
    let mut groups = vec![Vec::new()];
    let mut group_bytes = 0u64;
    for tensor in tensors {
        let n_bytes = tensor.n_bytes as u64;
        if let Some(group) = groups.last()
            && !group.is_empty()
            && (group.len() >= max_tensors || group_bytes.saturating_add(n_bytes) > max_bytes)
        {
            groups.push(Vec::new());
            group_bytes = 0;
        }
        group_bytes = group_bytes.saturating_add(n_bytes);
        if let Some(group) = groups.last_mut() {
            group.push(tensor);
        }
    }
    groups
}

fn write_model(
    metadata: &[(String, Value)],
    tensors: Vec<Pending<'_>>,
    alignment: usize,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let header = encode_header(metadata, &tensors, alignment)?;
    let padding = header.len().next_multiple_of(alignment) - header.len();
    out.write_all(&header)
        .and_then(|()| pad(out, padding))
        .map_err(|e| write_error("header", e))?;
    for tensor in tensors {
        let (name, n_bytes) = (tensor.name.clone(), tensor.n_bytes);
        tensor.write(out)?;
        let padding = n_bytes.next_multiple_of(alignment) - n_bytes;
        pad(out, padding).map_err(|e| write_error(&name, e))?;
    }
    out.flush().map_err(|e| write_error("end of file", e))
}

/// Everything before the data section, without its padding.
fn encode_header(
    metadata: &[(String, Value)],
    tensors: &[Pending<'_>],
    alignment: usize,
) -> Result<Vec<u8>, Error> {
    let mut out = Vec::new();
    out.extend(MAGIC);
    out.extend(VERSION.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        put_str(&mut out, key);
        out.extend(value.ty().id().to_le_bytes());
        value.encode(&mut out);
    }
    let mut offset = 0usize;
    for tensor in tensors {
        let id = tensor.ty.ggml_id();
        let id = id.ok_or_else(|| Error::input(&tensor.name, "a GGUF type", tensor.ty))?;
        put_str(&mut out, &tensor.name);
        out.extend((tensor.shape.len() as u32).to_le_bytes());
        // Files store the innermost dimension first.
        for &dim in tensor.shape.iter().rev() {
            out.extend((dim as u64).to_le_bytes());
        }
        out.extend(id.to_le_bytes());
        out.extend((offset as u64).to_le_bytes());
        let end = offset.checked_add(tensor.n_bytes);
        let next = end.and_then(|end| end.checked_next_multiple_of(alignment));
        offset = next.ok_or_else(|| {
            Error::input(&tensor.name, "data below 2^64 bytes in all", tensor.n_bytes)
        })?;
    }
    Ok(out)
}

fn put_str(out: &mut Vec<u8>, s: &str) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend(s.as_bytes());
}
