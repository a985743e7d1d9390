//! Pre-tokenizers of byte-pair vocabularies: the expressions that cut a text into words before
//! any merge, by the name that `tokenizer.ggml.pre` gives them.
//!
//! The expressions are those the models' own tokenizers were trained with. A pre-tokenizer may
//! have several: each cuts the pieces that the one before it left, both its matches and the text
//! between them.

use std::ops::Range;
use std::sync::LazyLock;

use fancy_regex::Regex;

use super::Error;

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
const LLAMA3: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const UFAKZEKA: &str =
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const BAILING: &str = r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const SEED: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const EXAONE_MOE: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";
const JAIS2: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}";
/// Letters of scripts with case, and the white space before them.
const DEEPSEEK_WORDS: &str = concat!(
    r"\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}",
    r"\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}",
    r"\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}",
    r"\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}",
    r"\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}",
    r"\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}",
    r"\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}",
    r"\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}",
    r"\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}",
    r"\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}",
    r"\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}",
    r"\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}",
    r"\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}",
    r"\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}",
    r"\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}",
    r"\x{1E900}-\x{1E943}]+",
);
const DEEPSEEK3_WORDS: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const SPARK_WORDS: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##;
const YOUTU_SCRIPTS: &str = concat!(
    r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+",
    r"|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C}",
    r"\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+",
    r"|[\x{3105}-\x{312F}]+|[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+",
);
const YOUTU_WORDS: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Chinese characters are words of their own, and the letters of other words exclude them.
const KIMI: &str = r"\p{Han}+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Scripts of Asia whose words are not separated by spaces.
const AFMOE_SCRIPTS: &str = concat!(
    r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{8C48}-\x{FAFF}\x{3040}-\x{309F}\x{30A0}-\x{30FF}",
    r"\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF}\x{E40}-\x{E7F}\x{E80}-\x{EFF}\x{1780}-\x{17FF}",
    r"\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+",
);
const CJK: &str = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+";
const CJK_KANA: &str = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+";
const PUNCTUATED: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const LINES: &str = r"[^\n]+|\n+";

/// One cut of the pieces that the step before it left.
enum Step {
    /// Matches of an expression, and the text between them.
    Matches(Regex),
    /// Runs of digits in groups of three, counted from the right as thousands are.
    Thousands(Thousands),
}

/// Which runs of digits are cut, and how. Written as an expression, each group would look ahead to
/// the end of its run.
#[derive(Clone, Copy)]
enum Thousands {
    /// Runs of `\p{N}`, apart from what is around them.
    Numbers,
    /// Runs of `\d` that end a word, apart from what is around them.
    DigitsOfWords,
    /// Runs of `\d`: cuts come before each whole group, so that the digits left over stay with
    /// what is before them.
    Digits,
}

/// How one named pre-tokenizer works, and what its name says about the rest of the tokenizer.
pub(super) struct PreTokenizer {
    name: String,
    steps: Vec<Step>,
    /// A word that is a token is taken whole, without merges.
    pub(super) ignore_merges: bool,
    /// The beginning-of-text token is added unless the file says otherwise.
    pub(super) add_bos: bool,
    /// Words are merged from characters, with spaces written as U+2581, not from bytes.
    pub(super) characters: bool,
}

