enable f16;

// The weights of a tile, rounded to half precision.
alias TileVec = vec4<f16>;
