//! The rotary embedding of config.json.
//!
//! transformers 5 writes `rope_parameters`; older files have `rope_theta` and `rope_scaling`.
//! The rules are those of its `RotaryEmbeddingConfigMixin` and of the configuration classes
//! that override it. Where a file gives both spellings, transformers takes the older and loses what the other says of
//! the base and of the part of a head that turns, which is an error here.

use super::{
    BASE, Rope, RopeScaling, Sections, is_base, longrope_attention_factor, yarn_attention_factor,
};
use crate::Error;
use crate::checkpoint::HfSettings;

/// What a family's configuration class reads for a rotary embedding, where classes differ.
#[derive(Debug, Clone, Copy)]
pub struct HfRopeKeys {
    /// The entry of `rope_parameters` for the layers in question, in families that give
    /// parameters by layer type.
    pub layer_type: Option<&'static str>,
    /// The key of the base at the top level, and the base when no key gives one.
    pub theta: (&'static str, f32),
    /// The part of a head that is rotated when `partial_rotary_factor` is missing; `None` where
    /// the family rotates whole heads and does not read that key.
    pub partial: Option<f32>,
    /// The key of that part at the top level.
    pub partial_key: &'static str,
    /// Whether `dynamic` with an `alpha` is a larger base at any context.
    pub ntk_alpha: bool,
    /// Whether `yarn` is another name of LongRoPE, the only scaling of the family.
    pub longrope_only: bool,
    /// The sections of M-RoPE where the file says nothing, in families that have it.
    pub sections: Option<Sections>,
}

impl HfRopeKeys {
    /// What most families read.
    pub const COMMON: Self = Self {
        layer_type: None,
        theta: ("rope_theta", 10_000.0),
        partial: None,
        partial_key: "partial_rotary_factor",
        ntk_alpha: false,
        longrope_only: false,
        sections: None,
    };
}

/// The layer types that `rope_parameters` may be given by.
const LAYER_TYPES: [&str; 2] = ["full_attention", "sliding_attention"];

/// The parameters of config.json for all layers, which an older key goes before.
///
/// # Errors
/// If they are no object.
pub(crate) fn parameters_from_hf(s: &HfSettings) -> Result<Option<HfSettings>, Error> {
    let scaling = s.opt_object("rope_scaling")?.filter(|p| !p.is_empty());
    Ok(scaling.or(s.opt_object("rope_parameters")?.filter(|p| !p.is_empty())))
}

impl Rope {
    /// The rope of config.json for heads of `head_dim` columns, in a model that was made for
    /// contexts of `max_seq_len`.
    ///
    /// # Errors
    /// If a value is missing, cannot be right, contradicts another, or names a scaling that is
    /// not built.
    pub fn from_hf(
        s: &HfSettings,
        keys: &HfRopeKeys,
        head_dim: usize,
        max_seq_len: usize,
    ) -> Result<Self, Error> {
        let given = |key| Ok::<_, Error>(s.opt_object(key)?.filter(|p| !p.is_empty()));
        let (parameters, scaling) = (given("rope_parameters")?, given("rope_scaling")?);
        let by_type = parameters.as_ref().is_some_and(|p| LAYER_TYPES.iter().any(|ty| p.has(ty)));
        let (parameters, scaling) = match (parameters, keys.layer_type) {
            (Some(p), None) if by_type => {
                let ty = LAYER_TYPES.iter().find(|ty| p.has(ty)).copied().unwrap_or_default();
                return Err(p.wrong(ty, "nothing, as all layers have one rotary embedding"));
            }
            (Some(_), Some(_)) if !by_type => {
                let expected = "`full_attention` and `sliding_attention`";
                return Err(s.wrong("rope_parameters", expected));
            }
            (Some(p), Some(ty)) => (p.opt_object(ty)?, scaling),
            (parameters, _) => (parameters, scaling),
        };
        // Layers with a window are never scaled by the older key.
        let scaling = scaling.filter(|_| keys.layer_type != Some("sliding_attention"));
        if let (Some(p), Some(_)) = (&scaling, keys.layer_type)
            && p.has("type")
            && !p.has("rope_type")
        {
            return Err(p.wrong("rope_type", "the name of the scaling (`type` is not read here)"));
        }
        let source = Source { s, keys, head_dim, max_seq_len };
        let (Some(new), Some(old)) = (&parameters, &scaling) else {
            return source.rope(parameters.as_ref().or(scaling.as_ref()));
        };
        // The older key, which people add to files, goes before. Only parameters by layer type keep the rest.
        if keys.layer_type.is_some() {
            return source.rope(Some(&old.with_missing_of(new, |_| true)));
        }
        let rope = source.rope(Some(old))?;
        for lost in ["rope_theta", "partial_rotary_factor"] {
            if source.rope(Some(&old.with_missing_of(new, |key| key == lost)))? != rope {
                let expected = format!("`{lost}` as in `rope_parameters`, whose value is lost");
                return Err(s.wrong("rope_scaling", expected));
            }
        }
        Ok(rope)
    }
}

/// Where a rope is read from.
struct Source<'a> {
    s: &'a HfSettings,
    keys: &'a HfRopeKeys,
    head_dim: usize,
    max_seq_len: usize,
}

