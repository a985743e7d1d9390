//! Rotary position embedding: the angles and how they are stretched beyond the
//! context a model was trained on.
//!
//! Su et al., 2021 (RoPE); linear scaling (position interpolation, Chen et al.,
//! 2023); NTK-by-parts and attention factor (YaRN, Peng et al., 2023); dynamic
//! NTK, which moves the base; Llama 3.1's frequency bands; LongRoPE's factors per
//! pair (Ding et al., 2024). Positions of three components are in `sections.rs`.

mod hf;
mod sections;

pub use hf::HfRopeKeys;
pub(crate) use hf::parameters_from_hf;
pub use sections::Sections;

use crate::Error;
use crate::checkpoint::GgufSettings;
use crate::graph::RopeAngles;

/// How the angles are stretched.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Every angle is divided by the factor.
    Linear {
        /// The factor.
        factor: f32,
        /// Context before the stretch.
        original_max_seq_len: usize,
    },
    /// Dynamic NTK: contexts longer than the original get a larger base. As with
    /// LongRoPE, the context the model is loaded with decides.
    Dynamic {
        /// By how much the base grows with the context.
        factor: f32,
        /// Context of the training.
        original_max_seq_len: usize,
    },
    /// Llama 3.1: low frequencies are divided, high ones kept, between blended.
    Llama3 {
        /// Divisor of low frequencies.
        factor: f32,
        /// Bounds of the blended band, in turns per original context.
        low_freq_factor: f32,
        /// See `low_freq_factor`.
        high_freq_factor: f32,
        /// Context of the training.
        original_max_seq_len: usize,
    },
    /// YaRN.
    Yarn {
        /// Divisor of low frequencies.
        factor: f32,
        /// Factor on sine and cosine.
        attention_factor: f32,
        /// Turns per original context above which a frequency is kept.
        beta_fast: f32,
        /// Turns per original context below which it is divided.
        beta_slow: f32,
        /// Whether the band's edges are whole pairs.
        truncate: bool,
        /// Context of the training.
        original_max_seq_len: usize,
    },
    /// LongRoPE: a divisor for every pair, one list for contexts up to the
    /// original and one for longer ones. Which applies is decided by the context
    /// the model is loaded with, never by the length of a request.
    LongRope {
        /// Divisors for short contexts.
        short: Vec<f32>, // [rotary_dim / 2]
        /// Divisors for long contexts.
        long: Vec<f32>, // [rotary_dim / 2]
        /// Factor on sine and cosine.
        attention_factor: f32,
        /// Context of the training.
        original_max_seq_len: usize,
    },
    /// A divisor for every pair, as GGUF files store Llama 3.1's.
    Factors(Vec<f32>), // [rotary_dim / 2]
}

/// A stretch of the angles that a file does not ask for, to run a model beyond its context.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeStretch {
    /// Every angle is divided by the factor.
    Linear(f32),
    /// YaRN by this factor, with the bands that its authors found good.
    Yarn(f32),
}

impl RopeStretch {
    /// The factor on the context.
    pub fn factor(&self) -> f32 {
        match *self {
            Self::Linear(factor) | Self::Yarn(factor) => factor,
        }
    }
}

/// A rotary embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Base of the angles.
    pub theta: f32,
    /// Columns of a head that are rotated, from the first on.
    pub rotary_dim: usize,
    /// How the angles are stretched.
    pub scaling: RopeScaling,
    /// The components of positions that pairs take their angles from, where there are three.
    pub sections: Option<Sections>,
}

