//! A model split by layer between two backends is the model: the same bits, for
//! every architecture, wherever it is cut.

use crate::common::quantized::write_quantized;
use crate::common::tiny::tiny;
use crate::common::tiny_models::tiny_models;
use realizar_quant::BlockType;
use realizar_runtime::backend::Phase;
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::{Chunk, DeviceLayers, LoadOptions, Model, Outputs};
use std::ops::Range;
use std::path::Path;

/// A model of one layer.
const SINGLE: &str = "qwen3_moe_fp4_ct";
/// Models that are not split.
const WHOLE: [&str; 2] = ["gemma3n_text", "gemma4_text"];

/// The model with its last `last_layers` layers on a second backend.
fn load(path: &Path, last_layers: usize) -> Model {
    load_onto(path, &[None, Some(last_layers)])
}

/// The model on as many backends, each with its number of layers and of threads.
fn load_onto(path: &Path, n_layers: &[Option<usize>]) -> Model {
    let options = LoadOptions {
        max_seq_len: Some(64),
        chunk: Some(24),
        max_outputs: 24,
        max_seqs: 3,
        ..LoadOptions::default()
    };
    let backends = (1..=n_layers.len()).map(|n| CpuBackend::new(Some(n), None).unwrap());
    let backends: Vec<CpuBackend> = backends.collect();
    let devices = backends.iter().zip(n_layers);
    let devices = devices.map(|(backend, &n_layers)| DeviceLayers { backend, n_layers });
    match Model::load_onto(path, &devices.collect::<Vec<_>>(), &options) {
        Ok(model) => model,
        Err(error) => panic!("{path:?}, {n_layers:?}: {error}"),
    }
}

/// The logits of three sequences whose prompts, chunks and generated tokens share
/// steps, some of which want no logits.
fn logits(model: &mut Model) -> Vec<Vec<u32>> {
    let token = |pos: usize, seq: usize| 3 + ((pos * 31 + seq * 17 + pos * pos * 7) % 250) as u32;
    let tokens: Vec<Vec<u32>> =
        (0..3).map(|seq| (0..40).map(|pos| token(pos, seq)).collect()).collect();
    let prompt = |range: Range<usize>, outputs| Some((range, Phase::Prefill, outputs));
    let generated = |pos: usize| Some((pos..pos + 1, Phase::Decode, Outputs::Last));
    let steps = [
        [prompt(0..20, Outputs::None), None, None],
        [prompt(20..23, Outputs::All), prompt(0..9, Outputs::At(&[0, 8])), None],
        [generated(23), prompt(9..10, Outputs::Last), prompt(0..17, Outputs::Last)],
        [generated(24), generated(10), generated(17)],
        [None, prompt(11..30, Outputs::None), generated(18)],
        [generated(25), generated(30), generated(19)],
    ];
    let runner = model.runner();
    let seqs = [runner.new_sequence(), runner.new_sequence(), runner.new_sequence()];
    let mut rows = Vec::new();
    for step in steps {
        let chunks: Vec<Chunk<'_>> = (0..3)
            .filter_map(|i| {
                let (range, phase, outputs) = step[i].clone()?;
                Some(Chunk { seq: &seqs[i], rows: tokens[i][range].into(), phase, outputs })
            })
            .collect();
        let logits = runner.step(&chunks).unwrap();
        for (c, chunk) in chunks.iter().enumerate() {
            let n_rows = match chunk.outputs {
                Outputs::None => 0,
                Outputs::Last => 1,
                Outputs::All => chunk.rows.len(),
                Outputs::At(idx) => idx.len(),
            };
            let bits = |i| logits.row(c, i).iter().map(|x| x.to_bits()).collect();
            rows.extend((0..n_rows).map(bits));
        }
    }
    seqs.into_iter().for_each(|seq| runner.remove(seq));
    assert!(runner.pool_stats().iter().all(|stats| stats.used == 0), "pages were kept");
    rows
}

fn layers(model: &Model) -> Vec<Range<usize>> {
    model.placement().parts.iter().map(|part| part.layers.clone()).collect()
}

/// Compares the model at `path` with itself, split in front of every layer that
/// is worth it.
fn check(path: &Path) {
    let mut whole = load(path, 0);
    let n_layers = whole.config().layers.len();
    assert!(n_layers > 1, "{path:?} has a single layer");
    let expected = logits(&mut whole);
    assert_eq!(expected.len(), 15);
    for cut in [1, n_layers - 1] {
        let mut split = load(path, n_layers - cut);
        assert_eq!(layers(&split), [0..cut, cut..n_layers], "{path:?}");
        assert!(logits(&mut split) == expected, "{path:?} split in front of layer {cut}");
    }
    if n_layers > 2 {
        let mut split = load_onto(path, &[None, Some(1), Some(1)]);
        let (a, b) = (n_layers - 2, n_layers - 1);
        assert_eq!(layers(&split), [0..a, a..b, b..n_layers], "{path:?}");
        assert!(logits(&mut split) == expected, "{path:?} on three devices");
    }
}

