//! Log-probabilities of tokens under the model's own distribution, before any sampling step.

use super::scan::{Blocks, Weight, best_first, weight_of_shares};
use realizar_types::ShareScale;

/// The logarithm of the softmax over one row of logits. Exponentials are integers, whose sum is
/// exact, so it has the same bits wherever it was added up.
#[derive(Clone, Copy, Debug)]
pub struct LogSoftmax {
    log_sum: f64,
}

impl LogSoftmax {
    /// Reads a row of logits, `[vocab_size]`.
    pub fn new(logits: &[f32]) -> Self {
        Self::with_top_k(logits, 0).0
    }

    /// Reads a row of logits and finds its [`top_k`].
    pub fn with_top_k(logits: &[f32], k: usize) -> (Self, Vec<(u32, f32)>) {
        let mut room = TopK::default();
        let (softmax, top) = room.select(logits, k);
        (softmax, top.collect())
    }

    /// Of a row whose largest logit is `max` and whose shares beside it are `total` together.
    pub fn of_shares(max: f32, total: u64) -> Self {
        Self { log_sum: f64::from(max) + weight_of_shares(total).ln() }
    }

    /// What a device has to know to add up the shares of a row.
    pub fn share_scale() -> ShareScale {
        Weight::new(0.0, 1.0).share_scale()
    }

    /// The log-probability of the token with this logit in the row.
    pub fn of(&self, logit: f32) -> f32 {
        (f64::from(logit) - self.log_sum) as f32
    }
}

/// Room to find the most likely tokens of a row. One value serves many rows, so that none
/// allocates once the room has grown.
#[derive(Debug, Default)]
pub struct TopK {
    blocks: Blocks,
    kept: Vec<(f32, u32)>,
}

impl TopK {
    /// The distribution of a row of logits, `[vocab_size]`, and its [`top_k`].
    pub fn select(
        &mut self,
        logits: &[f32],
        k: usize,
    ) -> (LogSoftmax, impl ExactSizeIterator<Item = (u32, f32)>) {
        let Self { blocks, kept } = self;
        kept.clear();
        let softmax = match blocks.read(logits) {
            Ok(Some((_, max))) => {
                let total = blocks.total(logits, Weight::new(max, 1.0));
                blocks.top_k(logits, k, kept);
                LogSoftmax::of_shares(max, total)
            }
            Ok(None) => LogSoftmax { log_sum: 0.0 },
            // No probability is a number.
            Err(_) => LogSoftmax { log_sum: f64::NAN },
        };
        (softmax, kept.iter().map(move |&(logit, id)| (id, softmax.of(logit))))
    }
}

impl TopK {
    /// As [`Self::select`], from the best tokens that a device found, at least `k` or all above minus infinity, and
    /// the row's `total` of shares; `None` without any token.
    pub fn of_best(
        &mut self,
        best: impl Iterator<Item = (u32, f32)>,
        total: u64,
        k: usize,
    ) -> Option<(LogSoftmax, impl ExactSizeIterator<Item = (u32, f32)>)> {
        let Self { kept, .. } = self;
        kept.clear();
        kept.extend(best.map(|(id, logit)| (logit, id)));
        kept.sort_unstable_by(best_first);
        let softmax = LogSoftmax::of_shares(kept.first()?.0, total);
        kept.truncate(k);
        Some((softmax, kept.iter().map(move |&(logit, id)| (id, softmax.of(logit)))))
    }
}

/// The `k` most likely tokens with their log-probabilities, best first, lower ids first among
/// equals. Fewer if the vocabulary is smaller or logits are minus infinity.
pub fn top_k(logits: &[f32] /* [vocab_size] */, k: usize) -> Vec<(u32, f32)> {
    LogSoftmax::with_top_k(logits, k).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_probabilities_of_known_distributions() {
        let check = |logits: &[f32], k, want: &[(u32, f64)]| {
            let got = top_k(logits, k);
            assert_eq!(got.len(), want.len());
            for ((id, logprob), (want_id, prob)) in got.into_iter().zip(want) {
                assert_eq!(id, *want_id);
                assert!((f64::from(logprob) - prob.ln()).abs() < 1e-6, "{logprob} for {prob}");
            }
        };
        check(&[0.0, 0.0], 5, &[(0, 0.5), (1, 0.5)]);
        check(&[1000.0, f32::NEG_INFINITY, 1000.0], 3, &[(0, 0.5), (2, 0.5)]);
        check(&[0.0, 3.0_f32.ln()], 3, &[(1, 0.75), (0, 0.25)]);
        check(&[1.0, 2.0], 0, &[]);
        let logits: Vec<f32> = [0.1_f32, 0.2, 0.7].iter().map(|p| p.ln() + 5.0).collect();
        check(&logits, 2, &[(2, 0.7), (1, 0.2)]);
        let softmax = LogSoftmax::new(&logits);
        assert!((softmax.of(logits[0]) - 0.1_f32.ln()).abs() < 1e-6);
    }
}
