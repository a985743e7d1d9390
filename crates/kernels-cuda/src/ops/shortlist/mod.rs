//! Shortlists of rows of logits: the best tokens, individually listed tokens, shares and draws.
//!
//! A shortlist suffices to choose a token if the rest of the row cannot matter. It has a few hundred bytes where the
//! row has a megabyte. Logits are compared by their bits, and ties choose lower ids. Shares are integers, which every
//! device computes and adds alike.

mod feed;
mod greedy;
#[cfg(any(test, feature = "tests"))]
pub(super) mod tests;

use std::sync::Arc;

use crate::device::{Argument, Device};
use crate::kernels::Kernels;
use crate::{Buffer, Error, Rows};
use realizar_types::{ShareScale, SharesOf, Shortlist, ShortlistLimits, ShortlistRow};

pub use greedy::{Greedy, NO_TOKEN};

/// Threads of a block, logits that it reads, and logits per maximum that is found first, as in `cuda/shortlist.cu`.
const THREADS: u32 = 256;
const CHUNK: u32 = 4096;
const BLOCK: u32 = 64;
/// The maximum number of best tokens per row.
const MAX_BEST: u32 = 256;
/// Header words of a row's request, without the lists and masks that it refers to.
const HEADER: usize = 12;
/// Words per row for the token that is fed to the next step.
const FED: usize = 1;
/// Stands for an absent row or mask, and is the length of a list of unusable logits.
const NONE: u32 = u32::MAX;

/// Offset and content of a row's list.
#[derive(Debug, Clone, Copy)]
struct ListPlace {
    at: usize,
    n_listed: usize,
    n_best: usize,
    has_shares: bool,
    n_draws: usize,
}

/// Scratch memory of launches. Lists that are computed in order in one stream share it.
#[derive(Debug)]
pub struct ShortlistScratch<D: Device> {
    n_logits: u32,
    max_rows: usize,
    maxima: Buffer<D>,   // [max_rows, n_blocks], keys
    sums: Buffer<D>,     // [max_rows, n_blocks], of 64 bits
    largest: Buffer<D>,  // [max_rows], keys
    counters: Buffer<D>, // [max_rows], zero between launches
}

impl<D: Device> ShortlistScratch<D> {
    /// Bytes for `max_rows` rows of `n_logits`.
    pub fn bytes(n_logits: u32, max_rows: usize) -> u64 {
        max_rows as u64 * (12 * u64::from(n_logits.div_ceil(BLOCK)) + 8)
    }

    /// Allocates scratch for `max_rows` rows of `n_logits`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or any error of the driver.
    pub fn new(
        device: &Arc<D>,
        stream: &D::Stream,
        n_logits: u32,
        max_rows: usize,
    ) -> Result<Self, Error> {
        let what = "what is known of blocks of logits";
        let n_blocks = max_rows * n_logits.div_ceil(BLOCK) as usize;
        Ok(Self {
            n_logits,
            max_rows,
            maxima: Buffer::new(device, what, 4 * n_blocks)?,
            sums: Buffer::new(device, what, 8 * n_blocks)?,
            largest: Buffer::new(device, what, 4 * max_rows)?,
            counters: Buffer::with(device, stream, what, &vec![0u32; max_rows])?,
        })
    }
}

/// The maximum number of words of a row's request.
fn request_words(limits: &ShortlistLimits, n_logits: u32) -> usize {
    let mask = if limits.masks { n_logits.div_ceil(32) as usize } else { 0 };
    HEADER + limits.listed + limits.draws + mask
}

/// The maximum number of words of a row's list.
fn list_words(limits: &ShortlistLimits) -> usize {
    3 + limits.listed + 2 * MAX_BEST as usize + 2 * limits.draws + FED
}

/// Requests and shortlists of a step.
///
/// Rows are [pushed](Self::push), and their requests are [uploaded](Self::upload) in one copy. The lists are computed
/// by [`queue`](Self::queue) and [read](Self::read) in one copy. The queued work depends only on the number of rows and
/// on whether shares are requested, so it can be captured in a graph that is replayed after other uploads. Queued rows
/// that were not pushed are skipped.
#[derive(Debug)]
pub struct Shortlists<D: Device> {
    n_logits: u32,
    limits: ShortlistLimits,
    wants: Buffer<D>,
    lists: Buffer<D>,
    /// Requests: a header for each possible row, then the lists and masks that these refer to.
    words: Vec<u32>,
    /// Location of each pushed row's list.
    places: Vec<ListPlace>,
    end_row: usize,
    n_words: usize,
    /// Number of rows that were fed tokens. The tokens are after the lists.
    n_fed: usize,
    has_shares: bool,
    out: Vec<u32>,
}

impl<D: Device> Shortlists<D> {
    /// The maximum number of best tokens per row.
    pub const MAX_BEST: u32 = MAX_BEST;
    /// The maximum number of listed tokens per row.
    pub const MAX_LISTED: u32 = 1024;
    /// The maximum length of a row, limited by the bits of an index in a selection.
    pub const MAX_LOGITS: u32 = 1 << 24;
    /// The maximum number of draws per row.
    pub const MAX_DRAWS: u32 = 64;
    /// The maximum number of rows of a launch.
    pub const MAX_ROWS: usize = 65535;