#[test]
fn a_split_model_gives_the_bits_of_the_whole() {
    // Every layer of these reads embeddings of its own.
    let is_whole = |path: &Path| {
        path.iter().any(|part| part == SINGLE || WHOLE.iter().any(|&name| part == name))
    };
    tiny_models().iter().filter(|path| !is_whole(path.as_path())).for_each(|path| check(path));
}

#[test]
fn a_model_whose_layers_share_more_than_hidden_states_is_not_split() {
    for name in WHOLE {
        let backends = [1, 2].map(|n| CpuBackend::new(Some(n), None).unwrap());
        let [first, last] = &backends;
        let devices =
            [DeviceLayers::rest(first), DeviceLayers { backend: last, n_layers: Some(1) }];
        let error = Model::load_onto(&tiny(name), &devices, &LoadOptions::default()).unwrap_err();
        assert!(error.to_string().contains("more than the hidden states"), "{name}: {error}");
    }
}

#[test]
fn quantized_weights_split_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("quantized.gguf");
    write_quantized(&path, &[BlockType::Q8_0, BlockType::Q4_K, BlockType::Q6_K]);
    check(&path);
}

#[test]
fn with_no_layers_on_one_side_the_other_has_the_model() {
    let path = tiny("llama");
    let n_layers = load(&path, 0).config().layers.len();
    for last_layers in [0, n_layers, usize::MAX] {
        let model = load(&path, last_layers);
        assert_eq!(layers(&model), vec![0..n_layers; 1], "{last_layers}");
        assert!(!model.backend().contains(" + "), "{}", model.backend());
    }
}

#[test]
fn each_part_has_its_weights_and_its_layers_of_the_cache() {
    let model = load(&tiny("gemma3_text"), 1);
    let [first, last] = &model.placement().parts[..] else { panic!("two parts") };
    let whole = load(&tiny("gemma3_text"), 0);
    let whole = &whole.placement().parts[0].graph;
    // The embedding is the head too, and so in both.
    let both = first.graph.weights.len() + last.graph.weights.len();
    assert_eq!(both, whole.weights.len() + 1);
    let n_last = model.config().layers.len() - 1;
    let of_last = format!("layers.{n_last}.");
    for (part, expected) in [(first, false), (last, true)] {
        let in_layers = part.graph.weights.iter().filter(|w| w.name.starts_with("layers."));
        assert!(in_layers.into_iter().all(|w| w.name.starts_with(&of_last) == expected));
    }
    for (i, group) in whole.kv_groups.iter().enumerate() {
        let n_layers = [first, last].map(|part| part.graph.kv_groups[i].n_layers);
        assert_eq!(n_layers.iter().sum::<usize>(), group.n_layers, "group {i}");
    }
    let text = model.placement().to_string();
    let headings: Vec<&str> = text.lines().filter(|line| line.starts_with("layers ")).collect();
    let backend = &first.backend;
    let expected = [
        format!("layers 0 to {} on {backend}:", n_last - 1),
        format!("layers {n_last} to {n_last} on {backend}:"),
    ];
    assert_eq!(headings, expected);
    assert_eq!(model.backend(), format!("{backend} + {backend}"));
}

#[test]
fn a_device_that_refuses_its_part_is_an_error() {
    use realizar_runtime::BackendError;
    use realizar_runtime::MemoryUse;
    use realizar_runtime::backend::{Backend, Executable, ExecutableOptions};
    use realizar_runtime::graph::Fusions;
    use realizar_runtime::plan::Plan;
    use realizar_runtime::weights::Weights;

    /// A device that runs nothing.
    #[derive(Debug)]
    struct Refuses;

    impl Backend for Refuses {
        fn name(&self) -> String {
            "brick".to_owned()
        }

        fn fusions(&self) -> Fusions {
            Fusions::NONE
        }

        fn memory(&self, _: &Plan, _: &Weights, _: &ExecutableOptions) -> MemoryUse {
            MemoryUse::default()
        }

        fn load(
            &self,
            plan: Plan,
            _: Weights,
            _: &ExecutableOptions,
        ) -> Result<Box<dyn Executable>, BackendError> {
            let reasons = vec![format!("{} steps", plan.steps.len())];
            Err(BackendError::Refused { backend: self.name(), reasons })
        }
    }

    let cpu = CpuBackend::new(Some(1), None).unwrap();
    let load = |last_layers| {
        let split = [DeviceLayers::rest(&cpu), DeviceLayers::at_most(&Refuses, last_layers)];
        let model = Model::load_onto(&tiny("llama"), &split, &LoadOptions::default());
        model.map(|model| model.backend().to_owned()).map_err(|error| error.to_string())
    };
    assert!(load(0).unwrap().starts_with("cpu "));
    let error = load(1).unwrap_err();
    assert!(error.starts_with("brick cannot run this model: "), "{error}");
}
