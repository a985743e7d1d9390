//! Images of kernels: the text of a module, compressed, as the crate embeds them.

use std::io::{self, Read};

use brotli_decompressor::Decompressor;

use crate::Error;
use crate::device::{Device, dependent};

/// The text of an image.
pub(crate) fn unpacked(image: &[u8]) -> io::Result<String> {
    let mut text = String::new();
    Decompressor::new(image, image.len()).read_to_string(&mut text)?;
    Ok(text)
}

/// An image on its way to a device.
pub(crate) struct Image<'a, D: Device> {
    device: &'a D,
    module: D::Module,
}

impl<'a, D: Device> Image<'a, D> {
    /// Loads an image of compressed PTX; `name` is for messages.
    pub(crate) fn load(device: &'a D, name: &str, image: &[u8]) -> Result<Self, Error> {
        let refused =
            |e: io::Error| Error::Kernel { kernel: name.to_owned(), reason: e.to_string() };
        let text = unpacked(image).map_err(refused)?;
        let text = if device.launches_early() { dependent(&text) } else { text };
        Ok(Self { device, module: device.load(name, &text)? })
    }

    /// A kernel by its name.
    pub(crate) fn function(&self, name: &str) -> Result<D::Function, Error> {
        self.device.function(&self.module, name)
    }

    /// Kernels of one subject, by what distinguishes them.
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
