//! Weights on their way to the device: read and packed on all threads, copied by
//! one, each once.
//!
//! A linear's matrices of one type that follow one another become one matrix on
//! the device, so that they are one multiplication. Vectors (norms, biases, the
//! frequencies of rotary embeddings) share one buffer.

use rayon::prelude::*;
use realizar_formats::Bytes;
use realizar_model::graph::plan::Plan;
use realizar_model::graph::weights::{WeightData, WeightId, Weights};
use realizar_model::graph::{LinearPart, Op};
use realizar_quant::BlockType;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;

/// The shape of a matrix on a device; the experts of a layer are one, with the rows of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MatrixShape {
    /// The type of its blocks.
    pub(crate) ty: BlockType,
    /// Rows, of all experts.
    pub(crate) n_rows: usize,
    /// Columns.
    pub(crate) n_cols: usize,
    /// Experts, if it has any.
    pub(crate) n_experts: Option<usize>,
}

/// Where weights go: a device that packs matrices in a form of its own.
pub(crate) trait WeightStore: Sync {
    /// A matrix on the device.
    type Matrix: fmt::Debug + Send + Sync;
    /// Plain numbers on the device.
    type Vectors: fmt::Debug + Send;
    /// What can go wrong.
    type Error: Send;

    /// Bytes that a matrix takes on the device.
    fn matrix_bytes(shape: &MatrixShape) -> usize;

    /// Packs rows as a file has them.
    fn pack_rows(ty: BlockType, n_cols: usize, rows: &[u8]) -> Vec<u8>;

    /// Room for a matrix; `what` is for messages.
    fn matrix(&self, what: &str, shape: &MatrixShape) -> Result<Self::Matrix, Self::Error>;

    /// Copies packed rows to a matrix, from row `first` on.
    fn write_rows(&self, to: &Self::Matrix, first: usize, rows: &[u8]) -> Result<(), Self::Error>;

    /// Waits until what was copied has arrived.
    fn flush(&self) -> Result<(), Self::Error>;

    /// Copies plain numbers to the device, at least one; `what` is for messages.
    fn vectors(&self, what: &str, values: &[f32]) -> Result<Self::Vectors, Self::Error>;
}

/// Bytes of a piece that a thread packs.
const PIECE_BYTES: usize = 4 << 20;
/// Bytes that are copied before the device is waited for.
const IN_FLIGHT_BYTES: usize = 64 << 20;
/// Pieces that are packed before they are copied.
const BATCH_LEN: usize = 8;

/// The weights that make up one matrix on the device: their rows, one below the
/// other.
type MatrixKey = Vec<WeightId>;

/// Cuts the parts of a linear into runs that are one matrix on the device each.
fn runs<'a>(
    parts: &'a [LinearPart],
    weights: &Weights,
    n_uses: &HashMap<WeightId, usize>,
) -> Vec<&'a [LinearPart]> {
    let alone = |part: &LinearPart| n_uses.get(&part.weight).is_some_and(|&n| n > 1);
    let together = |a: &LinearPart, b: &LinearPart| {
        matrix_type(weights, a.weight) == matrix_type(weights, b.weight) && !alone(a) && !alone(b)
    };
    parts.chunk_by(together).collect()
}

/// How many operations read each matrix.
fn matrix_uses(plan: &Plan) -> HashMap<WeightId, usize> {
    let mut n_uses = HashMap::new();
    for step in &plan.steps {
        match &step.op {
            Op::Embed { table, .. } | Op::PosEmbed { table } => {
                *n_uses.entry(*table).or_default() += 1;
            }
            Op::Linear { parts, .. } => {
                parts.iter().for_each(|part| *n_uses.entry(part.weight).or_default() += 1);
            }
            _ => {}
        }
    }
    n_uses
}

/// The type, rows and columns of a matrix, of the experts of a layer those of all together, and the
/// bytes of each matrix.
pub(crate) fn matrix(weights: &Weights, id: WeightId) -> (BlockType, usize, usize, &[Bytes]) {
    let weight = weights.get(id);
    let Some((ty, rows, cols)) = weight.matrix_shape() else {
        panic!("weight {} is no matrix", id.idx())
    };
    (ty, weight.blocks().len() * rows, cols, weight.blocks())
}

