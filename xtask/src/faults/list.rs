//! The faults, and for each the narrowest check that must find it.

use crate::lavapipe::Width;

/// A change that makes the program wrong.
pub(super) struct Fault {
    pub(super) name: &'static str,
    /// Text that stands once, in one file.
    pub(super) text: &'static str,
    /// What takes its place.
    pub(super) fault: &'static str,
    pub(super) check: Check,
}

/// Tests of a package.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Check {
    pub(super) package: &'static str,
    /// What `cargo test` gets before the filter.
    pub(super) target: &'static [&'static str],
    /// The tests whose names contain this.
    pub(super) filter: &'static str,
    /// The vector width of lavapipe, where shaders run.
    pub(super) width: Option<Width>,
}

const fn unit(package: &'static str, filter: &'static str) -> Check {
    Check { package, target: &["--lib"], filter, width: None }
}

const fn shaders(filter: &'static str, width: Width) -> Check {
    Check { width: Some(width), ..unit("realizar-kernels-wgpu", filter) }
}

const CPU: &str = "realizar-kernels-cpu";

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "a tile edge without its last row of weights (AVX2)",
        text: "[a, b] => add_tile(&multiply_tile([a, b], x), out, token, col),",
        fault: "[a, _] => add_tile(&multiply_tile([a], x), out, token, col),",
        check: unit(CPU, "matmul::"),
    },
    Fault {
        name: "scales of MXFP4 and NVFP4 twice as large (AVX2)",
        text: "_mm256_slli_epi32::<23>(_mm256_sub_epi32(exponent, _mm256_set1_epi32(1)))",
        fault: "_mm256_slli_epi32::<23>(exponent)",
        check: unit(CPU, "packed::"),
    },
    Fault {
        name: "a sliding window that is one position too long",
        text: "Some(window) => (pos + 1).saturating_sub(window),",
        fault: "Some(window) => pos.saturating_sub(window),",
        check: unit(CPU, "attention::"),
    },
    Fault {
        name: "the state of a convolution one row too old",
        text: "let kept = input(&x, seq.rows.start, row, n_taps - 2 - i, past, n);",
        fault: "let kept = input(&x, seq.rows.start, row, n_taps - 1 - i, past, n);",
        check: unit(CPU, "recurrent::"),
    },
    Fault {
        name: "the factor of YaRN on cosines alone",
        text: "*sin = angle.sin() as f32 * mscale;",
        fault: "*sin = angle.sin() as f32;",
        check: unit(CPU, "rope::"),
    },
    Fault {
        name: "a zero point with the wrong sign",
        text: "lo[i] = d * (f32::from(self.qs[i] & 0x0f) - z);",
        fault: "lo[i] = d * (f32::from(self.qs[i] & 0x0f) + z);",
        check: unit("realizar-quant", "q4_z"),
    },
    Fault {
        name: "a page of the key-value cache released early",
        text: "let keep_from = pos.min(self.len) / PAGE_LEN;",
        fault: "let keep_from = pos.min(self.len).div_ceil(PAGE_LEN);",
        check: unit("realizar-kvcache", ""),
    },
    Fault {
        name: "tensor data of a GGUF file that is not aligned",
        text: "let data_start = header_len.checked_next_multiple_of(alignment);",
        fault: "let data_start = Some(header_len);",
        check: unit("realizar-formats", "gguf"),
    },
    Fault {
        name: "a sum without room for subgroups of 4",
        text: "var<workgroup> reduce_partial: array<f32, WORKGROUP / 4u>;",
        fault: "var<workgroup> reduce_partial: array<f32, WORKGROUP / 8u>;",
        check: shaders("norm", Width::W128),
    },
    Fault {
        name: "a maximum that is wrong where subgroups have 16 invocations",
        text: "let own = subgroupMax(x);",
        fault: "let own = select(subgroupMax(x), x, inv.subgroup_size == 16u);",
        check: shaders("", Width::W512),
    },
    Fault {
        name: "a grid of a CUDA kernel without its last rows",
        text: "let grid = [n_rows.div_ceil(WARPS) as u32, 1, 1];",
        fault: "let grid = [(n_rows / WARPS).max(1) as u32, 1, 1];",
        check: Check {
            target: &["--lib", "--all-features"],
            ..unit("realizar-kernels-cuda", "route")
        },
    },
    Fault {
        name: "the role of rows taken from their place in the batch, not in their request",
        text: "_ if position >= FINE_POSITIONS => {}",
        fault: "_ if row >= FINE_POSITIONS as usize => {}",
        check: Check { target: &["--test", "it"], ..unit("realizar-runtime", "bits::") },
    },
];
