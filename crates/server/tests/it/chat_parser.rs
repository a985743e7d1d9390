//! Answers of models as they come in pieces: whatever the cuts, the same reasoning, content and
//! tool calls must come out, and no part of a marker.

use realizar_server::conversation::{Answer, AnswerPart};
use realizar_server::tools::Function;
use realizar_server::{ChatDelta, ChatParser, ChatParserOptions, ReasoningFormat, ToolFormat};
use serde_json::json;

use ToolFormat::{Apriel, Hermes, Json, Llama3Json, Mistral, Nemotron};

fn options(tools: ToolFormat) -> ChatParserOptions {
    ChatParserOptions {
        tools: Some(tools),
        functions: vec![
            Function::new("f", json!({"properties": {"text": {"type": "string"}}})),
            Function::new("get_weather", json!({"properties": {"days": {"type": "integer"}}})),
        ],
        id_seed: Some(1),
        ..ChatParserOptions::default()
    }
}

/// What comes out of `pieces`, one line per part: `R` reasoning, `C` content, `T` a call.
fn parse<'a>(options: &ChatParserOptions, pieces: impl IntoIterator<Item = &'a str>) -> String {
    let mut parser = ChatParser::new(options.clone());
    let mut deltas = Vec::new();
    for piece in pieces {
        parser.push(piece, &mut deltas);
    }
    parser.finish(&mut deltas);
    let mut n_calls = 0;
    for delta in &deltas {
        match delta {
            ChatDelta::ToolCallStart { index, .. } => {
                assert_eq!(*index, n_calls, "calls are counted from 0");
                n_calls += 1;
            }
            ChatDelta::ToolCallArguments { index, text } => {
                assert_eq!(*index + 1, n_calls, "arguments belong to the latest call");
                assert!(!text.is_empty());
            }
            ChatDelta::Content(text) | ChatDelta::Reasoning(text) => assert!(!text.is_empty()),
        }
    }
    assert_eq!(parser.has_tool_calls(), n_calls > 0);
    let answer: Answer = deltas.into_iter().collect();
    let show = |part: &AnswerPart| match part {
        AnswerPart::Reasoning(text) => format!("R {text}"),
        AnswerPart::Content(text) => format!("C {text}"),
        AnswerPart::ToolCall { name, arguments, .. } => format!("T {name} {arguments}"),
    };
    answer.parts.iter().map(show).collect::<Vec<_>>().join("|")
}

/// A small generator of numbers, xorshift by Marsaglia.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }
}

/// Cuts `text` at random characters.
fn random_pieces<'a>(text: &'a str, numbers: &mut Numbers) -> Vec<&'a str> {
    let mean = 1 + numbers.below(12);
    let mut pieces = Vec::new();
    let mut start = 0;
    for (at, _) in text.char_indices() {
        if numbers.below(mean) == 0 {
            pieces.push(&text[start..at]);
            start = at;
        }
    }
    pieces.push(&text[start..]);
    pieces
}

/// Parses `text` whole, in characters, cut at every place, and cut at random.
fn check(options: &ChatParserOptions, text: &str, want: &str) {
    assert_eq!(parse(options, [text]), want, "{text:?} whole");
    let characters: Vec<String> = text.chars().map(String::from).collect();
    assert_eq!(parse(options, characters.iter().map(String::as_str)), want, "{text:?} by 1");
    for (cut, _) in text.char_indices() {
        let (a, b) = text.split_at(cut);
        assert_eq!(parse(options, [a, b]), want, "{a:?} + {b:?}");
    }
    let mut numbers = Numbers(0x9E37_79B9_7F4A_7C15);
    for _ in 0..50 {
        let pieces = random_pieces(text, &mut numbers);
        assert_eq!(parse(options, pieces.iter().copied()), want, "{pieces:?}");
    }
}

