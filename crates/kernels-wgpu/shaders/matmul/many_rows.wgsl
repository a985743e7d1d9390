// Tiles of 64 rows: half of the invocations decode while the others load.
const LANES_Y: u32 = 8u;
const ROWS_PER_LANE: u32 = 8u;
const FIRST_LOADER: u32 = 64u;