impl Rope {
    /// The rope of a GGUF file's metadata. Factors that the file stores as
    /// tensors are added when the weights are loaded.
    ///
    /// # Errors
    /// If a value cannot be right, or names a scaling not built.
    pub fn from_gguf(
        s: GgufSettings<'_>,
        head_dim: usize,
        max_seq_len: usize,
    ) -> Result<Self, Error> {
        let rotary_dim = s.opt_usize("rope.dimension_count")?.unwrap_or(head_dim);
        if rotary_dim == 0 || rotary_dim > head_dim || !rotary_dim.is_multiple_of(2) {
            let found = rotary_dim.to_string();
            return Err(s.wrong("rope.dimension_count", "an even part of a head", found));
        }
        // Zero stands for none, and a factor without a type is linear.
        let given = s.opt_f32("rope.scaling.factor")?.or(s.opt_f32("rope.scale_linear")?);
        let given = given.filter(|&factor| factor != 0.0);
        let factor = given.unwrap_or(1.0);
        let original = s.opt_usize("rope.scaling.original_context_length")?.unwrap_or(max_seq_len);
        // LongRoPE is announced by its factors alone.
        let has_factors = s.gguf().tensor_info("rope_factors_long.weight").is_some();
        let ty = match s.opt_str("rope.scaling.type")? {
            None | Some("none") if has_factors => "longrope",
            None if given.is_some() => "linear",
            ty => ty.unwrap_or("none"),
        };
        let scaling = match ty {
            "none" => RopeScaling::None,
            "linear" => RopeScaling::Linear { factor, original_max_seq_len: original },
            "yarn" => {
                let own = s.opt_f32("rope.scaling.attn_factor")?.unwrap_or(1.0);
                RopeScaling::Yarn {
                    factor,
                    attention_factor: own * yarn_attention_factor(factor, 1.0),
                    beta_fast: s.opt_f32("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                    beta_slow: s.opt_f32("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                    truncate: true,
                    original_max_seq_len: original,
                }
            }
            "longrope" => RopeScaling::LongRope {
                short: Vec::new(),
                long: Vec::new(),
                attention_factor: s
                    .opt_f32("rope.scaling.attn_factor")?
                    .unwrap_or_else(|| longrope_attention_factor(max_seq_len, original)),
                original_max_seq_len: original,
            },
            other => {
                let feature = format!("rope scaling `{other}` (`rope.scaling.type`)");
                return Err(s.unsupported_value(feature, &["none", "linear", "yarn", "longrope"]));
            }
        };
        if !(factor > 0.0 && factor.is_finite()) {
            let found = factor.to_string();
            return Err(s.wrong("rope.scaling.factor", "a positive number", found));
        }
        let theta = s.opt_f32("rope.freq_base")?.unwrap_or(10_000.0);
        if !is_base(theta) {
            return Err(s.wrong("rope.freq_base", BASE, theta.to_string()));
        }
        if original == 0 {
            let key = "rope.scaling.original_context_length";
            return Err(s.wrong(key, "a number of positions", "0"));
        }
        Ok(Self { theta, rotary_dim, scaling, sections: None })
    }

    /// The rope of a model with a context of `max_seq_len`, stretched; `None` where it is
    /// stretched already, or where nothing is rotated.
    pub fn stretched(&self, stretch: RopeStretch, max_seq_len: usize) -> Option<Self> {
        if self.scaling != RopeScaling::None || self.rotary_dim == 0 {
            return None;
        }
        let scaling = match stretch {
            RopeStretch::Linear(factor) => {
                RopeScaling::Linear { factor, original_max_seq_len: max_seq_len }
            }
            RopeStretch::Yarn(factor) => RopeScaling::Yarn {
                factor,
                attention_factor: yarn_attention_factor(factor, 1.0),
                beta_fast: 32.0,
                beta_slow: 1.0,
                truncate: true,
                original_max_seq_len: max_seq_len,
            },
        };
        Some(Self { scaling, ..self.clone() })
    }

    /// The longest context at which the rope is as it was trained; `None` when it
    /// is the same at any.
    pub fn unscaled_context(&self) -> Option<usize> {
        match self.scaling {
            RopeScaling::LongRope { original_max_seq_len, .. }
            | RopeScaling::Dynamic { original_max_seq_len, .. } => Some(original_max_seq_len),
            _ => None,
        }
    }

    /// The longest context that the scaling is made for, where it says so.
    pub fn stretched_context(&self) -> Option<usize> {
        match self.scaling {
            RopeScaling::Linear { factor, original_max_seq_len }
            | RopeScaling::Dynamic { factor, original_max_seq_len }
            | RopeScaling::Yarn { factor, original_max_seq_len, .. } => {
                Some((original_max_seq_len as f64 * f64::from(factor)) as usize)
            }
            _ => None,
        }
    }

    /// The angles of a model that is loaded for contexts up to `context`.
    pub fn angles(&self, context: usize) -> RopeAngles {
        let (n, dim) = (self.rotary_dim / 2, self.rotary_dim as f64);
        let theta = match self.scaling {
            RopeScaling::Dynamic { factor, original_max_seq_len } => {
                let (factor, original) = (f64::from(factor), original_max_seq_len as f64);
                let stretch = factor * original.max(context as f64) / original - (factor - 1.0);
                f64::from(self.theta) * stretch.powf(dim / (dim - 2.0))
            }
            _ => f64::from(self.theta),
        };
        let base = (0..n).map(|i| 1.0 / theta.powf(2.0 * i as f64 / dim));
        let (mut mscale, tau) = (1.0, std::f64::consts::TAU);
        let inv_freq: Vec<f64> = match &self.scaling {
            RopeScaling::None | RopeScaling::Dynamic { .. } => base.collect(),
            RopeScaling::Linear { factor, .. } => base.map(|f| f / f64::from(*factor)).collect(),
            RopeScaling::Factors(factors) => divide(base, factors),
            RopeScaling::LongRope { short, long, attention_factor, original_max_seq_len } => {
                mscale = *attention_factor;
                divide(base, if context > *original_max_seq_len { long } else { short })
            }
            &RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_seq_len,
            } => {
                let (low, high) = (f64::from(low_freq_factor), f64::from(high_freq_factor));
                base.map(|f| {
                    let turns = original_max_seq_len as f64 * f / tau;
                    let keep = match turns {
                        turns if turns < low => 0.0,
                        turns if turns > high => 1.0,
                        turns => (turns - low) / (high - low),
                    };
                    keep * f + (1.0 - keep) * f / f64::from(factor)
                })
                .collect()
            }
            &RopeScaling::Yarn {
                factor,
                attention_factor,
                beta_fast,
                beta_slow,
                truncate,
                original_max_seq_len,
            } => {
                mscale = attention_factor;
                // The pair that makes `turns` turns in the original context.
                let pair = |turns: f32| {
                    let context = original_max_seq_len as f64 / (f64::from(turns) * tau);
                    self.rotary_dim as f64 * context.ln() / (2.0 * f64::from(self.theta).ln())
                };
                let (mut low, mut high) = (pair(beta_fast), pair(beta_slow));
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                low = low.max(0.0);
                high = high.min(self.rotary_dim as f64 - 1.0);
                if low == high {
                    high += 0.001;
                }
                base.enumerate()
                    .map(|(i, f)| {
                        let divide = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                        (1.0 - divide) * f + divide * f / f64::from(factor)
                    })
                    .collect()
            }
        };
        let components = self.sections.map(|sections| sections.components(n)).unwrap_or_default();
        RopeAngles {
            inv_freq: inv_freq.iter().map(|&f| f as f32).collect(),
            mscale,
            components: components.into(),
        }
    }
}

