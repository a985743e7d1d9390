//! The catalogue: names that people ask for, as `family:tag`, and the repositories of the hub that publish
//! these models as GGUF files.
//!
//! A family is one row, a size of it one line. How the hub is asked is not known here.

use anyhow::{Result, bail};

use super::hf::HfSource;

/// Models of one name.
#[derive(Debug)]
pub(crate) struct Family {
    /// What the user types before the colon.
    pub(crate) name: &'static str,
    /// Licence or terms under which the weights are published.
    pub(crate) licence: &'static str,
    /// Its sizes; the first is meant where no tag is given.
    pub(crate) sizes: &'static [Size],
}

/// One size of a family.
#[derive(Debug)]
pub(crate) struct Size {
    /// What the user types after the colon.
    pub(crate) tag: &'static str,
    /// Repository of GGUF files, `owner/name`.
    pub(crate) repo: &'static str,
    /// The file that is taken where the tag names no quantization.
    pub(crate) quantization: &'static str,
}

const fn size(tag: &'static str, repo: &'static str) -> Size {
    Size { tag, repo, quantization: "Q4_K_M" }
}

const fn size_in(tag: &'static str, repo: &'static str, quantization: &'static str) -> Size {
    Size { tag, repo, quantization }
}

const APACHE: &str = "Apache-2.0";
const MIT: &str = "MIT";
const LFM: &str = "LFM Open License v1.0";
const GEMMA: &str = "Gemma Terms of Use, ai.google.dev/gemma/terms";

