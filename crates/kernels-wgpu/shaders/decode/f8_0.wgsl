// F8_0: per block of 64 columns a word of d (f32), then 16 words of numbers of FP8
// (E4M3). d * e4m3(q).

// Four numbers. A device may flush subnormal numbers, so none are on the way.
fn e4m3(word: u32) -> vec4<f32> {
    let bits = unpack4xU8(word);
    let magnitude = bits & vec4(0x7fu);
    let below = vec4<f32>(magnitude) * (1.0 / 512.0);
    let normal = bitcast<vec4<f32>>((magnitude << vec4(20u)) + vec4(120u << 23u));
    let value = bitcast<vec4<u32>>(select(normal, below, magnitude < vec4(8u)));
    return bitcast<vec4<f32>>(value | ((bits & vec4(0x80u)) << vec4(24u)));
}

fn decode(row: u32, group: u32) -> array<vec4<f32>, 8> {
    let at = row + 17u * (group / 2u);
    let d = bitcast<f32>(weights[at]);
    let first = at + 1u + 8u * (group % 2u);
    var w: array<vec4<f32>, 8>;
    for (var i = 0u; i < 8u; i++) {
        w[i] = d * e4m3(weights[first + i]);
    }
    return w;
}