/// The block type of a matrix.
pub(crate) fn matrix_type(weights: &Weights, id: WeightId) -> BlockType {
    matrix(weights, id).0
}

/// Rows of one weight that are packed and copied together.
struct Piece {
    matrix: usize,
    weight: WeightId,
    /// Of the experts of a layer, whose.
    expert: usize,
    /// Of the weight's matrix.
    first_row: usize,
    n_rows: usize,
    /// Where they go in the device's matrix.
    to_row: usize,
}

/// The shape of the matrix that some weights make up.
fn shape_of(weights: &Weights, key: &[WeightId]) -> MatrixShape {
    let (ty, _, n_cols, _) = matrix(weights, key[0]);
    let n_rows = key.iter().map(|&id| matrix(weights, id).1).sum();
    let n_experts = match weights.get(key[0]) {
        WeightData::Experts { data, .. } => Some(data.len()),
        _ => None,
    };
    MatrixShape { ty, n_rows, n_cols, n_experts }
}

/// Copies the matrices of `keys` to the device.
///
/// # Errors
/// If memory runs out, a type or a size is not one the device takes, or it is
/// lost.
fn upload_matrices<S: WeightStore>(
    store: &S,
    weights: &Weights,
    keys: &[MatrixKey],
) -> Result<HashMap<MatrixKey, S::Matrix>, S::Error> {
    let mut made = Vec::with_capacity(keys.len());
    let mut pieces = Vec::new();
    for key in keys {
        let shape = shape_of(weights, key);
        let row_bytes = shape.ty.row_bytes(shape.n_cols).unwrap_or(0).max(1);
        let rows_per_piece = (PIECE_BYTES / row_bytes).max(1);
        let mut n_rows = 0;
        for &weight in key {
            let (_, all_rows, _, blocks) = matrix(weights, weight);
            let rows = all_rows / blocks.len().max(1);
            for expert in 0..blocks.len() {
                for first_row in (0..rows).step_by(rows_per_piece) {
                    let in_piece = rows_per_piece.min(rows - first_row);
                    let to_row = n_rows + expert * rows + first_row;
                    let matrix = made.len();
                    let n_rows = in_piece;
                    pieces.push(Piece { matrix, weight, expert, first_row, n_rows, to_row });
                }
            }
            n_rows += all_rows;
        }
        let what = if shape.n_experts.is_some() { "the weights of experts" } else { "weights" };
        made.push((key.clone(), store.matrix(what, &shape)?));
    }
    copy(store, weights, &made, &pieces)?;
    Ok(made.into_iter().collect())
}

/// Packs and copies pieces; while one batch is copied, the next is packed.
fn copy<S: WeightStore>(
    store: &S,
    weights: &Weights,
    made: &[(MatrixKey, S::Matrix)],
    pieces: &[Piece],
) -> Result<(), S::Error> {
    let mut batches = pieces.chunks(rayon::current_num_threads().min(BATCH_LEN));
    // Blocks that are made of other tensors are made for as long as batches need them.
    let mut blocks: HashMap<(WeightId, usize), Bytes> = HashMap::new();
    let mut pack_next = || -> Vec<(&Piece, Vec<u8>)> {
        let batch = batches.next().unwrap_or_default();
        let mut earlier = std::mem::take(&mut blocks);
        for Piece { weight, expert, .. } in batch {
            blocks.entry((*weight, *expert)).or_insert_with_key(|key| {
                let all = || matrix(weights, *weight).3[*expert].for_once();
                earlier.remove(key).unwrap_or_else(all)
            });
        }
        let pack =
            |piece: &Piece| pack::<S>(weights, piece, &blocks[&(piece.weight, piece.expert)]);
        batch.par_iter().map(|piece| (piece, pack(piece))).collect()
    };
    let mut in_flight = 0;
    let mut write = |batch: Vec<(&Piece, Vec<u8>)>| -> Result<(), S::Error> {
        for (piece, bytes) in batch {
            store.write_rows(&made[piece.matrix].1, piece.to_row, &bytes)?;
            in_flight += bytes.len();
            if in_flight >= IN_FLIGHT_BYTES {
                store.flush()?;
                in_flight = 0;
            }
        }
        Ok(())
    };
    let mut packed = pack_next();
    while !packed.is_empty() {
        let (written, next) = rayon::join(|| write(packed), &mut pack_next);
        written?;
        packed = next;
    }
    store.flush()
}

