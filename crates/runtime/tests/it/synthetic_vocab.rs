//! Tokenizers over small made-up vocabularies: round trips of arbitrary Unicode, streaming,
//! special tokens, and errors for malformed files.

use std::path::Path;

use realizar_formats::{Array, Gguf, GgufWriter};
use realizar_runtime::tokenizer::{EncodeOptions, Error, Tokenizer};

const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };
const FULL: EncodeOptions = EncodeOptions { add_special: true, parse_special: true };

/// The tokens, types, and merges or scores of a vocabulary under construction.
#[derive(Clone, Default)]
struct Spec {
    model: &'static str,
    pre: Option<&'static str>,
    tokens: Vec<String>,
    types: Vec<i32>,
    merges: Option<Vec<String>>,
    scores: Option<Vec<f32>>,
    ids: Vec<(&'static str, u32)>,
    flags: Vec<(&'static str, bool)>,
}

impl Spec {
    fn load(&self) -> Result<Tokenizer, Error> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vocab.gguf");
        self.write(&path);
        Tokenizer::from_gguf(Gguf::open(&path).unwrap().metadata())
    }

    fn write(&self, path: &Path) {
        let mut writer = GgufWriter::new();
        writer.set("general.architecture", "llama").unwrap();
        writer.set("tokenizer.ggml.model", self.model).unwrap();
        if let Some(pre) = self.pre {
            writer.set("tokenizer.ggml.pre", pre).unwrap();
        }
        writer.set("tokenizer.ggml.tokens", Array::from_strs(&self.tokens)).unwrap();
        writer.set("tokenizer.ggml.token_type", Array::from(self.types.as_slice())).unwrap();
        if let Some(merges) = &self.merges {
            writer.set("tokenizer.ggml.merges", Array::from_strs(merges)).unwrap();
        }
        if let Some(scores) = &self.scores {
            writer.set("tokenizer.ggml.scores", Array::from(scores.as_slice())).unwrap();
        }
        for (key, id) in &self.ids {
            writer.set(&format!("tokenizer.ggml.{key}_token_id"), *id).unwrap();
        }
        for (key, flag) in &self.flags {
            writer.set(&format!("tokenizer.ggml.{key}"), *flag).unwrap();
        }
        writer.write_file(path).unwrap();
    }

    fn add(&mut self, text: &str, kind: i32) {
        self.tokens.push(text.to_owned());
        self.types.push(kind);
    }
}

/// The printable character of each byte in byte-level vocabularies.
fn byte_char(byte: u8) -> char {
    let printable = |b: &u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(&byte) {
        return byte as char;
    }
    let n_before = (0..byte).filter(|b| !printable(b)).count();
    char::from_u32(256 + n_before as u32).unwrap()
}

/// A byte-level vocabulary: id = byte value, then merges, then special tokens.
fn byte_level() -> Spec {
    let mut spec = Spec { model: "gpt2", pre: Some("gpt-2"), ..Spec::default() };
    for byte in 0..=255 {
        spec.add(&byte_char(byte).to_string(), 1);
    }
    let merges = ["h e", "l l", "he ll", "hell o", "Ġ hello", "Ã ©"];
    for merge in merges {
        spec.add(&merge.replace(' ', ""), 1);
    }
    spec.merges = Some(merges.map(str::to_owned).to_vec());
    spec.add("<s>", 3); // 262
    spec.add("<|im_end|>", 3); // 263
    spec.add("  ", 4); // 264
    spec.ids = vec![("bos", 262), ("eos", 263)];
    spec.flags = vec![("add_bos_token", true)];
    spec
}

/// A SentencePiece vocabulary: three special tokens, bytes at 3 + value, then pieces.
fn sentence_piece() -> Spec {
    let mut spec = Spec { model: "llama", ..Spec::default() };
    spec.add("<unk>", 2);
    spec.add("<s>", 3);
    spec.add("</s>", 3);
    for byte in 0..=255 {
        spec.add(&format!("<0x{byte:02X}>"), 6);
    }
    let mut scores = vec![0.0; 259];
    for (i, piece) in
        ["▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello", "é"].iter().enumerate()
    {
        spec.add(piece, 1);
        scores.push(-(20.0 - i as f32));
    }
    spec.scores = Some(scores);
    spec
}

/// Strings over all planes of Unicode, with runs of spaces and control characters.
fn arbitrary_texts() -> Vec<String> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = |n: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let known = [
        "hello",
        " ",
        "  ",
        "\n",
        "é",
        "e\u{301}",
        "日本語",
        "العربية",
        "👩‍👩‍👧",
        "\u{0}",
        "\u{7f}",
        "\u{ad}",
        "ø",
    ];
    let mut texts: Vec<String> = known.iter().map(ToString::to_string).collect();
    texts.push(String::new());
    for _ in 0..300 {
        let mut text = String::new();
        for _ in 0..next(30) {
            match next(3) {
                0 => text.push_str(known[next(known.len() as u64) as usize]),
                1 => text.push(char::from(next(128) as u8)),
                _ => text.extend(char::from_u32(next(0x11_0000) as u32)),
            }
        }
        texts.push(text);
    }
    texts
}

