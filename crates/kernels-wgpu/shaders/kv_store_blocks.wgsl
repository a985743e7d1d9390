// Stores the keys and values of rows in their slots, in blocks of 32 columns. A workgroup has one head of a
// row's keys or values, and an invocation four columns at a time. Comes after half.wgsl and a part of
// shaders/kv.

struct Params {
    head_dim: u32,
    row_words: u32,  // words of four columns of a position of a head
    n_kv_heads: u32,
    page_shift: u32, // a page has 1 << page_shift positions
    n_slots: u32,
    rows_at: u32,
    slots_at: u32,
    values_are_keys: u32,
    k: vec2<u32>,    // start, stride
    v: vec2<u32>,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read> values: array<f32>;
@group(0) @binding(3) var<storage, read_write> keys: array<KvWord>;
@group(0) @binding(4) var<storage, read_write> vals: array<KvWord>;

const LANES: u32 = 64u;

var<workgroup> peaks: array<f32, LANES>;
var<workgroup> is_odd: array<u32, LANES>;
var<workgroup> levels: array<u32, LANES>;
var<workgroup> scales: array<u32, 8>;

fn put(is_key: bool, place: u32, word: u32) {
    if is_key {
        keys[place] = word;
    } else {
        vals[place] = word;
    }
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    if group.y >= batch[params.rows_at + 1u] {
        return;
    }
    let head = group.x;
    let is_key = group.z == 0u;
    let row = batch[params.rows_at] + group.y;
    let slot = batch[params.slots_at + row];
    if slot >= params.n_slots {
        return;
    }
    let page = slot >> params.page_shift;
    let index = slot & ((1u << params.page_shift) - 1u);
    let place = (((page * params.n_kv_heads + head) << params.page_shift) + index) * kv_row();
    let view = select(params.v, params.k, is_key);
    let start = view.x + row * view.y + head * params.head_dim;

    for (var first = 0u; first < params.row_words; first += LANES) {
        // Four columns; zero past the end of the head.
        let word = first + lane;
        var x = vec4<f32>();
        var peak = 0.0;
        var odd = false;
        for (var i = 0u; i < 4u; i++) {
            let col = 4u * word + i;
            if col < params.head_dim {
                x[i] = values[start + col];
            }
            if abs(x[i]) > abs(peak) {
                peak = x[i];
            }
            odd = odd || (bitcast<u32>(x[i]) & 0x7f800000u) == 0x7f800000u;
        }
        peaks[lane] = peak;
        is_odd[lane] = u32(odd);
        workgroupBarrier();

        // The block's element of largest magnitude; the first among equals.
        let block = lane / 8u * 8u;
        peak = 0.0;
        var any_odd = 0u;
        for (var i = 0u; i < 8u; i++) {
            let other = peaks[block + i];
            if abs(other) > abs(peak) {
                peak = other;
            }
            any_odd |= is_odd[block + i];
        }
        // A block with an element that is not finite becomes NaN.
        if any_odd != 0u {
            x = vec4<f32>();
            peak = 0.0;
        }
        let scale = kv_scale_of(peak);
        var inverse = 0.0;
        if scale != 0.0 {
            inverse = 1.0 / scale;
        }
        levels[lane] = kv_levels_of(x, inverse);
        if lane % 8u == 0u {
            scales[lane / 8u] = select(half_bits(scale), 0x7e00u, any_odd != 0u);
        }
        workgroupBarrier();

        if word < params.row_words {
            if KV_JOINED == 4u {
                put(is_key, place + word, levels[lane]);
            } else if lane % 2u == 0u {
                put(is_key, place + word / 2u, levels[lane] | (levels[lane + 1u] << 16u));
            }
            if lane % 16u == 0u {
                var both = scales[lane / 8u];
                if word + 8u < params.row_words {
                    both |= scales[lane / 8u + 1u] << 16u;
                }
                put(is_key, place + kv_level_words() + word / 16u, both);
            }
        }
        // All invocations must have read before any of them writes.
        workgroupBarrier();
    }
}
