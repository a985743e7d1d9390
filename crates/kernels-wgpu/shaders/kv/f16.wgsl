// Keys and values in IEEE half precision: four elements are two words, the lower
// column in the lower half.

alias KvWord = vec2<u32>;

fn kv_unpack(words: KvWord) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
}

fn kv_pack(x: vec4<f32>) -> KvWord {
    return vec2<u32>(pack2x16float(x.xy), pack2x16float(x.zw));
}
