//! How long the sequences of a model may be and the pages of keys and values that it gets: what the options ask for, or
//! by default what its sequences can use within the memory that its devices have left.

use crate::Error;
use crate::run::options::{LoadOptions, part_options};
use crate::run::placement::{PlacedPart, ToLoad};
use realizar_backends::DeviceFault;
use realizar_backends::{Arithmetic, FreeMemory, MemoryUse};
use realizar_base::ByteSize;
use realizar_kvcache::{GroupSpec, KvLayout, PAGE_LEN};
use realizar_model::graph::plan::{Plan, RowLimits, plan};
use realizar_quant::BlockType;

/// Where no context is requested, the key-value cache has room for this many tokens of each sequence, or for one whole
/// context where that is more.
pub const POOL_SEQ_LEN: usize = 8192;

/// A default context is never made shorter than this: what does not fit is an error that says so.
const MIN_CONTEXT: usize = 2048;

/// A default cache takes one of this many equal parts of the memory that weights and workspace leave: a GPU's cache is
/// allocated at load, and another model must find room.
const DEFAULT_SHARE: usize = 2;

/// The capacity of a model's key-value cache.
#[derive(Debug)]
pub(super) struct KvRoom {
    /// The maximum number of tokens of a sequence.
    pub(super) max_seq_len: usize,
    /// The maximum number of pages of a group, if not all that the sequences can use fit.
    pub(super) most_pages: Option<usize>,
    /// Warnings of what the free memory made smaller, and how to change that.
    pub(super) notes: Vec<String>,
}

/// Pages of a group: `of_len` pages for a sequence of so many tokens, for all sequences together.
fn wanted_pages(
    options: &LoadOptions,
    max_seq_len: usize,
    of_len: impl Fn(usize) -> usize,
) -> usize {
    match options.max_seq_len {
        Some(_) => of_len(max_seq_len).saturating_mul(options.max_seqs),
        None => {
            let of_seqs = of_len(max_seq_len.min(POOL_SEQ_LEN)).saturating_mul(options.max_seqs);
            of_len(max_seq_len).max(of_seqs)
        }
    }
}

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
        let of_len = |len: usize| match options.prefix_cache {
            true => len.div_ceil(PAGE_LEN),
            false => layout.pages_for(len, max_step),
        };
        let n_pages = match options.kv_tokens {
            Some(n) => n.div_ceil(PAGE_LEN),
            None => {
                let wanted = wanted_pages(options, max_seq_len, of_len);
                wanted.min(most_pages.unwrap_or(usize::MAX))
            }
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
    limits: RowLimits,
}

