//! The HTTP server: OpenAI's and Anthropic's APIs over the engine, streaming, metrics, admission.
#![forbid(unsafe_code)]
