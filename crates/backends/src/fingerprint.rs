//! What keys, values and packed weights depend on, so that those that were kept are used only
//! where they would come out the same.
//!
//! A session holds keys and values, which every part below changes. Packed weights depend on the
//! weights alone. The prefix cache lives and dies with one loaded model and needs no check.

use crate::Arithmetic;
use realizar_formats::Bytes;
use realizar_model::graph::weights::{WeightData, Weights};
use realizar_model::graph::{Graph, Op, WeightInfo};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// Bytes of a matrix that its model's fingerprint is made of, at its beginning.
const SAMPLE_LEN: usize = 256;

/// A loaded model, as far as its keys and values depend on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// Of every weight, a hash of its name, type and shape, and of its contents: of a vector all
    /// values, of a matrix the first bytes.
    pub weights: String,
    /// A hash of the angles of rotary embeddings, with the scaling and the factors that the loaded
    /// context chose.
    pub rope: String,
    /// A hash of the recorded operations with all other constants.
    pub settings: String,
    /// The arithmetic of matrix products.
    pub arithmetic: String,
    /// The type of keys and values, and how they lie in pages.
    pub kv: String,
    /// The backends with their instruction sets, and the layers that each has.
    pub backend: String,
}

impl Fingerprint {
    /// The fingerprint of a graph before it is placed, with nothing yet about where it runs.
    pub fn new(graph: &Graph, weights: &Weights, arithmetic: Arithmetic) -> Self {
        let (mut rope, mut settings) = (Sha256::new(), Sha256::new());
        let mut text = String::new();
        for node in graph.all_nodes() {
            text.clear();
            // Floats are written so that reading them gives the same bits.
            let written = match &node.op {
                Op::RopeTable(_) => write!(text, "{:?}", node.op),
                _ => write!(text, "{node:?}"),
            };
            written.expect("a string takes any text");
            match &node.op {
                Op::RopeTable(_) => rope.update(&text),
                _ => settings.update(&text),
            }
        }
        Self {
            weights: hash_of(&graph.weights, weights),
            rope: hex(rope),
            settings: hex(settings),
            arithmetic: format!("{arithmetic:?}"),
            kv: String::new(),
            backend: String::new(),
        }
    }

    /// The same for a model that runs on these backends, named with their layers, over pages of
    /// this layout.
    pub fn placed(self, backend: String, kv: &str) -> Self {
        Self { backend, kv: kv.to_owned(), ..self }
    }

    /// The first thing in which `kept`, the fingerprint of an artefact, differs: what it is, what
    /// it was then and what it is here.
    pub fn difference<'a>(&'a self, kept: &'a Self) -> Option<[&'a str; 3]> {
        let parts: [[&'a str; 3]; 6] = [
            ["other weights", &kept.weights, &self.weights],
            ["another rotary embedding", &kept.rope, &self.rope],
            ["other settings", &kept.settings, &self.settings],
            ["another arithmetic", &kept.arithmetic, &self.arithmetic],
            ["another layout of keys and values", &kept.kv, &self.kv],
            ["another backend", &kept.backend, &self.backend],
        ];
        parts.into_iter().find(|[_, kept, here]| kept != here)
    }
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The hash of all weights. Every entry's length follows from what is hashed before it.
fn hash_of(infos: &[WeightInfo], weights: &Weights) -> String {
    let mut hash = Sha256::new();
    for (info, weight) in infos.iter().zip(&weights.0) {
        hash.update(format!("{} {} {:?};", info.name, info.ty, info.shape));
        match weight {
            WeightData::Matrix { .. } | WeightData::Experts { .. } => {
                // Of blocks that are made of other tensors, those.
                for data in weight.blocks().iter().map(Bytes::origin) {
                    hash.update(&data[..data.len().min(SAMPLE_LEN)]);
                }
            }
            WeightData::Vector(values) => {
                values.iter().for_each(|x| hash.update(x.to_le_bytes()));
            }
        }
    }
    hex(hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use realizar_model::graph::weights::Weight;
    use realizar_model::graph::weights::WeightId;
    use realizar_model::graph::{GraphBuilder, RopeAngles};
    use realizar_quant::BlockType;

    /// The fingerprint of a table of two rows, a vector, an angle and a scale.
    fn of(name: &str, shape: &[usize], first: f32, angle: f32, scale: f32) -> Fingerprint {
        let mut builder = GraphBuilder::new();
        let table = Weight { id: WeightId(0), rows: 2, cols: 2 };
        let x = builder.embed(&table, scale);
        builder.rope_table(RopeAngles {
            inv_freq: [1.0, angle].into(),
            mscale: 1.0,
            components: [].into(),
        });
        let x = builder.select_rows(x);
        let mut graph = builder.finish(x);
        let info = |name: &str, shape: &[usize]| WeightInfo {
            name: name.to_owned(),
            shape: shape.to_vec(),
            ty: BlockType::F32,
        };
        graph.weights = vec![info("tok_embed", &[2, 2]), info(name, shape)];
        let data = Bytes::from(vec![0; 16]);
        let table = WeightData::Matrix { ty: BlockType::F32, rows: 2, cols: 2, data };
        let weights = Weights(vec![table, WeightData::Vector(vec![first, 2.0])]);
        Fingerprint::new(&graph, &weights, Arithmetic::Auto).placed("cpu".to_owned(), "pages")
    }

    #[test]
    fn each_change_shows_in_its_part() {
        let plain = of("norm", &[2], 1.0, 0.1, 1.0);
        assert_eq!(plain.difference(&of("norm", &[2], 1.0, 0.1, 1.0)), None);
        for (other, what) in [
            (of("other", &[2], 1.0, 0.1, 1.0), "other weights"),
            (of("norm", &[1, 2], 1.0, 0.1, 1.0), "other weights"),
            (of("norm", &[2], 1.5, 0.1, 1.0), "other weights"),
            (of("norm", &[2], 1.0, 0.100_000_01, 1.0), "another rotary embedding"),
            (of("norm", &[2], 1.0, 0.1, 1.5), "other settings"),
            (Fingerprint { arithmetic: "F32".to_owned(), ..plain.clone() }, "another arithmetic"),
            (
                Fingerprint { kv: "F16".to_owned(), ..plain.clone() },
                "another layout of keys and values",
            ),
            (Fingerprint { backend: "gpu".to_owned(), ..plain.clone() }, "another backend"),
        ] {
            let found = plain.difference(&other).unwrap();
            assert_eq!(found[0], what);
            assert_ne!(found[1], found[2]);
        }
    }
}