#[test]
fn arbitrary_unicode_round_trips_and_streams_whole_characters() {
    for spec in [byte_level(), sentence_piece()] {
        let tokenizer = spec.load().unwrap();
        for text in arbitrary_texts() {
            // A literal U+2581 means a space to SentencePiece.
            if text.contains('\u{2581}') {
                continue;
            }
            for options in [PLAIN, FULL] {
                let ids = tokenizer.encode(&text, options).unwrap();
                assert_eq!(tokenizer.decode(&ids, true).unwrap(), text, "{}", spec.model);
                let mut stream = tokenizer.stream();
                let mut streamed = String::new();
                for id in ids {
                    let piece = stream.push(id).unwrap();
                    assert!(!piece.contains('\u{FFFD}') || text.contains('\u{FFFD}'));
                    streamed.push_str(piece);
                }
                streamed.push_str(&stream.finish());
                assert_eq!(streamed, text);
            }
        }
    }
}

#[test]
fn ids_of_known_texts() {
    let check = |tokenizer: &Tokenizer, text: &str, options, want: &[u32]| {
        assert_eq!(tokenizer.encode(text, options).unwrap(), want, "{text:?}");
    };
    let bpe = byte_level().load().unwrap();
    check(&bpe, "hello hello", PLAIN, &[259, 260]);
    check(&bpe, "é", FULL, &[262, 261]);
    check(&bpe, "a  b", PLAIN, &[97, 264, 98]);
    check(&bpe, "<s>", FULL, &[262, 262]);
    check(&bpe, "<s>", PLAIN, &[60, 115, 62]);
    assert_eq!(bpe.eos_ids(), [263]);
    assert_eq!((bpe.bos(), bpe.add_bos(), bpe.vocab_size()), (Some(262), true, 265));
    assert_eq!(
        [bpe.id_of("<|im_end|>"), bpe.id_of(" hello"), bpe.id_of("nope")],
        [Some(263), Some(260), None]
    );

    let spm = sentence_piece().load().unwrap();
    check(&spm, "hello", FULL, &[1, 268]);
    check(&spm, "hello hello", PLAIN, &[268, 268]);
    check(&spm, "<s>hello", FULL, &[1, 1, 268]);
    check(&spm, "!", PLAIN, &[259, 3 + 33]);
    check(&spm, "", FULL, &[1]);
    assert_eq!(spm.decode(&[1, 268, 2], true).unwrap(), "hello");
    assert_eq!(spm.decode(&[1, 268, 2], false).unwrap(), "<s> hello</s>");
    assert_eq!(spm.eos_ids(), [2]);
    let mut stream = spm.stream().continuing();
    assert_eq!(stream.push(268).unwrap(), " hello");
    let half = [3 + 0xE6, 3 + 0x97];
    assert_eq!(half.map(|id| stream.push(id).unwrap().len()), [0, 0]);
    assert_eq!(stream.finish(), "\u{FFFD}");
}

#[test]
fn streams_write_the_control_tokens_that_are_wanted() {
    let tokenizer = byte_level().load().unwrap();
    let check = |shown: &[u32], want: &str| {
        let mut stream = tokenizer.stream().with_specials(shown);
        let ids = [262, 259, 263, 260];
        let text: String = ids.map(|id| stream.push(id).unwrap().to_owned()).concat();
        assert_eq!(text, want, "{shown:?}");
    };
    check(&[], "hello hello");
    check(&[263], "hello<|im_end|> hello");
    check(&[263, 262], "<s>hello<|im_end|> hello");
}

#[test]
fn malformed_vocabularies_are_errors_that_name_the_fault() {
    type Case = (fn() -> Spec, fn(&mut Spec), &'static str);
    let cases: &[Case] = &[
        (byte_level, |s| s.model = "rwkv", "`rwkv` is not supported"),
        (byte_level, |s| s.pre = Some("nonsense"), "`nonsense`"),
        (byte_level, |s| s.merges = None, "`tokenizer.ggml.merges`"),
        (byte_level, |s| s.types.truncate(264), "`tokenizer.ggml.token_type` has 264 entries"),
        (byte_level, |s| s.merges.as_mut().unwrap()[2] = "hell".to_owned(), "merge 2 (`hell`)"),
        (byte_level, |s| s.merges.as_mut().unwrap()[0] = "h zz".to_owned(), "right part is not"),
        (byte_level, |s| s.ids[0].1 = 999, "`tokenizer.ggml.bos_token_id` is 999"),
        (sentence_piece, |s| s.scores = None, "`tokenizer.ggml.scores`"),
        (sentence_piece, |s| s.scores.as_mut().unwrap().truncate(3), "has 3 entries"),
        (sentence_piece, |s| s.tokens[5] = "<0xZZ>".to_owned(), "token 5 (`<0xZZ>`)"),
    ];
    for (spec, change, want) in cases {
        let mut spec = spec();
        change(&mut spec);
        let error = spec.load().expect_err(want).to_string();
        assert!(error.contains(want) && !error.contains('\n'), "{want}: {error}");
    }
    let tokenizer = byte_level().load().unwrap();
    let error = tokenizer.decode(&[5, 265], true).unwrap_err();
    assert!(matches!(error, Error::IdOutOfRange { id: 265, vocab_size: 265 }));
}

#[test]
fn a_directory_without_tokenizer_json_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let error = Tokenizer::from_hf_dir(dir.path()).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json"), "{error}");
}
