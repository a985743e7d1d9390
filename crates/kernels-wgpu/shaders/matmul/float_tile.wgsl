// The weights of a tile as they are.
alias TileVec = vec4<f32>;
