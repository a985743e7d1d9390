//! Chat templates: a conversation becomes the text that the model was trained on.
//!
//! Templates are Jinja programs that come with the model and may be hostile. They run with the
//! settings that transformers gives Jinja2, without access to anything outside, and with limits on
//! their size and nesting, on steps, on output and on the bytes of all values that they make; they
//! are compiled and rendered on threads whose stacks suffice for these. One thing differs: strings
//! marked as safe for HTML do not make the strings that are joined to them escape, as Jinja2's do.
//!
//! ```
//! use realizar_text::template::{ChatTemplate, Message, RenderOptions};
//!
//! let source = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}\
//!               {% if add_generation_prompt %}<assistant>{% endif %}";
//! let template = ChatTemplate::new(source, "<s>", "</s>")?;
//! let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
//! let text = template.render(&[Message::system("Be brief."), Message::user(" Hi! ")], &options)?;
//! assert_eq!(text, "<s><system>Be brief.<user>Hi!<assistant>");
//! # Ok::<(), realizar_text::template::Error>(())
//! ```
//!
//! [`ChatTemplate::render_prompt`] renders for a tokenizer, so that what people write does not become control tokens.

mod budget;
mod builtins;
mod clock;
mod error;
mod guard;
mod message;
mod methods;
mod names;
mod order;
mod python;
mod scan;
mod source;
mod turns;

use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Serde, Value, ValueKind, ValueOrKwargs};
use minijinja::{AutoEscape, Environment, ErrorKind, State, UndefinedBehavior, functions};

pub use clock::strftime;
pub use error::Error;
use message::ForTemplate;
pub use message::{Content, Message};
use names::{Named, Use};
pub use order::TurnTraits;
use realizar_base::panics;

/// Steps of the template machine after which a render is aborted.
const MAX_STEPS: u64 = 5_000_000;
/// Steps that every template has.
const MIN_STEPS: u64 = 200_000;
/// Bytes of the text between tags that a template can write into values, at one step each: a
/// template with long texts has fewer steps.
const MAX_COPIED: u64 = 2 << 30;
/// The stacks for compiling and for rendering. The system gives memory for what is used of them.
const STACK: usize = 256 << 20;
/// Bytes of output after which a render is aborted.
const MAX_OUTPUT: usize = 64 << 20;

/// A compiled chat template with the tokens it refers to.
pub struct ChatTemplate {
    default: Environment<'static>,
    tool_use: Option<Box<ChatTemplate>>,
    source: String,
    bos: Option<String>,
    eos: Option<String>,
    turns: Arc<turns::Turns>,
    turn_traits: OnceLock<TurnTraits>, // once they are needed
}

/// What a render is given beside the messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct RenderOptions<'a> {
    /// End with the beginning of an answer by the assistant.
    pub add_generation_prompt: bool,
    /// Tools that the model may call, as JSON schemas of functions.
    pub tools: Option<&'a [serde_json::Value]>,
    /// Further variables, such as `enable_thinking` or `documents`.
    pub extra: Option<&'a serde_json::Map<String, serde_json::Value>>,
    /// The time that `strftime_now` returns, in UTC; now if absent.
    pub now: Option<SystemTime>,
}

