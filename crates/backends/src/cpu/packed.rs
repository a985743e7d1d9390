//! The matrices of linear steps as the kernels read them: packed at load, straight
//! from the file, whose pages are released piece by piece; or mapped from the file
//! that an earlier load wrote.

use super::experts::expert_linears;
use super::linear::linears;
use crate::Error;
use crate::packed_cache::{Key, PackedFiles};
use realizar_base::ByteSize;
use realizar_formats::{Bytes, FileWatch};
use realizar_kernels_cpu::{
    MatrixRef, PACKED_LAYOUT, PACKED_ROWS, PackedRef, Pages, Team, Tier, pack_groups, packed_bytes,
};
use realizar_model::graph::Op;
use realizar_model::graph::plan::{Plan, Step};
use realizar_model::graph::weights::{WeightData, WeightId, Weights};
use realizar_quant::BlockType;

/// Where packed matrices begin: on cache lines.
const ALIGN: usize = 64;

/// Bytes of a matrix that are packed before their pages are released.
const PIECE_BYTES: usize = 16 << 20;

/// A packed matrix in the memory of all, or those of a layer's experts.
#[derive(Debug, Clone, Copy)]
struct Place {
    ty: BlockType,
    rows: usize,
    cols: usize,
    start: usize,
    /// Bytes of a matrix.
    len: usize,
    /// Matrices, which lie one after the other, each from a cache line on.
    n: usize,
}

impl Place {
    /// Where matrix `i` begins.
    fn start_of(&self, i: usize) -> usize {
        self.start + i * self.len.next_multiple_of(ALIGN)
    }
}

/// Where packed matrices lie.
#[derive(Debug)]
enum Memory {
    Pages(Pages),
    File(Bytes),
}

/// The packed matrices of a plan.
#[derive(Debug)]
pub(super) struct PackedWeights {
    memory: Memory,
    places: Vec<Option<Place>>, // [n_weights]
}

impl PackedWeights {
    /// No matrix is packed.
    pub(super) fn none() -> Self {
        Self { memory: Memory::File(Bytes::from(Vec::new())), places: Vec::new() }
    }

    /// Packs the quantized matrices of the plan's linear steps on all threads, or maps
    /// them from a file that fits. What nothing else reads is dropped from `weights`.
    ///
    /// # Errors
    /// If there is too little memory.
    pub(super) fn load(
        (team, tier): (&Team, Tier),
        plan: &Plan,
        weights: &mut Weights,
        files: Option<&PackedFiles>,
    ) -> Result<Self, Error> {
        let (places, n_bytes) = places(plan, weights)?;
        let files =
            files.filter(|_| n_bytes > 0).map(|files| (files, key(files, &places, weights)));
        let found = files.as_ref().and_then(|(files, key)| files.open(key, n_bytes));
        let memory = match found {
            Some(data) => {
                data.prefetch();
                Memory::File(data)
            }
            None => {
                let packed = pack((team, tier), &places, n_bytes, weights)?;
                // What was packed of pages that were lost is not kept.
                weights.check_files()?;
                if let Some((files, key)) = &files {
                    files.write(key, &packed);
                }
                Memory::Pages(packed)
            }
        };
        let tables = tables(plan);
        for (idx, _) in places.iter().enumerate().filter(|(_, place)| place.is_some()) {
            if tables.iter().any(|id| id.idx() == idx) {
                continue;
            }
            match &mut weights.0[idx] {
                WeightData::Matrix { data, .. } => *data = Bytes::from(Vec::new()),
                WeightData::Experts { data, .. } => data.clear(),
                WeightData::Vector(_) => {}
            }
        }
        Ok(Self { memory, places })
    }

    /// The file that they lie in, if they are mapped.
    pub(super) fn file(&self) -> Option<FileWatch> {
        match &self.memory {
            Memory::Pages(_) => None,
            Memory::File(bytes) => bytes.watch(),
        }
    }

    /// The packed form of a matrix, if it has one.
    pub(super) fn get(&self, id: WeightId) -> Option<PackedRef<'_>> {
        self.expert(id, 0)
    }

    /// The packed form of an expert's matrix, if it has one.
    pub(super) fn expert(&self, id: WeightId, expert: usize) -> Option<PackedRef<'_>> {
        let place = (*self.places.get(id.idx())?)?;
        assert!(expert < place.n, "expert {expert} of {}", place.n);
        let all: &[u8] = match &self.memory {
            Memory::Pages(pages) => pages,
            Memory::File(bytes) => bytes,
        };
        let data = &all[place.start_of(expert)..][..place.len];
        Some(PackedRef::new(place.ty, place.rows, place.cols, data))
    }
}

