// Keys and values as the upper halves of 32-bit floats: four elements are two
// words, the lower column in the lower half.

alias KvWord = vec2<u32>;

fn kv_unpack(words: KvWord) -> vec4<f32> {
    let even = bitcast<vec2<f32>>(words << vec2<u32>(16u));
    let odd = bitcast<vec2<f32>>(words & vec2<u32>(0xffff0000u));
    return vec4<f32>(even.x, odd.x, even.y, odd.y);
}

// Rounds to nearest, ties to even; NaN becomes quiet NaN.
fn kv_pack(x: vec4<f32>) -> KvWord {
    let bits = bitcast<vec4<u32>>(x);
    let one = vec4<u32>(1u);
    let shift = vec4<u32>(16u);
    let nearest = (bits + vec4<u32>(0x7fffu) + ((bits >> shift) & one)) >> shift;
    let quiet = (bits >> shift) | vec4<u32>(0x40u);
    let is_nan = (bits & vec4<u32>(0x7fffffffu)) > vec4<u32>(0x7f800000u);
    let rounded = select(nearest, quiet, is_nan);
    return vec2<u32>(rounded.x | (rounded.y << 16u), rounded.z | (rounded.w << 16u));
}
