//! Kernel images: compressed PTX modules, embedded in the crate.

use std::io::{self, Read};

use brotli_decompressor::Decompressor;

use crate::Error;
use crate::device::{Device, dependent};

/// Decompresses an image.
pub(crate) fn unpacked(image: &[u8]) -> io::Result<String> {
    let mut text = String::new();
    Decompressor::new(image, image.len()).read_to_string(&mut text)?;
    Ok(text)
}

/// An image loaded on a device.
pub(crate) struct Image<'a, D: Device> {
    device: &'a D,
    module: D::Module,
}

impl<'a, D: Device> Image<'a, D> {
    /// Loads an image of compressed PTX. Messages name it `name`.
    pub(crate) fn load(device: &'a D, name: &str, image: &[u8]) -> Result<Self, Error> {
        let refused =
            |e: io::Error| Error::Kernel { kernel: name.to_owned(), reason: e.to_string() };
        let text = unpacked(image).map_err(refused)?;
        let text = if device.launches_early() { dependent(&text) } else { text };
        Ok(Self { device, module: device.load(name, &text)? })
    }

    /// Looks up a kernel by name.
    pub(crate) fn function(&self, name: &str) -> Result<D::Function, Error> {
        self.device.function(&self.module, name)
    }

    /// Looks up related kernels, whose names are made from `of`.
    pub(crate) fn functions<T: Copy, const N: usize>(
        &self,
        of: [T; N],
        name: impl Fn(T) -> String,
    ) -> Result<[D::Function; N], Error> {
        let all: Result<Vec<_>, _> = of.into_iter().map(|t| self.function(&name(t))).collect();
        let Ok(all) = all?.try_into() else { unreachable!("one for each") };
        Ok(all)
    }
}
