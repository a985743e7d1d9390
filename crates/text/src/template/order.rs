//! Turns of a conversation in the order that a chat template takes.
//!
//! Agents send several system messages, some of them late, and user messages one after another. Some
//! templates refuse these, or leave them out. Those at the front then become one, and a late one becomes a
//! part of the user's turn beside it: what comes before it stays as it is, so the prefix of the prompt that
//! is cached does too.

use serde_json::{Value, json};
use std::borrow::Cow;

use super::{ChatTemplate, Content, Message, RenderOptions};

/// Which turns a template takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnTraits {
    /// A message of the role `system`.
    pub system: bool,
    /// Several of them at the front.
    pub several_system: bool,
    /// Some after other messages.
    pub late_system: bool,
    /// Messages of the user one after another.
    pub user_runs: bool,
}

const NEEDLES: [&str; 2] = ["zqfirstzq", "zqsecondzq"];

impl TurnTraits {
    /// Asks a template what it takes by rendering small conversations. With `developer_role`, messages of the role
    /// `developer` are to be taken as those of `system` are. `content` is a text in the form that the template reads.
    pub fn of(
        template: &ChatTemplate,
        developer_role: bool,
        content: impl Fn(&str) -> Value,
    ) -> Self {
        let [first, second] = NEEDLES;
        let shows = |turns: &[(&str, &str)]| {
            let turn =
                |(role, text): &(&str, &str)| json!({"role": role, "content": content(text)});
            let messages = turns.iter().map(turn).collect::<Vec<_>>();
            let Ok(messages) = serde_json::from_value::<Vec<Message>>(json!(messages)) else {
                return false;
            };
            let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
            let text = template.render(&messages, &options);
            text.is_ok_and(|text| {
                let wanted = turns.iter().filter(|(_, needle)| NEEDLES.contains(needle));
                wanted.clone().all(|(_, needle)| text.contains(needle))
            })
        };
        let roles: &[&str] = if developer_role { &["system", "developer"] } else { &["system"] };
        let all = |shows: &dyn Fn(&str) -> bool| roles.iter().all(|role| shows(role));
        let system = shows(&[("system", first), ("user", "x")]);
        let after = |role: &str| {
            let late = [("user", first), ("assistant", "x"), (role, second), ("user", "y")];
            shows(&late) && shows(&[&[("system", "z")][..], &late].concat())
        };
        Self {
            system,
            several_system: system
                && all(&|role| shows(&[("system", first), (role, second), ("user", "x")])),
            late_system: system && all(&after),
            user_runs: shows(&[("user", first), ("user", second)]),
        }
    }

    /// The messages as turns that the template takes.
    #[must_use]
    pub fn arrange(self, messages: Vec<Message>) -> Vec<Message> {
        let is_system = |message: &Message| matches!(message.role.as_str(), "system" | "developer");
        let n_leading = messages.iter().take_while(|message| is_system(message)).count();
        let mut arranged: Vec<Message> = Vec::with_capacity(messages.len());
        // What of late system messages waits for the user's next turn.
        let mut waiting: Option<Message> = None;
        for (at, message) in messages.into_iter().enumerate() {
            let taken = match (is_system(&message), at < n_leading) {
                (false, _) => true,
                (true, true) => self.system && (at == 0 || self.several_system),
                (true, false) => self.late_system,
            };
            if !taken && at < n_leading && self.system {
                if let Some(last) = arranged.last_mut() {
                    join(last, message);
                }
            } else if !taken {
                match &mut waiting {
                    Some(waiting) => join(waiting, message),
                    None => waiting = Some(Message { role: "user".to_owned(), ..message }),
                }
            } else {
                let is_user = message.role == "user";
                match waiting.take() {
                    Some(mut before) if is_user => {
                        let (content, fields) = (message.content, message.fields);
                        join(&mut before, Message { content, ..Message::new("user", "") });
                        before.fields.extend(fields);
                        self.add(before, &mut arranged);
                    }
                    before => {
                        if let Some(before) = before {
                            add_late(before, &mut arranged);
                        }
                        self.add(message, &mut arranged);
                    }
                }
            }
        }
        if let Some(before) = waiting {
            add_late(before, &mut arranged);
        }
        arranged
    }

