//! How far a model's distributions are from those of a base: Kullback-Leibler divergence,
//! the likeliest token, and the probability of the right one, token by token. Text is cut as for
//! perplexity, and the statistics are those of llama.cpp's `llama-perplexity --kl-divergence`.
//!
//! Both models run the same chunks, and only the logits of one step of each are in memory.

use super::estimate::{Estimate, Sum, degrees};
use super::perplexity::Chunks;
use crate::Error;
use crate::run::Model;
use realizar_backends::Phase;
use realizar_model::graph::plan::RowLimits;

/// A model beside its base. Logarithms are natural.
#[derive(Debug, Clone, PartialEq)]
pub struct KlDivergence {
    /// Mean of the Kullback-Leibler divergence from the base, per token.
    pub mean: Estimate,
    /// The divergences of all tokens, ascending.
    pub sorted: Vec<f64>, // [n_tokens]
    /// Share of tokens whose likeliest token is that of the base.
    pub same_top: Estimate,
    /// Mean change of the probability of the token that follows in the text.
    pub mean_change: Estimate,
    /// Root mean square of that change.
    pub rms_change: Estimate,
    /// Perplexity of the model.
    pub perplexity: Estimate,
    /// Perplexity of the base.
    pub base_perplexity: Estimate,
    /// The first over the second. Its error takes into account that both saw one text.
    pub perplexity_ratio: Estimate,
    /// Tokens that were scored.
    pub n_tokens: usize,
    /// Chunks that were run.
    pub n_chunks: usize,
}

impl KlDivergence {
    /// The divergence that a share of `fraction` of all tokens does not exceed, between two
    /// neighbours in proportion.
    pub fn quantile(&self, fraction: f64) -> f64 {
        let last = self.sorted.len().saturating_sub(1);
        let at = fraction.clamp(0.0, 1.0) * last as f64;
        let below = self.sorted.get(at as usize).copied().unwrap_or(0.0);
        let above = self.sorted.get(last.min(at as usize + 1)).copied().unwrap_or(0.0);
        below + at.fract() * (above - below)
    }
}

/// Sums over scored tokens.
#[derive(Debug, Default)]
struct Comparison {
    divergences: Vec<f64>, // [n]
    divergence: Sum,
    nll: Sum,
    base_nll: Sum,
    nll_product: f64,
    change: Sum,
    squared_change: Sum,
    n_same_top: usize,
}

impl Comparison {
    /// Adds a row of both models, which the token `next` follows.
    fn add(
        &mut self,
        logits: &[f32], // [vocab_size]
        base: &[f32],   // [vocab_size]
        next: u32,
    ) {
        let (top, base_top) = (top(logits), top(base));
        // The exponentials of both, and the mean difference under the base.
        let (max, base_max) = (f64::from(logits[top]), f64::from(base[base_top]));
        let [mut sum, mut base_sum, mut apart] = [0.0; 3];
        for (&logit, &base) in logits.iter().zip(base) {
            let (logit, base) = (f64::from(logit), f64::from(base));
            sum += (logit - max).exp();
            let weight = (base - base_max).exp();
            base_sum += weight;
            // A token that the base rules out adds nothing.
            if weight > 0.0 {
                apart += weight * (base - logit);
            }
        }
        let (log_sum, base_log_sum) = (max + sum.ln(), base_max + base_sum.ln());
        let divergence = apart / base_sum + log_sum - base_log_sum;
        let nll = log_sum - f64::from(logits[next as usize]);
        let base_nll = base_log_sum - f64::from(base[next as usize]);
        let change = (-nll).exp() - (-base_nll).exp();
        self.divergences.push(divergence);
        self.divergence.add(divergence);
        self.nll.add(nll);
        self.base_nll.add(base_nll);
        self.nll_product += nll * base_nll;
        self.change.add(change);
        self.squared_change.add(change * change);
        self.n_same_top += usize::from(top == base_top);
    }

    /// Whether every sum is a number, so that every statistic is.
    fn is_finite(&self) -> bool {
        [self.divergence.squares, self.nll.squares, self.base_nll.squares]
            .iter()
            .all(|x| x.is_finite())
    }

    fn finish(mut self, n_chunks: usize) -> KlDivergence {
        let n = self.divergences.len();
        self.divergences.sort_by(f64::total_cmp);
        let (nll, base_nll) = (self.nll.mean(n), self.base_nll.mean(n));
        let covariance = (self.nll_product / n as f64 - nll.value * base_nll.value) / degrees(n);
        let variance = nll.error.powi(2) + base_nll.error.powi(2) - 2.0 * covariance;
        let log_ratio =
            Estimate { value: nll.value - base_nll.value, error: variance.max(0.0).sqrt() };
        let mean_square = self.squared_change.mean(n);
        let rms = mean_square.value.sqrt();
        let same = self.n_same_top as f64 / n as f64;
        KlDivergence {
            mean: self.divergence.mean(n),
            same_top: Estimate { value: same, error: (same * (1.0 - same) / degrees(n)).sqrt() },
            mean_change: self.change.mean(n),
            rms_change: Estimate {
                value: rms,
                error: if rms > 0.0 { 0.5 / rms * mean_square.error } else { 0.0 },
            },
            perplexity: nll.exp(),
            base_perplexity: base_nll.exp(),
            perplexity_ratio: log_ratio.exp(),
            sorted: self.divergences,
            n_tokens: n,
            n_chunks,
        }
    }
}