#[test]
fn hermes() {
    let check = |text: &str, want: &str| check(&options(Hermes), text, want);
    check("Just text.\n", "C Just text.\n");
    check("a <b> <tool <tool_call <", "C a <b> <tool <tool_call <");
    check(
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}</tool_call>\"}}\n</tool_call>",
        "T f {\"a\": \"}</tool_call>\"}",
    );
    check(
        "Let me see.\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1, {}]}}\n</tool_call>\n\
         <tool_call>{\"arguments\": {\"city\": \"Zürich\"}, \"name\": \"get_weather\"}</tool_call>\n",
        "C Let me see.|T f {\"x\": [1, {}]}|T get_weather {\"city\": \"Zürich\"}",
    );
    // Any function may be called between markers, and one without arguments has none.
    check("<tool_call>{\"name\": \"unknown\"}</tool_call>", "T unknown {}");
    // Markers that models forget, and braces that they miscount.
    check("<tool_call>{\"name\": \"f\", \"arguments\": {}}", "T f {}");
    check("<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_c", "T f {}");
    check("<tool_call>{\"name\": \"f\", \"arguments\": {}\n</tool_call>", "T f {}");
    check("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1</tool_call>", "T f {\"a\": 1}");
    check("<tool_call>{\"name\": \"f\", \"arguments\": {}}}</tool_call>", "T f {}|C }</tool_call>");
    check(
        "<tool_call>[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\"}]</tool_call>",
        "T f {}|T g {}",
    );
    check(
        "<tool_call>{\"name\": \"f\", \"arguments\": {}}\n{\"name\": \"g\"}</tool_call>",
        "T f {}|T g {}",
    );
    // The answer was cut off.
    check("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b", "T f {\"a\": \"b\"}");
    check("<tool_call>{\"name\": \"f\", \"argu", "C <tool_call>{\"name\": \"f\", \"argu");
    // What is not a call is content, to the letter.
    check("a\n<tool_call>\nhello\n</tool_call>\n", "C a\n<tool_call>\nhello\n</tool_call>\n");
    check("<tool_call>{\"nam\": 1}</tool_call> b", "C <tool_call>{\"nam\": 1}</tool_call> b");
    check("<tool_call>{\"name\": 5}", "C <tool_call>{\"name\": 5}");
    check("<tool_call>[]</tool_call>", "C <tool_call>[]</tool_call>");
    check("<tool_call>", "C <tool_call>");
    check(
        "<tool_call>oops <tool_call>{\"name\": \"f\"}</tool_call> then\n text",
        "C <tool_call>oops|T f {}|C  then\n text",
    );
    check("{\"name\": \"f\", \"arguments\": {}}", "C {\"name\": \"f\", \"arguments\": {}}");
    check(" \n", "C  \n");
    check("", "");
}

#[test]
fn llama3() {
    let check = |text: &str, want: &str| check(&options(Llama3Json), text, want);
    check("{\"name\": \"f\", \"parameters\": {\"a\": 1}}", "T f {\"a\": 1}");
    check("\n{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}\n", "T f {}");
    check("<|python_tag|>{\"name\": \"g\", \"parameters\": {\"a\": 1}}", "T g {\"a\": 1}");
    check(
        "{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"get_weather\", \"parameters\": {}}",
        "T f {}|T get_weather {}",
    );
    check(
        "<|python_tag|>{\"name\": \"f\", \"parameters\": {}};{\"name\": \"g\"} ; and more",
        "T f {}|T g {}|C  ; and more",
    );
    check("<|python_tag|>{\"name\": \"f\"}<|python_tag|>{\"name\": \"g\"}", "T f {}|T g {}");
    check("Sure: <|python_tag|>{\"name\": \"f\"}", "C Sure:|T f {}");
    // An object that names no function of the request is an answer in JSON.
    for text in [
        "{\"name\": \"Ada\", \"parameters\": {}}",
        "{\"name\": \"f\"}",
        "{\"a\": 1}\n",
        "{not json",
        "{",
        "Here: {\"name\": \"f\", \"parameters\": {}}",
        "<|python_tag|>print(1)",
        "[1, 2]",
    ] {
        check(text, &format!("C {text}"));
    }
}

