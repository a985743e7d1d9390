// Keys and values in IEEE half precision: four elements are two words, the lower
// column in the lower half. Comes after half.wgsl.

alias KvWord = vec2<u32>;

fn kv_unpack(words: KvWord) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
}

fn kv_pack(x: vec4<f32>) -> KvWord {
    let even = vec2<u32>(half_bits(x.x), half_bits(x.z));
    let odd = vec2<u32>(half_bits(x.y), half_bits(x.w));
    return even | (odd << vec2<u32>(16u));
}
