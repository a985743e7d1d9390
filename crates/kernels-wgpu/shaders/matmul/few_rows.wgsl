// Tiles of 16 rows: every invocation decodes and loads.
const LANES_Y: u32 = 4u;
const ROWS_PER_LANE: u32 = 4u;
const FIRST_LOADER: u32 = 0u;