#[test]
fn mistral() {
    let check = |text: &str, want: &str| check(&options(Mistral), text, want);
    check("[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": \"]\"}}]", "T f {\"a\": \"]\"}");
    check(
        "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}, \"id\": \"abcdefghi\"}, \
         {\"arguments\": {\"b\": 2}, \"name\": \"g\"}]",
        "T f {}|T g {\"b\": 2}",
    );
    check("[TOOL_CALLS]{\"name\": \"f\", \"arguments\": {}}", "T f {}");
    check("Hm. [TOOL_CALLS]f[ARGS]{\"a\": {\"b\": 1}}", "C Hm.|T f {\"a\": {\"b\": 1}}");
    check(
        "[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]get-weather.x[ARGS]{}\n",
        "T f {\"a\": 1}|T get-weather.x {}",
    );
    check("[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{\"a\": 1}", "T f {\"a\": 1}");
    check("[TOOL_CALLS]f{\"a\": 1}", "T f {\"a\": 1}");
    check("[TOOL_CALLS]f[ARGS]{\"a\": 1", "T f {\"a\": 1}");
    for text in [
        "[TOOL_CALLS]f",
        "[TOOL_CALLS]f[ARG",
        "[TOOL_CALLS]f[ARGS]",
        "[TOOL_CALLS]f[ARGS]none",
        "[TOOL_CALLS]f [ARGS]",
        "[TOOL_CALLS][{\"name\": 1}]",
        "[TOOL_CALLS][\"f\"]",
        "[TOOL_CALLS]",
        "[TOOL_CALL",
        "[INST] [1, 2]",
    ] {
        check(text, &format!("C {text}"));
    }
    check("[TOOL_CALLS][{\"name\": \"f\"}, 5]", "T f {}|C , 5]");
}

#[test]
fn lists_between_markers() {
    let calls =
        "[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]";
    let want = "C ok|T f {\"a\": 1}|T g {}";
    check(&options(Nemotron), &format!("ok <TOOLCALL>{calls}</TOOLCALL>"), want);
    check(&options(Apriel), &format!("ok\n<tool_calls>{calls}</tool_calls>\n"), want);
}