/// What a base of angles is.
const BASE: &str = "a number above 1";

fn is_base(theta: f32) -> bool {
    theta > 1.0 && theta.is_finite()
}

impl RopeAngles {
    /// What cannot be right: what was expected, and what was found.
    pub(crate) fn check(&self) -> Result<(), (&'static str, String)> {
        // Far above any frequency in use; times a position it is still a number.
        const MAX: f32 = 1e9;
        if self.inv_freq.is_empty() {
            return Err(("columns that are rotated", "none".to_owned()));
        }
        let wrong = |x: &&f32| !(x.is_finite() && x.abs() <= MAX);
        if let Some(x) = self.inv_freq.iter().find(wrong) {
            return Err(("settings and factors that give angles", format!("an angle of {x}")));
        }
        if wrong(&&self.mscale) || self.mscale <= 0.0 {
            return Err(("a positive attention factor", self.mscale.to_string()));
        }
        Ok(())
    }
}

fn divide(base: impl Iterator<Item = f64>, factors: &[f32]) -> Vec<f64> {
    base.zip(factors).map(|(f, &factor)| f / f64::from(factor)).collect()
}

/// YaRN's factor on sine and cosine (equation 22), `0.1 * mscale * ln(s) + 1`.
pub(crate) fn yarn_attention_factor(factor: f32, mscale: f32) -> f32 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}