/// Packs the rows of a piece of the matrix with these blocks, and lets the system take back the memory
/// that the file's map took for them.
fn pack<S: WeightStore>(weights: &Weights, piece: &Piece, data: &Bytes) -> Vec<u8> {
    let (ty, _, n_cols, _) = matrix(weights, piece.weight);
    let file_bytes = ty.row_bytes(n_cols).expect("rows were checked when they were bound");
    let start = piece.first_row * file_bytes;
    let rows = data.slice(start..start + piece.n_rows * file_bytes);
    let packed = S::pack_rows(ty, n_cols, &rows);
    rows.release();
    packed
}

/// What a vector of the shared buffer is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum VectorKey {
    /// A weight of the model.
    Weight(WeightId),
    /// The biases of a matrix's rows, zero for parts without one.
    Biases(MatrixKey),
    /// The frequencies of the rotary embedding of this step of the plan.
    Frequencies(usize),
}

/// Vectors of numbers that share one buffer.
#[derive(Debug, Default)]
pub(crate) struct Vectors {
    values: Vec<f32>,
    places: HashMap<VectorKey, u32>,
}

impl Vectors {
    /// Appends the numbers unless they are present.
    fn add(&mut self, key: VectorKey, values: impl IntoIterator<Item = f32>) {
        let start = self.values.len() as u32;
        if let Entry::Vacant(entry) = self.places.entry(key) {
            entry.insert(start);
            self.values.extend(values);
        }
    }

    fn add_weight(&mut self, weights: &Weights, id: Option<WeightId>) {
        if let Some(id) = id {
            self.add(VectorKey::Weight(id), weights.vector(id).iter().copied());
        }
    }

    fn add_biases(&mut self, weights: &Weights, parts: &[LinearPart]) {
        if let Some(biases) = weights.stacked_bias(parts) {
            self.add(VectorKey::Biases(key_of(parts)), biases);
        }
    }

    /// Where a vector begins in the buffer, if it has it.
    pub(crate) fn place(&self, key: &VectorKey) -> Option<u32> {
        self.places.get(key).copied()
    }
}

/// How a plan's weights are put together on the device.
#[derive(Debug)]
pub(crate) struct WeightLayout {
    keys: Vec<MatrixKey>, // each matrix once
    /// The runs of each linear step's parts.
    runs: HashMap<usize, Vec<Vec<LinearPart>>>, // by step
    vectors: Vectors,
}

impl WeightLayout {
    pub(crate) fn new(plan: &Plan, weights: &Weights) -> Self {
        let n_uses = matrix_uses(plan);
        let mut keys: Vec<MatrixKey> = Vec::new();
        let mut all_runs = HashMap::new();
        let mut vectors = Vectors::default();
        for (i, step) in plan.steps.iter().enumerate() {
            match &step.op {
                Op::Embed { table, .. } | Op::PosEmbed { table } => keys.push(vec![*table]),
                Op::RopeTable(angles) => {
                    let components = angles.components.iter().map(|&c| f32::from(c));
                    let frequencies = angles.inv_freq.iter().copied().chain(components);
                    vectors.add(VectorKey::Frequencies(i), frequencies);
                }
                Op::Attention(attention) => vectors.add_weight(weights, attention.sinks),
                Op::Norm(norm) => {
                    vectors.add_weight(weights, norm.weight);
                    vectors.add_weight(weights, norm.bias);
                }
                Op::ShortConv(conv) => {
                    vectors.add_weight(weights, Some(conv.taps));
                    vectors.add_weight(weights, conv.bias);
                }
                Op::DeltaNet(net) => {
                    vectors.add_weight(weights, Some(net.decay));
                    vectors.add_weight(weights, Some(net.dt_bias));
                }
                Op::Linear { parts, .. } => {
                    let of_step = runs(parts, weights, &n_uses);
                    for run in &of_step {
                        keys.push(key_of(run));
                        vectors.add_biases(weights, run);
                    }
                    all_runs.insert(i, of_step.into_iter().map(<[_]>::to_vec).collect());
                }
                Op::Reorder { order } => vectors.add_weight(weights, Some(*order)),
                Op::Route(route) => vectors.add_weight(weights, route.choice_bias),
                Op::ExpertBias(bias) => vectors.add_weight(weights, Some(bias.biases)),
                Op::ExpertLinear(linear) => {
                    keys.extend(linear.parts.iter().map(|part| vec![part.weight]));
                }
                _ => {}
            }
        }
        keys.sort();
        keys.dedup();
        Self { keys, runs: all_runs, vectors }
    }

