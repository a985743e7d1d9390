// The codebook of IQ3_XXS, 4 12 20 28 36 44 52 62 and the same below zero, in units of d.
const POINTS = vec4<u32>(0x1c140c04u, 0x3e342c24u, 0xe4ecf4fcu, 0xc2ccd4dcu);
const UNIT: f32 = 0.25;

