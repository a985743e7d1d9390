// Attention of prefill rows: a workgroup has the rows of a tile and one query head, and iterates over the
// blocks of 32 positions that any of the rows sees, in ascending order, with a running maximum and sum per
// row (Dao et al. 2022, "FlashAttention").
//
// Eight invocations share two rows: each computes the scores of four positions of a block for both, then
// accumulates every eighth word of columns. Blocks begin at multiples of 32, and a block that a row does not
// see leaves the row's state unchanged, so a row's result depends neither on its tile nor on other rows.
//
// Comes after a part that defines CHUNKS, the maximum number of 32-column chunks of a head; a part of
// shaders/kv; and common.wgsl.

const ROWS: u32 = 32u; // TILE_ROWS in attention.rs
const BLOCK: u32 = 32u; // positions
const CHUNK: u32 = 8u; // words of four columns
const ROW: u32 = 9u; // words from row to row in shared memory, apart in the banks

@group(0) @binding(2) var<storage, read_write> values: array<f32>;
@group(0) @binding(3) var<storage, read> keys: array<KvWord>;
@group(0) @binding(4) var<storage, read> vals: array<KvWord>;
@group(0) @binding(5) var<storage, read> vectors: array<f32>;

var<workgroup> q_tile: array<vec4<f32>, ROWS * CHUNK>;
var<workgroup> kv_tile: array<vec4<f32>, BLOCK * ROW>;
var<workgroup> weights: array<vec4<f32>, ROWS * ROW>; // four positions each
var<workgroup> maxima: array<f32, ROWS * CHUNK>;

// A row of the tile and its running softmax.
struct Row {
    index: u32, // in the tile
    first: u32, // position that it sees
    last: u32,
    exists: bool,
    max: f32,
    sum: f32,
}

// The last position that a row sees, ascending within a sequence.
fn last_visible(row: u32, position: u32) -> u32 {
    if params.reaches_at == NONE {
        return position;
    }
    return batch[params.reaches_at + row] - 1u;
}

fn row_of(index: u32, first_row: u32, first_position: u32, n_rows: u32) -> Row {
    let position = first_position + index;
    let exists = index < n_rows;
    var last = position;
    if exists {
        last = last_visible(first_row + index, position);
    }
    return Row(index, first_visible(position), last, exists, LOWEST, 0.0);
}

fn sees_block(row: Row, start: u32) -> bool {
    return row.exists && start <= row.last && start + BLOCK > row.first;
}

// Whether a row sees each of four positions.
fn visible(row: Row, start: u32) -> vec4<bool> {
    let position = vec4<u32>(start) + vec4<u32>(0u, 1u, 2u, 3u);
    return (position >= vec4<u32>(row.first)) & (position <= vec4<u32>(row.last));
}

fn capped4(scores: vec4<f32>, sees: vec4<bool>) -> vec4<f32> {
    let x = vec4<f32>(capped(scores.x), capped(scores.y), capped(scores.z), capped(scores.w));
    return select(vec4<f32>(LOWEST), x, sees);
}

// Converts the scores of `row` to weights; returns the factor for the previous sum and values.
fn weigh(row: ptr<function, Row>, own: u32, scores: vec4<f32>, sees: vec4<bool>) -> f32 {
    let at = (*row).index * CHUNK;
    var largest = (*row).max;
    for (var i = 0u; i < CHUNK; i++) {
        largest = max(largest, maxima[at + i]);
    }
    let x = scores - vec4<f32>(largest);
    let p = vec4<f32>(decay(x.x), decay(x.y), decay(x.z), decay(x.w));
    weights[(*row).index * ROW + own] = select(vec4<f32>(), p, sees);
    let keep = decay((*row).max - largest);
    (*row).max = largest;
    return keep;
}

fn add_weights(row: ptr<function, Row>, keep: f32) {
    var four = vec4<f32>();
    for (var i = 0u; i < CHUNK; i++) {
        four += weights[(*row).index * ROW + i];
    }
    (*row).sum = fma((*row).sum, keep, (four.x + four.y) + (four.z + four.w));
}