/// Every family, by name.
pub(crate) const FAMILIES: &[Family] = &[
    Family {
        name: "command-r7b",
        licence: "CC-BY-NC-4.0",
        sizes: &[size("7b", "bartowski/c4ai-command-r7b-12-2024-GGUF")],
    },
    Family {
        name: "deepseek-r1",
        licence: MIT,
        sizes: &[
            size("8b", "bartowski/DeepSeek-R1-Distill-Llama-8B-GGUF"),
            size("1.5b", "bartowski/DeepSeek-R1-Distill-Qwen-1.5B-GGUF"),
            size("7b", "bartowski/DeepSeek-R1-Distill-Qwen-7B-GGUF"),
            size("14b", "bartowski/DeepSeek-R1-Distill-Qwen-14B-GGUF"),
            size("32b", "bartowski/DeepSeek-R1-Distill-Qwen-32B-GGUF"),
            size("70b", "bartowski/DeepSeek-R1-Distill-Llama-70B-GGUF"),
        ],
    },
    Family {
        name: "devstral",
        licence: APACHE,
        sizes: &[size("24b", "bartowski/mistralai_Devstral-Small-2507-GGUF")],
    },
    Family {
        name: "devstral-small-2",
        licence: APACHE,
        sizes: &[size("24b", "unsloth/Devstral-Small-2-24B-Instruct-2512-GGUF")],
    },
    Family {
        name: "gemma2",
        licence: GEMMA,
        sizes: &[
            size("9b", "bartowski/gemma-2-9b-it-GGUF"),
            size("2b", "bartowski/gemma-2-2b-it-GGUF"),
            size("27b", "bartowski/gemma-2-27b-it-GGUF"),
        ],
    },
    Family {
        name: "gemma3",
        licence: GEMMA,
        sizes: &[
            size("4b", "ggml-org/gemma-3-4b-it-GGUF"),
            size("1b", "ggml-org/gemma-3-1b-it-GGUF"),
            size("12b", "ggml-org/gemma-3-12b-it-GGUF"),
            size("27b", "ggml-org/gemma-3-27b-it-GGUF"),
        ],
    },
    Family {
        name: "gemma3n",
        licence: GEMMA,
        sizes: &[
            size("e4b", "unsloth/gemma-3n-E4B-it-GGUF"),
            size("e2b", "unsloth/gemma-3n-E2B-it-GGUF"),
        ],
    },
    Family {
        name: "gemma4",
        licence: APACHE,
        sizes: &[
            size("e4b", "unsloth/gemma-4-E4B-it-GGUF"),
            size("e2b", "unsloth/gemma-4-E2B-it-GGUF"),
            size("12b", "unsloth/gemma-4-12b-it-GGUF"),
            size("26b-a4b", "ggml-org/gemma-4-26B-A4B-it-GGUF"),
            size("31b", "unsloth/gemma-4-31B-it-GGUF"),
        ],
    },
    Family {
        name: "glm-4.5-air",
        licence: MIT,
        sizes: &[size("106b-a12b", "unsloth/GLM-4.5-Air-GGUF")],
    },
    Family {
        name: "glm-4.7-flash",
        licence: MIT,
        sizes: &[size("30b-a3b", "unsloth/GLM-4.7-Flash-GGUF")],
    },
    Family {
        name: "glm4",
        licence: MIT,
        sizes: &[
            size("9b", "bartowski/THUDM_GLM-4-9B-0414-GGUF"),
            size("32b", "bartowski/THUDM_GLM-4-32B-0414-GGUF"),
        ],
    },
    Family {
        name: "gpt-oss",
        licence: APACHE,
        sizes: &[
            size_in("20b", "ggml-org/gpt-oss-20b-GGUF", "MXFP4"),
            size_in("120b", "ggml-org/gpt-oss-120b-GGUF", "MXFP4"),
        ],
    },
    Family {
        name: "granite3.3",
        licence: APACHE,
        sizes: &[
            size("8b", "ibm-granite/granite-3.3-8b-instruct-GGUF"),
            size("2b", "ibm-granite/granite-3.3-2b-instruct-GGUF"),
        ],
    },
    Family {
        name: "granite4",
        licence: APACHE,
        sizes: &[
            size("micro", "ibm-granite/granite-4.0-micro-GGUF"),
            size("350m", "ibm-granite/granite-4.0-350m-GGUF"),
        ],
    },
    Family {
        name: "lfm2",
        licence: LFM,
        sizes: &[
            size("1.2b", "LiquidAI/LFM2-1.2B-GGUF"),
            size("350m", "LiquidAI/LFM2-350M-GGUF"),
            size("700m", "LiquidAI/LFM2-700M-GGUF"),
            size("8b-a1b", "LiquidAI/LFM2-8B-A1B-GGUF"),
            size("24b-a2b", "LiquidAI/LFM2-24B-A2B-GGUF"),
        ],
    },
    Family {
        name: "lfm2.5",
        licence: LFM,
        sizes: &[
            size("1.2b", "LiquidAI/LFM2.5-1.2B-Instruct-GGUF"),
            size("230m", "LiquidAI/LFM2.5-230M-GGUF"),
            size("350m", "LiquidAI/LFM2.5-350M-GGUF"),
            size("8b-a1b", "LiquidAI/LFM2.5-8B-A1B-GGUF"),
        ],
    },
    Family {
        name: "llama3.1",
        licence: "Llama 3.1 Community License",
        sizes: &[
            size("8b", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF"),
            size("70b", "bartowski/Meta-Llama-3.1-70B-Instruct-GGUF"),
        ],
    },
    Family {
        name: "llama3.2",
        licence: "Llama 3.2 Community License",
        sizes: &[
            size("3b", "bartowski/Llama-3.2-3B-Instruct-GGUF"),
            size("1b", "bartowski/Llama-3.2-1B-Instruct-GGUF"),
        ],
    },
    Family {
        name: "llama3.3",
        licence: "Llama 3.3 Community License",
        sizes: &[size("70b", "bartowski/Llama-3.3-70B-Instruct-GGUF")],
    },
    Family {
        name: "magistral",
        licence: APACHE,
        sizes: &[size("24b", "bartowski/mistralai_Magistral-Small-2509-GGUF")],
    },
    Family {
        name: "ministral-3",
        licence: APACHE,
        sizes: &[
            size("8b", "mistralai/Ministral-3-8B-Instruct-2512-GGUF"),
            size("3b", "mistralai/Ministral-3-3B-Instruct-2512-GGUF"),
            size("14b", "mistralai/Ministral-3-14B-Instruct-2512-GGUF"),
        ],
    },
    Family {
        name: "mistral",
        licence: APACHE,
        sizes: &[size("7b", "bartowski/Mistral-7B-Instruct-v0.3-GGUF")],
    },
    Family {
        name: "mistral-nemo",
        licence: APACHE,
        sizes: &[size("12b", "bartowski/Mistral-Nemo-Instruct-2407-GGUF")],
    },
    Family {
        name: "mistral-small",
        licence: APACHE,
        sizes: &[size("24b", "bartowski/Mistral-Small-24B-Instruct-2501-GGUF")],
    },
    Family {
        name: "mistral-small3.2",
        licence: APACHE,
        sizes: &[size("24b", "bartowski/mistralai_Mistral-Small-3.2-24B-Instruct-2506-GGUF")],
    },
    Family {
        name: "olmo-3",
        licence: APACHE,
        sizes: &[size("7b", "unsloth/Olmo-3-7B-Instruct-GGUF")],
    },
    Family {
        name: "olmo2",
        licence: APACHE,
        sizes: &[
            size("7b", "bartowski/OLMo-2-1124-7B-Instruct-GGUF"),
            size("13b", "bartowski/OLMo-2-1124-13B-Instruct-GGUF"),
        ],
    },
    Family {
        name: "phi3.5",
        licence: MIT,
        sizes: &[size("3.8b", "bartowski/Phi-3.5-mini-instruct-GGUF")],
    },
    Family { name: "phi4", licence: MIT, sizes: &[size("14b", "bartowski/phi-4-GGUF")] },
    Family {
        name: "phi4-mini",
        licence: MIT,
        sizes: &[size("3.8b", "bartowski/microsoft_Phi-4-mini-instruct-GGUF")],
    },
    Family {
        name: "qwen2.5",
        licence: "Apache-2.0; 3b and 72b: Qwen licences",
        sizes: &[
            size("7b", "bartowski/Qwen2.5-7B-Instruct-GGUF"),
            size("0.5b", "bartowski/Qwen2.5-0.5B-Instruct-GGUF"),
            size("1.5b", "bartowski/Qwen2.5-1.5B-Instruct-GGUF"),
            size("3b", "bartowski/Qwen2.5-3B-Instruct-GGUF"),
            size("14b", "bartowski/Qwen2.5-14B-Instruct-GGUF"),
            size("32b", "bartowski/Qwen2.5-32B-Instruct-GGUF"),
            size("72b", "bartowski/Qwen2.5-72B-Instruct-GGUF"),
        ],
    },
    Family {
        name: "qwen2.5-coder",
        licence: "Apache-2.0; 3b: Qwen licence",
        sizes: &[
            size("7b", "bartowski/Qwen2.5-Coder-7B-Instruct-GGUF"),
            size("0.5b", "bartowski/Qwen2.5-Coder-0.5B-Instruct-GGUF"),
            size("1.5b", "bartowski/Qwen2.5-Coder-1.5B-Instruct-GGUF"),
            size("3b", "bartowski/Qwen2.5-Coder-3B-Instruct-GGUF"),
            size("14b", "bartowski/Qwen2.5-Coder-14B-Instruct-GGUF"),
            size("32b", "bartowski/Qwen2.5-Coder-32B-Instruct-GGUF"),
        ],
    },
    Family {
        name: "qwen3",
        licence: APACHE,
        sizes: &[
            size("8b", "bartowski/Qwen_Qwen3-8B-GGUF"),
            size("0.6b", "bartowski/Qwen_Qwen3-0.6B-GGUF"),
            size("1.7b", "bartowski/Qwen_Qwen3-1.7B-GGUF"),
            size("4b", "bartowski/Qwen_Qwen3-4B-GGUF"),
            size("14b", "bartowski/Qwen_Qwen3-14B-GGUF"),
            size("30b-a3b", "bartowski/Qwen_Qwen3-30B-A3B-GGUF"),
            size("32b", "bartowski/Qwen_Qwen3-32B-GGUF"),
        ],
    },
    Family {
        name: "qwen3-coder",
        licence: APACHE,
        sizes: &[size("30b-a3b", "unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF")],
    },
    Family {
        name: "qwen3-coder-next",
        licence: APACHE,
        sizes: &[size("80b-a3b", "unsloth/Qwen3-Coder-Next-GGUF")],
    },
    Family {
        name: "qwen3-embedding",
        licence: APACHE,
        sizes: &[size_in("0.6b", "Qwen/Qwen3-Embedding-0.6B-GGUF", "Q8_0")],
    },
    Family {
        name: "qwen3-next",
        licence: APACHE,
        sizes: &[size("80b-a3b", "unsloth/Qwen3-Next-80B-A3B-Instruct-GGUF")],
    },
    Family {
        name: "qwen3-vl",
        licence: APACHE,
        sizes: &[size("8b", "Qwen/Qwen3-VL-8B-Instruct-GGUF")],
    },
    Family {
        name: "qwen3.5",
        licence: APACHE,
        sizes: &[
            size("9b", "unsloth/Qwen3.5-9B-GGUF"),
            size("0.8b", "unsloth/Qwen3.5-0.8B-GGUF"),
            size("2b", "unsloth/Qwen3.5-2B-GGUF"),
            size("4b", "unsloth/Qwen3.5-4B-GGUF"),
            size("27b", "unsloth/Qwen3.5-27B-GGUF"),
            size("35b-a3b", "unsloth/Qwen3.5-35B-A3B-GGUF"),
            size("122b-a10b", "unsloth/Qwen3.5-122B-A10B-GGUF"),
        ],
    },
    Family {
        name: "qwen3.6",
        licence: APACHE,
        sizes: &[
            size("35b-a3b", "unsloth/Qwen3.6-35B-A3B-GGUF"),
            size("27b", "unsloth/Qwen3.6-27B-GGUF"),
        ],
    },
    Family { name: "qwen3.8", licence: APACHE, sizes: &[size("27b", "unsloth/Qwen3.8-27B-GGUF")] },
    Family { name: "qwq", licence: APACHE, sizes: &[size("32b", "bartowski/Qwen_QwQ-32B-GGUF")] },
    Family {
        name: "seed-oss",
        licence: APACHE,
        sizes: &[size("36b", "unsloth/Seed-OSS-36B-Instruct-GGUF")],
    },
    Family {
        name: "smollm2",
        licence: APACHE,
        sizes: &[
            size("135m", "bartowski/SmolLM2-135M-Instruct-GGUF"),
            size("360m", "bartowski/SmolLM2-360M-Instruct-GGUF"),
            size("1.7b", "bartowski/SmolLM2-1.7B-Instruct-GGUF"),
        ],
    },
    Family { name: "smollm3", licence: APACHE, sizes: &[size("3b", "ggml-org/SmolLM3-3B-GGUF")] },
];

/// A model of the catalogue.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Named {
    /// Its full name, such as `llama3.2:3b`, with the quantization where it is not the usual one.
    pub(crate) name: String,
    pub(crate) licence: &'static str,
    pub(crate) source: HfSource,
}