    /// Bytes on the device.
    pub(crate) fn n_bytes<S: WeightStore>(&self, weights: &Weights) -> usize {
        let of_matrix = |key: &MatrixKey| S::matrix_bytes(&shape_of(weights, key));
        let matrices = self.keys.iter().map(of_matrix).fold(0, usize::saturating_add);
        // A buffer has at least one number.
        let vectors = size_of::<f32>() * self.vectors.values.len().max(1);
        matrices.saturating_add(vectors)
    }

    /// The types of all matrices, each at least once.
    #[cfg(feature = "cuda")]
    pub(crate) fn types(&self, weights: &Weights) -> impl Iterator<Item = BlockType> {
        self.keys.iter().map(|key| matrix_type(weights, key[0]))
    }

    /// Type, rows and columns of the matrices of a linear step.
    pub(crate) fn linear(
        &self,
        step: usize,
        weights: &Weights,
    ) -> impl Iterator<Item = (BlockType, usize, usize)> {
        self.runs[&step].iter().map(|run| {
            let (ty, _, cols, _) = matrix(weights, run[0].weight);
            let rows = run.iter().map(|part| matrix(weights, part.weight).1).sum();
            (ty, rows, cols)
        })
    }
}

/// A plan's weights on the device.
#[derive(Debug)]
pub(crate) struct DeviceWeights<S: WeightStore> {
    matrices: HashMap<MatrixKey, S::Matrix>,
    /// The runs of each linear step's parts.
    runs: HashMap<usize, Vec<Vec<LinearPart>>>, // by step
    pub(crate) places: Vectors,
    pub(crate) vectors: S::Vectors,
}

impl<S: WeightStore> DeviceWeights<S> {
    /// Copies the weights of a plan to the device.
    ///
    /// # Errors
    /// If memory runs out, a type or a size is not one the device takes, or it is
    /// lost.
    pub(crate) fn upload(
        store: &S,
        layout: WeightLayout,
        weights: &Weights,
    ) -> Result<Self, S::Error> {
        let WeightLayout { keys, runs, vectors: mut places } = layout;
        let matrices = upload_matrices(store, weights, &keys)?;
        let values = std::mem::take(&mut places.values);
        let values = if values.is_empty() { vec![0.0] } else { values };
        let vectors = store.vectors("norms and biases", &values)?;
        Ok(Self { matrices, runs, places, vectors })
    }

    /// The matrix of a table.
    pub(crate) fn table(&self, id: WeightId) -> &S::Matrix {
        &self.matrices[[id].as_slice()]
    }

    /// The matrices of a linear step, from its first column on, each with the
    /// place of its biases.
    pub(crate) fn linear(&self, step: usize) -> impl Iterator<Item = (&S::Matrix, Option<u32>)> {
        self.runs[&step].iter().map(|run| {
            let key = key_of(run);
            let bias = self.places.place(&VectorKey::Biases(key.clone()));
            (&self.matrices[&key], bias)
        })
    }

    /// All matrices.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &S::Matrix> {
        self.matrices.values()
    }
}

fn key_of(parts: &[LinearPart]) -> MatrixKey {
    parts.iter().map(|part| part.weight).collect()
}
