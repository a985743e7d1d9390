//! From a conversation to the tokens of its prompt.

use crate::Error;
use crate::run::Model;
use crate::text::template::{ChatTemplate, Message, RenderOptions};
use crate::text::tokenizer::{EncodeOptions, Tokenizer};

/// The prompt of a conversation, up to the beginning of the assistant's answer. What messages spell does not become
/// control tokens, and turns that the template does not take as they are, are arranged.
pub(crate) fn chat_prompt(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    messages: &[Message],
) -> Result<Vec<u32>, Error> {
    let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
    let text = template.render_prompt(&template.arranged(messages), &options, tokenizer)?;
    // The template writes the special tokens itself.
    let options = EncodeOptions { add_special: false, parse_special: true };
    Ok(tokenizer.encode_guarded(&text, options)?)
}

impl Model {
    /// The prompt that its chat template makes of a conversation, up to the beginning of the assistant's
    /// answer. What messages spell does not become control tokens. Turns that the template does not take as they are,
    /// are [arranged](ChatTemplate::arranged): a system message may become the beginning of the user's first turn.
    ///
    /// # Errors
    /// If the model has no tokenizer or no chat template, or the template refuses the conversation.
    pub fn chat_prompt(&self, messages: &[Message]) -> Result<Vec<u32>, Error> {
        // A missing tokenizer also means no template, and is the better message.
        let tokenizer = self.tokenizer()?;
        let template = self.chat_template()?;
        let template =
            template.ok_or_else(|| Error::NoChatTemplate { path: self.path().to_owned() })?;
        chat_prompt(template, tokenizer, messages)
    }
}
