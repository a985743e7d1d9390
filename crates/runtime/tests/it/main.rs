//! Tests of the whole crate. One program, so that the crate is linked once for all of them; those
//! that count allocations are programs of their own.

mod ahead;
mod backends;
mod bits;
mod block_types;
mod chat;
mod common;
mod constrain;
mod damaged_checkpoints;
mod damaged_settings;
mod draft_heads;
mod embeddings;
mod engine;
mod experts;
mod faults;
#[cfg(feature = "wgpu")]
mod gpu_waves;
mod graphs;
mod guarded_prompts;
mod hf_settings;
mod hf_vocab;
mod lost_files;
mod memory;
mod metrics;
mod model_sampling;
mod model_tokens;
mod models_document;
mod ollama_files;
mod packed_cache;
mod positions;
mod prompts;
#[cfg(feature = "cuda-interpreter")]
mod ranks;
mod reach;
mod recurrent;
mod segments;
mod session_files;
mod settings;
#[cfg(feature = "wgpu")]
mod shortlists;
mod split;
mod stored_in_parts;
mod synthetic_vocab;
mod template_goldens;
mod vocab_vectors;
#[cfg(feature = "wgpu")]
mod wgpu;
mod wrappers;
