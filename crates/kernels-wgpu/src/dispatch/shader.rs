//! Shaders, assembled from WGSL parts.
//!
//! Variants of a kernel use different parts that define the same names: reductions with or without
//! subgroups, the decoder of a block type, the loads of a key-value type. There is no preprocessor.

use std::borrow::Cow;

/// How a kernel uses a storage buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read only.
    Read,
    /// Read and write.
    ReadWrite,
}

/// A shader: a name for its pipeline, its parts, and its storage buffers.
///
/// Binding 0 is the uniform `params`; the storage buffers follow from 1 on. The
/// entry point is `main`.
#[derive(Debug, Clone)]
pub struct Shader {
    /// Tells it from every other shader, such as `matvec q4_k subgroup`.
    pub name: Cow<'static, str>,
    /// Its text, in this order.
    pub parts: Vec<&'static str>,
    /// Its storage buffers.
    pub bindings: &'static [Access],
    /// Values of its pipeline-overridable constants.
    pub constants: Vec<(&'static str, f64)>,
}

impl Shader {
    /// The whole text.
    pub fn source(&self) -> String {
        self.parts.concat()
    }

    /// Whether its text uses subgroup operations.
    pub fn uses_subgroups(&self) -> bool {
        self.parts.iter().any(|part| part.contains("subgroup_size"))
    }
}

/// How invocations of a workgroup know their place and add up.
///
/// Both define the struct `Invocation` that an entry point takes (`group`, the
/// workgroup's id, and `lane`, the index in the workgroup), and
/// `workgroup_sum(x, inv)` and `workgroup_max(x, inv)`, which every invocation of
/// the workgroup must call and which give all of them the result. Before them
/// comes a part that defines `const WORKGROUP: u32`, a power of two.
pub fn reduce(subgroups: bool) -> &'static str {
    if subgroups {
        include_str!("../../shaders/reduce/subgroup.wgsl")
    } else {
        include_str!("../../shaders/reduce/plain.wgsl")
    }
}