impl ChatTemplate {
    /// Compiles a template; `bos` and `eos` are the texts of the tokens that it calls `bos_token`
    /// and `eos_token`.
    ///
    /// Fails if the template does not parse.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self, Error> {
        Self::with_tools(source, None, Some(bos.to_owned()), Some(eos.to_owned()))
    }

    fn with_tools(
        source: &str,
        tool_use: Option<&str>,
        bos: Option<String>,
        eos: Option<String>,
    ) -> Result<Self, Error> {
        let for_tools = |source| Self::with_tools(source, None, bos.clone(), eos.clone());
        Ok(Self {
            default: compile(source)?,
            tool_use: tool_use.map(for_tools).transpose()?.map(Box::new),
            source: source.to_owned(),
            bos,
            eos,
            turns: Arc::default(),
            turn_traits: OnceLock::new(),
        })
    }

    /// The template of conversations with tools: the one that the model has for these, or else this one.
    /// Renders with [`RenderOptions::tools`] take it by themselves.
    pub fn for_tools(&self) -> &Self {
        self.tool_use.as_deref().unwrap_or(self)
    }

    /// Whether the model has another template for conversations with tools.
    pub fn has_tool_use(&self) -> bool {
        self.tool_use.is_some()
    }

    /// The text of the template.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a conversation.
    ///
    /// The text does not tell what the template wrote and what the conversation; for a prompt, use
    /// [`Self::render_prompt`].
    ///
    /// Fails if the template refuses the conversation, if it does something that Jinja does not
    /// allow, or if it exceeds its limits of steps, output or memory.
    pub fn render(
        &self,
        messages: &[Message],
        options: &RenderOptions<'_>,
    ) -> Result<String, Error> {
        on_a_stack(|| self.render_here(messages, options))
    }

    fn render_here(
        &self,
        messages: &[Message],
        options: &RenderOptions<'_>,
    ) -> Result<String, Error> {
        let _rendering = budget::begin(&self.turns);
        let messages: Vec<_> = messages.iter().map(ForTemplate).collect();
        let environment = self.environment(options);
        let mut variables: Vec<(String, Value)> = vec![
            ("messages".to_owned(), Value::from(Serde(&messages))),
            ("tools".to_owned(), Value::from(Serde(options.tools))),
            ("documents".to_owned(), Value::from(())),
            ("add_generation_prompt".to_owned(), Value::from(options.add_generation_prompt)),
        ];
        for (name, token) in [("bos_token", &self.bos), ("eos_token", &self.eos)] {
            if let Some(token) = token {
                variables.push((name.to_owned(), Value::from(token.as_str())));
            }
        }
        let now = options.now.unwrap_or_else(SystemTime::now);
        variables.push((
            "strftime_now".to_owned(),
            Value::from_function(move |format: &str| {
                budget::count(format.len().saturating_mul(16))?;
                clock::strftime(now, format)
                    .map_err(|problem| minijinja::Error::new(ErrorKind::InvalidOperation, problem))
            }),
        ));
        for (name, value) in options.extra.into_iter().flatten() {
            variables.push((name.clone(), Value::from(Serde(value))));
        }
        let context = Value::from_pairs(variables);
        let mut output = Limited { bytes: Vec::new(), full: false };
        let template = environment.get_template(source::NAME).map_err(|error| failed(&error))?;
        let result = template.render_captured_to(context, &mut output).map(drop);
        if output.full {
            return Err(Error::Output { limit: MAX_OUTPUT });
        }
        if budget::is_exceeded() {
            return Err(Error::Memory { limit: budget::MAX_MADE });
        }
        result.map_err(|error| match error.kind() {
            ErrorKind::OutOfFuel => Error::Steps { limit: environment.fuel().unwrap_or(MAX_STEPS) },
            _ => failed(&error),
        })?;
        Ok(String::from_utf8(output.bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    /// The environment of the template that such a render takes.
    fn environment(&self, options: &RenderOptions<'_>) -> &Environment<'static> {
        let template = if options.tools.is_some() { self.for_tools() } else { self };
        &template.default
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("source_len", &self.source.len())
            .field("has_tool_use", &self.tool_use.is_some())
            .finish_non_exhaustive()
    }
}

/// What `raise_exception` carries through the template machine.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// Runs on a thread with a stack for what a template may nest.
fn on_a_stack<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("template".to_owned()).stack_size(STACK);
        let thread = thread.spawn_scoped(scope, work).map_err(Error::Thread)?;
        thread.join().unwrap_or_else(|panic| {
            let problem = format!("it panicked: {}", panics::text(&*panic));
            Err(Error::Render { problem })
        })
    })
}

/// An environment set up as transformers sets up Jinja2, holding the one template.
fn compile(text: &str) -> Result<Environment<'static>, Error> {
    let text = source::with_known_tags(text);
    let checked = scan::check(&text).map_err(|problem| Error::Syntax { problem })?;
    on_a_stack(|| compile_here(checked))
}

