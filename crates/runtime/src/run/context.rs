//! How long a context is: what the model was made for, what its rotary embedding can be stretched to, and
//! what the options ask for.

use super::LoadOptions;
use crate::Error;
use realizar_model::architectures::config::{Config, MAX_POSITIONS};
use realizar_model::architectures::rope::{Rope, RopeStretch};

/// A default context is at most this long, whatever a file states: block tables are sized by the context. The longest
/// one of a published model is 10,485,760 (Llama 4 Scout).
const MAX_DEFAULT_CONTEXT: usize = 1 << 24;

/// The context of a model for which none is requested, where there is memory for it: the one that it was made for. With
/// LongRoPE and dynamic NTK the one before it was stretched, as a longer one changes the angles of every position.
pub fn default_context(config: &Config) -> usize {
    let unscaled = config.ropes.first().and_then(Rope::unscaled_context);
    config.max_seq_len.min(unscaled.unwrap_or(usize::MAX)).min(MAX_DEFAULT_CONTEXT)
}

/// Stretches a model's rotary embedding and its context.
pub(super) fn stretch_context(config: &mut Config, stretch: RopeStretch) -> Result<(), Error> {
    let refuse = |reason: String| Err(Error::Option { option: "rope-scaling", reason });
    let factor = stretch.factor();
    if !(factor > 1.0 && factor <= 1024.0) {
        return refuse(format!("the factor must be above 1 and at most 1024, not {factor}"));
    }
    let Some(rope) = config.ropes.first_mut() else {
        return refuse("the model has no rotary embedding".to_owned());
    };
    match rope.stretched(stretch, config.max_seq_len) {
        Some(stretched) => *rope = stretched,
        None if rope.rotary_dim == 0 => {
            return refuse("the model has no rotary embedding".to_owned());
        }
        None => return refuse("the model's rotary embedding is already scaled".to_owned()),
    }
    config.max_seq_len = (config.max_seq_len as f64 * f64::from(factor)) as usize;
    Ok(())
}

/// The context that the options and the model agree on; the default one may become shorter where memory is short.
pub(super) fn context(config: &Config, options: &LoadOptions) -> Result<usize, Error> {
    let refuse = |reason: String| Err(Error::Option { option: "ctx", reason });
    let rope = config.ropes.first();
    let stretched = rope.and_then(Rope::stretched_context).unwrap_or(0).min(MAX_POSITIONS);
    let longest = config.max_seq_len.max(stretched);
    match options.max_seq_len {
        None => Ok(default_context(config)),
        Some(0) => refuse("must be at least 1".to_owned()),
        Some(n) if n > longest => {
            let can_stretch = rope
                .is_some_and(|rope| rope.stretched(RopeStretch::Linear(2.0), longest).is_some());
            let advice = match can_stretch {
                true => "; RoPE scaling can extend it",
                false => "",
            };
            refuse(format!("{n} exceeds the model's context of {longest} tokens{advice}"))
        }
        Some(n) => Ok(n),
    }
}
