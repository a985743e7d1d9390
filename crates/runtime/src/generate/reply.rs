//! A generation that runs as it is read, as an iterator over pieces of text.

use super::params::GenerateParams;
use super::session::{Event, Generation, Session};
use super::steps::Steps;
use crate::Error;
use crate::run::{Model, Prompt};
use realizar_text::template::Message;
use std::ops::ControlFlow;

/// The answer to a conversation, as [`Model::chat`] and [`Session::chat`] return it.
///
/// It is an iterator over pieces of text, which together are [`Generation::text`]. The model runs when
/// the next piece is requested. Dropping the reply ends the generation, and [`Self::finish`] runs the
/// rest of it.
///
/// ```
/// use realizar_runtime::template::Message;
/// use realizar_runtime::{GenerateParams, Model};
///
/// # fn main() -> Result<(), realizar_runtime::Error> {
/// let mut model = Model::open("examples/alphabet.gguf")?;
/// let params = GenerateParams::default();
/// let pieces: Result<Vec<String>, _> = model.chat(&[Message::user("uvw")], &params)?.collect();
/// assert_eq!(pieces?, ["x", "y", "z"]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Reply<'m> {
    model: &'m mut Model,
    session: Held<'m>,
    prompt: Prompt,
    state: State,
}

/// The reply's own session, or one that continues after it.
#[derive(Debug)]
pub(super) enum Held<'m> {
    Own(Session),
    Lent(&'m mut Session),
}

#[derive(Debug)]
enum State {
    Running(Box<Steps>),
    Over(Box<Generation>),
    Failed,
}

impl Model {
    /// Answers a conversation in a new session. Unless `params` set the sampling, it is that of the
    /// model's files.
    ///
    /// ```
    /// use realizar_runtime::sampling::SamplingParams;
    /// use realizar_runtime::template::Message;
    /// use realizar_runtime::{GenerateParams, Model};
    ///
    /// # fn main() -> Result<(), realizar_runtime::Error> {
    /// // It says how the alphabet goes on.
    /// let mut model = Model::open("examples/alphabet.gguf")?;
    /// let messages = [Message::user("abc")];
    /// let whole = model.chat(&messages, &GenerateParams::default())?.finish()?;
    /// assert_eq!(whole.text, "defghijklmnopqrstuvwxyz");
    ///
    /// // The model's own sampling but for the temperature, and at most four tokens.
    /// let sampling = SamplingParams { temperature: 0.2, ..model.sampling().clone() };
    /// let params =
    ///     GenerateParams { sampling: Some(sampling), max_tokens: Some(4), ..Default::default() };
    /// assert_eq!(model.chat(&messages, &params)?.finish()?.text, "defg");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Session::chat`].
    pub fn chat(
        &mut self,
        messages: &[Message],
        params: &GenerateParams,
    ) -> Result<Reply<'_>, Error> {
        let prompt = self.chat_prompt(messages)?;
        let session = Held::Own(self.new_session());
        Reply::new(self, session, prompt.into(), params)
    }
}

impl<'m> Reply<'m> {
    pub(super) fn new(
        model: &'m mut Model,
        session: Held<'m>,
        prompt: Prompt,
        params: &GenerateParams,
    ) -> Result<Self, Error> {
        let steps = Steps::new(model, prompt.rows(), params)?;
        Ok(Self { model, session, prompt, state: State::Running(Box::new(steps)) })
    }

    /// Runs the rest, and returns the whole generation, including the pieces that were read.
    ///
    /// # Errors
    /// If the device fails, the model's output is not finite, or the iterator returned an error before.
    pub fn finish(mut self) -> Result<Generation, Error> {
        self.by_ref().try_for_each(|piece| piece.map(drop))?;
        match self.state {
            State::Over(generation) => Ok(*generation),
            State::Running(_) | State::Failed => {
                Err(Error::Request("the reply has already ended with an error".to_owned()))
            }
        }
    }
}

impl Iterator for Reply<'_> {
    type Item = Result<String, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let session = match &mut self.session {
            Held::Own(session) => session,
            Held::Lent(session) => session,
        };
        let State::Running(steps) = &mut self.state else { return None };
        let mut piece = String::new();
        loop {
            let mut on_event = |event: &Event<'_>| {
                if let Event::Token(token) = event {
                    piece.push_str(token.text);
                }
                ControlFlow::Continue(())
            };
            let flow = steps.step(session, self.model, self.prompt.rows(), &mut on_event);
            match flow {
                Ok(ControlFlow::Continue(())) if piece.is_empty() => {}
                Ok(ControlFlow::Continue(())) => return Some(Ok(piece)),
                Ok(ControlFlow::Break(())) => break,
                Err(error) => {
                    self.state = State::Failed;
                    return Some(Err(error));
                }
            }
        }
        if let State::Running(steps) = std::mem::replace(&mut self.state, State::Failed) {
            let generation = steps.finish();
            piece.push_str(&generation.tail);
            self.state = State::Over(Box::new(generation));
        }
        (!piece.is_empty()).then_some(Ok(piece))
    }
}

impl std::iter::FusedIterator for Reply<'_> {}
