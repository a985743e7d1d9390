// Tiles of 64 outputs by 16 rows, 4 by 4 per invocation.
const LANES_X: u32 = 16u;
const LANES_Y: u32 = 4u;
const PER_LANE: u32 = 4u;