impl PreTokenizer {
    /// The pre-tokenizer that a GGUF file calls `name`.
    pub(super) fn new(name: &str) -> Result<Self, Error> {
        let (thousands, after) = match name {
            "tiny_aya" | "cohere2moe" => (Some(Thousands::DigitsOfWords), 0),
            "afmoe" => (Some(Thousands::Numbers), 0),
            "superbpe" => (Some(Thousands::Digits), 1),
            _ => (None, 0),
        };
        let expressions: &[&str] = match name {
            "default" => &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
            "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral"
            | "midm-2.0" | "lfm2" | "jina-v5-nano" | "dbrx" | "smaug-bpe" | "chatglm-bpe"
            | "glm4" | "glm5" => &[LLAMA3],
            "minicpm5" => &[r"\p{N}{1,3}", LLAMA3],
            "jais-2" => &[JAIS2],
            "deepseek-llm" => &[
                r"[\r\n]",
                DEEPSEEK_WORDS,
                r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+",
                r"\s+$",
                CJK,
                r"\p{N}+",
            ],
            "deepseek-v3" | "hunyuan-dense" | "joyai-llm" | "hy_v4" => {
                &[r"\p{N}{1,3}", CJK_KANA, DEEPSEEK3_WORDS]
            }
            "deepseek-coder" => &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"],
            "falcon" => &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
            "starcoder" | "refact" | "command-r" | "smollm" | "codeshell" | "exaone"
            | "minerva-7b" | "mellum2" => &[r"\p{N}", GPT2],
            "gpt-2" | "phi-2" | "mpt" | "olmo" | "jais" | "trillion" | "granite-docling"
            | "exaone4" | "gigachat" | "a.x-4.0" | "mellum" | "modern-bert" | "jina-es"
            | "jina-de" | "jina-v2-es" | "jina-v2-de" => &[GPT2],
            "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "megrez" | "stablelm2"
            | "hunyuan" | "solar-open" | "grok-2" => &[QWEN2],
            "qwen35" => &[QWEN35],
            "ufakzeka" => &[UFAKZEKA],
            "poro-chat" | "bloom" | "gpt3-finnish" => &[PUNCTUATED],
            "viking" => &[PUNCTUATED, r"\p{N}"],
            "tekken" => &[TEKKEN],
            "gpt-4o"
            | "llama4"
            | "kanana2"
            | "talkie"
            | "minimax-m2"
            | "granite-embed-multi-97m" => &[GPT4O],
            "tiny_aya" | "cohere2moe" => &[GPT4O],
            "kimi-k2" => &[KIMI],
            "youtu" => &[YOUTU_SCRIPTS, YOUTU_WORDS],
            "spark2_5" => &[r"\p{N}{1,3}", CJK_KANA, SPARK_WORDS, r"\p{N}"],
            "afmoe" => &[AFMOE_SCRIPTS, DEEPSEEK3_WORDS],
            "superbpe" => &[r"\p{N}+"],
            // The spellings of images, which are tokens, come first.
            "chameleon" => &[
                "<sentinel:[0-9]+>",
                "IMGIMG[A-I]{1,4}Z",
                r"[\t\n]|    |  ",
                r"\p{N}",
                r"[\p{P}!-/:-@\[-`{-~]",
                GPT2,
            ],
            "bailingmoe" | "bailingmoe2" | "llada-moe" => &[BAILING],
            "seed-coder" => &[SEED],
            "exaone-moe" => &[EXAONE_MOE],
            "laguna" => &[LINES, QWEN2],
            "gemma4" | "granite-embed-multi-311m" | "sarvam-moe" => &[LINES],
            _ => return Err(Error::UnknownPreTokenizer { name: name.to_owned() }),
        };
        let mut steps = expressions
            .iter()
            .map(|expression| match Regex::new(expression) {
                Ok(expression) => Ok(Step::Matches(expression)),
                Err(source) => Err(regex_error(name, source)),
            })
            .collect::<Result<Vec<_>, _>>()?;
        if let Some(thousands) = thousands {
            steps.insert(after, Step::Thousands(thousands));
        }
        let adds_bos = matches!(
            name,
            "llama3"
                | "llama-v3"
                | "llama-bpe"
                | "falcon3"
                | "falcon-h1"
                | "pixtral"
                | "midm-2.0"
                | "lfm2"
                | "jina-v5-nano"
                | "tekken"
        );
        Ok(Self {
            name: name.to_owned(),
            steps,
            ignore_merges: adds_bos
                || matches!(name, "minicpm5" | "glm4" | "glm5" | "youtu")
                || name == "granite-embed-multi-97m",
            add_bos: adds_bos || matches!(name, "gemma4" | "chameleon"),
            characters: matches!(name, "gemma4" | "granite-embed-multi-311m" | "sarvam-moe"),
        })
    }