impl Fit<'_> {
    fn needed(
        &self,
        part: &Part<'_>,
        (max_seq_len, n_pages): (usize, usize),
    ) -> Result<Vec<MemoryUse>, Error> {
        let (backend, PlacedPart { graph, .. }, weights) = part.to_load;
        let options = part_options(graph, self.options, max_seq_len, self.limits, Some(n_pages))?;
        Ok(backend.memory_of_ranks(&part.plan, weights, &options))
    }

    /// Whether a part fits with sequences and pages of these sizes, where keys and values get one of `share` parts of
    /// what weights and workspace leave.
    fn fits(&self, part: &Part<'_>, sizes: (usize, usize), share: usize) -> Result<bool, Error> {
        let room = part.free.bytes.saturating_sub(part.free.reserve);
        let is_in = |needed: &MemoryUse| {
            let beside = needed.weights.saturating_add(needed.scratch);
            beside.saturating_add(needed.kv.saturating_mul(share)) <= room
        };
        Ok(self.needed(part, sizes)?.iter().all(is_in))
    }

    /// The largest number from `fewest`, which fits, to `most` that fits.
    fn most(
        fewest: usize,
        most: usize,
        fits: impl Fn(usize) -> Result<bool, Error>,
    ) -> Result<usize, Error> {
        let (mut within, mut beyond) = (fewest, most.saturating_add(1));
        while beyond - within > 1 {
            let middle = within.midpoint(beyond);
            if fits(middle)? {
                within = middle;
            } else {
                beyond = middle;
            }
        }
        Ok(within)
    }

    /// The maximum number of pages up to `most` if one sequence may hold all of them, from `fewest`, which fit.
    fn most_of_one(
        &self,
        part: &Part<'_>,
        (fewest, most): (usize, usize),
        share: usize,
    ) -> Result<usize, Error> {
        Self::most(fewest, most, |n| self.fits(part, (n.saturating_mul(PAGE_LEN), n), share))
    }

    /// The tokens of the longest sequence up to `max_seq_len` that fits if nothing else is to find room.
    fn longest(&self, part: &Part<'_>, max_seq_len: usize) -> Result<usize, Error> {
        let whole = max_seq_len.div_ceil(PAGE_LEN);
        Ok(match self.fits(part, (max_seq_len, 0), 1)? {
            true => {
                let n = Self::most(0, whole, |n| self.fits(part, (max_seq_len, n), 1))?;
                n * PAGE_LEN
            }
            false => 0,
        })
    }

    /// The error of a device on which one context does not fit.
    fn refusal(&self, part: &Part<'_>, context: usize, longest: usize) -> Result<Error, Error> {
        let backend = part.to_load.0;
        let FreeMemory { bytes, reserve, .. } = part.free;
        let needed = self.needed(part, (context, context.div_ceil(PAGE_LEN)))?;
        let needed = needed.into_iter().max_by_key(MemoryUse::total).unwrap_or_default();
        let beside = ByteSize::from(needed.weights.saturating_add(needed.scratch));
        let kv = ByteSize::from(needed.kv);
        let (free, reserve) = (ByteSize::from(bytes), ByteSize::from(reserve));
        let advice = match longest {
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
        Ok(realizar_backends::Error::Device { device, fault, reason }.into())
    }

    /// The maximum number of pages from one context of `max_seq_len` tokens to `most` with which a part fits.
    fn requested(&self, part: &Part<'_>, max_seq_len: usize, most: usize) -> Result<usize, Error> {
        let whole = max_seq_len.div_ceil(PAGE_LEN);
        let fits = |n: usize| self.fits(part, (max_seq_len, n), 1);
        match fits(whole)? {
            true => Self::most(whole, most, fits),
            false if part.free.is_exact => {
                let longest = self.longest(part, max_seq_len)?;
                Err(self.refusal(part, max_seq_len, longest)?)
            }
            false => Ok(whole),
        }
    }

    /// The default context of a part, at most `max_seq_len` tokens, and its pages, at most `most`.
    ///
    /// Half of what is free beside weights and workspace goes to keys and values. A context of up to
    /// [`POOL_SEQ_LEN`] may take all of it, and is the least where what is free is only estimated.
    fn default_of(
        &self,
        part: &Part<'_>,
        max_seq_len: usize,
        most: usize,
    ) -> Result<(usize, usize), Error> {
        let whole = max_seq_len.div_ceil(PAGE_LEN);
        if self.fits(part, (max_seq_len, whole), DEFAULT_SHARE)? {
            let fits = |n: usize| self.fits(part, (max_seq_len, n), DEFAULT_SHARE);
            return Ok((max_seq_len, Self::most(whole, most, fits)?));
        }
        let usual = max_seq_len.min(POOL_SEQ_LEN);
        let of_usual = usual.div_ceil(PAGE_LEN);
        if self.fits(part, (usual, of_usual), DEFAULT_SHARE)? {
            let n = self.most_of_one(part, (of_usual, whole), DEFAULT_SHARE)?;
            return Ok((max_seq_len.min(n * PAGE_LEN), n));
        }
        if !part.free.is_exact || self.fits(part, (usual, of_usual), 1)? {
            return Ok((usual, of_usual));
        }
        match self.longest(part, usual)? {
            n if n >= MIN_CONTEXT => Ok((n, n / PAGE_LEN)),
            n => Err(self.refusal(part, usual, n)?),
        }
    }
}

/// The context of a model of at most `max_seq_len` tokens, and the pages of its groups.
///
/// # Errors
/// [`Device`](realizar_backends::Error::Device) if not one context fits a device that reports its free memory exactly.
pub(super) fn kv_room(
    to_load: &[ToLoad<'_>],
    options: &LoadOptions,
    max_seq_len: usize,
    limits: RowLimits,
) -> Result<KvRoom, Error> {
    let mut room = KvRoom { max_seq_len, most_pages: None, notes: Vec::new() };
    if options.kv_tokens.is_some() {
        return Ok(room);
    }
    let of_len = |len: usize| len.div_ceil(PAGE_LEN);
    let wanted = wanted_pages(options, max_seq_len, of_len);
    let fit = Fit { options, limits };
    let mut most = wanted;
    for to_load in to_load {
        let Some(free) = to_load.0.free_memory() else { continue };
        let part = Part { to_load, plan: plan(&to_load.1.graph, limits), free };
        let (context, n_pages) = match options.max_seq_len {
            Some(_) => (room.max_seq_len, fit.requested(&part, room.max_seq_len, most)?),
            None => fit.default_of(&part, room.max_seq_len, most)?,
        };
        let (free, device) = (ByteSize::from(free.bytes), to_load.0.name());
        if context < room.max_seq_len {
            room.notes.push(format!(
                "the context is {context} of the model's {max_seq_len} tokens: {free} of memory \
                 are free on {device}; see --ctx and --kv-type"
            ));
        } else if n_pages < most {
            let (tokens, wanted, n_seqs) =
                (n_pages * PAGE_LEN, wanted * PAGE_LEN, options.max_seqs);
            room.notes.push(format!(
                "the key-value cache has room for {tokens} tokens instead of {wanted} for \
                 {n_seqs} sequences: {free} of memory are free on {device}; see --kv-tokens, \
                 --ctx, --parallel and --kv-type"
            ));
        }
        (room.max_seq_len, most) = (context, n_pages);
    }
    room.most_pages = (most < wanted).then_some(most);
    Ok(room)
}
