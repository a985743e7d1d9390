//! File names and metadata keys of a GGUF model of several files.
//!
//! Files are named `NAME-00001-of-00003.gguf`, counted from 1. Their metadata counts from 0 (`split.no`).

use std::path::{Path, PathBuf};

use super::metadata::Metadata;
use crate::Error;
use crate::error::Fault;

pub(crate) const NO_KEY: &str = "split.no";
pub(crate) const COUNT_KEY: &str = "split.count";
pub(crate) const TENSORS_KEY: &str = "split.tensors.count";

/// The split metadata of a file; `None` for a model of one file.
pub(crate) struct Split {
    pub(crate) no: usize,
    pub(crate) count: usize,
    pub(crate) n_tensors: Option<usize>,
}

impl Split {
    pub(crate) fn of(path: &Path, metadata: &Metadata) -> Result<Option<Self>, Error> {
        let Some(count) = metadata.u32(COUNT_KEY)? else { return Ok(None) };
        // Tools that merge a split model leave the key with value 0.
        if count == 0 {
            return Ok(None);
        }
        // The format stores the count as u16.
        if count > u32::from(u16::MAX) {
            return Err(Fault::new("at most 65535 files", count).in_key(path, COUNT_KEY));
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

/// The path of file `no` (from 0) of `count`. `prefix` is the path without `-00001-of-00003.gguf`.
pub(crate) fn shard_path(prefix: &Path, no: usize, count: usize) -> PathBuf {
    let mut name = prefix.as_os_str().to_owned();
    name.push(format!("-{:05}-of-{count:05}.gguf", no + 1));
    name.into()
}

/// The inverse of [`shard_path`]; `None` if the path is not that of file `no` of `count`.
pub(crate) fn shard_prefix(path: &Path, no: usize, count: usize) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let prefix = name.strip_suffix(&format!("-{:05}-of-{count:05}.gguf", no + 1))?;
    Some(path.with_file_name(prefix)).filter(|_| !prefix.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Value;

    #[test]
    fn split_keys_are_checked() {
        let path = Path::new("m.gguf");
        let of = |entries: &[(&str, Value)]| {
            let mut metadata = Metadata::new(path.into());
            for (key, value) in entries {
                metadata.insert(key, value.clone()).expect("no duplicates");
            }
            let split = Split::of(path, &metadata).map_err(|e| e.to_string())?;
            Ok::<_, String>(split.map(|s| (s.no, s.count, s.n_tensors)))
        };
        let err = |text: &str| Err(format!("m.gguf: key {text}"));
        let count = |n: u32| (COUNT_KEY, Value::U32(n));
        let no = |n: u16| (NO_KEY, Value::U16(n));
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&[count(0), no(0)]), Ok(None));
        assert_eq!(of(&[count(3), no(2)]), Ok(Some((2, 3, None))));
        let tensors = (TENSORS_KEY, Value::I32(9));
        assert_eq!(of(&[count(3), no(2), tensors]), Ok(Some((2, 3, Some(9)))));
        assert_eq!(of(&[count(3)]), err("'split.no': expected a value, found none"));
        assert_eq!(
            of(&[count(3), no(3)]),
            err("'split.no': expected a number below the 3 of split.count, found 3")
        );
        assert_eq!(
            of(&[count(65536), no(0)]),
            err("'split.count': expected at most 65535 files, found 65536")
        );
    }

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