#[test]
fn lists_behind_markers() {
    let calls = "[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\"}]";
    let granite = format!("<|tool_call|>{calls}\n");
    check(&options(ToolFormat::Granite3), &granite, "T f {\"a\": 1}|T g {}");
    let command = "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": \
                   {\"a\": 1}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"g\", \"parameters\": {}}\n]\
                   <|END_ACTION|>";
    check(&options(ToolFormat::CommandR7b), command, "T f {\"a\": 1}|T g {}");
}

#[test]
fn names_before_arguments() {
    let call = |inside: &str| format!("<｜tool▁call▁begin｜>{inside}<｜tool▁call▁end｜>");
    let calls = |inside: &str| format!("Ok.<｜tool▁calls▁begin｜>{inside}<｜tool▁calls▁end｜>");
    let two = [call("f<｜tool▁sep｜>{\"a\": 1}"), call("get_weather<｜tool▁sep｜>{}")].concat();
    let want = "C Ok.|T f {\"a\": 1}|T get_weather {}";
    check(&options(ToolFormat::DeepSeekV31), &calls(&two), want);
    let old = |name: &str, arguments: &str| {
        call(&format!("function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```"))
    };
    let two = [old("f", "{\"a\": 1}"), old("get_weather", "{}")].join("\n");
    check(&options(ToolFormat::DeepSeekV3), &calls(&two), want);
    let kimi = "Ok.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0\
                <|tool_call_argument_begin|>{\"a\": 1}<|tool_call_end|><|tool_call_begin|>\
                functions.get_weather:1<|tool_call_argument_begin|>{}<|tool_call_end|>\
                <|tool_calls_section_end|>";
    check(&options(ToolFormat::KimiK2), kimi, want);
    check(&options(ToolFormat::KimiK2), "no calls", "C no calls");
}

#[test]
fn calls_in_elements() {
    let qwen = |text: &str, want: &str| check(&options(ToolFormat::Qwen3Coder), text, want);
    qwen(
        "I look.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nZürich\n</parameter>\n\
         <parameter=days>\n3\n</parameter>\n<parameter=more>\n[1, {\"a\": true}]\n</parameter>\n\
         </function>\n</tool_call>",
        "C I look.|T get_weather {\"city\": \"Zürich\", \"days\": 3, \"more\": [1, {\"a\": true}]}",
    );
    // A text to the letter: quotes, line ends and what looks like a mark.
    qwen(
        "<tool_call><function=f><parameter=text>\n12\n\"</b>\n\n</para\n</parameter></function></tool_call>",
        "T f {\"text\": \"12\\n\\\"</b>\\n\\n</para\"}",
    );
    qwen(
        "<tool_call><function=f><parameter=text></parameter></function></tool_call>",
        "T f {\"text\": \"\"}",
    );
    qwen("<tool_call>\n<function=f>\n</function>\n</tool_call>", "T f {}");
    let call = "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n";
    let two = format!("{call}</tool_call>\n{call}</tool_call> end");
    qwen(&two, "T f {\"a\": 1}|T f {\"a\": 1}|C  end");
    // Marks that models forget: around the call, at its end, between two.
    let bare = &call["<tool_call>".len()..];
    qwen(&format!("Well.{bare}</tool_call>"), "C Well.|T f {\"a\": 1}|C \n</tool_call>");
    qwen("<tool_call><function=f><parameter=a>1</parameter>", "T f {\"a\": 1}");
    qwen("<tool_call><function=f><parameter=a>1</parameter></tool_call>", "T f {\"a\": 1}");
    qwen(&format!("{call}{}", bare.trim_start()), "T f {\"a\": 1}|T f {\"a\": 1}");
    // The answer was cut off, or is not a call.
    qwen("<tool_call><function=f><parameter=text>ab", "T f {\"text\": \"ab\"}");
    qwen("<tool_call>\n<function=", "C <tool_call>\n<function=");
    qwen("a <function=unknown> <tool_call>", "C a <function=unknown> <tool_call>");
    qwen("<tool_call>{\"n\": \"f\"}</tool_call>", "C <tool_call>{\"n\": \"f\"}</tool_call>");
    // Between the marks of any format a call may be JSON.
    qwen("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>", "T f {\"a\": 1}");

    let seed = "<seed:tool_call>\n<function=f>\n<parameter=a>1</parameter>\n</function>\n</seed:tool_call>";
    check(&options(ToolFormat::SeedOss), seed, "T f {\"a\": 1}");
    let minimax = "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"a\">1</parameter>\n\
                   <parameter name=\"text\">1</parameter>\n</invoke>\n<invoke name=\"get_weather\">\n</invoke>\n\
                   </minimax:tool_call>";
    let want = "T f {\"a\": 1, \"text\": \"1\"}|T get_weather {}";
    check(&options(ToolFormat::MinimaxM2), minimax, want);
    let glm = |text: &str, want: &str| check(&options(ToolFormat::Glm45), text, want);
    glm(
        "\n<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>text</arg_key>\n\
         <arg_value>1</arg_value>\n</tool_call><tool_call>get_weather</tool_call>",
        want,
    );
    glm("<tool_call>hello</tool_call>", "C <tool_call>hello</tool_call>");
    let deepseek = |section: &str| {
        format!(
            "Ok.\n\n<｜DSML｜{section}>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" \
             string=\"false\">[1, 2]</｜DSML｜parameter>\n<｜DSML｜parameter name=\"b\" string=\"true\">[1]\
             </｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"get_weather\">\n</｜DSML｜invoke>\n\
             </｜DSML｜{section}>"
        )
    };
    for section in ["function_calls", "tool_calls"] {
        let want = "C Ok.|T f {\"a\": [1, 2], \"b\": \"[1]\"}|T get_weather {}";
        check(&options(ToolFormat::DeepSeekV32), &deepseek(section), want);
    }
}

#[test]
fn calls_in_python() {
    let lfm = |text: &str, want: &str| check(&options(ToolFormat::Lfm2), text, want);
    lfm(
        "Sure. <|tool_call_start|>[f(a=1, text='it\\'s \"so\"', c=[1, {'k': None}], d=True), other()]\
         <|tool_call_end|>\nDone.",
        "C Sure.|T f {\"a\": 1, \"text\": \"it's \\\"so\\\"\", \"c\": [1,{\"k\":null}], \"d\": true}|\
         T other {}|C \nDone.",
    );
    lfm("<|tool_call_start|>[f(a=unquoted, )]<|tool_call_end|>", "T f {\"a\": \"unquoted\"}");
    lfm("<|tool_call_start|>f(a = -1.5)<|tool_call_end|>", "T f {\"a\": -1.5}");
    lfm("<|tool_call_start|>[1]<|tool_call_end|>", "C <|tool_call_start|>[1]<|tool_call_end|>");
    let llama = |text: &str, want: &str| check(&options(ToolFormat::Pythonic), text, want);
    llama(
        "[f(a=1), get_weather(city=\"Zürich\")]",
        "T f {\"a\": 1}|T get_weather {\"city\": \"Zürich\"}",
    );
    llama("<|python_start|>[f()]<|python_end|>", "T f {}");
    for text in ["[1, 2]", "[g(a=1)]", "see [f(a=1)]", "[f]", "["] {
        llama(text, &format!("C {text}"));
    }
}

#[test]
fn calls_of_gemma() {
    let check = |text: &str, want: &str| check(&options(ToolFormat::Gemma4), text, want);
    check(
        "<|tool_call>call:get_weather{city:<|\"|>Zü\"rich<|\"|>,days:3,more:{a:[1,<|\"|>b<|\"|>,],c:true},\
         <|\"|>d e<|\"|>:null}<tool_call|>",
        "T get_weather {\"city\": \"Zü\\\"rich\", \"days\": 3, \"more\": {\"a\": [1, \"b\"], \"c\": true}, \
         \"d e\": null}",
    );
    check(
        "Ok <|tool_call>call:f{}<tool_call|><|tool_call>call:f{}<tool_call|>",
        "C Ok|T f {}|T f {}",
    );
    check("<|tool_call>call:f{a:<|\"|>b", "T f {\"a\": \"b\"}");
    check("<|tool_call>f{}<tool_call|>", "C <|tool_call>f{}<tool_call|>");
    let think = ChatParserOptions {
        reasoning: Some(ReasoningFormat::Gemma4),
        ..options(ToolFormat::Gemma4)
    };
    self::check(
        &think,
        "<|channel>thought\nHm.\n<channel|><|tool_call>call:f{}<tool_call|>",
        "R Hm.|T f {}",
    );
}

#[test]
fn messages_in_channels() {
    let options = ChatParserOptions {
        reasoning: Some(ReasoningFormat::Harmony),
        ..options(ToolFormat::Harmony)
    };
    let analysis = "<|channel|>analysis<|message|>Hm.<|end|>";
    let answer = "<|start|>assistant<|channel|>final<|message|>Yes.";
    check(&options, &format!("{analysis}{answer}<|return|>"), "R Hm.|C Yes.");
    check(&options, &format!("{analysis}{answer}"), "R Hm.|C Yes.");
    let call =
        "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>";
    check(&options, &format!("{analysis}{call}{{\"a\": 1}}<|call|>"), "R Hm.|T f {\"a\": 1}");
    let early = "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>";
    check(&options, &format!("{early}{{}}<|call|>{call}{{}}<|call|>"), "T f {}|T f {}");
    check(&options, " to=functions.f<|channel|>commentary<|message|><|call|>", "T f {}");
    let preamble = "<|channel|>commentary<|message|>I look.<|end|>";
    check(&options, &format!("{preamble}{call}{{\"a"), "C I look.|T f {}");
    // The end of a message may be forgotten, and an answer may have none at all.
    check(&options, &format!("<|channel|>analysis<|message|>Hm.{answer}"), "R Hm.|C Yes.");
    check(&options, "{\"a\": \"<|b\"}", "C {\"a\": \"<|b\"}");
    check(&options, "<|channel|>fin", "");
    let single = ChatParserOptions { single_call: true, ..options.clone() };
    check(&single, &format!("{early}{{\"a\": 1}}<|call|>{call}{{}}<|call|>"), "T f {\"a\": 1}");
    // Without tools a message to a function is text, and forced calls are JSON.
    let plain = ChatParserOptions { tools: None, ..options.clone() };
    check(&plain, &format!("{analysis}{call}x"), "R Hm.|C x");
    let forced = ChatParserOptions { tools: Some(Json), reasoning: None, ..options };
    check(&forced, "{\"name\": \"f\", \"arguments\": {}}", "T f {}");
}

#[test]
fn constrained_json() {
    let check = |text: &str, want: &str| check(&options(Json), text, want);
    check("{\"name\": \"f\", \"arguments\": {\"a\": 1}}", "T f {\"a\": 1}");
    check(
        "[{\"name\": \"f\", \"arguments\": {}},\n {\"name\": \"get_weather\", \"arguments\": {}}]\n",
        "T f {}|T get_weather {}",
    );
    for text in ["[]", "[{\"name\": \"g\", \"arguments\": {}}]", "{}", "text", "["] {
        check(text, &format!("C {text}"));
    }
    // As a model may write it of itself.
    let marked = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    check(&format!("Well.\n{marked}"), "C Well.|T f {\"a\": 1}");
}

#[test]
fn reasoning_and_calls() {
    let think = |open| ChatParserOptions {
        reasoning: Some(ReasoningFormat::Think),
        reasoning_open: open,
        ..options(Hermes)
    };
    let rest = "\n\nNow.\n<tool_call>{\"name\": \"f\"}</tool_call>";
    check(
        &think(false),
        &format!("<think>\nHm <tool_call>\n</think>{rest}"),
        "R Hm <tool_call>|C Now.|T f {}",
    );
    check(&think(true), &format!("Hm.\n</think>{rest}"), "R Hm.|C Now.|T f {}");
    check(&think(true), "Hm.</think><tool_call>{\"name\": \"f\"}</tool_call>", "R Hm.|T f {}");
    check(&think(false), "a <think>b</think>", "C a <think>b</think>");
    let mistral =
        ChatParserOptions { reasoning: Some(ReasoningFormat::Mistral), ..options(Mistral) };
    check(&mistral, "[THINK]Hm[/THINK][TOOL_CALLS]f[ARGS]{}", "R Hm|T f {}");
    let bare = ChatParserOptions { reasoning: Some(ReasoningFormat::Think), ..options(Llama3Json) };
    check(&bare, "<think>a</think>\n{\"name\": \"f\", \"parameters\": {}}", "R a|T f {}");
    let plain = ChatParserOptions { tools: None, ..think(false) };
    check(&plain, "<think>a</think>\n<tool_call>x ", "R a|C <tool_call>x ");
    check(&ChatParserOptions::default(), "<think>a</think> \n", "C <think>a</think> \n");
}

#[test]
fn only_one_call_if_only_one_is_wanted() {
    let options = ChatParserOptions { single_call: true, ..options(Hermes) };
    let call = |name: &str| {
        format!("<tool_call>{{\"name\": \"{name}\", \"arguments\": {{\"a\": \"b\"}}}}</tool_call>")
    };
    check(&options, &format!("a{}\n{}", call("f"), call("g")), "C a|T f {\"a\": \"b\"}");
    let mut parser = ChatParser::new(options);
    let mut deltas = Vec::new();
    let text = call("f");
    let end = text.len() - "</tool_call>".len();
    parser.push(&text[..end - 1], &mut deltas);
    assert!(!parser.is_complete());
    parser.push(&text[end - 1..], &mut deltas);
    assert!(parser.is_complete());
}

#[test]
fn pieces_come_as_early_as_they_are_certain() {
    let mut parser = ChatParser::new(options(Hermes));
    let mut check = |text: &str, want: &[&str]| {
        let mut deltas = Vec::new();
        parser.push(text, &mut deltas);
        let show = |delta: &ChatDelta| match delta {
            ChatDelta::Content(text) => format!("C {text}"),
            ChatDelta::Reasoning(text) => format!("R {text}"),
            ChatDelta::ToolCallStart { index, name, .. } => format!("S{index} {name}"),
            ChatDelta::ToolCallArguments { index, text } => format!("A{index} {text}"),
        };
        assert_eq!(deltas.iter().map(show).collect::<Vec<_>>(), want, "{text:?}");
    };
    check("a b", &["C a b"]);
    check(" < c", &["C  < c"]);
    check(" <", &[]);
    check("tool_call>", &[]);
    check("{\"name\": \"f\"", &[]);
    check(", \"arguments\": ", &[]);
    check("{", &["S0 f", "A0 {"]);
    check("\"a\": \"<", &["A0 \"a\": \"<"]);
    check("/tool_call>\"", &["A0 /tool_call>\""]);
    check("}}</tool", &["A0 }"]);
    check("_call>\n\n<tool_call>{\"name\": \"g\", \"arguments\": {}", &["S1 g", "A1 {}"]);
    check("}</tool_call>", &[]);
    check(" end", &["C  end"]);
}

/// Random mixtures of what calls are made of: no cut changes the result, and a text without a
/// call comes out as it went in.
#[test]
fn no_cut_changes_what_comes_out() {
    const SCRAPS: &[&str] = &[
        "<tool_call>",
        "</tool_call>",
        "<tool_",
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "<think>",
        "</think>",
        "<function=f>",
        "<parameter=text>",
        "</parameter>",
        "</function>",
        "<arg_key>a</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "call:f{a:",
        "<|\"|>",
        "<|tool_call>",
        "<tool_call|>",
        "f(a=1)",
        "f(",
        ")",
        "'",
        "<|channel|>",
        "<|start|>",
        "<|message|>",
        "<|end|>",
        " to=functions.f",
        "\r\n",
        "{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
        "{\"name\": \"f\"",
        "{\"name\":",
        "\"arguments\": ",
        "\"parameters\":{\"b\":",
        "{",
        "}",
        "[",
        "]",
        ",",
        ";",
        ":",
        "\"",
        "\\",
        " ",
        "\n",
        "f",
        "12",
        "null",
        "é",
        "<",
        "/",
    ];
    const OPENERS: &[&str] = &[
        "<tool_call>",
        "<TOOLCALL> [",
        "<|python_tag|>",
        "[TOOL_CALLS][",
        "[TOOL_CALLS]f[ARGS]",
        "",
        "[",
    ];
    let mut numbers = Numbers(42);
    let mut n_calls = 0;
    for round in 0..4000 {
        let tools = [
            Hermes,
            Llama3Json,
            Mistral,
            Nemotron,
            Json,
            ToolFormat::Qwen3Coder,
            ToolFormat::Glm45,
            ToolFormat::Pythonic,
            ToolFormat::Gemma4,
            ToolFormat::Harmony,
        ][round % 10];
        let reasoning = [None, Some(ReasoningFormat::Think)][numbers.below(2)];
        let reasoning_open = numbers.below(4) == 0;
        let single_call = numbers.below(4) == 0;
        let options =
            ChatParserOptions { reasoning, reasoning_open, single_call, ..options(tools) };
        let mut text = String::new();
        if numbers.below(2) == 0 {
            text.push_str(OPENERS[numbers.below(OPENERS.len())]);
            text.push_str("{\"name\": \"f\", \"arguments\": {\"a\": 1}}");
        }
        for _ in 0..numbers.below(14) {
            text.push_str(SCRAPS[numbers.below(SCRAPS.len())]);
        }
        let want = parse(&options, [text.as_str()]);
        for _ in 0..8 {
            let pieces = random_pieces(&text, &mut numbers);
            assert_eq!(parse(&options, pieces.iter().copied()), want, "{pieces:?} as {options:?}");
        }
        if want.contains("T f") {
            n_calls += 1;
        } else if reasoning.is_none() && !text.is_empty() && tools != ToolFormat::Harmony {
            assert_eq!(want, format!("C {text}"));
        }
    }
    assert!(n_calls > 200, "only {n_calls} of the texts have calls");
}
