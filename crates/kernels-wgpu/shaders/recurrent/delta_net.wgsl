// The gated delta rule, for the rows of a sequence in order. A workgroup has some value columns of one head,
// and each invocation has a part of a column's state in registers: the elements `part + PARTS * j`. A state is
// [head][column][k_dim]. Comes after shaders/activations.wgsl and `const PART_LEN`, where PARTS * PART_LEN is
// at least k_dim.
//
// With unnormalized q and k, their normalizing factors g and f, and the decayed state S:
// d = write * (v - f kᵀS), the next state is S + f k dᵀ, and the output is g (qᵀS + f (qᵀk) d). So one
// reduction computes all sums over a column.

const PARTS: u32 = 16u;
const COLUMNS: u32 = 16u;
const WORKGROUP: u32 = 256u;

struct Params {
    n_k_heads: u32,
    n_v_heads: u32,
    k_dim: u32,
    v_dim: u32,
    tiled: u32, // 1: value head h has key head h % n_k_heads
    root: f32,  // 1 / sqrt(k_dim)
    eps: f32,
    range_at: u32, // first sequence and number of sequences
    seqs_at: u32,
    writes_at: u32,
    decay: u32,   // start in vectors
    dt_bias: u32, // start in vectors
    q: vec2<u32>, // start, stride
    k: vec2<u32>,
    v: vec2<u32>,
    a: vec2<u32>,
    b: vec2<u32>,
    out: vec2<u32>,
}

const NONE = 0xffffffffu;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read> vectors: array<f32>;
@group(0) @binding(3) var<storage, read_write> values: array<f32>;
@group(0) @binding(4) var<storage, read_write> states: array<f32>;

// Partial sums: of a column (kᵀS, qᵀS), and of the head (kᵀk, qᵀq, qᵀk). Rows alternate between two halves,
// so that no invocation overwrites sums that another one still reads.
var<workgroup> of_column: array<vec2<f32>, 512>; // [2][COLUMNS][PARTS]
var<workgroup> of_head: array<vec4<f32>, 32>;    // [2][PARTS]

// ln(1 + e^x) is max(x, 0) + ln(1 + e) with e = e^-|x|. The second term is 2 artanh(e / (2 + e)), computed by
// its series, because the logarithm of 1 + e loses the bits of a small e.
fn softplus(x: f32) -> f32 {
    let e = exp(-min(abs(x), 80.0));
    let z = e / (2.0 + e);
    let s = z * z;
    var sum = 1.0 / 15.0;
    sum = fma(s, sum, 1.0 / 13.0);
    sum = fma(s, sum, 1.0 / 11.0);
    sum = fma(s, sum, 1.0 / 9.0);
    sum = fma(s, sum, 1.0 / 7.0);
    sum = fma(s, sum, 1.0 / 5.0);
    sum = fma(s, sum, 1.0 / 3.0);
    sum = fma(s, sum, 1.0);
    return fma(2.0 * z, sum, max(x, 0.0));
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    if group.y >= batch[params.range_at + 1u] {
        return;
    }
    let n_tiles = (params.v_dim + COLUMNS - 1u) / COLUMNS;
    let head = group.x / n_tiles;
    let part = lane % PARTS;
    let in_tile = lane / PARTS;
    let col = group.x % n_tiles * COLUMNS + in_tile;
    let exists = col < params.v_dim;
    var key_head = head / (params.n_v_heads / params.n_k_heads);
    if params.tiled == 1u {
        key_head = head % params.n_k_heads;
    }
    let state_len = params.n_v_heads * params.v_dim * params.k_dim;
    let state_at = (head * params.v_dim + col) * params.k_dim;

    let seq = params.seqs_at + 3u * (batch[params.range_at] + group.y);
    let first_row = batch[seq];
    let n_rows = batch[seq + 1u];
    let before = batch[seq + 2u];
    var state: array<f32, PART_LEN>;
    for (var j = 0u; j < PART_LEN; j++) {
        let i = part + PARTS * j;
        state[j] = 0.0;
        if before != NONE && exists && i < params.k_dim {
            state[j] = states[before * state_len + state_at + i];
        }
    }

    for (var r = 0u; r < n_rows; r++) {
        let row = first_row + r;
        let q = params.q.x + row * params.q.y + key_head * params.k_dim;
        let k = params.k.x + row * params.k.y + key_head * params.k_dim;
        let gate = values[params.a.x + row * params.a.y + head] + vectors[params.dt_bias + head];
        let forget = exp(max(vectors[params.decay + head] * softplus(gate), -80.0));
        let write = sigmoid(values[params.b.x + row * params.b.y + head]);
        var value = 0.0;
        if exists {
            value = values[params.v.x + row * params.v.y + head * params.v_dim + col];
        }

        // Decay the state, and compute this part's sums.
        var keys: array<f32, PART_LEN>;
        var column = vec2<f32>();
        var whole = vec4<f32>();
        for (var j = 0u; j < PART_LEN; j++) {
            let i = part + PARTS * j;
            var x = vec2<f32>(); // of key and query
            if i < params.k_dim {
                x = vec2<f32>(values[k + i], values[q + i]);
            }
            keys[j] = x.x;
            state[j] *= forget;
            column = fma(x, vec2<f32>(state[j]), column);
            whole = fma(vec4<f32>(x, x.x, 0.0), vec4<f32>(x, x.y, 0.0), whole);
        }
        let half = r % 2u;
        of_column[half * WORKGROUP + lane] = column;
        if in_tile == 0u {
            of_head[half * PARTS + part] = whole;
        }
        workgroupBarrier();
        column = vec2<f32>();
        whole = vec4<f32>();
        for (var p = 0u; p < PARTS; p++) {
            column += of_column[half * WORKGROUP + in_tile * PARTS + p];
            whole += of_head[half * PARTS + p];
        }

        // Update the state, and compute the output.
        let of_key = inverseSqrt(whole.x + params.eps);
        let of_query = inverseSqrt(whole.y + params.eps) * params.root;
        let change = fma(-column.x, of_key, value) * write * of_key;
        for (var j = 0u; j < PART_LEN; j++) {
            state[j] = fma(keys[j], change, state[j]);
        }
        if part == 0u && exists {
            values[params.out.x + row * params.out.y + head * params.v_dim + col] =
                of_query * fma(whole.z, change, column.y);
        }
        let after = batch[params.writes_at + row];
        if after != NONE && exists {
            for (var j = 0u; j < PART_LEN; j++) {
                let i = part + PARTS * j;
                if i < params.k_dim {
                    states[after * state_len + state_at + i] = state[j];
                }
            }
        }
    }
}
