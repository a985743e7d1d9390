// Keys and values in blocks of Q4_0 along a head. A word has eight levels, the first in the lowest bits. The
// levels of a position of a head are followed by its scales: one half per 32 columns, two per word, the first
// in the lower half.

alias KvWord = u32;

// Words of levels per position of a head, and all its words.
fn kv_level_words() -> u32 {
    return params.row_words / 2u;
}
fn kv_row() -> u32 {
    return kv_level_words() + (params.row_words / 8u + 1u) / 2u;
}

fn kv_levels(levels: u32, word: u32) -> vec4<f32> {
    let nibbles = (vec4<u32>(levels >> (16u * (word & 1u))) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u);
    return vec4<f32>(nibbles) - vec4<f32>(8.0);
}

fn kv_scale(scales: u32, word: u32) -> f32 {
    let both = unpack2x16float(scales);
    return select(both.x, both.y, (word & 8u) != 0u);
}

fn kv_key(row: u32, word: u32) -> vec4<f32> {
    let at = row * kv_row();
    let scale = kv_scale(keys[at + kv_level_words() + word / 16u], word);
    return kv_levels(keys[at + word / 2u], word) * scale;
}

fn kv_value(row: u32, word: u32) -> vec4<f32> {
    let at = row * kv_row();
    let scale = kv_scale(vals[at + kv_level_words() + word / 16u], word);
    return kv_levels(vals[at + word / 2u], word) * scale;
}

// Columns per word of levels.
const KV_JOINED: u32 = 8u;

// The scale of a block. `peak` is the signed element of largest magnitude, which gets level 0.
fn kv_scale_of(peak: f32) -> f32 {
    return peak / -8.0;
}

fn kv_levels_of(x: vec4<f32>, inverse: f32) -> u32 {
    let level = vec4<u32>(clamp(x * inverse + vec4<f32>(8.5), vec4<f32>(0.0), vec4<f32>(15.0)));
    let nibbles = level << vec4<u32>(0u, 4u, 8u, 12u);
    return nibbles.x | nibbles.y | nibbles.z | nibbles.w;
}
