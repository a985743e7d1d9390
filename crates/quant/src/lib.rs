//! Block types of quantized tensors: layouts, sizes, quantization, dequantization, and a reference dot
//! product.
//!
//! A quantized tensor stores rows of *blocks*: 32 to 256 elements as small integers that share scales, or
//! as codebook indices. [`BlockType`] is the table of types, with the names, ids and sizes that GGUF
//! files use. [`dequantize`], [`quantize`] and [`dot`] work on rows of bytes of any type. Each type has a
//! module with its block struct (such as [`BlockQ4K`]): plain data of alignment 1 that bytes cast to.
//!
//! | modules | what they hold |
//! |---|---|
//! | `block_type` | the table of types |
//! | [`q4_k`] and its siblings | a type each: block struct, quantization, dequantization |
//! | [`floats`], [`small_floats`], [`f8`], [`half_bytes`] | numbers of 16 and 8 bits |
//! | [`codebook`], `grids` | levels that blocks index |
//! | `k_search`, `codebook_search`, `ternary_search`, `range` | the scales that fit a row best |
//! | [`levels`], [`k_scales`] | a level for every element and unpacked scales, for backends that repack blocks |
//! | `row` | rows of blocks |
//!
//! ```
//! use realizar_quant::{BlockType, dequantize, dot, quantize};
//!
//! let ty = BlockType::Q4_K;
//! let values: Vec<f32> = (0..512).map(|i| (i as f32 * 0.1).sin()).collect();
//! let mut bytes = vec![0u8; ty.row_bytes(values.len())?];
//! quantize(ty, &values, &mut bytes)?;
//! assert_eq!(bytes.len(), 2 * 144);
//!
//! let mut back = vec![0.0f32; values.len()];
//! dequantize(ty, &bytes, &mut back)?;
//! assert!(values.iter().zip(&back).all(|(a, b)| (a - b).abs() < 0.12));
//!
//! let x = vec![1.0f32; values.len()];
//! let sum: f64 = back.iter().map(|v| f64::from(*v)).sum();
//! assert_eq!(dot(ty, &bytes, &x)?, sum as f32);
//! # Ok::<(), realizar_quant::Error>(())
//! ```
#![forbid(unsafe_code)]

mod block;
mod block_type;
pub mod codebook;
mod codebook_search;
mod error;
pub mod f8;
pub mod f8_0;
pub mod floats;
mod grids;
pub mod half_bytes;
pub mod iq1_m;
pub mod iq1_s;
pub mod iq2_s;
pub mod iq2_xs;
pub mod iq2_xxs;
pub mod iq3_s;
pub mod iq3_xxs;
pub mod iq4_nl;
pub mod iq4_xs;
pub mod k_scales;
mod k_search;
pub mod levels;
pub mod mxfp4;
pub mod nvfp4;
pub mod q1_0;
pub mod q2_0;
pub mod q2_k;
pub mod q3_k;
pub mod q4_0;
pub mod q4_1;
pub mod q4_k;
pub mod q4_z;
pub mod q5_0;
pub mod q5_1;
pub mod q5_k;
pub mod q6_k;
pub mod q8_0;
pub mod q8_1;
pub mod q8_k;
mod range;
mod row;
pub mod small_floats;
mod ternary_search;
pub mod tq1_0;
pub mod tq2_0;

pub use block::{Block, Quantize};
pub use block_type::BlockType;
pub use error::Error;
pub use f8::BlockF8;
pub use f8_0::BlockF8_0;
pub use iq1_m::BlockIQ1M;
pub use iq1_s::BlockIQ1S;
pub use iq2_s::BlockIQ2S;
pub use iq2_xs::BlockIQ2XS;
pub use iq2_xxs::BlockIQ2XXS;
pub use iq3_s::BlockIQ3S;
pub use iq3_xxs::BlockIQ3XXS;
pub use iq4_nl::BlockIQ4NL;
pub use iq4_xs::BlockIQ4XS;
pub use mxfp4::BlockMXFP4;
pub use nvfp4::BlockNVFP4;
pub use q1_0::BlockQ1_0;
pub use q2_0::BlockQ2_0;
pub use q2_k::BlockQ2K;
pub use q3_k::BlockQ3K;
pub use q4_0::BlockQ4_0;
pub use q4_1::BlockQ4_1;
pub use q4_k::BlockQ4K;
pub use q4_z::BlockQ4Z;
pub use q5_0::BlockQ5_0;
pub use q5_1::BlockQ5_1;
pub use q5_k::BlockQ5K;
pub use q6_k::BlockQ6K;
pub use q8_0::BlockQ8_0;
pub use q8_1::BlockQ8_1;
pub use q8_k::BlockQ8K;
pub use row::{dequantize, dot, quantize};
pub use tq1_0::BlockTQ1_0;
pub use tq2_0::BlockTQ2_0;
