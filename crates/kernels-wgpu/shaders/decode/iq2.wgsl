// The codebook of IQ2_XXS, IQ2_XS and IQ2_S, 8 25 43 and the same below zero from level 4 on, in units of d.
const POINTS = vec4<u32>(0x002b1908u, 0x00d5e7f8u, 0u, 0u);
const UNIT: f32 = 0.125;

