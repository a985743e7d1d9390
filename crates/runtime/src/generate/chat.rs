//! From a conversation to its prompt.

use crate::Error;
use crate::run::Model;
use realizar_text::template::{ChatTemplate, Message, RenderOptions};
use realizar_text::tokenizer::{EncodeOptions, Tokenizer};

/// The prompt of a conversation, up to the beginning of the assistant's answer. Text in messages never
/// becomes control tokens, and turns that the template does not accept are arranged.
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
    /// The prompt of a conversation by the model's chat template, up to the beginning of the assistant's
    /// answer. Text in messages never becomes control tokens. Turns that the template does not accept
    /// are [arranged](ChatTemplate::arranged): a system message may become the beginning of the user's
    /// first turn.
    ///
    /// # Errors
    /// If the model has no tokenizer or no chat template, or the template refuses the conversation.
    pub fn chat_prompt(&self, messages: &[Message]) -> Result<Vec<u32>, Error> {
        // Without a tokenizer there is no template either, and its error says more.
        let tokenizer = self.tokenizer()?;
        let template = self.chat_template()?;
        let template =
            template.ok_or_else(|| Error::NoChatTemplate { path: self.path().to_owned() })?;
        chat_prompt(template, tokenizer, messages)
    }
}
