// Keys and values of 32 bits: four elements are four words.

alias KvWord = vec4<f32>;

fn kv_unpack(words: KvWord) -> vec4<f32> {
    return words;
}

fn kv_pack(x: vec4<f32>) -> KvWord {
    return x;
}
