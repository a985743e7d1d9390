// The codebook of IQ3_S, the odd numbers to 15 and the same below zero, in units of d.
const POINTS = vec4<u32>(0x07050301u, 0x0f0d0b09u, 0xf9fbfdffu, 0xf1f3f5f7u);
const UNIT: f32 = 1.0;

