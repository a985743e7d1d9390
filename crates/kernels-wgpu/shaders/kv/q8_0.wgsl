// Keys and values in blocks of Q8_0 along a head. A word has four levels, the first in the lowest byte. The
// levels of a position of a head are followed by its scales: one half per 32 columns, two per word, the first
// in the lower half.

alias KvWord = u32;

// Words of levels per position of a head, and all its words.
fn kv_level_words() -> u32 {
    return params.row_words;
}
fn kv_row() -> u32 {
    return kv_level_words() + (params.row_words / 8u + 1u) / 2u;
}

fn kv_levels(levels: u32, word: u32) -> vec4<f32> {
    let bytes = vec4<u32>(levels) << vec4<u32>(24u, 16u, 8u, 0u);
    return vec4<f32>(bitcast<vec4<i32>>(bytes) >> vec4<u32>(24u));
}

fn kv_scale(scales: u32, word: u32) -> f32 {
    let both = unpack2x16float(scales);
    return select(both.x, both.y, (word & 8u) != 0u);
}

fn kv_key(row: u32, word: u32) -> vec4<f32> {
    let at = row * kv_row();
    let scale = kv_scale(keys[at + kv_level_words() + word / 16u], word);
    return kv_levels(keys[at + word], word) * scale;
}

fn kv_value(row: u32, word: u32) -> vec4<f32> {
    let at = row * kv_row();
    let scale = kv_scale(vals[at + kv_level_words() + word / 16u], word);
    return kv_levels(vals[at + word], word) * scale;
}

// Columns per word of levels.
const KV_JOINED: u32 = 4u;

// The scale of a block. `peak` is the signed element of largest magnitude.
fn kv_scale_of(peak: f32) -> f32 {
    return abs(peak) / 127.0;
}

// The nearest levels; ties round away from zero.
fn kv_levels_of(x: vec4<f32>, inverse: f32) -> u32 {
    let size = min(abs(x * inverse), vec4<f32>(127.0));
    let whole = trunc(size);
    let up = select(vec4<f32>(0.0), vec4<f32>(1.0), size - whole >= vec4<f32>(0.5));
    let level = vec4<i32>(min(whole + up, vec4<f32>(127.0)));
    let signed = select(level, -level, x < vec4<f32>(0.0));
    let bytes = (bitcast<vec4<u32>>(signed) & vec4<u32>(0xffu)) << vec4<u32>(0u, 8u, 16u, 24u);
    return bytes.x | bytes.y | bytes.z | bytes.w;
}
