//! Attention over a cache of 4096 tokens, 32 query heads on 8 key-value heads, on whatever adapter there is.

use wgpu_attention::{Attention, Gpu, Result, Tensor};

fn main() -> Result<()> {
    let gpu = Gpu::new()?;
    let wave = |n: usize| (0..n).map(|i| (i as f32 * 0.37).sin()).collect::<Vec<_>>();
    let q = Tensor::from_slice(&gpu, &wave(32 * 128), [1, 32, 1, 128])?; // [batch, heads_q, seq_q, dim_k]
    let k = Tensor::from_slice(&gpu, &wave(8 * 4096 * 128), [1, 8, 4096, 128])?; // [batch, heads_kv, seq_kv, dim_k]
    let v = k.clone(); // [batch, heads_kv, seq_kv, dim_v]
    let attention = Attention::causal();
    let out = attention.run(&gpu, &q, &k, &v)?; // grouping, tiles and splits are chosen for you
    let o: Vec<f32> = out.o.read(&gpu)?; // [batch, heads_q, seq_q, dim_v]
    #[expect(clippy::print_stdout, reason = "an example shows its result")]
    {
        println!("{} ({})", gpu.name(), gpu.driver());
        println!("{}", attention.plan_for(&gpu, &q, &k, &v)?.explain());
        println!("o[0, 0, 0, ..4] = {:?}", &o[..4]);
    }
    Ok(())
}
