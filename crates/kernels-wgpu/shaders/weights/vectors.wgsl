// Packed rows as vectors of four words, for types that are read at multiples of
// four words only: one load in place of four.

@group(0) @binding(4) var<storage, read> weights: array<vec4<u32>>;

fn word(at: u32) -> u32 {
    return weights[at / 4u][at % 4u];
}

fn words(at: u32) -> vec4<u32> {
    return weights[at / 4u];
}
