//! A conversation: its messages, and how turns are dropped, repeated, saved and loaded.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use realizar_runtime::template::{Content, Message};

/// The messages, and the system message before them.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Conversation {
    pub(super) messages: Vec<Message>, // turns: the user's message, answers, results of tools
    pub(super) system: Option<String>,
}

impl Conversation {
    /// All messages, the system message first.
    pub(super) fn all(&self) -> Vec<Message> {
        let system = self.system.iter().map(Message::system);
        system.chain(self.messages.iter().cloned()).collect()
    }

    /// The tokens of the conversation, which `prompt` makes of its messages, and how many of its oldest
    /// turns were dropped because they no longer fit the context.
    ///
    /// A conversation that does not fit is left a quarter of the context for the answer, or
    /// `max_tokens` where that is less, so that the next turns fit as well.
    pub(super) fn fit(
        &mut self,
        context: usize,
        max_tokens: Option<usize>,
        prompt: impl Fn(&[Message]) -> Result<Vec<u32>>,
    ) -> Result<(Vec<u32>, usize)> {
        let (mut room, mut n_dropped) = (1, 0);
        loop {
            let ids = prompt(&self.all())?;
            let turn_len = 1 + self.messages[1..].iter().take_while(|m| m.role != "user").count();
            if turn_len == self.messages.len() || ids.len() + room <= context {
                return Ok((ids, n_dropped));
            }
            self.messages.drain(..turn_len);
            n_dropped += 1;
            room = (context / 4).min(max_tokens.unwrap_or(usize::MAX)).max(1);
        }
    }

    /// Forgets the last message of the user and what came after it; returns that message.
    pub(super) fn undo(&mut self) -> Option<Message> {
        let start = self.messages.iter().rposition(|message| message.role == "user")?;
        let mut dropped = self.messages.drain(start..);
        dropped.next()
    }

    /// Takes out what came after the last message of the user, which there has to be.
    pub(super) fn take_answer(&mut self) -> Option<Vec<Message>> {
        let start = self.messages.iter().rposition(|message| message.role == "user")?;
        Some(self.messages.split_off(start + 1))
    }

    /// Writes the messages to a file, as JSON.
    pub(super) fn save(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(&self.all()).context("cannot encode")?;
        fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
    }

    /// Reads the messages of a file.
    pub(super) fn load(path: &Path) -> Result<Self> {
        let place = path.display();
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {place}"))?;
        let messages: Vec<Message> = serde_json::from_str(&text).with_context(|| {
            format!(
                "{place} is no saved conversation, a list of messages with `role` and `content`"
            )
        })?;
        let mut all = Self::default();
        for (i, message) in messages.into_iter().enumerate() {
            let text = match &message.content {
                Some(Content::Text(text)) => Some(text.clone()),
                Some(Content::Null | Content::Parts(_)) | None => None,
            };
            let role = message.role.clone();
            match (role.as_str(), text, all.messages.is_empty()) {
                ("system", Some(text), _) if i == 0 => all.system = Some(text),
                ("user", Some(_), _) | ("assistant" | "tool", _, false) => {
                    all.messages.push(message);
                }
                ("user", None, _) | ("system", ..) if i == 0 || role == "user" => {
                    bail!("message {i} in {place} has no `content` that is a text")
                }
                ("assistant" | "tool", ..) => {
                    bail!("message {i} in {place} comes before any message with the role `user`")
                }
                _ => bail!(
                    "message {i} in {place} has the role `{role}`; expected user, assistant or tool, or \
                     system in the first one"
                ),
            }
        }
        Ok(all)
    }
}

