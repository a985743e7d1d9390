//! Shared parts of the writers of both formats: the source of a tensor's data, and files that appear under
//! their names only when they are complete.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::printable::shown;
use crate::{Error, TensorType};

/// A function that writes a tensor's data.
type Produce<'a> = Box<dyn FnOnce(&mut dyn Write) -> io::Result<()> + 'a>;

/// The source of a tensor's data.
pub(crate) enum Source<'a> {
    Bytes(&'a [u8]),
    Produced(Produce<'a>),
}

/// A tensor to be written.
pub(crate) struct Pending<'a> {
    pub(crate) name: String,
    pub(crate) ty: TensorType,
    pub(crate) shape: Vec<usize>,
    pub(crate) n_bytes: usize,
    pub(crate) source: Source<'a>,
}

impl<'a> Pending<'a> {
    /// Checks the shape, and the length of data in memory.
    pub(crate) fn new(
        name: &str,
        ty: TensorType,
        shape: &[usize],
        source: Source<'a>,
    ) -> Result<Self, Error> {
        if !ty.is_known() {
            return Err(Error::input(name, "a known element type", ty));
        }
        let n_bytes = ty.size_of_shape(shape).map_err(|_| {
            let expected = format_args!("rows of whole {ty} blocks of {}", ty.block_len());
            Error::input(name, expected, format_args!("shape {shape:?}"))
        })?;
        if let Source::Bytes(bytes) = &source
            && bytes.len() != n_bytes
        {
            let expected = format_args!("{n_bytes} bytes for {ty} of shape {shape:?}");
            return Err(Error::input(name, expected, bytes.len()));
        }
        Ok(Self { name: name.to_owned(), ty, shape: shape.to_vec(), n_bytes, source })
    }

    /// Writes the data.
    pub(crate) fn write(self, out: &mut dyn Write) -> Result<(), Error> {
        let failed = |e| write_error(&self.name, e);
        match self.source {
            Source::Bytes(bytes) => out.write_all(bytes).map_err(failed),
            Source::Produced(produce) => {
                let mut counted = Counted { out, n_bytes: 0 };
                produce(&mut counted).map_err(failed)?;
                if counted.n_bytes != self.n_bytes as u64 {
                    let expected = format_args!("{} bytes of data", self.n_bytes);
                    return Err(Error::input(&self.name, expected, counted.n_bytes));
                }
                Ok(())
            }
        }
    }
}

pub(crate) fn write_error(name: &str, source: io::Error) -> Error {
    Error::Write { name: shown(name), source }
}

/// Counts the bytes that are written through it.
struct Counted<'a> {
    out: &'a mut dyn Write,
    n_bytes: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = self.out.write(buf)?;
        self.n_bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Writes `n` zero bytes of padding.
pub(crate) fn pad(out: &mut dyn Write, n: usize) -> io::Result<()> {
    let zeros = [0u8; 64];
    let mut left = n;
    while left > 0 {
        let now = left.min(zeros.len());
        out.write_all(&zeros[..now])?;
        left -= now;
    }
    Ok(())
}

/// Writes a file under a temporary name and renames it when it is complete, so that a file that is mapped
/// elsewhere is replaced and never changed.
pub(crate) fn write_file(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut partial: OsString = path.into();
    partial.push(".partial");
    let partial = Path::new(&partial);
    // The remains of an interrupted attempt, or a link to another file.
    match fs::remove_file(partial) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(Error::io(partial, e)),
        _ => {}
    }
    let file = File::create_new(partial).map_err(|e| Error::io(partial, e))?;
    let mut out = BufWriter::new(file);
    let written = write(&mut out)
        .and_then(|()| out.flush().map_err(|e| Error::io(partial, e)))
        .and_then(|()| fs::rename(partial, path).map_err(|e| Error::io(path, e)));
    if written.is_err() {
        // The first error is reported, not a failure to clean up.
        let _ = fs::remove_file(partial);
    }
    written
}
