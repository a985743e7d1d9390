// Keys and values of FP8 (E4M3) without a scale: four elements are a word, the first in the lowest byte.

alias KvWord = u32;

fn kv_unpack(word: KvWord) -> vec4<f32> {
    let bytes = (vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(0xffu);
    let size = bytes & vec4<u32>(0x7fu);
    let normal = (size << vec4<u32>(20u)) + vec4<u32>(120u << 23u);
    let small = bitcast<vec4<u32>>(vec4<f32>(size) * (1.0 / 512.0));
    var bits = select(normal, small, size < vec4<u32>(8u));
    bits = select(bits, vec4<u32>(0x7fc00000u), size == vec4<u32>(0x7fu));
    return bitcast<vec4<f32>>(bits | ((bytes & vec4<u32>(0x80u)) << vec4<u32>(24u)));
}

// Rounds to nearest, ties to even, and saturates; values that are not finite become NaN.
fn kv_pack(x: vec4<f32>) -> KvWord {
    let all = bitcast<vec4<u32>>(x);
    // The bits of 448 as f32.
    let bits = min(all & vec4<u32>(0x7fffffffu), vec4<u32>(0x43e00000u));
    let normal = (bits - vec4<u32>(120u << 23u) + vec4<u32>(0x7ffffu) + ((bits >> vec4<u32>(20u)) & vec4<u32>(1u)))
        >> vec4<u32>(20u);
    // Below 2^-6 numbers are multiples of 2^-9.
    let small = vec4<u32>(round(bitcast<vec4<f32>>(min(bits, vec4<u32>(0x3c800000u))) * 512.0));
    var size = select(normal, small, bits < vec4<u32>(0x3c800000u));
    let is_odd = (all & vec4<u32>(0x7f800000u)) == vec4<u32>(0x7f800000u);
    size = select(size, vec4<u32>(0x7fu), is_odd);
    let bytes = (size | ((all >> vec4<u32>(24u)) & vec4<u32>(0x80u))) << vec4<u32>(0u, 8u, 16u, 24u);
    return bytes.x | bytes.y | bytes.z | bytes.w;
}
