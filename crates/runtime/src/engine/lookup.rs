//! Prompt-lookup drafting: n-gram matches in a text propose draft tokens.
//!
//! Where the last few tokens occur earlier in the text, the tokens that followed them there are draft tokens for
//! what follows now. The model runs the draft tokens in one step and keeps those that it would have
//! chosen itself, so the answer does not depend on them (Saxena, 2023, "Prompt Lookup Decoding").

/// The longest and the shortest run of tokens that is looked for.
const NGRAM: [usize; 3] = [4, 3, 2];

/// Draft tokens after which the acceptance rate is judged.
const TRIAL: u32 = 16;

/// Steps without draft tokens after a low acceptance rate.
const PAUSE: u32 = 32;

/// How many draft tokens were accepted for one answer.
#[derive(Debug, Default)]
pub(super) struct Lookup {
    guessed: u32,
    right: u32,
    pause: u32,
}

impl Lookup {
    /// Appends up to `max` draft tokens for what follows `prompt` and `generated`.
    pub(super) fn propose(
        &mut self,
        (prompt, generated): (&[u32], &[u32]),
        max: usize,
        out: &mut Vec<u32>,
    ) {
        if self.pause > 0 {
            self.pause -= 1;
            return;
        }
        let len = prompt.len() + generated.len();
        let at = |i: usize| if i < prompt.len() { prompt[i] } else { generated[i - prompt.len()] };
        for n in NGRAM {
            if max == 0 || len <= n {
                continue;
            }
            let matches = |start: &usize| (0..n).all(|k| at(start + k) == at(len - n + k));
            if let Some(start) = (0..len - n).rev().find(matches) {
                out.extend((start + n..len).take(max).map(at));
                return;
            }
        }
    }

    /// Notes that `right` of `guessed` draft tokens were accepted.
    pub(super) fn judge(&mut self, guessed: usize, right: usize) {
        self.guessed += guessed as u32;
        self.right += right as u32;
        if self.guessed >= TRIAL {
            if self.right * 4 < self.guessed {
                self.pause = PAUSE;
            }
            (self.guessed, self.right) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_followed_before_is_guessed() {
        let check = |prompt: &[u32], generated: &[u32], max, want: &[u32]| {
            let mut out = vec![7];
            Lookup::default().propose((prompt, generated), max, &mut out);
            assert_eq!(out[0], 7);
            assert_eq!(&out[1..], want, "{prompt:?} {generated:?}");
        };
        check(&[1, 2, 3, 4, 5, 6, 1, 2], &[], 3, &[3, 4, 5]);
        check(&[1, 2, 3, 4, 5, 6], &[1, 2], 2, &[3, 4]);
        // The latest place counts, and a longer run before a later one.
        check(&[1, 2, 3, 1, 2, 4, 1, 2], &[], 1, &[4]);
        check(&[9, 1, 2, 3, 8, 1, 2, 4, 9, 1], &[2], 1, &[3]);
        // Draft tokens end where the text does.
        check(&[5, 5, 5], &[], 8, &[5]);
        check(&[1, 2, 3], &[4], 4, &[]);
        check(&[1, 2, 1, 2], &[], 0, &[]);
        check(&[1], &[], 4, &[]);
    }

    #[test]
    fn bad_guesses_lead_to_a_pause() {
        let mut lookup = Lookup::default();
        let n_guesses = |lookup: &mut Lookup| {
            let mut out = Vec::new();
            lookup.propose((&[1, 2, 1, 2], &[]), 1, &mut out);
            out.len()
        };
        lookup.judge(16, 4);
        assert_eq!(n_guesses(&mut lookup), 1);
        lookup.judge(16, 3);
        for _ in 0..PAUSE {
            assert_eq!(n_guesses(&mut lookup), 0);
        }
        assert_eq!(n_guesses(&mut lookup), 1);
    }
}
