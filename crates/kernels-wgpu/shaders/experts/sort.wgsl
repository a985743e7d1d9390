// Sorts the pairs of rows and their experts into tiles. A single workgroup counts the pairs of each expert,
// computes the experts' first tiles, and puts each pair in a place of its expert. The order of the pairs of
// an expert is unspecified; results do not depend on it, because an element depends on its own pair alone.

struct Params {
    n_experts: u32,
    n_chosen: u32,
    rows_at: u32,
    tile_rows: u32,
    max_tiles: u32,
    _pad: u32,
    routes: vec2<u32>, // start, stride
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<f32>;
@group(0) @binding(3) var<storage, read_write> pairs: array<u32>;

const WORKGROUP: u32 = 256u;
const PER_LANE: u32 = 4u; // experts

var<workgroup> counts: array<atomic<u32>, 1024>;
var<workgroup> firsts: array<u32, 1024>; // tiles
var<workgroup> scan: array<u32, WORKGROUP>;

fn expert_of(pair: u32) -> u32 {
    let row = batch[params.rows_at] + pair / params.n_chosen;
    let id = values[params.routes.x + row * params.routes.y + pair % params.n_chosen];
    return min(u32(id), params.n_experts - 1u);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(local_invocation_index) lane: u32) {
    let n_pairs = batch[params.rows_at + 1u] * params.n_chosen;
    for (var i = 0u; i < PER_LANE; i++) {
        atomicStore(&counts[lane * PER_LANE + i], 0u);
    }
    workgroupBarrier();
    for (var pair = lane; pair < n_pairs; pair += WORKGROUP) {
        atomicAdd(&counts[expert_of(pair)], 1u);
    }
    workgroupBarrier();

    // Number of tiles before those of a lane's experts.
    var own = 0u;
    for (var i = 0u; i < PER_LANE; i++) {
        let n = atomicLoad(&counts[lane * PER_LANE + i]);
        own += (n + params.tile_rows - 1u) / params.tile_rows;
    }
    scan[lane] = own;
    workgroupBarrier();
    for (var step = 1u; step < WORKGROUP; step <<= 1u) {
        var sum = scan[lane];
        if lane >= step {
            sum += scan[lane - step];
        }
        workgroupBarrier();
        scan[lane] = sum;
        workgroupBarrier();
    }
    if lane == WORKGROUP - 1u {
        pairs[0] = min(scan[lane], params.max_tiles);
    }
    var tile = scan[lane] - own;
    for (var i = 0u; i < PER_LANE; i++) {
        let expert = lane * PER_LANE + i;
        var left = atomicLoad(&counts[expert]);
        firsts[expert] = tile;
        let n_tiles = (left + params.tile_rows - 1u) / params.tile_rows;
        for (var t = 0u; t < n_tiles; t++) {
            let n = min(left, params.tile_rows);
            if tile < params.max_tiles {
                pairs[tile_at(tile)] = expert;
                pairs[tile_at(tile) + 1u] = n;
            }
            left -= n;
            tile++;
        }
        atomicStore(&counts[expert], 0u);
    }
    workgroupBarrier();
    for (var pair = lane; pair < n_pairs; pair += WORKGROUP) {
        let expert = expert_of(pair);
        let at = atomicAdd(&counts[expert], 1u);
        let place = firsts[expert] * params.tile_rows + at;
        pairs[pairs_at(params.max_tiles) + place] = pair;
    }
}
