// `look_up` of `decode/codebook.wgsl` for four words.

fn look_up4(codebook: vec4<u32>, nibbles: vec4<u32>) -> vec4<u32> {
    return vec4(
        look_up(codebook, nibbles.x),
        look_up(codebook, nibbles.y),
        look_up(codebook, nibbles.z),
        look_up(codebook, nibbles.w),
    );
}