/// Words of a tag that every model here is, as other engines write them in `3b-instruct-q8_0`.
const PLAIN_WORDS: &[&str] = &["instruct", "it", "chat", "text"];

/// The model that `text` names; `None` if it begins with no family's name.
///
/// # Errors
/// If the family has no such size.
pub(crate) fn find(text: &str) -> Result<Option<Named>> {
    let (family, tag) = match text.split_once(':') {
        Some((family, tag)) => (family, Some(tag)),
        None => (text, None),
    };
    let plain = |name: &str| name.to_ascii_lowercase().replace(['-', '_'], "");
    let same = |known: &&Family| plain(known.name) == plain(family);
    let Some(family) = FAMILIES.iter().find(same) else { return Ok(None) };
    let first = &family.sizes[0];
    let (size, quantization) = match tag {
        None => (first, None),
        Some(tag) => match split(family, tag) {
            Some(found) => found,
            None => {
                let tags: Vec<_> = family.sizes.iter().map(|size| size.tag).collect();
                bail!("`{text}`: {} has no tag `{tag}`; its tags: {}", family.name, tags.join(", "))
            }
        },
    };
    let is_usual = |name: &String| name.eq_ignore_ascii_case(size.quantization);
    let other = quantization.filter(|name| !is_usual(name));
    let mut name = format!("{}:{}", family.name, size.tag);
    if let Some(other) = &other {
        name.push_str(&format!("-{}", other.to_ascii_lowercase()));
    }
    let quantization = other.unwrap_or_else(|| size.quantization.to_owned());
    let source = HfSource::parse(&format!("{}:{quantization}", size.repo))?;
    Ok(Some(Named { name, licence: family.licence, source }))
}

