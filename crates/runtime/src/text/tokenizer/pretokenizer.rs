//! Pre-tokenizers of byte-pair vocabularies: the expressions that cut a text into words before
//! any merge, by the name that `tokenizer.ggml.pre` gives them.
//!
//! The expressions are those the models' own tokenizers were trained with. A pre-tokenizer may
//! have several: each cuts the pieces that the one before it left, both its matches and the text
//! between them.

use std::ops::Range;

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
const CJK: &str = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+";
const CJK_KANA: &str = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+";
const PUNCTUATED: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const LINES: &str = r"[^\n]+|\n+";

/// How one named pre-tokenizer works, and what its name says about the rest of the tokenizer.
pub(super) struct PreTokenizer {
    name: String,
    steps: Vec<Regex>,
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
            "tiny_aya" | "cohere2moe" => &[r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O],
            "bailingmoe" | "bailingmoe2" | "llada-moe" => &[BAILING],
            "seed-coder" => &[SEED],
            "exaone-moe" => &[EXAONE_MOE],
            "laguna" => &[LINES, QWEN2],
            "gemma4" | "granite-embed-multi-311m" | "sarvam-moe" => &[LINES],
            _ => return Err(Error::UnknownPreTokenizer { name: name.to_owned() }),
        };
        let steps = expressions
            .iter()
            .map(|expression| Regex::new(expression).map_err(|source| regex_error(name, source)))
            .collect::<Result<_, _>>()?;
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
                || matches!(name, "minicpm5" | "glm4" | "glm5" | "granite-embed-multi-97m"),
            add_bos: adds_bos || name == "gemma4",
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
        steps: &[Regex],
        text: &str,
        word: Range<usize>,
        f: &mut dyn FnMut(Range<usize>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Some((step, rest)) = steps.split_first() else { return f(word) };
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

fn regex_error(name: &str, source: fancy_regex::Error) -> Error {
    Error::Regex { name: name.to_owned(), source: Box::new(source) }
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn unknown_name_is_an_error_that_names_it() {
        let error = PreTokenizer::new("no-such").err().map(|e| e.to_string());
        assert!(error.is_some_and(|e| e.contains("`no-such`")));
    }
}
