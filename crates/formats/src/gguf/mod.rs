//! GGUF models of one or several files: open, look up, iterate.
//!
//! The format is documented at <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

pub(crate) mod array;
mod cursor;
pub(crate) mod file_type;
pub(crate) mod metadata;
mod parse;
mod split;
pub(crate) mod value;
pub(crate) mod writer;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::error::Fault;
use crate::{Bytes, Error, Tensor, TensorInfo};
use metadata::Metadata;
use parse::{Header, parse};
use split::{Split, shard_path, shard_prefix};

/// A GGUF model: one file, or all files of a split model.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    version: u32,
    alignment: usize,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<Box<str>, usize>,
    shards: Vec<(PathBuf, Bytes)>,
}

/// A parsed file.
struct Shard {
    path: PathBuf,
    file: Bytes,
    header: Header,
    split: Option<Split>,
}

impl Shard {
    fn read(path: &Path, file: Bytes) -> Result<Self, Error> {
        let header = file.whole(parse(path, &file))?;
        let split = Split::of(path, &header.metadata)?;
        Ok(Self { path: path.to_path_buf(), file, header, split })
    }
}

impl Gguf {
    /// Opens a model. For a split model, the path may be that of any of its files; the others are found by
    /// name.
    ///
    /// # Errors
    /// If a file cannot be opened or is malformed, or a file of a split model is missing or belongs to another
    /// model.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let opened = Shard::read(path, Bytes::map(path)?)?;
        let Some(Split { no, count, .. }) = opened.split.as_ref().filter(|s| s.count > 1) else {
            return Self::join(path, vec![opened]);
        };
        let (no, count) = (*no, *count);
        let prefix = shard_prefix(path, no, count).ok_or_else(|| {
            let expected = format_args!("a name ending in -{:05}-of-{count:05}.gguf", no + 1);
            Fault::new(expected, "another").in_header(path, "file name of a split model")
        })?;
        let mut opened = Some(opened);
        let mut shards = Vec::new();
        for i in 0..count {
            let shard = match opened.take_if(|_| i == no) {
                Some(shard) => shard,
                None => open_shard(path, &shard_path(&prefix, i, count), i, count)?,
            };
            shards.push(shard);
        }
        Self::join(path, shards)
    }

    /// Reads a model from bytes. Errors name `name` as the file.
    ///
    /// # Errors
    /// If the bytes are malformed, or are one file of a split model.
    pub fn from_bytes(name: impl AsRef<Path>, bytes: Bytes) -> Result<Self, Error> {
        let path = name.as_ref();
        let shard = Shard::read(path, bytes)?;
        if let Some(split) = shard.split.as_ref().filter(|s| s.count > 1) {
            return Err(Fault::new("1 file", split.count).in_key(path, split::COUNT_KEY));
        }
        Self::join(path, vec![shard])
    }

    /// Joins the files of a model. The first one has the metadata.
    fn join(path: &Path, shards: Vec<Shard>) -> Result<Self, Error> {
        let n_files = shards.len();
        let expected = shards.first().and_then(|s| s.split.as_ref()).and_then(|s| s.n_tensors);
        let mut first = None;
        let mut files = Vec::with_capacity(n_files);
        let mut tensors: Vec<TensorInfo> = Vec::new();
        let mut by_name = HashMap::new();
        for (i, shard) in shards.into_iter().enumerate() {
            let Header { version, alignment, metadata, tensors: of_shard } = shard.header;
            first.get_or_insert((version, alignment, metadata));
            for mut tensor in of_shard {
                tensor.shard = i;
                if by_name.insert(tensor.name.as_str().into(), tensors.len()).is_some() {
                    let fault = Fault::new("a name once", "it in two files");
                    return Err(fault.in_tensor(&shard.path, &tensor.name));
                }
                tensors.push(tensor);
            }
            files.push((shard.path, shard.file));
        }
        let (version, alignment, metadata) = first.unwrap_or_default();
        if let Some(expected) = expected.filter(|&n| n != tensors.len()) {
            let found = format_args!("{} in {n_files} files", tensors.len());
            let fault = Fault::new(format_args!("{expected} tensors"), found);
            return Err(fault.in_key(path, split::TENSORS_KEY));
        }
        let path = path.to_path_buf();
        Ok(Self { path, version, alignment, metadata, tensors, by_name, shards: files })
    }

    /// Fails if pages of a file were lost since it was opened, so that zeros were read in their place; see
    /// [`FileWatch::check`](crate::FileWatch::check).
    ///
    /// # Errors
    /// [`Error::Lost`], with the path of the first such file.
    pub fn check_files(&self) -> Result<(), Error> {
        self.shards.iter().try_for_each(|(_, file)| file.check())
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The paths of the model's files, in order.
    pub fn shard_paths(&self) -> impl Iterator<Item = &Path> {
        self.shards.iter().map(|(path, _)| path.as_path())
    }

    /// The format's version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Alignment of tensor data in bytes.
    pub fn alignment(&self) -> usize {
        self.alignment
    }

    /// The metadata; that of the first file if the model is split.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The metadata, mutable. The file is not changed.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// Renames a tensor in memory. Returns false, and changes nothing, if there is no tensor `name` or there
    /// is one named `new`.
    pub fn rename_tensor(&mut self, name: &str, new: &str) -> bool {
        if self.by_name.contains_key(new) {
            return false;
        }
        let Some(at) = self.by_name.remove(name) else { return false };
        self.by_name.insert(new.into(), at);
        self.tensors[at].name = new.to_owned();
        true
    }

    /// The tensors' descriptions, in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The description of a tensor.
    pub fn tensor_info(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&i| &self.tensors[i])
    }

    /// A tensor, as a view into the mapped file.
    pub fn tensor(&self, name: &str) -> Option<Tensor> {
        let info = self.tensor_info(name)?;
        Some(info.view(&self.shards[info.shard].1))
    }
}

/// Opens file `no` of a split model that was opened through `path`.
fn open_shard(path: &Path, shard: &Path, no: usize, count: usize) -> Result<Shard, Error> {
    let file = match Bytes::map(shard) {
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            let (path, shard) = (path.to_path_buf(), shard.to_path_buf());
            return Err(Error::MissingShard { path, shard });
        }
        other => other?,
    };
    let opened = Shard::read(shard, file)?;
    match &opened.split {
        Some(split) if split.no == no && split.count == count => Ok(opened),
        Some(split) => {
            let found = format_args!("file {} of {}", split.no + 1, split.count);
            let fault = Fault::new(format_args!("file {} of {count}", no + 1), found);
            Err(fault.in_key(shard, split::NO_KEY))
        }
        None => Err(Fault::new("a value", "none").in_key(shard, split::COUNT_KEY)),
    }
}