/// The index of the largest value, the first among equals.
fn top(row: &[f32]) -> usize {
    let larger = |best: usize, i: usize| if row[i] > row[best] { i } else { best };
    (0..row.len()).fold(0, larger)
}

impl Model {
    /// How far this model is from `base` on the tokens `ids` in chunks of `ctx`. The second half
    /// of each chunk is compared, as rows of `phase`; the rows before it are a prompt. `progress` is
    /// called with the chunks done, their number, and the mean divergence so far.
    ///
    /// # Errors
    /// If the vocabularies differ in size, there are fewer tokens than two chunks, or `ctx` does
    /// not fit the context of both.
    pub fn kl_divergence(
        &mut self,
        base: &mut Self,
        ids: &[u32],
        ctx: usize,
        phase: Phase,
        progress: &mut dyn FnMut(usize, usize, f64),
    ) -> Result<KlDivergence, Error> {
        let chunks = Chunks::new(self, ids, ctx)?;
        Chunks::new(base, ids, ctx)?;
        let sizes = [self.runner().vocab_size(), base.runner().vocab_size()];
        if sizes[0] != sizes[1] {
            let [size, base] = sizes;
            let text =
                format!("a vocabulary of {size} tokens and one of {base} cannot be compared");
            return Err(Error::Request(text));
        }
        let limits = [self.runner().limits(), base.runner().limits()];
        let limits = RowLimits {
            tokens: limits[0].tokens.min(limits[1].tokens),
            outputs: limits[0].outputs.min(limits[1].outputs),
        };
        let mut comparison = Comparison::default();
        for i in 0..chunks.count() {
            let tokens = chunks.tokens(i);
            let seqs = [self.runner().new_sequence(), base.runner().new_sequence()];
            for (step, is_scored) in chunks.steps(limits) {
                let rows =
                    self.score_rows(&seqs[0], &tokens, step.clone(), is_scored.then_some(phase))?;
                let base =
                    base.score_rows(&seqs[1], &tokens, step.clone(), is_scored.then_some(phase))?;
                for (row, pos) in step.enumerate().filter(|_| is_scored) {
                    comparison.add(rows.row(0, row), base.row(0, row), tokens[pos + 1]);
                }
            }
            if !comparison.is_finite() {
                return Err(Error::NotFinite { path: self.path().to_owned() });
            }
            let mean = comparison.divergence.mean(comparison.divergences.len());
            progress(i + 1, chunks.count(), mean.value);
        }
        Ok(comparison.finish(chunks.count()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn statistics_are_those_of_the_reference() {
        let path =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/kl_divergence/expected.json");
        let text = std::fs::read_to_string(path).unwrap();
        let expected: Value = serde_json::from_str(&text).unwrap();
        let row = |row: &Value| -> Vec<f32> {
            let logits = row.as_array().unwrap().iter();
            logits.map(|x| x.as_f64().map_or(f32::NEG_INFINITY, |x| x as f32)).collect()
        };
        let mut comparison = Comparison::default();
        let rows = expected["rows"].as_array().unwrap();
        for entry in rows {
            let next = u32::try_from(entry["next"].as_u64().unwrap()).unwrap();
            comparison.add(&row(&entry["logits"]), &row(&entry["base"]), next);
        }
        assert!(comparison.is_finite());
        let found = comparison.finish(3);
        assert_eq!((found.n_tokens, found.n_chunks), (rows.len(), 3));
        let check = |name: &str, found: f64, expected: &Value| {
            let expected = expected.as_f64().unwrap();
            assert!(
                (found - expected).abs() <= 1e-12 * expected.abs().max(1.0),
                "{name}: {found} {expected}"
            );
        };
        for (name, fraction) in [
            ("minimum", 0.0),
            ("median", 0.5),
            ("p90", 0.9),
            ("p99", 0.99),
            ("p99_9", 0.999),
            ("maximum", 1.0),
        ] {
            check(name, found.quantile(fraction), &expected[name]);
        }
        for (name, estimate) in [
            ("mean", found.mean),
            ("same_top", found.same_top),
            ("mean_change", found.mean_change),
            ("rms_change", found.rms_change),
            ("perplexity", found.perplexity),
            ("base_perplexity", found.base_perplexity),
            ("perplexity_ratio", found.perplexity_ratio),
        ] {
            check(name, estimate.value, &expected[name]["value"]);
            check(name, estimate.error, &expected[name]["error"]);
        }
    }

    #[test]
    fn equal_rows_are_not_apart_and_damaged_ones_are_no_numbers() {
        let mut comparison = Comparison::default();
        for _ in 0..2 {
            comparison.add(&[3.0, -1.0, 3.0], &[3.0, -1.0, 3.0], 1);
        }
        let found = comparison.finish(1);
        assert_eq!((found.mean, found.rms_change), (Estimate::default(), Estimate::default()));
        assert_eq!(found.same_top, Estimate { value: 1.0, error: 0.0 });
        assert_eq!(found.perplexity_ratio, Estimate { value: 1.0, error: 0.0 });
        for damaged in [f32::NAN, f32::NEG_INFINITY] {
            let mut comparison = Comparison::default();
            comparison.add(&[damaged, 1.0], &[0.0, 1.0], 1);
            assert!(!comparison.is_finite(), "{damaged}");
        }
    }
}
