//! How well texts match: Jina's and Cohere's `rerank`, and vLLM's `score`.

pub(crate) mod rerank;
pub(crate) mod score;
