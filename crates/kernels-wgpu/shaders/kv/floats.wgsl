// Loads four columns of a key or value: word `word` of a row of a head. Comes after the part of a float type.

fn kv_key(row: u32, word: u32) -> vec4<f32> {
    return kv_unpack(keys[row * params.row_words + word]);
}

fn kv_value(row: u32, word: u32) -> vec4<f32> {
    return kv_unpack(vals[row * params.row_words + word]);
}
