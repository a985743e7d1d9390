//! The vocabulary that the graph, the kernels of every device and the samplers share.
//!
//! These are plain values without behaviour: each kernels crate computes them in its own way, and none needs a
//! mapping to another's names. Shapes and formulas are stated here once.
//!
//! | types | used by |
//! |---|---|
//! | [`Activation`], [`NormKind`], [`RopeStyle`] | dense layers |
//! | [`Phase`] | the arithmetic of a row |
//! | [`Scoring`], [`Groups`] | routing of mixture-of-experts layers |
//! | [`ShortlistRow`], [`Shortlist`], [`ShareScale`], [`NextToken`] | sampling on a device |
//!
//! ```
//! use realizar_types::{Activation, ShareScale};
//!
//! assert_eq!(Activation::ALL.len(), 9);
//! // Softmax at temperature 1: the scale is log2(e) = 0.72135 * 2^1.
//! let scale = ShareScale::new(1.0);
//! assert_eq!((scale.factor, scale.range), (3_098_164_009, 5));
//! ```
#![forbid(unsafe_code)]

mod activation;
mod experts;
mod norm;
mod phase;
mod rope;
mod shortlist;

pub use activation::Activation;
pub use experts::{Groups, Scoring};
pub use norm::NormKind;
pub use phase::Phase;
pub use rope::RopeStyle;
pub use shortlist::{
    DrawOfBest, NextToken, ShareScale, SharesOf, Shortlist, ShortlistLimits, ShortlistRow,
};
