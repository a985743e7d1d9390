// Stores the keys and values of rows in their slots, four columns of a head per
// invocation. Comes after a part of shaders/kv.

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

// Columns from `col` on of the head that begins at `start`; zero past its end.
fn four(start: u32, col: u32) -> vec4<f32> {
    var x = vec4<f32>();
    for (var i = 0u; i < 4u; i++) {
        if col + i < params.head_dim {
            x[i] = values[start + col + i];
        }
    }
    return x;
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let head = id.x / params.row_words;
    let word = id.x % params.row_words;
    if head >= params.n_kv_heads || id.y >= batch[params.rows_at + 1u] {
        return;
    }
    let row = batch[params.rows_at] + id.y;
    let slot = batch[params.slots_at + row];
    if slot >= params.n_slots {
        return;
    }
    let page = slot >> params.page_shift;
    let index = slot & ((1u << params.page_shift) - 1u);
    let place = (((page * params.n_kv_heads + head) << params.page_shift) + index)
        * params.row_words + word;
    let start = head * params.head_dim;
    keys[place] = kv_pack(four(params.k.x + row * params.k.y + start, 4u * word));
    if params.values_are_keys == 0u {
        vals[place] = kv_pack(four(params.v.x + row * params.v.y + start, 4u * word));
    }
}
