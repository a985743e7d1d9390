//! What comes from files and clients, as functions of bytes: [`TARGETS`].
//!
//! A target must not panic, whatever the bytes are, and must end soon and with little memory; where
//! there is more to hold, it asserts it. `cargo xtask fuzz TARGET` has libFuzzer look for bytes that
//! break it; the seeds it begins from, and what it once found, lie in `fixtures/fuzz/`, one folder
//! for each target, and the tests run every one of them.
#![forbid(unsafe_code)]

mod chat;
mod entries;
mod files;
mod requests;
mod texts;

pub use entries::ENTRIES;
pub use requests::PATHS;

/// A function that takes any bytes.
pub struct Target {
    /// Its name, and that of its folder of seeds.
    pub name: &'static str,
    /// Runs it once.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "gguf", run: files::gguf },
    Target { name: "safetensors", run: files::safetensors },
    Target { name: "config", run: files::config },
    Target { name: "tokenizer", run: files::tokenizer },
    Target { name: "session", run: files::session },
    Target { name: "packed", run: files::packed },
    Target { name: "template", run: texts::template },
    Target { name: "schema", run: texts::schema },
    Target { name: "grammar", run: texts::grammar },
    Target { name: "answer", run: chat::answer },
    Target { name: "request", run: requests::request },
];

/// The target of this name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
