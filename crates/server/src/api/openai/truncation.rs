//! Conversations that outgrew the context: their oldest turns are left out whole, if the request
//! says so.

use super::conversation::{ConversationFields, Rendered};
use crate::answer::prompt::{self, Length};
use crate::error::ApiError;
use crate::http::extract::Held;
use crate::registry::ModelLease;
use serde::Deserialize;
use serde_json::Value;

/// What happens to a conversation that does not fit, by the values that OpenAI's responses API has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Truncation {
    /// Its oldest turns are left out. What the system says stays, and so does the last turn.
    Auto,
    /// It is an error.
    #[default]
    Disabled,
}

/// The tokens that there are for a conversation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    /// For the prompt and its answer.
    pub(crate) context: usize,
    /// For the prompt alone.
    pub(crate) prompt: usize,
    /// Kept free for the answer once turns are left out.
    pub(crate) answer: usize,
}

impl Room {
    /// The room in a context of this many tokens, of which a prompt may have `prompt`; an answer is
    /// left a quarter, or `max_tokens` where that is less.
    pub(crate) fn new(context: usize, prompt: Option<usize>, max_tokens: Option<usize>) -> Self {
        let answer = max_tokens.unwrap_or(usize::MAX).min(context / 4).max(1);
        Self { context, prompt: prompt.unwrap_or(context), answer }
    }

    /// Whether a prompt of `n` tokens leaves `answer` of them.
    fn holds(self, n: usize, answer: usize) -> bool {
        n <= self.prompt && n.saturating_add(answer) <= self.context
    }
}

/// The conversation as the model reads it, without as many of its oldest turns as do not fit, and
/// its token ids.
///
/// A turn begins with a message of the user. Only if the last one alone does not fit is it an error.
pub(crate) async fn render_fitting(
    fields: ConversationFields,
    held: &Held,
    model: &ModelLease,
    tools: Option<Vec<Value>>,
    add_special: bool,
    room: Room,
) -> Result<(Rendered, Vec<u32>), ApiError> {
    let render = async |fields: ConversationFields| {
        let rendered = fields.render(held, model, tools.clone()).await?;
        let text = rendered.text.clone();
        let ids =
            prompt::encode_conversation(held, model, text, add_special, Length::Context).await?;
        Ok::<_, ApiError>((rendered, ids))
    };
    let whole = render(fields.clone()).await;
    match &whole {
        Ok((_, ids)) if room.holds(ids.len(), 1) => return whole,
        Err(error) if !error.is_context_length() => return whole,
        _ => {}
    }
    let starts = fields.later_turns();
    // Fewer turns have fewer tokens, so the first start that fits is found by halving.
    let (mut low, mut high, mut fitting) = (0, starts.len(), None);
    while low < high {
        let middle = low + (high - low) / 2;
        let is_last = middle + 1 == starts.len();
        let answer = if is_last { 1 } else { room.answer };
        match render(fields.since(starts[middle])).await {
            Ok(found) if room.holds(found.1.len(), answer) => {
                (high, fitting) = (middle, Some(found));
            }
            Err(error) if !error.is_context_length() => return Err(error),
            _ => low = middle + 1,
        }
    }
    fitting.map_or(whole, Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_left_a_quarter_or_what_it_asked_for() {
        let holds = |room: Room, n| room.holds(n, room.answer);
        for (prompt, max_tokens, most) in [
            (None, None, 75),
            (None, Some(10), 90),
            (None, Some(60), 75),
            (Some(50), Some(10), 50),
            (None, Some(0), 99),
        ] {
            let room = Room::new(100, prompt, max_tokens);
            assert!(holds(room, most) && !holds(room, most + 1), "{room:?}");
        }
    }
}
