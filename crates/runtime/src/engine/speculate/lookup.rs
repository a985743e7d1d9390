//! Prompt lookup: the tokens that followed an earlier occurrence of the last n-gram are the draft
//! (Saxena, 2023, "Prompt Lookup Decoding").

/// The lengths of the n-grams to look for, longest first.
const NGRAM: [usize; 3] = [4, 3, 2];

/// Draft tokens after which the acceptance rate is judged.
const TRIAL: u32 = 16;

/// Steps without draft tokens after an acceptance rate below a quarter.
const PAUSE: u32 = 32;

/// The acceptance of one sequence's draft tokens.
#[derive(Debug, Default)]
pub(in crate::engine) struct Lookup {
    n_drafted: u32,
    n_accepted: u32,
    /// Steps that are left of a pause.
    pause: u32,
}

impl Lookup {
    /// Appends up to `max` draft tokens that may follow `prompt` and `generated`.
    pub(in crate::engine) fn propose(
        &mut self,
        prompt: &[u32],
        generated: &[u32],
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

    /// Notes that `n_accepted` of `n_drafted` draft tokens were accepted.
    pub(super) fn judge(&mut self, n_drafted: usize, n_accepted: usize) {
        self.n_drafted += n_drafted as u32;
        self.n_accepted += n_accepted as u32;
        if self.n_drafted >= TRIAL {
            if self.n_accepted * 4 < self.n_drafted {
                self.pause = PAUSE;
            }
            (self.n_drafted, self.n_accepted) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_draft_is_what_followed_before() {
        let check = |prompt: &[u32], generated: &[u32], max, want: &[u32]| {
            let mut out = vec![7];
            Lookup::default().propose(prompt, generated, max, &mut out);
            assert_eq!(out[0], 7);
            assert_eq!(&out[1..], want, "{prompt:?} {generated:?}");
        };
        check(&[1, 2, 3, 4, 5, 6, 1, 2], &[], 3, &[3, 4, 5]);
        check(&[1, 2, 3, 4, 5, 6], &[1, 2], 2, &[3, 4]);
        // The latest occurrence counts, and a longer n-gram before a later one.
        check(&[1, 2, 3, 1, 2, 4, 1, 2], &[], 1, &[4]);
        check(&[9, 1, 2, 3, 8, 1, 2, 4, 9, 1], &[2], 1, &[3]);
        // Draft tokens end where the text does.
        check(&[5, 5, 5], &[], 8, &[5]);
        check(&[1, 2, 3], &[4], 4, &[]);
        check(&[1, 2, 1, 2], &[], 0, &[]);
        check(&[1], &[], 4, &[]);
    }

    #[test]
    fn rejected_drafts_lead_to_a_pause() {
        let mut lookup = Lookup::default();
        let n_drafts = |lookup: &mut Lookup| {
            let mut out = Vec::new();
            lookup.propose(&[1, 2, 1, 2], &[], 1, &mut out);
            out.len()
        };
        lookup.judge(16, 4);
        assert_eq!(n_drafts(&mut lookup), 1);
        lookup.judge(16, 3);
        for _ in 0..PAUSE {
            assert_eq!(n_drafts(&mut lookup), 0);
        }
        assert_eq!(n_drafts(&mut lookup), 1);
    }
}
