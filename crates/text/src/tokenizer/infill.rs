//! The tokens by which a model fills in the middle of a text (Bavarian et al., 2022, "Efficient
//! Training of Language Models to Fill in the Middle").

use super::Tokenizer;

/// Tokens of infilling.
pub(super) const N_ROLES: usize = 5;

/// Texts of the tokens before a prefix, before a suffix and before the middle, before the name of a
/// repository and before that of a file, of the models that have them: Qwen and StarCoder 2, Granite,
/// StarCoder, DeepSeek, CodeLlama, CodeGemma, GLM.
const TEXTS: [&[&str]; N_ROLES] = [
    &[
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
    ],
    &[
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
    ],
    &[
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
    ],
    &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"],
    &["<|file_sep|>"],
];

/// The tokens of infilling. A prompt for it is `prefix`, the text before, `suffix`, the text
/// after, `middle`; what the model continues with stands between the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Infill {
    /// Before the text that comes first.
    pub prefix: u32,
    /// Before the text that comes last.
    pub suffix: u32,
    /// Before the text that is generated.
    pub middle: u32,
    /// Before the name of a repository, which comes first of all (Hui et al., 2024, "Qwen2.5-Coder").
    pub repo: Option<u32>,
    /// Before the name of each of its files.
    pub file: Option<u32>,
}

impl Tokenizer {
    /// The tokens of infilling, as the file names them or as they are known by their texts; `None`
    /// if one of the first three is missing, as with most models that were not trained on code.
    pub fn infill(&self) -> Option<Infill> {
        let find = |role: usize| {
            let known = || TEXTS[role].iter().find_map(|text| self.id_of(text));
            self.infill[role].or_else(known)
        };
        let [prefix, suffix, middle, repo, file] = std::array::from_fn(find);
        Some(Infill { prefix: prefix?, suffix: suffix?, middle: middle?, repo, file })
    }
}
