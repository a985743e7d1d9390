// The scale and the minimum of sub-block `s`, six bits each, of the three words of
// scales of Q4_K and Q5_K: sub-blocks 0 to 3 in the low bits of the bytes of words
// 0 and 1; 4 to 7 in nibbles of word 2, with their upper bits atop words 0 and 1.
fn k_scale(packed: vec3<u32>, s: u32) -> vec2<f32> {
    let shift = 8u * (s % 4u);
    let both = packed.xy >> vec2(shift);
    let nibbles = (vec2(packed.z >> shift) >> vec2(0u, 4u)) & vec2(0xfu);
    let late = nibbles | ((both >> vec2(2u)) & vec2(0x30u));
    return vec2<f32>(select(both & vec2(0x3fu), late, s >= 4u));
}

