//! Log-probabilities of tokens under the model's own distribution, before any sampling step.

use super::scan::{Blocks, Weight};

/// The logarithm of the softmax over one row of logits. Exponentials are taken in `f32`, and sums
/// of 64 of them are added in `f64`.
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
        let mut blocks = Blocks::default();
        let max = match blocks.read(logits) {
            Ok(Some((_, max))) => max,
            Ok(None) => return (Self { log_sum: 0.0 }, Vec::new()),
            // No probability is a number.
            Err(_) => return (Self { log_sum: f64::NAN }, Vec::new()),
        };
        let sum = blocks.sum(logits, Weight::new(max, 1.0));
        let softmax = Self { log_sum: f64::from(max) + sum.ln() };
        let mut kept = Vec::new();
        blocks.top_k(logits, k, &mut kept);
        (softmax, kept.into_iter().map(|(logit, id)| (id, softmax.of(logit))).collect())
    }

    /// The log-probability of the token with this logit in the row.
    pub fn of(&self, logit: f32) -> f32 {
        (f64::from(logit) - self.log_sum) as f32
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
