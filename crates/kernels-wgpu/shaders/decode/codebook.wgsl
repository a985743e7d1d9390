// What four levels of a codebook of sixteen signed bytes stand for. The levels are the low
// nibbles of the bytes of a word.

fn look_up(codebook: vec4<u32>, nibbles: u32) -> u32 {
    let at = unpack4xU8(nibbles);
    let quarters =
        vec4(codebook[at.x / 4u], codebook[at.y / 4u], codebook[at.z / 4u], codebook[at.w / 4u]);
    return pack4xU8(quarters >> (8u * (at % vec4(4u))));
}

// Of IQ4_NL and IQ4_XS: -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113.
const IQ4 = vec4<u32>(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);

// Twice the values of FP4: 0 1 2 3 4 6 8 12, then the same below zero.
const FP4 = vec4<u32>(0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu);

// Half the power of two of an exponent (`E8M0`); 0 below the normal numbers, which a device
// may flush.
fn half_power(exponent: u32) -> f32 {
    return bitcast<f32>((max(exponent, 1u) - 1u) << 23u);
}
