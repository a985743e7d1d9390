// The weights of a tile in f32.
alias TileVec = vec4<f32>;

fn tile_vec(w: vec4<f32>) -> TileVec {
    return w;
}