// Four columns of a scaled query; zero for missing rows.
fn query(row: u32, exists: bool, head: u32, col: u32) -> vec4<f32> {
    var x = vec4<f32>();
    let at = params.q.x + row * params.q.y + head * params.head_dim + col;
    for (var i = 0u; i < 4u; i++) {
        if exists && col + i < params.head_dim {
            x[i] = values[at + i] * params.scale;
        }
    }
    return x;
}

fn finish(row: Row, first_row: u32, head: u32, own: u32, acc: ptr<function, array<vec4<f32>, CHUNKS>>) {
    if !row.exists {
        return;
    }
    var largest = row.max;
    var sum = row.sum;
    var keep = 1.0;
    if params.has_sinks != 0u {
        let sink = vectors[params.sinks + head];
        largest = max(largest, sink);
        keep = decay(row.max - largest);
        sum = fma(sum, keep, decay(sink - largest));
    }
    let factor = keep / sum;
    let at = params.out.x + (first_row + row.index) * params.out.y + head * params.head_dim;
    for (var chunk = 0u; chunk < CHUNKS; chunk++) {
        let col = 4u * (chunk * CHUNK + own);
        let x = (*acc)[chunk] * factor;
        for (var i = 0u; i < 4u; i++) {
            if col + i < params.head_dim {
                values[at + col + i] = x[i];
            }
        }
    }
}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let head = group.x;
    let kv_head = head / (params.n_heads / params.n_kv_heads);
    let tile = params.work_at + 2u * group.y;
    let first_row = batch[tile];
    let n_rows = batch[tile + 1u];
    if n_rows == 0u {
        return;
    }
    let base = batch[params.bases_at + batch[params.seq_of_row_at + first_row]];
    let first_position = batch[params.positions_at + first_row];
    let last_position = last_visible(first_row + n_rows - 1u, first_position + n_rows - 1u);
    let seen_from = first_visible(first_position);

    let own = lane % 8u;
    let line = lane / 8u; // 0..16: two rows of queries, two positions to load
    var row_a = row_of(2u * line, first_row, first_position, n_rows);
    var row_b = row_of(2u * line + 1u, first_row, first_position, n_rows);
    var acc_a = array<vec4<f32>, CHUNKS>();
    var acc_b = array<vec4<f32>, CHUNKS>();

    for (var start = seen_from / BLOCK * BLOCK; start <= last_position; start += BLOCK) {
        // Places of the block's positions `line` and `line + 16`.
        let here = vec2<u32>(start + line, start + line + 16u);
        let load = (here >= vec2<u32>(seen_from)) & (here <= vec2<u32>(last_position));
        var place = vec2<u32>();
        for (var i = 0u; i < 2u; i++) {
            if load[i] {
                place[i] = kv_place(base, kv_head, here[i]);
            }
        }
        let sees_a = sees_block(row_a, start);
        let sees_b = sees_block(row_b, start);

        // Scores, chunk by chunk of the columns.
        var scores_a = vec4<f32>();
        var scores_b = vec4<f32>();
        for (var chunk = 0u; chunk < params.row_words; chunk += CHUNK) {
            let word = chunk + own;
            workgroupBarrier();
            for (var i = 0u; i < 2u; i++) {
                let index = line + 16u * i;
                q_tile[index * CHUNK + own] =
                    query(first_row + index, index < n_rows, head, 4u * word);
                var key = vec4<f32>();
                if load[i] && word < params.row_words {
                    key = kv_key(place[i], word);
                }
                // Position 4 n + m is stored at 8 m + n, so that eight invocations read
                // eight adjacent ones.
                kv_tile[(index % 4u * 8u + index / 4u) * ROW + own] = key;
            }
            workgroupBarrier();
            if sees_a || sees_b {
                for (var i = 0u; i < CHUNK; i++) {
                    let k0 = kv_tile[own * ROW + i];
                    let k1 = kv_tile[(8u + own) * ROW + i];
                    let k2 = kv_tile[(16u + own) * ROW + i];
                    let k3 = kv_tile[(24u + own) * ROW + i];
                    let kx = vec4<f32>(k0.x, k1.x, k2.x, k3.x);
                    let ky = vec4<f32>(k0.y, k1.y, k2.y, k3.y);
                    let kz = vec4<f32>(k0.z, k1.z, k2.z, k3.z);
                    let kw = vec4<f32>(k0.w, k1.w, k2.w, k3.w);
                    let a = q_tile[row_a.index * CHUNK + i];
                    scores_a = fma(vec4<f32>(a.x), kx, scores_a);
                    scores_a = fma(vec4<f32>(a.y), ky, scores_a);
                    scores_a = fma(vec4<f32>(a.z), kz, scores_a);
                    scores_a = fma(vec4<f32>(a.w), kw, scores_a);
                    let b = q_tile[row_b.index * CHUNK + i];
                    scores_b = fma(vec4<f32>(b.x), kx, scores_b);
                    scores_b = fma(vec4<f32>(b.y), ky, scores_b);
                    scores_b = fma(vec4<f32>(b.z), kz, scores_b);
                    scores_b = fma(vec4<f32>(b.w), kw, scores_b);
                }
            }
        }

        // Weights.
        let visible_a = visible(row_a, start + 4u * own);
        let visible_b = visible(row_b, start + 4u * own);
        scores_a = capped4(scores_a, visible_a);
        scores_b = capped4(scores_b, visible_b);
        maxima[row_a.index * CHUNK + own] =
            max(max(scores_a.x, scores_a.y), max(scores_a.z, scores_a.w));
        maxima[row_b.index * CHUNK + own] =
            max(max(scores_b.x, scores_b.y), max(scores_b.z, scores_b.w));
        workgroupBarrier();
        var keep_a = 1.0;
        var keep_b = 1.0;
        if sees_a {
            keep_a = weigh(&row_a, own, scores_a, visible_a);
        }
        if sees_b {
            keep_b = weigh(&row_b, own, scores_b, visible_b);
        }
        workgroupBarrier();
        if sees_a {
            add_weights(&row_a, keep_a);
        }
        if sees_b {
            add_weights(&row_b, keep_b);
        }

        // Values, chunk by chunk of the columns.
        for (var chunk = 0u; chunk < CHUNKS; chunk++) {
            let word = chunk * CHUNK + own;
            if chunk * CHUNK >= params.row_words {
                break;
            }
            workgroupBarrier();
            for (var i = 0u; i < 2u; i++) {
                var value = vec4<f32>();
                if load[i] && word < params.row_words {
                    value = kv_value(place[i], word);
                }
                kv_tile[(line + 16u * i) * ROW + own] = value;
            }
            workgroupBarrier();
            if sees_a || sees_b {
                var sum_a = acc_a[chunk] * keep_a;
                var sum_b = acc_b[chunk] * keep_b;
                for (var i = 0u; i < BLOCK / 4u; i++) {
                    let a = weights[row_a.index * ROW + i];
                    let b = weights[row_b.index * ROW + i];
                    let v0 = kv_tile[(4u * i) * ROW + own];
                    let v1 = kv_tile[(4u * i + 1u) * ROW + own];
                    let v2 = kv_tile[(4u * i + 2u) * ROW + own];
                    let v3 = kv_tile[(4u * i + 3u) * ROW + own];
                    sum_a = fma(vec4<f32>(a.x), v0, sum_a);
                    sum_a = fma(vec4<f32>(a.y), v1, sum_a);
                    sum_a = fma(vec4<f32>(a.z), v2, sum_a);
                    sum_a = fma(vec4<f32>(a.w), v3, sum_a);
                    sum_b = fma(vec4<f32>(b.x), v0, sum_b);
                    sum_b = fma(vec4<f32>(b.y), v1, sum_b);
                    sum_b = fma(vec4<f32>(b.z), v2, sum_b);
                    sum_b = fma(vec4<f32>(b.w), v3, sum_b);
                }
                if sees_a {
                    acc_a[chunk] = sum_a;
                }
                if sees_b {
                    acc_b[chunk] = sum_b;
                }
            }
        }
    }
    finish(row_a, first_row, head, own, &acc_a);
    finish(row_b, first_row, head, own, &acc_b);
}