    /// Bytes on the device for lists of rows of `n_logits`, without scratch.
    pub fn bytes(n_logits: u32, limits: &ShortlistLimits) -> u64 {
        4 * (limits.rows * (request_words(limits, n_logits) + list_words(limits))) as u64
    }

    /// Bytes on the host.
    pub fn host_bytes(n_logits: u32, limits: &ShortlistLimits) -> u64 {
        Self::bytes(n_logits, limits) + (limits.rows * size_of::<ListPlace>()) as u64
    }

    /// Allocates memory for lists of rows of `n_logits`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    ///
    /// # Panics
    /// If a row is longer than [`Self::MAX_LOGITS`], or the limits exceed those of a row or a launch.
    pub fn new(device: &Arc<D>, n_logits: u32, limits: ShortlistLimits) -> Result<Self, Error> {
        assert!((1..=Self::MAX_LOGITS).contains(&n_logits), "{n_logits} logits");
        assert!(limits.rows <= Self::MAX_ROWS, "{} rows", limits.rows);
        assert!(limits.listed <= Self::MAX_LISTED as usize, "{} listed tokens", limits.listed);
        assert!(limits.draws <= Self::MAX_DRAWS as usize, "{} draws", limits.draws);
        let n_requests = limits.rows * request_words(&limits, n_logits);
        let n_out = limits.rows * list_words(&limits);
        // Offsets are 32-bit numbers.
        assert!(n_requests.max(n_out) < NONE as usize, "lists of {} rows", limits.rows);
        let mut words = Vec::with_capacity(n_requests);
        words.resize(limits.rows * HEADER, NONE);
        Ok(Self {
            n_logits,
            limits,
            wants: Buffer::new(device, "what shortlists are of", 4 * n_requests)?,
            lists: Buffer::new(device, "shortlists", 4 * n_out)?,
            words,
            places: Vec::with_capacity(limits.rows),
            end_row: 0,
            n_words: 0,
            n_fed: 0,
            has_shares: false,
            out: vec![0; n_out],
        })
    }

    /// Removes all rows.
    pub fn clear(&mut self) {
        self.words.truncate(self.limits.rows * HEADER);
        for header in self.words.chunks_mut(HEADER).take(self.places.len()) {
            header[0] = NONE;
        }
        self.places.clear();
        (self.end_row, self.n_words, self.n_fed, self.has_shares) = (0, 0, 0, false);
    }

    /// Adds a request for the list of a row.
    ///
    /// # Panics
    /// If the limits are exceeded, or the request does not conform to [`ShortlistRow`].
    pub fn push(&mut self, of: &ShortlistRow<'_>) {
        let &ShortlistRow { row, n_best, n_tokens, listed, mask, shares } = of;
        let limits = self.limits;
        assert!(self.places.len() < limits.rows, "more than {} rows", limits.rows);
        assert!(row < NONE, "row {row}");
        assert!((1..=Self::MAX_BEST).contains(&n_best), "the best {n_best}");
        assert!(listed.len() <= limits.listed, "{} listed tokens", listed.len());
        assert!(listed.is_sorted_by(|a, b| a < b), "listed tokens are in ascending order");
        assert!(listed.last().is_none_or(|&id| id < self.n_logits), "a listed token is one");
        assert!(mask.is_none() || limits.masks, "a mask");
        let mut n_tokens = n_tokens.min(self.n_logits);
        let listed_at = self.words.len() as u32;
        self.words.extend_from_slice(listed);
        let mut mask_at = NONE;
        if let Some(mask) = mask {
            let n_words = mask.len().min(n_tokens.div_ceil(32) as usize);
            n_tokens = n_tokens.min(32 * n_words as u32);
            mask_at = self.words.len() as u32;
            self.words.extend_from_slice(&mask[..n_words]);
        }
        let has_shares = shares.is_some();
        let shares =
            shares.unwrap_or(SharesOf { scale: ShareScale { factor: 0, range: 0 }, draws: &[] });
        let SharesOf { scale: ShareScale { factor, range }, draws } = shares;
        assert!(!has_shares || factor >> 31 == 1, "a factor of {factor}");
        assert!((-90..=133).contains(&range), "a range of 2^{range}");
        assert!(draws.len() <= limits.draws, "{} draws", draws.len());
        let draws_at = self.words.len() as u32;
        self.words.extend_from_slice(draws);
        let at = self.n_words;
        let place = ListPlace {
            at,
            n_listed: listed.len(),
            n_best: n_best as usize,
            has_shares,
            n_draws: draws.len(),
        };
        let header = &mut self.words[self.places.len() * HEADER..][..HEADER];
        header[..4].copy_from_slice(&[row, n_best, n_tokens, mask_at]);
        header[4..8].copy_from_slice(&[listed_at, place.n_listed as u32, at as u32, factor]);
        header[8..].copy_from_slice(&[range.cast_unsigned(), draws_at, place.n_draws as u32, 0]);
        self.end_row = self.end_row.max(row as usize + 1);
        self.n_words += 1 + place.n_listed + 2 * place.n_best;
        self.n_words += if has_shares { 2 + 2 * place.n_draws } else { 0 };
        self.has_shares |= has_shares;
        self.places.push(place);
    }

