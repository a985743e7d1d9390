//! Safetensors files, single and sharded by an index: open, look up, iterate.
//!
//! The format is described at
//! <https://github.com/huggingface/safetensors#format>.

mod header;
pub(crate) mod writer;

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use crate::error::Fault;
use crate::printable::shown;
use crate::{Bytes, Error, Tensor, TensorInfo};
use header::{Entries, Header, MAX_HEADER_BYTES, parse};
use realizar_base::read_regular;

/// File name of a model of one file.
pub(crate) const SINGLE_NAME: &str = "model.safetensors";
/// File name of the index of a sharded model.
pub(crate) const INDEX_NAME: &str = "model.safetensors.index.json";

/// A safetensors model: one file, or all files that an index names.
#[derive(Debug)]
pub struct SafeTensors {
    path: PathBuf,
    metadata: Vec<(String, String)>,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<Box<str>, usize>,
    shards: Vec<(PathBuf, Bytes)>,
}

/// The used part of an index.
#[derive(Deserialize)]
struct Index {
    weight_map: Entries<String>,
}

impl SafeTensors {
    /// Opens a model: a `.safetensors` file, an `.index.json` file, or a
    /// directory with `model.safetensors` or, failing that,
    /// `model.safetensors.index.json`.
    ///
    /// The path of a single shard opens that file alone; the index or the directory opens all of them.
    ///
    /// # Errors
    /// If a file cannot be opened or is malformed, a shard is missing, or a
    /// tensor is not in the shard that the index names.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        if path.is_dir() {
            let (single, index) = (path.join(SINGLE_NAME), path.join(INDEX_NAME));
            if single.is_file() {
                return Self::open_files(path, vec![single]);
            }
            if index.is_file() {
                return Self::open_index(path, &index);
            }
            let expected = format_args!("{SINGLE_NAME} or {INDEX_NAME}");
            return Err(Fault::new(expected, "neither").in_header(path, "directory"));
        }
        if path.extension().is_some_and(|ext| ext.eq_ignore_ascii_case("json")) {
            return Self::open_index(path, path);
        }
        Self::open_files(path, vec![path.to_path_buf()])
    }

    /// Reads a model from bytes. Errors name `name` as the file.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub fn from_bytes(name: impl AsRef<Path>, bytes: Bytes) -> Result<Self, Error> {
        let path = name.as_ref();
        let header = bytes.whole(parse(path, &bytes))?;
        Self::join(path, vec![(path.to_path_buf(), bytes, header)])
    }

    fn open_files(path: &Path, files: Vec<PathBuf>) -> Result<Self, Error> {
        let mut shards = Vec::with_capacity(files.len());
        for file in files {
            let bytes = match Bytes::map(&file) {
                Err(Error::Io { source, .. })
                    if source.kind() == ErrorKind::NotFound && file != path =>
                {
                    return Err(Error::MissingShard { path: path.to_path_buf(), shard: file });
                }
                other => other?,
            };
            let header = bytes.whole(parse(&file, &bytes))?;
            shards.push((file, bytes, header));
        }
        Self::join(path, shards)
    }

    /// Opens the files that the index at `index` names. `path` is the model's path.
    fn open_index(path: &Path, index: &Path) -> Result<Self, Error> {
        let json = read_regular(index, MAX_HEADER_BYTES).map_err(|e| Error::io(index, e))?;
        let Index { weight_map } =
            serde_json::from_slice(&json).map_err(|e| Error::json(index, "index", &e))?;
        if let Some(name) = weight_map.duplicate() {
            return Err(Fault::new("a name once", "it twice").in_tensor(index, name));
        }

        // Files are in the order of their names, which number the shards.
        let mut names: Vec<&str> = weight_map.0.iter().map(|(_, file)| file.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let dir = index.parent().unwrap_or(Path::new(""));
        let mut files = Vec::with_capacity(names.len());
        for name in &names {
            let plain = Path::new(name).components().all(|c| matches!(c, Component::Normal(_)));
            if name.is_empty() || !plain {
                let found = format_args!("'{}'", shown(name));
                let fault = Fault::new("the name of a file beside the index", found);
                return Err(fault.in_header(index, "weight_map"));
            }
            files.push(dir.join(name));
        }

        let model = Self::open_files(path, files)?;
        for (tensor, file) in &weight_map.0 {
            let found = model.by_name.get(tensor.as_str()).map(|&i| names[model.tensors[i].shard]);
            if found != Some(file.as_str()) {
                let found = found.unwrap_or("it in no file");
                let fault = Fault::new(format_args!("data in {}", shown(file)), shown(found));
                return Err(fault.in_tensor(index, tensor));
            }
        }
        Ok(model)
    }

    fn join(path: &Path, shards: Vec<(PathBuf, Bytes, Header)>) -> Result<Self, Error> {
        let mut files = Vec::with_capacity(shards.len());
        let mut metadata: Vec<(String, String)> = Vec::new();
        let mut tensors: Vec<TensorInfo> = Vec::new();
        let mut by_name = HashMap::new();
        for (i, (file, bytes, header)) in shards.into_iter().enumerate() {
            if i == 0 {
                metadata = header.metadata;
            }
            for mut tensor in header.tensors {
                tensor.shard = i;
                if by_name.insert(tensor.name.as_str().into(), tensors.len()).is_some() {
                    let fault = Fault::new("a name once", "it in two files");
                    return Err(fault.in_tensor(&file, &tensor.name));
                }
                tensors.push(tensor);
            }
            files.push((file, bytes));
        }
        Ok(Self { path: path.to_path_buf(), metadata, tensors, by_name, shards: files })
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

    /// Keys and values of the first file's `__metadata__`, in file order.
    pub fn metadata(&self) -> &[(String, String)] {
        &self.metadata
    }

    /// The tensors' descriptions, in the order of the headers.
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
