//! A model's metrics count every operation of its graph, in every step.

use realizar_runtime::backend::Phase;
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::graph::{Node, RowDomain};
use realizar_runtime::metrics::{ClassSnapshot, DeviceKind, OpClass};
use realizar_runtime::{Chunk, LoadOptions, Model, Outputs};
use std::path::Path;

#[test]
fn every_operation_is_counted_and_timed() {
    let backend = CpuBackend::new(Some(1), None).unwrap();
    for name in ["llama", "gemma2", "gpt2"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/archs").join(name);
        let mut model = Model::load(&path, &backend, &LoadOptions::default()).unwrap();
        let step = |model: &mut Model, outputs| {
            let seq = model.runner().new_sequence();
            let chunk = Chunk { seq: &seq, rows: (&[3, 4]).into(), phase: Phase::Prefill, outputs };
            model.runner().step(&[chunk]).unwrap();
            model.runner().remove(seq);
        };
        step(&mut model, Outputs::Last);
        model.reset_metrics();
        step(&mut model, Outputs::Last);
        step(&mut model, Outputs::Last);
        step(&mut model, Outputs::None);

        let metrics = model.metrics();
        let [device] = &metrics.devices[..] else { panic!("one device") };
        assert_eq!((device.kind, device.share_of_dispatches), (DeviceKind::Cpu, Some(1.0)));
        assert_eq!((metrics.gpu_dispatches, metrics.cpu_gpu_ratio), (0, None));
        let graph = &model.placement().parts[0].graph;
        for class in OpClass::ALL {
            let nodes = graph.nodes.iter().filter(|node| OpClass::of(&node.op) == class);
            // The third step wants no logits, so it stops before their rows.
            let runs = |node: &Node| {
                let idx = graph.value_ids().position(|id| id == node.output).unwrap();
                if graph.values[idx].rows == RowDomain::Outputs { 2 } else { 3 }
            };
            let want: u64 = if class == OpClass::Step { 3 } else { nodes.map(runs).sum() };
            let found = device.op_classes.iter().find(|found| found.op_class == class);
            assert_eq!(found.map_or(0, |found| found.dispatches), want, "{name}: {class:?}");
            let timed = found.and_then(|found| found.latency.as_ref());
            assert_eq!(timed.map_or(0, |latency| latency.count), want, "{name}: {class:?}");
        }
        let time = |class: &ClassSnapshot| class.share_of_time.unwrap();
        let shares: f64 = device.op_classes.iter().map(time).sum();
        assert!((shares - 2.0).abs() < 1e-9, "{name}: the operations fill the steps: {shares}");
    }
}
