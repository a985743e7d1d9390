//! Encoding a text of 64 KiB with the vocabulary of every GGUF file in the folder that
//! `REALIZAR_VOCAB_DIR` names (`cargo xtask setup` fills `.cache/vocab`). Without the folder
//! nothing is measured.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use realizar_formats::Gguf;
use realizar_runtime::tokenizer::{EncodeOptions, Tokenizer};
use std::hint::black_box;
use std::path::PathBuf;

const SENTENCE: &str = "The ferry leaves at 07:45, so we'd better walk; it isn't far (1.2 km). ";
const WANTED: [&str; 4] =
    ["ggml-vocab-llama-bpe", "ggml-vocab-llama-spm", "ggml-vocab-qwen2", "ggml-vocab-gpt-2"];

fn encode(c: &mut Criterion) {
    let Some(folder) = std::env::var_os("REALIZAR_VOCAB_DIR").map(PathBuf::from) else {
        println!("tokenizer: REALIZAR_VOCAB_DIR is not set, so nothing is measured");
        return;
    };
    let text = SENTENCE.repeat((1 << 16) / SENTENCE.len());
    let options = EncodeOptions { add_special: false, parse_special: false };
    let mut group = c.benchmark_group("encode");
    group.throughput(Throughput::Bytes(text.len() as u64));
    for name in WANTED {
        let path = folder.join(format!("{name}.gguf"));
        let Ok(gguf) = Gguf::open(&path) else {
            println!("tokenizer: {} cannot be opened, so it is skipped", path.display());
            continue;
        };
        let tokenizer = Tokenizer::from_gguf(gguf.metadata()).expect("a vocabulary that is built");
        group.bench_function(name, |b| {
            b.iter(|| tokenizer.encode(black_box(&text), options).expect("text is encoded"));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20);
    targets = encode
}
criterion_main!(benches);
