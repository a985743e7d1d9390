//! Helpers that every crate above may use and that know nothing of models.
//!
//! - [`ByteSize`] writes a number of bytes for people.
//! - [`printable`] escapes text of files, models and servers for messages.
//! - [`open_regular`] and its siblings open a model's files: regular ones only, read up to a limit.
//! - [`own_file`] reads and writes files that one run leaves for a later one.
//! - [`panics`] turns a panic into an error value.
//! - [`lower_priority`] makes a thread yield to those that compute.
//!
//! ```
//! use realizar_base::printable::shown;
//! use realizar_base::{ByteSize, panics};
//!
//! assert_eq!(ByteSize(98_362_432).to_string(), "93.81 MiB");
//! assert_eq!(shown("two\nlines"), "two\\nlines");
//! assert_eq!(panics::caught(|| 7), Ok(7));
//! ```
#![forbid(unsafe_code)]

mod byte_size;
pub mod own_file;
pub mod panics;
pub mod printable;
mod priority;
mod regular;

pub use byte_size::ByteSize;
pub use priority::lower_priority;
pub use regular::{check_regular, open_regular, read_regular, read_regular_text};

/// The maximum length of a JSON file beside a model's weights, in bytes. `tokenizer.json` may be longer.
pub const MAX_JSON: usize = 8 << 20;
