// Eight times the codebook of IQ1_S and IQ1_M, -1 0 1 with an eighth more, and with an eighth less from level 4
// on, in units of d.
const POINTS = vec4<u32>(0x000901f9u, 0x0007fff7u, 0u, 0u);
const UNIT: f32 = 0.125;

