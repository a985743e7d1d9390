//! The public functions of the libraries that make something of outside text, and who runs them.

/// Files of `crates/`, functions in them, and the targets that run them. `cargo xtask tidy` finds functions that
/// are missing here by their names.
pub const ENTRIES: &[(&str, &str, &str)] = &[
    ("formats/src/gguf/mod.rs", "open", "gguf"),
    ("formats/src/gguf/mod.rs", "from_bytes", "gguf"),
    ("formats/src/safetensors/mod.rs", "open", "config"),
    ("formats/src/safetensors/mod.rs", "from_bytes", "safetensors"),
    ("runtime/src/architectures/config.rs", "from_gguf", "packed"),
    ("runtime/src/architectures/config.rs", "from_gguf_with_head", "packed"),
    ("runtime/src/architectures/config.rs", "from_hf", "config"),
    ("runtime/src/architectures/rope.rs", "from_gguf", "packed"),
    ("runtime/src/architectures/rope/hf.rs", "from_hf", "config"),
    ("runtime/src/checkpoint/hf_settings.rs", "open", "config"),
    ("runtime/src/checkpoint/mod.rs", "open", "config"),
    ("runtime/src/generate/session_file.rs", "restore_session", "session"),
    ("runtime/src/run/card.rs", "read", "config"),
    ("runtime/src/run/card.rs", "read_text", "config"),
    ("runtime/src/run/device/mod.rs", "open", "config"),
    ("runtime/src/text/constrain/mod.rs", "compile", "schema"),
    ("runtime/src/text/template/guard.rs", "render_prompt", "template"),
    ("runtime/src/text/template/mod.rs", "render", "template"),
    ("runtime/src/text/template/source.rs", "from_gguf", "gguf"),
    ("runtime/src/text/template/source.rs", "from_hf_dir", "tokenizer"),
    ("runtime/src/text/tokenizer/guard.rs", "encode_guarded", "template"),
    ("runtime/src/text/tokenizer/mod.rs", "decode", "tokenizer"),
    ("runtime/src/text/tokenizer/mod.rs", "encode", "tokenizer"),
    ("runtime/src/text/tokenizer/mod.rs", "from_gguf", "gguf"),
    ("runtime/src/text/tokenizer/mod.rs", "from_hf_dir", "tokenizer"),
    ("server/src/api/anthropic/request.rs", "read_request", "request"),
    ("server/src/api/responses/request.rs", "read_request", "request"),
];