/// Bytes of all weights once the plan's matrices are packed.
pub(super) fn n_bytes(plan: &Plan, weights: &Weights) -> usize {
    // What overflows here is refused when it is loaded.
    let Ok((places, packed)) = places(plan, weights) else { return usize::MAX };
    let tables = tables(plan);
    let stay = |idx: usize| places[idx].is_none() || tables.iter().any(|id| id.idx() == idx);
    let kept = weights.0.iter().enumerate().filter(|(idx, _)| stay(*idx));
    kept.map(|(_, data)| data.n_bytes()).fold(packed, usize::saturating_add)
}

/// Where each matrix goes, and the bytes of all.
fn places(plan: &Plan, weights: &Weights) -> Result<(Vec<Option<Place>>, usize), Error> {
    let mut places = vec![None; weights.0.len()];
    let mut n_bytes = 0_usize;
    let of_linears = linears(plan).flat_map(|(_, _, parts)| parts.iter().map(|part| part.weight));
    let of_experts =
        expert_linears(plan).flat_map(|linear| linear.parts.iter().map(|part| part.weight));
    for id in of_linears.chain(of_experts) {
        let Some((ty, rows, cols)) = weights.get(id).matrix_shape() else { continue };
        let Some(len) = packed_bytes(ty, rows, cols) else { continue };
        if places[id.idx()].is_none() {
            let n = weights.get(id).blocks().len();
            places[id.idx()] = Some(Place { ty, rows, cols, start: n_bytes, len, n });
            let bytes = len.checked_next_multiple_of(ALIGN).and_then(|len| len.checked_mul(n));
            let end = bytes.and_then(|bytes| n_bytes.checked_add(bytes));
            n_bytes = end.ok_or_else(|| too_large(usize::MAX))?;
        }
    }
    Ok((places, n_bytes))
}

fn too_large(n_bytes: usize) -> Error {
    let reason = format!("packed weights of {} do not fit in memory", ByteSize::from(n_bytes));
    Error::Option { option: "model", reason }
}

/// The matrices that are packed, with their places and where they begin.
fn packed<'a>(
    places: &'a [Option<Place>],
    weights: &'a Weights,
) -> impl Iterator<Item = (&'a Place, usize, &'a Bytes)> {
    let places = places.iter().zip(&weights.0);
    places.filter_map(|(place, weight)| Some((place.as_ref()?, weight))).flat_map(
        |(place, weight)| {
            let matrices = weight.blocks().iter().enumerate();
            matrices.map(move |(i, data)| (place, place.start_of(i), data))
        },
    )
}

/// The key of the packed memory: of the layout, the model's files, and each matrix.
fn key(files: &PackedFiles, places: &[Option<Place>], weights: &Weights) -> Key {
    let mut key = files.key(PACKED_LAYOUT);
    for (place, start, data) in packed(places, weights) {
        let Place { ty, rows, cols, .. } = place;
        key.matrix(&format!("{ty} {rows} {cols} {start}"), &data.origin());
        data.release();
    }
    key.finish()
}

/// Packs all matrices.
fn pack(
    (team, tier): (&Team, Tier),
    places: &[Option<Place>],
    n_bytes: usize,
    weights: &Weights,
) -> Result<Pages, Error> {
    let mut memory = Pages::zeroed(n_bytes).ok_or_else(|| too_large(n_bytes))?;
    for (place, start, data) in packed(places, weights) {
        let data = data.for_once();
        let matrix = MatrixRef::new(place.ty, place.rows, place.cols, &data);
        let out = &mut memory[start..][..place.len];
        let group_bytes = place.len / place.rows.div_ceil(PACKED_ROWS);
        let groups_of_piece = (PIECE_BYTES / group_bytes).max(1);
        for (i, out) in out.chunks_mut(groups_of_piece * group_bytes).enumerate() {
            let first = i * groups_of_piece;
            pack_groups(team, tier, &matrix, first, out);
            // A group has the bytes of sixteen rows of the file, the last one fewer.
            let end = (first * group_bytes + out.len()).min(data.len());
            data.slice(first * group_bytes..end).release();
        }
    }
    Ok(memory)
}

/// The tables that steps look rows up in.
fn tables(plan: &Plan) -> Vec<WeightId> {
    let table_of = |step: &Step| match &step.op {
        Op::Embed { table, .. } | Op::PosEmbed { table } => Some(*table),
        _ => None,
    };
    plan.steps.iter().filter_map(table_of).collect()
}