fn compile_here(checked: scan::Checked) -> Result<Environment<'static>, Error> {
    let steps = MAX_COPIED / checked.longest_data.max(1) as u64;
    let syntax_error = |error: minijinja::Error| Error::Syntax { problem: describe(&error) };
    let mut environment = Environment::new();
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true);
    environment.set_syntax(syntax.build().map_err(syntax_error)?);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(steps.clamp(MIN_STEPS, MAX_STEPS)));
    budget::wrap(&mut environment);
    builtins::add(&mut environment);
    environment.set_formatter(|out, _state, value| {
        budget::count_text(value)?;
        if let Some(text) = value.as_str() {
            return out.write_str(text).map_err(minijinja::Error::from);
        }
        let mut text = String::new();
        python::write_str(value, &mut text)?;
        out.write_str(&text).map_err(minijinja::Error::from)
    });
    environment
        .add_filter("tojson", |value: &Value, kwargs: Kwargs| python::tojson(value, &kwargs));
    for name in ["length", "count"] {
        environment.add_filter(name, |value: &Value| match value.len() {
            // Jinja2's undefined value is an empty sequence.
            None if value.is_undefined() => Ok(0),
            Some(len) => Ok(len),
            None => {
                let problem = format!("a value of type {} has no length", value.kind());
                Err(minijinja::Error::new(ErrorKind::InvalidOperation, problem))
            }
        });
    }
    environment.add_filter("string", |value: &Value| {
        budget::count_text(value)?;
        let mut text = String::new();
        python::write_str(value, &mut text).map(|()| text)
    });
    for name in ["escape", "e", "forceescape"] {
        environment.add_filter(name, |value: &Value| {
            budget::count_text(value)?;
            let mut text = String::new();
            python::write_str(value, &mut text).map(|()| python::escape(&text))
        });
    }
    environment.add_filter(
        "indent",
        |text: &str,
         width: Option<Value>,
         first: Option<bool>,
         blank: Option<bool>,
         kwargs: Kwargs| { python::indent(text, width, first, blank, &kwargs) },
    );
    // Python cannot iterate over None.
    environment.add_test("iterable", |value: &Value| {
        use ValueKind::{Iterable, Map, Seq, String, Undefined};
        matches!(value.kind(), Undefined | String | Seq | Iterable | Map)
    });
    for (name, original) in [
        ("dict", Value::from_function(functions::dict)),
        ("namespace", Value::from_function(functions::namespace)),
    ] {
        environment.add_function(
            name,
            move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
                let args = args.into_values();
                args.iter().try_for_each(budget::count_text)?;
                original.call(state, &args)
            },
        );
    }
    environment.add_function("raise_exception", |message: &str| -> Result<Value, _> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, "raised")
            .with_source(Raised(message.to_owned())))
    });
    environment.add_template_owned(source::NAME, checked.text).map_err(syntax_error)?;
    check_names(&environment, &checked.names)?;
    Ok(environment)
}

/// Refuses a template that names a filter or a test that does not exist.
fn check_names(environment: &Environment<'static>, names: &[Named]) -> Result<(), Error> {
    let mut state = environment.empty_state();
    for Named { of, name, line } in names {
        let (result, unknown, what) = match of {
            Use::Filter => {
                (state.apply_filter(name, &[]).err(), ErrorKind::UnknownFilter, "filter")
            }
            Use::Test => (state.perform_test(name, &[]).err(), ErrorKind::UnknownTest, "test"),
        };
        if result.is_some_and(|error| error.kind() == unknown) {
            let problem = format!("there is no {what} named `{name}` (in line {line})");
            return Err(Error::Syntax { problem });
        }
    }
    Ok(())
}

fn describe(error: &minijinja::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

fn failed(error: &minijinja::Error) -> Error {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref() {
            return Error::Raised { message: message.clone() };
        }
        source = cause.source();
    }
    Error::Render { problem: describe(error) }
}

/// A writer that refuses what exceeds the limit of output.
struct Limited {
    bytes: Vec<u8>,
    full: bool,
}

