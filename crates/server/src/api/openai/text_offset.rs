//! Where the tokens of an answer begin in its text, in characters.

use realizar_runtime::tokenizer::{Error, StreamDecoder, Tokenizer};
use std::sync::Arc;

/// Follows the tokens of one answer, after those of the prompt where the text begins with it.
pub(crate) struct TextOffsets {
    tokenizer: Arc<Tokenizer>,
    /// Of the prompt's tokens, and then again of the answer's.
    decoder: StreamDecoder<Arc<Tokenizer>>,
    answer: Option<StreamDecoder<Arc<Tokenizer>>>,
    /// The prompt's text, and where its next token begins.
    prompt: String,
    at: usize,
    /// Tokens of the prompt that are ahead.
    n_prompt: usize,
    n_chars: usize,
}

impl TextOffsets {
    /// Offsets in an answer in which these control tokens are written as text. With `echo`, the
    /// text begins with that of the prompt, and the tokens with as many of its.
    pub(crate) fn new(
        tokenizer: &Arc<Tokenizer>,
        shown_tokens: &[u32],
        echo: Option<(&str, usize)>,
    ) -> Self {
        let new = || StreamDecoder::new(tokenizer.clone());
        let answer = new().continuing().with_specials(shown_tokens);
        let (prompt, n_prompt) = echo.unwrap_or_default();
        let (decoder, answer) = match n_prompt {
            0 => (answer, None),
            _ => (new(), Some(answer)),
        };
        let (tokenizer, prompt) = (tokenizer.clone(), prompt.to_owned());
        Self { tokenizer, decoder, answer, prompt, at: 0, n_prompt, n_chars: 0 }
    }

    /// The offset of the next token: the characters that are complete before it.
    pub(crate) fn next(&mut self, id: u32) -> Result<usize, Error> {
        let offset = self.n_chars;
        if self.n_prompt == 0 {
            let n_new = self.decoder.push(id)?.chars().count();
            self.n_chars += n_new;
            // Bytes before it that turn out to be no character become one, which is not its own.
            let own = std::str::from_utf8(self.tokenizer.token_bytes(id).unwrap_or_default());
            let n_own = own.map_or(n_new, |text| text.chars().count());
            return Ok(offset + n_new.saturating_sub(n_own));
        }
        let rest = &self.prompt[self.at..];
        // A control token may be a part of the text, or have been put before it.
        let text = match self.tokenizer.is_special(id) {
            true => {
                let text = self.tokenizer.token_text(id)?;
                if rest.starts_with(&text) { text } else { String::new() }
            }
            false => self.decoder.push(id)?.to_owned(),
        };
        // Some tokenizers put a space before a text.
        let text = if rest.starts_with(&text) { &text } else { text.trim_start() };
        for c in rest.chars().take(text.chars().count()) {
            (self.n_chars, self.at) = (self.n_chars + 1, self.at + c.len_utf8());
        }
        self.n_prompt -= 1;
        if self.n_prompt == 0 {
            self.n_chars += self.prompt[self.at..].chars().count();
            self.decoder = self.answer.take().expect("there is one behind a prompt");
        }
        Ok(offset)
    }
}