/// LongRoPE's factor on sine and cosine.
fn longrope_attention_factor(max_seq_len: usize, original: usize) -> f32 {
    let factor = max_seq_len as f32 / original as f32;
    if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / (original as f32).ln()).sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(scaling: RopeScaling) -> Rope {
        Rope { theta: 10_000.0, rotary_dim: 16, scaling, sections: None }
    }

    fn check(scaling: &RopeScaling, context: usize, expected: [f32; 8], mscale: f32) {
        let angles = rope(scaling.clone()).angles(context);
        assert!((angles.mscale - mscale).abs() < 1e-6, "{scaling:?}: mscale {}", angles.mscale);
        for (i, (a, e)) in angles.inv_freq.iter().zip(expected).enumerate() {
            assert!((a - e).abs() <= 1e-6 * e, "{scaling:?}: pair {i}: {a} is not {e}");
        }
    }

    const PLAIN: [f32; 8] =
        [1.0, 0.316_227_8, 0.1, 0.031_622_78, 0.01, 0.003_162_278, 0.001, 0.000_316_227_8];

    #[test]
    fn plain_and_linear() {
        check(&RopeScaling::None, 64, PLAIN, 1.0);
        let linear = RopeScaling::Linear { factor: 4.0, original_max_seq_len: 64 };
        check(&linear, 64, PLAIN.map(|f| f / 4.0), 1.0);
        assert_eq!(rope(linear).stretched_context(), Some(256));
    }

    #[test]
    fn dynamic_goes_by_the_context() {
        let scaling = RopeScaling::Dynamic { factor: 2.0, original_max_seq_len: 64 };
        check(&scaling, 64, PLAIN, 1.0);
        check(&scaling, 10, PLAIN, 1.0);
        // Twice the context triples the base, to the power of 16 / 14.
        let base = 10_000.0 * 3.0_f64.powf(16.0 / 14.0);
        let expected = std::array::from_fn(|i| base.powf(-(i as f64) / 8.0) as f32);
        check(&scaling, 128, expected, 1.0);
        assert_eq!(rope(scaling.clone()).unscaled_context(), Some(64));
        assert_eq!(rope(scaling).stretched_context(), Some(128));
    }

    #[test]
    fn long_rope_goes_by_the_context() {
        let scaling = RopeScaling::LongRope {
            short: vec![1.0; 8],
            long: vec![2.0; 8],
            attention_factor: 1.5,
            original_max_seq_len: 64,
        };
        check(&scaling, 64, PLAIN, 1.5);
        check(&scaling, 65, PLAIN.map(|f| f / 2.0), 1.5);
    }

    /// Values of transformers' `_compute_llama3_parameters` and
    /// `_compute_yarn_parameters`, which the tiny models also hold us to.
    #[test]
    fn bands_of_llama3_and_yarn() {
        let llama3 = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_seq_len: 32,
        };
        // Turns in 32 positions: 5.1 (kept), 1.6 (blended), 0.5 and fewer (divided).
        let keep = (32.0 * PLAIN[1] / std::f32::consts::TAU - 1.0) / 3.0;
        let blended = keep * PLAIN[1] + (1.0 - keep) * PLAIN[1] / 8.0;
        let mut expected = PLAIN.map(|f| f / 8.0);
        (expected[0], expected[1]) = (1.0, blended);
        check(&llama3, 64, expected, 1.0);

        let yarn = RopeScaling::Yarn {
            factor: 4.0,
            attention_factor: yarn_attention_factor(4.0, 1.0),
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate: true,
            original_max_seq_len: 32,
        };
        // The band runs from pair 0 to pair ceil(16 ln(32 / tau) / (2 ln 10000)) = 2.
        let mut expected = PLAIN.map(|f| f / 4.0);
        (expected[0], expected[1]) = (1.0, PLAIN[1] * (0.5 + 0.5 / 4.0));
        check(&yarn, 64, expected, 1.138_629_4);
    }
}
