//! Mirostat, version 2 (Basu et al. 2020, "Mirostat: A Neural Text Decoding Algorithm that
//! Directly Controls Perplexity"): a bound on the surprise of a token, in bits, that follows what
//! was chosen, so that the mean surprise comes to a target.
//!
//! As in llama.cpp, the surprise of the choice is measured on the distribution after the cut.

use super::filters::total;
use super::scan::pick;

/// The bound of one request.
#[derive(Debug)]
pub(super) struct Mirostat {
    tau: f64,                  // the target, in bits
    eta: f64,                  // how fast the bound follows
    mu: f64,                   // the bound, in bits
    drawn: Option<(u32, f64)>, // the latest choice and its surprise
}

impl Mirostat {
    pub(super) fn new(tau: f32, eta: f32) -> Self {
        let tau = f64::from(tau);
        Self { tau, eta: f64::from(eta), mu: 2.0 * tau, drawn: None }
    }

    /// The weight of a token that is as surprising as the bound, of tokens of the weight `sum`.
    pub(super) fn least(&self, sum: f64) -> f64 {
        sum * (-self.mu).exp2()
    }

    /// Draws from the tokens of at least that weight, or takes `best`, of the weight 1, where there is none.
    pub(super) fn choose(&mut self, best: u32, draw: f64, kept: &mut Vec<(f32, u32)>) -> u32 {
        if kept.is_empty() {
            kept.push((1.0, best));
        }
        let left = total(kept);
        let id = pick(kept.iter().copied(), draw * left).unwrap_or(best);
        let drawn = kept.iter().find(|token| token.1 == id);
        let surprise = (left / drawn.map_or(1.0, |token| f64::from(token.0))).log2();
        self.drawn = Some((id, surprise));
        id
    }

    /// Moves the bound if the token is the one that was drawn last.
    pub(super) fn accept(&mut self, id: u32) {
        if let Some((_, surprise)) = self.drawn.take().filter(|(drawn, _)| *drawn == id) {
            self.mu -= self.eta * (surprise - self.tau);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::scan::{Blocks, Weight};
    use super::*;

    /// Draws from probabilities; the bound afterwards must be `want_mu`.
    fn step(mirostat: &mut Mirostat, probs: &[f64], draw: f64, want: u32, want_mu: f64) {
        let logits: Vec<f32> = probs.iter().map(|p| p.ln() as f32).collect();
        let (mut blocks, mut kept) = (Blocks::default(), Vec::new());
        let (best, max) = blocks.read(&logits).unwrap().unwrap();
        let weight = Weight::new(max, 1.0);
        let least = mirostat.least(blocks.sum(&logits, weight));
        blocks.keep_heavy(&logits, weight, least, &mut kept);
        let id = mirostat.choose(best, draw, &mut kept);
        assert_eq!(id, want);
        mirostat.accept(id);
        assert!((mirostat.mu - want_mu).abs() < 1e-5, "{} instead of {want_mu}", mirostat.mu);
    }

    #[test]
    fn the_bound_follows_the_surprise_of_the_choices() {
        let mut mirostat = Mirostat::new(1.2, 0.5);
        let probs = [0.125, 0.5, 0.25, 0.125];
        // The bound begins at 2.4 bits: 0.5 and 0.25 are kept, as 2/3 and 1/3. The second has
        // log2(3) = 1.584963 bits, so the bound falls by half of 0.384963.
        step(&mut mirostat, &probs, 0.9, 2, 2.207519);
        // The first has log2(3/2) = 0.584963 bits, so the bound rises by half of 0.615037.
        step(&mut mirostat, &probs, 0.1, 1, 2.515038);
        step(&mut mirostat, &probs, 0.9, 2, 2.322556);
        step(&mut mirostat, &probs, 0.9, 2, 2.130075);
        step(&mut mirostat, &probs, 0.9, 2, 1.937594);
        // Only 0.5 is kept: it is no surprise, so the bound rises by half of 1.2.
        step(&mut mirostat, &probs, 0.9, 1, 2.537594);
        // All have 3 bits, which is too much: the best token alone, then all of them.
        step(&mut mirostat, &[0.125; 8], 0.5, 0, 3.137594);
        step(&mut mirostat, &[0.125; 8], 0.5, 4, 2.237594);
    }

    #[test]
    fn only_the_token_that_was_drawn_moves_the_bound() {
        let mut mirostat = Mirostat::new(5.0, 0.1);
        assert_eq!(mirostat.mu, 10.0);
        mirostat.accept(3);
        assert_eq!(mirostat.mu, 10.0);
        mirostat.drawn = Some((3, 7.0));
        mirostat.accept(4);
        assert_eq!(mirostat.mu, 10.0);
        mirostat.drawn = Some((3, 7.0));
        mirostat.accept(3);
        mirostat.accept(3);
        assert!((mirostat.mu - 9.8).abs() < 1e-6);
    }
}