/// The path that was typed; `~` is the user's home directory.
pub(super) fn path(typed: &str) -> PathBuf {
    match (typed.strip_prefix('~'), std::env::home_dir()) {
        (Some(rest), Some(home))
            if rest.is_empty() || rest.starts_with(std::path::is_separator) =>
        {
            home.join(rest.trim_start_matches(std::path::is_separator))
        }
        _ => PathBuf::from(typed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn conversation(texts: &[(&str, &str)]) -> Conversation {
        let messages = texts.iter().map(|(role, text)| Message::new(*role, *text)).collect();
        Conversation { messages, system: None }
    }

    #[test]
    fn the_system_message_comes_first_and_a_saved_conversation_loads() {
        let mut chat = conversation(&[("user", "a"), ("assistant", "b"), ("tool", "c")]);
        chat.messages[1].fields.insert("reasoning_content".to_owned(), "r".into());
        let temp = tempfile::tempdir().expect("temporary directory");
        let path = temp.path().join("c.json");
        for system in [None, Some("s".to_owned())] {
            chat.system = system;
            chat.save(&path).expect("save");
            assert_eq!(Conversation::load(&path).expect("load"), chat);
        }
        let value: serde_json::Value =
            serde_json::from_slice(&fs::read(&path).expect("read")).expect("JSON");
        assert_eq!(value[0], json!({"role": "system", "content": "s"}));
        assert_eq!(value[1], json!({"role": "user", "content": "a"}));
    }

    #[test]
    fn files_that_are_no_conversation_are_refused() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let path = temp.path().join("c.json");
        let check = |text: &str, want: &str| {
            fs::write(&path, text).expect("write");
            let error = format!("{:#}", Conversation::load(&path).expect_err(text));
            assert!(error.contains(want) && error.contains("c.json"), "{text}: {error}");
        };
        check("{}", "is no saved conversation, a list of messages with `role` and `content`");
        check("[{\"content\": \"a\"}]", "missing field `role`");
        check("[{\"role\": \"user\"}]", "message 0 in ");
        check("[{\"role\": \"system\"}]", "has no `content` that is a text");
        check(
            "[{\"role\": \"assistant\", \"content\": \"a\"}]",
            "comes before any message with the role",
        );
        let late = r#"[{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]"#;
        check(
            late,
            "has the role `system`; expected user, assistant or tool, or system in the first",
        );
        check(r#"[{"role": "robot", "content": "a"}]"#, "has the role `robot`; expected user");
        let error = Conversation::load(&temp.path().join("none.json")).expect_err("no file");
        assert!(format!("{error:#}").starts_with("cannot read "), "{error:#}");
    }

    #[test]
    fn turns_are_dropped_and_repeated_whole() {
        let turns =
            [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("tool", "e")];
        let mut chat = conversation(&turns);
        assert_eq!(chat.take_answer().expect("an answer").len(), 2);
        assert_eq!(chat, conversation(&turns[..3]));
        assert_eq!(chat.take_answer(), Some(Vec::new()));
        assert_eq!(chat.undo(), Some(Message::user("c")));
        assert_eq!(chat, conversation(&turns[..2]));
        assert_eq!(chat.undo(), Some(Message::user("a")));
        assert_eq!((chat.undo(), chat.take_answer()), (None, None));
    }

    #[test]
    fn the_oldest_turns_make_room() {
        let turns = [
            ("user", "aaaa"),
            ("assistant", "bb"),
            ("user", "cccc"),
            ("assistant", "d"),
            ("user", "ee"),
        ];
        // A token for each letter.
        let prompt = |messages: &[Message]| {
            let len = |m: &Message| match &m.content {
                Some(Content::Text(text)) => text.len(),
                _ => 0,
            };
            Ok(vec![0; messages.iter().map(len).sum()])
        };
        let check = |context, max_tokens, want: (usize, usize)| {
            let mut chat = conversation(&turns);
            let (ids, n_dropped) = chat.fit(context, max_tokens, prompt).expect("fits");
            assert_eq!((ids.len(), n_dropped), want, "{context}");
        };
        check(14, None, (13, 0));
        check(13, None, (7, 1));
        // A quarter of the context stays free, or what the answer needs.
        check(8, None, (2, 2));
        check(8, Some(1), (7, 1));
        // The last turn stays.
        check(1, None, (2, 2));
    }

    #[test]
    fn a_tilde_is_the_home_directory() {
        let Some(home) = std::env::home_dir() else { return };
        for (typed, want) in
            [("~/a b", home.join("a b")), ("~", home), ("~a", "~a".into()), ("a/~", "a/~".into())]
        {
            assert_eq!(path(typed), want, "{typed}");
        }
    }
}
