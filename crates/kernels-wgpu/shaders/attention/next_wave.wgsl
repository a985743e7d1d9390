// Advances to the next wave of decode rows, and from the last one to the first.

struct Params {
    waves_at: u32,
    first_item_at: u32,
    pad: vec2<u32>,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> batch: array<u32>;

@compute @workgroup_size(1)
fn main() {
    // First item, first row, index, number of waves, and the first row of each.
    let at = params.waves_at;
    var index = batch[at + 2u] + 1u;
    if index == batch[at + 3u] {
        index = 0u;
    }
    let row = batch[at + 4u + index];
    batch[at] = batch[params.first_item_at + row];
    batch[at + 1u] = row;
    batch[at + 2u] = index;
}
