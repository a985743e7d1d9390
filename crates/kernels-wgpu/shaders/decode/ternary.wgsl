// TQ2_0, split, and TQ1_0, which becomes it: per block of 256 columns 16 words of levels (of 128 columns, number
// 32 k + l lies in bits 2 k of byte l); after all blocks their d, two a word. d * (q - 1).

fn decode(row: u32, group: u32) -> array<vec4<f32>, 8> {
    let block = group / 8u;
    let s = group % 8u; // of the block's groups
    let ds = unpack2x16float(weights[row + 16u * (params.groups / 8u) + block / 2u]);
    let d = select(ds.x, ds.y, (block & 1u) == 1u);
    let qs = row + 16u * block + 8u * (s / 4u);
    let shift = 2u * (s % 4u);
    var w: array<vec4<f32>, 8>;
    for (var i = 0u; i < 8u; i++) {
        w[i] = d * (vec4<f32>(unpack4xU8((weights[qs + i] >> shift) & 0x03030303u)) - 1.0);
    }
    return w;
}
