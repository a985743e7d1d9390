// Pairs of a row and one of its experts, in tiles of one expert each, as words:
// the number of tiles; for each of the `max_tiles` that there is room for its expert and its number of
// pairs; and for each a place for as many pairs as the tiles have, a pair being the row, counted from the
// first, times the experts of a row, plus which of them it is.

fn tile_at(tile: u32) -> u32 {
    return 4u + 2u * tile;
}

fn pairs_at(max_tiles: u32) -> u32 {
    return 4u + 2u * max_tiles;
}
