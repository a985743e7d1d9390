// Pairs of a row and one of its experts, in tiles of one expert each, as words: the number of tiles; the
// expert and the number of pairs of each of `max_tiles` tiles; and the pairs of each tile. A pair is the
// row's index, counted from the first row, times the number of experts per row, plus the expert's index
// among those of the row.

fn tile_at(tile: u32) -> u32 {
    return 4u + 2u * tile;
}

fn pairs_at(max_tiles: u32) -> u32 {
    return 4u + 2u * max_tiles;
}
