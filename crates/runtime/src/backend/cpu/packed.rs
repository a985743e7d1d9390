//! The matrices of linear steps as the kernels read them: packed at load, straight
//! from the file, whose pages are given back one matrix at a time.

use super::linear::linears;
use crate::Error;
use crate::graph::Op;
use crate::plan::Plan;
use crate::weights::{WeightData, WeightId, Weights};
use realizar_formats::Bytes;
use realizar_kernels_cpu::{MatrixRef, PackedRef, Pages, Team, pack, packed_bytes};
use realizar_quant::BlockType;

/// Where packed matrices begin: on cache lines.
const ALIGN: usize = 64;

/// A packed matrix in the memory of all.
#[derive(Debug, Clone, Copy)]
struct Place {
    ty: BlockType,
    rows: usize,
    cols: usize,
    start: usize,
    len: usize,
}

/// The packed matrices of a plan.
#[derive(Debug)]
pub(super) struct PackedWeights {
    memory: Pages,
    places: Vec<Option<Place>>, // [n_weights]
}

impl PackedWeights {
    /// No matrix is packed.
    pub(super) fn none() -> Self {
        Self { memory: Pages::zeroed(0).expect("no bytes"), places: Vec::new() }
    }

    /// Packs the quantized matrices of the plan's linear steps on all threads. What
    /// nothing else reads is dropped from `weights`.
    ///
    /// # Errors
    /// If there is too little memory.
    pub(super) fn pack(team: &Team, plan: &Plan, weights: &mut Weights) -> Result<Self, Error> {
        let mut places = vec![None; weights.0.len()];
        let mut n_bytes = 0_usize;
        for id in linears(plan).flat_map(|(_, _, parts)| parts.iter().map(|part| part.weight)) {
            let WeightData::Matrix { ty, rows, cols, .. } = *weights.get(id) else { continue };
            let Some(len) = packed_bytes(ty, rows, cols) else { continue };
            if places[id.idx()].is_none() {
                places[id.idx()] = Some(Place { ty, rows, cols, start: n_bytes, len });
                n_bytes = n_bytes.saturating_add(len).next_multiple_of(ALIGN);
            }
        }
        let mut memory = Pages::zeroed(n_bytes).ok_or_else(|| Error::Option {
            option: "model",
            reason: format!("packed weights of {n_bytes} bytes do not fit in memory"),
        })?;
        let tables: Vec<WeightId> =
            plan.steps.iter().filter_map(|step| table_of(&step.op)).collect();
        for (idx, place) in places.iter().enumerate() {
            let (Some(place), WeightData::Matrix { data, .. }) = (place, &mut weights.0[idx])
            else {
                continue;
            };
            let matrix = MatrixRef::new(place.ty, place.rows, place.cols, data);
            pack(team, &matrix, &mut memory[place.start..][..place.len]);
            data.release();
            if !tables.iter().any(|id| id.idx() == idx) {
                *data = Bytes::from(Vec::new());
            }
        }
        Ok(Self { memory, places })
    }

    /// The packed form of a matrix, if it has one.
    pub(super) fn get(&self, id: WeightId) -> Option<PackedRef<'_>> {
        let place = (*self.places.get(id.idx())?)?;
        let data = &self.memory[place.start..][..place.len];
        Some(PackedRef::new(place.ty, place.rows, place.cols, data))
    }
}

/// The table that a step looks rows up in.
fn table_of(op: &Op) -> Option<WeightId> {
    match op {
        Op::Embed { table, .. } | Op::PosEmbed { table } => Some(*table),
        _ => None,
    }
}
