//! GGUF and safetensors files: parse, validate, memory-map, shard and write.
//!
//! A file is mapped, its header is checked once against the file's size, and tensors are views into the
//! map. Metadata arrays stay in the map too, so that a vocabulary of a few hundred thousand tokens takes
//! little memory. Files are untrusted: every count, length, offset and dimension is checked before
//! anything is allocated or sliced, and a malformed file is an [`Error`] of one line that names the file,
//! the key or tensor, and the expected and found values.
//!
//! The crate knows no model: the meaning of names and shapes is up to its users.
//!
//! | modules | what they hold |
//! |---|---|
//! | `gguf` | metadata, tensor tables and parts of GGUF files, and a writer |
//! | `safetensors` | the same for safetensors |
//! | `tensor`, `tensor_type` | a tensor of either format, with its shape row-major, outermost first |
//! | `bytes`, `map` | mapped or owned bytes |
//! | `lost_pages` | truncation of a mapped file, which `survive_lost_pages` turns into an error |
//! | `output`, `file_size`, `free_memory` | files that are written, and limits of the system |
//!
//! [`TensorType`] is a [`BlockType`] or a type that occurs in files only (integers,
//! booleans, `F64`, unknown ids), so the two cannot be confused.
//!
//! ```
//! use realizar_formats::{Gguf, GgufWriter, TensorType};
//!
//! let dir = tempfile::tempdir()?;
//! let path = dir.path().join("tiny.gguf");
//!
//! let data: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0].iter().flat_map(|x| x.to_le_bytes()).collect();
//! let mut writer = GgufWriter::new();
//! writer.set("general.architecture", "tiny")?;
//! writer.set("tiny.block_count", 1u32)?;
//! writer.tensor("tok_embed.weight", TensorType::F32, &[2, 3], &data)?;
//! writer.write_file(&path)?;
//!
//! let gguf = Gguf::open(&path)?;
//! assert_eq!(gguf.metadata().str("general.architecture")?, Some("tiny"));
//! assert_eq!(gguf.metadata().u32("tiny.block_count")?, Some(1));
//! let tensor = gguf.tensor("tok_embed.weight").expect("it was written");
//! assert_eq!(tensor.shape, [2, 3]);
//! assert!(tensor.data.is_mapped());
//! assert_eq!(&tensor.data[..], &data[..]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Formats: [GGUF](https://github.com/ggml-org/ggml/blob/master/docs/gguf.md)
//! versions 2 and 3, little endian, and
//! [safetensors](https://github.com/huggingface/safetensors#format).
#![deny(unsafe_code)]

mod bytes;
mod error;
mod file_size;
mod free_memory;
mod gguf;
mod lost_pages;
mod map;
mod output;
mod safetensors;
mod tensor;
mod tensor_type;

pub use bytes::Bytes;
pub use error::Error;
pub use file_size::survive_file_size_limit;
pub use free_memory::{give_back_freed_memory, give_back_large_blocks};
pub use gguf::Gguf;
pub use gguf::array::{Array, StrArray};
pub use gguf::file_type::gguf_file_type_name;
pub use gguf::metadata::Metadata;
pub use gguf::value::{Value, ValueType};
pub use gguf::writer::{GgufWriter, SplitLimits};
pub use lost_pages::survive_lost_pages;
pub use map::FileWatch;
pub use realizar_base::printable;
pub use realizar_base::{open_regular, read_regular, read_regular_text};
pub use realizar_quant::BlockType;
pub use safetensors::SafeTensors;
pub use safetensors::writer::SafeTensorsWriter;
pub use tensor::{Tensor, TensorInfo};
pub use tensor_type::TensorType;
