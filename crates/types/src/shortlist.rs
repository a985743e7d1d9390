//! Shortlists: the few logits of a row that a token can be sampled from, selected on the device.
//!
//! A shortlist has the row's best tokens, tokens that the host asks for by id, and, if requested, the softmax
//! denominator of the whole row and draws from it. Weights of tokens are integers ("shares"), so that every device
//! adds them up to the same bits. The host samples from a shortlist with the same result as from the whole row.

/// The scale of shares. The share of a token is `2^39 e^((logit - max) * scale)` as an integer of 64 bits, where
/// `max` is the largest logit that the mask allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShareScale {
    /// `scale * log2(e)` as a fraction of a power of two, in units of 2^-32. The highest bit is set.
    pub factor: u32,
    /// The exponent of 64 / scale, from -90 to 133. Logits that are further than 2^range below the largest have
    /// no share.
    pub range: i32,
}

impl ShareScale {
    /// The shares of a softmax of `logit * scale`; `scale` is positive, the inverse of a temperature.
    pub fn new(scale: f32) -> Self {
        let by_two = f64::from(scale) * std::f64::consts::LOG2_E;
        // by_two = fraction * 2^exponent with a fraction from 1/2 to below 1.
        let bits = by_two.to_bits();
        let exponent = (bits >> 52) as i32 - 1022;
        let fraction = ((bits & ((1 << 52) - 1)) | (1 << 52)) >> 21;
        // Further up, any other logit than the largest has no share.
        Self { factor: fraction as u32, range: (6 - exponent).max(-90) }
    }
}

/// A request for the sum of all shares of a row, and for draws from them.
#[derive(Debug, Clone, Copy)]
pub struct SharesOf<'a> {
    /// The scale.
    pub scale: ShareScale,
    /// Positions in the cumulative sum of the shares of the tokens that the mask allows, in token order, as
    /// fractions of the sum in units of 2^-32. The token at each position is returned.
    pub draws: &'a [u32],
}

/// A request for the shortlist of one row of logits.
#[derive(Debug, Clone, Copy)]
pub struct ShortlistRow<'a> {
    /// The row.
    pub row: u32,
    /// The number of best tokens, at least 1.
    pub n_best: u32,
    /// The vocabulary size; logits after it are padding.
    pub n_tokens: u32,
    /// Tokens whose logits are returned separately and that the best do not include, in ascending order. A row
    /// with listed tokens is requested once per launch.
    pub listed: &'a [u32],
    /// One bit for each token that may be among the best, 32 to a word from the lowest bit on. Tokens after its
    /// end may not be; without a mask all may.
    pub mask: Option<&'a [u32]>, // [ceil(n_tokens / 32)]
    /// The sum of the shares of all tokens that the mask allows, and draws from them.
    pub shares: Option<SharesOf<'a>>,
}

/// The shortlist of one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortlist<'a> {
    /// The bits of the logits of the listed tokens, in their order.
    pub listed: &'a [u32],
    /// The best tokens and the bits of their logits: as many as were requested, or all that the mask allows and
    /// that are above minus infinity. CUDA sorts them, best first and of equal ones the lower ids; other devices
    /// return them in any order. `None` if a logit is NaN or plus infinity.
    pub best: Option<&'a [[u32; 2]]>,
    /// The sum of the shares, where it was requested; zero where `best` is `None`.
    pub total: Option<u64>,
    /// The drawn tokens and the bits of their logits; empty where the sum is zero.
    pub drawn: &'a [[u32; 2]],
}

/// The largest shortlists of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortlistLimits {
    /// Rows.
    pub rows: usize,
    /// Listed tokens of a row.
    pub listed: usize,
    /// Draws of a row.
    pub draws: usize,
    /// Whether a row may have a mask.
    pub masks: bool,
}

/// The rule by which a device takes the next token from a shortlist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextToken {
    /// The best token.
    Best,
    /// The token of the first draw.
    Drawn,
    /// A draw from the best tokens that filters keep.
    OfBest(DrawOfBest),
}

/// A draw from the best tokens by their shares, after top-p and min-p.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrawOfBest {
    /// The scale of the shares.
    pub scale: ShareScale,
    /// Top-p: keeps the fewest best tokens whose shares reach this fraction of the sum, in units of 2^-32. `None`
    /// keeps all.
    pub top_p: Option<u32>,
    /// Whether top-p is a fraction of the sum over the whole row, which was then requested, or over the best tokens.
    pub of_row: bool,
    /// Min-p: keeps tokens whose share reaches this fraction of the best token's, in units of 2^-32.
    pub min_p: u32,
    /// The position of the draw among the kept tokens, as a fraction of the sum of their shares in units of 2^-32.
    pub draw: u32,
    /// Whether the kept tokens are added up by ascending id, or from the best one down.
    pub by_id: bool,
}
