//! Writer of safetensors, in one file or in shards with an index.
//!
//! The output is deterministic. Tensors are in descending order of element size, and within a size in the
//! order in which they were added, so that each is aligned to its elements. The header is padded with
//! spaces to 8 bytes.

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::Path;

use super::header::{MAX_HEADER_BYTES, METADATA_KEY};
use super::{INDEX_NAME, SINGLE_NAME};
use crate::output::{Pending, Source, write_error, write_file};
use crate::{Error, TensorType};

/// Builds and writes a safetensors model.
#[derive(Default)]
pub struct SafeTensorsWriter<'a> {
    metadata: Vec<(String, String)>,
    tensors: Vec<Pending<'a>>,
    names: HashSet<String>, // of the tensors
}

impl<'a> SafeTensorsWriter<'a> {
    /// A model with no metadata and no tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an entry of `__metadata__`.
    ///
    /// # Errors
    /// If the key exists.
    pub fn set(&mut self, key: &str, text: &str) -> Result<(), Error> {
        if self.metadata.iter().any(|(other, _)| other == key) {
            return Err(Error::input(key, "a key once", "it twice"));
        }
        self.metadata.push((key.to_owned(), text.to_owned()));
        Ok(())
    }

    /// Adds a tensor with data in memory. `shape` is row-major, outermost dimension first.
    ///
    /// # Errors
    /// If the name exists or is reserved, the format cannot store the type, or the length of the data does not
    /// match the shape.
    pub fn tensor(
        &mut self,
        name: &str,
        ty: TensorType,
        shape: &[usize],
        data: &'a [u8],
    ) -> Result<(), Error> {
        self.push(Pending::new(name, ty, shape, Source::Bytes(data))?)
    }

    /// Adds a tensor whose data is produced while the file is written.
    ///
    /// # Errors
    /// As [`tensor`](Self::tensor). Data of another length is an error of the write.
    pub fn tensor_with(
        &mut self,
        name: &str,
        ty: TensorType,
        shape: &[usize],
        produce: impl FnOnce(&mut dyn Write) -> io::Result<()> + 'a,
    ) -> Result<(), Error> {
        self.push(Pending::new(name, ty, shape, Source::Produced(Box::new(produce)))?)
    }

    fn push(&mut self, tensor: Pending<'a>) -> Result<(), Error> {
        let name = &tensor.name;
        if tensor.ty.dtype().is_none() {
            return Err(Error::input(name, "a type that safetensors holds", tensor.ty));
        }
        if name == METADATA_KEY {
            return Err(Error::input(name, "the name of a tensor", "a reserved key"));
        }
        if !self.names.insert(name.clone()) {
            return Err(Error::input(name, "a name once", "it twice"));
        }
        self.tensors.push(tensor);
        Ok(())
    }

    /// Writes the model to any output.
    ///
    /// # Errors
    /// If the output fails, the header would exceed the format's limit, or a tensor's produced data has
    /// another length.
    pub fn write(self, out: &mut dyn Write) -> Result<(), Error> {
        write_model(&self.metadata, self.tensors, out)
    }

    /// Writes the model to a file, which appears under its name when it is complete.
    ///
    /// # Errors
    /// As [`write`](Self::write), or if the file cannot be created.
    pub fn write_file(self, path: impl AsRef<Path>) -> Result<(), Error> {
        write_file(path.as_ref(), |out| self.write(out))
    }

    /// Writes the model to a directory: `model.safetensors` if its data has at most `max_bytes`, otherwise
    /// files of at most so many, where each tensor is in one file, and `model.safetensors.index.json`.
    ///
    /// # Errors
    /// As [`write_file`](Self::write_file).
    pub fn write_sharded(self, dir: impl AsRef<Path>, max_bytes: u64) -> Result<(), Error> {
        let dir = dir.as_ref();
        let total_bytes: u64 = self.tensors.iter().map(|t| t.n_bytes as u64).sum();
        if total_bytes <= max_bytes {
            return self.write_file(dir.join(SINGLE_NAME));
        }
        let mut groups: Vec<(u64, Vec<Pending<'_>>)> = Vec::new();
        for tensor in self.tensors {
            let n_bytes = tensor.n_bytes as u64;
            match groups.last_mut() {
                Some((bytes, group)) if bytes.saturating_add(n_bytes) <= max_bytes => {
                    *bytes += n_bytes;
                    group.push(tensor);
                }
                _ => groups.push((n_bytes, vec![tensor])),
            }
        }
        let count = groups.len();
        let mut weight_map = serde_json::Map::new();
        for (i, (_, tensors)) in groups.into_iter().enumerate() {
            let file = format!("model-{:05}-of-{count:05}.safetensors", i + 1);
            for tensor in &tensors {
                weight_map.insert(tensor.name.clone(), file.as_str().into());
            }
            write_file(&dir.join(file), |out| write_model(&self.metadata, tensors, out))?;
        }
        let index = serde_json::json!({
            "metadata": { "total_size": total_bytes },
            "weight_map": weight_map,
        });
        write_file(&dir.join(INDEX_NAME), |out| {
            writeln!(out, "{index:#}").map_err(|e| write_error(INDEX_NAME, e))
        })
    }
}

fn write_model(
    metadata: &[(String, String)],
    mut tensors: Vec<Pending<'_>>,
    out: &mut dyn Write,
) -> Result<(), Error> {
    tensors.sort_by_key(|t| std::cmp::Reverse(t.ty.block_bytes()));
    let header = encode_header(metadata, &tensors)?;
    if header.len() > MAX_HEADER_BYTES {
        let expected = format_args!("at most {MAX_HEADER_BYTES} bytes");
        return Err(Error::input("header", expected, header.len()));
    }
    out.write_all(&(header.len() as u64).to_le_bytes())
        .and_then(|()| out.write_all(header.as_bytes()))
        .map_err(|e| write_error("header", e))?;
    for tensor in tensors {
        tensor.write(out)?;
    }
    out.flush().map_err(|e| write_error("end of file", e))
}

/// The JSON, padded with spaces to 8 bytes.
fn encode_header(metadata: &[(String, String)], tensors: &[Pending<'_>]) -> Result<String, Error> {
    let mut entries = Vec::with_capacity(tensors.len() + 1);
    if !metadata.is_empty() {
        let texts: Vec<String> =
            metadata.iter().map(|(key, text)| format!("{}:{}", quote(key), quote(text))).collect();
        entries.push(format!("{}:{{{}}}", quote(METADATA_KEY), texts.join(",")));
    }
    let mut begin = 0usize;
    for tensor in tensors {
        let too_much = || Error::input(&tensor.name, "data below 2^64 bytes in all", begin);
        let end = begin.checked_add(tensor.n_bytes).ok_or_else(too_much)?;
        let dtype = tensor.ty.dtype().unwrap_or_default();
        let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
        let (name, shape) = (quote(&tensor.name), shape.join(","));
        entries.push(format!(
            "{name}:{{\"dtype\":\"{dtype}\",\"shape\":[{shape}],\"data_offsets\":[{begin},{end}]}}"
        ));
        begin = end;
    }
    let mut header = format!("{{{}}}", entries.join(","));
    let padding = header.len().next_multiple_of(8) - header.len();
    header.extend(std::iter::repeat_n(' ', padding));
    Ok(header)
}

/// The text as a JSON string.
fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