impl Source<'_> {
    /// The rope of these parameters; what they leave out is at the top level.
    fn rope(&self, p: Option<&HfSettings>) -> Result<Rope, Error> {
        let Self { s, keys, head_dim, .. } = *self;
        let number = |key: &str, outer: &str| match p.filter(|p| !p.is_absent(key)) {
            Some(p) => p.f32(key).map(Some),
            None => s.opt_f32(outer),
        };
        let theta = number("rope_theta", keys.theta.0)?.unwrap_or(keys.theta.1);
        if !is_base(theta) {
            let inner = p.filter(|p| p.has("rope_theta"));
            return Err(match inner {
                Some(p) => p.wrong("rope_theta", BASE),
                None => s.wrong(keys.theta.0, BASE),
            });
        }
        let ty = match p {
            Some(p) if p.is_absent("rope_type") => p.str_or("type", "default")?,
            Some(p) => p.str("rope_type")?,
            None => "default",
        };
        let partial = number("partial_rotary_factor", keys.partial_key)?;
        if let ("proportional", Some(p)) = (ty, p) {
            return self.proportional(p, theta, partial.unwrap_or(1.0));
        }
        let fraction = match keys.partial {
            Some(default) => partial.unwrap_or(default),
            None if ty != "default" && partial.is_some_and(|x| x != 1.0) => {
                let expected = "1, as the architecture rotates whole heads";
                let inner = p.filter(|p| p.has("partial_rotary_factor"));
                return Err(inner.unwrap_or(s).wrong("partial_rotary_factor", expected));
            }
            None => 1.0,
        };
        let rotary_dim = (head_dim as f32 * fraction) as usize;
        if rotary_dim == 0 || rotary_dim > head_dim || !rotary_dim.is_multiple_of(2) {
            let expected = "an even part of a head";
            return Err(match p.filter(|p| p.has("partial_rotary_factor")) {
                Some(p) => p.wrong("partial_rotary_factor", expected),
                None => s.wrong(keys.partial_key, expected),
            });
        }
        let alpha = match p.filter(|_| keys.ntk_alpha && ty == "dynamic") {
            Some(p) => p.opt_f32("alpha")?.filter(|&alpha| alpha != 0.0),
            None => None,
        };
        let (theta, scaling) = match (p, alpha) {
            (Some(_), Some(alpha)) => {
                let dim = rotary_dim as f32;
                (theta * alpha.powf(dim / (dim - 2.0)), RopeScaling::None)
            }
            (Some(p), None) => (theta, self.scaling(p, ty, rotary_dim / 2)?),
            (None, _) => (theta, RopeScaling::None),
        };
        if !is_base(theta) {
            return Err(p.unwrap_or(s).wrong("alpha", "a factor that gives a base above 1"));
        }
        let sections = keys.sections.map(|sections| sections.or_from_hf(p, rotary_dim / 2));
        Ok(Rope { theta, rotary_dim, scaling, sections: sections.transpose()? })
    }

    /// The angles of whole heads, of which all after a part of the pairs are zero.
    fn proportional(&self, p: &HfSettings, theta: f32, part: f32) -> Result<Rope, Error> {
        let n_pairs = self.head_dim / 2;
        let n_turned = (part * self.head_dim as f32 / 2.0) as usize;
        if !self.head_dim.is_multiple_of(2) || !(1..=n_pairs).contains(&n_turned) {
            return Err(p.wrong("partial_rotary_factor", "a part of a head"));
        }
        let factor = p.f32_or("factor", 1.0)?;
        if !(factor > 0.0 && factor.is_finite()) {
            return Err(p.wrong("factor", "a positive number"));
        }
        let mut factors = vec![factor; n_turned];
        factors.resize(n_pairs, f32::INFINITY);
        let scaling = RopeScaling::Factors(factors);
        Ok(Rope { theta, rotary_dim: self.head_dim, scaling, sections: None })
    }

    /// The context of the training. A value at the top level goes before that of the
    /// parameters, except where these are given by layer type.
    fn original(&self, p: &HfSettings) -> Result<usize, Error> {
        let key = "original_max_position_embeddings";
        let goes_before = self.keys.layer_type.is_none() && !self.s.is_absent(key);
        let settings = if goes_before { self.s } else { p };
        match settings.usize_or(key, self.max_seq_len)? {
            0 => Err(settings.wrong(key, "a number of positions")),
            n => Ok(n),
        }
    }

    fn scaling(&self, p: &HfSettings, ty: &str, n_pairs: usize) -> Result<RopeScaling, Error> {
        let positive = |key: &str| match p.f32(key)? {
            x if x > 0.0 && x.is_finite() => Ok(x),
            _ => Err(p.wrong(key, "a positive number")),
        };
        let max_seq_len = self.max_seq_len;
        Ok(match ty {
            "default" => RopeScaling::None,
            // The older name of no scaling in families with sections.
            "mrope" if self.keys.sections.is_some() => RopeScaling::None,
            "longrope" | "su" => self.longrope(p, n_pairs)?,
            "yarn" if self.keys.longrope_only => self.longrope(p, n_pairs)?,
            _ if self.keys.longrope_only => return Err(self.unsupported(ty)),
            "linear" => RopeScaling::Linear {
                factor: positive("factor")?,
                original_max_seq_len: max_seq_len,
            },
            "dynamic" if n_pairs < 2 => {
                return Err(p.wrong("rope_type", "one for heads of which two columns turn"));
            }
            "dynamic" => RopeScaling::Dynamic {
                factor: positive("factor")?,
                original_max_seq_len: max_seq_len,
            },
            "llama3" => RopeScaling::Llama3 {
                factor: positive("factor")?,
                low_freq_factor: positive("low_freq_factor")?,
                high_freq_factor: positive("high_freq_factor")?,
                original_max_seq_len: self.original(p)?,
            },
            "yarn" => self.yarn(p)?,
            other => return Err(self.unsupported(other)),
        })
    }

    fn unsupported(&self, ty: &str) -> Error {
        let supported: &[&str] = match self.keys.longrope_only {
            true => &["default", "longrope"],
            false => &["default", "linear", "dynamic", "llama3", "longrope", "yarn"],
        };
        self.s.unsupported_value(format!("rope scaling `{ty}`"), supported)
    }

    fn yarn(&self, p: &HfSettings) -> Result<RopeScaling, Error> {
        let original_max_seq_len = self.original(p)?;
        // A factor of null is the stretch that the two contexts give.
        let factor = match p.is_null("factor") {
            true => self.max_seq_len as f32 / original_max_seq_len as f32,
            false => p.f32("factor")?,
        };
        if !(factor > 0.0 && factor.is_finite()) {
            return Err(p.wrong("factor", "a positive number"));
        }
        let truncate = p.bool_or("truncate", true)?;
        if !truncate && self.keys.layer_type.is_some() {
            // transformers looks for it beside the layer types.
            return Err(self.s.unsupported("`truncate` of one layer type's rotary embedding"));
        }
        let (mscale, all_dim) = (p.opt_f32("mscale")?, p.opt_f32("mscale_all_dim")?);
        let attention_factor = match (p.opt_f32("attention_factor")?, mscale, all_dim) {
            (Some(own), ..) => own,
            (None, Some(m), Some(all)) if m != 0.0 && all != 0.0 => {
                yarn_attention_factor(factor, m) / yarn_attention_factor(factor, all)
            }
            _ => yarn_attention_factor(factor, 1.0),
        };
        // Zero stands for the default.
        let turns = |key: &str, default: f32| {
            let turns = p.opt_f32(key)?.filter(|&x| x != 0.0).unwrap_or(default);
            if turns > 0.0 && turns.is_finite() {
                Ok(turns)
            } else {
                Err(p.wrong(key, "a number of turns"))
            }
        };
        Ok(RopeScaling::Yarn {
            factor,
            attention_factor,
            beta_fast: turns("beta_fast", 32.0)?,
            beta_slow: turns("beta_slow", 1.0)?,
            truncate,
            original_max_seq_len,
        })
    }

    fn longrope(&self, p: &HfSettings, n_pairs: usize) -> Result<RopeScaling, Error> {
        let factors = |key: &str| match p.opt_f32s(key)? {
            Some(list) if list.len() == n_pairs && list.iter().all(|&f| f > 0.0) => Ok(list),
            _ => Err(p.wrong(key, format!("{n_pairs} positive numbers"))),
        };
        let original_max_seq_len = self.original(p)?;
        let attention_factor = match (p.opt_f32("attention_factor")?, p.opt_f32("factor")?) {
            (Some(own), _) => own,
            (None, Some(factor)) if factor > 1.0 => {
                (1.0 + factor.ln() / (original_max_seq_len as f32).ln()).sqrt()
            }
            (None, Some(_)) => 1.0,
            (None, None) => longrope_attention_factor(self.max_seq_len, original_max_seq_len),
        };
        Ok(RopeScaling::LongRope {
            short: factors("short_factor")?,
            long: factors("long_factor")?,
            attention_factor,
            original_max_seq_len,
        })
    }
}
