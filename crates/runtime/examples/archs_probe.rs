//! probe
use realizar_runtime::backend::{Arithmetic, cpu::CpuBackend};
use realizar_runtime::{LoadOptions, Model};
use std::path::Path;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let backend = CpuBackend::new(Some(2), None).unwrap();
    for dir in &args[1..] {
        let exp: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(format!("{dir}/expected.json")).unwrap())
                .unwrap();
        let ids: Vec<u32> =
            exp["ids"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect();
        let pos: Vec<usize> = exp["positions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|v| v.as_u64().unwrap() as usize)
            .collect();
        for path in [dir.clone(), format!("{dir}/model-f32.gguf")] {
            if !Path::new(&path).exists() {
                continue;
            }
            for arith in [Arithmetic::F32, Arithmetic::Auto] {
                let opts = LoadOptions { arithmetic: arith, ..LoadOptions::default() };
                match Model::load(Path::new(&path), &backend, &opts) {
                    Err(e) => println!("{path}: ERR {e}"),
                    Ok(mut m) => {
                        let l = m.logits(&ids, &pos, 256).unwrap();
                        let l2 = m.logits(&ids, &pos, 7).unwrap();
                        let mut worst = 0f64;
                        for (p, row) in pos.iter().zip(&l) {
                            let e: Vec<f64> = exp["values"][p.to_string()]
                                .as_array()
                                .unwrap()
                                .iter()
                                .map(|v| v.as_f64().unwrap())
                                .collect();
                            let max = e.iter().fold(0f64, |a, b| a.max(b.abs()));
                            let d = e
                                .iter()
                                .zip(row)
                                .fold(0f64, |a, (x, y)| a.max((x - f64::from(*y)).abs()));
                            worst = worst.max(d / max);
                        }
                        println!("{path} {arith:?}: rel {worst:.2e} chunk-identical {}", l == l2);
                    }
                }
            }
        }
    }
}