/// Size and quantization of a tag: `3b`, `latest`, `3b-q8_0`, `3b-instruct-q4_K_M`, `q8_0`.
fn split<'a>(family: &'a Family, tag: &str) -> Option<(&'a Size, Option<String>)> {
    let lower = tag.to_ascii_lowercase();
    if lower.is_empty() {
        return None;
    }
    // The longest first: one size's tag may begin with another's.
    let mut sizes: Vec<&Size> = family.sizes.iter().collect();
    sizes.sort_by_key(|size| std::cmp::Reverse(size.tag.len()));
    let begins = |size: &&Size| {
        let rest = lower.strip_prefix(size.tag).or_else(|| lower.strip_prefix(all_of(size.tag)))?;
        (rest.is_empty() || rest.starts_with('-'))
            .then_some(rest.trim_start_matches('-').to_owned())
    };
    let (size, rest) = match sizes.iter().find_map(|size| Some((*size, begins(size)?))) {
        Some(found) => found,
        None => (&family.sizes[0], lower.strip_prefix("latest").unwrap_or(&lower).to_owned()),
    };
    // The month of a version, as in `24b-instruct-2512`.
    let is_month =
        |word: &str| word.len() == 4 && size.repo.split(['-', '_']).any(|part| part == word);
    let is_plain = |word: &str| word.is_empty() || PLAIN_WORDS.contains(&word) || is_month(word);
    let words = rest.split('-').filter(|word| !is_plain(word));
    match words.collect::<Vec<_>>().as_slice() {
        [] => Some((size, None)),
        [word] if is_quantization(word) => Some((size, Some(word.to_ascii_uppercase()))),
        _ => None,
    }
}