    /// Number of pushed rows.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether no rows were pushed.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether any request includes shares.
    pub fn has_shares(&self) -> bool {
        self.has_shares
    }

    /// Bytes of all lists, which [`read`](Self::read) copies to the host.
    pub fn n_bytes(&self) -> u64 {
        4 * self.n_words as u64
    }

    /// Queues the upload of the requests. If the lists that were queued before have been read, the upload may be in
    /// another stream than the lists, so as not to wait for the step that computes the logits.
    ///
    /// # Errors
    /// Any error of the driver.
    pub fn upload(&self, stream: &D::Stream) -> Result<(), Error> {
        self.wants.write(stream, 0, &self.words)
    }

    /// Queues the computation of the lists of the first `n_rows` rows, in one launch, or two `with_shares`. The logits
    /// of listed tokens are set to minus infinity. The requests must have been [uploaded](Self::upload) before.
    ///
    /// # Errors
    /// Any error of the driver.
    ///
    /// # Panics
    /// If shapes or devices do not match, the rows exceed the limits, or a pushed row is not one of `logits`, is not
    /// among the first `n_rows`, or requests shares without `with_shares`.
    pub fn queue(
        &self,
        kernels: &Kernels<D>,
        stream: &D::Stream,
        logits: Rows<'_, D>, // [n, n_logits]
        scratch: &ShortlistScratch<D>,
        n_rows: usize,
        with_shares: bool,
    ) -> Result<(), Error> {
        let limits = self.limits;
        assert!((1..=limits.rows).contains(&n_rows), "{n_rows} rows, room for {}", limits.rows);
        assert!(n_rows <= scratch.max_rows, "{n_rows} rows, room for {}", scratch.max_rows);
        assert!(self.places.len() <= n_rows, "{} rows were pushed", self.places.len());
        assert!(with_shares || !self.has_shares, "shares are wanted");
        assert!(self.end_row <= logits.n_rows(), "{} rows of logits", logits.n_rows());
        assert_eq!(scratch.n_logits, self.n_logits, "logits of the scratch");
        logits.check(kernels, "logits", logits.n_rows(), self.n_logits as usize);
        kernels.check("the lists", &self.lists, 0);
        kernels.check("the scratch", &scratch.maxima, 0);
        let at = |buffer: &Buffer<D>| Argument::Address(buffer.address());
        let ShortlistScratch { maxima, sums, largest, counters, .. } = scratch;
        let [wants, lists] = [&self.wants, &self.lists].map(at);
        let [maxima, sums, largest, counters] = [maxima, sums, largest, counters].map(at);
        let (values, stride) = (logits.address(), logits.stride());
        let n_logits = Argument::I32(self.n_logits as i32);
        let grid = [self.n_logits.div_ceil(CHUNK), n_rows as u32, 1];
        let functions = &kernels.shortlist;
        let arguments = [wants, values, stride, n_logits, maxima, largest, counters, lists];
        // SAFETY: the arguments are those of `shortlist_select` in order. Rows, lists and requests lie inside their
        // buffers, as was asserted when they were pushed and above; headers of rows that were not pushed say so. The
        // scratch has room for the rows. As `matvec` says, buffers outlive queued work.
        unsafe { kernels.launch(stream, &functions.select, grid, [THREADS, 1], &arguments) }?;
        if !with_shares {
            return Ok(());
        }
        let arguments = [wants, values, stride, n_logits, largest, sums, counters, lists];
        // SAFETY: as above, for `shortlist_weigh`.
        unsafe { kernels.launch(stream, &functions.weigh, grid, [THREADS, 1], &arguments) }
    }

    /// Waits for the lists of all pushed rows.
    ///
    /// # Errors
    /// Any error of the driver, including that of earlier work.
    pub fn read(&mut self, stream: &D::Stream) -> Result<(), Error> {
        if self.is_empty() {
            return Ok(());
        }
        self.lists.read(stream, 0, &mut self.out[..self.n_words + self.n_fed])
    }

    /// The list of pushed row `idx`, after [`read`](Self::read).
    ///
    /// # Panics
    /// If there is no such row.
    pub fn list(&self, idx: usize) -> Shortlist<'_> {
        let ListPlace { at, n_listed, n_best, has_shares, n_draws } = self.places[idx];
        let (listed, rest) = self.out[at + 1..].split_at(n_listed);
        let (best, rest) = rest.split_at(2 * n_best);
        let best = match self.out[at] {
            NONE => None,
            n => Some(&best.as_chunks().0[..n as usize]),
        };
        if !has_shares {
            return Shortlist { listed, best, total: None, drawn: &[] };
        }
        let total = u64::from(rest[0]) | u64::from(rest[1]) << 32;
        let n_drawn = if total == 0 { 0 } else { n_draws };
        let drawn = rest[2..][..2 * n_drawn].as_chunks().0;
        Shortlist { listed, best, total: Some(total), drawn }
    }
}