    /// Adds a message, which continues the user's turn where the template takes one only.
    fn add(self, message: Message, arranged: &mut Vec<Message>) {
        match arranged.last_mut() {
            Some(last) if !self.user_runs && last.role == "user" && message.role == "user" => {
                join(last, message);
            }
            _ => arranged.push(message),
        }
    }
}

impl ChatTemplate {
    /// The messages of a conversation as turns that the template takes: a system message that it has no place for
    /// becomes the beginning of the user's first turn, and further ones, late ones and user messages one after another
    /// are joined where the template takes them in no other way.
    pub fn arranged<'m>(&self, messages: &'m [Message]) -> Cow<'m, [Message]> {
        let role = |message: &Message, role: &str| message.role == role;
        let has_system = messages.iter().any(|m| role(m, "system") || role(m, "developer"));
        let user_runs =
            messages.windows(2).any(|pair| pair.iter().all(|message| role(message, "user")));
        if !has_system && !user_runs {
            return Cow::Borrowed(messages);
        }
        let developer_role = self.source().contains("developer");
        let ask = || TurnTraits::of(self, developer_role, |text| json!(text));
        Cow::Owned(self.turn_traits.get_or_init(ask).arrange(messages.to_vec()))
    }
}

/// Adds a late system message that no turn of the user follows: to the one before it, or as one of its own.
fn add_late(message: Message, arranged: &mut Vec<Message>) {
    match arranged.last_mut() {
        Some(last) if last.role == "user" => join(last, message),
        _ => arranged.push(message),
    }
}

