//! Names and keys of a GGUF model that is split over files.
//!
//! Files are named `NAME-00001-of-00003.gguf`, counted from 1; the metadata of
//! each counts from 0 (`split.no`).

use std::path::{Path, PathBuf};

use super::metadata::Metadata;
use crate::Error;
use crate::error::Fault;

pub(crate) const NO_KEY: &str = "split.no";
pub(crate) const COUNT_KEY: &str = "split.count";
pub(crate) const TENSORS_KEY: &str = "split.tensors.count";

/// What a file's metadata says about splitting; `None` for a whole model.
pub(crate) struct Split {
    pub(crate) no: usize,
    pub(crate) count: usize,
    pub(crate) n_tensors: Option<usize>,
}

impl Split {
    pub(crate) fn of(path: &Path, metadata: &Metadata) -> Result<Option<Self>, Error> {
        let Some(count) = metadata.u32(COUNT_KEY)? else { return Ok(None) };
        if !(1..=99999).contains(&count) {
            return Err(Fault::new("1 to 99999 files", count).in_key(path, COUNT_KEY));
        }
        let no = metadata.u32(NO_KEY)?;
        let no = no.ok_or_else(|| Fault::new("a value", "none").in_key(path, NO_KEY))?;
        if no >= count {
            let expected = format_args!("a number below the {count} of {COUNT_KEY}");
            return Err(Fault::new(expected, no).in_key(path, NO_KEY));
        }
        let n_tensors = metadata.u32(TENSORS_KEY)?.map(|n| n as usize);
        Ok(Some(Self { no: no as usize, count: count as usize, n_tensors }))
    }
}

/// The path of file `no` (from 0) of `count`, where `prefix` is the path
/// without `-00001-of-00003.gguf`.
pub(crate) fn shard_path(prefix: &Path, no: usize, count: usize) -> PathBuf {
    let mut name = prefix.as_os_str().to_owned();
    name.push(format!("-{:05}-of-{count:05}.gguf", no + 1));
    name.into()
}

/// The path without `-00001-of-00003.gguf`, if it ends so for that file.
pub(crate) fn shard_prefix(path: &Path, no: usize, count: usize) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let prefix = name.strip_suffix(&format!("-{:05}-of-{count:05}.gguf", no + 1))?;
    Some(path.with_file_name(prefix)).filter(|_| !prefix.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shard_names_lead_back_to_their_prefix() {
        let path = shard_path(Path::new("dir/m.v1"), 1, 3);
        assert_eq!(path, Path::new("dir/m.v1-00002-of-00003.gguf"));
        assert_eq!(shard_prefix(&path, 1, 3), Some("dir/m.v1".into()));
        assert_eq!(shard_prefix(&path, 0, 3), None);
        assert_eq!(shard_prefix(Path::new("m.gguf"), 0, 3), None);
        assert_eq!(shard_prefix(Path::new("-00001-of-00003.gguf"), 0, 3), None);
    }
}
