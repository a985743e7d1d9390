//! Prints the peak number of pages that a growing sequence holds, with and without a window.

use realizar_kvcache::{BlockTable, Error, GroupSpec, KvLayout, PagePool};
use realizar_quant::BlockType;

fn main() -> Result<(), Error> {
    for window in [None, Some(512)] {
        let spec = GroupSpec {
            n_layers: 18,
            n_kv_heads: 1,
            head_dim: 256,
            window,
            chunked: false,
            values_are_keys: false,
        };
        let layout = KvLayout::new(BlockType::F16, spec)?;
        let mut pool = PagePool::new(layout.pages_for(8192, 1));
        let mut table = BlockTable::default();
        for len in 1..=8192 {
            table.grow(len, &mut pool)?;
            if let Some(window) = window {
                table.release_before((len + 1).saturating_sub(window), &mut pool);
            }
        }
        let peak = pool.stats().peak_used;
        let mib = (peak * layout.page_bytes()) as f64 / f64::from(1 << 20);
        println!("window {window:?}: {peak} pages at most, {mib:.1} MiB");
    }
    Ok(())
}
