//! [`KvCache`] methods for prompts of tokens in the default variant.

use realizar_kvcache::{KvCache, SeqPages, Symbol, Variant};

pub(crate) trait OfTokens {
    fn adopt_tokens(&mut self, seq: &mut SeqPages, prompt: &[u32], max_len: usize) -> usize;
    fn written_tokens(&mut self, seq: &mut SeqPages, tokens: &[u32], is_prompt: bool);
}

impl OfTokens for KvCache {
    fn adopt_tokens(&mut self, seq: &mut SeqPages, prompt: &[u32], max_len: usize) -> usize {
        let prompt: Vec<_> = prompt.iter().copied().map(Symbol::from).collect();
        self.adopt(seq, Variant::default(), &prompt, max_len, &[])
    }

    fn written_tokens(&mut self, seq: &mut SeqPages, tokens: &[u32], is_prompt: bool) {
        self.written(seq, tokens.iter().copied().map(Symbol::from), is_prompt);
    }
}
