// Packed rows as words.

@group(0) @binding(4) var<storage, read> weights: array<u32>;

fn word(at: u32) -> u32 {
    return weights[at];
}

fn words(at: u32) -> vec4<u32> {
    return vec4(weights[at], weights[at + 1u], weights[at + 2u], weights[at + 3u]);
}