impl io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_OUTPUT {
            self.full = true;
            return Err(io::Error::other("the output is too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn render(source: &str, options: &RenderOptions<'_>) -> Result<String, Error> {
        let messages = [Message::new("user", "Hi <b>"), Message::new("assistant", " Yes\n")];
        ChatTemplate::new(source, "<s>", "</s>")?.render(&messages, options)
    }

    #[test]
    fn a_conversation_with_tools_may_have_a_template_of_its_own() {
        let template =
            ChatTemplate::with_tools("plain", Some("{{ tools | length }}"), None, None).unwrap();
        let tools = [serde_json::json!({}), serde_json::json!({})];
        let with = RenderOptions { tools: Some(&tools), ..RenderOptions::default() };
        assert_eq!(template.render(&[], &RenderOptions::default()).unwrap(), "plain");
        assert_eq!(template.render(&[], &with).unwrap(), "2");
        assert_eq!(template.for_tools().render(&[], &with).unwrap(), "2");
        assert_eq!(template.for_tools().source(), "{{ tools | length }}");
        assert!(template.has_tool_use() && !template.for_tools().has_tool_use());
        let one = ChatTemplate::new("one", "", "").unwrap();
        assert_eq!(one.for_tools().source(), "one");
    }

    #[test]
    fn renders_as_transformers_does() {
        let check = |source: &str, want: &str| {
            let got = render(source, &RenderOptions::default()).unwrap();
            assert_eq!(got, want, "{source}");
        };
        check("{{ bos_token }}{{ messages[0]['content'] }}{{ eos_token }}", "<s>Hi <b></s>");
        check(
            "{% for m in messages %}\n    {% if true %}\n{{ m.role }}\n    {% endif %}\n{% endfor %}\n",
            "user\nassistant\n",
        );
        check("{{ messages[1].content.strip() }}|{{ 'a b'.split()[1] }}", "Yes|b");
        check("{{ true }} {{ none }} {{ missing }} {{ [1, 'a'] }}", "True None  [1, 'a']");
        check("{{ messages[0] | tojson }}", r#"{"role": "user", "content": "Hi <b>"}"#);
        check(
            "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "01",
        );
        check("a\n{%- generation -%}\nx\n{%- endgeneration %}\nb", "axb");
        check("{% set ns = namespace(x=1) %}{% set ns.x = ns.x + 1 %}{{ ns.x }}", "2");
        check("{{ none is iterable }}{{ 'a' is iterable }}", "FalseTrue");
        check("{{ \"<a href='x'>\" | e }}", "&lt;a href=&#39;x&#39;&gt;");
        check("{{ '{\n' | indent(2, first=true) }}{{ 'a\n\nb' | indent(1) }}", "  {\na\n\n b");
        check("{{ missing | length }}{{ 'aé' | length }}{{ [1, 2, 3] | count }}", "023");
        check("{{ tools is none }}{{ tools is defined }}{{ foo is defined }}", "TrueTrueFalse");
    }

    #[test]
    fn options_reach_the_template() {
        let extra = serde_json::json!({"enable_thinking": false});
        let tools = [serde_json::json!({"name": "f", "arguments": {"z": 1, "a": 2}})];
        let options = RenderOptions {
            add_generation_prompt: true,
            tools: Some(&tools),
            extra: extra.as_object(),
            now: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(86_400)),
        };
        let source = "{{ add_generation_prompt }} {{ enable_thinking }} {{ tools | tojson }} {{ strftime_now('%d %b %Y') }}";
        let want = r#"True False [{"name": "f", "arguments": {"z": 1, "a": 2}}] 02 Jan 1970"#;
        assert_eq!(render(source, &options).unwrap(), want);
    }

    #[test]
    fn failures_are_errors() {
        let check = |source: &str, want: &str| {
            let error = render(source, &RenderOptions::default()).unwrap_err().to_string();
            assert!(error.contains(want), "{source}: {error}");
            assert!(!error.contains('\n'), "{error}");
        };
        check(
            "{{ raise_exception('no system role') }}",
            "rejected the conversation: no system role",
        );
        check("{% if %}", "does not parse");
        check("{{ messages[0].content.nope() }}", "nope");
        check(
            "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
            "steps",
        );
        check("{% for a in range(9999) %}{{ 'abcdefgh' * 9999 }}{% endfor %}", "more than");
        check("{{ 'a' * 99999999999 }}", "made more than 512.00 MiB");
        check("{% include 'file' %}", "does not parse: there is no template that it could include");
        check("{% if 1 %}{% include 'file' %}{% endif %}", "file");
        // As in Jinja2, a filter that does not exist is an error of the template unless it is in a condition.
        check(
            "{{ 1 | nofilter }}",
            "does not parse: there is no filter named `nofilter` (in line 1)",
        );
        check(
            "{% for m in [] %}\n{{ m is notest }}{% endfor %}",
            "no test named `notest` (in line 2)",
        );
        check("{% if 1 %}{{ 1 | nofilter }}{% endif %}", "failed: unknown filter");
        check("{{ '%d' % 'x' }}", "failed");
        check("{{ '%s %s' % ('a',) }}", "not enough arguments for format string");
        check("{{ '%s' % ('a', 'b') }}", "not all arguments converted");
        check("{{ messages[0].x % 2 }}", "failed");
        check("{{ (messages | length) % 0 }}", "modulo by zero");
        check("{{ 'a'.index('b') }}", "substring not found");
        check("{{ 'a'.rsplit('') }}", "empty separator");
        check("{{ 'a'.ljust(999999999) }}", "a width is too large");
    }
}
