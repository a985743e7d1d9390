//! The pages of keys and values that a model gets: as many as its sequences can use, or as many as fit into the memory
//! that its devices have left.

use crate::Error;
use crate::backend::{Arithmetic, ExecutableOptions, FreeMemory, MemoryUse};
use crate::base::ByteSize;
use crate::error::DeviceFault;
use crate::graph::plan::{Plan, RowLimits, plan};
use crate::run::options::{LoadOptions, part_options};
use crate::run::placement::ToLoad;
use realizar_kvcache::{GroupSpec, KvLayout, PAGE_LEN};
use realizar_quant::BlockType;

/// Of each key-value group, its layout and its pages: at most `most_pages`, unless the options say how many tokens
/// there is to be room for.
pub(super) fn kv_pools(
    groups: &[GroupSpec],
    options: &LoadOptions,
    max_seq_len: usize,
    max_step: usize,
    most_pages: Option<usize>,
) -> Result<Vec<(KvLayout, usize)>, Error> {
    let ty = options.kv_type.unwrap_or(match options.arithmetic {
        Arithmetic::Auto => BlockType::F16,
        Arithmetic::F32 => BlockType::F32,
    });
    let pool = |spec: &GroupSpec| {
        let layout = KvLayout::new(ty, spec.clone())?;
        // Of a window, prefixes keep pages that their sequences have passed.
        let per_seq = match options.prefix_cache {
            true => max_seq_len.div_ceil(PAGE_LEN),
            false => layout.pages_for(max_seq_len, max_step),
        };
        let wanted = per_seq.saturating_mul(options.max_seqs);
        let n_pages = match options.kv_tokens {
            Some(n) => n.div_ceil(PAGE_LEN),
            None => wanted.min(most_pages.unwrap_or(usize::MAX)),
        };
        Ok((layout, n_pages))
    };
    groups.iter().map(pool).collect()
}

/// A part of a model on a device whose free memory is known.
struct Part<'a> {
    to_load: &'a ToLoad<'a>,
    plan: Plan,
    free: FreeMemory,
}

/// What the pages of all parts are fitted to.
struct Fit<'a> {
    options: &'a LoadOptions,
    max_seq_len: usize,
    limits: RowLimits,
}

impl Fit<'_> {
    fn options_of(&self, part: &Part<'_>, n_pages: usize) -> Result<ExecutableOptions, Error> {
        let graph = &part.to_load.1.graph;
        part_options(graph, self.options, self.max_seq_len, self.limits, Some(n_pages))
    }

    /// Whether a part fits with this many pages.
    fn fits(&self, part: &Part<'_>, n_pages: usize) -> Result<bool, Error> {
        let (backend, _, weights) = part.to_load;
        let options = self.options_of(part, n_pages)?;
        let of_ranks = backend.memory_of_ranks(&part.plan, weights, &options);
        let most = of_ranks.iter().map(MemoryUse::total).max().unwrap_or(0);
        Ok(most <= part.free.bytes.saturating_sub(part.free.reserve))
    }

    /// The maximum number of pages, from `fewest`, which fit, to `most`, with which a part fits.
    fn most(&self, part: &Part<'_>, fewest: usize, most: usize) -> Result<usize, Error> {
        let (mut fits, mut beyond) = (fewest, most.saturating_add(1));
        while beyond - fits > 1 {
            let middle = fits.midpoint(beyond);
            if self.fits(part, middle)? {
                fits = middle;
            } else {
                beyond = middle;
            }
        }
        Ok(fits)
    }

    /// The error of a device on which one context does not fit.
    fn refusal(&self, part: &Part<'_>, whole: usize) -> Result<Error, Error> {
        let (backend, _, weights) = part.to_load;
        let FreeMemory { bytes, reserve, .. } = part.free;
        let tokens = match self.fits(part, 0)? {
            true => self.most(part, 0, whole)? * PAGE_LEN,
            false => 0,
        };
        let options = self.options_of(part, whole)?;
        let of_ranks = backend.memory_of_ranks(&part.plan, weights, &options);
        let needed = of_ranks.into_iter().max_by_key(MemoryUse::total).unwrap_or_default();
        let beside = ByteSize::from(needed.weights.saturating_add(needed.scratch));
        let (context, kv) = (self.max_seq_len, ByteSize::from(needed.kv));
        let (free, reserve) = (ByteSize::from(bytes), ByteSize::from(reserve));
        let advice = match tokens {
            0 => "not a single token fits: use fewer layers on this device (--gpu-layers) or a \
                  smaller model"
                .to_owned(),
            n => format!("{n} tokens fit: use --ctx {n}, or --kv-type q8_0 or q4_0 to fit more"),
        };
        let reason = format!(
            "a context of {context} tokens takes {kv} for keys and values on top of {beside} for \
             weights and workspace; {free} are free, of which {reserve} are kept in reserve; \
             {advice}"
        );
        let (device, fault) = (backend.name(), DeviceFault::OutOfMemory);
        Ok(Error::Device { device, fault, reason })
    }
}

/// The maximum number of pages of a group, if all that the sequences can use do not fit; never fewer than one context takes.
///
/// # Errors
/// [`Error::Device`] if not one context fits a device that reports its free memory exactly.
pub(super) fn most_pages(
    to_load: &[ToLoad<'_>],
    options: &LoadOptions,
    max_seq_len: usize,
    limits: RowLimits,
) -> Result<Option<usize>, Error> {
    if options.kv_tokens.is_some() {
        return Ok(None);
    }
    let whole = max_seq_len.div_ceil(PAGE_LEN);
    let wanted = whole.saturating_mul(options.max_seqs);
    let fit = Fit { options, max_seq_len, limits };
    let mut most = wanted;
    for to_load in to_load {
        let Some(free) = to_load.0.free_memory() else { continue };
        let part = Part { to_load, plan: plan(&to_load.1.graph, limits), free };
        if fit.fits(&part, most)? {
            continue;
        }
        most = match fit.fits(&part, whole)? {
            true => fit.most(&part, whole, most)?,
            false if free.is_exact => return Err(fit.refusal(&part, whole)?),
            false => whole,
        };
        let (tokens, free, device) =
            (most * PAGE_LEN, ByteSize::from(free.bytes), to_load.0.name());
        tracing::warn!(
            "the key-value cache has room for {tokens} of the {} tokens that {} sequences of \
             {max_seq_len} can use: {free} of memory are free on {device}; see --kv-tokens, --ctx, \
             --parallel and --kv-type",
            wanted * PAGE_LEN,
            options.max_seqs,
        );
    }
    Ok((most < wanted).then_some(most))
}
