// Tiles of 64 outputs by 64 rows, 8 by 8 per invocation.
const LANES_X: u32 = 8u;
const LANES_Y: u32 = 8u;
const PER_LANE: u32 = 8u;