/// Adds the content of a message to another, after a blank line.
fn join(message: &mut Message, other: Message) {
    let blank = || json!({"type": "text", "text": "\n\n"});
    let part = |text: String| json!({"type": "text", "text": text});
    message.content = match (message.content.take(), other.content) {
        (None | Some(Content::Null), content) | (content, None | Some(Content::Null)) => content,
        (Some(Content::Text(text)), Some(Content::Text(other))) => {
            Some(Content::Text(format!("{text}\n\n{other}")))
        }
        (Some(Content::Text(text)), Some(Content::Parts(parts))) => {
            Some(Content::Parts([vec![part(text), blank()], parts].concat()))
        }
        (Some(Content::Parts(mut parts)), Some(Content::Text(text))) => {
            parts.extend([blank(), part(text)]);
            Some(Content::Parts(parts))
        }
        (Some(Content::Parts(mut parts)), Some(Content::Parts(others))) => {
            parts.push(blank());
            parts.extend(others);
            Some(Content::Parts(parts))
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: TurnTraits =
        TurnTraits { system: true, several_system: true, late_system: true, user_runs: true };

    #[test]
    fn templates_are_asked_which_turns_they_take() {
        let check = |source: &str, want: TurnTraits| {
            let template = ChatTemplate::new(source, "", "").unwrap();
            let got = TurnTraits::of(&template, false, |text| json!(text));
            assert_eq!(got, want, "{source}");
        };
        let prints = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
        check(prints, ALL);
        // The system message only at the front, others left out.
        let first = "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}\
                     {% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}\
                     {% endfor %}";
        check(first, TurnTraits { several_system: false, late_system: false, ..ALL });
        let alternates = "{% if messages[0].role == 'system' %}{{ messages[0].content }}\
                          {% set messages = messages[1:] %}{% endif %}{% for m in messages %}\
                          {% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
                          {{ raise_exception('no') }}{% endif %}{{ m.content }}{% endfor %}";
        let one = TurnTraits { several_system: false, late_system: false, user_runs: false, ..ALL };
        check(alternates, one);
        let refuses = format!(
            "{{% if messages[0].role == 'system' %}}{{{{ raise_exception('no') }}}}{{% endif %}}{alternates}"
        );
        check(&refuses, TurnTraits { system: false, ..one });
        let developer = "{% for m in messages %}{% if m.role == 'developer' and loop.index0 > 0 %}\
                         {% else %}{{ m.content }}{% endif %}{% endfor %}";
        let template = ChatTemplate::new(developer, "", "").unwrap();
        let got = TurnTraits::of(&template, true, |text| json!(text));
        assert_eq!(got, TurnTraits { several_system: false, late_system: false, ..ALL });
    }

    #[test]
    fn turns_are_joined_where_the_template_refuses_them() {
        let check = |traits: TurnTraits, sent: &[(&str, &str)], want: &[(&str, &str)]| {
            let messages = sent.iter().map(|(role, text)| Message::new(*role, *text)).collect();
            let want: Vec<Message> =
                want.iter().map(|(role, text)| Message::new(*role, *text)).collect();
            assert_eq!(traits.arrange(messages), want, "{traits:?}: {sent:?}");
        };
        let sent = [
            ("system", "a"),
            ("developer", "b"),
            ("user", "c"),
            ("user", "d"),
            ("assistant", "e"),
            ("system", "f"),
            ("system", "g"),
            ("user", "h"),
            ("tool", "i"),
            ("system", "j"),
            ("assistant", "k"),
            ("user", "l"),
            ("system", "m"),
        ];
        check(ALL, &sent, &sent);
        let one = TurnTraits { several_system: false, ..ALL };
        let (front, rest) = ([("system", "a\n\nb")], &sent[2..]);
        check(one, &sent, &[&front[..], rest].concat());
        let strict = TurnTraits { late_system: false, user_runs: false, ..one };
        let want = [
            ("system", "a\n\nb"),
            ("user", "c\n\nd"),
            ("assistant", "e"),
            ("user", "f\n\ng\n\nh"),
            ("tool", "i"),
            ("user", "j"),
            ("assistant", "k"),
            ("user", "l\n\nm"),
        ];
        check(strict, &sent, &want);
        // A turn more changes nothing of what came before.
        check(strict, &sent[..8], &want[..4]);
        let none = TurnTraits { system: false, several_system: false, ..strict };
        check(none, &sent[..3], &[("user", "a\n\nb\n\nc")]);
        check(none, &sent[..1], &[("user", "a")]);
    }

    #[test]
    fn conversations_are_arranged_for_the_template_at_hand() {
        let arranged = |source: &str, sent: &[(&str, &str)]| {
            let template = ChatTemplate::new(source, "", "").unwrap();
            let messages: Vec<_> =
                sent.iter().map(|(role, text)| Message::new(*role, *text)).collect();
            let arranged = template.arranged(&messages).into_owned();
            let options = RenderOptions::default();
            template.render(&arranged, &options).unwrap()
        };
        let sent = [("system", "a"), ("user", "b"), ("assistant", "c"), ("user", "d")];
        let prints = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
        assert_eq!(arranged(prints, &sent), "<system>a<user>b<assistant>c<user>d");
        let refuses = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}\
                       <{{ m.role }}>{{ m.content }}{% endfor %}";
        assert_eq!(arranged(refuses, &sent), "<user>a\n\nb<assistant>c<user>d");
        let leaves_out = "{% for m in messages %}{% if m.role != 'system' %}<{{ m.role }}>{{ m.content }}\
                          {% endif %}{% endfor %}";
        assert_eq!(arranged(leaves_out, &sent), "<user>a\n\nb<assistant>c<user>d");
        assert_eq!(arranged(refuses, &sent[..1]), "<user>a");
        assert_eq!(arranged(refuses, &sent[1..]), "<user>b<assistant>c<user>d");
    }

    #[test]
    fn parts_are_joined_as_parts() {
        let parts = |text: &str| Content::Parts(vec![json!({"type": "text", "text": text})]);
        let mut message = Message::user("a");
        join(&mut message, Message { content: Some(parts("b")), ..Message::user("") });
        join(&mut message, Message::user("c"));
        join(&mut message, Message { content: Some(parts("d")), ..Message::user("") });
        join(&mut message, Message { content: None, ..Message::user("") });
        let text = |text: &str| json!({"type": "text", "text": text});
        let all = ["a", "\n\n", "b", "\n\n", "c", "\n\n", "d"].map(text).to_vec();
        assert_eq!(message.content, Some(Content::Parts(all)));
    }
}
