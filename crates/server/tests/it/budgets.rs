//! Budgets of reasoning, in the formats of the models: a spent one closes the reasoning with the format's own marker,
//! and what follows is the answer.

use realizar_runtime::constrain::{Constrainer, Constraint, Grammar};
use realizar_runtime::tokenizer::{EncodeOptions, Tokenizer};
use realizar_server::conversation::{Answer, AnswerPart};
use realizar_server::{ChatParser, ChatParserOptions, ReasoningFormat};

use crate::forced_calls::tokenizer;

/// All formats, with what a model writes to begin and to end its reasoning.
const FORMATS: [(ReasoningFormat, &str, &str); 6] = [
    (ReasoningFormat::Think, "<think>", "</think>"),
    (ReasoningFormat::Mistral, "[THINK]", "[/THINK]"),
    (ReasoningFormat::SeedOss, "<seed:think>", "</seed:think>"),
    (ReasoningFormat::CommandR7b, "<|START_THINKING|>", "<|END_THINKING|>"),
    (ReasoningFormat::Gemma4, "<|channel>thought", "<channel|>"),
    (
        ReasoningFormat::Harmony,
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
];

fn encode(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let options = EncodeOptions { add_special: false, parse_special: true };
    tokenizer.encode(text, options).unwrap()
}

/// Takes what the model would write; everything of it is allowed.
fn take(constraint: &mut Constraint, tokenizer: &Tokenizer, text: &str, written: &mut String) {
    for id in encode(tokenizer, text) {
        assert!(constraint.compute_mask().unwrap().allows(id), "{text:?} behind {written:?}");
        constraint.accept(id).unwrap();
    }
    written.push_str(text);
}

/// Takes tokens as long as there is but one, and says what they spell.
fn forced(constraint: &mut Constraint, tokenizer: &Tokenizer) -> String {
    let mut bytes = Vec::new();
    loop {
        let mask = constraint.compute_mask().unwrap();
        let mut allowed = (0..tokenizer.vocab_size() as u32).filter(|&id| mask.allows(id));
        let (Some(id), None) = (allowed.next(), allowed.next()) else { break };
        constraint.accept(id).unwrap();
        bytes.extend(tokenizer.token_bytes(id).unwrap());
    }
    String::from_utf8(bytes).unwrap()
}

/// What the parser makes of an answer.
fn parts(format: ReasoningFormat, is_open: bool, text: &str) -> Vec<AnswerPart> {
    let mut parser = ChatParser::new(ChatParserOptions {
        reasoning: Some(format),
        reasoning_open: is_open,
        ..ChatParserOptions::default()
    });
    let mut deltas = Vec::new();
    parser.push(text, &mut deltas);
    parser.finish(&mut deltas);
    deltas.into_iter().collect::<Answer>().parts
}

#[test]
fn a_spent_budget_closes_the_reasoning_of_every_format() {
    for (format, open, close) in FORMATS {
        for special in [true, false] {
            // The marks of channels are control tokens wherever they are used.
            if format == ReasoningFormat::Harmony && !special {
                continue;
            }
            let tokenizer = tokenizer(&format.markers(), special);
            let letters = Grammar::Regex("[xy]{2}".to_owned());
            let letters = Constrainer::new(&tokenizer).unwrap().compile(&letters).unwrap();
            for budget in [0, 1, 6] {
                for (is_open, grammar) in [
                    (true, None),
                    (true, Some(letters.clone())),
                    (false, None),
                    (false, Some(letters.clone())),
                ] {
                    let case = format!("{format:?}, {budget} tokens, open {is_open}");
                    let has_grammar = grammar.is_some();
                    let reasoning = format.limited(is_open, Some(budget));
                    let mut constraint =
                        Constraint::after_reasoning(grammar, &reasoning, &tokenizer);
                    let mut written = String::new();
                    if !is_open {
                        take(&mut constraint, &tokenizer, open, &mut written);
                    }
                    let thought = "q".repeat(budget);
                    take(&mut constraint, &tokenizer, &thought, &mut written);
                    // The marker and nothing else, in as many tokens as the vocabulary has it.
                    assert_eq!(forced(&mut constraint, &tokenizer), close, "{case}");
                    written.push_str(close);
                    take(&mut constraint, &tokenizer, "xy", &mut written);
                    assert!(constraint.is_stopped() || constraint.may_end().unwrap(), "{case}");
                    if !has_grammar {
                        take(&mut constraint, &tokenizer, " and more", &mut written);
                    }
                    let content = if has_grammar { "xy" } else { "xy and more" };
                    let content = AnswerPart::Content(content.to_owned());
                    let mut expected = vec![AnswerPart::Reasoning(thought), content];
                    expected.drain(..usize::from(budget == 0));
                    assert_eq!(parts(format, is_open, &written), expected, "{case}: {written}");
                }
            }
        }
    }
}

#[test]
fn reasoning_within_its_budget_is_free() {
    for (format, open, close) in FORMATS {
        let tokenizer = tokenizer(&format.markers(), true);
        let reasoning = format.limited(false, Some(40));
        let mut constraint = Constraint::after_reasoning(None, &reasoning, &tokenizer);
        let mut written = String::new();
        // The marker of the model's own ends it before the budget does, and an answer is not counted.
        let answer = "z".repeat(60);
        for text in [open, "why not", close, &answer] {
            take(&mut constraint, &tokenizer, text, &mut written);
        }
        assert!(constraint.may_end().unwrap());
        let expected =
            [AnswerPart::Reasoning("why not".to_owned()), AnswerPart::Content(answer.clone())];
        assert_eq!(parts(format, false, &written), expected, "{format:?}");
        // An answer without reasoning is not limited.
        let mut constraint = Constraint::after_reasoning(None, &reasoning, &tokenizer);
        take(&mut constraint, &tokenizer, &answer, &mut String::new());
        assert!(constraint.may_end().unwrap(), "{format:?}");
    }
}
