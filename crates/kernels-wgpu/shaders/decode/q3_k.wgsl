// Q3_K, split: per block of 256 columns 8 words of bits 2 (column 32 k + l lies in
// bit k of byte l), 16 words of bits 0 and 1 (of 128 columns, number 32 k + l lies
// in bits 2 k of byte l), 3 words of scales plus 32 (low nibbles in bytes 0 to 7,
// upper 2 bits in bytes 8 to 11); after all blocks their d, two a word.
// d * scale * (q - 4).

fn decode(row: u32, group: u32) -> array<vec4<f32>, 8> {
    let block = group / 8u;
    let at = row + 27u * block;
    let s = group % 8u; // of the block's groups
    let ds = unpack2x16float(weights[row + 27u * (params.groups / 8u) + block / 2u]);
    let d = select(ds.x, ds.y, (block & 1u) == 1u);
    // Of the scales 2 s and 2 s + 1, in bytes 0 and 1.
    let low = weights[at + 24u + (s / 2u) % 2u] >> (16u * (s % 2u) + 4u * (s / 4u));
    let high = weights[at + 26u] >> (16u * (s % 2u) + 2u * (s / 2u));
    let scales = (low & 0x0f0fu) | ((high & 0x0303u) << 4u);
    let qs = at + 8u + 8u * (s / 4u);
    let shift = 2u * (s % 4u);
    var w: array<vec4<f32>, 8>;
    for (var i = 0u; i < 8u; i++) {
        let scale = d * (f32((scales >> (8u * (i / 4u))) & 63u) - 32.0);
        let q = ((weights[qs + i] >> shift) & 0x03030303u)
            | (((weights[at + i] >> s) & 0x01010101u) << 2u);
        w[i] = scale * (vec4<f32>(unpack4xU8(q)) - 4.0);
    }
    return w;
}
