//! The pipelines of a device: each shader is compiled once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// A compiled shader.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub(crate) name: String,
    pub(crate) raw: wgpu::ComputePipeline,
    pub(crate) layout: wgpu::BindGroupLayout,
}

/// The pipelines that were made so far.
#[derive(Debug, Default)]
pub(crate) struct Pipelines(pub(crate) Mutex<HashMap<String, Arc<Pipeline>>>);
