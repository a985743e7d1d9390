enable f16;

// The weights of a tile, rounded to half precision, with saturation.
alias TileVec = vec4<f16>;

fn tile_vec(w: vec4<f32>) -> TileVec {
    return vec4<f16>(clamp(w, vec4(-65504.0), vec4(65504.0)));
}