    /// Cuts `text` into words, which cover it completely and in order, and gives `f` the place of
    /// each. They are not collected: of a long text they would take many times its memory.
    pub(super) fn each_word(
        &self,
        text: &str,
        mut f: impl FnMut(Range<usize>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.cut(&self.steps, text, 0..text.len(), &mut f)
    }

    fn cut(
        &self,
        steps: &[Step],
        text: &str,
        word: Range<usize>,
        f: &mut dyn FnMut(Range<usize>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Some((step, rest)) = steps.split_first() else { return f(word) };
        let step = match step {
            Step::Matches(expression) => expression,
            Step::Thousands(which) => {
                return which.cut(text, word, &mut |piece| self.cut(rest, text, piece, f));
            }
        };
        let mut at = word.start;
        for found in step.find_iter(&text[word.clone()]) {
            let found = found.map_err(|source| regex_error(&self.name, source))?;
            let (start, end) = (word.start + found.start(), word.start + found.end());
            if start > at {
                self.cut(rest, text, at..start, f)?;
            }
            if end > start {
                self.cut(rest, text, start..end, f)?;
            }
            at = end;
        }
        if at < word.end {
            self.cut(rest, text, at..word.end, f)?;
        }
        Ok(())
    }
}

impl Thousands {
    /// Cuts the part `word` of `text`.
    fn cut(
        self,
        text: &str,
        word: Range<usize>,
        f: &mut dyn FnMut(Range<usize>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let is_digit = |c: char| match self {
            Self::Numbers => c.is_numeric(),
            Self::DigitsOfWords | Self::Digits => is_decimal(c),
        };
        let part = &text[word.clone()];
        let mut at = 0; // what comes before has been emitted
        let mut from = 0;
        let mut groups = Vec::new();
        while let Some(start) = part[from..].find(is_digit).map(|found| from + found) {
            let len = part[start..].find(|c| !is_digit(c)).unwrap_or(part.len() - start);
            let end = start + len;
            from = end;
            if matches!(self, Self::DigitsOfWords) && part[end..].starts_with(is_word) {
                continue;
            }
            // The places of groups, from the right.
            groups.clear();
            let mut places = part[start..end].char_indices().rev().map(|(place, _)| start + place);
            groups.extend(std::iter::from_fn(|| places.nth(2)));
            let whole = !matches!(self, Self::Digits);
            let begin = whole.then_some(start);
            let ends = whole.then_some(end);
            for cut in begin.into_iter().chain(groups.iter().rev().copied()).chain(ends) {
                if cut > at {
                    f(word.start + at..word.start + cut)?;
                    at = cut;
                }
            }
        }
        if at < part.len() {
            f(word.start + at..word.end)?;
        }
        Ok(())
    }
}

/// Whether `\d` matches.
fn is_decimal(c: char) -> bool {
    c.is_ascii_digit() || !c.is_ascii() && one_char(c, &DECIMAL)
}

/// Whether `\w` matches.
fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || !c.is_ascii() && one_char(c, &WORD)
}

static DECIMAL: LazyLock<Regex> = LazyLock::new(|| expression(r"\A\d"));
static WORD: LazyLock<Regex> = LazyLock::new(|| expression(r"\A\w"));

fn expression(text: &str) -> Regex {
    Regex::new(text).expect("the expression is a constant")
}

fn one_char(c: char, expression: &Regex) -> bool {
    expression.is_match(c.encode_utf8(&mut [0; 4])).unwrap_or(false)
}

fn regex_error(name: &str, source: fancy_regex::Error) -> Error {
    Error::Regex { name: name.to_owned(), source: Box::new(source) }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use sha2::{Digest, Sha256};

    use super::*;

    #[test]
    fn splits_as_the_models_do() {
        let check = |name: &str, text: &str, want: &[&str]| {
            let mut words = Vec::new();
            let mut push = |word: Range<usize>| {
                words.push(&text[word]);
                Ok(())
            };
            PreTokenizer::new(name).unwrap().each_word(text, &mut push).unwrap();
            assert_eq!(words, want, "{name}: {text:?}");
        };
        check("gpt-2", "Hello  world's 123", &["Hello", " ", " world", "'s", " 123"]);
        check("smollm", "in 2018\n\nx", &["in", " ", "2", "0", "1", "8", "\n", "\n", "x"]);
        check("llama-bpe", "I'M 12345\n\n  x", &["I", "'M", " ", "123", "45", "\n\n", " ", " x"]);
        check("qwen2", "12 ab", &["1", "2", " ab"]);
        check("tekken", "HelloWorld", &["Hello", "World"]);
        check("default", "a=12345", &["a", "=", "123", "45"]);
        check("gemma4", "a b\n\nc", &["a b", "\n\n", "c"]);
        check("gpt-2", "", &[]);
    }

    /// The words of `fixtures/pretokenizers`, which the `tokenizers` library made of the expressions
    /// that llama.cpp lists for each name.
    #[test]
    fn words_are_those_of_oniguruma() {
        let goldens = include_str!("../../../../fixtures/pretokenizers/goldens.json");
        let goldens: Value = serde_json::from_str(goldens).unwrap();
        let strings = |key: &str| {
            let list = goldens[key].as_array().unwrap().iter();
            list.map(|text| text.as_str().unwrap()).collect::<Vec<_>>()
        };
        let texts = strings("texts");
        let mut wrong = Vec::new();
        for (name, want) in goldens["words"].as_object().unwrap() {
            let pre = PreTokenizer::new(name).unwrap_or_else(|error| panic!("{name}: {error}"));
            let cut = |text: &&str| {
                let mut lengths = Vec::new();
                let push = |word: Range<usize>| {
                    lengths.push(word.len());
                    Ok(())
                };
                pre.each_word(text, push).unwrap();
                lengths
            };
            let lengths: Vec<Vec<usize>> = texts.iter().map(cut).collect();
            let n_words: usize = lengths.iter().map(Vec::len).sum();
            let digest = Sha256::digest(serde_json::to_string(&lengths).unwrap());
            let digest: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
            if *want != format!("{n_words} {digest}") {
                wrong.push(format!("{name}: {n_words} {lengths:?}, want {want}"));
            }
        }
        assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
        // Those of encoders are refused by name.
        for name in strings("encoders") {
            let error = PreTokenizer::new(name).err().map(|error| error.to_string());
            assert!(error.is_some_and(|error| error.contains(name)), "{name}");
        }
    }

    #[test]
    fn long_numbers_are_cut_in_one_pass() {
        let text = "7".repeat(1_000_000);
        for (name, want) in [("afmoe", 333_334), ("tiny_aya", 333_334), ("superbpe", 333_334)] {
            let mut n_words = 0;
            let count = |_| {
                n_words += 1;
                Ok(())
            };
            PreTokenizer::new(name).unwrap().each_word(&text, count).unwrap();
            assert_eq!(n_words, want, "{name}");
        }
    }

    #[test]
    fn unknown_name_is_an_error_that_names_it() {
        let error = PreTokenizer::new("no-such").err().map(|e| e.to_string());
        assert!(error.is_some_and(|e| e.contains("`no-such`")));
    }
}