/// A tag without the parameters of a token: `30b` of `30b-a3b`.
fn all_of(tag: &str) -> &str {
    match tag.split_once("-a") {
        Some((all, active)) if active.starts_with(|c: char| c.is_ascii_digit()) => all,
        _ => tag,
    }
}

/// Whether a word is written as the types of GGUF files are: `q4_k_m`, `iq4_xs`, `f16`, `mxfp4`.
fn is_quantization(word: &str) -> bool {
    let rest = ["iq", "q", "tq", "bf", "f", "mxfp", "nvfp"]
        .iter()
        .find_map(|kind| word.strip_prefix(kind));
    rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_complete_and_in_order() {
        assert!(FAMILIES.is_sorted_by_key(|family| family.name));
        for family in FAMILIES {
            assert!(!family.sizes.is_empty() && !family.licence.is_empty(), "{}", family.name);
            for size in family.sizes {
                let name = format!("{}:{}", family.name, size.tag);
                let found = find(&name).expect(&name).expect(&name);
                assert_eq!(found.name, name);
                let source = format!("hf:{}:{}", size.repo, size.quantization);
                assert_eq!(found.source.to_string(), source);
            }
        }
    }

    #[test]
    fn tags() {
        let repo = "hf:bartowski/Llama-3.2-";
        for (text, name, source) in [
            ("llama3.2", "llama3.2:3b", "3B-Instruct-GGUF:Q4_K_M"),
            ("Llama3.2:latest", "llama3.2:3b", "3B-Instruct-GGUF:Q4_K_M"),
            ("llama3.2:1b", "llama3.2:1b", "1B-Instruct-GGUF:Q4_K_M"),
            ("llama3.2:1B-instruct-q4_K_M", "llama3.2:1b", "1B-Instruct-GGUF:Q4_K_M"),
            ("llama3.2:1b-instruct-q8_0", "llama3.2:1b-q8_0", "1B-Instruct-GGUF:Q8_0"),
            ("llama3.2:Q6_K", "llama3.2:3b-q6_k", "3B-Instruct-GGUF:Q6_K"),
            ("llama3.2:3b-IQ4_XS", "llama3.2:3b-iq4_xs", "3B-Instruct-GGUF:IQ4_XS"),
        ] {
            let found = find(text).expect(text).expect(text);
            assert_eq!(found.name, name, "{text}");
            assert_eq!(found.source.to_string(), format!("{repo}{source}"), "{text}");
        }
        let qwen = find("qwen3:30b-a3b-q8_0").expect("it is known").expect("it is known");
        assert_eq!(qwen.source.to_string(), "hf:bartowski/Qwen_Qwen3-30B-A3B-GGUF:Q8_0");
        for (text, name) in [
            ("gemma4", "gemma4:e4b"),
            ("gemma4:e2b", "gemma4:e2b"),
            ("gemma4:26b", "gemma4:26b-a4b"),
            ("gemma4:26b-a4b-it-q8_0", "gemma4:26b-a4b-q8_0"),
            ("gemma4:latest", "gemma4:e4b"),
            ("qwen3.5:9b", "qwen3.5:9b"),
            ("qwen3:30b", "qwen3:30b-a3b"),
            ("ministral-3:8b-instruct-2512-q4_K_M", "ministral-3:8b"),
            ("granite-4", "granite4:micro"),
            ("gpt_oss:20b", "gpt-oss:20b"),
            ("Qwen3-Coder:30b", "qwen3-coder:30b-a3b"),
        ] {
            let found = find(text).expect(text).expect(text);
            assert_eq!(found.name, name, "{text}");
        }
        assert!(find("ministral-3:8b-instruct-2507").is_err());
        for text in ["llama9", "llama3.2x", "", ":1b", "./llama3.2"] {
            assert_eq!(find(text).expect(text), None, "{text}");
        }
        for text in ["llama3.2:2b", "llama3.2:1b-base", "llama3.2:1bx", "llama3.2:"] {
            let error = find(text).expect_err(text).to_string();
            assert!(error.ends_with("its tags: 3b, 1b"), "{error}");
        }
    }
}
